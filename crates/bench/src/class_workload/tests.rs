use std::collections::BTreeSet;

use tradewind_core::store::GetRequest;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation as Call};
use tradewind_core::{Address, Class};
use tradewind_model::class_policy::DataType;

use super::*;
use crate::drive::request_context;
use crate::drive::tests::env;

/// 33 objects, 100 GETs.
fn options() -> ClassWorkload {
    ClassWorkload {
        scale: 0.001,
        total_bytes: Some(4 << 20),
        labels: Labels::On,
        concurrency: 8,
        timeout: None,
        seed: 1,
    }
}

async fn run(env: &BenchEnv, options: &ClassWorkload) -> ClassWorkloadReport {
    let (stop, progress) = (StopSignal::default(), Arc::default());
    options.run(env, "run/", &stop, &progress, |_| {}).await.unwrap()
}

fn faulty(env: BenchEnv, call: Call, when: FaultSchedule, fault: Fault) -> BenchEnv {
    BenchEnv { store: Faulty::new(env.store.clone(), FaultPlan::none().with_fault(call, when, fault)), ..env }
}

#[tokio::test]
async fn phases_put_get_and_delete_all_objects() {
    let env = env().await;
    let report = run(&env, &options()).await;
    let requests: Vec<u64> = report.phases.iter().map(|phase| phase.all.requests).collect();
    assert_eq!(requests, [report.objects as u64, 100, report.objects as u64]);
    assert_eq!(report.failure_count(), 0);
    assert_eq!(report.phases[0].all.bytes, report.total_bytes);
    assert!((report.total_bytes as f64 / f64::from(4 << 20) - 1.0).abs() < 0.01, "{}", report.total_bytes);
    for phase in &report.phases {
        let by_type: u64 = phase.types.iter().map(|of_type| of_type.stats.requests).sum();
        assert_eq!(by_type, phase.all.requests);
        assert_eq!(phase.all.latency_us.count, phase.all.requests);
        assert_eq!(phase.all.first_byte_us.is_some(), phase.operation == Operation::Get);
    }
    assert_eq!(remove_objects(&env, "run/").await.unwrap(), 0);
}

#[tokio::test]
async fn objects_are_stored_with_the_class_of_their_label() {
    let env = env().await;
    for labels in Labels::ALL {
        let plan = Plan::new(&ClassWorkload { labels, ..options() }, "labels/");
        let expected: Vec<Option<Class>> = plan.objects.iter().map(|object| object.class).collect();
        let runner = PhaseRunner {
            env: env.clone(),
            plan: Arc::new(plan),
            concurrency: 4,
            stop: StopSignal::default(),
            progress: Arc::default(),
        };
        let requests = runner.plan.puts.clone();
        runner
            .run(PhaseWork { operation: Operation::Put, requests, timeout: None, until: None })
            .await
            .unwrap();
        let context = request_context(&env).await.unwrap();
        for (object, class) in runner.plan.objects.iter().zip(expected) {
            let address = Address::parse(env.bucket.as_str(), &object.key).unwrap();
            let found = env.store.head(&context, &address, GetRequest::default()).await.unwrap();
            assert_eq!(found.info.metadata.classes.object, class, "{labels:?} {}", object.key);
        }
    }
}

#[test]
fn requests_follow_from_the_seed_and_not_from_the_labels() {
    let plan = |seed, labels| Plan::new(&ClassWorkload { seed, labels, ..options() }, "");
    let (on, off, other) = (plan(1, Labels::On), plan(1, Labels::Off), plan(2, Labels::On));
    let sizes = |plan: &Plan| plan.objects.iter().map(|object| object.bytes).collect::<Vec<_>>();
    assert_eq!((sizes(&on), &on.puts, &on.gets), (sizes(&off), &off.puts, &off.gets));
    assert_ne!(on.gets, other.gets);
    assert_eq!(on.puts.iter().collect::<BTreeSet<_>>().len(), on.objects.len());
}

#[test]
fn a_scaled_workload_keeps_the_classes_of_table_1() {
    let plan = |total_bytes| Plan::new(&ClassWorkload { total_bytes, scale: 0.01, ..options() }, "");
    let classes = |plan: &Plan| plan.objects.iter().map(|object| object.class).collect::<Vec<_>>();
    let (full, small) = (plan(None), plan(Some(1 << 20)));
    assert_eq!(classes(&full), classes(&small));
    let image = small.objects.iter().find(|object| object.data_type == DataType::DiskImages).unwrap();
    assert_eq!(image.class.map(Class::value), Some(31));
}

