use tradewind_core::BucketName;

use super::*;
use crate::asked::Asked;
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
async fn everything_is_measured_and_nothing_is_left() {
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
    assert!((20..200).contains(&removed), "those that were read: {removed}");
    assert_eq!(Course::new(&bed, "", 1, (2, false)).clean().await.unwrap(), 0, "nothing was made elsewhere");
}

#[tokio::test]
async fn those_of_a_stage_run_at_the_same_time_on_objects_of_their_own() {
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
    let apart = cells[0].began.abs_diff(cells[1].began);
    assert!(apart < 200, "they began {apart} ms apart");
    assert_eq!(course.clean().await.unwrap(), 40, "twenty that were read, twice");
}

#[tokio::test]
async fn a_store_that_takes_nothing_is_told_of() {
    let mut bed = bed().await;
    bed.bucket = BucketName::new("not-there").unwrap();
    let stages = survey(&["get"], &["1KiB"]).steps(1).into_iter().map(|step| vec![step]);
    let mut course = Course::new(&bed, "x/", 1, (2, false));
    let failed = course.run(stages, &Stop::default(), |_| {}).await.unwrap_err();
    assert!(failed.to_string().contains("objects could not be made"), "{failed}");
}
