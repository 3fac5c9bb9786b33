//! Collections that fail or are dropped, next to writes and reads.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::context::Deadline;
use tradewind_core::error::Reason;
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, Operation, SimulatedClock, context, context_until, reason,
};
use tradewind_core::{Budget, ObjectStore};

use super::collection::delete;
use super::copy_request;
use super::support::{Desk, memory, noise, put, read};

/// Any failing call ends the collection, before anything is deleted that is needed.
#[tokio::test]
async fn a_collection_that_cannot_read_everything_deletes_nothing_needed() {
    let faulty = Faulty::new(memory(), FaultPlan::none());
    let desk = Desk::with_store(faulty.clone()).await;
    let bytes = noise(1 << 20, 1);
    put(&*desk.layer, "k", bytes.clone()).await;
    put(&*desk.layer, "garbage", noise(1 << 20, 2)).await;
    delete(&desk, "garbage").await;
    let failure = Fault::FailBefore(Reason::Io);
    for operation in
        [Operation::ListBuckets, Operation::List, Operation::ListVersions, Operation::Head, Operation::Get]
    {
        faulty.set_plan(FaultPlan::none().with_fault(operation, FaultSchedule::Always, failure));
        assert_eq!(reason(desk.layer.collect(&context()).await), Reason::Io, "{operation:?}");
        faulty.set_plan(FaultPlan::none());
        assert_eq!(desk.chunk_bytes().await, 2 << 20, "{operation:?}");
    }
    let (mut failed, mut ended) = (0, 0);
    for seed in 0..60 {
        for fault in [failure, Fault::FailAfter(Reason::Io)] {
            let plan = FaultPlan::seeded(seed).with_fault_on_any(FaultSchedule::Probability(0.05), fault);
            faulty.set_plan(plan);
            match desk.layer.collect(&context()).await {
                Ok(_) => ended += 1,
                Err(_) => failed += 1,
            }
            faulty.set_plan(FaultPlan::none());
            assert!(read(&*desk.layer, "k").await == bytes, "seed {seed}");
            // Objects with an unknown outcome of their deletion are stored again, like deleted ones.
            put(&*desk.layer, "garbage", noise(1 << 20, 2)).await;
            assert!(read(&*desk.layer, "garbage").await == noise(1 << 20, 2), "seed {seed}");
            delete(&desk, "garbage").await;
        }
    }
    assert!(failed > 10 && ended > 10, "{failed} collections failed, {ended} ended");
}

/// A full queue of the store below does not end a collection of hours.
#[tokio::test]
async fn collection_repeats_requests_that_the_store_is_too_busy_for() {
    let faulty = Faulty::new(memory(), FaultPlan::none());
    let desk = Desk::with_store(faulty.clone()).await;
    for seed in 0..40 {
        put(&*desk.layer, &format!("{seed}"), noise(100_000, seed)).await;
        if seed % 2 == 0 {
            delete(&desk, &format!("{seed}")).await;
        }
    }
    let busy = Fault::FailBefore(Reason::Overloaded);
    faulty.set_plan(FaultPlan::seeded(1).with_fault_on_any(FaultSchedule::Probability(0.2), busy));
    let clock = SimulatedClock::new();
    let collecting = context_until(&Budget::new(1 << 20), Deadline::none(clock.clone()));
    let collection = desk.layer.collect(&collecting);
    let time = async {
        loop {
            clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
    };
    let report = tokio::select! {
        report = collection => report.unwrap().unwrap(),
        () = time => unreachable!(),
    };
    assert_eq!((report.objects, report.deleted_bytes), (20, 2_000_000));
    faulty.set_plan(FaultPlan::none());
    for seed in (1..40).step_by(2) {
        assert!(read(&*desk.layer, &format!("{seed}")).await == noise(100_000, seed), "{seed}");
    }
}

/// Writes, copies, deletes and reads of few contents, so that most chunks are found, and collections all the time. Some
/// are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_of_shared_chunks_survive_collections() {
    let desk = Arc::new(Desk::new().await);
    let contents: Arc<Vec<Bytes>> = Arc::new((0..3).map(|seed| noise(200_000, seed)).collect());
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..6_usize {
        let (desk, contents) = (desk.clone(), contents.clone());
        workers.spawn(async move {
            for round in 0..60_usize {
                let bytes = &contents[(worker + round) % contents.len()];
                let (key, copy) = (format!("{worker}"), format!("{worker}-copy"));
                put(&*desk.layer, &key, bytes.clone()).await;
                if round % 2 == 0 {
                    desk.layer.copy(&context(), copy_request(&key, &copy)).await.unwrap();
                    delete(&desk, &key).await;
                    assert!(read(&*desk.layer, &copy).await == *bytes, "round {round}");
                    delete(&desk, &copy).await;
                } else {
                    assert!(read(&*desk.layer, &key).await == *bytes, "round {round}");
                    delete(&desk, &key).await;
                }
            }
        });
    }
    let (mut collections, mut deleted, mut dropped, background) = (0, 0, 0, context());
    while !workers.is_empty() {
        let time = Duration::from_micros([200, 1_000, 1_000_000][collections % 3]);
        tokio::select! {
            ended = workers.join_next() => ended.unwrap().unwrap(),
            report = tokio::time::timeout(time, desk.layer.collect(&background)) => {
                collections += 1;
                match report {
                    Ok(report) => deleted += report.unwrap().map_or(0, |report| report.deleted_chunks),
                    Err(_) => dropped += 1,
                }
            }
        }
    }
    let counts = desk.layer.counts();
    assert!(
        collections > 5 && deleted > 5 && dropped > 1 && counts.found_chunks > 100,
        "{collections}, {deleted}, {dropped}, {counts:?}"
    );
    while desk.layer.collect(&context()).await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(desk.chunk_bytes().await, 0);
}
