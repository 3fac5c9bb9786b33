//! The files of the store: log segments and bulk segments. The *log* segments are the log: they hold log records, with
//! the payloads of inline objects, and replay reads only them. A *bulk* segment holds extents. Each segment begins with
//! a header that identifies its store. Each byte of a record is written once, and existing segments are not appended to
//! after the store is opened again. A log segment may have zeros after its records: see `commit/active_segment.rs` and
//! `written_end.rs`.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};

use super::io_threads::{IoThreads, io_error};

/// Bytes of a segment's header; records start after it.
pub(crate) const SEGMENT_HEADER_BYTES: u32 = 32;

/// Extension of a segment's name until its header is durable.
const UNFINISHED: &str = "new";

const MAGIC: &[u8; 8] = b"TWseg\0\0\x01";

/// The contents of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    Log,
    Bulk,
}

impl SegmentKind {
    const fn extension(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Bulk => "bulk",
        }
    }
}

/// The state of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderState {
    Sound,
    /// Damaged or never written. If the segment holds valid records, the header was damaged.
    Broken,
}

/// One segment file. Readers that hold it can continue after the file was removed.
pub(crate) struct Segment {
    pub number: u32,
    pub kind: SegmentKind,
    pub file: File,
    pub path: PathBuf,
    /// Bytes allocated to records so far, including the header. The file may be longer: see `written_end.rs`.
    pub end: AtomicU32,
    /// True if no further record is added.
    pub is_sealed: AtomicBool,
    /// True if compaction found a damaged live record here. It then skips the segment.
    pub is_damaged: AtomicBool,
    /// Number of pins: one for each extent being written, and one for each write with complete, uncommitted extents
    /// here.
    pub pins: AtomicU32,
    sync_queue: Mutex<SyncQueue>,
    /// True once a sync failed: every later one fails as well.
    has_sync_failed: AtomicBool,
}

#[derive(Default)]
struct SyncQueue {
    waiting: Vec<oneshot::Sender<Result<()>>>,
    /// True if an I/O thread is processing the queue and will process additions.
    is_served: bool,
}

impl Segment {
    /// The path of a segment's file.
    pub fn path(directory: &Path, number: u32, kind: SegmentKind) -> PathBuf {
        directory.join(format!("{number:08x}.{}", kind.extension()))
    }

    /// Creates a durable segment file. The header is durable before the file gets its name. Otherwise, after a crash,
    /// the segment could begin with the old contents of its blocks, such as the header of another store's segment.
    pub fn create(directory: &Path, salt: u64, number: u32, kind: SegmentKind) -> Result<Arc<Self>> {
        let path = Self::path(directory, number, kind);
        let unfinished = path.with_added_extension(UNFINISHED);
        let discard = |error: Error| {
            // A file that remains is removed by the next open of the store.
            let _ = std::fs::remove_file(&unfinished);
            error
        };
        let write_unfinished = || -> std::io::Result<File> {
            if path.try_exists()? {
                return Err(std::io::ErrorKind::AlreadyExists.into());
            }
            let mut options = OpenOptions::new();
            let file =
                options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all_at(&encode_header(salt, number, kind), 0)?;
            Ok(file)
        };
        let creation_failed = |e| discard(io_error("a segment could not be created", e));
        let file = write_unfinished().map_err(creation_failed)?;
        file.sync_data().map_err(|e| discard(sync_failed(Some(e))))?;
        std::fs::rename(&unfinished, &path).map_err(creation_failed)?;
        sync_directory(directory).map_err(|e| sync_failed(Some(e)))?;
        Ok(Arc::new(Self::from_parts(number, kind, file, path, SEGMENT_HEADER_BYTES, false)))
    }

    /// Opens an existing, sealed segment for reading. Its name determines number and kind; the header detects a file
    /// of another store, which is an error. An invalid header is reported to the caller.
    pub fn open(
        path: &Path,
        (number, kind): (u32, SegmentKind),
        salt: u64,
    ) -> Result<(Arc<Self>, HeaderState)> {
        let open = || -> std::io::Result<(File, u64, [u8; SEGMENT_HEADER_BYTES as usize])> {
            // The file is never written again, and may be on a read-only file system.
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            let mut header = [0; SEGMENT_HEADER_BYTES as usize];
            if length >= header.len() as u64 {
                file.read_exact_at(&mut header, 0)?;
            }
            Ok((file, length, header))
        };
        let (file, length, header) =
            open().map_err(|e| io_error(&format!("segment {} could not be opened", path.display()), e))?;
        let state = match decode_header(&header) {
            Some(found) if found == (salt, number, kind) => HeaderState::Sound,
            Some((other, ..)) if other != salt => {
                let why = "the FORMAT file says that this store's salt is";
                return Err(Error::new(
                    Reason::CorruptData,
                    format!(
                        "{why} {salt:016x}, but {} has {other:016x}: one of the two belongs to another store",
                        path.display()
                    ),
                ));
            }
            _ => HeaderState::Broken,
        };
        let end = u32::try_from(length).map_err(|_| {
            Error::new(
                Reason::CorruptData,
                format!("segment {} is longer than a segment can be", path.display()),
            )
        })?;
        Ok((Arc::new(Self::from_parts(number, kind, file, path.to_owned(), end, true)), state))
    }

