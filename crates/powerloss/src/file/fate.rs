//! The possible effects of a power cut on each pending change of a file, and their probabilities.
//!
//! A disk writes data and lengths in any order: bytes may be lost although the length covers them (delayed
//! allocation, `data=writeback`), or be written partly. Only a write that extended the file can leave its length
//! alone; inside the file that equals a lost write.

use super::change::FileChange;
use super::sectors::sectors;
use crate::rng::Rng;

/// Counts of the fates of a file's pending changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileFates {
    /// Changes completely on disk.
    pub kept: u64,
    /// Changes lost.
    pub dropped: u64,
    /// Writes with only some sectors on disk.
    pub torn: u64,
    /// Writes with their length but none of their bytes on disk.
    pub hollow: u64,
    /// Lost sectors that read as garbage.
    pub garbage_sectors: u64,
    /// Those of them with bytes of a removed or truncated file.
    pub stale_sectors: u64,
}

impl FileFates {
    /// Counts fates; sector counts stay zero.
    pub fn count(fates: &[ChangeFate]) -> Self {
        let mut counts = Self::default();
        for fate in fates {
            match fate {
                ChangeFate::Kept => counts.kept += 1,
                ChangeFate::Dropped => counts.dropped += 1,
                ChangeFate::Torn { .. } => counts.torn += 1,
                ChangeFate::Hollow => counts.hollow += 1,
            }
        }
        counts
    }

    /// Adds the counts of another file.
    pub fn add(&mut self, other: &Self) {
        self.kept += other.kept;
        self.dropped += other.dropped;
        self.torn += other.torn;
        self.hollow += other.hollow;
        self.garbage_sectors += other.garbage_sectors;
        self.stale_sectors += other.stale_sectors;
    }
}

/// The fate of one change.
#[derive(Debug, Clone)]
pub enum ChangeFate {
    Kept,
    Dropped,
    /// One flag per sector of the write; `full_length` is set if the length nevertheless covers the whole write.
    Torn {
        sectors: Vec<bool>,
        full_length: bool,
    },
    /// The length of a write without its bytes.
    Hollow,
}

/// Draws a fate for each change of a file of `len` bytes: either an ordered disk that stopped at some change, or
/// independent fates with a survival probability drawn per file. For some files the length is ahead of the bytes up
/// to some change.
pub fn draw_fates(len: u64, pending: &[FileChange], rng: &mut Rng) -> Vec<ChangeFate> {
    let mut fates = if rng.chance(20) { ordered(pending, rng) } else { independent(pending, rng) };
    let ahead = match rng.below(100) {
        0..15 => pending.len(),
        15..30 => rng.below(pending.len() as u64 + 1) as usize,
        _ => 0,
    };
    for (i, (fate, grows)) in fates.iter_mut().zip(growing(len, pending)).enumerate() {
        match fate {
            ChangeFate::Dropped if grows && i < ahead => *fate = ChangeFate::Hollow,
            ChangeFate::Torn { full_length, .. } if i < ahead => *full_length = true,
            ChangeFate::Hollow if !grows => *fate = ChangeFate::Dropped,
            _ => {}
        }
    }
    fates
}

fn ordered(pending: &[FileChange], rng: &mut Rng) -> Vec<ChangeFate> {
    let stop = rng.below(pending.len() as u64 + 1) as usize;
    (0..pending.len())
        .map(|i| match i.cmp(&stop) {
            std::cmp::Ordering::Less => ChangeFate::Kept,
            std::cmp::Ordering::Equal => tear(&pending[i], rng),
            std::cmp::Ordering::Greater => ChangeFate::Dropped,
        })
        .collect()
}

fn independent(pending: &[FileChange], rng: &mut Rng) -> Vec<ChangeFate> {
    let keep = rng.below(101);
    let torn = rng.below(51);
    pending
        .iter()
        .map(|change| match change {
            FileChange::Write { .. } if rng.chance(torn) => tear(change, rng),
            _ if rng.chance(keep) => ChangeFate::Kept,
            _ => ChangeFate::Dropped,
        })
        .collect()
}

/// Reduces a write to only its length, a few of its sectors, a prefix or any subset; other changes are lost.
fn tear(change: &FileChange, rng: &mut Rng) -> ChangeFate {
    let FileChange::Write { offset, data } = change else { return ChangeFate::Dropped };
    let count = sectors(*offset, data.len() as u64).count();
    let (survivors, full_length): (Vec<bool>, bool) = match rng.below(100) {
        0..20 => (vec![false; count], true),
        20..35 => ((0..count).map(|_| rng.chance(10)).collect(), true),
        35..70 => {
            let prefix = rng.below(count as u64 + 1) as usize;
            ((0..count).map(|i| i < prefix).collect(), rng.chance(50))
        }
        _ => ((0..count).map(|_| rng.chance(50)).collect(), rng.chance(50)),
    };
    if count == 0 || survivors.iter().all(|&survives| survives) {
        ChangeFate::Kept
    } else if survivors.iter().any(|&survives| survives) {
        ChangeFate::Torn { sectors: survivors, full_length }
    } else if full_length {
        ChangeFate::Hollow
    } else {
        ChangeFate::Dropped
    }
}

/// Flags the changes that are writes beyond the end of the volatile file.
fn growing(mut len: u64, pending: &[FileChange]) -> Vec<bool> {
    let grows = |change: &FileChange| match change {
        FileChange::Write { offset, data } => {
            let end = if data.is_empty() { 0 } else { offset + data.len() as u64 };
            let grows = end > len;
            len = len.max(end);
            grows
        }
        FileChange::SetLen(new) => {
            len = *new;
            false
        }
        FileChange::Allocate { offset, length, keep_size } => {
            len = if *keep_size { len } else { len.max(offset + length) };
            false
        }
        FileChange::Zero { .. } => false,
    };
    pending.iter().map(grows).collect()
}
