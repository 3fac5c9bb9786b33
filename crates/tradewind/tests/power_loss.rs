//! The unmodified binary on a file system that loses power: synced data persists, other data may be lost, torn or
//! reordered, and every acknowledged write must still be present.
//!
//! `TRADEWIND_POWER_ROUNDS` sets the number of rounds, `TRADEWIND_POWER_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

mod support;

use std::fs::{DirEntry, File};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::crash_rounds::CrashTest;
use support::random::Random;
use support::s3::S3;
use support::server::{Server, ServerSetup, tradewind};
use support::sign::Credentials;
use support::workload::Workload;
use tradewind_powerloss::{CrashMode, MountHandle, PowerLossFs, mount_unavailable};

#[test]
fn nothing_acknowledged_is_lost_to_a_power_cut() {
    if let Some(reason) = mount_unavailable() {
        return support::skip("power_loss", &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().join("disk");
    std::fs::create_dir(&mountpoint).unwrap();
    let disk = PowerLossFs::mount(&mountpoint, None).unwrap();
    let rounds = CrashTest::from_env("TRADEWIND_POWER", 6);
    let start = support::setup_with_small_segments(directory.path(), &mountpoint.join("data"));
    // Slow syncs leave more data unsynced when the power is cut.
    disk.set_sync_delay(Duration::from_millis(2));
    rounds.run(
        &start,
        |server, random, workload| {
            if random.chance(30) {
                fill_for_a_while(&disk, random, workload);
            }
            workload.is_crashed.store(true, Ordering::SeqCst);
            cut(&disk, random);
            server.kill();
        },
        |round, random| {
            if round == 0 {
                return;
            }
            disk.revive();
            // Another cut, while the store recovers from the last one or rebuilds its index.
            let data = start.data.to_str().unwrap();
            match random.below(4) {
                0 => cut_during(&disk, random, &["serve"], &start),
                1 => cut_during(&disk, random, &["store", "reindex", data], &start),
                _ => {}
            }
        },
    );
    disk.unmount().unwrap();
}

/// With a journal that loses power together with the store below.
#[test]
fn nothing_in_a_journal_is_lost_to_a_power_cut() {
    if let Some(reason) = mount_unavailable() {
        return support::skip("power_loss", &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().join("disk");
    std::fs::create_dir(&mountpoint).unwrap();
    let disk = PowerLossFs::mount(&mountpoint, None).unwrap();
    let rounds = CrashTest { has_versions: false, ..CrashTest::from_env("TRADEWIND_POWER", 4) };
    let start = support::setup_with_write_back(directory.path(), &mountpoint.join("data"), &mountpoint);
    disk.set_sync_delay(Duration::from_millis(2));
    rounds.run(
        &start,
        |server, random, workload| {
            workload.is_crashed.store(true, Ordering::SeqCst);
            cut(&disk, random);
            server.kill();
        },
        |round, _| {
            if round > 0 {
                disk.revive();
            }
        },
    );
    disk.unmount().unwrap();
}

#[test]
fn a_root_key_survives_a_power_cut() {
    if let Some(reason) = mount_unavailable() {
        return support::skip("power_loss", &reason);
    }
    let CrashTest { seed, rounds, .. } = CrashTest::from_env("TRADEWIND_POWER", 6);
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().join("disk");
    std::fs::create_dir(&mountpoint).unwrap();
    for round in 0..rounds {
        let disk = PowerLossFs::mount(&mountpoint, None).unwrap();
        let start =
            ServerSetup::new(&mountpoint.join("data"), &directory.path().join("log")).without_root_key();
        let mut server = start.start().unwrap();
        let word = |server: &Server, name: &str| {
            let line = server.printed().into_iter().find(|line| line.trim_start().starts_with(name))?;
            line.trim_start().strip_prefix(name)?.split_whitespace().next().map(str::to_owned)
        };
        let id = word(&server, "access key").unwrap();
        let secret = word(&server, "secret key").unwrap();
        disk.crash(random.next(), mode(&mut random));
        server.kill();
        disk.revive();
        let mut server =
            start.start().unwrap_or_else(|error| panic!("round {round} of seed {seed}: {error}"));
        let credentials = Credentials { id, secret };
        let created = S3::new(server.endpoint, credentials).put("first", &[]).unwrap();
        assert_eq!(
            created.status,
            200,
            "round {round} of seed {seed}: the printed key must be valid: {}",
            created.text()
        );
        assert!(server.terminate().unwrap().success());
        disk.unmount().unwrap();
    }
}

/// Cuts the power.
fn cut(disk: &MountHandle, random: &mut Random) {
    let mode = mode(random);
    let report = disk.crash(random.next(), mode);
    println!("cut with {mode:?}: {report}");
}

/// Runs the binary and cuts the power before it finishes.
fn cut_during(disk: &MountHandle, random: &mut Random, arguments: &[&str], start: &ServerSetup) {
    let log = File::options().create(true).append(true).open(&start.log).unwrap();
    let mut command = tradewind();
    command.args(arguments);
    if arguments[0] == "serve" {
        command.args(["--data".as_ref(), start.data.as_os_str()]).args(&start.flags);
    }
    let mut child =
        command.envs(start.environment.iter().cloned()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(random.below(120)));
    cut(disk, random);
    child.kill().unwrap();
    child.wait().unwrap();
    disk.revive();
}

/// Leaves almost no free space for a moment: writes may fail, reads succeed, and nothing acknowledged is lost.
fn fill_for_a_while(disk: &MountHandle, random: &mut Random, workload: &Workload<'_>) {
    workload.was_full.store(true, Ordering::SeqCst);
    disk.limit_bytes(Some(used_bytes(disk.path()) + random.below(64 << 10)));
    std::thread::sleep(Duration::from_millis(random.below(200)));
    disk.limit_bytes(None);
    std::thread::sleep(Duration::from_millis(random.below(200)));
}

fn used_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    // The server creates and removes files concurrently.
    let size = |entry: DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => used_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}

fn mode(random: &mut Random) -> CrashMode {
    match random.below(10) {
        0..3 => CrashMode::DropAll,
        3 => CrashMode::KeepAll,
        _ => CrashMode::Random,
    }
}