    /// Bytes allocated to records so far, including the header.
    pub fn bytes(&self) -> u32 {
        self.end.load(Ordering::Acquire)
    }

    fn from_parts(
        number: u32,
        kind: SegmentKind,
        file: File,
        path: PathBuf,
        end: u32,
        is_sealed: bool,
    ) -> Self {
        Self {
            number,
            kind,
            file,
            path,
            end: AtomicU32::new(end),
            is_sealed: AtomicBool::new(is_sealed),
            is_damaged: AtomicBool::new(false),
            pins: AtomicU32::new(0),
            sync_queue: Mutex::default(),
            has_sync_failed: AtomicBool::new(false),
        }
    }

    /// Writes all buffers consecutively.
    pub fn write_all(&self, buffers: &[Bytes], offset: u64) -> std::io::Result<()> {
        const MAX_SLICES: usize = 1024;
        let mut at = offset;
        let (mut first, mut skip) = (0, 0);
        while first < buffers.len() {
            let mut slices = Vec::with_capacity(MAX_SLICES.min(buffers.len() - first));
            slices.push(IoSlice::new(&buffers[first][skip..]));
            slices
                .extend(buffers[first + 1..].iter().take(MAX_SLICES - 1).map(|buffer| IoSlice::new(buffer)));
            let mut written = match rustix::io::pwritev(&self.file, &slices, at) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            at += written as u64;
            while first < buffers.len() && written >= buffers[first].len() - skip {
                written -= buffers[first].len() - skip;
                (first, skip) = (first + 1, 0);
            }
            skip += written;
        }
        Ok(())
    }

    /// Makes everything written so far durable. Concurrent callers share one fdatasync. An error is final: a failed
    /// sync is not retried, and every later call fails as well.
    pub async fn sync(self: &Arc<Self>, io: &IoThreads) -> Result<()> {
        let result_receiver = self.start_sync(io);
        result_receiver.await.unwrap_or_else(|_| Err(Error::new(Reason::ShuttingDown, "the store is closed")))
    }

    /// Like [`sync`](Self::sync), without waiting.
    pub fn start_sync(self: &Arc<Self>, io: &IoThreads) -> oneshot::Receiver<Result<()>> {
        let (result_sender, result_receiver) = oneshot::channel();
        let is_idle = {
            let mut queue = self.sync_queue.lock();
            queue.waiting.push(result_sender);
            !std::mem::replace(&mut queue.is_served, true)
        };
        let segment = self.clone();
        if is_idle && !io.spawn(move || segment.serve_sync_queue()) {
            *self.sync_queue.lock() = SyncQueue::default();
        }
        result_receiver
    }

    fn serve_sync_queue(&self) {
        loop {
            let waiting = {
                let mut queue = self.sync_queue.lock();
                if queue.waiting.is_empty() {
                    queue.is_served = false;
                    return;
                }
                std::mem::take(&mut queue.waiting)
            };
            if !self.has_sync_failed.load(Ordering::Acquire)
                && let Err(e) = self.file.sync_data()
            {
                tracing::error!(segment = %self.path.display(), error = %e, "a segment could not be made durable");
                self.has_sync_failed.store(true, Ordering::Release);
            }
            let has_failed = self.has_sync_failed.load(Ordering::Acquire);
            for waiter in waiting {
                // The receiver may be gone.
                let _ = waiter.send(if has_failed { Err(sync_failed(None)) } else { Ok(()) });
            }
        }
    }
}

/// Keeps a segment from being compacted while extents in it are neither committed nor aborted.
pub(crate) struct SegmentPin(pub Arc<Segment>);

