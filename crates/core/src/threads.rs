//! Threads on a machine that allows few. A limit of processes (`ulimit -u`) or of a control group (`pids.max`) also counts
//! threads, and reaching it is no defect: fewer threads do the work, or a message says what to do.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::error::{Error, Reason, Result};

/// Stack of a thread that only shows that it can be started.
const PROBE_STACK_BYTES: usize = 64 << 10;

/// The error for a thread that cannot be started.
#[must_use]
pub fn thread_error(error: io::Error) -> Error {
    let why = format!(
        "cannot start a thread ({error}): raise the limit of threads (ulimit -u, or pids.max of the control group), or end \
         other programs"
    );
    Error::with_source(Reason::Defect, why, error)
}

/// Starts up to `count` threads by calls of `start` with their numbers. If not all can be started, the first ones remain.
///
/// # Errors
/// If not even the first can be started.
pub fn start_up_to<T>(count: usize, mut start: impl FnMut(usize) -> io::Result<T>) -> Result<Vec<T>> {
    let mut started = Vec::with_capacity(count);
    for number in 0..count {
        match start(number) {
            Ok(thread) => started.push(thread),
            Err(e) if started.is_empty() => return Err(thread_error(e)),
            Err(_) => break,
        }
    }
    Ok(started)
}

/// The number of threads, up to `wanted`, that can be started now. Starts them for a moment.
#[must_use]
pub fn startable_threads(wanted: usize) -> usize {
    count_startable(wanted, |_| {
        let (end, until_end) = channel::<()>();
        let idle = move || {
            // It ends when the sender is dropped.
            let _ = until_end.recv();
        };
        let thread = Builder::new().name("probe".to_owned()).stack_size(PROBE_STACK_BYTES).spawn(idle)?;
        Ok(Probe { end: Some(end), thread: Some(thread) })
    })
}

fn count_startable<T>(wanted: usize, start: impl FnMut(usize) -> io::Result<T>) -> usize {
    start_up_to(wanted, start).map_or(0, |started| started.len())
}

/// Fails if `needed` threads cannot be started now.
///
/// # Errors
/// An error that names what needs them.
pub fn require_threads(what: &str, needed: usize) -> Result<()> {
    let startable = startable_threads(needed);
    if startable >= needed {
        return Ok(());
    }
    Err(Error::new(
        Reason::Defect,
        format!(
            "{what} needs {needed} threads, but {} can be started: raise the limit of threads (ulimit -u, or pids.max of the control group), or end other programs",
            match startable {
                0 => "none".to_owned(),
                some => format!("only {some}"),
            }
        ),
    ))
}

/// A thread that waits. It is joined when it is dropped.
struct Probe {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited_to(limit: usize) -> impl FnMut(usize) -> io::Result<usize> {
        move |number| if number < limit { Ok(number) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    #[test]
    fn fewer_threads_are_started_if_not_all_can_be() {
        assert_eq!(start_up_to(4, limited_to(9)).unwrap(), [0, 1, 2, 3]);
        assert_eq!(start_up_to(4, limited_to(1)).unwrap(), [0]);
        let failed = start_up_to(4, limited_to(0)).unwrap_err();
        assert!(failed.to_string().contains("raise the limit of threads (ulimit -u"), "{failed}");
        assert_eq!((count_startable(4, limited_to(3)), count_startable(4, limited_to(0))), (3, 0));
    }

    #[test]
    fn startable_threads_are_counted_up_to_a_bound() {
        assert_eq!(startable_threads(3), 3);
        require_threads("the store", 3).unwrap();
    }
}
