//! `--max-bandwidth`: transfers take the time that the limit implies, and a low limit does not make a store time out.

use std::time::{Duration, Instant};

use super::{TestStore, content};
use crate::support::command_runner::CommandRunner;
use crate::support::server::ServerSetup;

/// The duration in seconds of a command that must succeed.
fn time(caller: &CommandRunner, arguments: &[&str]) -> f64 {
    let started = Instant::now();
    let ran = caller.run(arguments);
    assert!(ran.status.success() && ran.err.is_empty(), "{arguments:?}: {}", ran.err);
    started.elapsed().as_secs_f64()
}

#[test]
fn bandwidth_limit_applies_in_both_directions() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("file", content(1, 3 << 20));
    let limited = |from: &str, to: &str| time(caller, &["cp", "--max-bandwidth", "1MiB/s", from, to]);
    // The first 100 ms and the last piece are not throttled; process start and end count.
    for took in [limited("file", "s3://bucket/file"), limited("s3://bucket/file", "back")] {
        assert!((2.7..4.0).contains(&took), "{took} s");
    }
    assert_eq!(std::fs::read(caller.path("back")).unwrap(), content(1, 3 << 20));
    let took = time(caller, &["cat", "--max-bandwidth", "2MiB", "s3://bucket/file"]);
    assert!((1.3..2.5).contains(&took), "{took} s");
    let took = time(caller, &["grep", "-a", "-c", "--max-bandwidth", "2MiB", "", "s3://bucket/"]);
    assert!((1.3..2.5).contains(&took), "{took} s");
    assert!(limited("file", "here") < 1.0, "a copy between local files is not throttled");

    for bad in ["0", "1KiB", "5", "fast", "MiB/s"] {
        let ran = caller.run(&["cp", "--max-bandwidth", bad, "file", "s3://bucket/x"]);
        assert_eq!(ran.status.code(), Some(2), "{bad}: {ran:?}");
    }
}

#[test]
fn bandwidth_limit_applies_to_bundles_in_both_directions() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for n in 0..48 {
        caller.write(format!("here/{n}"), content(n, 64 << 10));
    }
    caller.write("large/file", content(99, 3 << 20));
    caller.run_ok(&["cp", "--bundle", "large", "s3://bucket/large.tar"]);
    let limited = |arguments: &[&str]| time(caller, &[arguments, &["--max-bandwidth", "1MiB/s"]].concat());
    for took in [
        limited(&["cp", "--bundle", "here", "s3://bucket/all.tar"]),
        limited(&["cp", "--bundle", "s3://bucket/all.tar", "there"]),
        limited(&["cp", "--bundle", "s3://bucket/large.tar", "back"]),
        limited(&["cp", "s3://bucket/large.tar", "--member", "file", "back"]),
        limited(&["cat", "s3://bucket/large.tar", "--member", "file"]),
    ] {
        assert!((2.7..4.0).contains(&took), "{took} s");
    }
}

/// Eight concurrent uploads at 256 KiB/s: if each sent buffers of 128 KiB at once, each would be silent for 4 s.
#[test]
fn low_limit_does_not_hit_a_store_timeout_of_one_second() {
    let data = tempfile::tempdir().unwrap();
    let settings = data.path().join("settings.toml");
    std::fs::write(&settings, "[limits]\nslow_client_time = \"1s\"\n").unwrap();
    let start = ServerSetup::new(&data.path().join("data"), &data.path().join("log"));
    let server = start.flag("--config", settings.as_os_str()).start().unwrap();
    let caller = CommandRunner::new(server.endpoint);
    caller.run_ok(&["mb", "s3://bucket"]);
    // The first upload tells the client whether the store accepts trailing checksums.
    caller.write("first", "x");
    caller.run_ok(&["cp", "first", "s3://bucket/first"]);
    for n in 0..8 {
        caller.write(format!("tree/{n}"), content(n, 300 << 10));
    }
    let started = Instant::now();
    let ran = caller.run(&["sync", "--json", "--max-bandwidth", "256KiB", "tree", "s3://bucket/tree"]);
    assert!(ran.status.success() && ran.err.is_empty(), "{ran:?}");
    // Nothing was sent twice.
    let took = started.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(12)).contains(&took), "{took:?}");
}
