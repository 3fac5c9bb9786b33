use tradewind_core::error::Reason;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation as Call};

use super::*;
use crate::arrivals::Spacing;
use crate::drive::EndReason;
use crate::drive::tests::env;
use crate::test_plan::Step;

fn step(mix: &str) -> Step {
    let stop_condition =
        StopCondition { max_requests: Some(30), duration: Duration::from_secs(30), max_ci_fraction: None };
    let load = Load {
        mix: mix.parse().unwrap(),
        concurrency: 4,
        arrival_mode: ArrivalMode::Closed,
        stop_condition,
        warm_up: Duration::ZERO,
        seed: 1,
        phase: 0.0,
    };
    Step { load, sizes: "1KiB".parse().unwrap(), objects: 20, round: 1 }
}

#[tokio::test]
async fn clean_removes_by_name_if_listing_is_denied() {
    let open = env().await;
    let denied = FaultPlan::none().with_fault(
        Call::List,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let env = BenchEnv { store: Faulty::new(open.store.clone(), denied), ..open.clone() };
    let mut workspace = Workspace::new(env, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert!(workspace.prepare(&step("get"), &stop, &progress).await.unwrap());
    workspace.measure(&step("put"), &stop, &progress).await.unwrap();
    assert_eq!(workspace.clean().await.unwrap(), 50);
    let mut all = Workspace::new(open, String::new());
    assert_eq!(all.clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn missing_bucket_ends_the_load_and_leaves_no_objects() {
    let open = env().await;
    let env = BenchEnv { bucket: tradewind_core::BucketName::new("no-such-bucket").unwrap(), ..open };
    let mut workspace = Workspace::new(env, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    let failed = workspace.prepare(&step("get"), &stop, &progress).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::NoSuchBucket, "{failed}");
    let failed = workspace.measure(&step("put"), &stop, &progress).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::NoSuchBucket, "{failed}");
    let (_, _, failures) = progress.snapshot();
    assert!(failures <= 32 + 4, "each worker fails at most once: {failures}");
    assert_eq!(workspace.clean().await.unwrap(), 0);
}

#[tokio::test]
async fn clean_of_unknown_names_fails_if_listing_is_denied() {
    let open = env().await;
    let denied = FaultPlan::none().with_fault(
        Call::List,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let env = BenchEnv { store: Faulty::new(open.store.clone(), denied), ..open.clone() };
    assert_eq!(Workspace::clean_prefix(&env, "lost/").await.unwrap_err().reason(), Reason::AccessDenied);
    assert_eq!(Workspace::clean_prefix(&open, "lost/").await.unwrap(), 0);
}

#[tokio::test]
async fn clean_never_removes_objects_outside_the_prefix() {
    let open = env().await;
    let mut other = Workspace::new(open.clone(), "theirs/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert!(other.prepare(&step("get"), &stop, &progress).await.unwrap());
    let lies = FaultPlan::none().with_fault(Call::List, FaultSchedule::Always, Fault::IgnorePrefix);
    let env = BenchEnv { store: Faulty::new(open.store.clone(), lies), ..open };
    let mut workspace = Workspace::new(env, "ours/".to_owned());
    assert!(workspace.prepare(&step("get"), &stop, &progress).await.unwrap());
    let error = workspace.clean().await.unwrap_err().to_string();
    assert!(error.contains("names with the prefix ours/ were requested"), "{error}");
    assert!(error.contains("the store listed theirs/"), "{error}");
    assert_eq!(other.clean().await.unwrap(), 20, "all of them still exist");
}

#[tokio::test]
async fn clean_retries_only_failed_deletes() {
    let open = env().await;
    let passing = FaultPlan::none().with_fault(
        Call::Delete,
        FaultSchedule::Nth(7),
        Fault::FailBefore(Reason::Overloaded),
    );
    // All but one are removed in the first pass. Removing them again would fail.
    let later =
        passing.with_fault(Call::Delete, FaultSchedule::From(22), Fault::FailBefore(Reason::Overloaded));
    let env = BenchEnv { store: Faulty::new(open.store.clone(), later), ..open };
    let mut workspace = Workspace::new(env, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert!(workspace.prepare(&step("get"), &stop, &progress).await.unwrap());
    assert_eq!(workspace.clean().await.unwrap(), 20);
}

#[tokio::test]
async fn clean_removes_unlisted_objects_by_name() {
    let open = env().await;
    let blind = FaultPlan::none().with_fault(Call::List, FaultSchedule::Always, Fault::EmptyListing);
    let env = BenchEnv { store: Faulty::new(open.store.clone(), blind), ..open.clone() };
    let mut workspace = Workspace::new(env, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert!(workspace.prepare(&step("get"), &stop, &progress).await.unwrap());
    workspace.measure(&step("put"), &stop, &progress).await.unwrap();
    assert_eq!(workspace.clean().await.unwrap(), 50);
    assert_eq!(Workspace::new(open, String::new()).clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn clean_fails_if_objects_stay_listed() {
    let open = env().await;
    let feigns = FaultPlan::none().with_fault(Call::Delete, FaultSchedule::Always, Fault::PretendSuccess);
    let env = BenchEnv { store: Faulty::new(open.store.clone(), feigns), ..open };
    let mut workspace = Workspace::new(env, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert!(workspace.prepare(&step("get"), &stop, &progress).await.unwrap());
    let why = workspace.clean().await.unwrap_err().to_string();
    assert!(why.contains("are still listed after they were removed 50 times"), "{why}");
}

#[tokio::test]
async fn prepare_reuses_existing_objects() {
    let mut workspace = Workspace::new(env().await, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert_eq!((workspace.missing_objects(&step("get")), workspace.missing_objects(&step("put"))), (20, 0));
    workspace.prepare(&step("get"), &stop, &progress).await.unwrap();
    assert_eq!(workspace.missing_objects(&step("head")), 0);
    assert_eq!(workspace.missing_objects(&step("get=1,put=1")), 20, "mixes use a separate object set");
    workspace.measure(&step("delete"), &stop, &progress).await.unwrap();
    assert_eq!(workspace.missing_objects(&step("get")), 20);
}

#[tokio::test]
async fn delete_only_load_ends_with_the_last_object() {
    let mut workspace = Workspace::new(env().await, "there/".to_owned());
    let (stop, progress) = (StopSignal::default(), Arc::default());
    let mut step = step("delete");
    // More requests than objects, and far more workers than either: idle workers must not each wait for a scheduled
    // start.
    step.load.arrival_mode = ArrivalMode::Open { requests_per_second: 40.0, spacing: Spacing::Fixed };
    step.load.concurrency = 1000;
    step.load.stop_condition =
        StopCondition { max_requests: None, duration: Duration::from_secs(10), max_ci_fraction: None };
    assert!(workspace.prepare(&step, &stop, &progress).await.unwrap());
    let outcome = workspace.measure(&step, &stop, &progress).await.unwrap();
    assert_eq!(outcome.record.stats_by_operation()[&Operation::Delete].operations, 20);
    assert_eq!((outcome.queued, outcome.never_started), (0, 0), "the store is not to blame");
    assert_eq!(outcome.end_reason, EndReason::Exhausted, "{:?}", outcome.duration);
}
