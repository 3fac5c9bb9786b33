use tradewind_core::BucketName;

use super::*;
use crate::arrivals::Spacing;
use crate::caches::{CacheDropper, CacheTreatment};
use crate::drive::tests::env;
use crate::load::{ArrivalMode, StopCondition};
use crate::load_spec::LoadSpec;
use crate::operation::Mix;
use crate::size_distribution::SizeDistribution;
use crate::test_plan::TestPlan;

fn plan(mixes: &[&str], sizes: &[&str]) -> TestPlan {
    let mixes: Vec<Mix> = mixes.iter().map(|mix| mix.parse().unwrap()).collect();
    let sizes: Vec<SizeDistribution> = sizes.iter().map(|sizes| sizes.parse().unwrap()).collect();
    TestPlan {
        loads: LoadSpec::combinations(&mixes, &sizes, &[1, 4], ArrivalMode::Closed),
        stop_condition: StopCondition {
            max_requests: Some(30),
            duration: Duration::from_secs(30),
            max_ci_fraction: None,
        },
        warm_up: Duration::ZERO,
        objects: Some(20),
        seed: 1,
    }
}

#[tokio::test]
async fn run_measures_every_step_and_clean_removes_all_objects() {
    let env = env().await;
    let plan = plan(&["put", "get", "get=2,delete=1,put=1"], &["1KiB", "2KiB-9KiB"]);
    let stages = (1..=2).flat_map(|round| plan.steps(round)).map(|step| vec![step]);
    let mut runner = Runner::new(&env, "there/", 1, (2, false));
    let mut measurements = Vec::new();
    let stop = StopSignal::default();
    let all = runner.run(stages, &stop, |event| {
        if let RunEvent::Measured(measurement) = event {
            measurements.push(measurement.clone());
        }
    });
    assert!(all.await.unwrap());
    assert_eq!(measurements.len(), 24);
    assert!(
        measurements.iter().all(|measurement| measurement.failure_count() == 0 && !measurement.is_partial()),
        "{measurements:?}"
    );
    assert!(
        measurements.iter().all(|measurement| measurement
            .operations
            .values()
            .map(|f| f.operations)
            .sum::<u64>()
            == 30)
    );
    assert_eq!((measurements[0].round, measurements[12].round), (1, 2));
    let removed = runner.clean().await.unwrap();
    assert!((20..200).contains(&removed), "only the objects to read are left: {removed}");
    assert_eq!(
        Runner::new(&env, "", 1, (2, false)).clean().await.unwrap(),
        0,
        "no objects outside the prefix"
    );
}

