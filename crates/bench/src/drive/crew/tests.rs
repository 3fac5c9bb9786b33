use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;

/// Threads that each of several workers was on, in its order.
async fn walked(mut working: AtWork<Vec<thread::ThreadId>>) -> Vec<Vec<thread::ThreadId>> {
    let mut all = Vec::new();
    while let Some(seen) = working.join_next().await {
        all.push(seen.unwrap());
    }
    all
}

fn walkers(count: usize) -> Vec<BoxFuture<'static, Vec<thread::ThreadId>>> {
    let walker = |_| -> BoxFuture<'static, _> {
        Box::pin(async move {
            let (mut seen, begun) = (Vec::new(), Instant::now());
            while begun.elapsed() < Duration::from_millis(300) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                seen.push(thread::current().id());
            }
            seen.dedup();
            seen
        })
    };
    (0..count).map(walker).collect()
}

#[tokio::test]
async fn workers_share_one_thread_and_stay_there() {
    let crew = Crew::hire(2).unwrap();
    let all = walked(crew.set(walkers(4))).await;
    assert!(all.len() == 4 && all.iter().all(|seen| *seen == all[0] && seen.len() == 1), "{all:?}");
    assert!(!all[0].contains(&thread::current().id()));
    let here = walked(Crew::default().set(walkers(1))).await;
    assert_eq!(here, [[thread::current().id()]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn where_more_threads_are_used_workers_go_over_to_them() {
    let crew = Crew::hire(2).unwrap();
    let working = crew.set(walkers(4));
    crew.0.clone().unwrap().use_more(1);
    let all = walked(working).await;
    let last: BTreeSet<String> =
        all.iter().filter_map(|seen| seen.last()).map(|id| format!("{id:?}")).collect();
    assert_eq!((all.len(), last.len()), (4, 2), "{all:?}");
    // The next load begins with one again.
    let next = walked(crew.set(walkers(2))).await;
    assert!(next.iter().all(|seen| *seen == next[0]), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whoever_went_over_ends_and_fails_as_if_it_had_not() {
    let crew = Crew::hire(2).unwrap();
    let (alive, threads) = (Arc::new(()), crew.0.clone().unwrap());
    let worker = || -> BoxFuture<'static, ()> {
        let alive = alive.clone();
        Box::pin(async move {
            let _alive = alive;
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let working = crew.set(vec![worker(), worker()]);
    threads.use_more(1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(Arc::strong_count(&alive), 3);
    drop(working);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(Arc::strong_count(&alive), 1, "dropping the set breaks off what went over");
    let mut working = crew.set(vec![
        Box::pin(async {}),
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            panic!("as it is to");
        }),
    ]);
    threads.use_more(1);
    let mut ended = Vec::new();
    while let Some(came) = working.join_next().await {
        ended.push(came.is_ok());
    }
    assert_eq!(ended, [true, false]);
}
