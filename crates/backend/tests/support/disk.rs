//! A disk that loses power.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use tradewind_powerloss::{Handle, Mode, PowerLossFs, unavailable};

/// A new disk; prints the reason and returns `None` if none can be mounted.
pub fn mounted() -> Option<(Handle, tempfile::TempDir)> {
    if let Some(reason) = unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    let disk = PowerLossFs::mount(place.path(), None).unwrap();
    Some((disk, place))
}

/// Cuts the power as determined by the seed.
pub fn crash(disk: &Handle, seed: u64) {
    let mode = [Mode::Random, Mode::DropAll, Mode::Random, Mode::KeepAll][(seed % 4) as usize];
    disk.crash(seed, mode);
}
