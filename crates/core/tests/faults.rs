//! The fault injector applies exactly the faults of its plan and counts them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context, context_until,
};
use tradewind_core::{Address, Body, Budget, Clock, Context, ObjectStore, Reason, Result, SystemClock};

const SIZE: usize = 200_000;

fn key() -> Address {
    Address::parse("bucket", "key").expect("a legal address")
}

/// A store with a bucket, with the plan applied afterwards.
async fn faulty(plan: FaultPlan) -> Arc<Faulty<MemoryStore>> {
    let store = Faulty::new(MemoryStore::new(SystemClock::shared()), FaultPlan::none());
    store.create_bucket(&context(), &key().bucket).await.expect("a bucket can be created");
    store.set_plan(plan);
    store
}

async fn put(store: &dyn ObjectStore, context: &Context) -> Result<()> {
    let mut staged = store.stage(context, &key(), StageRequest::default()).await?;
    staged.write(vec![7; SIZE].into()).await?;
    staged.commit(Expected::default()).await.map(drop)
}

async fn get(store: &dyn ObjectStore) -> Result<GetResponse<Body>> {
    store.get(&context(), &key(), GetRequest::default()).await
}

fn reason<T>(result: Result<T>) -> Option<Reason> {
    result.err().map(|e| e.reason())
}

#[tokio::test]
async fn fail_before_is_not_applied_and_fail_after_is() {
    let plan = FaultPlan::none()
        .with_fault(Operation::Commit, FaultSchedule::Nth(1), Fault::FailBefore(Reason::Full))
        .with_fault(Operation::Commit, FaultSchedule::Nth(2), Fault::FailAfter(Reason::Io));
    let store = faulty(plan).await;
    assert_eq!(reason(put(&*store, &context()).await), Some(Reason::Full));
    assert_eq!(reason(get(&*store).await), Some(Reason::NoSuchKey));
    assert_eq!(reason(put(&*store, &context()).await), Some(Reason::Io));
    assert_eq!(get(&*store).await.unwrap().body.collect().await.unwrap().len(), SIZE);
    assert_eq!(reason(put(&*store, &context()).await), None);
    assert_eq!((store.calls(Operation::Commit), store.injected(Operation::Commit)), (3, 2));
    assert_eq!((store.calls(Operation::Write), store.injected(Operation::Write)), (3, 0));
    let faults = [Fault::FailBefore(Reason::Full), Fault::FailAfter(Reason::Io)];
    assert_eq!(store.faults(), faults.map(|fault| (Operation::Commit, fault)));
}

#[tokio::test]
async fn delay_uses_the_clock_of_the_request() {
    let delay = Fault::Delay(Duration::from_secs(60));
    let store = faulty(FaultPlan::none().with_fault(Operation::Stage, FaultSchedule::Always, delay)).await;
    let clock = SimulatedClock::new();
    let patient = context_until(&Budget::new(1 << 20), Deadline::none(clock.clone()));
    let mut write = std::pin::pin!(put(&*store, &patient));
    assert!(write.as_mut().now_or_never().is_none());
    clock.advance(Duration::from_secs(59));
    assert!(write.as_mut().now_or_never().is_none());
    clock.advance(Duration::from_secs(1));
    write.await.unwrap();

    let hurried = Deadline::after(clock.clone(), Duration::from_secs(5));
    let hurried = context_until(&Budget::new(1 << 20), hurried);
    let mut write = std::pin::pin!(put(&*store, &hurried));
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(clock.next_wake(), Some(clock.now() + Duration::from_secs(5)));
    clock.advance(Duration::from_secs(5));
    assert_eq!(reason(write.await), Some(Reason::DeadlineExceeded));
}

#[tokio::test]
async fn hanging_call_ends_when_cancelled() {
    let store =
        faulty(FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, Fault::Hang)).await;
    let token = CancellationToken::new();
    let deadline = Deadline::none(SystemClock::shared()).with_cancellation(token.clone());
    let context = context_until(&Budget::new(1 << 20), deadline);
    let mut write = std::pin::pin!(put(&*store, &context));
    assert!(write.as_mut().now_or_never().is_none());
    token.cancel();
    assert_eq!(reason(write.await), Some(Reason::Cancelled));
    assert_eq!(reason(get(&*store).await), Some(Reason::NoSuchKey));
}

#[tokio::test]
async fn body_faults_hit_the_planned_offset() {
    let store = faulty(FaultPlan::none()).await;
    put(&*store, &context()).await.unwrap();
    let body_with = async |fault| {
        store.set_plan(FaultPlan::none().with_fault(Operation::Body, FaultSchedule::Always, fault));
        let found = get(&*store).await.unwrap();
        assert_eq!(found.body.length(), SIZE as u64);
        found.body.collect().await
    };
    for at in [0, 1, 65_535, 65_536, 65_537, SIZE as u64 - 1, SIZE as u64, u64::MAX] {
        let hit = at.min(SIZE as u64 - 1) as usize;
        assert_eq!(body_with(Fault::Truncate(at)).await.unwrap().len(), hit);
        assert_eq!(reason(body_with(Fault::FailAt(at, Reason::Io)).await), Some(Reason::Io));
        let mut corrupt = body_with(Fault::Corrupt(at)).await.unwrap().to_vec();
        assert_eq!(corrupt[hit], 6);
        corrupt[hit] = 7;
        assert!(corrupt == vec![7; SIZE]);
    }
    assert_eq!(reason(body_with(Fault::FailBefore(Reason::Overloaded)).await), Some(Reason::Overloaded));
    assert_eq!(store.injected(Operation::Body), 8 * 3 + 1);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_faults() {
    let play = async |seed| {
        let plan = FaultPlan::seeded(seed)
            .with_fault_on_any(FaultSchedule::Probability(0.2), Fault::FailBefore(Reason::Io));
        let store = faulty(plan).await;
        let mut outcomes = Vec::new();
        for _ in 0..50 {
            outcomes.push(put(&*store, &context()).await.is_ok());
            outcomes.push(get(&*store).await.is_ok());
        }
        outcomes
    };
    assert_eq!(play(1).await, play(1).await);
    assert_ne!(play(1).await, play(2).await);
}
