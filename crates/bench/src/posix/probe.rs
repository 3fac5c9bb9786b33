//! Probes the caching policy of an access form: writes and reads a small file in pieces, and samples the duration and
//! the byte counters of the link after each call. [`policy`](super::policy) interprets the observations.

use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use super::buffer::Buffer;
use super::cell::Bench;
use super::counters::Counters;
use super::form::Form;
use super::place::File;
use super::policy::{self, Again, Policy, Read, Writing, Written};
use super::result::CacheTreatment;
use super::tally::Failed;
use crate::caches::drop_caches;

/// Size of the probe file, and of the pieces in which it is written and read.
const FILE_BYTES: u64 = 4 << 20;
const WRITE_PIECE_BYTES: u64 = 64 << 10;
const READ_PIECE_BYTES: u64 = 4 << 10;
/// Bytes of the file that are read: enough to detect read-ahead, and a small part of the file.
const READ_BYTES: u64 = 512 << 10;

/// Durations of calls known to end in memory, in microseconds. Other calls are compared with them.
#[derive(Debug, Default)]
pub(super) struct Known {
    buffered_call: Option<f64>,
    cached_call: Option<f64>,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn failed(failed: Failed) -> Error {
    Error::new(Reason::Io, failed.what)
}

impl Known {
    /// Probes an access form. Probe buffered forms first: the others are compared with their call durations.
    pub fn probe(&mut self, bench: &Bench<'_>, form: Form, asks_kernel: bool) -> Result<Policy> {
        let place = &bench.site.place;
        let file = place.file(FILE_BYTES)?;
        let mut buffer = Buffer::new(usize::try_from(WRITE_PIECE_BYTES).unwrap_or(usize::MAX));
        let written = write(bench, form, file, &mut buffer)?;
        let write = policy::writing(&written, self.buffered_call);
        if matches!(write, Some((Writing::Buffered | Writing::WriteBack, _))) && form == Form::Default {
            self.buffered_call = median(&written.calls);
        }
        let (caches, _) = drop_caches([place.path(file)].iter(), asks_kernel);
        let read = read(bench, form, file, &mut buffer, caches != CacheTreatment::NotDropped)?;
        let (first, again) = policy::reading(&read, self.cached_call);
        if matches!(again, Some((Again::Cached, _))) {
            self.cached_call = median(&read.calls_again);
        }
        Ok(Policy { form, write, read: first, again, failed: None })
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn write(bench: &Bench<'_>, form: Form, file: File, buffer: &mut Buffer) -> Result<Written> {
    let behind = bench.site.place.behind();
    let before = bench.settle();
    let counters = bench.counters.as_ref();
    let sent = || counters.map_or(0, |counters| counters.read().since(before).sent);
    let (mut calls, mut after_calls) = (Vec::new(), Vec::new());
    let mut each = |took| {
        calls.push(micros(took));
        after_calls.push(sent());
    };
    let done = bench.site.manner(form, WRITE_PIECE_BYTES).write(file, buffer, &mut each).map_err(failed)?;
    let after_close = sent();
    let synced = bench.site.sync(&behind).map_err(failed)?;
    let sync = synced.map(micros).ok_or_else(|| Error::new(Reason::Cancelled, "the run was stopped"))?;
    let after_sync = counters.map_or(0, |_| bench.settle().since(before).sent);
    let sent = counters.map(|_| (after_calls, after_close, after_sync));
    Ok(Written { piece: WRITE_PIECE_BYTES, calls, close: micros(done.took.close), sync, sent })
}

fn read(bench: &Bench<'_>, form: Form, file: File, buffer: &mut Buffer, is_cold: bool) -> Result<Read> {
    let manner = bench.site.manner(form, READ_PIECE_BYTES);
    let once = |buffer: &mut Buffer| -> Result<(Vec<f64>, Vec<u64>)> {
        let before = bench.settle();
        let received = |counters: &Counters| counters.read().since(before).received;
        let (mut calls, mut after) = (Vec::new(), vec![0]);
        let mut each = |took| {
            calls.push(micros(took));
            after.extend(bench.counters.as_ref().map(received));
        };
        manner.read_part(file, READ_BYTES, buffer, &mut each).map_err(failed)?;
        Ok((calls, after))
    };
    let (calls, after) = once(buffer)?;
    let (calls_again, after_again) = once(buffer)?;
    let received = bench.counters.as_ref().map(|_| (after, after_again.last().copied().unwrap_or(0)));
    Ok(Read { piece: READ_PIECE_BYTES, file: FILE_BYTES, is_cold, calls, calls_again, received })
}
