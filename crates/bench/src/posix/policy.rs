//! When what is written reaches the storage and where what is read comes from, for each form of access (Ou 2015, Table I),
//! told from what was seen. Counters of the wire say it plainly: they moved with a call, or they did not. Timings alone say
//! it where the difference is large. What neither shows is said not to be known.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::form::Form;

/// When bytes that are written leave for the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writing {
    /// Before the call returns.
    WriteThrough,
    /// Later, but before closing the file returns.
    WriteBack,
    /// Some time after that: closing says nothing about it.
    Buffered,
}

/// Where bytes that are read come from, the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// From the storage with each call.
    ReadThrough,
    /// From a cache that is filled ahead of the calls.
    ReadAhead,
    /// From a copy of the whole file that opening it or the first call fetched.
    WholeFile,
}

/// The same the second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Again {
    /// From a cache.
    Cached,
    /// From the storage.
    FromStorage,
}

/// What a judgement rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The bytes on the wire.
    Counters,
    /// How long calls took.
    Timings,
}

/// The policy of one form of access; `None` where it cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Of which form.
    pub form: Form,
    /// Of writes.
    pub write: Option<(Writing, By)>,
    /// Of first reads.
    pub read: Option<(Reading, By)>,
    /// Of second ones.
    pub again: Option<(Again, By)>,
    /// What went wrong while it was found out: a call failed, or a byte was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

macro_rules! worded {
    ($type:ident, $($name:ident => $word:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$name => $word,)* })
            }
        }
    };
}

worded!(Writing, WriteThrough => "write-through", WriteBack => "write-back", Buffered => "buffered");
worded!(Reading, ReadThrough => "read-through", ReadAhead => "read-ahead", WholeFile => "whole file first");
worded!(Again, Cached => "cached", FromStorage => "from the storage");
worded!(By, Counters => "counters", Timings => "timings");

/// What was seen of a file that was written in equal pieces. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Written {
    /// Bytes of a piece.
    pub piece: u64,
    /// How long each call took.
    pub calls: Vec<f64>,
    /// How long closing took.
    pub close: f64,
    /// How long it took until all was durable.
    pub sync: f64,
    /// Bytes sent since before the first call: after each call, after closing, and after all was durable.
    pub sent: Option<(Vec<u64>, u64, u64)>,
}

/// What was seen of a file that was read in equal pieces, from its beginning on, twice.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Read {
    /// Bytes of a piece.
    pub piece: u64,
    /// Of the whole file, of which less may have been read.
    pub file: u64,
    /// Whether caches were dropped before.
    pub is_cold: bool,
    /// How long each call took, the first time and the second.
    pub calls: Vec<f64>,
    /// The second time.
    pub calls_again: Vec<f64>,
    /// Bytes received since before opening: none, then those after each call; and all of the second time.
    pub received: Option<(Vec<u64>, u64)>,
}

/// Of a number of bytes, so much shows that they were carried: some layers compress what they send.
const CARRIED: f64 = 0.9;
/// Nearly all calls, and half of them.
const NEARLY_ALL: f64 = 0.9;
const HALF: f64 = 0.5;
/// What takes so many times as long is something else.
const CLEARLY: f64 = 4.0;
/// A wait that is shorter, in microseconds, is not one for a network or a disk.
const LEAST_WAIT: f64 = 1000.0;

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn share(of: usize, all: usize) -> f64 {
    of as f64 / all.max(1) as f64
}

/// Where reads come from, the first time and the second.
pub type Readings = (Option<(Reading, By)>, Option<(Again, By)>);

/// How writes reach the storage. `buffered_call` is how long a call takes that is known to end in memory, in microseconds.
#[must_use]
pub fn writing(seen: &Written, buffered_call: Option<f64>) -> Option<(Writing, By)> {
    if seen.calls.is_empty() {
        return None;
    }
    let by_counters = seen.sent.as_ref().and_then(|(after_calls, after_close, after_sync)| {
        let all = CARRIED * (seen.piece * seen.calls.len() as u64) as f64;
        let is_there =
            |(n, sent): &(usize, &u64)| **sent as f64 >= CARRIED * (seen.piece * (*n as u64 + 1)) as f64;
        let in_time = after_calls.iter().enumerate().filter(is_there).count();
        if share(in_time, after_calls.len()) >= NEARLY_ALL {
            Some(Writing::WriteThrough)
        } else if *after_close as f64 >= all {
            Some(Writing::WriteBack)
        } else if *after_sync as f64 >= all {
            Some(Writing::Buffered)
        } else {
            None
        }
    });
    if let Some(told) = by_counters {
        return Some((told, By::Counters));
    }
    let calls: f64 = seen.calls.iter().sum();
    let by_timings = if seen.sync >= LEAST_WAIT && seen.sync >= CLEARLY * (calls + seen.close) {
        Some(Writing::Buffered)
    } else if seen.close >= LEAST_WAIT && seen.close >= CLEARLY * calls {
        Some(Writing::WriteBack)
    } else {
        let is_slow = buffered_call.is_some_and(|memory| median(&seen.calls) >= CLEARLY * memory);
        (is_slow && calls >= seen.sync).then_some(Writing::WriteThrough)
    };
    by_timings.map(|told| (told, By::Timings))
}

