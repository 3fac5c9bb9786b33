//! The runtime of a command or server. Where few threads can be started, it has one worker, and its blocking pool keeps the threads that
//! it starts with: the pool would panic without any thread, and wait forever if only workers remain.

use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier};
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tradewind_core::threads::{require_threads, startable_threads};

/// Threads beside the workers: those of a local store, of standard input and output, and a first dozen for files.
const OTHER_THREADS: usize = 24;
/// A worker, a thread that may block, and one for standard input or output.
const MIN_THREADS: usize = 3;
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
    if let ThreadPlan::Limited { blocking } = plan {
        start_blocking_threads(&runtime, blocking);
    }
    Ok(runtime)
}

/// Starts the threads of the blocking pool, each by a task that waits for the others.
fn start_blocking_threads(runtime: &Runtime, threads: usize) {
    let barrier = Arc::new(Barrier::new(threads + 1));
    for _ in 0..threads {
        let barrier = barrier.clone();
        runtime.spawn_blocking(move || {
            barrier.wait();
        });
    }
    barrier.wait();
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
