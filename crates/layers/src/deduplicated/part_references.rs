//! References of parts to chunks. A collection cannot read the manifest of a part before the upload is completed. So the
//! chunks of a part are listed in an object of their own, which is durable before the part is.
//!
//! A collection reads these objects before it reads the manifests of objects, and removes those of uploads that have
//! ended after it. So a chunk is referred to in one of both places at any time.
//!
//! The key names the upload by a hash, so that the upload of a damaged reference is known. Keys of earlier versions do not.

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListPosition, ListRequest};
use tradewind_core::multipart::UploadId;
use tradewind_core::{Address, Context, ObjectKey};

use super::busy_retry::retry_busy;
use super::chunk_store::{ChunkStore, PAGE_ENTRIES};
use super::damage::DamagedObject;
use super::manifest::{self, Entry, corrupt};
use crate::transformed::keys::random;

/// The begin of their keys, which no chunk has.
pub(super) const PART_PREFIX: &str = "part-";
/// Hexadecimal digits of a hash, and of the random number after it.
const DIGITS: usize = 32;

/// The part of an upload, as a reference names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UploadName {
    pub address: Address,
    pub upload: UploadId,
}

impl UploadName {
    /// Bucket, key and upload, each with its length in 4 bytes little-endian.
    fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for text in [self.address.bucket.as_str(), self.address.key.as_str(), &self.upload.0] {
            let length = u32::try_from(text.len());
            let length = length.map_err(|_| Error::new(Reason::Defect, "a name is too long"))?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        Ok(bytes)
    }

    /// The name, and the rest of the bytes.
    fn decode(mut bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut text = || {
            let (length, rest) = bytes.split_first_chunk()?;
            let (text, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
            bytes = rest;
            std::str::from_utf8(text).ok()
        };
        let address = Address::parse(text()?, text()?).ok()?;
        let upload = UploadId(text()?.to_owned());
        Some((Self { address, upload }, bytes))
    }

    /// The hash of the name: that of a key.
    pub fn digest(&self) -> Result<String> {
        let hash = blake3::hash(&self.encode()?);
        Ok(hash.to_hex()[..DIGITS].to_owned())
    }

    /// Records the chunks of a part. Returns when they are durable.
    pub async fn record(&self, store: &ChunkStore, context: &Context, manifest: &[u8]) -> Result<()> {
        let id: [u8; 16] = random()?;
        let key =
            ObjectKey::new(&format!("{PART_PREFIX}{}-{:032x}", self.digest()?, u128::from_le_bytes(id)))?;
        let mut bytes = self.encode()?;
        bytes.extend_from_slice(manifest);
        store.put(context, &key, Bytes::from(bytes)).await
    }

    /// Returns true if the upload was completed or aborted. Fails with [`CorruptData`](Reason::CorruptData) if its record is
    /// damaged.
    pub async fn has_ended(&self, store: &ChunkStore, context: &Context) -> Result<bool> {
        let (address, upload) = (&self.address, &self.upload);
        match retry_busy(context, || store.inner.list_parts(context, address, upload, None, 1)).await {
            Ok(_) => Ok(false),
            Err(error) if matches!(error.reason(), Reason::NoSuchUpload | Reason::NoSuchBucket) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// A page of references.
pub(super) struct ReferencePage {
    pub keys: Vec<ObjectKey>,
    /// The `after` of the next page, if there are more.
    pub next: Option<ListPosition>,
}

/// The keys of references, in order.
pub(super) async fn page(
    store: &ChunkStore,
    context: &Context,
    after: Option<ListPosition>,
) -> Result<ReferencePage> {
    let request =
        ListRequest { prefix: PART_PREFIX.to_owned(), after, limit: PAGE_ENTRIES, ..ListRequest::default() };
    let page = retry_busy(context, || store.inner.list(context, &store.bucket, &request)).await?;
    let keys = page.entries.iter().map(|entry| ObjectKey::new(entry.name())).collect::<Result<_>>()?;
    Ok(ReferencePage { keys, next: page.next })
}

/// The hash of the upload in the key of a reference; `None` in those of earlier versions.
pub(super) fn digest_in(key: &ObjectKey) -> Option<&str> {
    let digits = key.as_str().strip_prefix(PART_PREFIX)?;
    let (digest, number) = digits.split_at_checked(DIGITS)?;
    number.starts_with('-').then_some(digest)
}

/// The references of a part.
pub(super) struct PartReference {
    pub name: UploadName,
    /// The bytes of the part.
    pub bytes: u64,
}

/// Reads the references of a part, and calls `visit` with each entry of its manifest. Errors name the key.
pub(super) async fn read(
    store: &ChunkStore,
    context: &Context,
    key: &ObjectKey,
    visit: impl FnMut(Entry),
) -> Result<PartReference> {
    let read = retry_busy(context, || store.get(context, key)).await;
    let decoded = read.and_then(|stored| decode(&stored, visit));
    decoded.map_err(|error| DamagedObject::object(store.address(key)).name(error))
}

fn decode(stored: &[u8], mut visit: impl FnMut(Entry)) -> Result<PartReference> {
    let (name, manifest) = UploadName::decode(stored).ok_or_else(|| corrupt("of a part cannot be read"))?;
    let mut bytes = 0;
    for entry in manifest::entries(manifest)? {
        bytes = entry.end;
        visit(entry);
    }
    Ok(PartReference { name, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written_and_truncated_ones_rejected() {
        let address = Address::parse("bucket", "a key\0").unwrap();
        let name = UploadName { address, upload: UploadId("abc".to_owned()) };
        let mut bytes = name.encode().unwrap();
        let named = bytes.len();
        bytes.extend_from_slice(b"rest");
        assert_eq!(UploadName::decode(&bytes), Some((name.clone(), &b"rest"[..])));
        let digest = name.digest().unwrap();
        let key = ObjectKey::new(&format!("part-{digest}-{:032x}", 7)).unwrap();
        assert_eq!(digest_in(&key), Some(&*digest));
        assert_eq!(digest_in(&ObjectKey::new(&format!("part-{:032x}", 7)).unwrap()), None);
        for length in 0..named {
            assert_eq!(UploadName::decode(&bytes[..length]), None);
        }
    }
}
