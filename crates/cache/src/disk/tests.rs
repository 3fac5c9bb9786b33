//! The SSD tier with a large index.

use tempfile::TempDir;
use tradewind_core::SystemClock;

use super::*;

/// A device of any size that holds nothing.
struct NullDevice;

impl Device for NullDevice {
    fn read(&self, buffer: &mut [u8], _: u64) -> io::Result<()> {
        buffer.fill(0);
        Ok(())
    }

    fn write(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the index of a full SSD with this many frames.
fn write_index(path: &Path, frames: u32) {
    let header = CheckpointHeader { cache_id: 1, session: 1 };
    let mut writer = CheckpointWriter::create(path, &header).unwrap();
    let frames: Vec<u32> = (0..frames).collect();
    // In the order of the table, as a checkpoint is.
    for chunk in frames.chunks(MAX_CHUNK_ENTRIES) {
        let entry = |frame: &u32| IndexEntry {
            fingerprint: ((u64::from(*frame) << 32) / frames.len() as u64) << 32
                | u64::from(*frame)
                | 1 << 31,
            space: Space { block: frame << frames::MAX_ORDER, order: frames::MAX_ORDER },
            class: 0,
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
    let disk = Disk::load(Arc::new(NullDevice), bytes, 1, clock.clone(), Arc::default(), &path).unwrap();
    assert!(!disk.contains(7), "lookups do not wait");
    disk.remove(disk.fingerprints().bucket(&tradewind_core::BucketName::new("bucket").unwrap()));
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
