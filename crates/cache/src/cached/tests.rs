//! The cache on SSDs that fail, hang, lie and are full; single flight of misses.

mod heads;
mod removals;
mod replacements;
mod ssd;

use std::io::{self, IoSliceMut};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tradewind_core::Budget;
use tradewind_core::object::Expected;
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context, context_until,
    drain, pattern, unbounded_context, write_all,
};

use super::*;
use crate::aligned::BLOCK_BYTES;
use crate::disk::Device;
use crate::extent::EXTENT_BYTES;

/// The behaviour of the SSD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Works,
    /// Reads and writes fail.
    Fails,
    /// Writes fail: full, or read-only.
    Full,
    /// Reads return other bytes.
    Lies,
    /// Reads and writes wait until it works.
    Hangs,
}

struct FaultyDevice {
    inner: Arc<dyn Device>,
    /// Reads of the byte at this offset fail.
    unreadable: Arc<Mutex<Option<u64>>>,
    mode: Arc<Mutex<Mode>>,
    calls: Arc<AtomicU64>,
    block_reads: Arc<AtomicU64>,
}

impl FaultyDevice {
    fn check_readable(&self, offset: u64, length: usize) -> io::Result<()> {
        let range = offset..offset + length as u64;
        let is_unreadable = self.unreadable.lock().is_some_and(|offset| range.contains(&offset));
        if is_unreadable { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }

    fn mode(&self) -> Mode {
        self.calls.fetch_add(1, Ordering::SeqCst);
        loop {
            let mode = *self.mode.lock();
            if mode != Mode::Hangs {
                return mode;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Device for FaultyDevice {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mode = self.mode();
        if mode == Mode::Fails {
            return Err(io::Error::other("injected"));
        }
        if buffer.len() == BLOCK_BYTES {
            self.block_reads.fetch_add(1, Ordering::SeqCst);
        }
        self.check_readable(offset, buffer.len())?;
        self.inner.read(buffer, offset)?;
        if mode == Mode::Lies {
            buffer.iter_mut().for_each(|byte| *byte ^= 1);
        }
        Ok(())
    }

    fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mode = self.mode();
        if mode == Mode::Fails {
            return Err(io::Error::other("injected"));
        }
        let length = buffers.iter().map(|buffer| buffer.len()).sum();
        self.check_readable(offset, length)?;
        if length == BLOCK_BYTES {
            self.block_reads.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.read_vectored(buffers, offset)?;
        if mode == Mode::Lies {
            buffers.iter_mut().flat_map(|buffer| buffer.iter_mut()).for_each(|byte| *byte ^= 1);
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.mode() {
            Mode::Fails => Err(io::Error::other("injected")),
            Mode::Full => Err(io::ErrorKind::StorageFull.into()),
            _ => self.inner.write(bytes, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

struct Desk {
    _root: TempDir,
    clock: Arc<SimulatedClock>,
    store: Arc<Faulty<MemoryStore>>,
    cached: Arc<Cached>,
    mode: Arc<Mutex<Mode>>,
    unreadable: Arc<Mutex<Option<u64>>>,
    device_calls: Arc<AtomicU64>,
    /// Reads of one block: of heads without data.
    head_reads: Arc<AtomicU64>,
}

const OBJECTS: u64 = 12;

impl Desk {
    async fn open(memory_bytes: usize, disk_bytes: u64) -> Self {
        Self::open_validating(memory_bytes, disk_bytes, Validation::Owner).await
    }

    async fn open_validating(memory_bytes: usize, disk_bytes: u64, validation: Validation) -> Self {
        let tiers = TierOptions { verify_bytes_per_second: 0, ..TierOptions::default() };
        Self::open_all(memory_bytes, disk_bytes, validation, tiers).await
    }

    async fn open_with(memory_bytes: usize, disk_bytes: u64, tiers: TierOptions) -> Self {
        Self::open_all(memory_bytes, disk_bytes, Validation::Owner, tiers).await
    }

    async fn open_all(
        memory_bytes: usize,
        disk_bytes: u64,
        validation: Validation,
        tiers: TierOptions,
    ) -> Self {
        let root = TempDir::new().unwrap();
        let clock = SimulatedClock::new();
        let store = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let options = CachedOptions {
            directory: (disk_bytes > 0).then(|| root.path().to_owned()),
            disk_bytes,
            memory_bytes,
            validation,
            volume_id: "test".to_owned(),
        };
        let mode = Arc::new(Mutex::new(Mode::Works));
        let device_calls = Arc::new(AtomicU64::new(0));
        let unreadable = Arc::new(Mutex::new(None));
        let to_unreadable = unreadable.clone();
        let (to_mode, to_calls) = (mode.clone(), device_calls.clone());
        let head_reads = Arc::new(AtomicU64::new(0));
        let block_reads = head_reads.clone();
        let wrap = move |inner| -> Arc<dyn Device> {
            Arc::new(FaultyDevice {
                inner,
                unreadable: to_unreadable,
                mode: to_mode,
                calls: to_calls,
                block_reads,
            })
        };
        let cached = Cached::open_with(store.clone(), options, tiers, clock.clone(), wrap).unwrap();
        cached.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        for number in 0..OBJECTS {
            let mut staged =
                store.stage(&context(), &address(number), StageRequest::default()).await.unwrap();
            write_all(&mut *staged, content(number)).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
        Self { _root: root, clock, store, cached, mode, unreadable, device_calls, head_reads }
    }

    /// Writes an object to the backing store.
    async fn write(&self, number: u64, size: usize) {
        let mut staged =
            self.store.stage(&context(), &address(number), StageRequest::default()).await.unwrap();
        write_all(&mut *staged, pattern(size, number)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    /// Reads an object, checks it, and returns the number of calls of the device.
    async fn read(&self, number: u64, size: usize) -> u64 {
        let before = self.device_calls.load(Ordering::SeqCst);
        let context = unbounded_context(&Budget::new(8 << 20));
        let found = self.cached.get(&context, &address(number), GetRequest::default()).await.unwrap();
        assert!(drain(found.body).await.unwrap() == pattern(size, number), "object {number}");
        self.device_calls.load(Ordering::SeqCst) - before
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock() = mode;
    }

    /// Reads all objects, checks them, and returns the number of GETs that reached the store.
    async fn read_all(&self) -> u64 {
        let before = self.store.calls(Operation::Get);
        for number in 0..OBJECTS {
            let found = self.cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
            assert!(drain(found.body).await.unwrap() == content(number), "object {number}");
        }
        self.store.calls(Operation::Get) - before
    }
}

fn address(number: u64) -> Address {
    Address::parse("bucket", &format!("key-{number}")).unwrap()
}

fn content(number: u64) -> Bytes {
    pattern([4096, 30_000, EXTENT_BYTES, 500_000][number as usize % 4], number)
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_ssd_is_switched_off_and_tried_again() {
    for mode in [Mode::Fails, Mode::Full] {
        let desk = Desk::open(0, 16 << 20).await;
        desk.set(mode);
        assert_eq!(desk.read_all().await, OBJECTS);
        desk.cached.flush().await;
        let counters = desk.cached.counters();
        assert_eq!(counters.ssd_switched_off, 1, "{counters:?}");
        let calls = desk.device_calls.load(Ordering::SeqCst);
        assert_eq!(desk.read_all().await, OBJECTS);
        desk.cached.flush().await;
        assert_eq!(desk.device_calls.load(Ordering::SeqCst), calls, "it is left alone");
        desk.set(Mode::Works);
        desk.clock.advance(Duration::from_secs(60));
        for _ in 0..3 {
            desk.read_all().await;
            desk.cached.flush().await;
        }
        assert_eq!(desk.read_all().await, 0, "{:?}", desk.cached.counters());
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ssd_that_fails_later_costs_only_hits() {
    for mode in [Mode::Fails, Mode::Lies] {
        let desk = Desk::open(0, 16 << 20).await;
        desk.read_all().await;
        desk.cached.flush().await;
        assert_eq!(desk.read_all().await, 0);
        desk.set(mode);
        assert!(desk.read_all().await > 0);
        desk.cached.flush().await;
        desk.set(Mode::Works);
        desk.read_all().await;
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_ssd_delays_no_read_for_long() {
    let desk = Desk::open(0, 16 << 20).await;
    desk.read_all().await;
    desk.cached.flush().await;
    desk.set(Mode::Hangs);
    let stop = CancellationToken::new();
    let (clock, stopped) = (desk.clock.clone(), stop.clone());
    // Time passes as fast as readers wait.
    let time = tokio::spawn(async move {
        while !stopped.is_cancelled() {
            clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(desk.read_all().await > 0);
    assert!(desk.cached.counters().ssd_switched_off > 0);
    desk.set(Mode::Works);
    stop.cancel();
    time.await.unwrap();
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fills_are_skipped_while_the_ssd_cannot_keep_up() {
    let desk = Desk::open(0, 64 << 20).await;
    desk.set(Mode::Hangs);
    let large = pattern(20 << 20, 1);
    let mut staged = desk.store.stage(&context(), &address(99), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, large.clone()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let found = desk.cached.get(&context(), &address(99), GetRequest::default()).await.unwrap();
    assert!(drain(found.body).await.unwrap() == large);
    assert!(desk.cached.counters().fills_queue_full > 0);
    desk.set(Mode::Works);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_of_a_hanging_ssd_is_bounded() {
    const MANY: u64 = 400;
    let desk = Desk::open(64 << 20, 64 << 20).await;
    desk.set(Mode::Hangs);
    for number in 100..100 + MANY {
        let mut staged =
            desk.store.stage(&context(), &address(number), StageRequest::default()).await.unwrap();
        // Not small: the head is stored apart from the data.
        write_all(&mut *staged, pattern(EXTENT_BYTES, number)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        let found = desk.cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
        assert!(drain(found.body).await.unwrap() == pattern(EXTENT_BYTES, number));
    }
    let queued = desk.cached.tiers.disk.as_ref().unwrap().queued_jobs();
    assert!(queued <= 128, "{queued} jobs");
    let counters = desk.cached.counters();
    assert!(counters.fills_queue_full >= 2 * MANY - 128, "{counters:?}");
    // Extents that do not fit into the queue are in memory.
    let gets = desk.store.calls(Operation::Get);
    let found = desk.cached.head(&context(), &address(99 + MANY), GetRequest::default()).await.unwrap();
    assert_eq!((found.info.size, desk.store.calls(Operation::Head)), (EXTENT_BYTES as u64, 0));
    assert_eq!(desk.store.calls(Operation::Get), gets);
    desk.set(Mode::Works);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn removals_leave_an_ssd_alone_that_is_switched_off() {
    let desk = Desk::open(0, 16 << 20).await;
    desk.read_all().await;
    desk.cached.flush().await;
    desk.set(Mode::Fails);
    desk.read_all().await;
    desk.cached.flush().await;
    assert_eq!(desk.cached.counters().ssd_switched_off, 1);
    let calls = desk.device_calls.load(Ordering::SeqCst);
    for number in 0..OBJECTS {
        desk.cached.evict(&address(number));
    }
    desk.cached.finish_evictions().await;
    assert_eq!(desk.device_calls.load(Ordering::SeqCst), calls);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_finish_when_the_space_is_free() {
    let desk = Desk::open(0, 16 << 20).await;
    desk.read_all().await;
    desk.cached.flush().await;
    desk.set(Mode::Hangs);
    // Fewer than the SSD has threads.
    for number in 0..4 {
        assert!(desk.cached.evict(&address(number)));
    }
    let mut finished = std::pin::pin!(desk.cached.finish_evictions());
    let early = tokio::time::timeout(Duration::from_millis(50), &mut finished).await;
    assert!(early.is_err(), "the SSD hangs before the data is removed");
    desk.set(Mode::Works);
    finished.await;
    for number in 4..OBJECTS {
        assert!(desk.cached.evict(&address(number)));
    }
    desk.cached.finish_evictions().await;
    assert_eq!((desk.cached.ssd_used_bytes(), desk.cached.ssd_extents()), (0, 0));
    desk.cached.close().await.unwrap();
}

/// A frame of small extents makes way for a large one as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn small_extents_make_way_for_large_ones() {
    let desk = Desk::open(0, 1 << 20).await;
    for round in 0..6 {
        for number in [0, 4, 8, 1, 5, 9, 3, 7, 2] {
            let found = desk.cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
            assert!(drain(found.body).await.unwrap() == content(number), "{round}");
            desk.cached.flush().await;
        }
    }
    let counters = desk.cached.counters();
    assert!(counters.ssd_evictions > 20 && counters.ssd_corrupt == 0, "{counters:?}");
    assert_eq!(counters.fills_skipped, 0, "{counters:?}");
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_misses_of_a_small_object_read_it_once() {
    let desk = Desk::open(1 << 20, 1 << 20).await;
    let delay = Fault::Delay(Duration::from_secs(5));
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Get, FaultSchedule::Always, delay));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (cached, clock) = (desk.cached.clone(), desk.clock.clone());
        readers.spawn(async move {
            let deadline = tradewind_core::context::Deadline::none(clock);
            let context = context_until(&Budget::new(1 << 20), deadline);
            let found = cached.get(&context, &address(0), GetRequest::default()).await.unwrap();
            assert!(drain(found.body).await.unwrap() == content(0));
        });
    }
    while readers.try_join_next().is_none() {
        desk.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while let Some(result) = readers.join_next().await {
        result.unwrap();
    }
    let counters = desk.cached.counters();
    assert_eq!(desk.store.calls(Operation::Get) as usize, counters.misses as usize);
    assert!(counters.misses + counters.shared_misses + counters.ram_hits >= 8, "{counters:?}");
    assert_eq!(counters.misses, 1, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_miss_is_tried_by_each_waiting_reader() {
    let desk = Desk::open(1 << 20, 1 << 20).await;
    let fault = Fault::FailBefore(Reason::Io);
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Get, FaultSchedule::Nth(1), fault));
    let reads = (0..8).map(|_| {
        let cached = desk.cached.clone();
        tokio::spawn(
            async move { cached.get(&context(), &address(0), GetRequest::default()).await.map(drop) },
        )
    });
    let results = futures::future::join_all(reads).await;
    let failed = results.into_iter().filter(|result| result.as_ref().unwrap().is_err()).count();
    assert_eq!(failed, 1);
}
