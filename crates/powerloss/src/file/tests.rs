use proptest::prelude::*;

use super::sectors::SECTOR_BYTES;
use super::*;
use crate::rng::Rng;

fn synced(data: &[u8]) -> FileState {
    let mut content = Content::default();
    content.write(0, data);
    FileState::durable(content)
}

fn crash(file: &FileState, mode: CrashMode, seed: u64) -> Content {
    file.clone().crash(mode, &[], &mut Rng::new(seed)).0
}

fn bytes(content: &Content) -> Vec<u8> {
    content.read(0, content.len() as usize)
}

#[test]
fn unsynced_write_is_lost_and_synced_write_stays() {
    let mut file = synced(b"old");
    file.write(0, b"new!");
    assert_eq!(bytes(file.content()), b"new!");
    assert_eq!(bytes(&crash(&file, CrashMode::DropAll, 0)), b"old");
    assert_eq!(bytes(&crash(&file, CrashMode::KeepAll, 0)), b"new!");
    file.sync(file.mark());
    assert_eq!(bytes(&crash(&file, CrashMode::DropAll, 0)), b"new!");
}

#[test]
fn sync_stops_at_its_mark() {
    let mut file = FileState::default();
    file.write(0, b"one");
    let mark = file.mark();
    file.write(3, b"two");
    file.sync(mark);
    assert_eq!(bytes(&crash(&file, CrashMode::DropAll, 0)), b"one");
    file.sync(file.mark());
    assert_eq!(bytes(&crash(&file, CrashMode::DropAll, 0)), b"onetwo");
}

#[test]
fn later_write_may_survive_an_earlier_one() {
    let mut file = synced(&[0; 8192]);
    file.write(0, &[1; 4096]);
    file.write(4096, &[2; 4096]);
    let reordered = (0..1000).any(|seed| {
        let content = crash(&file, CrashMode::Random, seed);
        content.read(0, 4096) == [0; 4096] && content.read(4096, 4096) == [2; 4096]
    });
    assert!(reordered);
}

#[test]
fn sector_preserves_the_order_of_its_writes() {
    let mut file = synced(&[0; 512]);
    file.write(0, &[1; 100]);
    file.write(100, &[2; 100]);
    for seed in 0..1000 {
        let content = crash(&file, CrashMode::Random, seed);
        assert!(content.read(100, 1) == [0] || content.read(0, 1) == [1], "seed {seed}");
    }
}

#[test]
fn writes_tear_at_sectors_only() {
    let mut file = synced(&[0; 4096]);
    file.write(0, &[9; 4096]);
    let mut torn = 0;
    let mut scattered = 0;
    for seed in 0..1000 {
        let content = crash(&file, CrashMode::Random, seed);
        let flags: Vec<bool> =
            (0..8).map(|i| content.read(i * SECTOR_BYTES, 512) == vec![9; SECTOR_BYTES as usize]).collect();
        for (i, whole) in flags.iter().enumerate() {
            let sector = content.read(i as u64 * SECTOR_BYTES, 512);
            assert!(*whole || sector == vec![0; SECTOR_BYTES as usize], "seed {seed}: sector {i} is mixed");
        }
        torn += u32::from(flags.iter().any(|&f| f) && !flags.iter().all(|&f| f));
        scattered += u32::from(flags.windows(2).any(|pair| !pair[0] && pair[1]));
    }
    assert!(torn > 50 && scattered > 10, "torn {torn}, scattered {scattered}");
}

#[test]
fn lost_sectors_of_new_space_are_zeros_or_garbage() {
    let mut file = FileState::default();
    file.write(0, &[1; 4096]);
    file.write(4096, &[2; 4096]);
    let (mut zeros, mut garbage) = (false, false);
    for seed in 0..1000 {
        let content = crash(&file, CrashMode::Random, seed);
        if content.len() == 8192 && content.read(4096, 4096) == [2; 4096] {
            let first = content.read(0, 512);
            zeros |= first == [0; 512];
            garbage |= first != [0; 512] && first != [1; 512];
        }
    }
    assert!(zeros && garbage);
}

#[test]
fn length_may_be_durable_without_its_bytes() {
    let mut file = synced(&[7; 1000]);
    file.write(1000, &[1; 6000]);
    let (mut zeros, mut garbage) = (0, 0);
    for seed in 0..1000 {
        let (content, fates) = file.clone().crash(CrashMode::Random, &[], &mut Rng::new(seed));
        if fates.hollow > 0 {
            assert_eq!(content.len(), 7000, "seed {seed}");
            assert_eq!(content.read(0, 1000), [7; 1000], "seed {seed}");
            let tail = content.read(1000, 6000);
            zeros += u32::from(tail.iter().all(|&byte| byte == 0));
            garbage += u32::from(tail.iter().any(|&byte| byte != 0));
        }
    }
    assert!(zeros > 50 && garbage > 20, "zeros {zeros}, garbage {garbage}");
}

