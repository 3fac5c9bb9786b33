//! Probes the caching policy of an access form: writes and reads a small file in pieces, and samples the duration and
//! the byte counters of the link after each call. [`cache_policy`](super::cache_policy) interprets the observations.

use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use super::access_form::AccessForm;
use super::access_stats::FileFailure;
use super::buffer::AlignedBuffer;
use super::cache_policy::{
    self, CachePolicy, PolicyFinding, ReadTrace, RereadPolicy, WritePolicy, WriteTrace,
};
use super::counters::InterfaceCounters;
use super::measurement::MeasureEnv;
use super::result::CacheTreatment;
use super::run_directory::RunFile;
use crate::caches::drop_caches;

/// Size of the probe file, and of the pieces in which it is written and read.
const FILE_BYTES: u64 = 4 << 20;
const WRITE_PIECE_BYTES: u64 = 64 << 10;
const READ_PIECE_BYTES: u64 = 4 << 10;
/// Bytes of the file that are read: enough to detect read-ahead, and a small part of the file.
const READ_BYTES: u64 = 512 << 10;

/// Durations of calls known to end in memory, in microseconds. Other calls are compared with them.
#[derive(Debug, Default)]
pub(super) struct MemoryCallTimes {
    buffered_call: Option<f64>,
    cached_call: Option<f64>,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn to_error(failure: FileFailure) -> Error {
    Error::new(Reason::Io, failure.message)
}

impl MemoryCallTimes {
    /// Probes an access form. Probe buffered forms first: the others are compared with their call durations.
    pub fn probe(
        &mut self,
        env: &MeasureEnv<'_>,
        form: AccessForm,
        may_drop_caches: bool,
    ) -> Result<CachePolicy> {
        let directory = &env.posix.directory;
        let file = directory.new_file(FILE_BYTES)?;
        let mut buffer = AlignedBuffer::new(usize::try_from(WRITE_PIECE_BYTES).unwrap_or(usize::MAX));
        let write_trace = write(env, form, file, &mut buffer)?;
        let write = cache_policy::infer_write_policy(&write_trace, self.buffered_call);
        if matches!(write, Some(PolicyFinding { policy: WritePolicy::Buffered | WritePolicy::WriteBack, .. }))
            && form == AccessForm::Default
        {
            self.buffered_call = median(&write_trace.call_us);
        }
        let (caches, _) = drop_caches([directory.file_path(file)].iter(), may_drop_caches);
        let read_trace = read(env, form, file, &mut buffer, caches != CacheTreatment::NotDropped)?;
        let (read, reread) = cache_policy::infer_read_policies(&read_trace, self.cached_call);
        if matches!(reread, Some(PolicyFinding { policy: RereadPolicy::Cached, .. })) {
            self.cached_call = median(&read_trace.reread_call_us);
        }
        Ok(CachePolicy { form, write, read, reread, failed: None })
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn write(
    env: &MeasureEnv<'_>,
    form: AccessForm,
    file: RunFile,
    buffer: &mut AlignedBuffer,
) -> Result<WriteTrace> {
    let sync_handle = env.posix.directory.open_for_sync();
    let before = env.wait_for_quiet_link();
    let counters = env.counters.as_ref();
    let sent = || counters.map_or(0, |counters| counters.read().since(before).sent);
    let (mut call_us, mut after_calls) = (Vec::new(), Vec::new());
    let mut on_call = |duration| {
        call_us.push(micros(duration));
        after_calls.push(sent());
    };
    let outcome =
        env.posix.file_access(form, WRITE_PIECE_BYTES).write(file, buffer, &mut on_call).map_err(to_error)?;
    let after_close = sent();
    let synced = env.posix.sync(&sync_handle).map_err(to_error)?;
    let sync_us = synced.map(micros).ok_or_else(|| Error::new(Reason::Cancelled, "the run was stopped"))?;
    let after_sync = counters.map_or(0, |_| env.wait_for_quiet_link().since(before).sent);
    let sent_bytes = counters.map(|_| (after_calls, after_close, after_sync));
    Ok(WriteTrace {
        piece_bytes: WRITE_PIECE_BYTES,
        call_us,
        close_us: micros(outcome.times.close),
        sync_us,
        sent_bytes,
    })
}

fn read(
    env: &MeasureEnv<'_>,
    form: AccessForm,
    file: RunFile,
    buffer: &mut AlignedBuffer,
    is_cold: bool,
) -> Result<ReadTrace> {
    let file_access = env.posix.file_access(form, READ_PIECE_BYTES);
    let read_once = |buffer: &mut AlignedBuffer| -> Result<(Vec<f64>, Vec<u64>)> {
        let before = env.wait_for_quiet_link();
        let received = |counters: &InterfaceCounters| counters.read().since(before).received;
        let (mut call_us, mut after) = (Vec::new(), vec![0]);
        let mut on_call = |duration| {
            call_us.push(micros(duration));
            after.extend(env.counters.as_ref().map(received));
        };
        file_access.read_part(file, READ_BYTES, buffer, &mut on_call).map_err(to_error)?;
        Ok((call_us, after))
    };
    let (call_us, after) = read_once(buffer)?;
    let (reread_call_us, after_reread) = read_once(buffer)?;
    let received_bytes = env.counters.as_ref().map(|_| (after, after_reread.last().copied().unwrap_or(0)));
    Ok(ReadTrace {
        piece_bytes: READ_PIECE_BYTES,
        file_bytes: FILE_BYTES,
        is_cold,
        call_us,
        reread_call_us,
        received_bytes,
    })
}
