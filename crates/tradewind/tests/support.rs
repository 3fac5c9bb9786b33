//! Support for tests of the whole binary: starting and stopping it, a small S3 client, and a workload with a model of
//! the objects that must exist after a crash.

#![allow(dead_code, reason = "each test uses only a part of this module")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

pub mod authority;
pub mod ceph;
pub mod command_runner;
pub mod content;
pub mod crash_rounds;
pub mod credential_service;
pub mod disk;
pub mod http_server;
pub mod leased_file;
pub mod listing_habits;
pub mod model;
pub mod proxy;
pub mod random;
pub mod s3;
pub mod scripted_server;
pub mod server;
pub mod sign;
pub mod slow_relay;
pub mod swift;
pub mod test_store;
pub mod verify;
pub mod workload;
pub mod xml;

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Reports that a test was skipped, in the format that `.ci/run` repeats at its end.
pub fn skip(test: &str, reason: &str) {
    print_uncaptured(&format!("skipped: {test}: {reason}"));
}

/// Writes a line to stderr, bypassing the capture of the test harness, so that it is visible if the test passes.
pub fn print_uncaptured(line: &str) {
    // If stderr is closed, there is no place to report that.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Waits until a condition holds. `what` describes it; panics with it after 20 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server on a store in `data` with small segments, so that compaction runs all the time. Its settings and its log
/// are in `directory`.
pub fn setup_with_small_segments(directory: &Path, data: &Path) -> server::ServerSetup {
    let settings = directory.join("settings.toml");
    let text = format!(
        "[store.disk]\ntype = \"local\"\npath = {data:?}\nsegment_size = \"2MiB\"\ncheckpoint_size = \"1MiB\"\n\
         compact_below = \"80%\"\ncompact_interval = \"100ms\"\n\
         min_free_space = \"32MiB\"\n"
    );
    std::fs::write(&settings, text).unwrap();
    server::ServerSetup::new(data, &directory.join("log")).flag("--config", settings.as_os_str())
}

/// Like [`setup_with_small_segments`], with a volume that deduplicates and deletes unused chunks all the time.
#[allow(dead_code, reason = "only crash tests use it")]
pub fn setup_with_deduplication(directory: &Path, data: &Path) -> server::ServerSetup {
    let setup = setup_with_small_segments(directory, data);
    let settings = directory.join("settings.toml");
    let layer = "deduplicated = { classes = true, min_size = \"16KiB\", collect_every = \"50ms\" }";
    let store = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("{store}[volume.v]\nstack = [{{ {layer} }}, \"disk\"]\n")).unwrap();
    setup
}

/// Like [`setup_with_small_segments`], with a volume that writes back to that store. The cache and the journal are in
/// `fast`.
#[allow(dead_code, reason = "only crash tests use it")]
pub fn setup_with_write_back(directory: &Path, data: &Path, fast: &Path) -> server::ServerSetup {
    let setup = setup_with_small_segments(directory, data);
    let settings = directory.join("settings.toml");
    let cached = format!(
        "disk = {:?}, size = \"64MiB\", memory = \"4MiB\", write = \"back\", max_dirty = \"64MiB\"",
        fast.join("cache")
    );
    let store = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(
        &settings,
        format!("{store}[volume.v]\nstack = [{{ cached = {{ {cached} }} }}, \"disk\"]\n"),
    )
    .unwrap();
    setup
}