#[test]
fn write_inside_a_file_is_never_hollow() {
    let mut file = synced(&[7; 8192]);
    file.write(0, &[1; 8192]);
    for seed in 0..1000 {
        assert_eq!(
            file.clone().crash(CrashMode::Random, &[], &mut Rng::new(seed)).1.hollow,
            0,
            "seed {seed}"
        );
    }
}

#[test]
fn allocated_space_never_shows_garbage() {
    let mut file = FileState::default();
    file.allocate(0, 1 << 16, false);
    file.sync(file.mark());
    file.write(0, &[1; 1 << 16]);
    for seed in 0..300 {
        let content = crash(&file, CrashMode::Random, seed);
        assert_eq!(content.len(), 1 << 16);
        assert!(bytes(&content).iter().all(|&byte| byte <= 1), "seed {seed}");
    }
}

#[test]
fn dropped_changes_are_visible_but_never_durable() {
    let mut file = synced(&[0; 8192]);
    file.write(0, &[1; 512]);
    file.drop_pending(file.mark());
    file.sync(file.mark());
    assert_eq!(file.content().read(0, 1), [1]);
    assert_eq!(crash(&file, CrashMode::KeepAll, 0).read(0, 1), [0]);
}

#[test]
fn a_failed_sync_may_have_written_some_sectors() {
    let mut file = synced(&[0; 8192]);
    file.write(0, &[1; 8192]);
    file.drop_pending(file.mark());
    file.sync(file.mark());
    assert_eq!(bytes(&crash(&file, CrashMode::DropAll, 0)), [0; 8192]);
    let torn = |file: &FileState, at: u64| {
        let page = |seed| crash(file, CrashMode::Random, seed).read(at, 4096);
        (0..1000).map(page).filter(|page| page.contains(&0) && page.contains(&1)).count()
    };
    assert!(torn(&file, 0) > 50 && torn(&file, 4096) > 50);
    // Bytes written over them and synced persist.
    file.write(100, &[2; 10]);
    file.sync(file.mark());
    let first = [vec![1; 100], vec![2; 10], vec![1; 3986]].concat();
    assert!(
        (0..1000).all(|seed| crash(&file, CrashMode::Random, seed).read(0, 4096) == first),
        "the page as seen"
    );
    assert!(torn(&file, 4096) > 50);
    file.set_len(100);
    file.sync(file.mark());
    file.set_len(8192);
    file.sync(file.mark());
    let cut = [vec![1; 100], vec![0; 8092]].concat();
    assert!((0..1000).all(|seed| bytes(&crash(&file, CrashMode::Random, seed)) == cut));
}

#[test]
fn failed_sync_leaves_later_changes_pending() {
    let mut file = synced(&[0; 12_288]);
    file.write(0, &[1; 4096]);
    file.set_len(12_000);
    let mark = file.mark();
    file.write(4096, &[2; 512]);
    let later = file.mark();
    file.write(8192, &[3; 512]);
    file.drop_pending(mark);
    assert_eq!(file.pending_changes(), 3, "a length is not part of a write-back");
    file.sync(later);
    let content = crash(&file, CrashMode::DropAll, 0);
    assert_eq!((content.len(), content.read(4096, 512)), (12_000, vec![2; 512]));
    assert_eq!((content.read(0, 1), content.read(8192, 1)), (vec![0], vec![0]));
    file.sync(file.mark());
    assert_eq!(crash(&file, CrashMode::DropAll, 0).read(8192, 512), [3; 512]);
}