#[tokio::test(start_paused = true)]
async fn a_response_after_the_limit_is_a_failure_and_no_throughput() {
    let env = faulty(env().await, Call::Get, FaultSchedule::Nth(3), Fault::Hang);
    let limited = ClassWorkload { timeout: Some(Duration::from_secs(1)), ..options() };
    let report = run(&env, &limited).await;
    let get = &report.phases[1];
    assert_eq!(get.all.failures.get("Timeout"), Some(&1), "{:?}", get.failure_samples);
    assert_eq!((get.all.requests, get.all.latency_us.count), (99, 99));
}

#[tokio::test]
async fn a_failed_put_is_repeated_and_its_object_is_read() {
    let fault = Fault::FailBefore(Reason::Overloaded);
    let env = faulty(env().await, Call::Commit, FaultSchedule::Nth(5), fault);
    let report = run(&env, &options()).await;
    let put = &report.phases[0];
    assert_eq!((put.all.failure_count(), put.repeated), (1, 1));
    assert_eq!(put.all.requests, report.objects as u64 - 1);
    assert!(put.all.bytes < report.total_bytes);
    assert_eq!(report.phases[1].all.failure_count(), 0);
}

#[tokio::test]
async fn damaged_and_truncated_bodies_are_wrong_responses() {
    for fault in [Fault::Corrupt(0), Fault::Truncate(0)] {
        let env = faulty(env().await, Call::Body, FaultSchedule::Nth(7), fault);
        let report = run(&env, &options()).await;
        assert_eq!(report.phases[1].all.wrong_responses(), 1, "{fault:?}");
        assert_eq!(report.phases[1].all.requests, 99);
    }
}

#[tokio::test]
async fn a_store_that_takes_no_objects_is_an_error() {
    let fault = Fault::FailBefore(Reason::Overloaded);
    let env = faulty(env().await, Call::Commit, FaultSchedule::Always, fault);
    let (stop, progress) = (StopSignal::default(), Arc::default());
    let outcome = options().run(&env, "run/", &stop, &progress, |_| {}).await;
    assert!(outcome.unwrap_err().to_string().contains("cannot be created"));
}

#[tokio::test]
async fn a_stop_keeps_the_phases_so_far() {
    let env = env().await;
    let (stop, progress) = (StopSignal::default(), Arc::default());
    let triggered = stop.clone();
    let report = options().run(&env, "run/", &stop, &progress, |_| triggered.trigger()).await.unwrap();
    assert!(report.is_partial);
    assert_eq!(report.phases.len(), 1);
    assert_eq!(remove_objects(&env, "run/").await.unwrap(), report.objects as u64);
}

#[tokio::test]
async fn streams_compare_files_alone_with_all_types_together() {
    let env = env().await;
    let (stop, progress, time) = (StopSignal::default(), Arc::default(), Duration::from_millis(150));
    let options = ClassWorkload { concurrency: 8, ..options() };
    let report = options.run_streams(&env, "streams/", time, &stop, &progress, |_| {}).await.unwrap();
    assert_eq!((report.clients_per_stream, report.failure_count(), report.is_partial), (2, 0, false));
    assert_eq!(report.objects, STREAM_TYPES.len() * 6);
    assert_eq!(report.operations.len(), 2);
    for operation in &report.operations {
        let names: Vec<_> = operation.together.iter().map(|stream| stream.name).collect();
        assert_eq!(names, ["files", "pictures", "music", "video"]);
        assert!(operation.together.iter().all(|stream| stream.stats.requests > 0), "{operation:?}");
        assert!(operation.files_alone.requests > 0 && operation.files_p90_ratio.unwrap() > 0.0);
        let sum: f64 = operation.together.iter().map(|stream| stream.stats.bytes_per_second).sum();
        assert!((sum - operation.bytes_per_second).abs() < 1.0);
    }
    let context = request_context(&env).await.unwrap();
    for object in Plan::for_streams(&options, "streams/").objects {
        let address = Address::parse(env.bucket.as_str(), &object.key).unwrap();
        let found = env.store.head(&context, &address, GetRequest::default()).await.unwrap();
        assert_eq!((found.info.metadata.classes.object, found.info.size), (object.class, object.bytes));
    }
    assert_eq!(remove_objects(&env, "streams/").await.unwrap(), report.objects as u64);
}

#[tokio::test]
async fn failures_of_streams_are_counted_and_are_no_latencies() {
    let fault = Fault::FailBefore(Reason::Overloaded);
    // The third GET is one of the unmeasured pass.
    let env = faulty(env().await, Call::Get, FaultSchedule::Nth(3), fault);
    let (stop, progress, time) = (StopSignal::default(), Arc::default(), Duration::from_millis(100));
    let report = options().run_streams(&env, "streams/", time, &stop, &progress, |_| {}).await.unwrap();
    assert_eq!((report.operations[0].failure_count(), report.operations[1].failure_count()), (0, 1));
    assert_eq!(report.operations[1].unmeasured_failures, 1);
    assert_eq!(report.operations[1].failure_samples.len(), 1);
}
