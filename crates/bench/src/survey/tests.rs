use super::*;
use crate::load::Pace;
use crate::operation::Mix;

fn survey(mixes: &[&str], sizes: &[&str]) -> Survey {
    let mixes: Vec<Mix> = mixes.iter().map(|mix| mix.parse().unwrap()).collect();
    let sizes: Vec<Sizes> = sizes.iter().map(|sizes| sizes.parse().unwrap()).collect();
    Survey {
        asked: Asked::each(&mixes, &sizes, &[1, 4], Pace::Closed),
        until: Until { requests: None, time: Duration::from_secs(3), stable: None },
        warm_up: Duration::from_secs(1),
        objects: None,
        seed: 1,
    }
}

#[test]
fn every_kind_meets_every_size_and_parallelism() {
    let survey = survey(&["put", "get", "delete"], &["4KiB", "100MiB"]);
    let steps = survey.steps(2);
    let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(names[..3], ["put 4KiB x 1", "put 4KiB x 4", "get 4KiB x 1"]);
    assert_eq!((steps.len(), &*names[11]), (12, "delete 100MiB x 4"));
    assert!(steps.iter().all(|step| step.repeat == 2));
    assert_eq!(
        (steps[2].objects, steps[8].objects),
        (10_000, 4),
        "no more than 512 MB, one for each request at a time"
    );
    assert_eq!((steps[2].load.warm_up, steps[4].load.warm_up), (Duration::from_secs(1), Duration::ZERO));
    assert_ne!(steps[0].load.seed, survey.steps(1)[0].load.seed);
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |mixes: &[&str], sizes: &[&str]| survey(mixes, sizes).check(1 << 20).unwrap_err();
    assert!(refused(&["delete=2,put=1"], &["1KiB"]).contains("run out of objects"));
    assert!(refused(&["put"], &["2MiB"]).contains("the most that this store takes"));
    assert!(refused(&[], &["1KiB"]).contains("nothing is to be measured"));
    assert!(survey(&["delete"], &["1MiB"]).check(1 << 20).is_ok(), "until nothing is left");
    let few = Survey { objects: Some(3), ..survey(&["get"], &["1KiB"]) };
    assert!(few.check(1 << 20).unwrap_err().contains("3 objects are too few for 4 requests at a time"));
}
