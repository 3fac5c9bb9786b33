//! What the tests of the whole binary share: starting and stopping it, a small S3 client, and a workload
//! whose model knows what must be there after a crash.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

pub mod caller;
pub mod ceph;
pub mod content;
pub mod disk;
pub mod model;
pub mod random;
pub mod rounds;
pub mod s3;
pub mod scene;
pub mod scripted;
pub mod server;
pub mod sign;
pub mod swift;
pub mod verify;
pub mod workload;
pub mod xml;

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Says that a test did not run, in the form that `.ci/run` repeats at its end.
pub fn skip(test: &str, reason: &str) {
    say(&format!("skipped: {test}: {reason}"));
}

/// Writes a line past the capture of the test harness, so that it is seen where the test passes.
pub fn say(line: &str) {
    // Nobody is left to be told if stderr is gone.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Waits until something holds; `what` says what it is.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A start on a store in `data` whose segments are so small that compaction is always at work. Its
/// settings and its log go into `directory`.
pub fn start_with_small_segments(directory: &Path, data: &Path) -> server::Start {
    let settings = directory.join("settings.toml");
    let text = format!(
        "[store.disk]\ntype = \"local\"\npath = {data:?}\nsegment_size = \"2MiB\"\ncheckpoint_size = \"1MiB\"\n\
         compact_below = \"80%\"\ncompact_interval = \"100ms\"\n\
         reserve = \"32MiB\"\n"
    );
    std::fs::write(&settings, text).unwrap();
    server::Start::new(data, &directory.join("log")).flag("--config", settings.as_os_str())
}