impl SegmentPin {
    pub fn new(segment: Arc<Segment>) -> Self {
        segment.pins.fetch_add(1, Ordering::AcqRel);
        Self(segment)
    }
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The error of every waiter of a failed sync.
pub(crate) fn sync_failed(cause: Option<std::io::Error>) -> Error {
    const WHAT: &str = "the device failed to make data durable; the store is read-only until it is reopened";
    match cause {
        Some(e) => Error::with_source(Reason::ReadOnly, WHAT, e),
        None => Error::new(Reason::ReadOnly, WHAT),
    }
}

/// The segment number and kind in a file name.
pub(crate) fn parse_name(path: &Path) -> Option<(u32, SegmentKind)> {
    let kind = match path.extension()?.to_str()? {
        "log" => SegmentKind::Log,
        "bulk" => SegmentKind::Bulk,
        _ => return None,
    };
    let stem = path.file_stem()?.to_str()?;
    (stem.len() == 8).then(|| u32::from_str_radix(stem, 16).ok()).flatten().map(|number| (number, kind))
}

/// The segment's number if this is the name of an unfinished segment.
pub(crate) fn parse_unfinished(path: &Path) -> Option<u32> {
    (path.extension()? == UNFINISHED)
        .then(|| parse_name(&path.with_extension("")))
        .flatten()
        .map(|(number, _)| number)
}

/// Salt, number and kind of a header with a valid checksum.
fn decode_header(header: &[u8; SEGMENT_HEADER_BYTES as usize]) -> Option<(u64, u32, SegmentKind)> {
    let kind = match header[20] {
        1 => SegmentKind::Log,
        2 => SegmentKind::Bulk,
        _ => return None,
    };
    let salt = u64::from_le_bytes(header[8..16].try_into().ok()?);
    let number = u32::from_le_bytes(header[16..20].try_into().ok()?);
    (*header == encode_header(salt, number, kind)).then_some((salt, number, kind))
}

fn encode_header(salt: u64, number: u32, kind: SegmentKind) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&salt.to_le_bytes());
    header[16..20].copy_from_slice(&number.to_le_bytes());
    header[20] = match kind {
        SegmentKind::Log => 1,
        SegmentKind::Bulk => 2,
    };
    let crc = crc64nvme(&header[..24]);
    header[24..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Makes names in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

/// All segments. Reading the map takes no lock; a reader that holds the map keeps its files readable.
pub(crate) struct SegmentMap {
    map: ArcSwap<HashMap<u32, Arc<Segment>>>,
    removal_count: AtomicU64,
    change: Mutex<()>,
}

impl SegmentMap {
    pub fn new(segments: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        let map = segments.into_iter().map(|segment| (segment.number, segment)).collect();
        Self { map: ArcSwap::from_pointee(map), removal_count: AtomicU64::new(0), change: Mutex::new(()) }
    }

    pub fn get(&self, number: u32) -> Option<Arc<Segment>> {
        self.map.load().get(&number).cloned()
    }

    /// The current segments by number.
    pub fn all(&self) -> Arc<HashMap<u32, Arc<Segment>>> {
        self.map.load_full()
    }

    pub fn is_empty(&self) -> bool {
        self.map.load().is_empty()
    }

    /// Number of removals so far: equal counts show that a snapshot of the index and one of the segments belong
    /// together.
    pub fn removals(&self) -> u64 {
        self.removal_count.load(Ordering::Acquire)
    }

    pub fn add(&self, segment: Arc<Segment>) {
        let _guard = self.change.lock();
        let mut map = HashMap::clone(&self.map.load());
        map.insert(segment.number, segment);
        self.map.store(Arc::new(map));
    }

    fn remove(&self, segments: &[Arc<Segment>]) {
        let _guard = self.change.lock();
        let mut map = HashMap::clone(&self.map.load());
        for segment in segments {
            map.remove(&segment.number);
        }
        // Counted before the removal: a reader that sees the old count also sees the segments.
        self.removal_count.fetch_add(1, Ordering::AcqRel);
        self.map.store(Arc::new(map));
    }

    /// Removes a segment's file from `directory`. Readers that hold it can continue.
    pub fn unlink(&self, directory: &Path, segment: &Arc<Segment>) -> Result<()> {
        self.unlink_all(directory, std::slice::from_ref(segment))
    }

    /// Removes the files of several segments, with one sync.
    pub fn unlink_all(&self, directory: &Path, segments: &[Arc<Segment>]) -> Result<()> {
        self.remove(segments);
        for segment in segments {
            std::fs::remove_file(&segment.path)
                .map_err(|e| io_error(&format!("{} could not be removed", segment.path.display()), e))?;
        }
        sync_directory(directory).map_err(|e| io_error("a removal could not be made durable", e))
    }
}
