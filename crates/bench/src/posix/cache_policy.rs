//! Infers the caching policy of an access form (Ou 2015, Table I): when written data reaches the storage, and where
//! read data comes from. Network byte counters decide directly: they moved with a call or they did not. Timings
//! decide only if the difference is large. If neither is conclusive, the policy is unknown.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::access_form::AccessForm;

/// When written bytes are sent to the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WritePolicy {
    /// Before the call returns.
    WriteThrough,
    /// After the call returns, but before `close` returns.
    WriteBack,
    /// Some time after `close`.
    Buffered,
}

/// Where bytes come from when they are read the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadPolicy {
    /// From the storage with each call.
    ReadThrough,
    /// From a cache that is filled ahead of the calls.
    ReadAhead,
    /// From a copy of the whole file, fetched by `open` or by the first call.
    WholeFile,
}

/// Where bytes come from when they are read the second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RereadPolicy {
    /// From a cache.
    Cached,
    /// From the storage.
    FromStorage,
}

/// The evidence for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Bytes on the wire.
    Counters,
    /// Durations of the calls.
    Timings,
}

/// A policy and the evidence for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFinding<T> {
    /// The policy.
    pub policy: T,
    /// The evidence for it.
    pub evidence: Evidence,
}

impl<T> PolicyFinding<T> {
    /// Creates a finding.
    pub const fn new(policy: T, evidence: Evidence) -> Self {
        Self { policy, evidence }
    }
}

/// The policy of one access form; fields are `None` if unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePolicy {
    /// The access form.
    pub form: AccessForm,
    /// The policy of writes.
    pub write: Option<PolicyFinding<WritePolicy>>,
    /// The policy of first reads.
    pub read: Option<PolicyFinding<ReadPolicy>>,
    /// The policy of repeated reads.
    pub reread: Option<PolicyFinding<RereadPolicy>>,
    /// The error that ended the probe: a call failed, or wrong bytes were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

macro_rules! impl_display {
    ($type:ident, $($name:ident => $word:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$name => $word,)* })
            }
        }
    };
}

impl_display!(WritePolicy, WriteThrough => "write-through", WriteBack => "write-back", Buffered => "buffered");
impl_display!(ReadPolicy, ReadThrough => "read-through", ReadAhead => "read-ahead", WholeFile => "whole file first");
impl_display!(RereadPolicy, Cached => "cached", FromStorage => "from the storage");
impl_display!(Evidence, Counters => "counters", Timings => "timings");

/// Observations of a file that was written in equal pieces. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WriteTrace {
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// Duration of each call.
    pub call_us: Vec<f64>,
    /// Duration of `close`.
    pub close_us: f64,
    /// Time from `close` until all data was durable.
    pub sync_us: f64,
    /// Bytes sent since before the first call: after each call, after `close`, and after all data was durable.
    pub sent_bytes: Option<(Vec<u64>, u64, u64)>,
}

/// Observations of a file that was read twice in equal pieces from its beginning. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReadTrace {
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// Size of the file in bytes, of which less may have been read.
    pub file_bytes: u64,
    /// Caches were dropped before the first read.
    pub is_cold: bool,
    /// Duration of each call of the first read.
    pub call_us: Vec<f64>,
    /// Duration of each call of the second read.
    pub reread_call_us: Vec<f64>,
    /// Bytes received: in the first read, 0 and then the total since before `open` after each call; in the second,
    /// the total.
    pub received_bytes: Option<(Vec<u64>, u64)>,
}

/// Fraction of the payload that proves, if it was on the wire, that the payload was: some layers compress it.
const TRANSFERRED_FRACTION: f64 = 0.9;
/// Fractions of the calls that count as nearly all and as half of them.
const NEARLY_ALL: f64 = 0.9;
const HALF: f64 = 0.5;
/// A time longer by this factor has a different cause.
const SIGNIFICANT_FACTOR: f64 = 4.0;
/// Shortest time, in microseconds, that is taken for a wait for a network or a disk.
const MIN_WAIT_US: f64 = 1000.0;

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn share(part: usize, all: usize) -> f64 {
    part as f64 / all.max(1) as f64
}

/// The policies of first and repeated reads.
pub type ReadPolicies = (Option<PolicyFinding<ReadPolicy>>, Option<PolicyFinding<RereadPolicy>>);

/// Infers the write policy. `buffered_call` is the duration of a call known to end in memory, in microseconds.
#[must_use]
pub fn infer_write_policy(
    trace: &WriteTrace,
    buffered_call: Option<f64>,
) -> Option<PolicyFinding<WritePolicy>> {
    if trace.call_us.is_empty() {
        return None;
    }
    let by_counters = trace.sent_bytes.as_ref().and_then(|(after_calls, after_close, after_sync)| {
        let all = TRANSFERRED_FRACTION * (trace.piece_bytes * trace.call_us.len() as u64) as f64;
        let was_sent = |(n, sent): &(usize, &u64)| {
            **sent as f64 >= TRANSFERRED_FRACTION * (trace.piece_bytes * (*n as u64 + 1)) as f64
        };
        let in_time = after_calls.iter().enumerate().filter(was_sent).count();
        if share(in_time, after_calls.len()) >= NEARLY_ALL {
            Some(WritePolicy::WriteThrough)
        } else if *after_close as f64 >= all {
            Some(WritePolicy::WriteBack)
        } else if *after_sync as f64 >= all {
            Some(WritePolicy::Buffered)
        } else {
            None
        }
    });
    if let Some(policy) = by_counters {
        return Some(PolicyFinding::new(policy, Evidence::Counters));
    }
    let calls: f64 = trace.call_us.iter().sum();
    let by_timings =
        if trace.sync_us >= MIN_WAIT_US && trace.sync_us >= SIGNIFICANT_FACTOR * (calls + trace.close_us) {
            Some(WritePolicy::Buffered)
        } else if trace.close_us >= MIN_WAIT_US && trace.close_us >= SIGNIFICANT_FACTOR * calls {
            Some(WritePolicy::WriteBack)
        } else {
            let is_slow =
                buffered_call.is_some_and(|memory| median(&trace.call_us) >= SIGNIFICANT_FACTOR * memory);
            (is_slow && calls >= trace.sync_us).then_some(WritePolicy::WriteThrough)
        };
    by_timings.map(|policy| PolicyFinding::new(policy, Evidence::Timings))
}

