//! Test support for the local store: a store in a directory, short forms of reads and writes, and ways to stop it
//! abruptly.

#![allow(dead_code, unused_imports, clippy::unwrap_used, reason = "every test file uses only part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tradewind_backend::local::{self, CheckReport, LocalOptions, LocalStore, StoreStats};
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{context, write_all};
use tradewind_core::version::ListVersions;
use tradewind_core::{Address, BucketName, ByteRange, ObjectStore, Precondition, SystemClock, Versioning};

pub use tradewind_core::testing::{drain, pattern, reason};

pub const BUCKET: &str = "bucket";

/// Small segments, and upkeep only when a test asks for it.
pub fn small() -> LocalOptions {
    LocalOptions {
        segment_bytes: 256 << 10,
        inline_bytes: 16 << 10,
        max_buffered_bytes: 0,
        write_bytes: 2 << 10,
        checkpoint_bytes: 256 << 10,
        reserve_bytes: 0,
        compact_below_fraction: 0.95,
        compact_bytes_per_second: 1 << 30,
        compact_interval: Duration::from_secs(3600),
        ..LocalOptions::default()
    }
}

/// A store with one bucket in a directory.
pub struct TestStore {
    pub store: Arc<LocalStore>,
    pub root: PathBuf,
    options: LocalOptions,
}

impl TestStore {
    pub async fn new(root: &Path) -> Self {
        Self::with_options(root, small()).await
    }

    pub async fn with_options(root: &Path, options: LocalOptions) -> Self {
        let desk = Self::open(root, options).unwrap();
        desk.store.create_bucket(&context(), &BucketName::new(BUCKET).unwrap()).await.unwrap();
        desk
    }

    /// Opens an existing store.
    pub fn open(root: &Path, options: LocalOptions) -> Result<Self> {
        let store = LocalStore::open(root, options.clone(), SystemClock::shared())?;
        Ok(Self { store, root: root.to_owned(), options })
    }

    /// A further handle of a store.
    pub fn from_store(store: Arc<LocalStore>, options: LocalOptions) -> Self {
        Self { store, root: PathBuf::new(), options }
    }

    pub async fn close(self) -> PathBuf {
        self.store.close().await.unwrap();
        self.root
    }

    /// Closes and opens again.
    pub async fn reopen(self) -> Self {
        let options = self.options.clone();
        let root = self.close().await;
        Self::open(&root, options).unwrap()
    }

    /// Closes, removes the index and opens again.
    pub async fn reindex(self) -> Self {
        let options = self.options.clone();
        let root = self.close().await;
        std::fs::remove_dir_all(root.join("index")).unwrap();
        let desk = Self::open(&root, options).unwrap();
        assert!(desk.store.recovery().reindexed);
        desk
    }

    pub async fn put(&self, key: &str, bytes: impl Into<Bytes>) -> Committed {
        self.try_put(key, bytes).await.unwrap()
    }

    pub async fn try_put(&self, key: &str, bytes: impl Into<Bytes>) -> Result<Committed> {
        self.put_if(key, bytes, Precondition::None).await
    }

    pub async fn put_if(
        &self,
        key: &str,
        bytes: impl Into<Bytes>,
        precondition: Precondition,
    ) -> Result<Committed> {
        let context = context();
        let bytes = bytes.into();
        let size = Some(bytes.len() as u64);
        let request = StageRequest { size, precondition, ..StageRequest::default() };
        let mut staged = self.store.stage(&context, &address(key), request).await?;
        write_all(&mut *staged, bytes).await?;
        Ok(staged.commit(Expected::default()).await?.0)
    }

    pub async fn get(&self, key: &str) -> Result<Bytes> {
        self.get_range(key, Select::Whole).await
    }

    pub async fn get_range(&self, key: &str, select: Select) -> Result<Bytes> {
        let request = GetRequest { select, ..GetRequest::default() };
        drain(self.store.get(&context(), &address(key), request).await?.body).await
    }

