//! What a power cut makes of a file's pending changes.
//!
//! The disk writes 512-byte sectors whole and in any order. So each sector ends as it was on disk or
//! as it looked after one of the pending changes: a later write may survive while an earlier one to
//! *another* sector is lost, but within a sector it brings the earlier bytes along, because the page
//! cache held them together. Lengths follow the surviving changes. Sectors that were lost in space
//! never allocated before read as zeros or, for some files, as stale garbage.

use std::collections::{BTreeMap, BTreeSet};

use super::change::Change;
use crate::content::Content;
use crate::mode::Mode;
use crate::rng::Rng;

/// Bytes that a disk writes as one.
pub const SECTOR: u64 = 512;

/// How the pending changes of one file ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileFates {
    /// Changes wholly on disk.
    pub kept: u64,
    /// Changes lost.
    pub dropped: u64,
    /// Writes of which some sectors are on disk.
    pub torn: u64,
    /// Lost sectors that read as garbage.
    pub garbage_sectors: u64,
}

#[derive(Debug, Clone)]
enum Fate {
    Kept,
    Dropped,
    /// One flag a sector of the write; whether the length covers the whole write all the same.
    Torn {
        sectors: Vec<bool>,
        full_length: bool,
    },
}

/// Applies the survivors of `pending` to the durable `content`.
pub fn settle(content: Content, pending: &[Change], mode: Mode, rng: &mut Rng) -> (Content, FileFates) {
    let fates = match mode {
        Mode::DropAll => vec![Fate::Dropped; pending.len()],
        Mode::KeepAll => vec![Fate::Kept; pending.len()],
        Mode::Random => draw(pending, rng),
    };
    let mut counts = FileFates::default();
    for fate in &fates {
        match fate {
            Fate::Kept => counts.kept += 1,
            Fate::Dropped => counts.dropped += 1,
            Fate::Torn { .. } => counts.torn += 1,
        }
    }
    let survivors = last_survivors(pending, &fates);
    let (mut settled, lost) = apply(content.clone(), pending, &fates, &survivors);
    if mode == Mode::Random && rng.chance(25) {
        counts.garbage_sectors = spoil(&mut settled, &content, &lost, rng);
    }
    (settled, counts)
}

/// Draws a fate for each change: an ordered disk that stopped somewhere, or independent ones with a
/// chance of survival of the file's own.
fn draw(pending: &[Change], rng: &mut Rng) -> Vec<Fate> {
    if rng.chance(20) {
        let stop = rng.below(pending.len() as u64 + 1) as usize;
        return (0..pending.len())
            .map(|i| match i.cmp(&stop) {
                std::cmp::Ordering::Less => Fate::Kept,
                std::cmp::Ordering::Equal => tear(&pending[i], rng),
                std::cmp::Ordering::Greater => Fate::Dropped,
            })
            .collect();
    }
    let keep = rng.below(101);
    let torn = rng.below(51);
    pending
        .iter()
        .map(|change| match change {
            Change::Write { .. } if rng.chance(torn) => tear(change, rng),
            _ if rng.chance(keep) => Fate::Kept,
            _ => Fate::Dropped,
        })
        .collect()
}

/// Tears a write to a prefix or to any subset of its sectors; other changes are lost.
fn tear(change: &Change, rng: &mut Rng) -> Fate {
    let Change::Write { offset, data } = change else { return Fate::Dropped };
    let count = sectors(*offset, data.len() as u64).count();
    let sectors: Vec<bool> = if rng.chance(50) {
        let prefix = rng.below(count as u64 + 1) as usize;
        (0..count).map(|i| i < prefix).collect()
    } else {
        (0..count).map(|_| rng.chance(50)).collect()
    };
    if sectors.iter().all(|&survives| survives) {
        Fate::Kept
    } else if sectors.iter().any(|&survives| survives) {
        Fate::Torn { sectors, full_length: rng.chance(50) }
    } else {
        Fate::Dropped
    }
}

/// For each sector that reached the disk, the last change that it shows.
fn last_survivors(pending: &[Change], fates: &[Fate]) -> BTreeMap<u64, usize> {
    let mut survivors = BTreeMap::new();
    for (i, (change, fate)) in pending.iter().zip(fates).enumerate() {
        match (change, fate) {
            (Change::Write { offset, data }, Fate::Kept) => {
                survivors.extend(sectors(*offset, data.len() as u64).map(|sector| (sector, i)));
            }
            (Change::Write { offset, data }, Fate::Torn { sectors: flags, .. }) => {
                let written =
                    sectors(*offset, data.len() as u64).zip(flags).filter(|(_, survives)| **survives);
                survivors.extend(written.map(|(sector, _)| (sector, i)));
            }
            // A zeroed range is freed whole, but the sectors at its edges are written.
            (Change::Zero { offset, length }, Fate::Kept) if *length > 0 => {
                survivors.insert(offset / SECTOR, i);
                survivors.insert((offset + length - 1) / SECTOR, i);
            }
            _ => {}
        }
    }
    survivors
}

