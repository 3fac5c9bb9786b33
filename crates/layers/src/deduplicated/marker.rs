//! The object that marks the bucket of chunks as one of this layer, and names the version of its format.
//!
//! Its bytes are a constant. Damaged or lost ones are written again if it is certain that they were those of this
//! version: by the checksum that the store has of them, or by chunks of this version. Bytes that name no version are
//! damaged, also if the store has their checksum. Manifests name a version of their own.

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
/// The begin of its content in each version, before the number.
const TITLE: &str = "tradewind deduplicated chunks ";
/// The number in [`MARKER`].
const VERSION: u32 = 1;
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
        Ok(marker) if names_later_version(&marker) => Err(later_version()),
        Ok(_) => {
            let damage = Error::new(Reason::CorruptData, "it names no version");
            restore(store, context, damage).await?;
            Ok(true)
        }
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
    match stored {
        Some(stored) if stored == Checksum::compute(Algorithm::Crc64Nvme, MARKER) => {
            warn_of_damage(&damage);
            write(store, context).await
        }
        Some(_) => Err(later_version()),
        None => restore(store, context, damage).await,
    }
}

/// Returns true if a later version has written a marker.
fn names_later_version(marker: &[u8]) -> bool {
    let number =
        std::str::from_utf8(marker).ok().and_then(|text| text.strip_prefix(TITLE)?.strip_suffix('\n'));
    number.and_then(|digits| digits.parse::<u32>().ok()).is_some_and(|version| version > VERSION)
}

fn warn_of_damage(damage: &Error) {
    warn!(bucket = BUCKET, error = %damage, "the object {MARKER_KEY:?} of the chunks is damaged; writing it again");
}

/// Writes a damaged marker again if chunks show that it was of this version.
async fn restore(store: &ChunkStore, context: &Context, damage: Error) -> Result<()> {
    if !has_chunks_of_this_version(store, context).await? {
        let message = format!(
            "the object {MARKER_KEY:?} of the bucket {BUCKET:?} is damaged, and no chunk shows its version: {}; if there \
             are no deduplicated objects, start the server without the layer \"deduplicated\" and delete the object",
            damage.message()
        );
        return Err(damage.with_message(message));
    }
    warn_of_damage(&damage);
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
