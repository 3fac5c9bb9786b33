//! Finds out the policy of a form of access: a small file is written and read in pieces, and after each call it is looked at
//! what the wire has carried and how long it took. What that means is decided in [`policy`](super::policy).

use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use super::buffer::Buffer;
use super::cell::Bench;
use super::counters::Counters;
use super::form::Form;
use super::place::File;
use super::policy::{self, Again, Policy, Read, Writing, Written};
use super::result::Caches;
use super::tally::Failed;
use crate::caches::drop_caches;

/// The file that is probed with, and the pieces in which it is written and read.
const FILE: u64 = 4 << 20;
const WRITTEN_PIECE: u64 = 64 << 10;
const READ_PIECE: u64 = 4 << 10;
/// So much of it is read: enough to see a cache run ahead, and far from all of it.
const READ: u64 = 512 << 10;

/// What is known of calls that end in memory, in microseconds: what others are compared with.
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
    /// Probes a form. Those that go through memory teach what the others are compared with, so they come first.
    pub fn probe(&mut self, bench: &Bench<'_>, form: Form, asks_kernel: bool) -> Result<Policy> {
        let place = &bench.site.place;
        let file = place.file(FILE)?;
        let mut buffer = Buffer::new(usize::try_from(WRITTEN_PIECE).unwrap_or(usize::MAX));
        let written = write(bench, form, file, &mut buffer)?;
        let write = policy::writing(&written, self.buffered_call);
        if matches!(write, Some((Writing::Buffered | Writing::WriteBack, _))) && form == Form::Default {
            self.buffered_call = middle(&written.calls);
        }
        let (caches, _) = drop_caches([place.path(file)].iter(), asks_kernel);
        let read = read(bench, form, file, &mut buffer, caches != Caches::Kept)?;
        let (first, again) = policy::reading(&read, self.cached_call);
        if matches!(again, Some((Again::Cached, _))) {
            self.cached_call = middle(&read.calls_again);
        }
        Ok(Policy { form, write, read: first, again, failed: None })
    }
}

fn middle(values: &[f64]) -> Option<f64> {
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
    let done = bench.site.manner(form, WRITTEN_PIECE).write(file, buffer, &mut each).map_err(failed)?;
    let after_close = sent();
    let synced = bench.site.sync(&behind).map_err(failed)?;
    let sync = synced.map(micros).ok_or_else(|| Error::new(Reason::Cancelled, "it was stopped"))?;
    let after_sync = counters.map_or(0, |_| bench.settle().since(before).sent);
    let sent = counters.map(|_| (after_calls, after_close, after_sync));
    Ok(Written { piece: WRITTEN_PIECE, calls, close: micros(done.took.close), sync, sent })
}

fn read(bench: &Bench<'_>, form: Form, file: File, buffer: &mut Buffer, is_cold: bool) -> Result<Read> {
    let manner = bench.site.manner(form, READ_PIECE);
    let once = |buffer: &mut Buffer| -> Result<(Vec<f64>, Vec<u64>)> {
        let before = bench.settle();
        let received = |counters: &Counters| counters.read().since(before).received;
        let (mut calls, mut after) = (Vec::new(), vec![0]);
        let mut each = |took| {
            calls.push(micros(took));
            after.extend(bench.counters.as_ref().map(received));
        };
        manner.read_part(file, READ, buffer, &mut each).map_err(failed)?;
        Ok((calls, after))
    };
    let (calls, after) = once(buffer)?;
    let (calls_again, after_again) = once(buffer)?;
    let received = bench.counters.as_ref().map(|_| (after, after_again.last().copied().unwrap_or(0)));
    Ok(Read { piece: READ_PIECE, file: FILE, is_cold, calls, calls_again, received })
}
