//! Parts of an upload that would fall behind at its end: one that others will be done with sooner is left to them, and one that fell
//! behind is broken off and sent again over a connection that has been faster.
//!
//! Connections of one transfer are not alike. One whose window stopped opening early carries a tenth of what another does, and
//! behind a long line it stays so for minutes. As long as parts wait for their turn, whoever is faster takes more of them; behind the
//! last one everybody waits for the slowest. Which connection that will be is known from the parts that it had before, so that it
//! gets none of the last ones ([`begins`]): each goes where it ends first. What a store has not all of it keeps nothing of, so that
//! a part which is broken off before its last bytes have left is stored once, by whoever sends it again. It costs the bytes that had
//! left, of which there are to be few. Downloads ask a second time without giving up the first ([`hedge`](crate::hedge)); of a part
//! that is sent twice nobody could say which one the store named last.

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

/// Whether one of so many parts that wait begins over a connection whose last part took so many seconds a byte, or is left to those that
/// are under way. These come with what the last part of their connection took, where it had one, and take as long for each, or as they have
/// by now where that is longer; each goes on with another part as soon as it is done with its own.
#[must_use]
pub fn begins(
    waiting: usize,
    (bytes, seconds_per_byte): (u64, f64),
    others: impl IntoIterator<Item = (UnderWay, Option<f64>)>,
    now: Duration,
) -> bool {
    let until = bytes as f64 * seconds_per_byte;
    let of = |(part, before): (UnderWay, Option<f64>)| {
        let each = (before.or_else(|| part.pace(now))? * bytes as f64).max(part.elapsed(now));
        Some(((until - part.left(each, now)) / each).floor().max(0.0))
    };
    others.into_iter().filter_map(of).sum::<f64>() < waiting as f64
}

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

impl UnderWay {
    /// Seconds since it began.
    fn elapsed(&self, now: Duration) -> f64 {
        now.saturating_sub(self.began).as_secs_f64()
    }

    /// Seconds a byte took of those that have left.
    fn pace(&self, now: Duration) -> Option<f64> {
        let took = self.elapsed(now);
        (self.sent > 0 && took > 0.0).then(|| took / self.sent as f64)
    }

    /// How long it still takes where all of it takes so many seconds. What stands still is taken to do so for as long again.
    fn left(&self, all: f64, now: Duration) -> f64 {
        let rest = self.bytes.saturating_sub(self.sent) as f64 / self.bytes.max(1) as f64 * all;
        rest.max(all - self.elapsed(now)).max(now.saturating_sub(self.moved).as_secs_f64())
    }
}

impl Parts {
    /// Of an object of so many bytes.
    #[must_use]
    pub fn of(size: u64) -> Self {
        Self { ended: VecDeque::with_capacity(LOOKED_AT), spare: size / OF_ALL }
    }

    /// A part is stored; how many seconds a byte of it took.
    pub fn end(&mut self, part: UnderWay, now: Duration) -> f64 {
        if self.ended.len() == LOOKED_AT {
            self.ended.pop_front();
        }
        let took = part.elapsed(now);
        let seconds_per_byte = took / part.bytes.max(1) as f64;
        self.ended.push_back(Ended { at: now, seconds_per_byte });
        seconds_per_byte
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
        let elapsed = part.elapsed(now);
        let quiet = now.saturating_sub(self.ended.back()?.at).as_secs_f64();
        if elapsed < elsewhere || quiet > late * QUIET {
            return None;
        }
        let left = part.left(elapsed * part.bytes as f64 / part.sent.max(1) as f64, now);
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

    /// Seconds a byte where a part takes so long.
    fn pace(seconds: f64) -> f64 {
        seconds / BYTES as f64
    }

    #[test]
    fn who_is_slow_gets_none_of_the_last_parts() {
        // Two others take half a second each, and have a quarter of one left.
        let others = [(part(BYTES / 2, 1625), Some(pace(0.5))), (part(BYTES / 2, 1625), Some(pace(0.5)))];
        let begins = |waiting, seconds| begins(waiting, (BYTES, pace(seconds)), others, at(2000));
        assert!(begins(1, 0.5) && begins(1, 0.6), "who is as fast begins");
        // In 4 s they are done with seven each.
        assert!(!begins(1, 4.0) && !begins(14, 4.0));
        assert!(begins(15, 4.0), "that many are too many for them");
        let standing = others.map(|(part, before)| (UnderWay { moved: at(0), ..part }, before));
        let them =
            |standing: &[_], seconds| super::begins(1, (BYTES, pace(seconds)), standing.to_vec(), at(2000));
        assert!(them(&standing, 2.0), "they stand still");
        assert!(them(&[], 60.0), "there is nobody else");
        let first = [(part(BYTES / 2, 1500), None)];
        assert!(!them(&first, 4.0) && them(&first, 1.0), "what it sent so far says how fast it is");
        assert!(them(&[(part(0, 1500), None)], 60.0), "nothing is known of it");
        // It was fast, and takes 4 s by now: whoever waits for that part would have one of its own sooner.
        let slower = [(UnderWay { began: at(0), ..part(BYTES / 2, 0) }, Some(pace(0.5)))];
        let then = |seconds| super::begins(2, (BYTES, pace(seconds)), slower, at(4000));
        assert!(then(6.0) && !then(12.0), "it is done with both in 10 s");
    }

    /// When the last of so many parts ends over connections that take these milliseconds for each, all begun as soon as there is
    /// one, or where they begin best.
    fn ended(parts: usize, connections: &[u64], chosen: bool) -> u64 {
        let (mut now, mut waiting) = (0, parts);
        let mut idle: Vec<(u64, Option<f64>)> = connections.iter().map(|each| (*each, None)).collect();
        let mut busy: Vec<(u64, u64, Option<f64>)> = Vec::new();
        loop {
            while waiting > 0
                && let Some((each, before)) = idle.last().copied()
            {
                let others = busy.iter().map(|&(began, each, before)| {
                    let sent = BYTES * (now - began) / each;
                    (UnderWay { bytes: BYTES, sent, began: at(began), moved: at(now) }, before)
                });
                if chosen
                    && before.is_some_and(|pace| !super::begins(waiting, (BYTES, pace), others, at(now)))
                {
                    break;
                }
                idle.pop();
                busy.push((now, each, before));
                waiting -= 1;
            }
            busy.sort_by_key(|(began, each, _)| std::cmp::Reverse(began + each));
            let Some((began, each, _)) = busy.pop() else { return now };
            now = began + each;
            idle.push((each, Some(pace(each as f64 / 1e3))));
        }
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

    #[test]
    fn the_slowest_is_not_waited_for() {
        let connections = [250, 2000, 2000, 2000];
        assert_eq!(ended(13, &connections, false), 4000);
        assert_eq!(ended(13, &connections, true), 2500);
    }

    proptest! {
        #[test]
        fn choosing_takes_no_longer(
            parts in 1_usize..60,
            connections in proptest::collection::vec(100_u64..10_000, 1..20),
        ) {
            prop_assert!(ended(parts, &connections, true) <= ended(parts, &connections, false));
        }

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
