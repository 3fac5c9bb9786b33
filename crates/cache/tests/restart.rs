//! Restarts: after a clean end, after an unclean one, with damaged files, and with directories that are not ours.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "support/lasting.rs"]
mod lasting;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::object::{ETag, Expected, Identity};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context, drain, pattern,
    reason, write_all,
};
use tradewind_core::{Address, BucketName, Class, ObjectStore, Reason, Result, SystemClock, Timestamp};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable};

use lasting::Lasting;

const OBJECTS: u64 = 6;
const DISK_BYTES: u64 = 8 << 20;

struct Desk {
    root: TempDir,
    store: Arc<Faulty<MemoryStore>>,
}

impl Desk {
    async fn new() -> Self {
        let store = Faulty::new(MemoryStore::new(SystemClock::shared()), FaultPlan::none());
        store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        let desk = Self { root: TempDir::new().unwrap(), store };
        for number in 0..OBJECTS {
            put(&*desk.store, number, content(number)).await;
        }
        desk
    }

    fn directory(&self) -> std::path::PathBuf {
        self.root.path().join("cache")
    }

    fn try_open(&self, volume: &str) -> Result<Arc<Cached>> {
        self.try_open_validating(volume, Validation::Owner)
    }

    fn try_open_validating(&self, volume: &str, validation: Validation) -> Result<Arc<Cached>> {
        let options = CachedOptions {
            directory: Some(self.directory()),
            disk_bytes: DISK_BYTES,
            memory_bytes: 0,
            validation,
            volume_id: volume.to_owned(),
        };
        Cached::open(Arc::new(Lasting(self.store.clone())), options, SystemClock::shared())
    }

    /// Opens the cache, when the one before is gone, and waits for its index.
    async fn open(&self) -> Arc<Cached> {
        self.open_validating(Validation::Owner).await
    }

    async fn open_validating(&self, validation: Validation) -> Arc<Cached> {
        loop {
            match self.try_open_validating("photos", validation) {
                Ok(cached) => {
                    while !cached.is_loaded() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    return cached;
                }
                Err(e) if e.message().contains("another process") => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(e) => panic!("{e:?}"),
            }
        }
    }

    fn calls(&self) -> Calls {
        Calls { heads: self.store.calls(Operation::Head), gets: self.store.calls(Operation::Get) }
    }

