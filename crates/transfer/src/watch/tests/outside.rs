//! Names that lead out of the watched directory, by themselves or by links: nothing outside is ever sent.

use super::*;

#[tokio::test]
async fn objects_whose_names_lead_out_of_the_directory_are_removed_and_no_file_is_sent() {
    let secret = tempfile::tempdir().unwrap();
    let path = secret.path().join("shadow");
    fs::write(&path, "secret").unwrap();
    let absolute = path.display().to_string();
    let strange = [&absolute, "../outside", "dir//y", "dir/./y"];
    let scene = Scene::new(&["dir/y"], &strange, FaultPlan::none()).await;
    fs::write(scene.directory.path().join("outside"), "outside").unwrap();
    let begun = scene.begin(LONG);
    scene.until_told("in step").await;
    for name in strange {
        scene.until_told(&format!("removed {name}")).await;
        assert!(!scene.has(name).await, "{name}");
    }
    let totals = begun.stop().await;
    assert_eq!((totals.copied, totals.removed), (1, 4), "{:?}", scene.told());
}

#[tokio::test]
async fn a_name_that_leads_out_of_the_directory_is_not_sent() {
    let scene = Scene::new(&[], &[], FaultPlan::none()).await;
    let outside = scene.directory.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    for name in ["../outside", &outside.display().to_string()] {
        let failed = scene.copier("s3", Links::Skip).copy_as(name, None, "taken").await.unwrap_err();
        assert_eq!(failed.reason(), Reason::InvalidKey, "{name}");
    }
    assert!(!scene.has("taken").await);
}

/// `dir` becomes a link to a directory outside that holds a file of the same name.
async fn with_dir_replaced(links: Links) -> (Scene, Begun) {
    let scene = Scene::new(&["dir/deep/x", "dir/x"], &[], FaultPlan::none()).await;
    let outside = scene.directory.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("x"), "of somebody else").unwrap();
    fs::write(outside.join("deep/x"), "of somebody else").unwrap();
    let begun = scene.begin_with(LONG, scene.copier("s3", links));
    scene.until_told("in step").await;
    fs::rename(scene.root().join("dir"), scene.directory.path().join("away")).unwrap();
    std::os::unix::fs::symlink(&outside, scene.root().join("dir")).unwrap();
    (scene, begun)
}

#[tokio::test]
async fn a_directory_that_became_a_link_is_passed_over() {
    for event in [touched("dir/x"), Event::Tree("dir/".to_owned()), Event::Tree(String::new())] {
        let what = format!("{event:?}");
        let (scene, begun) = with_dir_replaced(Links::Skip).await;
        begun.hear(event).await;
        scene.until_told("removed dir/x").await;
        let totals = begun.stop().await;
        assert_eq!(totals.copied, 2, "{what}: {:?}", scene.told());
    }
    let (scene, begun) = with_dir_replaced(Links::Skip).await;
    begun.hear(Event::Tree("dir/deep/".to_owned())).await;
    scene.until_told("removed dir/deep/x").await;
    assert_eq!(begun.stop().await.copied, 2, "{:?}", scene.told());
}

#[tokio::test]
async fn where_links_are_followed_one_to_a_directory_is_told_of_and_nothing_is_removed_for_it() {
    for event in [touched("dir/x"), Event::Tree("dir/".to_owned()), Event::Tree("dir/deep/".to_owned())] {
        let what = format!("{event:?}");
        let (scene, begun) = with_dir_replaced(Links::Follow).await;
        begun.hear(event).await;
        scene.until_told_of(|line| line.starts_with("failed"), "a failure").await;
        let totals = begun.stop().await;
        assert_eq!((totals.copied, totals.removed), (2, 0), "{what}: {:?}", scene.told());
        assert!(scene.has("dir/x").await && scene.has("dir/deep/x").await);
    }
}

#[tokio::test]
async fn a_link_that_leads_to_no_file_for_a_moment_removes_nothing() {
    let scene = Scene::new(&["target"], &["link"], FaultPlan::none()).await;
    let link = scene.root().join("link");
    let worker = scene.worker(Links::Follow);
    for (target, why) in [("absent", "cannot look at "), (".", "is a link to a directory: it is left out")] {
        std::os::unix::fs::symlink(target, &link).unwrap();
        for failed in [worker.look("link").await, worker.act(&Action::Remove(item("link"))).await] {
            let failed = failed.unwrap_err().to_string();
            assert!(failed.contains(why), "{failed}");
        }
        assert!(scene.has("link").await, "{target}");
        fs::remove_file(&link).unwrap();
    }
    std::os::unix::fs::symlink("target", &link).unwrap();
    assert_eq!(worker.look("link").await.unwrap(), Became::Copied(6));
    fs::remove_file(&link).unwrap();
    assert_eq!(worker.look("link").await.unwrap(), Became::Removed, "the link itself is gone");
}