#[tokio::test]
async fn steps_of_a_stage_run_concurrently_on_their_own_objects() {
    let env = env().await;
    let stop_condition =
        StopCondition { max_requests: None, duration: Duration::from_millis(300), max_ci_fraction: None };
    let loads = ["get 1KiB x 2", "put 1KiB x 2"].map(|loads| loads.parse().unwrap()).to_vec();
    let plan = TestPlan { stop_condition, loads, ..plan(&[], &[]) };
    let [get, put] = <[Step; 2]>::try_from(plan.steps(1)).unwrap();
    let mut runner = Runner::new(&env, "there/", 2, (2, false));
    let mut measurements = Vec::new();
    let stages = [vec![get.clone(), put], vec![get.clone(), get]];
    let stop = StopSignal::default();
    let all = runner.run(stages, &stop, |event| {
        if let RunEvent::Measured(measurement) = event {
            measurements.push(measurement.clone());
        }
    });
    assert!(all.await.unwrap());
    let names: Vec<String> = measurements.iter().map(Measurement::name).collect();
    assert_eq!(
        names,
        [
            "get 1KiB x 2 with put 1KiB x 2",
            "put 1KiB x 2 with get 1KiB x 2",
            "get 1KiB x 2 with get 1KiB x 2",
            "get 1KiB x 2 with get 1KiB x 2"
        ]
    );
    assert!(
        measurements
            .iter()
            .all(|measurement| measurement.failure_count() == 0 && !measurement.has_no_success()),
        "{measurements:?}"
    );
    let skew = measurements[0].started_ms.abs_diff(measurements[1].started_ms);
    assert!(skew < 200, "they began {skew} ms apart");
    assert_eq!(runner.clean().await.unwrap(), 40, "twenty objects to read for each step");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_concurrent_with_an_overrun_load_is_void() {
    let env = env().await;
    let stop_condition =
        StopCondition { max_requests: None, duration: Duration::from_secs(3), max_ci_fraction: None };
    let loads = ["get 1KiB x 1", "head 1KiB x 1 at 1000000/s"].map(|loads| loads.parse().unwrap()).to_vec();
    let mut stage = TestPlan { stop_condition, loads, ..plan(&[], &[]) }.steps(1);
    // Just enough requests to overflow the queue at once.
    stage[1].load.arrival_mode = ArrivalMode::Open { requests_per_second: 1e9, spacing: Spacing::Fixed };
    stage[1].load.stop_condition.max_requests = Some((1 << 20) + 100_000);
    let mut runner = Runner::new(&env, "there/", 2, (2, false));
    let mut measurements = Vec::new();
    let stop = StopSignal::default();
    let all = runner.run([stage], &stop, |event| {
        if let RunEvent::Measured(measurement) = event {
            measurements.push(measurement.clone());
        }
    });
    assert!(all.await.unwrap(), "later stages are still measured");
    assert!(
        measurements.len() == 2 && measurements.iter().all(Measurement::is_void),
        "{:?}",
        measurements[0].end_reason
    );
    assert!(measurements[0].operations_per_second.mean > 0.0, "it ran");
    assert!(
        measurements[0].notes.iter().any(|note| note.contains("the concurrent load head 1KiB x 1")),
        "{:?}",
        measurements[0].notes
    );
}

#[tokio::test]
async fn run_fails_if_objects_cannot_be_created() {
    let mut env = env().await;
    env.bucket = BucketName::new("not-there").unwrap();
    let stages = plan(&["get"], &["1KiB"]).steps(1).into_iter().map(|step| vec![step]);
    let mut runner = Runner::new(&env, "x/", 1, (2, false));
    let failed = runner.run(stages, &StopSignal::default(), |_| {}).await.unwrap_err();
    assert_eq!(failed.to_string(), "bucket \"not-there\" does not exist");
}

#[tokio::test]
async fn caches_are_dropped_after_preparation_before_each_stage() {
    let env = env().await;
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("drop_caches");
    std::fs::write(&control, "").unwrap();
    let kernel = Some(CacheDropper::with_control_file(&control));
    let mut runner = Runner::new(&env, "there/", 1, (2, false)).with_cache_dropping(kernel);
    let stages = (1..=2).flat_map(|round| plan(&["get"], &["1KiB"]).steps(round)).map(|step| vec![step]);
    let (mut phases, mut measurements) = (Vec::new(), Vec::new());
    let stop = StopSignal::default();
    let all = runner.run(stages, &stop, |event| {
        let written = std::fs::read_to_string(&control).unwrap();
        match event {
            RunEvent::PhaseStarted { description, .. } => phases.push((description, written)),
            RunEvent::Measured(measurement) => {
                measurements.push(measurement.caches);
                std::fs::write(&control, "").unwrap();
            }
        }
    });
    assert!(all.await.unwrap());
    let phases: Vec<(&str, &str)> = phases.iter().map(|(what, written)| (&**what, &**written)).collect();
    let stage = |what| [("dropping caches", ""), (what, "3\n")];
    let round = [stage("get 1KiB x 1"), stage("get 1KiB x 4")].concat();
    assert_eq!(phases[0], ("creating 20 objects of 1KiB", ""));
    assert_eq!(phases[1..], [round.clone(), round].concat());
    assert_eq!(measurements, [CacheTreatment::Dropped; 4]);
    let stage = plan(&["get"], &["1KiB"]).steps(1);
    std::fs::remove_dir_all(directory.path()).unwrap();
    let failed = runner.run([stage], &stop, |_| {}).await.unwrap_err();
    assert!(failed.to_string().contains("cannot drop caches: "), "{failed}");
    let mut plain = Runner::new(&env, "else/", 1, (2, false));
    let stages = plan(&["get"], &["1KiB"]).steps(1).into_iter().map(|step| vec![step]);
    let all = plain.run(stages, &stop, |event| match event {
        RunEvent::PhaseStarted { description, .. } => assert_ne!(description, "dropping caches"),
        RunEvent::Measured(measurement) => assert_eq!(measurement.caches, CacheTreatment::NotDropped),
    });
    assert!(all.await.unwrap());
}
