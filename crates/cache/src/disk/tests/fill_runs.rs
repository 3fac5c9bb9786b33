//! The space of fills: reserved frames are bounded and none is lost.

use super::*;

const FRAMES: usize = 256;
const LAST_BYTES: usize = 100;

/// Space that the index refers to, in blocks.
fn indexed_blocks(disk: &Disk) -> u64 {
    let state = disk.state.lock();
    let entries = (0..state.index.buckets()).flat_map(|bucket| state.index.bucket_entries(bucket));
    entries.map(|entry| u64::from(entry.space.blocks())).sum()
}

fn used_blocks(disk: &Disk) -> u64 {
    disk.state.lock().frames.used_blocks()
}

fn reserved_frames(disk: &Disk) -> u32 {
    disk.state.lock().reserved_frames
}

fn run_of(disk: &Arc<Disk>, extents: std::ops::Range<u32>) -> Arc<FillRun> {
    FillRun::new(disk, extents, LAST_BYTES).unwrap()
}

fn store_in(disk: &Arc<Disk>, run: &Arc<FillRun>, number: u32, blocks: usize) {
    disk.write_extent(StoreRequest { run: Some(run.clone()), ..request(sealed(number, blocks, CLASS)) });
}

#[test]
fn fills_of_several_threads_lose_and_share_no_block() {
    const THREADS: u32 = 4;
    const PER_FILL: u32 = 60;
    let disk = open(FRAMES);
    for round in 0..6 {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let first = (round * THREADS + thread) * PER_FILL;
                // Two threads write one fill.
                let run = run_of(&disk, first..first + PER_FILL);
                for part in 0..2 {
                    let (disk, run) = (&disk, run.clone());
                    scope.spawn(move || {
                        // Gaps leave frames of a window that is pushed out; every third fill is aborted.
                        let count = if thread % 3 == 0 { PER_FILL / 2 - 7 } else { PER_FILL };
                        for number in (part..count).step_by(2).filter(|number| number % 5 != 0) {
                            let blocks = if number % 7 == 0 { 4 } else { FRAME_BLOCKS };
                            store_in(disk, &run, first + number, blocks);
                        }
                    });
                }
            }
        });
        assert_eq!(used_blocks(&disk), indexed_blocks(&disk), "round {round}");
        assert_eq!(reserved_frames(&disk), 0);
    }
    assert!(disk.counters.ssd_evictions.value() > 0, "the SSD is full");
}

#[test]
fn window_that_is_pushed_out_frees_its_frames() {
    let disk = open(16 * FRAMES);
    let run = run_of(&disk, 0..100);
    for number in [0, 20, 40] {
        store_in(&disk, &run, number, FRAME_BLOCKS);
    }
    // The window of 0 is gone, and those of 20 and 40 have one extent each.
    assert_eq!(reserved_frames(&disk), 30);
    assert_eq!(used_blocks(&disk), indexed_blocks(&disk) + 30 * FRAME_BLOCKS as u64);
    drop(run);
    assert_eq!((reserved_frames(&disk), used_blocks(&disk)), (0, indexed_blocks(&disk)));
}

#[test]
fn fills_together_reserve_a_sixteenth_of_all_frames() {
    let disk = open(FRAMES);
    let runs: Vec<_> = (0..40).map(|run| run_of(&disk, run * 100..run * 100 + 100)).collect();
    for (number, run) in (0..).step_by(100).zip(&runs) {
        store_in(&disk, run, number, FRAME_BLOCKS);
        assert!(reserved_frames(&disk) <= FRAMES as u32 / 16, "{} frames", reserved_frames(&disk));
    }
    assert_eq!(disk.entries(), 40, "all are stored");
    drop(runs);
    assert_eq!(used_blocks(&disk), indexed_blocks(&disk));
}

#[test]
fn fill_reserves_what_the_write_budget_pays_for() {
    let disk = open(16 * FRAMES);
    // A burst of 1 MiB: 14 frames.
    disk.limit_writes(1);
    let run = run_of(&disk, 0..100);
    for number in 0..5 {
        store_in(&disk, &run, number, FRAME_BLOCKS);
    }
    // The first window has the 14 frames of the burst.
    assert_eq!(reserved_frames(&disk), 9);
    let other = run_of(&disk, 200..300);
    (200..205).for_each(|number| store_in(&disk, &other, number, FRAME_BLOCKS));
    drop((run, other));
    assert_eq!(used_blocks(&disk), indexed_blocks(&disk));
}

#[test]
fn first_extent_that_is_written_late_stays_with_its_neighbours() {
    let disk = open(16 * FRAMES);
    let run = run_of(&disk, 0..100);
    for number in [1, 0, 3, 2, 17, 16] {
        store_in(&disk, &run, number, FRAME_BLOCKS);
    }
    let state = disk.state.lock();
    let block = |number: u32| {
        let slot = state.index.find_extent(disk.fingerprints.name(data_key(number))).unwrap();
        state.index.get(slot).unwrap().space.block
    };
    for neighbours in [0..3, 16..17] {
        for number in neighbours {
            assert_eq!(block(number + 1), block(number) + FRAME_BLOCKS as u32, "{number}");
        }
    }
}
