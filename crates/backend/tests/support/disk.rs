//! A disk that loses power.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use tradewind_powerloss::{CrashMode, MountHandle, PowerLossFs, mount_unavailable};

/// A new disk; prints the reason and returns `None` if none can be mounted.
pub fn mount() -> Option<(MountHandle, tempfile::TempDir)> {
    if let Some(reason) = mount_unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    let disk = PowerLossFs::mount(place.path(), None).unwrap();
    Some((disk, place))
}

/// Cuts the power as determined by the seed.
pub fn crash(disk: &MountHandle, seed: u64) {
    let mode =
        [CrashMode::Random, CrashMode::DropAll, CrashMode::Random, CrashMode::KeepAll][(seed % 4) as usize];
    disk.crash(seed, mode);
}
