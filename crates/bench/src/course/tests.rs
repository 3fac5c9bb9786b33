use tradewind_core::BucketName;

use super::*;
use crate::arrivals::Spacing;
use crate::asked::Asked;
use crate::caches::{Caches, Kernel};
use crate::drive::tests::bed;
use crate::load::{Pace, Until};
use crate::operation::Mix;
use crate::sizes::Sizes;
use crate::survey::Survey;

fn survey(mixes: &[&str], sizes: &[&str]) -> Survey {
    let mixes: Vec<Mix> = mixes.iter().map(|mix| mix.parse().unwrap()).collect();
    let sizes: Vec<Sizes> = sizes.iter().map(|sizes| sizes.parse().unwrap()).collect();
    Survey {
        asked: Asked::each(&mixes, &sizes, &[1, 4], Pace::Closed),
        until: Until { requests: Some(30), time: Duration::from_secs(30), stable: None },
        warm_up: Duration::ZERO,
        objects: Some(20),
        seed: 1,
    }
}

#[tokio::test]
async fn run_measures_every_step_and_clean_removes_all_objects() {
    let bed = bed().await;
    let survey = survey(&["put", "get", "get=2,delete=1,put=1"], &["1KiB", "2KiB-9KiB"]);
    let stages = (1..=2).flat_map(|repeat| survey.steps(repeat)).map(|step| vec![step]);
    let mut course = Course::new(&bed, "there/", 1, (2, false));
    let mut cells = Vec::new();
    let stop = Stop::default();
    let all = course.run(stages, &stop, |event| {
        if let Event::Measured(cell) = event {
            cells.push(cell.clone());
        }
    });
    assert!(all.await.unwrap());
    assert_eq!(cells.len(), 24);
    assert!(cells.iter().all(|cell| cell.failed() == 0 && !cell.is_partial()), "{cells:?}");
    assert!(cells.iter().all(|cell| cell.operations.values().map(|f| f.operations).sum::<u64>() == 30));
    assert_eq!((cells[0].repeat, cells[12].repeat), (1, 2));
    let removed = course.clean().await.unwrap();
    assert!((20..200).contains(&removed), "only the objects to read are left: {removed}");
    assert_eq!(
        Course::new(&bed, "", 1, (2, false)).clean().await.unwrap(),
        0,
        "no objects outside the prefix"
    );
}

#[tokio::test]
async fn steps_of_a_stage_run_concurrently_on_their_own_objects() {
    let bed = bed().await;
    let until = Until { requests: None, time: Duration::from_millis(300), stable: None };
    let asked = ["get 1KiB x 2", "put 1KiB x 2"].map(|asked| asked.parse().unwrap()).to_vec();
    let survey = Survey { until, asked, ..survey(&[], &[]) };
    let [get, put] = <[Step; 2]>::try_from(survey.steps(1)).unwrap();
    let mut course = Course::new(&bed, "there/", 2, (2, false));
    let mut cells = Vec::new();
    let stages = [vec![get.clone(), put], vec![get.clone(), get]];
    let stop = Stop::default();
    let all = course.run(stages, &stop, |event| {
        if let Event::Measured(cell) = event {
            cells.push(cell.clone());
        }
    });
    assert!(all.await.unwrap());
    let names: Vec<String> = cells.iter().map(Cell::name).collect();
    assert_eq!(
        names,
        [
            "get 1KiB x 2 beside put 1KiB x 2",
            "put 1KiB x 2 beside get 1KiB x 2",
            "get 1KiB x 2 beside get 1KiB x 2",
            "get 1KiB x 2 beside get 1KiB x 2"
        ]
    );
    assert!(cells.iter().all(|cell| cell.failed() == 0 && !cell.has_nothing()), "{cells:?}");
    let skew = cells[0].began.abs_diff(cells[1].began);
    assert!(skew < 200, "they began {skew} ms apart");
    assert_eq!(course.clean().await.unwrap(), 40, "twenty objects to read for each step");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_concurrent_with_an_overrun_load_is_void() {
    let bed = bed().await;
    let until = Until { requests: None, time: Duration::from_secs(3), stable: None };
    let asked = ["get 1KiB x 1", "head 1KiB x 1 at 1000000/s"].map(|asked| asked.parse().unwrap()).to_vec();
    let mut stage = Survey { until, asked, ..survey(&[], &[]) }.steps(1);
    // Just enough requests to overflow the queue at once.
    stage[1].load.pace = Pace::Open { per_second: 1e9, spacing: Spacing::Fixed };
    stage[1].load.until.requests = Some((1 << 20) + 100_000);
    let mut course = Course::new(&bed, "there/", 2, (2, false));
    let mut cells = Vec::new();
    let stop = Stop::default();
    let all = course.run([stage], &stop, |event| {
        if let Event::Measured(cell) = event {
            cells.push(cell.clone());
        }
    });
    assert!(all.await.unwrap(), "later stages are still measured");
    assert!(cells.len() == 2 && cells.iter().all(Cell::is_void), "{:?}", cells[0].ending);
    assert!(cells[0].operations_per_second.mean > 0.0, "it ran");
    assert!(
        cells[0].notes.iter().any(|note| note.contains("beside it that that ended early")),
        "{:?}",
        cells[0].notes
    );
}

#[tokio::test]
async fn run_fails_if_objects_cannot_be_created() {
    let mut bed = bed().await;
    bed.bucket = BucketName::new("not-there").unwrap();
    let stages = survey(&["get"], &["1KiB"]).steps(1).into_iter().map(|step| vec![step]);
    let mut course = Course::new(&bed, "x/", 1, (2, false));
    let failed = course.run(stages, &Stop::default(), |_| {}).await.unwrap_err();
    assert!(failed.to_string().contains("objects could not be created"), "{failed}");
}

#[tokio::test]
async fn caches_are_dropped_after_preparation_before_each_stage() {
    let bed = bed().await;
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("drop_caches");
    std::fs::write(&control, "").unwrap();
    let kernel = Some(Kernel::asked_by(&control));
    let mut course = Course::new(&bed, "there/", 1, (2, false)).dropping_caches(kernel);
    let stages = (1..=2).flat_map(|repeat| survey(&["get"], &["1KiB"]).steps(repeat)).map(|step| vec![step]);
    let (mut phases, mut cells) = (Vec::new(), Vec::new());
    let stop = Stop::default();
    let all = course.run(stages, &stop, |event| {
        let written = std::fs::read_to_string(&control).unwrap();
        match event {
            Event::Begins { what, .. } => phases.push((what, written)),
            Event::Measured(cell) => {
                cells.push(cell.caches);
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
    assert_eq!(cells, [Caches::Dropped; 4]);
    let stage = survey(&["get"], &["1KiB"]).steps(1);
    std::fs::remove_dir_all(directory.path()).unwrap();
    let failed = course.run([stage], &stop, |_| {}).await.unwrap_err();
    assert!(failed.to_string().contains("cannot drop caches: "), "{failed}");
    let mut plain = Course::new(&bed, "else/", 1, (2, false));
    let stages = survey(&["get"], &["1KiB"]).steps(1).into_iter().map(|step| vec![step]);
    let all = plain.run(stages, &stop, |event| match event {
        Event::Begins { what, .. } => assert_ne!(what, "dropping caches"),
        Event::Measured(cell) => assert_eq!(cell.caches, Caches::Kept),
    });
    assert!(all.await.unwrap());
}
