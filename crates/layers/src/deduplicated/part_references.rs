//! References of parts to chunks. A collection cannot read the manifest of a part before the upload is completed. So the
//! chunks of a part are listed in an object of their own, which is durable before the part is.
//!
//! A collection reads these objects before it reads the manifests of objects, and removes those of uploads that have
//! ended after it. So a chunk is referred to in one of both places at any time.

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::multipart::UploadId;
use tradewind_core::{Address, Context, ObjectKey};

use super::chunk_store::{ChunkStore, PAGE_ENTRIES};
use super::manifest::{self, Entry, corrupt};
use crate::transformed::keys::random;

/// The begin of their keys, which no chunk has.
const PREFIX: &str = "part-";

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

    /// Records the chunks of a part. Returns when they are durable.
    pub async fn record(&self, store: &ChunkStore, context: &Context, manifest: &[u8]) -> Result<()> {
        let id: [u8; 16] = random()?;
        let key = ObjectKey::new(&format!("{PREFIX}{:032x}", u128::from_le_bytes(id)))?;
        let mut bytes = self.encode()?;
        bytes.extend_from_slice(manifest);
        store.put(context, &key, Bytes::from(bytes)).await
    }

    /// Returns true if the upload was completed or aborted.
    pub async fn has_ended(&self, store: &ChunkStore, context: &Context) -> Result<bool> {
        match store.inner.list_parts(context, &self.address, &self.upload, None, 1).await {
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
    pub next: Option<String>,
}

/// The keys of references, in order.
pub(super) async fn page(
    store: &ChunkStore,
    context: &Context,
    after: Option<String>,
) -> Result<ReferencePage> {
    let request =
        ListRequest { prefix: PREFIX.to_owned(), after, limit: PAGE_ENTRIES, ..ListRequest::default() };
    let page = store.inner.list(context, &store.bucket, &request).await?;
    let keys = page.entries.iter().map(|entry| ObjectKey::new(entry.name())).collect::<Result<_>>()?;
    Ok(ReferencePage { keys, next: page.next })
}

/// Reads the references of a part, and calls `visit` with each entry of its manifest.
pub(super) async fn read(
    store: &ChunkStore,
    context: &Context,
    key: &ObjectKey,
    mut visit: impl FnMut(Entry),
) -> Result<UploadName> {
    let bytes = store.get(context, key).await?;
    let (name, manifest) = UploadName::decode(&bytes).ok_or_else(|| corrupt("of a part cannot be read"))?;
    manifest::entries(manifest)?.for_each(&mut visit);
    Ok(name)
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
        assert_eq!(UploadName::decode(&bytes), Some((name, &b"rest"[..])));
        for length in 0..named {
            assert_eq!(UploadName::decode(&bytes[..length]), None);
        }
    }
}
