//! The SSD tier with a large index.

mod faults;
mod fill_runs;
mod moves;

use std::io::IoSliceMut;
use std::sync::atomic::AtomicUsize;

use tempfile::TempDir;
use tokio::sync::Semaphore;
use tradewind_core::{
    Address, ChecksumScope, Class, ETag, Generation, Metadata, ObjectInfo, SystemClock, Timestamp,
};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable};

use super::checkpoint::{CheckpointHeader, CheckpointWriter, MAX_CHUNK_ENTRIES, read_checkpoint};
use super::frames::WHOLE_FRAME;
use super::index::ExtentKind;
use super::*;
use crate::extent::{ExtentBuffer, HEADER_BYTES, Place};
use crate::head::{ContentId, Head, Stamp};
use crate::policy::{MAX_EXCESS_EVICTIONS, SlotEntries};
use crate::ram::RamTier;
use crate::stamps::StampTable;
use crate::tiers::Tiers;

/// A device of any size that holds nothing.
struct NullDevice;

impl Device for NullDevice {
    fn read(&self, buffer: &mut [u8], _: u64) -> io::Result<()> {
        buffer.fill(0);
        Ok(())
    }

    fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>], _: u64) -> io::Result<()> {
        buffers.iter_mut().for_each(|buffer| buffer.fill(0));
        Ok(())
    }

    fn write(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A device in memory.
struct MemoryDevice {
    bytes: Mutex<Vec<u8>>,
    /// Offsets at which reads fail.
    unreadable: Mutex<Vec<u64>>,
    reads: AtomicUsize,
    rejects_writes: AtomicBool,
}

impl MemoryDevice {
    fn new(bytes: usize) -> Self {
        Self {
            bytes: Mutex::new(vec![0; bytes]),
            unreadable: Mutex::default(),
            reads: AtomicUsize::new(0),
            rejects_writes: AtomicBool::new(false),
        }
    }

    fn copy_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset..offset + buffer.len() as u64;
        if self.unreadable.lock().iter().any(|offset| range.contains(offset)) {
            return Err(rustix::io::Errno::IO.into());
        }
        buffer.copy_from_slice(&self.bytes.lock()[offset as usize..][..buffer.len()]);
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.copy_to(buffer, offset)
    }

    fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        for buffer in buffers {
            self.copy_to(buffer, offset)?;
            offset += buffer.len() as u64;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.rejects_writes.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.lock()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

const PINNED_CLASS: u8 = 30;
const CLASS: u8 = 24;

fn policies(class: u8, changes: ClassChanges) -> TierPolicies {
    let mut table = ClassPolicyTable::default();
    table.set(Class::new(class).unwrap(), changes);
    TierPolicies::new(&table)
}

fn pinned() -> TierPolicies {
    policies(PINNED_CLASS, ClassChanges { is_pinned: true, ..ClassChanges::default() })
}

fn limited(class: u8, percent: u8) -> TierPolicies {
    policies(class, ClassChanges { max_occupancy_percent: Some(percent), ..ClassChanges::default() })
}

/// A tier of this many frames on a device in memory.
fn open(frames: usize) -> Arc<Disk> {
    open_on(Arc::new(MemoryDevice::new(frames * FRAME_BYTES)), frames)
}

fn open_on(device: Arc<MemoryDevice>, frames: usize) -> Arc<Disk> {
    Disk::new(
        device,
        (frames * FRAME_BYTES) as u64,
        Eviction::default(),
        1,
        SystemClock::shared(),
        Arc::default(),
    )
    .unwrap()
}

/// An extent of `blocks` blocks.
fn sealed(number: u32, blocks: usize, class: u8) -> SealedExtent {
    let payload = vec![number as u8; blocks * BLOCK_BYTES - HEADER_BYTES];
    let mut buffer = ExtentBuffer::new(payload.len());
    buffer.append(&payload);
    buffer.seal(1, data_key(number), class)
}

fn data_key(number: u32) -> ExtentKey {
    ExtentKey::Data(Place { address: 1, number }, ContentId(1))
}

fn request(extent: SealedExtent) -> StoreRequest {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    StoreRequest {
        extent,
        pin: None,
        validity: None,
        data_extents: None,
        miss_key: None,
        head_key: None,
        run: None,
        content_use: None,
        permit,
        claim: None,
    }
}

/// Stores an extent of `blocks` blocks, on this thread.
fn store(disk: &Arc<Disk>, number: u32, blocks: usize, class: u8) {
    disk.write_extent(request(sealed(number, blocks, class)));
}

fn occupancy(disk: &Disk, class: u8) -> ClassOccupancy {
    disk.occupancy()[usize::from(class)]
}

impl DiskState {
    fn hit(&mut self, key: ExtentKey, fingerprints: Fingerprints) {
        let slot = self.index.find_extent(fingerprints.name(key)).unwrap();
        let entry = self.index.get(slot).unwrap();
        self.policy.hit(slot, &entry.as_entry());
    }
}

fn pinned_extents(disk: &Disk) -> usize {
    let state = disk.state.lock();
    (0..state.index.slots()).filter(|slot| state.policy.is_pinned(*slot)).count()
}

#[test]
fn pinned_extents_leave_their_frames_for_a_larger_one() {
    const FRAMES: u32 = 16;
    let disk = open(FRAMES as usize);
    disk.state.lock().set_policies(pinned());
    // Two of three would be more than may be pinned.
    for number in 0..FRAMES * 2 {
        store(&disk, number, 9, if number % 2 == 0 { PINNED_CLASS } else { CLASS });
    }
    let pinned = pinned_extents(&disk);
    assert!(pinned > 0 && disk.entries() == 32, "{pinned} of {}", disk.entries());
    for number in 1000..1000 + FRAMES {
        store(&disk, number, FRAME_BLOCKS, CLASS);
    }
    assert_eq!((pinned_extents(&disk), disk.counters.fills_skipped.value()), (pinned, 0));
    let is_intact =
        |number: u32| disk.read_blocking(data_key(number)).is_none_or(|bytes| bytes[0] == number as u8);
    assert!((0..FRAMES * 2).all(is_intact), "moved extents have their bytes");
    let evictions = disk.counters.ssd_evictions.value();
    assert!(
        evictions <= 4 * u64::from(FRAMES),
        "{evictions} evictions for {FRAMES} extents of two victims each"
    );
}

/// The policy says which extents leave, and not the frame that they share with a victim.
#[test]
fn neighbours_of_victims_move_and_stay() {
    const FRAMES: u32 = 16;
    let disk = open(FRAMES as usize);
    let small = FRAMES * 2 - 2;
    (0..small).for_each(|number| store(&disk, number, 9, CLASS));
    // The even ones are used, and share their frames with the odd ones.
    for number in (0..small).step_by(2) {
        for _ in 0..3 {
            disk.state.lock().hit(data_key(number), disk.fingerprints);
        }
    }
    for number in 1000..1006 {
        store(&disk, number, FRAME_BLOCKS, CLASS);
    }
    let stays = |number: &u32| disk.contains(disk.fingerprints.name(data_key(*number)));
    let kept = (0..small).step_by(2).filter(stays).count();
    assert_eq!(kept, small as usize / 2, "all that are used");
    for number in (0..small).filter(stays) {
        assert_eq!(disk.read_blocking(data_key(number)).unwrap()[0], number as u8);
    }
    assert_eq!(disk.counters.fills_skipped.value(), 0);
}

#[test]
fn frame_with_a_write_in_flight_is_left_alone() {
    let disk = open(4);
    (0..3).for_each(|number| store(&disk, number, 4, CLASS));
    // Of 4 blocks, too.
    let in_flight = disk.state.lock().frames.allocate(3).unwrap();
    assert_eq!(in_flight.frame(), 0);
    assert!(!disk.clear_in_frame(0, WHOLE_FRAME));
    disk.state.lock().frames.release(in_flight);
    assert!(disk.clear_in_frame(0, WHOLE_FRAME));
    let state = disk.state.lock();
    assert_eq!((state.index.entries(), state.frames.used_blocks_of(0)), (3, 0), "they moved");
}

#[test]
fn extents_that_fit_nowhere_else_leave_a_cleared_frame() {
    let disk = open(1);
    (0..3).for_each(|number| store(&disk, number, 4, CLASS));
    assert!(disk.clear_in_frame(0, WHOLE_FRAME));
    assert_eq!((disk.entries(), disk.used_bytes()), (0, 0));
}

#[test]
fn change_of_pins_reaches_what_is_stored() {
    let disk = open(512);
    // More than one step visits.
    let extents = MAX_STEP_ENTRIES / 4 * 3;
    for number in 0..extents {
        store(&disk, number, 1, if number < 300 { PINNED_CLASS } else { CLASS });
    }
    for (policies, expected) in [(pinned(), 300), (policies(0, ClassChanges::default()), 0), (pinned(), 300)]
    {
        disk.state.lock().set_policies(policies);
        disk.apply_policies();
        assert_eq!(pinned_extents(&disk), expected);
    }
    let stored = |number| disk.fingerprints.name(data_key(number));
    disk.pin(stored(500), PinReason::Prefix { generation: 0 });
    disk.pin(stored(501), PinReason::Class);
    assert_eq!(pinned_extents(&disk), 301, "the pin of the other class has ended");
    disk.state.lock().set_policies(policies(0, ClassChanges::default()));
    disk.apply_policies();
    assert_eq!(pinned_extents(&disk), 1, "the pin of a prefix stays");
    disk.end_prefix_pins(1);
    disk.close().unwrap();
    assert_eq!(pinned_extents(&disk), 0);
}

#[test]
fn write_that_ends_after_the_pin_of_its_prefix_is_not_pinned() {
    let disk = open(4);
    let queued = |number, generation| StoreRequest {
        pin: Some(PinReason::Prefix { generation }),
        ..request(sealed(number, 1, CLASS))
    };
    disk.write_extent(queued(1, 0));
    assert_eq!(pinned_extents(&disk), 1);
    disk.state.lock().class_policies.end_prefix_pins(1);
    disk.apply_policies();
    disk.write_extent(queued(2, 0));
    disk.write_extent(queued(3, 1));
    disk.close().unwrap();
    assert_eq!([disk.entries(), pinned_extents(&disk)], [3, 1], "the pin of the later generation");
}

#[test]
fn class_that_is_pinned_during_a_write_is_pinned() {
    let disk = open(4);
    disk.state.lock().set_policies(pinned());
    // The request was made before.
    store(&disk, 1, 1, PINNED_CLASS);
    assert_eq!(pinned_extents(&disk), 1);
}

#[test]
fn insertion_evicts_a_bounded_part_of_an_excess() {
    let disk = open(512);
    (0..500).for_each(|number| store(&disk, number, 1, CLASS));
    disk.state.lock().set_policies(limited(CLASS, 1));
    let evicted = {
        let mut state = disk.state.lock();
        assert!(state.trim(MAX_EXCESS_EVICTIONS, &disk.counters), "there is more");
        disk.counters.ssd_evictions.value()
    };
    assert_eq!(evicted, u64::from(MAX_EXCESS_EVICTIONS));
    store(&disk, 1000, 1, CLASS);
    // Closing finishes what the insertion left to the background.
    disk.close().unwrap();
    let max_entries = 512 * FRAME_BYTES as u64 / BYTES_PER_ENTRY / 100;
    assert!(u64::from(occupancy(&disk, CLASS).entries) <= max_entries, "{:?}", occupancy(&disk, CLASS));
}

#[test]
fn policies_apply_to_an_index_that_is_loaded_later() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("index");
    write_index(&path, 1 << 10);
    let bytes = (1 << 10) * FRAME_BYTES as u64;
    let disk = loading(bytes);
    let mut loaded = DiskState::empty(bytes, Eviction::default());
    read_checkpoint(&path, |entry| loaded.restore(entry)).unwrap();
    loaded.frames.finish_claims();
    // The policies change while the index is read.
    disk.set_policies(limited(0, 10));
    disk.finish_load(loaded);
    disk.close().unwrap();
    assert!(occupancy(&disk, 0).blocks <= bytes / BLOCK_BYTES as u64 / 10, "{:?}", occupancy(&disk, 0));
}

/// Its extents are not on the SSD yet, and each removal takes a place in a bounded list.
#[test]
fn removal_during_a_load_takes_no_place_in_the_list() {
    let disk = loading(1 << 30);
    let counters = Arc::new(Counters::default());
    let tiers = Arc::new(Tiers::new(
        RamTier::new(1 << 20, Eviction::default(), counters.clone()),
        StampTable::new(0, 1),
        Some(disk.clone()),
        disk.fingerprints(),
        counters,
        SystemClock::shared(),
    ));
    let info = ObjectInfo {
        size: 1 << 40,
        etag: ETag::from_text("e"),
        modified: Timestamp::from_millis(0),
        generation: Generation(1),
        metadata: Metadata::default(),
        checksums: Vec::new(),
        scope: ChecksumScope::FullObject,
        parts: None,
        version: None,
        stored: None,
    };
    let address = Address::parse("bucket", "key").unwrap();
    let head = Arc::new(Head::new(address, info, ContentId(1), None, Stamp::NEVER));
    let hash = tiers.fingerprints.key(&head.address);
    let content_use = tiers.use_content(&head, &tiers.changes.token(hash).unwrap());
    content_use.discard();
    content_use.add_filled(0);
    content_use.add_filled(9999);
    drop(content_use);
    disk.close().unwrap();
    let state = disk.state.lock();
    assert_eq!(state.removed_while_loading.as_ref().map(Vec::len), Some(0));
}

/// A tier of this size whose index is being loaded.
fn loading(bytes: u64) -> Arc<Disk> {
    let state =
        DiskState { removed_while_loading: Some(Vec::new()), ..DiskState::empty(0, Eviction::default()) };
    Disk::with_state(
        Arc::new(NullDevice),
        bytes,
        Eviction::default(),
        1,
        SystemClock::shared(),
        Arc::default(),
        state,
    )
    .unwrap()
}

/// Writes the index of a full SSD with this many frames.
fn write_index(path: &Path, frames: u32) {
    let header = CheckpointHeader { cache_id: 1, session: 1 };
    let mut writer = CheckpointWriter::create(path, &header).unwrap();
    let frames: Vec<u32> = (0..frames).collect();
    // In the order of the table, as a checkpoint is.
    for chunk in frames.chunks(MAX_CHUNK_ENTRIES) {
        let entry = |frame: &u32| IndexEntry {
            place: ((u64::from(*frame) << 32) / frames.len() as u64) << 32 | u64::from(*frame) | 1 << 31,
            space: Space::at_frame(*frame, WHOLE_FRAME),
            class: 0,
            kind: ExtentKind::Object,
        };
        writer.chunk(&chunk.iter().map(entry).collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
}

/// Loads the index of an SSD with this many frames, and prints how long it takes. Nothing waits for it meanwhile.
fn load(frames: u32) {
    let root = TempDir::new().unwrap();
    let path = root.path().join("index");
    write_index(&path, frames);
    let clock = SystemClock::shared();
    let bytes = u64::from(frames) * FRAME_BYTES as u64;
    let opened = clock.now();
    let disk =
        Disk::load(Arc::new(NullDevice), bytes, Eviction::default(), 1, clock.clone(), Arc::default(), &path)
            .unwrap();
    assert!(!disk.contains_head(7), "lookups do not wait");
    let bucket = disk.fingerprints().bucket(&tradewind_core::BucketName::new("bucket").unwrap());
    disk.remove(ExtentName::of_head(bucket));
    println!("serving after {:?}", clock.now() - opened);
    // Closing finishes the load.
    disk.close().unwrap();
    println!("{frames} extents loaded after {:?}", clock.now() - opened);
    assert!(disk.is_loaded());
    assert_eq!(disk.entries(), frames as usize);
}

#[test]
fn lookups_do_not_wait_for_the_index() {
    load(1 << 17);
}

/// 1 TiB. Run in release mode: `cargo test --release -p tradewind-cache -- --ignored index_of_16_million`.
#[test]
#[ignore = "takes a GiB of memory, and is meant for a release build"]
fn index_of_16_million_extents_loads() {
    load(1 << 24);
}

#[test]
fn blocks_of_the_largest_tier_have_numbers() {
    assert_eq!(frame_count(MAX_SSD_BYTES), (MAX_SSD_BYTES / FRAME_BYTES as u64) as u32);
    for bytes in [MAX_SSD_BYTES, 16 << 40, 17 << 40, u64::MAX] {
        let last = frame_count(bytes) - 1;
        let space = Space::at_frame(last, WHOLE_FRAME);
        let is_exact = u64::from(space.block) == u64::from(last) * FRAME_BLOCKS as u64;
        assert!(is_exact && space.block.checked_add(space.blocks()).is_some(), "{bytes} bytes");
    }
}
