//! Parts of an upload that fall behind at its end: they are broken off, and sent again over a connection that has been faster.
//!
//! Connections of one transfer are not alike. One whose window stopped opening early carries a tenth of what another does, and
//! behind a long line it stays so for minutes. As long as parts wait for their turn, whoever is faster takes more of them; behind the
//! last one everybody waits for the slowest. What a store has not all of it keeps nothing of, so that a part which is broken off
//! before its last bytes have left is stored once, by whoever sends it again. It costs the bytes that had left, of which there are
//! to be few. Downloads ask a second time without giving up the first ([`hedge`](crate::hedge)); of a part that is sent twice nobody
//! could say which one the store named last.

use std::collections::VecDeque;
use std::time::Duration;

/// Parts whose times say how long one takes.
const LOOKED_AT: usize = 16;
/// Fewer that ended since a part began say nothing of it.
const FEWEST: usize = 3;
/// It goes where parts were fast: this one of so many, from the fastest.
const FAST: usize = 4;
/// What is left has to take so many times as long as all of it does there, and so much longer.
const TIMES: f64 = 1.5;
const LEAST: f64 = 0.2;
/// Where nothing has ended for so many times that, all may have come to a stand.
const QUIET: f64 = 3.0;
/// Bytes that may be sent in vain, as a part of all.
const OF_ALL: u64 = 8;

/// The parts of one upload, as far as they have ended.
#[derive(Debug)]
pub struct Parts {
    ended: VecDeque<Ended>,
    /// Bytes that may still be sent in vain.
    spare: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    at: Duration,
    seconds_per_byte: f64,
}

/// A part that is being sent. Times are the clock's.
#[derive(Debug, Clone, Copy)]
pub struct UnderWay {
    /// Its bytes.
    pub bytes: u64,
    /// Those of them that have left.
    pub sent: u64,
    /// When it began.
    pub began: Duration,
    /// When the last of those bytes left, or when it began.
    pub moved: Duration,
}

impl Parts {
    /// Of an object of so many bytes.
    #[must_use]
    pub fn of(size: u64) -> Self {
        Self { ended: VecDeque::with_capacity(LOOKED_AT), spare: size / OF_ALL }
    }

    /// A part is stored.
    pub fn end(&mut self, part: UnderWay, now: Duration) {
        if self.ended.len() == LOOKED_AT {
            self.ended.pop_front();
        }
        let took = now.saturating_sub(part.began).as_secs_f64();
        self.ended.push_back(Ended { at: now, seconds_per_byte: took / part.bytes.max(1) as f64 });
    }

    /// How long the rest of a part would take as it goes, in seconds, where it is better broken off.
    #[must_use]
    pub fn lateness(&self, part: UnderWay, now: Duration) -> Option<f64> {
        if part.sent > self.spare {
            return None;
        }
        // Those that had the same line at the same time: where it carries less for all, nobody is late.
        let since = self.ended.iter().filter(|ended| ended.at >= part.began);
        let mut paces: Vec<f64> = since.map(|ended| ended.seconds_per_byte).collect();
        if paces.len() < FEWEST {
            return None;
        }
        paces.sort_by(f64::total_cmp);
        let elsewhere = paces[paces.len() / FAST] * part.bytes as f64;
        let late = TIMES.mul_add(elsewhere, LEAST);
        let for_seconds = |since: Duration| now.saturating_sub(since).as_secs_f64();
        let elapsed = for_seconds(part.began);
        if elapsed < elsewhere || for_seconds(self.ended.back()?.at) > late * QUIET {
            return None;
        }
        let rest = part.bytes.saturating_sub(part.sent) as f64;
        // What stands still is taken to do so for as long again.
        let left = (rest * elapsed / part.sent.max(1) as f64).max(for_seconds(part.moved));
        (left > late).then_some(left)
    }

    /// A part was broken off of which so many bytes had left.
    pub fn broke_off(&mut self, sent: u64) {
        self.spare = self.spare.saturating_sub(sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 5 << 20;
    const SIZE: u64 = 50 * BYTES;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn part(sent: u64, began: u64) -> UnderWay {
        UnderWay { bytes: BYTES, sent, began: at(began), moved: at(2000) }
    }

    /// Parts that take half a second each, the last of them ended at 2 s.
    fn usual() -> Parts {
        let mut parts = Parts::of(SIZE);
        for n in 1..=6 {
            parts.end(part(BYTES, 900 + n * 100), at(1400 + n * 100));
        }
        parts
    }

    #[test]
    fn what_takes_several_times_as_long_is_late() {
        let parts = usual();
        let left = parts.lateness(part(BYTES / 4, 1000), at(2000)).unwrap();
        assert!((left - 3.0).abs() < 1e-6, "{left}");
        assert!(parts.lateness(part(0, 1000), at(2000)).is_some(), "nothing of it has left");
        assert_eq!(parts.lateness(part(BYTES * 2 / 3, 1000), at(2000)), None, "that takes half a second");
        assert_eq!(parts.lateness(part(0, 1600), at(2000)), None, "it has just begun");
        let standing = UnderWay { moved: at(1200), ..part(BYTES * 9 / 10, 1000) };
        assert_eq!(parts.lateness(standing, at(2000)), None);
        assert!(parts.lateness(standing, at(2400)).is_some(), "nothing has left for longer than late is");
    }

    #[test]
    fn nobody_is_late_where_all_are() {
        let parts = usual();
        assert_eq!(parts.lateness(part(BYTES / 4, 1000), at(5000)), None, "nothing has ended for long");
        let mut slow = usual();
        for n in 1..=8 {
            slow.end(part(BYTES, 2000), at(6000 + n * 10));
        }
        assert_eq!(slow.lateness(part(BYTES / 4, 2500), at(6080)), None, "the others take 4 s too");
        assert_eq!(
            Parts::of(SIZE).lateness(part(0, 0), at(60_000)),
            None,
            "there is nobody to compare it with"
        );
    }

    proptest! {
        #[test]
        fn what_is_sent_in_vain_is_bounded(sent in proptest::collection::vec(0..BYTES / 4, 1..200)) {
            let (mut parts, mut in_vain) = (usual(), 0);
            for sent in sent {
                if parts.lateness(part(sent, 1000), at(2000)).is_some() {
                    parts.broke_off(sent);
                    in_vain += sent;
                }
            }
            prop_assert!(in_vain <= SIZE / OF_ALL);
        }

        #[test]
        fn who_has_sent_less_is_later(less in 0..BYTES, more in 0..BYTES) {
            let parts = usual();
            let late = |sent| parts.lateness(part(sent, 1000), at(2000)).unwrap_or(0.0);
            prop_assert!(less > more || late(less) >= late(more));
        }
    }
}
