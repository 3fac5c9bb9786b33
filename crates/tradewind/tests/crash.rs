//! SIGKILL at random moments during concurrent PUT, DELETE, multipart and compaction: every acknowledged write is
//! present byte for byte, every acknowledged delete persists, and nothing is partially visible.
//!
//! `TRADEWIND_CRASH_ROUNDS` sets the number of rounds, `TRADEWIND_CRASH_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

mod support;

use std::sync::atomic::Ordering;

use support::crash_rounds::CrashTest;

#[test]
fn nothing_acknowledged_is_lost_to_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let start = support::setup_with_small_segments(directory.path(), &directory.path().join("data"));
    let rounds = CrashTest::from_env("TRADEWIND_CRASH", 8);
    let written = rounds.run(
        &start,
        |server, _, workload| {
            workload.is_crashed.store(true, Ordering::SeqCst);
            server.kill();
        },
        |_, _| {},
    );
    // Only a few MiB are live; without compaction, all bytes ever written would be on disk.
    let is_compacted = written.on_disk < written.bytes / 2;
    assert!(written.bytes < 64 << 20 || is_compacted, "compaction must have run: {written:?}");
}

/// With write-back and its journal. Without versions, because versioned buckets are written through.
#[test]
fn nothing_in_a_journal_is_lost_to_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let (data, fast) = (directory.path().join("data"), directory.path().join("fast"));
    std::fs::create_dir(&fast).unwrap();
    let start = support::setup_with_write_back(directory.path(), &data, &fast);
    let rounds = CrashTest { has_versions: false, ..CrashTest::from_env("TRADEWIND_CRASH", 8) };
    rounds.run(
        &start,
        |server, _, workload| {
            workload.is_crashed.store(true, Ordering::SeqCst);
            server.kill();
        },
        |_, _| {},
    );
}

/// With chunks, while unused ones are deleted all the time.
#[test]
fn nothing_deduplicated_is_lost_to_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let start = support::setup_with_deduplication(directory.path(), &directory.path().join("data"));
    CrashTest::from_env("TRADEWIND_CRASH", 8).run(
        &start,
        |server, _, workload| {
            workload.is_crashed.store(true, Ordering::SeqCst);
            server.kill();
        },
        |_, _| {},
    );
}
