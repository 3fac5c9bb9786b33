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
