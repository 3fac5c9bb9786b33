//! The marker of a bucket: a small object that names the journal which may hold newer data of the bucket.
//!
//! Other gateways find it in the backing store. The journal has a record of the markers that it wrote, under the same
//! reserved key: the confirmed one, and those whose outcome is unknown. A marker is renewed after each opening of the
//! journal, so that an older copy of the journal is not taken for the owner.

use futures::StreamExt;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::{Address, BucketName, Context, ETag, Metadata, ObjectKey, ObjectStore, Precondition};

/// The reserved key.
pub const MARKER_KEY: &str = ".tradewind-write-back";

/// The first line of a marker.
const TITLE: &str = "tradewind write-back 1";

/// The largest marker that is read.
const MAX_MARKER_BYTES: u64 = 4096;

/// Attempts to write a marker whose outcome is unknown and of which the record knows.
const MAX_NEXT_CLAIMS: usize = 8;

/// The owner of a bucket: a journal, and one claim of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The journal's id for the bucket: 32 hexadecimal digits.
    pub journal: String,
    /// A random number of each claim and renewal, in the same form. An earlier copy of the journal does not know it.
    pub claim: String,
}

impl Owner {
    /// The content of the marker.
    pub fn encode(&self) -> String {
        format!("{TITLE}\njournal {}\nclaim {}\n", self.journal, self.claim)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        if lines.next()? != TITLE {
            return None;
        }
        let journal = lines.next()?.strip_prefix("journal ")?.to_owned();
        let claim = lines.next()?.strip_prefix("claim ")?.to_owned();
        Some(Self { journal, claim })
    }
}

/// The owners of a bucket that this journal is: what it recorded before it wrote the marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnerRecord {
    journal: String,
    /// The claim of the marker that was written last, as far as the outcome is known.
    current: Option<String>,
    /// Claims whose marker was written with an unknown outcome: each may still appear. The latest is last.
    next: Vec<String>,
    /// The last of `next`, if it is of this opening of the journal. Not recorded.
    attempt: Option<String>,
}

impl OwnerRecord {
    /// The record of a journal that never owned the bucket.
    pub fn new() -> Result<Self> {
        Ok(Self { journal: random_id()?, current: None, next: Vec::new(), attempt: None })
    }

    /// True if the marker is of this journal.
    pub fn has(&self, found: &Owner) -> bool {
        found.journal == self.journal
            && (self.current.as_ref() == Some(&found.claim) || self.next.contains(&found.claim))
    }

    /// The owner of the marker, as far as the outcome is known.
    pub fn current(&self) -> Option<Owner> {
        let claim = self.current.clone()?;
        Some(Owner { journal: self.journal.clone(), claim })
    }

    /// The owner that the next marker names. Must be recorded before the marker is written.
    pub fn begin_claim(&mut self) -> Result<Owner> {
        let claim = match &self.attempt {
            // Another attempt of the same claim, so that a late request writes the same marker.
            Some(claim) => claim.clone(),
            None => random_id()?,
        };
        if self.attempt.is_none() {
            self.next.push(claim.clone());
            let excess = self.next.len().saturating_sub(MAX_NEXT_CLAIMS);
            self.next.drain(..excess);
            self.attempt = Some(claim.clone());
        }
        Ok(Owner { journal: self.journal.clone(), claim })
    }

    /// Records that the backing store has the marker of this owner.
    pub fn confirm(&mut self, owner: &Owner) {
        self.next.retain(|claim| *claim != owner.claim);
        self.current = Some(owner.claim.clone());
        self.attempt = None;
    }

    fn encode(&self) -> String {
        let current = self.current.iter().map(|claim| format!("current {claim}\n"));
        let next = self.next.iter().map(|claim| format!("next {claim}\n"));
        let claims: String = current.chain(next).collect();
        format!("{TITLE}\njournal {}\n{claims}", self.journal)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        if lines.next()? != TITLE {
            return None;
        }
        let journal = lines.next()?.strip_prefix("journal ")?.to_owned();
        let mut record = Self { journal, current: None, next: Vec::new(), attempt: None };
        for line in lines {
            match line.split_once(' ')? {
                ("current", claim) => record.current = Some(claim.to_owned()),
                ("next", claim) => record.next.push(claim.to_owned()),
                _ => return None,
            }
        }
        Some(record)
    }
}

fn random_id() -> Result<String> {
    let random = || {
        getrandom::u64().map_err(|e| {
            Error::with_source(Reason::Io, "the system has no random numbers for the journal", e.to_string())
        })
    };
    Ok(format!("{:016x}{:016x}", random()?, random()?))
}

/// The marker of a bucket in the backing store.
#[derive(Debug)]
pub(super) struct FoundMarker {
    pub owner: Owner,
    pub etag: ETag,
}

/// The address of a bucket's marker.
pub(super) fn marker_address(bucket: &BucketName) -> Result<Address> {
    Ok(Address::new(bucket.clone(), ObjectKey::new(MARKER_KEY)?))
}

/// Reads the marker of a bucket. `None` if there is none. Fails with [`CorruptData`](Reason::CorruptData) if it is not
/// a marker.
pub(super) async fn read_marker(
    backing: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
) -> Result<Option<FoundMarker>> {
    let Some(found) = read_small(backing, context, bucket).await? else { return Ok(None) };
    let owner = Owner::decode(&found.bytes).ok_or_else(|| not_a_marker(bucket))?;
    Ok(Some(FoundMarker { owner, etag: found.etag }))
}

