//! The result of a power cut on a file: the pending changes applied according to their fates.
//!
//! The disk writes 512-byte sectors atomically and in any order. So each sector ends in its state on disk or in its
//! state after one of the pending changes. A later write may survive while an earlier one to *another* sector is lost.
//! Within a sector it includes the earlier bytes, because the page cache held them together. Lost sectors in new space
//! (`space`) read as zeros or, for some files, as the blocks' previous contents (`garbage`).

use std::collections::{BTreeMap, BTreeSet};

use super::change::{FileChange, contents_before_frees};
use super::fate::{ChangeFate, FileFates, draw_fates};
use super::garbage::{Donors, fill_garbage};
use super::sectors::{SECTOR_BYTES, overlap, sectors};
use super::space::BlockSpace;
use crate::content::Content;
use crate::mode::CrashMode;
use crate::rng::Rng;

/// Applies the survivors of `pending` to the durable `content`. Unwritten new space may show bytes of `others`, which
/// are removed files of the same kind.
pub fn apply_fates(
    content: Content,
    pending: &[FileChange],
    mode: CrashMode,
    others: &[Content],
    rng: &mut Rng,
) -> (Content, FileFates) {
    let fates = match mode {
        CrashMode::DropAll => vec![ChangeFate::Dropped; pending.len()],
        CrashMode::KeepAll => vec![ChangeFate::Kept; pending.len()],
        CrashMode::Random => draw_fates(content.len(), pending, rng),
    };
    let mut counts = FileFates::count(&fates);
    let is_kept = fates.iter().map(|fate| matches!(fate, ChangeFate::Kept));
    let own = contents_before_frees(&content, pending.iter().zip(is_kept));
    let survivors = last_survivors(pending, &fates);
    let (mut settled, lost) = apply(content, pending, &fates, &survivors);
    if mode == CrashMode::Random && rng.chance(40) {
        let spoiled = fill_garbage(&mut settled, &lost, Donors { own: &own, others }, rng);
        counts.garbage_sectors = spoiled.noise + spoiled.stale;
        counts.stale_sectors = spoiled.stale;
    }
    (settled, counts)
}

/// The last change visible in each sector that reached the disk.
fn last_survivors(pending: &[FileChange], fates: &[ChangeFate]) -> BTreeMap<u64, usize> {
    let mut survivors = BTreeMap::new();
    for (i, (change, fate)) in pending.iter().zip(fates).enumerate() {
        match (change, fate) {
            (FileChange::Write { offset, data }, ChangeFate::Kept) => {
                survivors.extend(sectors(*offset, data.len() as u64).map(|sector| (sector, i)));
            }
            (FileChange::Write { offset, data }, ChangeFate::Torn { sectors: flags, .. }) => {
                let written =
                    sectors(*offset, data.len() as u64).zip(flags).filter(|(_, survives)| **survives);
                survivors.extend(written.map(|(sector, _)| (sector, i)));
            }
            // A zeroed range is freed, but the sectors at its edges are written.
            (FileChange::Zero { offset, length }, ChangeFate::Kept) if *length > 0 => {
                survivors.insert(offset / SECTOR_BYTES, i);
                survivors.insert((offset + length - 1) / SECTOR_BYTES, i);
            }
            _ => {}
        }
    }
    survivors
}

/// Applies the survivors in order, and returns the content with the lost sectors of never-written blocks.
fn apply(
    mut content: Content,
    pending: &[FileChange],
    fates: &[ChangeFate],
    survivors: &BTreeMap<u64, usize>,
) -> (Content, BTreeSet<u64>) {
    let mut len = content.len();
    let mut space = BlockSpace::new(&content);
    for (i, (change, fate)) in pending.iter().zip(fates).enumerate() {
        let is_kept = matches!(fate, ChangeFate::Kept);
        match change {
            FileChange::Write { offset, data } => {
                for sector in sectors(*offset, data.len() as u64) {
                    let (start, stop) = overlap(sector, *offset, data.len() as u64);
                    match survivors.get(&sector) {
                        Some(&last) if last >= i => {
                            content.patch(start, &data[(start - offset) as usize..(stop - offset) as usize]);
                        }
                        survivor => space.lose(sector, survivor.copied()),
                    }
                }
                len = len.max(covered(fate, *offset, data.len() as u64));
            }
            FileChange::SetLen(new) => {
                if is_kept {
                    content.set_len(*new);
                    len = *new;
                    space.truncate(i, *new);
                } else {
                    zero_in_survivors(&mut content, survivors, i, *new, u64::MAX - new);
                }
            }
            FileChange::Zero { offset, length } => {
                if is_kept {
                    content.zero(*offset, *length);
                    space.punch(i, *offset, *length);
                } else {
                    zero_in_survivors(&mut content, survivors, i, *offset, *length);
                }
            }
            FileChange::Allocate { offset, length, keep_size } => {
                if is_kept {
                    content.allocate(*offset, *length);
                    space.allocate(*offset, *length);
                    len = if *keep_size { len } else { len.max(offset + length) };
                }
            }
        }
    }
    content.set_len(len);
    (content, space.into_lost())
}

/// The length required by a write with this fate.
fn covered(fate: &ChangeFate, offset: u64, length: u64) -> u64 {
    match fate {
        _ if length == 0 => 0,
        ChangeFate::Dropped => 0,
        ChangeFate::Kept | ChangeFate::Hollow | ChangeFate::Torn { full_length: true, .. } => offset + length,
        ChangeFate::Torn { sectors: flags, full_length: false } => sectors(offset, length)
            .zip(flags)
            .filter(|(_, survives)| **survives)
            .map(|(sector, _)| overlap(sector, offset, length).1)
            .max()
            .unwrap_or(0),
    }
}

/// Applies the zeros of the lost change `i` to sectors that show a later change, since those include the zeros.
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
    for (&sector, _) in survivors
        .range(offset / SECTOR_BYTES..=(offset + length - 1) / SECTOR_BYTES)
        .filter(|&(_, &last)| last >= i)
    {
        let (start, stop) = overlap(sector, offset, length);
        content.patch(start, &[0; SECTOR_BYTES as usize][..(stop - start) as usize]);
    }
}

#[cfg(test)]
mod tests;