/// Applies what survived, in order, and returns the content with the sectors that were lost.
fn apply(
    mut content: Content,
    pending: &[Change],
    fates: &[Fate],
    survivors: &BTreeMap<u64, usize>,
) -> (Content, BTreeSet<u64>) {
    let mut len = content.len();
    let mut lost = BTreeSet::new();
    for (i, (change, fate)) in pending.iter().zip(fates).enumerate() {
        let kept = matches!(fate, Fate::Kept);
        match change {
            Change::Write { offset, data } => {
                for sector in sectors(*offset, data.len() as u64) {
                    let (start, stop) = overlap(sector, *offset, data.len() as u64);
                    match survivors.get(&sector) {
                        Some(&last) if last >= i => {
                            content.patch(start, &data[(start - offset) as usize..(stop - offset) as usize]);
                        }
                        Some(_) => {}
                        None => {
                            lost.insert(sector);
                        }
                    }
                }
                len = len.max(covered(fate, *offset, data.len() as u64));
            }
            Change::SetLen(new) => {
                if kept {
                    content.set_len(*new);
                    len = *new;
                } else {
                    zero_in_survivors(&mut content, survivors, i, *new, u64::MAX - new);
                }
            }
            Change::Zero { offset, length } => {
                if kept {
                    content.zero(*offset, *length);
                } else {
                    zero_in_survivors(&mut content, survivors, i, *offset, *length);
                }
            }
            Change::Allocate { offset, length, keep_size } => {
                if kept {
                    content.allocate(*offset, *length);
                    len = if *keep_size { len } else { len.max(offset + length) };
                }
            }
        }
    }
    content.set_len(len);
    (content, lost)
}

/// Up to where a write with this fate pushes the length.
fn covered(fate: &Fate, offset: u64, length: u64) -> u64 {
    match fate {
        _ if length == 0 => 0,
        Fate::Dropped => 0,
        Fate::Kept | Fate::Torn { full_length: true, .. } => offset + length,
        Fate::Torn { sectors: flags, full_length: false } => sectors(offset, length)
            .zip(flags)
            .filter(|(_, survives)| **survives)
            .map(|(sector, _)| overlap(sector, offset, length).1)
            .max()
            .unwrap_or(0),
    }
}

/// Change `i` zeroed a range and was itself lost: sectors that show a later change show the zeros too.
fn zero_in_survivors(
    content: &mut Content,
    survivors: &BTreeMap<u64, usize>,
    i: usize,
    offset: u64,
    length: u64,
) {
    if length == 0 {
        return;
    }
    for (&sector, _) in
        survivors.range(offset / SECTOR..=(offset + length - 1) / SECTOR).filter(|&(_, &last)| last >= i)
    {
        let (start, stop) = overlap(sector, offset, length);
        content.patch(start, &[0; SECTOR as usize][..(stop - start) as usize]);
    }
}

/// Fills lost sectors in space that was not allocated on disk before with garbage.
fn spoil(settled: &mut Content, before: &Content, lost: &BTreeSet<u64>, rng: &mut Rng) -> u64 {
    let mut spoiled = 0;
    for &sector in lost {
        let start = sector * SECTOR;
        let stop = (start + SECTOR).min(settled.len());
        if start < stop && !before.is_allocated(start) {
            let mut garbage = [0; SECTOR as usize];
            rng.fill(&mut garbage);
            settled.patch(start, &garbage[..(stop - start) as usize]);
            spoiled += 1;
        }
    }
    spoiled
}

/// The sectors that a range touches.
fn sectors(offset: u64, length: u64) -> std::ops::Range<u64> {
    if length == 0 { 0..0 } else { offset / SECTOR..(offset + length).div_ceil(SECTOR) }
}

/// The part of a range that lies in a sector, as start and end offsets.
fn overlap(sector: u64, offset: u64, length: u64) -> (u64, u64) {
    ((sector * SECTOR).max(offset), ((sector + 1) * SECTOR).min(offset + length))
}
