//! `--max-bandwidth`: bytes take the time that they are to take, and a limit that is far lower than what a store waits
//! for does not break requests off.

use std::time::{Duration, Instant};

use super::{Scene, content};
use crate::support::caller::Caller;
use crate::support::server::Start;

/// How long a command took that must succeed.
fn time(caller: &Caller, arguments: &[&str]) -> f64 {
    let begun = Instant::now();
    let ran = caller.run(arguments);
    assert!(ran.status.success() && ran.err.is_empty(), "{arguments:?}: {}", ran.err);
    begun.elapsed().as_secs_f64()
}

#[test]
fn bytes_take_their_time_both_ways() {
    let scene = Scene::new();
    let caller = &scene.caller;
    caller.write("file", content(1, 3 << 20));
    let limited = |from: &str, to: &str| time(caller, &["cp", "--max-bandwidth", "1MiB/s", from, to]);
    // The first tenth of a second and the last piece are free; starting and ending is not.
    for took in [limited("file", "s3://bucket/file"), limited("s3://bucket/file", "back")] {
        assert!((2.7..4.0).contains(&took), "{took} s");
    }
    assert_eq!(std::fs::read(caller.path("back")).unwrap(), content(1, 3 << 20));
    let took = time(caller, &["cat", "--max-bandwidth", "2MiB", "s3://bucket/file"]);
    assert!((1.3..2.5).contains(&took), "{took} s");
    let took = time(caller, &["grep", "-a", "-c", "--max-bandwidth", "2MiB", "", "s3://bucket/"]);
    assert!((1.3..2.5).contains(&took), "{took} s");
    assert!(limited("file", "here") < 1.0, "a copy that no store sees is not slowed");

    for bad in ["0", "1KiB", "5", "fast", "MiB/s"] {
        let ran = caller.run(&["cp", "--max-bandwidth", bad, "file", "s3://bucket/x"]);
        assert_eq!(ran.status.code(), Some(2), "{bad}: {ran:?}");
    }
}

#[test]
fn bundles_take_their_time_both_ways() {
    let scene = Scene::new();
    let caller = &scene.caller;
    for n in 0..48 {
        caller.write(format!("here/{n}"), content(n, 64 << 10));
    }
    caller.write("large/file", content(99, 3 << 20));
    caller.done(&["cp", "--bundle", "large", "s3://bucket/large.tar"]);
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

/// Eight at a time at 256 KiB/s: whole buffers of 128 KiB would leave each without a byte for 4 seconds.
#[test]
fn a_store_that_waits_a_second_still_gets_everything() {
    let data = tempfile::tempdir().unwrap();
    let settings = data.path().join("settings.toml");
    std::fs::write(&settings, "[limits]\nslow_client_time = \"1s\"\n").unwrap();
    let start = Start::new(&data.path().join("data"), &data.path().join("log"));
    let server = start.flag("--config", settings.as_os_str()).start().unwrap();
    let caller = Caller::new(server.endpoint);
    caller.done(&["mb", "s3://bucket"]);
    // The first one teaches the client whether checksums may follow.
    caller.write("first", "x");
    caller.done(&["cp", "first", "s3://bucket/first"]);
    for n in 0..8 {
        caller.write(format!("tree/{n}"), content(n, 300 << 10));
    }
    let begun = Instant::now();
    let ran = caller.run(&["sync", "--json", "--max-bandwidth", "256KiB", "tree", "s3://bucket/tree"]);
    assert!(ran.status.success() && ran.err.is_empty(), "{ran:?}");
    // Nothing was sent twice.
    let took = begun.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(12)).contains(&took), "{took:?}");
}
