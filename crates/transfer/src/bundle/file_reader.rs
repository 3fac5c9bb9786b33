//! Read-ahead of the files to pack: several batches are read concurrently on threads and delivered in order.
//!
//! A small file is read completely and checked for changes, so that its header matches its content. A large file is
//! only opened here.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt as _};
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_parallel::UploadSource as _;

use super::archive::{self, BLOCK_BYTES};
use super::file_queue::{FileQueue, MAX_BATCH_BYTES, QueuedFile, queued_bytes};
use super::index::{MAX_NAME_BYTES, Member};
use super::thread_pool::ThreadPool;
use crate::files::{FileSource, Links, Tree};

/// Number of batches that are read concurrently.
const CONCURRENT_BATCHES: usize = 4;

/// Maximum size of a member's header and padding, unless its name needs a pax record.
const MAX_FRAME_BYTES: u64 = 2 * BLOCK_BYTES;

/// Buffers of sent batches, for reuse.
type SpareBuffers = Arc<Mutex<Vec<Vec<u8>>>>;

/// Files that were read together.
pub struct Batch {
    /// The buffered members with headers and padding.
    pub archive: Vec<u8>,
    /// The result of every file by name, in order.
    pub files: Vec<(String, FileRead)>,
    spare_buffers: SpareBuffers,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.archive.clear();
        let archive = std::mem::take(&mut self.archive);
        self.spare_buffers.lock().unwrap_or_else(PoisonError::into_inner).push(archive);
    }
}

/// The result of reading a file.
pub enum FileRead {
    /// The member, with its offset relative to the batch; its range in the batch; and the version of the file.
    Buffered(Member, Range<usize>, u64),
    /// A file too large to buffer.
    Large(FileSource),
    /// The file cannot be read, or changed while it was read.
    Failed(Error),
}

/// Reads all queued files of a tree.
pub fn read_ahead(tree: Tree, links: Links, queue: FileQueue) -> impl Stream<Item = Result<Batch>> + Unpin {
    let spare_buffers = SpareBuffers::default();
    let threads = ThreadPool::new(CONCURRENT_BATCHES);
    let batches = futures::stream::unfold(queue, |mut queue| async move {
        let batch = queue.next_batch().await;
        (!batch.is_empty()).then_some((batch, queue))
    });
    let read = batches.map(move |files| {
        let (tree, archive, spare_buffers) =
            (tree.clone(), batch_buffer(&files, &spare_buffers), spare_buffers.clone());
        threads.spawn(move || read_batch((&tree, links), files, archive, spare_buffers))
    });
    Box::pin(read.buffered(CONCURRENT_BATCHES))
}

/// A buffer for a batch. It is always allocated on the caller's thread: the allocator would give every allocating
/// thread an arena of megabytes.
fn batch_buffer(files: &[QueuedFile], spare_buffers: &SpareBuffers) -> Vec<u8> {
    let expected: u64 =
        files.iter().map(|file| MAX_FRAME_BYTES + queued_bytes(file).min(MAX_BATCH_BYTES)).sum();
    let mut archive = spare_buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
    archive.reserve_exact(usize::try_from(expected.min(2 * MAX_BATCH_BYTES)).unwrap_or(0));
    archive
}

fn read_batch(
    from: (&Tree, Links),
    files: Vec<QueuedFile>,
    archive: Vec<u8>,
    spare_buffers: SpareBuffers,
) -> Batch {
    let mut batch = Batch { archive, files: Vec::with_capacity(files.len()), spare_buffers };
    for next in files {
        let (name, read) = match next {
            Ok(item) => {
                let start = batch.archive.len();
                let read = read_file(from, &item.name, &mut batch.archive).unwrap_or_else(|e| {
                    batch.archive.truncate(start);
                    FileRead::Failed(e)
                });
                (item.name, read)
            }
            Err((name, e)) => (name, FileRead::Failed(e)),
        };
        batch.files.push((name, read));
    }
    batch
}

fn read_file((tree, links): (&Tree, Links), name: &str, archive: &mut Vec<u8>) -> Result<FileRead> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::new(Reason::KeyTooLong, "its name is too long for a bundle"));
    }
    let source = FileSource::open(tree, name, links, Arc::default())?;
    let size = source.size();
    // Files may have grown since they were listed, so the batch is limited again.
    if size > MAX_BATCH_BYTES || archive.len() as u64 + size > 2 * MAX_BATCH_BYTES {
        return Ok(FileRead::Large(source));
    }
    let start = archive.len();
    let member = write_member_header(archive, name, &source);
    let data = archive.len();
    archive.resize(data + usize::try_from(size).unwrap_or(0), 0);
    source.read_at(0, &mut archive[data..])?;
    source.check_unchanged()?;
    let checksum = crc64nvme(&archive[data..]);
    archive::write_padding(archive, size);
    let member = Member { offset: data as u64, checksum, ..member };
    Ok(FileRead::Buffered(member, start..archive.len(), source.version()))
}

/// Appends the header of a file. The returned member has no offset and checksum yet.
pub fn write_member_header(archive: &mut Vec<u8>, name: &str, source: &FileSource) -> Member {
    let (size, modified) = (source.size(), source.modified());
    let mode = source.attributes().mode.unwrap_or(0o644);
    archive::write_header(archive, name, size, modified, mode);
    Member { name: name.to_owned(), offset: 0, size, modified, mode, checksum: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_created_after_the_listing_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::write(root.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("file", root.join("link")).unwrap();
        let tree = Tree::open(root).unwrap();
        let is_read = |links| read_file((&tree, links), "link", &mut Vec::new()).is_ok();
        assert!(is_read(Links::Follow) && !is_read(Links::Skip));
    }
}
