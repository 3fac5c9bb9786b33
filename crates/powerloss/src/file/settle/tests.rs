use super::*;
use crate::content::PAGE;

fn write(offset: u64, length: usize, byte: u8) -> Change {
    Change::Write { offset, data: vec![byte; length].into() }
}

fn content(length: usize, byte: u8) -> Content {
    let mut content = Content::default();
    content.write(0, &vec![byte; length]);
    content
}

fn lost(before: &Content, pending: &[Change], fates: &[Fate]) -> (Content, Vec<u64>) {
    let survivors = last_survivors(pending, fates);
    let (settled, lost) = apply(before.clone(), pending, fates, &survivors);
    (settled, lost.into_iter().collect())
}

#[test]
fn truncated_blocks_show_anything_when_regained() {
    let pending = [Change::SetLen(1000), write(1000, 7192, 1)];
    let before = content(8192, 7);
    let (settled, sectors) = lost(&before, &pending, &[Fate::Kept, Fate::Hollow]);
    assert_eq!(settled.len(), 8192);
    assert_eq!(sectors, (8..16).collect::<Vec<_>>(), "the first block was retained");
    let (settled, sectors) = lost(&before, &pending, &[Fate::Dropped, Fate::Hollow]);
    assert_eq!((settled.read(1000, 1), sectors), (vec![7], vec![]), "nothing was freed");
}

#[test]
fn freed_unsynced_blocks_show_anything_when_regained() {
    let pending = [write(0, 8192, 1), Change::SetLen(0), write(0, 4096, 2)];
    let (settled, sectors) = lost(&Content::default(), &pending, &[Fate::Kept, Fate::Kept, Fate::Hollow]);
    assert_eq!((settled.len(), sectors), (4096, (0..8).collect()));
}

#[test]
fn punched_blocks_show_anything_only_when_regained() {
    let punch = Change::Zero { offset: 100, length: 3 * PAGE - 100 };
    let before = content(4 * PAGE as usize, 7);
    let (_, sectors) = lost(&before, &[punch.clone(), write(PAGE, 512, 1)], &[Fate::Kept, Fate::Dropped]);
    assert_eq!(sectors, [8]);
    let fates = [Fate::Dropped, Fate::Kept];
    let (settled, sectors) = lost(&content(100, 7), &[write(PAGE, 512, 1), punch], &fates);
    assert_eq!((settled.read(PAGE, 1).len(), sectors), (0, vec![]));
}

#[test]
fn range_truncated_again_is_a_hole() {
    let pending = [write(0, 8192, 1), Change::SetLen(0), Change::SetLen(8192)];
    let (settled, sectors) = lost(&Content::default(), &pending, &[Fate::Hollow, Fate::Kept, Fate::Kept]);
    assert_eq!((settled.len(), sectors), (8192, vec![]));
}

#[test]
fn reallocated_blocks_show_zeros() {
    let allocate = Change::Allocate { offset: 0, length: 8192, keep_size: false };
    let pending = [Change::SetLen(0), allocate, write(0, 8192, 1)];
    let (_, sectors) = lost(&content(8192, 7), &pending, &[Fate::Kept, Fate::Kept, Fate::Dropped]);
    assert_eq!(sectors, []);
}

/// A record removed by a truncation, with another one written over it and lost.
#[test]
fn truncated_bytes_may_show_in_the_new_tail() {
    let pending = [write(4096, 4096, 5), Change::SetLen(4096), write(4096, 4096, 1)];
    let before = content(4096, 7);
    let mut shown = 0;
    for seed in 0..3000 {
        let (settled, counts) = settle(before.clone(), &pending, Mode::Random, &[], &mut Rng::new(seed));
        shown += u32::from(counts.stale_sectors > 0 && settled.read(4096, 4096) == [5; 4096]);
    }
    assert!(shown > 15, "{shown}");
}
