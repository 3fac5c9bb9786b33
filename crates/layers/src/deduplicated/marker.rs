//! The object that marks the bucket of chunks as one of this layer, and names the version of its format.
//!
//! Its bytes are a constant. Damaged or lost ones are written again if it is certain that they were those of this
//! version: by the checksum that the store has of them, or by chunks of this version. Manifests name a version of their
//! own.

use bytes::Bytes;
use tracing::warn;
use tradewind_core::checksum::Algorithm;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Checksum, Context, ObjectKey};

use super::chunk_store::{BUCKET, ChunkStore};
use super::doubt::DOUBT_PREFIX;
use super::last_collection::LAST_COLLECTION_KEY;
use super::manifest::ChunkId;
use super::part_references::PART_PREFIX;

/// Its key.
pub(super) const MARKER_KEY: &str = "format";
/// Its content.
const MARKER: &[u8] = b"tradewind deduplicated chunks 1\n";
/// Chunks that are read to find one of this version: some may be damaged.
const MAX_SAMPLE_CHUNKS: usize = 16;

/// Writes the marker.
pub(super) async fn write(store: &ChunkStore, context: &Context) -> Result<()> {
    store.put(context, &ObjectKey::new(MARKER_KEY)?, Bytes::from_static(MARKER)).await
}

/// Returns true if the bucket is marked, and false if there is none, or one without chunks. Restores a marker that is
/// damaged or lost.
///
/// Fails with [`InvalidArgument`](Reason::InvalidArgument) if the marker is of another version, and with
/// [`CorruptData`](Reason::CorruptData) if it is damaged and nothing shows its version.
pub(super) async fn is_present(store: &ChunkStore, context: &Context) -> Result<bool> {
    match store.get(context, &ObjectKey::new(MARKER_KEY)?).await {
        Ok(marker) if marker == MARKER => Ok(true),
        Ok(_) => Err(later_version()),
        Err(error) if error.reason() == Reason::NoSuchBucket => Ok(false),
        Err(error) if error.reason() == Reason::NoSuchKey => {
            let has_chunks = has_chunks_of_this_version(store, context).await?;
            if has_chunks {
                warn!(bucket = BUCKET, "the object {MARKER_KEY:?} of the chunks is lost; writing it again");
                write(store, context).await?;
            }
            Ok(has_chunks)
        }
        Err(error) if error.reason() == Reason::CorruptData => {
            restore_damaged(store, context, error).await?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

async fn restore_damaged(store: &ChunkStore, context: &Context, damage: Error) -> Result<()> {
    let stored = match store.checksums(context, &ObjectKey::new(MARKER_KEY)?).await {
        Ok(checksums) => checksums.into_iter().find(|checksum| checksum.algorithm() == Algorithm::Crc64Nvme),
        Err(error) if error.reason() == Reason::CorruptData => None,
        Err(error) => return Err(error),
    };
    let is_of_this_version = match stored {
        Some(stored) if stored == Checksum::compute(Algorithm::Crc64Nvme, MARKER) => true,
        Some(_) => return Err(later_version()),
        None => has_chunks_of_this_version(store, context).await?,
    };
    if !is_of_this_version {
        let message = format!(
            "the object {MARKER_KEY:?} of the bucket {BUCKET:?} is damaged, and no chunk shows its version: {}; if there \
             are no deduplicated objects, start the server without the layer \"deduplicated\" and delete the object",
            damage.message()
        );
        return Err(damage.with_message(message));
    }
    warn!(bucket = BUCKET, error = %damage, "the object {MARKER_KEY:?} of the chunks is damaged; writing it again");
    write(store, context).await
}

/// Returns true if all objects of the bucket have keys of this layer, and if its first chunks that can be read have the bytes
/// of their hashes, which is at least one.
async fn has_chunks_of_this_version(store: &ChunkStore, context: &Context) -> Result<bool> {
    let (mut after, mut sample) = (None, Vec::new());
    loop {
        let page = store.page(context, after).await?;
        for entry in &page.entries {
            match ChunkId::from_key(entry.name()) {
                Some(chunk) if sample.len() < MAX_SAMPLE_CHUNKS => sample.push(chunk),
                Some(_) => {}
                None if is_other_key(entry.name()) => {}
                None => return Ok(false),
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut has_chunks = false;
    for chunk in sample {
        match store.get(context, &chunk.key()?).await {
            Ok(bytes) if ChunkId::of_bytes(&bytes) == chunk => has_chunks = true,
            // Not damaged, so that it is of another version.
            Ok(_) => return Ok(false),
            Err(error) if error.reason() == Reason::CorruptData => {}
            Err(error) => return Err(error),
        }
    }
    Ok(has_chunks)
}

/// Returns true for the keys of objects of this layer that are no chunks.
fn is_other_key(key: &str) -> bool {
    key == MARKER_KEY || key.starts_with(PART_PREFIX) || is_record_key(key)
}

/// Returns true for the keys of objects that a bucket without chunks may have besides the marker.
pub(super) fn is_record_key(key: &str) -> bool {
    key == LAST_COLLECTION_KEY || key.starts_with(DOUBT_PREFIX)
}

fn later_version() -> Error {
    let message = format!("the chunks in the bucket {BUCKET:?} are of a later version; update the server");
    Error::new(Reason::InvalidArgument, message)
}
