use super::*;
use crate::drive::tests::bed;

fn survey(mixes: &[&str], sizes: &[&str]) -> Survey {
    Survey {
        mixes: mixes.iter().map(|mix| mix.parse().unwrap()).collect(),
        sizes: sizes.iter().map(|sizes| sizes.parse().unwrap()).collect(),
        parallel: vec![1, 4],
        pace: Pace::Closed,
        until: Until { requests: Some(30), time: Duration::from_secs(30), stable: None },
        warm_up: Duration::ZERO,
        repeats: 2,
        objects: Some(20),
        seed: 1,
        keeps: false,
        cores: 2,
    }
}

#[tokio::test]
async fn everything_is_measured_and_nothing_is_left() {
    let bed = bed().await;
    let survey = survey(&["put", "get", "get=2,delete=1,put=1"], &["1KiB", "2KiB-9KiB"]);
    survey.check(1 << 30).unwrap();
    let mut cells = Vec::new();
    let stop = Stop::default();
    let all = survey.run(&bed, "there/", &stop, |event| {
        if let Event::Measured(cell) = event {
            cells.push(cell.clone());
        }
    });
    assert!(all.await.unwrap());
    assert_eq!(cells.len(), survey.cells());
    assert!(cells.iter().all(|cell| cell.failed() == 0 && !cell.is_partial()), "{cells:?}");
    assert!(cells.iter().all(|cell| cell.operations.values().map(|f| f.operations).sum::<u64>() == 30));
    assert_eq!((cells[0].repeat, cells[12].repeat), (1, 2));
    let removed = clean(&bed, "there/").await.unwrap();
    assert!((20..200).contains(&removed), "those that were read: {removed}");
    assert_eq!(clean(&bed, "").await.unwrap(), 0, "nothing was made elsewhere");
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |mixes: &[&str], sizes: &[&str]| survey(mixes, sizes).check(1 << 20).unwrap_err();
    assert!(refused(&["delete=2,put=1"], &["1KiB"]).contains("run out of objects"));
    assert!(refused(&["put"], &["2MiB"]).contains("the most that this store takes"));
    assert!(refused(&[], &["1KiB"]).contains("nothing is to be measured"));
    assert!(survey(&["delete"], &["1MiB"]).check(1 << 20).is_ok(), "until nothing is left");
}

#[tokio::test]
async fn a_store_that_takes_nothing_is_told_of() {
    let mut bed = bed().await;
    bed.bucket = tradewind_core::BucketName::new("not-there").unwrap();
    let failed = survey(&["get"], &["1KiB"]).run(&bed, "x/", &Stop::default(), |_| {}).await.unwrap_err();
    assert!(failed.to_string().contains("objects could not be made"), "{failed}");
}
