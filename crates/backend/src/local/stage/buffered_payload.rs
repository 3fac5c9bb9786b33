//! Bytes that are hashed but not written yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tradewind_core::checksum::{Crc64Blocks, Hasher};
use tradewind_core::{Algorithm, Checksum, Window};

use crate::local::frame::BLOCK_BYTES;

const BLOCKS: Crc64Blocks = Crc64Blocks::new(BLOCK_BYTES as u64);

/// Payload of the record being filled, with its block checksums. Submitted bytes are no longer held, but their
/// checksums are.
pub(super) struct BufferedPayload {
    /// Bytes buffered by all writes.
    total_buffered_bytes: Arc<AtomicUsize>,
    window: Arc<Window>,
    frames: Vec<Bytes>,
    bytes: usize,
    table: Vec<u64>,
    block: Option<(Hasher, usize)>,
    /// Checksum of everything before the open block, across all records.
    full_checksum: u64,
}

impl BufferedPayload {
    pub const fn new(everywhere: Arc<AtomicUsize>, window: Arc<Window>) -> Self {
        Self {
            total_buffered_bytes: everywhere,
            window,
            frames: Vec::new(),
            bytes: 0,
            table: Vec::new(),
            block: None,
            full_checksum: 0,
        }
    }

    /// Bytes buffered by all writes.
    pub fn everywhere(&self) -> usize {
        self.total_buffered_bytes.load(Ordering::Relaxed)
    }

    /// Bytes held.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn push(&mut self, frame: Bytes) {
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let (hasher, filled) = self.block.get_or_insert_with(|| (Hasher::new(Algorithm::Crc64Nvme), 0));
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - *filled));
            hasher.update(now);
            *filled += now.len();
            rest = later;
            if *filled == BLOCK_BYTES {
                self.close_block();
            }
        }
        self.bytes += frame.len();
        self.total_buffered_bytes.fetch_add(frame.len(), Ordering::Relaxed);
        self.frames.push(frame);
    }

    fn close_block(&mut self) {
        if let Some((hasher, length)) = self.block.take() {
            let crc = hasher.finish().crc64_value();
            self.table.push(crc);
            self.full_checksum = BLOCKS.combine(self.full_checksum, crc, length as u64);
        }
    }

    /// Takes the buffered frames to submit them; the record continues. They count as buffered, and hold the window,
    /// until dropped.
    pub fn take_frames(&mut self) -> Vec<Bytes> {
        let mut frames = std::mem::take(&mut self.frames);
        if let Some(last) = frames.last_mut() {
            *last = Bytes::from_owner(SubmittedFrame {
                last: std::mem::take(last),
                bytes: std::mem::take(&mut self.bytes),
                everywhere: self.total_buffered_bytes.clone(),
                _window: self.window.clone(),
            });
        }
        frames
    }

    /// Takes the buffered frames and the checksums of all blocks of the record, which ends here.
    pub fn take(&mut self) -> (Vec<Bytes>, Vec<u64>) {
        self.close_block();
        (self.take_frames(), std::mem::take(&mut self.table))
    }

    fn release_count(&mut self) {
        self.total_buffered_bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// The checksum of everything so far. All records must have ended.
    pub fn whole(&self) -> Checksum {
        Checksum::crc64nvme(self.full_checksum)
    }
}

impl Drop for BufferedPayload {
    fn drop(&mut self) {
        self.release_count();
    }
}

/// The last frame of a submission.
struct SubmittedFrame {
    last: Bytes,
    /// Bytes of the whole submission.
    bytes: usize,
    everywhere: Arc<AtomicUsize>,
    _window: Arc<Window>,
}

impl AsRef<[u8]> for SubmittedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.last
    }
}

impl Drop for SubmittedFrame {
    fn drop(&mut self) {
        self.everywhere.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
