//! The contents of lost sectors in newly gained space: whatever the blocks held before.
//!
//! That is noise, which every checksum detects, or bytes of removed files of the same kind and of the file itself
//! before a truncation. Stale bytes come in runs, at their original offset or at another multiple of a block.

use std::collections::BTreeSet;

use super::sectors::SECTOR_BYTES;
use crate::content::{Content, PAGE_BYTES};
use crate::rng::Rng;

/// Draws before a run of sectors falls back to noise, because a hole in a donor is not a source.
const MAX_DRAWS: u32 = 8;

/// Sources of stale bytes.
#[derive(Debug, Clone, Copy)]
pub struct Donors<'a> {
    /// Contents of the file itself in blocks that it freed.
    pub own: &'a [Content],
    /// Contents of other files of its kind.
    pub others: &'a [Content],
}

/// Number of sectors filled, by content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GarbageCounts {
    pub noise: u64,
    pub stale: u64,
}

/// Fills the sectors `lost` of a file.
pub fn fill_garbage(
    content: &mut Content,
    lost: &BTreeSet<u64>,
    donors: Donors<'_>,
    rng: &mut Rng,
) -> GarbageCounts {
    let mut spoiled = GarbageCounts::default();
    let only_noise = rng.chance(25);
    let mut source = Source::Noise;
    let mut expected = None;
    for &sector in lost {
        let start = sector * SECTOR_BYTES;
        let stop = (start + SECTOR_BYTES).min(content.len());
        if start >= stop {
            break;
        }
        let runs_on = expected == Some(sector) && !(start.is_multiple_of(PAGE_BYTES) && rng.chance(5));
        let is_settled = only_noise || (runs_on && source.reaches(start));
        if !is_settled {
            source = Source::draw(start, donors, rng);
        }
        expected = Some(sector + 1);
        let mut garbage = [0; SECTOR_BYTES as usize];
        if source.fill(start, &mut garbage, rng) {
            spoiled.stale += 1;
        } else {
            spoiled.noise += 1;
        }
        content.patch(start, &garbage[..(stop - start) as usize]);
    }
    spoiled
}

/// The source of a run's bytes.
enum Source<'a> {
    Noise,
    /// The bytes for an offset are at that offset plus `ahead` minus `behind` in the donor.
    Stale {
        donor: &'a Content,
        ahead: u64,
        behind: u64,
    },
}

impl<'a> Source<'a> {
    /// Draws a source for a run of sectors that starts at `start`.
    fn draw(start: u64, donors: Donors<'a>, rng: &mut Rng) -> Self {
        if rng.chance(15) {
            return Self::Noise;
        }
        for _ in 0..MAX_DRAWS {
            let pool = if !donors.own.is_empty() && rng.chance(60) { donors.own } else { donors.others };
            let Some(donor) = pool.get(rng.below(pool.len() as u64) as usize) else { continue };
            let at =
                if rng.chance(50) { start / PAGE_BYTES } else { rng.below(donor.len().div_ceil(PAGE_BYTES)) }
                    * PAGE_BYTES;
            let (ahead, behind) = (
                at.saturating_sub(start / PAGE_BYTES * PAGE_BYTES),
                (start / PAGE_BYTES * PAGE_BYTES).saturating_sub(at),
            );
            let source = Self::Stale { donor, ahead, behind };
            if source.reaches(start) {
                return source;
            }
        }
        Self::Noise
    }

    /// Returns true if there are bytes for the sector at `start`.
    fn reaches(&self, start: u64) -> bool {
        match self {
            Self::Noise => true,
            Self::Stale { donor, ahead, behind } => {
                start >= *behind
                    && start + ahead - behind < donor.len()
                    && donor.is_allocated(start + ahead - behind)
            }
        }
    }

    /// Fills a sector; returns true for stale bytes.
    fn fill(&self, start: u64, garbage: &mut [u8], rng: &mut Rng) -> bool {
        match self {
            Self::Noise => {
                rng.fill(garbage);
                false
            }
            Self::Stale { donor, ahead, behind } => {
                let bytes = donor.read(start + ahead - behind, garbage.len());
                garbage[..bytes.len()].copy_from_slice(&bytes);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose every page starts with its number.
    fn numbered(pages: u8, mark: u8) -> Content {
        let mut content = Content::default();
        for page in 0..pages {
            content.write(u64::from(page) * PAGE_BYTES, &[mark; PAGE_BYTES as usize]);
            content.write(u64::from(page) * PAGE_BYTES, &[page]);
        }
        content
    }

    #[test]
    fn stale_bytes_are_at_their_offset_or_another_block() {
        let others = [numbered(6, 200)];
        let (mut in_place, mut moved, mut noise) = (0, 0, 0);
        for seed in 0..400 {
            let mut content = Content::default();
            content.set_len(4 * PAGE_BYTES);
            let donors = Donors { own: &[], others: &others };
            let spoiled = fill_garbage(&mut content, &(8..32).collect(), donors, &mut Rng::new(seed));
            assert_eq!(spoiled.noise + spoiled.stale, 24);
            assert_eq!(
                content.read(0, PAGE_BYTES as usize),
                [0; PAGE_BYTES as usize],
                "only lost sectors change"
            );
            let page = content.read(PAGE_BYTES, PAGE_BYTES as usize);
            match page[1..].iter().all(|&byte| byte == 200).then_some(page[0]) {
                Some(1) => in_place += 1,
                Some(_) => moved += 1,
                None => noise += 1,
            }
        }
        assert!(in_place > 100 && moved > 50 && noise > 50, "{in_place} {moved} {noise}");
    }

    #[test]
    fn sparse_or_short_donors_are_used() {
        let mut donor = Content::default();
        donor.write(2 * PAGE_BYTES, &[9; 700]);
        let donors = Donors { own: &[donor], others: &[] };
        let mut stale = 0;
        for seed in 0..200 {
            let mut content = Content::default();
            content.set_len(4 * PAGE_BYTES);
            stale += fill_garbage(&mut content, &(0..32).collect(), donors, &mut Rng::new(seed)).stale;
        }
        assert!(stale > 20, "{stale}");
    }
}