#[test]
fn rewritten_page_includes_failed_sectors() {
    let mut file = synced(&[0; 4096]);
    file.write(0, &[1; 512]);
    file.drop_pending(file.mark());
    file.write(512, &[2; 512]);
    let mark = file.mark();
    file.write(1024, &[3; 512]);
    file.sync(mark);
    let content = crash(&file, CrashMode::DropAll, 0);
    assert_eq!(
        (content.read(0, 1), content.read(512, 1), content.read(1024, 1)),
        (vec![1], vec![2], vec![0])
    );
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Zero(u64, u64),
    Allocate(u64, u64, bool),
    Sync,
    PartialSync(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let offset = 0..20_000_u64;
    prop_oneof![
        6 => (offset.clone(), 1..6000_usize, 1..=255_u8).prop_map(|(at, n, b)| Step::Write(at, vec![b; n])),
        2 => (0..30_000_u64).prop_map(Step::SetLen),
        1 => (offset.clone(), 0..9000_u64).prop_map(|(at, n)| Step::Zero(at, n)),
        1 => (offset, 1..9000_u64, any::<bool>()).prop_map(|(at, n, keep)| Step::Allocate(at, n, keep)),
        1 => Just(Step::Sync),
        1 => (0..4_u64).prop_map(Step::PartialSync),
    ]
}

/// Runs the steps on a file and on plain vectors; returns the file, its synced bytes, and its volatile content after
/// the sync and after each change since.
fn run(steps: &[Step]) -> (FileState, Vec<u8>, Vec<Vec<u8>>) {
    let mut file = FileState::default();
    let mut plain: Vec<u8> = Vec::new();
    let mut history = vec![Vec::new()];
    for step in steps {
        match step {
            Step::Write(at, data) => {
                let end = *at as usize + data.len();
                plain.resize(plain.len().max(end), 0);
                plain[*at as usize..end].copy_from_slice(data);
                file.write(*at, data);
            }
            Step::SetLen(len) => {
                plain.resize(*len as usize, 0);
                file.set_len(*len);
            }
            Step::Zero(at, n) => {
                let end = plain.len().min((at + n) as usize);
                if (*at as usize) < end {
                    plain[*at as usize..end].fill(0);
                }
                file.zero(*at, *n);
            }
            Step::Allocate(at, n, keep_size) => {
                if !keep_size {
                    plain.resize(plain.len().max((at + n) as usize), 0);
                }
                file.allocate(*at, *n, *keep_size);
            }
            Step::Sync => {
                file.sync(file.mark());
                history = vec![plain.clone()];
                continue;
            }
            Step::PartialSync(back) => {
                let reach = (history.len() as u64 - 1).saturating_sub(*back);
                file.sync(file.mark() - (history.len() as u64 - 1) + reach);
                history.drain(..reach as usize);
                continue;
            }
        }
        assert_eq!(bytes(file.content()), plain);
        history.push(plain.clone());
    }
    let durable = history[0].clone();
    (file, durable, history)
}

proptest! {
    #[test]
    fn drop_all_is_last_sync_and_keep_all_is_volatile(steps in prop::collection::vec(step(), 0..25)) {
        let (file, durable, history) = run(&steps);
        prop_assert_eq!(bytes(&crash(&file, CrashMode::DropAll, 1)), durable);
        prop_assert_eq!(bytes(&crash(&file, CrashMode::KeepAll, 1)), history.last().cloned().unwrap_or_default());
    }

    /// Each surviving sector equals the disk's or the page cache's at some time.
    #[test]
    fn every_sector_is_a_snapshot(steps in prop::collection::vec(step(), 0..25), seed: u64) {
        let (file, _, history) = run(&steps);
        let (content, fates) = file.clone().crash(CrashMode::Random, &[], &mut Rng::new(seed));
        prop_assert_eq!(fates.kept + fates.dropped + fates.torn + fates.hollow, file.pending_changes() as u64);
        if fates.garbage_sectors > 0 {
            return Ok(());
        }
        let max_len = history.iter().map(Vec::len).max().unwrap_or(0) as u64;
        prop_assert!(content.len() <= max_len);
        for sector in 0..content.len().div_ceil(SECTOR_BYTES) {
            let found = content.read(sector * SECTOR_BYTES, SECTOR_BYTES as usize);
            let is_snapshot = history.iter().any(|moment| {
                let start = moment.len().min((sector * SECTOR_BYTES) as usize);
                let mut held = moment[start..moment.len().min(start + SECTOR_BYTES as usize)].to_vec();
                // A length change without the bytes cuts the sector or shows zeros past it.
                held.resize(SECTOR_BYTES as usize, 0);
                let cut = cut(&history, sector);
                found.iter().zip(&held).enumerate().all(|(i, (a, b))| a == b || (*a == 0 && i >= cut))
            });
            prop_assert!(is_snapshot, "sector {} of seed {} was never seen", sector, seed);
        }
    }
}

/// The first byte of a sector that any intermediate length cut off.
fn cut(history: &[Vec<u8>], sector: u64) -> usize {
    let start = (sector * SECTOR_BYTES) as usize;
    history.iter().map(|moment| moment.len().saturating_sub(start)).min().unwrap_or(0)
}
