//! The runtime of a command or server. Where few threads can be started, it has one worker, and its blocking pool keeps the threads that
//! it starts with: the pool would panic without any thread, and wait forever if only workers remain.

use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc::channel;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tradewind_core::threads::{require_threads, startable_threads, thread_error};

/// Threads beside the workers: for a local store, for standard input and output, and a first dozen for files.
const OTHER_THREADS: usize = 24;
/// A worker, a thread that may block, and one for standard input or output.
const MIN_THREADS: usize = 3;
/// Time for a thread to start on a busy machine.
const MAX_START_TIME: Duration = Duration::from_secs(10);
/// Longer than any command.
const KEEP_ALIVE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The threads of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadPlan {
    /// The usual number.
    Unlimited,
    /// One worker, and this many threads that may block.
    Limited { blocking: usize },
}

impl ThreadPlan {
    /// The plan for a machine that allows `startable` of `wanted` threads; `None` if those are too few.
    const fn new(startable: usize, wanted: usize) -> Option<Self> {
        if startable >= wanted {
            return Some(Self::Unlimited);
        }
        match startable {
            ..MIN_THREADS => None,
            // The rest is for threads that are not of the runtime.
            _ => Some(Self::Limited { blocking: (startable - 1) / 2 }),
        }
    }
}

/// Starts the runtime, with this number of workers or the usual one.
pub(super) fn start_runtime(workers: Option<NonZeroUsize>) -> anyhow::Result<Runtime> {
    let usual = || available_parallelism().map_or(1, usize::from);
    let wanted = workers.map_or_else(usual, usize::from) + OTHER_THREADS;
    let Some(plan) = ThreadPlan::new(startable_threads(wanted), wanted) else {
        require_threads("a command", MIN_THREADS)?;
        // Other threads have ended since they were counted.
        return build(ThreadPlan::Limited { blocking: 1 }, workers);
    };
    build(plan, workers)
}

fn build(plan: ThreadPlan, workers: Option<NonZeroUsize>) -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().thread_name("tradewind");
    if let Some(workers) = workers {
        builder.worker_threads(workers.get());
    }
    if let ThreadPlan::Limited { blocking } = plan {
        builder.worker_threads(1).max_blocking_threads(blocking).thread_keep_alive(KEEP_ALIVE);
    }
    let runtime = builder.build().context("cannot start the worker threads")?;
    if let ThreadPlan::Limited { blocking } = plan
        && let Err(e) = start_blocking_threads(&runtime, blocking, MAX_START_TIME)
    {
        runtime.shutdown_background();
        return Err(e);
    }
    Ok(runtime)
}

/// Starts the threads of the blocking pool, each by a task that keeps it until all have started. Threads may run out although
/// they could be started before: the pool does with those that it has.
fn start_blocking_threads(runtime: &Runtime, threads: usize, max_wait: Duration) -> anyhow::Result<()> {
    let (started, arrivals) = channel();
    let mut releases = Vec::with_capacity(threads);
    for number in 0..threads {
        let (release, released) = channel::<()>();
        releases.push(release);
        let started = started.clone();
        runtime.spawn_blocking(move || {
            // Both fail only if no other thread is waited for.
            let _ = started.send(());
            let _ = released.recv();
        });
        if arrivals.recv_timeout(max_wait).is_err() {
            if number == 0 {
                let error = io::Error::new(io::ErrorKind::TimedOut, "it did not start in time");
                return Err(thread_error(error).into());
            }
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_threads_are_shared_out() {
        let plan = |startable| ThreadPlan::new(startable, 8);
        assert_eq!((plan(0), plan(2)), (None, None));
        for (startable, blocking) in [(3, 1), (4, 1), (5, 2), (7, 3)] {
            assert_eq!(plan(startable), Some(ThreadPlan::Limited { blocking }));
        }
        assert_eq!(plan(8), Some(ThreadPlan::Unlimited));
    }

    #[test]
    fn pool_without_a_free_thread_is_reported() {
        let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build().unwrap();
        let start = |threads| start_blocking_threads(&runtime, threads, Duration::from_millis(200));
        start(1).unwrap();
        start(2).unwrap();
        let (end, until_end) = channel::<()>();
        runtime.spawn_blocking(move || until_end.recv());
        let failed = start(1).unwrap_err().to_string();
        assert!(failed.contains("cannot start a thread"), "{failed}");
        drop(end);
    }

    #[test]
    fn limited_runtime_runs_tasks_that_block() {
        for blocking in [1, 3] {
            let runtime = build(ThreadPlan::Limited { blocking }, None).unwrap();
            runtime.block_on(async {
                let tasks: Vec<_> =
                    (0..20).map(|number| tokio::task::spawn_blocking(move || number)).collect();
                for (number, task) in tasks.into_iter().enumerate() {
                    assert_eq!(task.await.unwrap(), number);
                }
                assert_eq!(tokio::spawn(async { tokio::task::block_in_place(|| 7) }).await.unwrap(), 7);
            });
        }
    }
}
