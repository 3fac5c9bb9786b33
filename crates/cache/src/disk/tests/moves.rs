//! Changes of an extent at each step of its move: a replaced object must never return.

use std::sync::Weak;

use super::*;

/// The steps of a move: the read that finds the extents, the read that is copied, and the write.
const STEPS: usize = 3;

/// A device that replaces the head during one access to the frame.
struct ReplacingDevice {
    memory: MemoryDevice,
    disk: OnceLock<Weak<Disk>>,
    /// Accesses until the replacement; none if 0.
    countdown: AtomicUsize,
    change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Removal,
    /// A removal, and a new object in the same place.
    Replacement,
    /// Two of them, so that the second finds the blocks of the first.
    TwoReplacements,
}

const ADDRESS: u64 = 77;
const BLOCKS: usize = 4;

/// A head of the address with this byte in its payload.
fn head(byte: u8) -> SealedExtent {
    let payload = vec![byte; BLOCKS * BLOCK_BYTES - HEADER_BYTES];
    let mut buffer = ExtentBuffer::new(payload.len());
    buffer.append(&payload);
    buffer.seal(1, ExtentKey::Head(ADDRESS), CLASS)
}

impl ReplacingDevice {
    fn step(&self) {
        let left = self.countdown.load(Ordering::SeqCst);
        if left == 0 {
            return;
        }
        self.countdown.store(left - 1, Ordering::SeqCst);
        if left > 1 {
            return;
        }
        let disk = self.disk.get().unwrap().upgrade().unwrap();
        disk.remove(ExtentName::of_head(ADDRESS));
        let replacements = match self.change {
            Change::Removal => 0,
            Change::Replacement => 1,
            Change::TwoReplacements => 2,
        };
        (0..replacements).for_each(|number| disk.write_extent(request(head(2 + number))));
    }
}

impl Device for ReplacingDevice {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.memory.read(buffer, offset);
        self.step();
        read
    }

    fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.memory.read_vectored(buffers, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.step();
        self.memory.write(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }
}

#[test]
fn object_replaced_during_its_move_never_returns() {
    for change in [Change::Removal, Change::Replacement, Change::TwoReplacements] {
        for step in 1..=STEPS {
            let frames = 3;
            let device = Arc::new(ReplacingDevice {
                memory: MemoryDevice::new(frames * FRAME_BYTES),
                disk: OnceLock::new(),
                countdown: AtomicUsize::new(0),
                change,
            });
            let bytes = (frames * FRAME_BYTES) as u64;
            let disk = Disk::new(
                device.clone(),
                bytes,
                Eviction::default(),
                1,
                SystemClock::shared(),
                Arc::default(),
            );
            let disk = disk.unwrap();
            device.disk.set(Arc::downgrade(&disk)).unwrap();
            disk.write_extent(request(head(1)));
            assert_eq!(disk.read_blocking(ExtentKey::Head(ADDRESS)).unwrap()[0], 1);
            device.countdown.store(step, Ordering::SeqCst);
            disk.clear_in_frame(0, WHOLE_FRAME);
            assert_eq!(device.countdown.load(Ordering::SeqCst), 0, "{change:?} in step {step}");
            let expected = match change {
                Change::Removal => None,
                Change::Replacement => Some(2),
                Change::TwoReplacements => Some(3),
            };
            let found = disk.read_blocking(ExtentKey::Head(ADDRESS)).map(|payload| payload[0]);
            assert_eq!(found, expected, "{change:?} in step {step}");
            let used = disk.state.lock().frames.used_blocks();
            let blocks = if expected.is_some() { BLOCKS as u64 } else { 0 };
            assert_eq!(used, blocks, "{change:?} in step {step}: no block is lost");
        }
    }
}
