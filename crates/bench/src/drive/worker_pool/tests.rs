use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::*;

/// Returns, for each worker, the threads that it ran on, in order.
async fn visited_threads(mut working: RunningWorkers<Vec<thread::ThreadId>>) -> Vec<Vec<thread::ThreadId>> {
    let mut all = Vec::new();
    while let Some(seen) = working.join_next().await {
        all.push(seen.unwrap());
    }
    all
}

fn thread_recorders(count: usize) -> Vec<BoxFuture<'static, Vec<thread::ThreadId>>> {
    let recorder = |_| -> BoxFuture<'static, _> {
        Box::pin(async move {
            let (mut seen, started) = (Vec::new(), Instant::now());
            while started.elapsed() < Duration::from_millis(300) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                seen.push(thread::current().id());
            }
            seen.dedup();
            seen
        })
    };
    (0..count).map(recorder).collect()
}

#[tokio::test]
async fn workers_share_one_thread_and_stay_there() {
    let pool = WorkerPool::start(2).unwrap();
    let all = visited_threads(pool.spawn(thread_recorders(4))).await;
    assert!(all.len() == 4 && all.iter().all(|seen| *seen == all[0] && seen.len() == 1), "{all:?}");
    assert!(!all[0].contains(&thread::current().id()));
    let here = visited_threads(WorkerPool::default().spawn(thread_recorders(1))).await;
    assert_eq!(here, [[thread::current().id()]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn workers_migrate_when_more_threads_are_used() {
    let pool = WorkerPool::start(2).unwrap();
    let working = pool.spawn(thread_recorders(4));
    pool.0.clone().unwrap().scale_up(1);
    let all = visited_threads(working).await;
    let last: BTreeSet<String> =
        all.iter().filter_map(|seen| seen.last()).map(|id| format!("{id:?}")).collect();
    assert_eq!((all.len(), last.len()), (4, 2), "{all:?}");
    // The next load starts with one thread again.
    let next = visited_threads(pool.spawn(thread_recorders(2))).await;
    assert!(next.iter().all(|seen| *seen == next[0]), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn migrated_workers_finish_panic_and_cancel_normally() {
    let pool = WorkerPool::start(2).unwrap();
    let (alive, threads) = (Arc::new(()), pool.0.clone().unwrap());
    let worker = || -> BoxFuture<'static, ()> {
        let alive = alive.clone();
        Box::pin(async move {
            let _alive = alive;
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let working = pool.spawn(vec![worker(), worker()]);
    threads.scale_up(1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(Arc::strong_count(&alive), 3);
    drop(working);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(Arc::strong_count(&alive), 1, "dropping the set cancels migrated workers");
    let mut working = pool.spawn(vec![
        Box::pin(async {}),
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            panic!("an expected panic");
        }),
    ]);
    threads.scale_up(1);
    let mut ended = Vec::new();
    while let Some(result) = working.join_next().await {
        ended.push(result.is_ok());
    }
    assert_eq!(ended, [true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn loads_use_separate_threads_until_all_are_shared() {
    let pool = WorkerPool::start(2).unwrap();
    let threads = pool.0.clone().unwrap();
    let (one, other) = (pool.spawn(thread_recorders(3)), pool.spawn(thread_recorders(3)));
    let last = |all: Vec<Vec<thread::ThreadId>>| -> BTreeSet<String> {
        all.iter().filter_map(|seen| seen.last()).map(|id| format!("{id:?}")).collect()
    };
    let (one, other) = (last(visited_threads(one).await), last(visited_threads(other).await));
    assert!(one.len() == 1 && other.len() == 1 && one != other, "{one:?} {other:?}");
    let (one, other) = (pool.spawn(thread_recorders(3)), pool.spawn(thread_recorders(3)));
    threads.scale_up(2);
    let (one, other) = (last(visited_threads(one).await), last(visited_threads(other).await));
    assert!(one.len() == 2 && one == other, "{one:?} {other:?}");
}

#[test]
fn workers_are_spread_over_the_threads_in_use() {
    let (threads, _ended) = WorkerThreads::start(4).unwrap();
    let threads = Arc::new(threads);
    let places = |load| -> Vec<usize> { (0..4).map(|worker| threads.thread_for((load, worker))).collect() };
    let one = ActiveLoad::register(&threads);
    assert_eq!(places(0), [0, 0, 0, 0]);
    threads.scale_up(1);
    assert_eq!(places(0), [0, 1, 0, 1]);
    let other = ActiveLoad::register(&threads);
    assert_eq!((one.number(), other.number()), (0, 1));
    assert_eq!([places(0), places(1)], [[0, 0, 0, 0], [1, 1, 1, 1]]);
    threads.scale_up(1);
    assert_eq!(threads.used(), 2, "another caller has already added threads");
    threads.scale_up(2);
    assert_eq!([places(0), places(1)], [[0, 2, 0, 2], [1, 3, 1, 3]]);
    assert!(!threads.is_fully_used());
    threads.scale_up(4);
    assert_eq!([places(0), places(1)], [[0, 1, 2, 3], [1, 2, 3, 0]]);
    assert!(threads.is_fully_used());
    drop((one, other));
    let _next = ActiveLoad::register(&threads);
    assert_eq!(places(0), [0, 0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn thread_blocked_in_the_kernel_counts_as_busy() {
    let pool = WorkerPool::start(1).unwrap();
    let waiting: BoxFuture<'static, ()> = Box::pin(async { thread::sleep(Duration::from_millis(50)) });
    pool.spawn(vec![waiting]).join_next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let busy = pool.0.unwrap().busy_times();
    assert!(busy[0] >= Duration::from_millis(50) && busy.len() == 1, "{busy:?}");
}

/// Sends a message 100 ms after it was dropped.
struct DelayedCleanup(Option<oneshot::Sender<()>>);

impl Drop for DelayedCleanup {
    fn drop(&mut self) {
        let cleaned = self.0.take().unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let _ = cleaned.send(());
        });
    }
}

#[tokio::test]
async fn cancelled_workers_clean_up_before_the_thread_exits() {
    let pool = WorkerPool::start(1).unwrap();
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let (sender, cleaned) = oneshot::channel();
    let started = Arc::new(Notify::new());
    let worker: BoxFuture<'static, ()> = Box::pin({
        let started = started.clone();
        async move {
            let _cleanup = DelayedCleanup(Some(sender));
            started.notify_one();
            std::future::pending().await
        }
    });
    let working = pool.spawn(vec![worker]);
    started.notified().await;
    drop((working, pool));
    tokio::time::timeout(Duration::from_secs(10), cleaned).await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(10), async {
        while alive() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(before, 1, "the runtime has a task that waits for the threads to exit");
}
