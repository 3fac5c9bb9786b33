//! Names that lead out of the watched directory, directly or through links: no file outside is ever uploaded.

use super::*;

#[tokio::test]
async fn objects_with_escaping_names_are_removed_not_uploaded() {
    let secret = tempfile::tempdir().unwrap();
    let path = secret.path().join("shadow");
    fs::write(&path, "secret").unwrap();
    let absolute = path.display().to_string();
    let strange = [&absolute, "../outside", "dir//y", "dir/./y"];
    let scene = Scene::new(&["dir/y"], &strange, FaultPlan::none()).await;
    fs::write(scene.directory.path().join("outside"), "outside").unwrap();
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    for name in strange {
        scene.wait_for(&format!("removed {name}")).await;
        assert!(!scene.has(name).await, "{name}");
    }
    let totals = running.stop().await;
    assert_eq!((totals.copied, totals.removed), (1, 4), "{:?}", scene.reports());
}

#[tokio::test]
async fn name_that_leads_out_of_the_directory_is_rejected() {
    let scene = Scene::new(&[], &[], FaultPlan::none()).await;
    let outside = scene.directory.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    for name in ["../outside", &outside.display().to_string()] {
        let failed = scene.copier("s3", Links::Skip).copy_as(&item(name), None, "taken").await.unwrap_err();
        assert_eq!(failed.reason(), Reason::InvalidKey, "{name}");
    }
    assert!(!scene.has("taken").await);
}

/// `dir` is replaced by a link to a directory outside that contains a file of the same name.
async fn with_dir_replaced(links: Links) -> (Scene, RunningWatch) {
    let scene = Scene::new(&["dir/deep/x", "dir/x"], &[], FaultPlan::none()).await;
    let outside = scene.directory.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("x"), "foreign").unwrap();
    fs::write(outside.join("deep/x"), "foreign").unwrap();
    let running = scene.start_with(LONG, scene.copier("s3", links));
    scene.wait_for("in step").await;
    fs::rename(scene.root().join("dir"), scene.directory.path().join("away")).unwrap();
    std::os::unix::fs::symlink(&outside, scene.root().join("dir")).unwrap();
    (scene, running)
}

#[tokio::test]
async fn directory_replaced_by_a_link_is_skipped() {
    for event in
        [touched("dir/x"), FsEvent::TreeTouched("dir/".to_owned()), FsEvent::TreeTouched(String::new())]
    {
        let what = format!("{event:?}");
        let (scene, running) = with_dir_replaced(Links::Skip).await;
        running.send(event).await;
        scene.wait_for("removed dir/x").await;
        let totals = running.stop().await;
        assert_eq!(totals.copied, 2, "{what}: {:?}", scene.reports());
    }
    let (scene, running) = with_dir_replaced(Links::Skip).await;
    running.send(FsEvent::TreeTouched("dir/deep/".to_owned())).await;
    scene.wait_for("removed dir/deep/x").await;
    assert_eq!(running.stop().await.copied, 2, "{:?}", scene.reports());
}

#[tokio::test]
async fn followed_link_to_a_directory_is_reported_without_removals() {
    for event in [
        touched("dir/x"),
        FsEvent::TreeTouched("dir/".to_owned()),
        FsEvent::TreeTouched("dir/deep/".to_owned()),
    ] {
        let what = format!("{event:?}");
        let (scene, running) = with_dir_replaced(Links::Follow).await;
        running.send(event).await;
        scene.wait_for_match(|line| line.starts_with("failed"), "a failure").await;
        let totals = running.stop().await;
        assert_eq!((totals.copied, totals.removed), (2, 0), "{what}: {:?}", scene.reports());
        assert!(scene.has("dir/x").await && scene.has("dir/deep/x").await);
    }
}

#[tokio::test]
async fn link_without_a_file_target_removes_nothing() {
    let scene = Scene::new(&["target"], &["link"], FaultPlan::none()).await;
    let link = scene.root().join("link");
    let worker = scene.worker(Links::Follow);
    for (target, why) in [("absent", "cannot access "), (".", "is a link to a directory: skipped")] {
        std::os::unix::fs::symlink(target, &link).unwrap();
        for failed in [worker.sync_name("link").await, worker.act(&Action::Remove(item("link"))).await] {
            let failed = failed.unwrap_err().to_string();
            assert!(failed.contains(why), "{failed}");
        }
        assert!(scene.has("link").await, "{target}");
        fs::remove_file(&link).unwrap();
    }
    std::os::unix::fs::symlink("target", &link).unwrap();
    assert_eq!(worker.sync_name("link").await.unwrap(), NameOutcome::Copied(6));
    fs::remove_file(&link).unwrap();
    assert_eq!(worker.sync_name("link").await.unwrap(), NameOutcome::Removed, "the link itself is gone");
}