/// Where reads come from, the first time and the second. `cached_call` is how long a call takes that is known to be answered
/// by a cache, in microseconds.
#[must_use]
pub fn reading(seen: &Read, cached_call: Option<f64>) -> Readings {
    if seen.calls.is_empty() {
        return (None, None);
    }
    match &seen.received {
        Some((after, again)) if moved(after, seen) => by_counters(seen, after, *again),
        // Nothing came over the wire: whatever answered, it was no storage behind it.
        _ => by_timings(seen, cached_call),
    }
}

/// Whether the wire carried what was read, the first time.
fn moved(after: &[u64], seen: &Read) -> bool {
    after.last().is_some_and(|all| *all as f64 >= CARRIED * (seen.piece * seen.calls.len() as u64) as f64)
}

fn by_counters(seen: &Read, after: &[u64], again: u64) -> Readings {
    let asked = (seen.piece * seen.calls.len() as u64) as f64;
    let told_again = if again as f64 >= CARRIED * asked {
        Some(Again::FromStorage)
    } else {
        (again as f64 <= HALF * asked).then_some(Again::Cached)
    };
    let after_first = after.get(1).copied().unwrap_or(0) as f64;
    let is_small_part = asked <= HALF * seen.file as f64;
    let with_a_piece =
        after.windows(2).filter(|two| (two[1] - two[0]) as f64 >= CARRIED * seen.piece as f64).count();
    let told = if is_small_part && after_first >= CARRIED * seen.file as f64 {
        Some(Reading::WholeFile)
    } else if is_ahead(after) {
        Some(Reading::ReadAhead)
    } else if share(with_a_piece, seen.calls.len()) >= NEARLY_ALL {
        Some(Reading::ReadThrough)
    } else {
        (share(with_a_piece, seen.calls.len()) <= HALF).then_some(Reading::ReadAhead)
    };
    (told.map(|told| (told, By::Counters)), told_again.map(|told| (told, By::Counters)))
}

/// Whether more than a call ahead of what had been asked for was there, while the first half was read: on a fast line bytes
/// arrive with each call, whether or not they are those that it asked for.
fn is_ahead(after: &[u64]) -> bool {
    let calls = after.len().saturating_sub(1);
    let all = after.last().copied().unwrap_or(0) as f64;
    let first_half = after.iter().enumerate().skip(1).take(calls / 2);
    let ahead =
        first_half.filter(|(n, there)| **there as f64 * calls as f64 >= all * (*n as f64 + 1.0)).count();
    calls > 2 && share(ahead, calls / 2) > HALF
}

fn by_timings(seen: &Read, cached_call: Option<f64>) -> Readings {
    if !seen.is_cold {
        return (None, None);
    }
    let sum = |calls: &[f64]| calls.iter().sum::<f64>();
    let (first, second) = (sum(&seen.calls), sum(&seen.calls_again));
    let known = |told: Reading, again: Again| (Some((told, By::Timings)), Some((again, By::Timings)));
    if first >= CLEARLY * second && first - second >= LEAST_WAIT {
        let cached = median(&seen.calls_again);
        let slow = seen.calls.iter().filter(|call| **call >= CLEARLY * cached).count();
        return match share(slow, seen.calls.len()) {
            few if few <= HALF => known(Reading::ReadAhead, Again::Cached),
            _ => (None, Some((Again::Cached, By::Timings))),
        };
    }
    let is_slow = |calls: &[f64]| cached_call.is_some_and(|cached| median(calls) >= CLEARLY * cached);
    if is_slow(&seen.calls) && is_slow(&seen.calls_again) {
        return known(Reading::ReadThrough, Again::FromStorage);
    }
    (None, None)
}

#[cfg(test)]
mod tests;
