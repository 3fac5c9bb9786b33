//! What is said at the end: nothing that is not there counts as good.

use super::*;

fn is_in_step(scene: &Scene) -> bool {
    scene.told().contains(&"in step".to_owned())
}

#[tokio::test]
async fn what_a_comparison_could_not_look_at_is_counted_until_one_can() {
    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let strange = scene.root().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(&strange, "x").unwrap();
    let begun = scene.begin(LONG);
    scene.until_told("copied a").await;
    scene.until_told_of(|line| line.starts_with("failed"), "a failure").await;
    tokio::time::sleep(3 * QUIET).await;
    assert!(!is_in_step(&scene), "{:?}", scene.told());
    let totals = begun.stop().await;
    assert_eq!((totals.failing, totals.compared), (1, true));

    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let strange = scene.root().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(&strange, "x").unwrap();
    let begun = scene.begin(LONG);
    scene.until_told("copied a").await;
    fs::remove_file(&strange).unwrap();
    begun.hear(Event::Tree(String::new())).await;
    scene.until_told("in step").await;
    assert_eq!(begun.stop().await.failing, 0, "it is gone");
}

#[tokio::test]
async fn what_an_event_tells_of_is_counted() {
    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let begun = scene.begin(LONG);
    scene.until_told("in step").await;
    begun.hear(Event::Failed("dir".to_owned(), Error::new(Reason::AccessDenied, "no"))).await;
    scene.until_told_of(|line| line.starts_with("failed dir"), "a failure").await;
    assert_eq!(begun.stop().await.failing, 1);
}

#[tokio::test]
async fn a_bucket_that_cannot_be_listed_any_more_is_counted() {
    let denied = FaultPlan::none().on(Operation::List, When::Nth(2), Fault::FailBefore(Reason::AccessDenied));
    let scene = Scene::new(&["a"], &[], denied).await;
    let begun = scene.begin(LONG);
    scene.until_told("in step").await;
    begun.hear(Event::Tree(String::new())).await;
    scene.until_told_of(|line| line.starts_with("failed s3://bucket/"), "a failure").await;
    assert_eq!(begun.stop().await.failing, 1);
}

#[tokio::test]
async fn stopped_before_the_first_comparison_was_over_it_was_not_compared() {
    let slow = FaultPlan::none().on(Operation::List, When::Always, Fault::Delay(LONG));
    let scene = Scene::new(&["a"], &[], slow).await;
    let begun = scene.begin(LONG);
    tokio::time::sleep(QUIET).await;
    assert!(!begun.stop().await.compared);
    let down = FaultPlan::none().on(Operation::List, When::Always, Fault::FailBefore(Reason::Io));
    let scene = Scene::new(&["a"], &[], down).await;
    let begun = scene.begin(LONG);
    scene.until_told_of(|line| line.starts_with("failed s3://bucket/"), "a failure").await;
    tokio::time::sleep(QUIET).await;
    let totals = begun.stop().await;
    assert_eq!((totals.failing, totals.compared), (1, false));
}

#[tokio::test]
async fn a_bucket_that_was_never_there_ends_it_whatever_its_store_is_called() {
    for scheme in ["s3", "gs", "swift"] {
        let gone =
            FaultPlan::none().on(Operation::List, When::Always, Fault::FailBefore(Reason::NoSuchBucket));
        let scene = Scene::new(&["a"], &[], gone).await;
        let begun = scene.begin_with(LONG, scene.copier(scheme, Links::Skip));
        let ended = tokio::time::timeout(Duration::from_secs(10), begun.ended).await;
        let failed = ended.expect(scheme).unwrap().unwrap_err();
        assert_eq!(failed.reason(), Reason::NoSuchBucket, "{scheme}");
    }
}
