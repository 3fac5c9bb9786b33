//! The bytes of a staged write that are received but not submitted to be written, and their checksums.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tradewind_core::checksum::{Crc64Blocks, Hasher};
use tradewind_core::{Algorithm, Checksum, Window};

use crate::local::frame::BLOCK_BYTES;

const BLOCKS: Crc64Blocks = Crc64Blocks::new(BLOCK_BYTES as u64);

/// The payload of the record being filled: the buffers that are not submitted yet, and the checksums of all of its
/// blocks, including the submitted ones.
pub(super) struct BufferedPayload {
    /// Bytes of all writes of the store that are received and not yet in a file, including submitted ones.
    total_unwritten_bytes: Arc<AtomicUsize>,
    /// The request's window, kept allocated until the buffers are written.
    window: Arc<Window>,
    buffers: Vec<Bytes>,
    /// Bytes in `buffers`.
    bytes: usize,
    /// Checksums of the record's full blocks.
    block_crcs: Vec<u64>,
    /// The block being filled: its hasher and its length so far.
    open_block: Option<(Hasher, usize)>,
    /// Checksum of everything before the open block, across all records of the write.
    crc64: u64,
}

impl BufferedPayload {
    pub const fn new(total_unwritten_bytes: Arc<AtomicUsize>, window: Arc<Window>) -> Self {
        Self {
            total_unwritten_bytes,
            window,
            buffers: Vec::new(),
            bytes: 0,
            block_crcs: Vec::new(),
            open_block: None,
            crc64: 0,
        }
    }

    /// Bytes of all writes of the store that are received and not yet in a file, including submitted ones.
    pub fn total_unwritten_bytes(&self) -> usize {
        self.total_unwritten_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of this write that are received and not submitted yet.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Hashes and buffers the next bytes of the payload.
    pub fn push(&mut self, buffer: Bytes) {
        let mut rest = &buffer[..];
        while !rest.is_empty() {
            let (hasher, filled) =
                self.open_block.get_or_insert_with(|| (Hasher::new(Algorithm::Crc64Nvme), 0));
            let (in_block, after_block) = rest.split_at(rest.len().min(BLOCK_BYTES - *filled));
            hasher.update(in_block);
            *filled += in_block.len();
            rest = after_block;
            if *filled == BLOCK_BYTES {
                self.close_block();
            }
        }
        self.bytes += buffer.len();
        self.total_unwritten_bytes.fetch_add(buffer.len(), Ordering::Relaxed);
        self.buffers.push(buffer);
    }

    fn close_block(&mut self) {
        if let Some((hasher, length)) = self.open_block.take() {
            let crc = hasher.finish().crc64_value();
            self.block_crcs.push(crc);
            self.crc64 = BLOCKS.combine(self.crc64, crc, length as u64);
        }
    }

    /// Takes the buffers to submit them; the record continues. Until they are dropped, their bytes count as unwritten
    /// and the request's window stays allocated.
    pub fn take_buffers(&mut self) -> Vec<Bytes> {
        let mut buffers = std::mem::take(&mut self.buffers);
        if let Some(last) = buffers.last_mut() {
            *last = Bytes::from_owner(LastSubmittedBuffer {
                last: std::mem::take(last),
                bytes: std::mem::take(&mut self.bytes),
                total_unwritten_bytes: self.total_unwritten_bytes.clone(),
                _window: self.window.clone(),
            });
        }
        buffers
    }

    /// Ends the record: takes its remaining buffers and the checksums of all of its blocks.
    pub fn take(&mut self) -> (Vec<Bytes>, Vec<u64>) {
        self.close_block();
        (self.take_buffers(), std::mem::take(&mut self.block_crcs))
    }

    fn release_count(&mut self) {
        self.total_unwritten_bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// CRC-64/NVME of the whole write so far. Every record must have been ended by [`take`](Self::take).
    pub fn crc64(&self) -> Checksum {
        Checksum::crc64nvme(self.crc64)
    }
}

impl Drop for BufferedPayload {
    fn drop(&mut self) {
        self.release_count();
    }
}

/// The last buffer of a submission: it is written last, so its drop ends the count of all of them.
struct LastSubmittedBuffer {
    last: Bytes,
    /// Bytes of the whole submission.
    bytes: usize,
    total_unwritten_bytes: Arc<AtomicUsize>,
    _window: Arc<Window>,
}

impl AsRef<[u8]> for LastSubmittedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.last
    }
}

impl Drop for LastSubmittedBuffer {
    fn drop(&mut self) {
        self.total_unwritten_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
