//! Reads with a gate of the device: those that the page cache cannot answer enter it, before they read anything, and all
//! others if the gate says so.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::testing::{context, drain, pattern};
use tradewind_core::{Context, DeviceGate, ObjectStore as _};

use test_store::{TestStore, address};

/// Counts the reads of the device, and keeps them until it is opened.
#[derive(Debug)]
struct CountingGate {
    entered: AtomicUsize,
    passes_cached_reads: AtomicBool,
    open: Semaphore,
}

#[async_trait]
impl DeviceGate for CountingGate {
    async fn enter(&self) -> Result<()> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let entered = self.open.acquire().await;
        entered.map(drop).map_err(|_| Error::new(Reason::Overloaded, "the gate rejects the read"))
    }

    fn passes_cached_reads(&self) -> bool {
        self.passes_cached_reads.load(Ordering::SeqCst)
    }
}

struct Fixture {
    store: TestStore,
    gate: Arc<CountingGate>,
    _directory: TempDir,
}

const SMALL: &str = "small";
const LARGE: &str = "large";

impl Fixture {
    /// A store on a file system with a device: others have their data only in the page cache.
    async fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = TestStore::new(directory.path()).await;
        store.put(SMALL, pattern(8 << 10, 1)).await;
        store.put(LARGE, pattern(1 << 20, 2)).await;
        let gate = Arc::new(CountingGate {
            entered: AtomicUsize::new(0),
            passes_cached_reads: AtomicBool::new(true),
            open: Semaphore::new(0),
        });
        Self { store, gate, _directory: directory }
    }

    fn drop_pages(&self) {
        drop_pages_in(&self.store.root.join("segments"));
    }

    fn context(&self) -> Context {
        context().with_device_gate(self.gate.clone())
    }

    async fn get(&self, key: &str) -> Result<usize> {
        let found = self.store.store.get(&self.context(), &address(key), GetRequest::default()).await?;
        Ok(drain(found.body).await?.len())
    }

    fn entered(&self) -> usize {
        self.gate.entered.load(Ordering::SeqCst)
    }
}

/// False on a kernel before Linux 6.5, and in a sandbox that refuses the system call: all reads wait then.
fn has_cachestat() -> bool {
    const SYS_CACHESTAT: libc::c_long = 451;
    // SAFETY: the descriptor is none, so that the kernel rejects the call before it follows a pointer.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, -1, std::ptr::null::<u8>(), std::ptr::null::<u8>(), 0) };
    assert_eq!(result, -1);
    let has_it = std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF);
    if !has_it {
        println!("skipped: the kernel does not say what its page cache has");
    }
    has_it
}

fn drop_pages_in(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

#[tokio::test]
async fn reads_that_the_page_cache_answers_do_not_enter_the_gate() {
    if !has_cachestat() {
        return;
    }
    let fixture = Fixture::new().await;
    for (key, size) in [(SMALL, 8 << 10), (LARGE, 1 << 20)] {
        assert_eq!(fixture.get(key).await.unwrap(), size);
        fixture.store.store.head(&fixture.context(), &address(key), GetRequest::default()).await.unwrap();
    }
    assert_eq!(fixture.entered(), 0);
}

#[tokio::test]
async fn reads_of_the_device_wait_at_the_gate_and_read_nothing_before() {
    let fixture = Fixture::new().await;
    for (key, size) in [(SMALL, 8 << 10), (LARGE, 1 << 20)] {
        fixture.drop_pages();
        let (before, entered) = (fixture.store.store.read_bytes(), fixture.entered());
        let mut read = Box::pin(fixture.get(key));
        let waited = tokio::time::timeout(Duration::from_millis(50), &mut read).await;
        assert!(waited.is_err(), "{key} does not wait");
        assert_eq!(fixture.entered(), entered + 1);
        assert_eq!(fixture.store.store.read_bytes(), before, "{key} is read before its turn");
        fixture.gate.open.add_permits(1);
        assert_eq!(read.await.unwrap(), size);
        fixture.gate.open.forget_permits(1);
    }
}

/// A hit of a page that the kernel has marked would start its next read-ahead.
#[tokio::test]
async fn cached_reads_enter_a_gate_that_passes_none() {
    let fixture = Fixture::new().await;
    fixture.gate.passes_cached_reads.store(false, Ordering::SeqCst);
    fixture.gate.open.add_permits(1);
    assert_eq!(fixture.get(SMALL).await.unwrap(), 8 << 10);
    assert_eq!(fixture.entered(), 1);
    assert_eq!(fixture.get(LARGE).await.unwrap(), 1 << 20);
    assert!(fixture.entered() >= 5, "{} reads of 4 pieces and a small object", fixture.entered());
}

#[tokio::test]
async fn read_that_the_gate_rejects_fails_with_its_error() {
    let fixture = Fixture::new().await;
    fixture.drop_pages();
    fixture.gate.open.close();
    for key in [SMALL, LARGE] {
        assert_eq!(fixture.get(key).await.unwrap_err().reason(), Reason::Overloaded);
    }
    let head = fixture.store.store.head(&fixture.context(), &address(SMALL), GetRequest::default()).await;
    assert_eq!(head.unwrap_err().reason(), Reason::Overloaded);
}
