//! A lost end of the log, which the index of a clean shutdown proves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::TestDir;
use super::support::s3::S3;
use super::support::server::{ServerSetup, root_key, run};

/// A store after two runs of the server. The second one replaced `k`, created `new` and deleted `gone`.
fn served_twice(dir: &TestDir) -> ServerSetup {
    let start = dir.start();
    for round in ["v1", "v2"] {
        let mut server = start.start().unwrap();
        let mut s3 = S3::new(server.endpoint, root_key());
        if round == "v1" {
            s3.put("bucket", &[]).unwrap();
            s3.put("bucket/gone", b"x").unwrap();
        } else {
            s3.put("bucket/new", b"n").unwrap();
            assert_eq!(s3.delete("bucket/gone").unwrap().status, 204);
        }
        assert_eq!(s3.put("bucket/k", round.as_bytes()).unwrap().status, 200);
        assert!(server.terminate().unwrap().success());
    }
    start
}

fn last_log(data: &Path) -> PathBuf {
    let entries = fs::read_dir(data.join("segments")).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().unwrap() == "log")
        .max()
        .unwrap()
}

/// Path, length and modification time of everything below a directory.
fn state(directory: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = path.metadata().unwrap();
        if metadata.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, metadata.len(), metadata.modified().unwrap()));
    }
    found.sort();
    found
}

#[test]
fn a_lost_log_end_is_reported_and_serve_requires_accept_loss() {
    let dir = TestDir::new();
    let start = served_twice(&dir);
    let data = start.data.to_str().unwrap();
    assert_eq!(run(&["store", "check", data]).status.code(), Some(0));
    let lost_file = last_log(&start.data);
    let lost_number = lost_file.file_stem().unwrap().to_str().unwrap().to_owned();
    fs::remove_file(&lost_file).unwrap();

    for command in ["check", "stats"] {
        let before = state(&start.data);
        let reported = run(&["store", command, data]);
        assert_eq!(reported.status.code(), Some(1), "{reported:?}");
        let text = String::from_utf8_lossy(&reported.stdout).into_owned();
        let segment = format!("segment {lost_number} is missing");
        let names = [
            &segment,
            "newest version of bucket/k",
            "newest version of bucket/new",
            "deletion of bucket/gone",
        ];
        assert!(names.iter().all(|name| text.contains(*name)), "{text}");
        let json = run(&["store", command, data, "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["lost"]["objects"]["names"], serde_json::json!(["bucket/k", "bucket/new"]), "{json}");
        assert_eq!(json["lost"]["deletions"]["count"], 1, "{json}");
        assert_eq!(json["lost"]["ranges"][0]["segment"], lost_number, "{json}");
        if command == "check" {
            assert_eq!((&json["sound"], &json["index"]["state"]), (&false.into(), &"good".into()), "{json}");
        }
        assert_eq!(state(&start.data), before, "{command} must not change anything");
    }

    for _ in 0..2 {
        let refused = start.start().unwrap_err().to_string();
        let words = ["exit status: 1", "--accept-loss", "store check", "bucket/k"];
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
    let reindexed = run(&["store", "reindex", data]);
    assert_eq!(reindexed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&reindexed.stderr).contains("--accept-loss"), "{reindexed:?}");
    assert_eq!(run(&["store", "check", data]).status.code(), Some(1), "the proof of the loss must persist");

    let mut accepting = start.clone();
    accepting.flags.push("--accept-loss".into());
    let mut server = accepting.start().unwrap();
    let mut s3 = S3::new(server.endpoint, root_key());
    assert_eq!(s3.get("bucket/k").unwrap().text(), "v1");
    assert_eq!(s3.get("bucket/gone").unwrap().status, 200);
    assert_eq!(s3.get("bucket/new").unwrap().status, 404);
    let logged = server.logged();
    let warning =
        logged.lines().find(|line| line.contains("WARN") && line.contains("acknowledged changes are lost"));
    assert!(warning.is_some_and(|line| line.contains("bucket/new")), "{logged}");
    assert!(server.terminate().unwrap().success());

    let mut server = start.start().expect("an accepted loss is not reported again");
    assert!(server.terminate().unwrap().success());
    assert_eq!(run(&["store", "check", data]).status.code(), Some(0));
}

#[test]
fn check_without_an_index_reports_that_a_loss_is_possible() {
    let dir = TestDir::new();
    let start = served_twice(&dir);
    let data = start.data.to_str().unwrap();
    fs::remove_dir_all(start.data.join("index")).unwrap();
    let temporary = dir.directory.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let checked = run(&["store", "check", data, "--temp-dir", temporary.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && text.ends_with("all sound\n"), "{checked:?}");
    assert!(text.contains("the index is missing") && text.contains("cannot be excluded"), "{text}");
    assert!(!start.data.join("index").exists());
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}
