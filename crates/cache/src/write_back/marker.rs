//! The marker of a bucket: a small object that names the journal which may hold newer data of the bucket.
//!
//! It is the same in the backing store, where other gateways find it, and in the journal. Its key is reserved.

use bytes::Bytes;
use futures::StreamExt;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::{Address, BucketName, Context, Metadata, ObjectKey, ObjectStore, Precondition};

/// The reserved key.
pub const MARKER_KEY: &str = ".tradewind-write-back";

/// The first line of a marker.
const TITLE: &str = "tradewind write-back 1";

/// The largest marker that is read.
const MAX_MARKER_BYTES: u64 = 4096;

/// The owner of a bucket: a journal, and the number of times that it became the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The journal's id: 32 hexadecimal digits.
    pub journal: String,
    /// Grows each time that the journal takes the bucket. A copy of the journal is an owner of the past.
    pub epoch: u64,
}

impl Owner {
    /// A new journal.
    pub fn new() -> Result<Self> {
        let random = || {
            getrandom::u64().map_err(|e| {
                Error::with_source(
                    Reason::Io,
                    "the system has no random numbers for the journal",
                    e.to_string(),
                )
            })
        };
        Ok(Self { journal: format!("{:016x}{:016x}", random()?, random()?), epoch: 0 })
    }

    /// This journal, when it takes the bucket once more.
    pub fn next(&self) -> Self {
        Self { journal: self.journal.clone(), epoch: self.epoch + 1 }
    }

    fn encode(&self) -> Bytes {
        format!("{TITLE}\njournal {}\nepoch {}\n", self.journal, self.epoch).into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        if lines.next()? != TITLE {
            return None;
        }
        let journal = lines.next()?.strip_prefix("journal ")?.to_owned();
        let epoch = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
        Some(Self { journal, epoch })
    }
}

/// The address of a bucket's marker.
pub(super) fn marker_address(bucket: &BucketName) -> Result<Address> {
    Ok(Address::new(bucket.clone(), ObjectKey::new(MARKER_KEY)?))
}

/// Reads the marker of a bucket. `None` if there is none. Fails with [`CorruptData`](Reason::CorruptData) if it is not
/// a marker.
pub(super) async fn read_marker(
    store: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
) -> Result<Option<Owner>> {
    let found = match store.get(context, &marker_address(bucket)?, GetRequest::default()).await {
        Ok(found) => found,
        Err(e) if e.reason() == Reason::NoSuchKey => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    let mut body = found.body;
    if body.length() <= MAX_MARKER_BYTES {
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
    }
    let owner = Owner::decode(&bytes).ok_or_else(|| {
        let message = format!("the object {MARKER_KEY:?} in bucket {bucket:?} is no marker of a journal");
        Error::new(Reason::CorruptData, message)
    })?;
    Ok(Some(owner))
}

/// Writes the marker of a bucket, if the precondition holds.
pub(super) async fn write_marker(
    store: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
    owner: &Owner,
    precondition: Precondition,
) -> Result<()> {
    let bytes = owner.encode();
    let mut metadata = Metadata::default();
    metadata.headers.content_type = Some("text/plain".to_owned());
    let size = Some(bytes.len() as u64);
    let request = StageRequest { metadata, size, precondition, ..StageRequest::default() };
    let mut staged = store.stage(context, &marker_address(bucket)?, request).await?;
    staged.write(bytes).await?;
    staged.commit(Expected { size, ..Expected::default() }).await?;
    Ok(())
}

/// Removes the marker of a bucket.
pub(super) async fn remove_marker(
    store: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
) -> Result<()> {
    store.delete(context, &marker_address(bucket)?, Precondition::None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_back() {
        let owner = Owner::new().unwrap().next();
        assert_eq!((owner.journal.len(), owner.epoch), (32, 1));
        assert_eq!(Owner::decode(&owner.encode()), Some(owner.clone()));
        assert_ne!(Owner::new().unwrap().journal, owner.journal);
    }

    #[test]
    fn other_content_is_no_owner() {
        for text in
            ["", "tradewind write-back 2\njournal a\nepoch 1\n", "tradewind write-back 1\nepoch 1\n", "\u{0}"]
        {
            assert_eq!(Owner::decode(text.as_bytes()), None, "{text:?}");
        }
    }
}