/// Infers the policies of first and repeated reads. `cached_call` is the duration of a call known to be served by a
/// cache, in microseconds.
#[must_use]
pub fn infer_read_policies(trace: &ReadTrace, cached_call: Option<f64>) -> ReadPolicies {
    if trace.call_us.is_empty() {
        return (None, None);
    }
    match &trace.received_bytes {
        Some((after, reread)) if was_transferred(after, trace) => by_counters(trace, after, *reread),
        // Nothing came over the wire: the storage is not behind this interface, or a cache served the reads.
        _ => by_timings(trace, cached_call),
    }
}

/// Returns true if the bytes of the first read came over the wire.
fn was_transferred(after: &[u64], trace: &ReadTrace) -> bool {
    after.last().is_some_and(|all| {
        *all as f64 >= TRANSFERRED_FRACTION * (trace.piece_bytes * trace.call_us.len() as u64) as f64
    })
}

fn by_counters(trace: &ReadTrace, after: &[u64], reread: u64) -> ReadPolicies {
    let requested = (trace.piece_bytes * trace.call_us.len() as u64) as f64;
    let reread = if reread as f64 >= TRANSFERRED_FRACTION * requested {
        Some(RereadPolicy::FromStorage)
    } else {
        (reread as f64 <= HALF * requested).then_some(RereadPolicy::Cached)
    };
    let after_first = after.get(1).copied().unwrap_or(0) as f64;
    let is_small_part = requested <= HALF * trace.file_bytes as f64;
    let with_a_piece = after
        .windows(2)
        .filter(|two| (two[1] - two[0]) as f64 >= TRANSFERRED_FRACTION * trace.piece_bytes as f64)
        .count();
    let read = if is_small_part && after_first >= TRANSFERRED_FRACTION * trace.file_bytes as f64 {
        Some(ReadPolicy::WholeFile)
    } else if is_ahead(after) {
        Some(ReadPolicy::ReadAhead)
    } else if share(with_a_piece, trace.call_us.len()) >= NEARLY_ALL {
        Some(ReadPolicy::ReadThrough)
    } else {
        (share(with_a_piece, trace.call_us.len()) <= HALF).then_some(ReadPolicy::ReadAhead)
    };
    (
        read.map(|read| PolicyFinding::new(read, Evidence::Counters)),
        reread.map(|reread| PolicyFinding::new(reread, Evidence::Counters)),
    )
}

/// Returns true if, during the first half of the calls, the received bytes were mostly a call or more ahead of the
/// requested ones. Arrival during a call proves nothing on a fast link: bytes of a read-ahead arrive with each call
/// too.
fn is_ahead(after: &[u64]) -> bool {
    let calls = after.len().saturating_sub(1);
    let total = after.last().copied().unwrap_or(0) as f64;
    let first_half = after.iter().enumerate().skip(1).take(calls / 2);
    let ahead = first_half
        .filter(|(n, received)| **received as f64 * calls as f64 >= total * (*n as f64 + 1.0))
        .count();
    calls > 2 && share(ahead, calls / 2) > HALF
}

fn by_timings(trace: &ReadTrace, cached_call: Option<f64>) -> ReadPolicies {
    if !trace.is_cold {
        return (None, None);
    }
    let sum = |calls: &[f64]| calls.iter().sum::<f64>();
    let (first, second) = (sum(&trace.call_us), sum(&trace.reread_call_us));
    let known = |read: ReadPolicy, reread: RereadPolicy| {
        (
            Some(PolicyFinding::new(read, Evidence::Timings)),
            Some(PolicyFinding::new(reread, Evidence::Timings)),
        )
    };
    if first >= SIGNIFICANT_FACTOR * second && first - second >= MIN_WAIT_US {
        let cached = median(&trace.reread_call_us);
        let slow = trace.call_us.iter().filter(|call| **call >= SIGNIFICANT_FACTOR * cached).count();
        return match share(slow, trace.call_us.len()) {
            few if few <= HALF => known(ReadPolicy::ReadAhead, RereadPolicy::Cached),
            _ => (None, Some(PolicyFinding::new(RereadPolicy::Cached, Evidence::Timings))),
        };
    }
    let is_slow =
        |calls: &[f64]| cached_call.is_some_and(|cached| median(calls) >= SIGNIFICANT_FACTOR * cached);
    if is_slow(&trace.call_us) && is_slow(&trace.reread_call_us) {
        return known(ReadPolicy::ReadThrough, RereadPolicy::FromStorage);
    }
    (None, None)
}

#[cfg(test)]
mod tests;
