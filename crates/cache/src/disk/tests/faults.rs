//! Unreadable, outdated and damaged extents, failed writes and abandoned reads.

use std::sync::mpsc;
use std::time::Duration;

use super::super::health::MAX_SEQUENTIAL_ERRORS;
use super::super::verification::Verified;
use super::*;

const EXTENTS: u32 = 8;

struct Desk {
    device: Arc<MemoryDevice>,
    disk: Arc<Disk>,
}

impl Desk {
    /// Extents of a frame each, which are neighbours.
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(64 * FRAME_BYTES));
        let disk = open_on(device.clone(), 64);
        (0..EXTENTS).for_each(|number| store(&disk, number, FRAME_BLOCKS, CLASS));
        Self { device, disk }
    }

    fn entry(&self, number: u32) -> Option<IndexEntry> {
        let state = self.disk.state.lock();
        state
            .index
            .find_extent(self.disk.fingerprints.name(data_key(number)))
            .and_then(|slot| state.index.get(slot))
    }

    fn offset(&self, number: u32) -> u64 {
        u64::from(self.entry(number).unwrap().space.block) * BLOCK_BYTES as u64
    }

    /// Lets reads of the second block of these extents fail.
    fn set_unreadable(&self, numbers: &[u32]) {
        let offsets = numbers.iter().map(|number| self.offset(*number) + BLOCK_BYTES as u64);
        *self.device.unreadable.lock() = offsets.collect();
    }

    fn damage(&self, number: u32) {
        let offset = self.offset(number) as usize;
        self.device.bytes.lock()[offset + BLOCK_BYTES] ^= 1;
    }

    async fn read(&self, numbers: std::ops::Range<u32>) -> Vec<bool> {
        let read = self.disk.start_read(numbers.map(data_key)).unwrap();
        self.disk.finish_read(read).await.iter().map(Option::is_some).collect()
    }

    fn verify(&self, number: u32) -> Verified {
        self.disk.verify_entry(self.entry(number).unwrap())
    }

    fn errors(&self) -> u64 {
        self.disk.counters.ssd_errors.value()
    }

    fn corrupt(&self) -> u64 {
        self.disk.counters.ssd_corrupt.value()
    }
}

#[tokio::test]
async fn unreadable_block_costs_one_of_the_neighbours() {
    let desk = Desk::new();
    for (count, bad) in (1..).zip([3, 6]) {
        desk.set_unreadable(&[bad]);
        let first = if count == 1 { 0 } else { 4 };
        let found = desk.read(first..EXTENTS).await;
        let expected: Vec<bool> = (first..EXTENTS).map(|number| number != bad).collect();
        assert_eq!((found, desk.errors(), desk.corrupt()), (expected, count, count));
        assert!(desk.entry(bad).is_none(), "it is dropped");
    }
    assert_eq!(desk.disk.entries() as u32, EXTENTS - 2);
}

#[tokio::test]
async fn unreadable_neighbours_never_switch_the_ssd_off() {
    let desk = Desk::new();
    for bad in [0, 1, 2, 3, 4] {
        desk.set_unreadable(&[bad]);
        let found = desk.read(bad..EXTENTS).await;
        assert!(!found[0] && found[1..].iter().all(|is_found| *is_found), "{found:?}");
    }
    assert!(desk.errors() > u64::from(MAX_SEQUENTIAL_ERRORS));
    assert_eq!(desk.disk.counters.ssd_switched_off.value(), 0);
}

#[tokio::test]
async fn neighbours_of_a_dead_ssd_are_one_error_and_stay() {
    let desk = Desk::new();
    desk.set_unreadable(&(0..EXTENTS).collect::<Vec<_>>());
    assert_eq!(desk.read(0..EXTENTS).await, vec![false; EXTENTS as usize]);
    assert_eq!((desk.errors(), desk.disk.entries() as u32), (1, EXTENTS));
}

#[tokio::test]
async fn extent_that_is_unreadable_twice_in_a_row_is_dropped() {
    let desk = Desk::new();
    desk.set_unreadable(&[2]);
    assert_eq!(desk.read(2..3).await, [false]);
    assert!(desk.entry(2).is_some(), "it may be readable next time");
    assert_eq!(desk.read(2..3).await, [false]);
    assert!(desk.entry(2).is_none());
    assert!(!desk.disk.health.is_off());
}

#[test]
fn verified_extent_that_is_unreadable_twice_is_dropped() {
    let desk = Desk::new();
    desk.set_unreadable(&[2]);
    assert_eq!([desk.verify(2), desk.verify(2)], [Verified::Unreadable, Verified::Damaged]);
    assert!(desk.entry(2).is_none());
    desk.set_unreadable(&(3..EXTENTS).collect::<Vec<_>>());
    let dropped = (3..EXTENTS).filter(|number| {
        desk.verify(*number);
        desk.verify(*number) == Verified::Damaged
    });
    assert_eq!(dropped.count(), 0, "the SSD fails, and no single extent");
}

#[test]
fn other_extent_in_the_place_of_an_entry_is_no_damage() {
    let desk = Desk::new();
    let other = sealed(100, FRAME_BLOCKS, CLASS);
    desk.device.write(&other.bytes, desk.offset(1)).unwrap();
    desk.damage(2);
    assert_eq!(
        [desk.verify(0), desk.verify(1), desk.verify(2)],
        [Verified::Done, Verified::Done, Verified::Damaged]
    );
    assert_eq!((desk.disk.entries() as u32, desk.corrupt()), (EXTENTS - 2, 1));
}