/// Reads the record of a journal. `None` if it never owned the bucket.
pub(super) async fn read_record(
    journal: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
) -> Result<Option<OwnerRecord>> {
    let Some(found) = read_small(journal, context, bucket).await? else { return Ok(None) };
    OwnerRecord::decode(&found.bytes).ok_or_else(|| damaged_record(bucket)).map(Some)
}

fn not_a_marker(bucket: &BucketName) -> Error {
    let message = format!(
        "the object {MARKER_KEY:?} in bucket {bucket:?} is damaged: it names no journal. Find out whether another journal \
         may hold newer data of the bucket, and serve it with that journal. If there is none, delete the object in the \
         backing store; if this journal has data of the bucket, the next message says how to restore the object"
    );
    Error::new(Reason::CorruptData, message).affecting_whole_bucket()
}

fn damaged_record(bucket: &BucketName) -> Error {
    let message = format!(
        "the record of the ownership of bucket {bucket:?} in the journal is damaged: restore the directory of the \
         journal from a copy of its last state; or, to give up the data that only the journal has, move the directory \
         elsewhere"
    );
    Error::new(Reason::CorruptData, message)
}

/// The object with the reserved key.
struct SmallObject {
    bytes: Vec<u8>,
    etag: ETag,
}

/// Reads the object with the reserved key; without its bytes if it is too large.
async fn read_small(
    store: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
) -> Result<Option<SmallObject>> {
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
    Ok(Some(SmallObject { bytes, etag: found.info.etag }))
}

/// Writes the marker of a bucket, if the precondition holds.
pub(super) async fn write_marker(
    backing: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
    owner: &Owner,
    precondition: Precondition,
) -> Result<()> {
    write_small(backing, context, bucket, owner.encode(), precondition).await
}

/// Writes the record of a journal.
pub(super) async fn write_record(
    journal: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
    record: &OwnerRecord,
) -> Result<()> {
    write_small(journal, context, bucket, record.encode(), Precondition::None).await
}

async fn write_small(
    store: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
    text: String,
    precondition: Precondition,
) -> Result<()> {
    let mut metadata = Metadata::default();
    metadata.headers.content_type = Some("text/plain".to_owned());
    let size = Some(text.len() as u64);
    let request = StageRequest { metadata, size, precondition, ..StageRequest::default() };
    let mut staged = store.stage(context, &marker_address(bucket)?, request).await?;
    staged.write(text.into()).await?;
    staged.commit(Expected { size, ..Expected::default() }).await?;
    Ok(())
}

/// Removes the record of a journal.
pub(super) async fn remove_record(
    journal: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
) -> Result<()> {
    journal.delete(context, &marker_address(bucket)?, Precondition::None).await.map(drop)
}

/// Removes a marker that was found, if it is still the same where the backing store can tell.
pub(super) async fn remove_marker(
    backing: &dyn ObjectStore,
    context: &Context,
    bucket: &BucketName,
    found: FoundMarker,
) -> Result<()> {
    let address = marker_address(bucket)?;
    let mut removed = Err(Error::new(Reason::Unsupported, "conditional deletions"));
    if backing.capabilities().conditional_writes {
        removed = backing.delete(context, &address, Precondition::Matches(found.etag)).await.map(drop);
    }
    // Services may have conditional writes without conditional deletions.
    if removed.as_ref().is_err_and(|e| e.reason() == Reason::Unsupported) {
        removed = backing.delete(context, &address, Precondition::None).await.map(drop);
    }
    match removed {
        Err(e) if e.reason() != Reason::NoSuchKey => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_back() {
        let mut record = OwnerRecord::new().unwrap();
        let owner = record.begin_claim().unwrap();
        assert_eq!((owner.journal.len(), owner.claim.len()), (32, 32));
        assert_eq!(Owner::decode(owner.encode().as_bytes()), Some(owner.clone()));
        let read = OwnerRecord::decode(record.encode().as_bytes()).unwrap();
        assert!(read.has(&owner) && read.current().is_none());
        record.confirm(&owner);
        let mut read = OwnerRecord::decode(record.encode().as_bytes()).unwrap();
        assert_eq!((read.clone(), read.current()), (record, Some(owner.clone())));
        assert_ne!(read.begin_claim().unwrap(), owner, "another opening, another claim");
    }

    #[test]
    fn attempts_of_one_opening_are_one_claim() {
        let mut record = OwnerRecord::new().unwrap();
        let first = record.begin_claim().unwrap();
        assert_eq!(record.begin_claim().unwrap(), first);
        for _ in 0..20 {
            record = OwnerRecord::decode(record.encode().as_bytes()).unwrap();
            let latest = record.begin_claim().unwrap();
            assert!(record.has(&latest) && record.next.len() <= MAX_NEXT_CLAIMS);
        }
        assert!(!record.has(&first));
    }

    #[test]
    fn other_content_is_no_owner() {
        for text in
            ["", "tradewind write-back 2\njournal a\nclaim b\n", "tradewind write-back 1\nclaim b\n", "\u{0}"]
        {
            assert_eq!(Owner::decode(text.as_bytes()), None, "{text:?}");
            assert_eq!(OwnerRecord::decode(text.as_bytes()), None, "{text:?}");
        }
    }
}
