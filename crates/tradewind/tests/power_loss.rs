//! The unmodified binary on a file system that loses power: what was synced is there, what was not may be
//! lost, torn or reordered, and still every acknowledged write holds.
//!
//! `TRADEWIND_POWER_ROUNDS` sets how often, `TRADEWIND_POWER_SEED` repeats a run.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use support::random::Random;
use support::rounds::Rounds;
use support::s3::S3;
use support::server::{Server, Start};
use support::sign::Credentials;
use tradewind_powerloss::{Mode, PowerLossFs, unavailable};

#[test]
fn nothing_acknowledged_is_lost_to_a_power_cut() {
    if let Some(reason) = unavailable() {
        return support::skip("power_loss", &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().join("disk");
    std::fs::create_dir(&mountpoint).unwrap();
    let disk = PowerLossFs::mount(&mountpoint, None).unwrap();
    let rounds = Rounds::from_environment("TRADEWIND_POWER", 6);
    let start = support::start_with_small_segments(directory.path(), &mountpoint.join("data"));
    // A sync that takes a while leaves more work unsynced at the moment of the cut.
    disk.set_sync_delay(Duration::from_millis(2));
    rounds.run(
        &start,
        |server, random, is_struck| {
            is_struck.store(true, Ordering::SeqCst);
            let mode = mode(random);
            let report = disk.crash(random.next(), mode);
            println!("cut with {mode:?}: {report}");
            server.kill();
        },
        |round| {
            if round > 0 {
                disk.revive();
            }
        },
    );
    disk.unmount().unwrap();
}

#[test]
fn a_root_key_survives_a_power_cut() {
    if let Some(reason) = unavailable() {
        return support::skip("power_loss", &reason);
    }
    let Rounds { seed, rounds, .. } = Rounds::from_environment("TRADEWIND_POWER", 6);
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().join("disk");
    std::fs::create_dir(&mountpoint).unwrap();
    for round in 0..rounds {
        let disk = PowerLossFs::mount(&mountpoint, None).unwrap();
        let start = Start::new(&mountpoint.join("data"), &directory.path().join("log")).without_environment();
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
        let made = S3::new(server.endpoint, credentials).put("first", &[]).unwrap();
        assert_eq!(
            made.status,
            200,
            "round {round} of seed {seed}: the key that was printed holds: {}",
            made.text()
        );
        assert!(server.terminate().unwrap().success());
        disk.unmount().unwrap();
    }
}

fn mode(random: &mut Random) -> Mode {
    match random.below(10) {
        0..3 => Mode::DropAll,
        3 => Mode::KeepAll,
        _ => Mode::Random,
    }
}