#[tokio::test]
async fn wrong_entry_after_a_crash_is_no_damage() {
    let desk = Desk::new();
    desk.disk.expect_outdated_entries();
    desk.damage(1);
    desk.damage(2);
    assert_eq!(desk.verify(1), Verified::Done);
    assert_eq!(desk.read(2..3).await, [false]);
    assert_eq!((desk.disk.entries() as u32, desk.corrupt()), (EXTENTS - 2, 0));
    let mut verifier = Verifier::new(desk.disk.clone(), 1).unwrap();
    let is_first_pass = || desk.disk.has_outdated_entries.load(Ordering::Acquire);
    for _ in 0..2000 {
        if !is_first_pass() {
            break;
        }
        verifier.verify_next().await;
        // A thread may not have ended its last job.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!is_first_pass());
    assert!(desk.disk.counters.ssd_verified_bytes.value() >= u64::from(EXTENTS - 2) * FRAME_BYTES as u64);
    desk.damage(3);
    assert_eq!(desk.verify(3), Verified::Damaged, "each entry was verified once");
}

#[tokio::test]
async fn abandoned_read_does_not_reach_the_device() {
    let desk = Desk::new();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    for _ in 0..IO_THREADS {
        let released = released.clone();
        desk.disk.run_in_background(move || {
            // An error means that the test releases them.
            let _ = released.lock().recv();
        });
    }
    while desk.disk.queued_jobs() > 0 {
        std::thread::yield_now();
    }
    drop(desk.disk.start_read((0..EXTENTS).map(data_key)).unwrap());
    drop(release);
    desk.disk.close().unwrap();
    assert_eq!(desk.device.reads.load(Ordering::SeqCst), 0);
}

#[test]
fn failed_write_costs_nothing_of_the_write_budget() {
    let desk = Desk::new();
    desk.disk.limit_writes(1);
    let available = || desk.disk.write_budget.get().unwrap().available_bytes(desk.disk.clock.now());
    let before = available();
    desk.device.rejects_writes.store(true, Ordering::SeqCst);
    // The last one finds the SSD switched off.
    for number in 0..=MAX_SEQUENTIAL_ERRORS {
        store(&desk.disk, 100 + number, FRAME_BLOCKS, CLASS);
    }
    assert_eq!(desk.disk.counters.fills_skipped.value(), 1);
    assert!(available() >= before, "{} of {before} bytes", available());
    assert_eq!(desk.disk.used_bytes(), u64::from(EXTENTS) * FRAME_BYTES as u64);
}

#[test]
fn checkpoint_of_an_unchanged_index_is_recognized() {
    let desk = Desk::new();
    let root = TempDir::new().unwrap();
    let path = root.path().join("index");
    assert!(!desk.disk.is_checkpointed());
    let header = CheckpointHeader { cache_id: 1, session: 1 };
    assert!(desk.disk.write_checkpoint(&path, &header).unwrap());
    assert!(desk.disk.is_checkpointed());
    desk.disk.remove(desk.disk.fingerprints.name(data_key(0)));
    assert!(!desk.disk.is_checkpointed());
}

/// A read that waits in a queue that moves says nothing about the SSD; one in a queue that stands still does.
#[tokio::test]
async fn time_out_in_the_queue_is_an_error_only_if_no_job_ends() {
    for is_moving in [true, false] {
        let device = Arc::new(MemoryDevice::new(8 * FRAME_BYTES));
        let clock = tradewind_core::testing::SimulatedClock::new();
        let bytes = 8 * FRAME_BYTES as u64;
        let disk = Disk::new(device, bytes, Eviction::default(), 1, clock.clone(), Arc::default()).unwrap();
        store(&disk, 0, FRAME_BLOCKS, CLASS);
        let block = |disk: &Disk| {
            let (release, released) = mpsc::channel::<()>();
            let job = move || {
                // An error means that the test releases it.
                let _ = released.recv();
            };
            assert!(disk.io.spawn(Urgency::Foreground, job));
            release
        };
        let mut jobs: Vec<_> = (0..=IO_THREADS).map(|_| block(&disk)).collect();
        while disk.queued_jobs() > 1 {
            std::thread::yield_now();
        }
        let read = disk.start_read(std::iter::once(data_key(0))).unwrap();
        if is_moving {
            let finished = disk.io.finished_jobs();
            jobs.remove(0);
            while disk.io.finished_jobs() == finished {
                std::thread::yield_now();
            }
        }
        clock.advance(Duration::from_secs(3));
        assert_eq!(disk.finish_read(read).await, [None]);
        assert_eq!(disk.counters.ssd_errors.value(), u64::from(!is_moving));
        jobs.clear();
        disk.close().unwrap();
    }
}

#[tokio::test]
async fn neighbours_that_are_unreadable_while_others_are_not_are_dropped() {
    let desk = Desk::new();
    desk.set_unreadable(&[0, 1, 2]);
    for _ in 0..2 {
        assert_eq!(desk.read(0..3).await, [false; 3]);
    }
    assert!(desk.entry(1).is_some(), "all of the SSD may fail");
    assert_eq!(desk.read(3..EXTENTS).await, vec![true; EXTENTS as usize - 3]);
    assert_eq!(desk.read(0..3).await, [false; 3]);
    assert_eq!(desk.disk.entries() as u32, EXTENTS - 3);
    assert!(!desk.disk.health.is_off());
}
