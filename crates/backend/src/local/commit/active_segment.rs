//! The log segment that the committer writes. Zeros are written ahead of small batches, so that the sync of a later batch
//! only overwrites blocks and makes no change of the file's length or allocation durable. See
//! `docs/decisions/0053-the-log-is-written-ahead.md`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::local::segment::Segment;
use crate::local::space::DeviceSpace;

/// Bytes of zeros written after a batch.
const WRITE_AHEAD_BYTES: u32 = 1 << 20;
/// Maximum bytes of a batch after which zeros are written: a longer one pays for its own allocation.
const MAX_WRITE_AHEAD_BATCH_BYTES: u32 = 64 << 10;

/// Source of the zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The log segment to which batches are added.
pub(super) struct ActiveSegment {
    segment: Arc<Segment>,
    /// Offset up to which the file has records or zeros. At least the end of the last batch written.
    allocated_end: u32,
    /// True if the file may have zeros after its records.
    has_zeros: bool,
    /// False once zeros could not be written to this segment.
    may_write_ahead: bool,
}

impl ActiveSegment {
    pub fn new(segment: Arc<Segment>) -> Self {
        let allocated_end = segment.bytes();
        Self { segment, allocated_end, has_zeros: false, may_write_ahead: true }
    }

    pub const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Writes zeros after a batch that was written to `batch` and is not synced yet, if the batch is small and reaches
    /// the end of what is allocated. Never beyond `segment_bytes`. A write that fails does not affect the batch: the
    /// zeros are cut off. But the batch and the zeros share a sync. If the file system reports a full device or an I/O
    /// error only then, the batch fails, too.
    pub fn write_ahead(&mut self, batch: Range<u32>, segment_bytes: u32, space: &DeviceSpace) {
        let allocated_end = self.allocated_end;
        self.allocated_end = allocated_end.max(batch.end);
        // A small batch that ends exactly there is followed by zeros, too.
        if batch.end < allocated_end
            || batch.end - batch.start > MAX_WRITE_AHEAD_BATCH_BYTES
            || !self.may_write_ahead
        {
            return;
        }
        let zeros_end = batch.end.saturating_add(WRITE_AHEAD_BYTES).min(segment_bytes);
        if zeros_end <= batch.end {
            return;
        }
        let zero_bytes = zeros_end - batch.end;
        if let Err(e) = space.admit_ahead(zero_bytes.into()) {
            tracing::debug!(error = %e, "the log is not written ahead");
            return;
        }
        self.has_zeros = true;
        match self.segment.write_all(&zeros(zero_bytes as usize), batch.end.into()) {
            Ok(()) => self.allocated_end = zeros_end,
            Err(e) => {
                tracing::debug!(segment = %self.segment.path.display(), error = %e, "no zeros could be written");
                self.may_write_ahead = false;
                self.truncate(batch.end);
            }
        }
    }

    /// Seals the segment: no further record is added.
    pub fn seal(mut self) {
        self.drop_zeros();
        self.segment.is_sealed.store(true, Ordering::Release);
    }

    /// Drops the zeros after the last record. Zeros that remain, after a failure or a crash, do no harm.
    pub fn drop_zeros(&mut self) {
        if self.has_zeros {
            self.truncate(self.segment.bytes());
        }
    }

    fn truncate(&mut self, end: u32) {
        match self.segment.file.set_len(end.into()) {
            Ok(()) => (self.allocated_end, self.has_zeros) = (end, false),
            Err(e) => {
                tracing::debug!(segment = %self.segment.path.display(), error = %e, "zeros could not be dropped");
            }
        }
    }
}

