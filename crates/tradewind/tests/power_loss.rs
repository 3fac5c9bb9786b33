//! The unmodified binary on a file system that loses power: what was synced is there, what was not may be
//! lost, torn or reordered, and still every acknowledged write holds.
//!
//! `TRADEWIND_POWER_ROUNDS` sets how often, `TRADEWIND_POWER_SEED` repeats a run.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use support::random::Random;
use support::rounds::Rounds;
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

fn mode(random: &mut Random) -> Mode {
    match random.below(10) {
        0..3 => Mode::DropAll,
        3 => Mode::KeepAll,
        _ => Mode::Random,
    }
}