    pub async fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.store.delete(&context(), &address(key), Precondition::None).await?.existed)
    }

    pub async fn set_versioning(&self, versioning: Versioning) {
        self.store.set_versioning(&context(), &address("x").bucket, versioning).await.unwrap();
    }

    /// Deletes some of a key's versions and delete markers.
    pub async fn delete_some_versions(&self, key: &str, random: &mut Random) {
        let request = ListVersions { prefix: key.to_owned(), limit: 1000, ..ListVersions::default() };
        let page = self.store.list_versions(&context(), &address("x").bucket, &request).await.unwrap();
        for entry in page.entries {
            if let ListEntry::Key(key, listed) = entry
                && random.below(2) == 0
            {
                let address = address(&key).with_version(Some(listed.version));
                self.store.delete(&context(), &address, Precondition::None).await.unwrap();
            }
        }
    }

    pub async fn names(&self) -> Vec<String> {
        let mut request = ListRequest { limit: 1000, ..ListRequest::default() };
        let mut names = Vec::new();
        loop {
            let page = self.store.list(&context(), &address("x").bucket, &request).await.unwrap();
            names.extend(page.entries.iter().map(|entry| match entry {
                ListEntry::Key(name, _) | ListEntry::CommonPrefix(name) => name.clone(),
            }));
            match page.next {
                Some(next) => request.after = Some(next),
                None => return names,
            }
        }
    }

    pub async fn create_upload(&self, key: &str) -> UploadId {
        self.store.create_upload(&context(), &address(key), CreateUpload::default()).await.unwrap()
    }

    /// Uploads a part without declaring its size.
    pub async fn part(
        &self,
        key: &str,
        upload: &UploadId,
        number: i64,
        bytes: impl Into<Bytes>,
    ) -> Result<CompletePart> {
        let (context, number) = (context(), PartNumber::new(number).unwrap());
        let mut staged =
            self.store.stage_part(&context, &address(key), upload, number, StageRequest::default()).await?;
        write_all(&mut *staged, bytes.into()).await?;
        let (committed, _) = staged.commit(Expected::default()).await?;
        Ok(CompletePart { number, etag: committed.etag, checksum: None })
    }

    pub async fn complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<CompletePart>,
    ) -> Result<Committed> {
        let order = CompleteUpload { parts, ..CompleteUpload::default() };
        self.store.complete_upload(&context(), &address(key), upload, order).await
    }

    pub async fn abort(&self, key: &str, upload: &UploadId) -> Result<()> {
        self.store.abort_upload(&context(), &address(key), upload).await
    }

    pub async fn uploads(&self) -> usize {
        let request = tradewind_core::multipart::ListUploads { limit: 1000, ..Default::default() };
        self.store.list_uploads(&context(), &address("x").bucket, &request).await.unwrap().entries.len()
    }

    /// Compacts until nothing more is removed.
    pub async fn compact(&self) -> usize {
        let store = self.store.clone();
        let compacting = move || {
            let mut removed = 0;
            for _ in 0..20 {
                match store.run_upkeep().unwrap() {
                    0 => break,
                    more => removed += more,
                }
            }
            removed
        };
        tokio::task::spawn_blocking(compacting).await.unwrap()
    }

    pub async fn assert_holds(&self, key: &str, bytes: &[u8]) {
        let got = self.get(key).await;
        let got = got.unwrap_or_else(|e| panic!("{key}: {e:?}"));
        assert!(got == bytes, "{key} differs from what was written");
    }

    pub async fn assert_absent(&self, key: &str) {
        assert_eq!(reason(self.get(key).await), Reason::NoSuchKey, "{key}");
        assert!(!self.names().await.contains(&key.to_owned()), "{key} is listed");
    }
}

pub fn address(key: &str) -> Address {
    Address::parse(BUCKET, key).unwrap()
}

pub fn range(first: u64, bytes: u64) -> Select {
    Select::Range(ByteRange::Inclusive { first, last: first + bytes - 1 })
}

/// A small pseudo-random generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Copies a directory recursively. Files that vanish during the copy are skipped.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            match std::fs::read(&path) {
                Ok(bytes) => write_sparse(&target, &bytes),
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{}", path.display()),
            }
        }
    }
}

/// The index's journal is mostly a hole; so is its copy.
fn write_sparse(path: &Path, bytes: &[u8]) {
    let zeros = [0; 4096];
    let filled = bytes.chunks(4096).rposition(|page| *page != zeros[..page.len()]).map_or(0, |last| last + 1);
    let file = std::fs::File::create(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[..bytes.len().min(filled * 4096)], 0).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

/// The segment files with an extension, in order.
pub fn segments(root: &Path, extension: &str) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(root.join("segments"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    paths.sort();
    paths
}

/// Bytes of all segment files, without the zeros that are written ahead of the log. A file that vanishes during the call
/// counts as empty.
pub fn segment_bytes(root: &Path) -> u64 {
    let bulk_bytes = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
    segments(root, "bulk").iter().map(bulk_bytes).sum::<u64>()
        + segments(root, "log").iter().map(|path| log_bytes(path)).sum::<u64>()
}

/// Bytes of a log segment without zeros at its end; 0 if it is missing.
pub fn log_bytes(log: &Path) -> u64 {
    let bytes = std::fs::read(log).unwrap_or_default();
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    end.next_multiple_of(8) as u64
}

/// The offset of `needle` in a file.
pub fn find_offset(path: &Path, needle: &[u8]) -> Option<usize> {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// Inverts one byte of a file.
pub fn invert_byte(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 0xff;
    std::fs::write(path, bytes).unwrap();
}

/// Verifies a store, and that the verification does not change it.
pub fn check(root: &Path) -> Result<CheckReport> {
    let before = state_of_files(root);
    let report = local::check(root, &std::env::temp_dir());
    assert_eq!(state_of_files(root), before, "a check leaves the store as it is");
    report
}

/// Returns a store's statistics, and verifies that this does not change it.
pub fn stats(root: &Path) -> Result<StoreStats> {
    let before = state_of_files(root);
    let stats = local::stats(root, &std::env::temp_dir());
    assert_eq!(state_of_files(root), before, "counting leaves the store as it is");
    stats
}

/// Path, length, modification time and inode of all files and directories, in order.
pub fn state_of_files(root: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime, u64)> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = path.metadata().unwrap();
        if metadata.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        found.push((path, metadata.len(), metadata.modified().unwrap(), inode));
    }
    found.sort();
    found
}