/// Buffers of `bytes` zeros in total.
fn zeros(bytes: usize) -> Vec<Bytes> {
    let full_buffers = std::iter::repeat_n(Bytes::from_static(&ZEROS), bytes / ZEROS.len());
    let rest = Bytes::from_static(&ZEROS[..bytes % ZEROS.len()]);
    full_buffers.chain((!rest.is_empty()).then_some(rest)).collect()
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
mod tests {
    use super::*;
    use crate::local::layout::Layout;
    use crate::local::segment::{SEGMENT_HEADER_BYTES, SegmentKind};

    const SEGMENT_BYTES: u32 = 64 << 20;
    const START: u32 = SEGMENT_HEADER_BYTES;

    /// An active segment in a directory, with the free space of another one.
    struct Log {
        active: ActiveSegment,
        space: DeviceSpace,
        _store: tempfile::TempDir,
    }

    impl Log {
        fn create(directory: &std::path::Path) -> Self {
            let store = tempfile::tempdir().unwrap();
            let layout = Layout::open_or_create(&store.path().join("store")).unwrap();
            let space = DeviceSpace::open(&layout, 0).unwrap();
            let segment = Segment::create(directory, 7, 1, SegmentKind::Log).unwrap();
            Self { active: ActiveSegment::new(segment), space, _store: store }
        }

        /// Writes a batch that ends at `end`, and returns the length of the file.
        fn write(&mut self, end: u32) -> u32 {
            let begin = self.active.segment.bytes();
            let batch = vec![0xaa; (end - begin) as usize];
            self.active.segment.write_all(&[batch.into()], begin.into()).unwrap();
            self.active.write_ahead(begin..end, SEGMENT_BYTES, &self.space);
            self.active.segment.end.store(end, Ordering::Release);
            self.file_bytes()
        }

        fn file_bytes(&self) -> u32 {
            u32::try_from(self.active.segment.file.metadata().unwrap().len()).unwrap()
        }
    }

    #[test]
    fn small_batches_do_not_change_the_length_until_the_zeros_end() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::create(directory.path());
        let first_end = START + 4096;
        let allocated_end = first_end + WRITE_AHEAD_BYTES;
        assert_eq!(log.write(first_end), allocated_end);
        assert_eq!(log.write(first_end + MAX_WRITE_AHEAD_BATCH_BYTES), allocated_end);
        assert_eq!(log.write(allocated_end - 8), allocated_end, "a large batch within the zeros");
        assert_eq!(log.write(allocated_end), allocated_end + WRITE_AHEAD_BYTES);
        assert_eq!(log.write(allocated_end + 8), allocated_end + WRITE_AHEAD_BYTES);
        log.active.drop_zeros();
        assert_eq!(log.file_bytes(), allocated_end + 8);
        let bytes = std::fs::read(&log.active.segment.path).unwrap();
        assert!(bytes[START as usize..].iter().all(|byte| *byte == 0xaa));
    }

    #[test]
    fn large_batch_is_not_followed_by_zeros() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::create(directory.path());
        let end = START + MAX_WRITE_AHEAD_BATCH_BYTES + 8;
        assert_eq!(log.write(end), end);
        assert_eq!(log.write(end + 8), end + 8 + WRITE_AHEAD_BYTES);
    }

    #[test]
    fn zeros_end_with_the_segment() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::create(directory.path());
        log.write(SEGMENT_BYTES - 4096);
        assert_eq!(log.write(SEGMENT_BYTES - 8), SEGMENT_BYTES);
        assert_eq!(log.write(SEGMENT_BYTES + 4096), SEGMENT_BYTES + 4096);
        let segment = log.active.segment.clone();
        log.active.seal();
        assert!(segment.is_sealed.load(Ordering::Acquire));
        assert_eq!(segment.file.metadata().unwrap().len(), u64::from(SEGMENT_BYTES + 4096));
    }

    /// The free space is that of another device, as if another program had taken the last blocks in between.
    #[test]
    fn zeros_that_do_not_fit_leave_the_batch_and_the_space() {
        let directory = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
            .arg(directory.path())
            .output();
        if !mount.is_ok_and(|mount| mount.status.success()) {
            println!("skipped: no file system can be mounted");
            return;
        }
        let mut log = Log::create(directory.path());
        assert_eq!(log.write(START + 4096), START + 4096);
        assert!(!log.active.may_write_ahead);
        // The blocks that the zeros took are free again.
        assert_eq!(log.write(START + (60 << 10)), START + (60 << 10));
        assert_eq!(log.write(START + (120 << 10)), START + (120 << 10));
        assert_eq!(log.write(START + (180 << 10)), START + (180 << 10));
        drop(log);
        let unmounted = std::process::Command::new("umount").arg("-l").arg(directory.path()).status();
        assert!(unmounted.unwrap().success());
    }
}
