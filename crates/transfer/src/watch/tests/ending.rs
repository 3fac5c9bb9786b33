//! Totals at the end of a watch: every item that is not synced counts as failing.

use super::*;

fn is_in_step(scene: &Scene) -> bool {
    scene.reports().contains(&"in step".to_owned())
}

#[tokio::test]
async fn unlisted_file_is_failing_until_a_comparison_resolves_it() {
    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let strange = scene.root().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(&strange, "x").unwrap();
    let running = scene.start(LONG);
    scene.wait_for("copied a").await;
    scene.wait_for_match(|line| line.starts_with("failed"), "a failure").await;
    tokio::time::sleep(3 * QUIET).await;
    assert!(!is_in_step(&scene), "{:?}", scene.reports());
    let totals = running.stop().await;
    assert_eq!((totals.failing, totals.is_compared), (1, true));

    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let strange = scene.root().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(&strange, "x").unwrap();
    let running = scene.start(LONG);
    scene.wait_for("copied a").await;
    fs::remove_file(&strange).unwrap();
    running.send(FsEvent::TreeTouched(String::new())).await;
    scene.wait_for("in step").await;
    assert_eq!(running.stop().await.failing, 0, "the file is gone");
}

#[tokio::test]
async fn failure_event_is_counted() {
    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    running.send(FsEvent::Failed("dir".to_owned(), Error::new(Reason::AccessDenied, "no"))).await;
    scene.wait_for_match(|line| line.starts_with("failed dir"), "a failure").await;
    assert_eq!(running.stop().await.failing, 1);
}

#[tokio::test]
async fn later_listing_failure_is_counted() {
    let denied = FaultPlan::none().with_fault(
        Operation::List,
        FaultSchedule::Nth(2),
        Fault::FailBefore(Reason::AccessDenied),
    );
    let scene = Scene::new(&["a"], &[], denied).await;
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    running.send(FsEvent::TreeTouched(String::new())).await;
    scene.wait_for_match(|line| line.starts_with("failed s3://bucket/"), "a failure").await;
    assert_eq!(running.stop().await.failing, 1);
}

#[tokio::test]
async fn stop_during_the_first_comparison_is_not_compared() {
    let slow = FaultPlan::none().with_fault(Operation::List, FaultSchedule::Always, Fault::Delay(LONG));
    let scene = Scene::new(&["a"], &[], slow).await;
    let running = scene.start(LONG);
    tokio::time::sleep(QUIET).await;
    assert!(!running.stop().await.is_compared);
    let down =
        FaultPlan::none().with_fault(Operation::List, FaultSchedule::Always, Fault::FailBefore(Reason::Io));
    let scene = Scene::new(&["a"], &[], down).await;
    let running = scene.start(LONG);
    scene.wait_for_match(|line| line.starts_with("failed s3://bucket/"), "a failure").await;
    tokio::time::sleep(QUIET).await;
    let totals = running.stop().await;
    assert_eq!((totals.failing, totals.is_compared), (1, false));
}

#[tokio::test]
async fn missing_bucket_ends_the_watch_for_every_scheme() {
    for scheme in ["s3", "gs", "swift"] {
        let gone = FaultPlan::none().with_fault(
            Operation::List,
            FaultSchedule::Always,
            Fault::FailBefore(Reason::NoSuchBucket),
        );
        let scene = Scene::new(&["a"], &[], gone).await;
        let running = scene.start_with(LONG, scene.copier(scheme, Links::Skip));
        let ended = tokio::time::timeout(Duration::from_secs(10), running.ended).await;
        let failed = ended.expect(scheme).unwrap().unwrap_err();
        assert_eq!(failed.reason(), Reason::NoSuchBucket, "{scheme}");
    }
}