    /// Reads all objects and returns the calls that reached the store.
    async fn read_all(&self, cached: &Cached) -> Calls {
        let before = self.calls();
        for number in 0..OBJECTS {
            let found = cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
            assert!(drain(found.body).await.unwrap() == content(number), "object {number}");
        }
        cached.flush().await;
        let after = self.calls();
        Calls { heads: after.heads - before.heads, gets: after.gets - before.gets }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    heads: u64,
    gets: u64,
}

const NONE: Calls = Calls { heads: 0, gets: 0 };
const ALL_MISSES: Calls = Calls { heads: 0, gets: OBJECTS };
const ALL_COMPARED: Calls = Calls { heads: OBJECTS, gets: 0 };

fn address(number: u64) -> Address {
    Address::parse("bucket", &format!("key-{number}")).unwrap()
}

/// Small and large objects.
fn content(number: u64) -> Bytes {
    pattern([100, 4096, 60_000, 73_216, 300_000, 1_000_001][number as usize], number)
}

async fn put(store: &dyn ObjectStore, number: u64, bytes: Bytes) {
    let mut staged = store.stage(&context(), &address(number), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_object_is_compared_once_after_a_restart() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    assert_eq!(desk.read_all(&cached).await, ALL_MISSES);
    assert_eq!(desk.read_all(&cached).await, NONE);
    for _ in 0..2 {
        cached.close().await.unwrap();
        let cached = desk.open().await;
        assert_eq!(desk.read_all(&cached).await, ALL_COMPARED);
        assert_eq!(desk.read_all(&cached).await, NONE);
        cached.close().await.unwrap();
    }
}

/// Objects whose heads came from HEAD requests, which fill memory only.
#[tokio::test(flavor = "multi_thread")]
async fn object_that_was_read_after_a_head_request_survives_a_restart() {
    let desk = Desk::new().await;
    let options = CachedOptions {
        directory: Some(desk.directory()),
        disk_bytes: DISK_BYTES,
        memory_bytes: 16 << 20,
        validation: Validation::Owner,
        volume_id: "photos".to_owned(),
    };
    let store = Arc::new(Lasting(desk.store.clone()));
    let cached = Cached::open(store, options, SystemClock::shared()).unwrap();
    for number in 0..OBJECTS {
        cached.head(&context(), &address(number), GetRequest::default()).await.unwrap();
    }
    assert_eq!(desk.read_all(&cached).await, ALL_MISSES);
    cached.close().await.unwrap();
    let cached = desk.open().await;
    assert_eq!(desk.read_all(&cached).await, ALL_COMPARED);
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_of_a_class_stay_after_a_restart_without_a_read() {
    const FLOOD: u64 = 60;
    let desk = Desk::new().await;
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    cached.close().await.unwrap();
    let cached = desk.open().await;
    // The last two objects have no label; this is the class of their size.
    let mut table = ClassPolicyTable::default();
    let changes = ClassChanges { is_pinned: true, ..ClassChanges::default() };
    table.set(Class::new(15).unwrap(), changes);
    cached.set_policies(Arc::new(table));
    let large = pattern(200_000, 1);
    for number in OBJECTS..OBJECTS + FLOOD {
        put(&*desk.store, number, large.clone()).await;
        for _ in 0..3 {
            let found = cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
            assert!(drain(found.body).await.unwrap() == large);
            cached.flush().await;
        }
    }
    let before = desk.calls();
    for number in [OBJECTS - 2, OBJECTS - 1] {
        let found = cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
        assert!(drain(found.body).await.unwrap() == content(number));
    }
    let after = desk.calls();
    assert_eq!(
        (after.heads - before.heads, after.gets - before.gets),
        (2, 0),
        "they are compared, and cached"
    );
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unclean_end_lets_each_object_be_compared_once() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    cached.close().await.unwrap();
    drop(desk.open().await);
    let cached = desk.open().await;
    assert_eq!(desk.read_all(&cached).await, ALL_COMPARED);
    assert_eq!(desk.read_all(&cached).await, NONE);
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn write_of_a_session_without_clean_end_is_seen() {
    let desk = Desk::new().await;
    for number in 0..OBJECTS {
        put(&*desk.store, number, "old".into()).await;
    }
    let cached = desk.open().await;
    for number in 0..OBJECTS {
        let found = cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
        assert_eq!(drain(found.body).await.unwrap(), "old");
    }
    cached.close().await.unwrap();
    // The index of this session is lost, and that of the one before shows the old objects.
    let cached = desk.open().await;
    for number in 0..OBJECTS {
        put(&*cached, number, content(number)).await;
    }
    drop(cached);
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    assert!(cached.counters().stale == OBJECTS, "{:?}", cached.counters());
    assert_eq!(desk.read_all(&cached).await, NONE);
    cached.close().await.unwrap();
}

/// The index of the last checkpoint has the places of the older object.
#[tokio::test(flavor = "multi_thread")]
async fn replacement_with_an_equal_tag_is_read_after_a_crash() {
    const NUMBER: u64 = 4;
    let desk = Desk::new().await;
    let put_version = async |store: &dyn ObjectStore, version: u64| {
        let identity = Identity { etag: ETag::from_tag("equal"), modified: Timestamp::from_millis(1) };
        let request = StageRequest { identity: Some(identity), ..StageRequest::default() };
        let mut staged = store.stage(&context(), &address(NUMBER), request).await.unwrap();
        write_all(&mut *staged, pattern(300_000, 50 + version)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    };
    let read = async |cached: &Cached| {
        let found = cached.get(&context(), &address(NUMBER), GetRequest::default()).await.unwrap();
        let bytes = drain(found.body).await.unwrap();
        cached.flush().await;
        (0..4).find(|version| bytes == pattern(300_000, 50 + version))
    };
    let cached = desk.open().await;
    put_version(&*cached, 0).await;
    assert_eq!(read(&cached).await, Some(0));
    cached.close().await.unwrap();
    for version in 1..4 {
        let cached = desk.open().await;
        put_version(&*cached, version).await;
        assert_eq!((read(&cached).await, read(&cached).await), (Some(version), Some(version)));
        drop(cached);
        let cached = desk.open().await;
        assert_eq!((read(&cached).await, read(&cached).await), (Some(version), Some(version)));
        drop(cached);
    }
    let cached = desk.open().await;
    assert_eq!(read(&cached).await, Some(3));
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_crash_before_a_checkpoint_never_share_a_number() {
    let desk = Desk::new().await;
    desk.open().await.close().await.unwrap();
    let mut records = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let cached = desk.open().await;
        assert!(records.insert(fs::read(desk.directory().join("session")).unwrap()));
        drop(cached);
    }
}

/// Small objects of a version.
fn version(version: u64, number: u64) -> Bytes {
    pattern(5000, 100 * version + number)
}

async fn put_version(store: &dyn ObjectStore, of: u64) {
    for number in 0..OBJECTS {
        put(store, number, version(of, number)).await;
    }
}

/// Reads all objects, which must have this version.
async fn read_version(cached: &Cached, of: u64, case: &str) {
    for number in 0..OBJECTS {
        let found = cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
        let is_right = drain(found.body).await.unwrap() == version(of, number);
        assert!(is_right, "{case}: object {number} has not version {of}");
    }
    cached.flush().await;
}

fn copy_directory(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_file_that_is_lost_or_old_makes_no_head_trusted() {
    let desk = Desk::new().await;
    let (older, newest) = (desk.root.path().join("older"), desk.root.path().join("newest"));
    put_version(&*desk.store, 1).await;
    let cached = desk.open().await;
    read_version(&cached, 1, "first session").await;
    cached.close().await.unwrap();
    copy_directory(&desk.directory(), &older);
    // The second session caches version 2 in the places that the index of the first one names, and crashes.
    put_version(&*desk.store, 2).await;
    let cached = desk.open().await;
    read_version(&cached, 2, "second session").await;
    put_version(&*cached, 3).await;
    drop(cached);
    copy_directory(&desk.directory(), &newest);
    let session = desk.directory().join("session");
    for case in ["intact", "missing", "empty", "flipped", "older", "older with index", "older directory"] {
        copy_directory(if case == "older directory" { &older } else { &newest }, &desk.directory());
        match case {
            "missing" => fs::remove_file(&session).unwrap(),
            "empty" => fs::write(&session, "").unwrap(),
            "flipped" => {
                let mut bytes = fs::read(&session).unwrap();
                bytes[0] ^= 1;
                fs::write(&session, bytes).unwrap();
            }
            "older" | "older with index" => {
                let _ = fs::remove_file(&session);
                let _ = fs::copy(older.join("session"), &session);
                if case == "older with index" {
                    fs::copy(older.join("index"), desk.directory().join("index")).unwrap();
                }
            }
            _ => {}
        }
        let cached = desk.open().await;
        read_version(&cached, 3, case).await;
        drop(cached);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_of_unknown_outcome_is_compared_after_a_clean_restart() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    let fault = Fault::FailAfter(Reason::Io);
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, fault));
    let mut staged = cached.stage(&context(), &address(0), StageRequest::default()).await.unwrap();
    staged.write("new".into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap_err();
    desk.store.set_plan(FaultPlan::none());
    put(&*desk.store, 0, content(0)).await;
    cached.close().await.unwrap();
    let cached = desk.open().await;
    let calls = desk.read_all(&cached).await;
    assert_eq!(calls.heads + calls.gets, OBJECTS, "{calls:?}");
    cached.close().await.unwrap();
}

/// Flips a byte in every `step` bytes of a file.
fn garble(path: &Path, step: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes.iter_mut().step_by(step).for_each(|byte| *byte ^= 0x55);
    fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbled_extents_are_misses() {
    for step in [1, 700, 100_000] {
        let desk = Desk::new().await;
        let cached = desk.open().await;
        desk.read_all(&cached).await;
        cached.close().await.unwrap();
        garble(&desk.directory().join("extents"), step);
        let cached = desk.open().await;
        desk.read_all(&cached).await;
        assert!(cached.counters().ssd_corrupt > 0);
        assert_eq!(desk.read_all(&cached).await.heads, 0);
        cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_extents_are_misses() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    cached.close().await.unwrap();
    let extents = fs::OpenOptions::new().write(true).open(desk.directory().join("extents")).unwrap();
    extents.set_len(100_000).unwrap();
    let cached = desk.open().await;
    assert!(desk.read_all(&cached).await.gets > 0);
    // After several errors the SSD may be switched off.
    assert_eq!(desk.read_all(&cached).await.heads, 0);
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn periodic_checkpoint_survives_an_unclean_end() {
    let desk = Desk::new().await;
    let clock = SimulatedClock::new();
    let options = CachedOptions {
        directory: Some(desk.directory()),
        disk_bytes: DISK_BYTES,
        memory_bytes: 0,
        validation: Validation::Owner,
        volume_id: "photos".to_owned(),
    };
    let store = Arc::new(Lasting(desk.store.clone()));
    let cached = Cached::open(store, options, clock.clone()).unwrap();
    desk.read_all(&cached).await;
    let index = desk.directory().join("index");
    assert!(!index.exists());
    while !index.exists() {
        clock.advance(Duration::from_secs(300));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(cached);
    let cached = desk.open().await;
    assert_eq!(desk.read_all(&cached).await, ALL_COMPARED);
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_or_missing_index_starts_empty() {
    for damage in 0..4 {
        let desk = Desk::new().await;
        let cached = desk.open().await;
        desk.read_all(&cached).await;
        cached.close().await.unwrap();
        let index = desk.directory().join("index");
        let bytes = fs::read(&index).unwrap();
        match damage {
            0 => fs::remove_file(&index).unwrap(),
            1 => garble(&index, 1),
            2 => fs::write(&index, &bytes[..bytes.len() - 1]).unwrap(),
            _ => fs::write(&index, &bytes[..20]).unwrap(),
        }
        let cached = desk.open().await;
        assert_eq!(cached.ssd_extents(), 0);
        assert_eq!(desk.read_all(&cached).await, ALL_MISSES, "damage {damage}");
        assert_eq!(desk.read_all(&cached).await, NONE);
        cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_size_keeps_what_still_fits() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    cached.close().await.unwrap();
    for disk_bytes in [64 << 20, 1 << 20] {
        let options = CachedOptions {
            directory: Some(desk.directory()),
            disk_bytes,
            memory_bytes: 0,
            validation: Validation::Owner,
            volume_id: "photos".to_owned(),
        };
        let store = Arc::new(Lasting(desk.store.clone()));
        let cached = Cached::open(store, options, SystemClock::shared()).unwrap();
        while !cached.is_loaded() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let calls = desk.read_all(&cached).await;
        assert!(disk_bytes < DISK_BYTES || calls == ALL_COMPARED, "{calls:?}");
        cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_directory_is_rejected_by_name() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    let message = |volume: &str| desk.try_open(volume).map(drop).unwrap_err().message().to_owned();
    assert!(message("photos").contains("used by another process"));
    cached.close().await.unwrap();
    drop(cached);
    desk.open().await.close().await.unwrap();
    let other = message("mail");
    assert!(other.contains("\"photos\"") && other.contains("\"mail\""), "{other}");
    let identity = desk.directory().join("volume");
    let text = identity_without_checksum(&identity);
    fs::write(&identity, text.replace("tradewind-cache 3", "tradewind-cache 4")).unwrap();
    assert!(message("photos").contains("format version 4"));
    // The content of one foreign file is worth more than the cache.
    fs::write(desk.directory().join("letters"), "x").unwrap();
    fs::write(&identity, "x").unwrap();
    let damaged = message("photos");
    assert!(damaged.contains("damaged") && damaged.contains("\"letters\""), "{damaged}");
    fs::remove_file(&identity).unwrap();
    let foreign = message("photos");
    assert!(foreign.contains("not a cache directory") && foreign.contains("\"letters\""), "{foreign}");
    assert_eq!(reason(desk.try_open("photos").map(drop)), Reason::InvalidArgument);
}

/// The text of the file `volume` as an earlier version wrote it.
fn identity_without_checksum(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with("checksum")).map(|line| format!("{line}\n")).collect()
}

/// Other programs use the names of a cache's files, too.
#[tokio::test]
async fn files_with_names_of_a_cache_are_not_overwritten() {
    for names in [&["volume"][..], &["index"], &["index", "session", "pins"], &["volume", "extents"]] {
        let root = TempDir::new().unwrap();
        let directory = root.path().join("cache");
        fs::create_dir(&directory).unwrap();
        for name in names {
            fs::write(directory.join(name), "precious").unwrap();
        }
        let options = CachedOptions {
            directory: Some(directory.clone()),
            disk_bytes: DISK_BYTES,
            memory_bytes: 0,
            validation: Validation::Owner,
            volume_id: "photos".to_owned(),
        };
        let store = MemoryStore::new(SystemClock::shared());
        let opened = Cached::open(store, options, SystemClock::shared());
        assert_eq!(reason(opened.map(drop)), Reason::InvalidArgument, "{names:?}");
        for name in names {
            assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), "precious", "{names:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_with_a_damaged_volume_file_starts_empty() {
    let desk = Desk::new().await;
    let bucket = BucketName::new("bucket").unwrap();
    for case in ["missing", "empty", "text", "flipped", "cut"] {
        let cached = desk.open().await;
        desk.read_all(&cached).await;
        cached.pin(&bucket, "key-1").await.unwrap();
        cached.close().await.unwrap();
        drop(cached);
        let identity = desk.directory().join("volume");
        let mut bytes = fs::read(&identity).unwrap();
        match case {
            "missing" => fs::remove_file(&identity).unwrap(),
            "empty" => fs::write(&identity, "").unwrap(),
            "text" => fs::write(&identity, "x").unwrap(),
            "cut" => fs::write(&identity, &bytes[..bytes.len() / 2]).unwrap(),
            _ => {
                // A letter of the volume's name.
                let at = bytes.windows(6).position(|bytes| bytes == b"photos").unwrap();
                bytes[at] ^= 1;
                fs::write(&identity, bytes).unwrap();
            }
        }
        let cached = desk.open().await;
        assert_eq!(cached.ssd_extents(), 0, "{case}");
        assert_eq!(cached.pins().len(), 1, "{case}: the pins are kept");
        assert_eq!(desk.read_all(&cached).await, ALL_MISSES, "{case}");
        cached.close().await.unwrap();
        drop(cached);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_of_an_older_version_starts_empty() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    assert_eq!(desk.read_all(&cached).await, ALL_MISSES);
    cached.close().await.unwrap();
    drop(cached);
    let identity = desk.directory().join("volume");
    let text = identity_without_checksum(&identity);
    fs::write(&identity, text.replace("tradewind-cache 3", "tradewind-cache 2")).unwrap();
    let other = desk.try_open("mail").map(drop).unwrap_err();
    assert!(other.message().contains("belongs to volume"), "{other}");
    let cached = desk.open().await;
    assert_eq!((cached.ssd_extents(), desk.read_all(&cached).await), (0, ALL_MISSES));
    assert_eq!(desk.read_all(&cached).await, NONE);
    cached.close().await.unwrap();
    drop(cached);
    let id = |text: &str| text.lines().nth(1).unwrap().to_owned();
    let renewed = fs::read_to_string(&identity).unwrap();
    assert!(renewed.starts_with("tradewind-cache 3\n") && id(&renewed) != id(&text), "{renewed}");
}

/// Absent, read-only or full at the start: what the cache needs cannot be created.
#[tokio::test(flavor = "multi_thread")]
async fn ssd_that_cannot_be_opened_is_left_out() {
    for is_directory_blocked in [true, false] {
        let desk = Desk::new().await;
        if is_directory_blocked {
            fs::write(desk.directory(), "a file").unwrap();
        } else {
            let cached = desk.open().await;
            cached.close().await.unwrap();
            drop(cached);
            fs::remove_file(desk.directory().join("extents")).unwrap();
            fs::create_dir(desk.directory().join("extents")).unwrap();
        }
        let cached = desk.try_open("photos").unwrap();
        assert_eq!(cached.counters().ssd_errors, 1);
        desk.read_all(&cached).await;
        let calls = desk.read_all(&cached).await;
        assert_eq!((calls, cached.ssd_extents()), (ALL_MISSES, 0), "all is served from the store");
        cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_removed_while_in_use_costs_only_hits() {
    let desk = Desk::new().await;
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    fs::remove_dir_all(desk.directory()).unwrap();
    desk.read_all(&cached).await;
    put(&*cached, 0, content(0)).await;
    desk.read_all(&cached).await;
    cached.close().await.unwrap();
    drop(cached);
    let cached = desk.open().await;
    desk.read_all(&cached).await;
    assert_eq!(cached.counters().ssd_errors, 0, "the directory is created again");
    cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn first_reads_after_a_restart_write_only_lasting_heads() {
    let age = Validation::MaxAge(Duration::from_secs(600));
    for (validation, is_written) in [(Validation::Owner, true), (age, false), (Validation::Always, false)] {
        let desk = Desk::new().await;
        let cached = desk.open_validating(validation).await;
        desk.read_all(&cached).await;
        cached.close().await.unwrap();
        drop(cached);
        let cached = desk.open_validating(validation).await;
        assert_eq!(desk.read_all(&cached).await, ALL_COMPARED, "{validation:?}");
        assert_eq!(cached.counters().ssd_written_bytes > 0, is_written, "{validation:?}");
        cached.close().await.unwrap();
    }
}
