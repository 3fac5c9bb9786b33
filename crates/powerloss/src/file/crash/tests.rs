use super::*;
use crate::content::PAGE_BYTES;

fn write(offset: u64, length: usize, byte: u8) -> FileChange {
    FileChange::Write { offset, data: vec![byte; length].into() }
}

fn content(length: usize, byte: u8) -> Content {
    let mut content = Content::default();
    content.write(0, &vec![byte; length]);
    content
}

fn lost(before: &Content, pending: &[FileChange], fates: &[ChangeFate]) -> (Content, Vec<u64>) {
    let survivors = last_survivors(pending, fates);
    let (settled, lost) = apply(before.clone(), pending, fates, &survivors);
    (settled, lost.into_iter().collect())
}

#[test]
fn truncated_blocks_show_anything_when_regained() {
    let pending = [FileChange::SetLen(1000), write(1000, 7192, 1)];
    let before = content(8192, 7);
    let (settled, sectors) = lost(&before, &pending, &[ChangeFate::Kept, ChangeFate::Hollow]);
    assert_eq!(settled.len(), 8192);
    assert_eq!(sectors, (8..16).collect::<Vec<_>>(), "the first block was retained");
    let (settled, sectors) = lost(&before, &pending, &[ChangeFate::Dropped, ChangeFate::Hollow]);
    assert_eq!((settled.read(1000, 1), sectors), (vec![7], vec![]), "nothing was freed");
}

#[test]
fn freed_unsynced_blocks_show_anything_when_regained() {
    let pending = [write(0, 8192, 1), FileChange::SetLen(0), write(0, 4096, 2)];
    let (settled, sectors) =
        lost(&Content::default(), &pending, &[ChangeFate::Kept, ChangeFate::Kept, ChangeFate::Hollow]);
    assert_eq!((settled.len(), sectors), (4096, (0..8).collect()));
}

#[test]
fn punched_blocks_show_anything_only_when_regained() {
    let punch = FileChange::Zero { offset: 100, length: 3 * PAGE_BYTES - 100 };
    let before = content(4 * PAGE_BYTES as usize, 7);
    let (_, sectors) =
        lost(&before, &[punch.clone(), write(PAGE_BYTES, 512, 1)], &[ChangeFate::Kept, ChangeFate::Dropped]);
    assert_eq!(sectors, [8]);
    let fates = [ChangeFate::Dropped, ChangeFate::Kept];
    let (settled, sectors) = lost(&content(100, 7), &[write(PAGE_BYTES, 512, 1), punch], &fates);
    assert_eq!((settled.read(PAGE_BYTES, 1).len(), sectors), (0, vec![]));
}

#[test]
fn range_truncated_again_is_a_hole() {
    let pending = [write(0, 8192, 1), FileChange::SetLen(0), FileChange::SetLen(8192)];
    let (settled, sectors) =
        lost(&Content::default(), &pending, &[ChangeFate::Hollow, ChangeFate::Kept, ChangeFate::Kept]);
    assert_eq!((settled.len(), sectors), (8192, vec![]));
}

#[test]
fn reallocated_blocks_show_zeros() {
    let allocate = FileChange::Allocate { offset: 0, length: 8192, keep_size: false };
    let pending = [FileChange::SetLen(0), allocate, write(0, 8192, 1)];
    let (_, sectors) =
        lost(&content(8192, 7), &pending, &[ChangeFate::Kept, ChangeFate::Kept, ChangeFate::Dropped]);
    assert_eq!(sectors, []);
}

/// A record removed by a truncation, with another one written over it and lost.
#[test]
fn truncated_bytes_may_show_in_the_new_tail() {
    let pending = [write(4096, 4096, 5), FileChange::SetLen(4096), write(4096, 4096, 1)];
    let before = content(4096, 7);
    let mut shown = 0;
    for seed in 0..3000 {
        let (settled, counts) =
            apply_fates(before.clone(), &pending, CrashMode::Random, &[], &mut Rng::new(seed));
        shown += u32::from(counts.stale_sectors > 0 && settled.read(4096, 4096) == [5; 4096]);
    }
    assert!(shown > 15, "{shown}");
}
