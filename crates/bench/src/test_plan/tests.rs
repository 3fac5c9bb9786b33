use super::*;
use crate::load::ArrivalMode;
use crate::operation::Mix;

fn plan(mixes: &[&str], sizes: &[&str]) -> TestPlan {
    let mixes: Vec<Mix> = mixes.iter().map(|mix| mix.parse().unwrap()).collect();
    let sizes: Vec<SizeDistribution> = sizes.iter().map(|sizes| sizes.parse().unwrap()).collect();
    TestPlan {
        loads: LoadSpec::combinations(&mixes, &sizes, &[1, 4], ArrivalMode::Closed),
        stop_condition: StopCondition {
            max_requests: None,
            duration: Duration::from_secs(3),
            max_ci_fraction: None,
        },
        warm_up: Duration::from_secs(1),
        objects: None,
        seed: 1,
    }
}

#[test]
fn steps_combine_every_mix_size_and_concurrency() {
    let plan = plan(&["put", "get", "delete"], &["4KiB", "100MiB"]);
    let steps = plan.steps(2);
    let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(names[..3], ["put 4KiB x 1", "put 4KiB x 4", "get 4KiB x 1"]);
    assert_eq!((steps.len(), &*names[11]), (12, "delete 100MiB x 4"));
    assert!(steps.iter().all(|step| step.round == 2));
    assert_eq!(
        (steps[2].objects, steps[8].objects),
        (10_000, 4),
        "at most 512 MB, but at least one for each concurrent request"
    );
    assert_eq!((steps[2].load.warm_up, steps[4].load.warm_up), (Duration::from_secs(1), Duration::ZERO));
    assert_ne!(steps[0].load.seed, plan.steps(1)[0].load.seed);
}

#[test]
fn check_rejects_invalid_plans() {
    let error = |mixes: &[&str], sizes: &[&str]| plan(mixes, sizes).check(1 << 20).unwrap_err();
    assert!(error(&["delete=2,put=1"], &["1KiB"]).contains("run out of objects"));
    assert!(error(&["put"], &["2MiB"]).contains("the limit of this store"));
    assert!(error(&[], &["1KiB"]).contains("there is nothing to measure"));
    assert!(plan(&["delete"], &["1MiB"]).check(1 << 20).is_ok(), "it runs until no object is left");
    let few = TestPlan { objects: Some(3), ..plan(&["get"], &["1KiB"]) };
    assert!(few.check(1 << 20).unwrap_err().contains("3 objects are too few for 4 concurrent requests"));
}
