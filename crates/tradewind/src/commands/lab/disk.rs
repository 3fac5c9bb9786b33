//! `tradewind lab disk`: runs a command with a slow disk in one directory.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tradewind_lab::disk::{self, AppliedLimits, DeviceProfile, Disk, DiskOptions, IoLimits};

use super::super::{CommandOutcome, UsageError};
use super::run::{outcome_from_status, print_note, run_with_signals};
use crate::settings::ByteSize;

/// Run a command with a slower disk in one directory
///
/// If the directory is on a block device, the command's I/O on that device is throttled. Otherwise, and always with
/// --loop, the directory becomes a new empty file system, visible to the command only, which is deleted with its
/// contents when the command ends. The limits in force are printed at the start. With `up`, the file system is visible
/// to all processes until `down`. Limits are bytes/s and requests/s; seek times cannot be emulated, a limit of
/// requests/s approximates them. Needs root, and mkfs.ext4 for a new file system.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    tradewind lab disk --preset hdd ./data -- tradewind serve --data ./data/store\n  \
    tradewind lab disk --read 60MB --write 23MB --loop 4GiB ./files -- tradewind sync s3://data ./files\n  \
    tradewind lab disk up --preset hou-magnetic ./files && tradewind lab disk down ./files\n\n\
    Presets: hdd, a disk of 7,200 rpm; ssd, a flash drive on SATA; hou-magnetic and hou-ssd, those of Hou \
    et al. 2017, Table II; chen-hdd and chen-ssd, those of Chen et al. 2014.\n\
    Exit status: that of the command; 128 plus the signal's number if a signal ended it."
)]
pub(in super::super) struct Arguments {
    #[command(subcommand)]
    longer: Option<Longer>,
    #[command(flatten)]
    speed: Speed,
    /// Directory to slow down
    #[arg(value_name = "DIR", required = true)]
    directory: Option<PathBuf>,
    /// Command to run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum Longer {
    Up(Up),
    Down(Down),
}

/// Create a slow disk in a directory, visible to all processes
///
/// The directory, which must be empty, becomes a new file system until `down`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tradewind lab disk up --preset hdd --loop 4GiB ./files")]
struct Up {
    #[command(flatten)]
    speed: Speed,
    /// Directory to slow down
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Remove the file system that `up` created, with its contents
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tradewind lab disk down ./files")]
struct Down {
    /// Directory given to `up`
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct Speed {
    /// Device: hdd, ssd, hou-magnetic, hou-ssd, chen-hdd, chen-ssd; the flags below override its values
    #[arg(long, value_name = "NAME", value_parser = profile)]
    preset: Option<DeviceProfile>,
    /// Bytes read per second, e.g. 60MB
    #[arg(long, value_name = "RATE", value_parser = rate)]
    read: Option<u64>,
    /// Bytes written per second, e.g. 23MB
    #[arg(long, value_name = "RATE", value_parser = rate)]
    write: Option<u64>,
    /// Reads per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    read_iops: Option<u64>,
    /// Writes per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    write_iops: Option<u64>,
    /// Create a new file system of this size in any case [default: if the directory is not on a block device, half of
    /// the free space, up to 16GiB]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    r#loop: Option<ByteSize>,
    /// Limit of dirty data in memory, e.g. 16MiB, for a new file system [default: the kernel's, a fraction of the
    /// machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    write_behind: Option<ByteSize>,
}

fn profile(name: &str) -> Result<DeviceProfile, String> {
    let known = DeviceProfile::ALL.into_iter().find(|(known, _)| *known == name);
    let names = DeviceProfile::ALL.map(|(known, _)| known).join(", ");
    known.map(|(_, profile)| profile).ok_or_else(|| format!("write one of {names}"))
}

fn rate(text: &str) -> Result<u64, String> {
    // Less than a page per second would never end.
    const MIN_RATE: u64 = 4096;
    let rate = ByteSize::parse(text.strip_suffix("/s").unwrap_or(text))?.0;
    if rate < MIN_RATE { Err("the minimum is 4KiB per second".to_owned()) } else { Ok(rate) }
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    match arguments.longer {
        Some(Longer::Up(up)) => {
            print_limits(&disk::up(up.speed.options()?, &up.directory)?)?;
            if is_here(&up.directory) {
                print_note("this shell still uses the old directory: enter it again (cd \"$PWD\")")?;
            }
            return Ok(CommandOutcome::Done);
        }
        Some(Longer::Down(down)) => {
            disk::down(&down.directory)?;
            return Ok(CommandOutcome::Done);
        }
        None => {}
    }
    let (options, command) = (arguments.speed.options()?, arguments.command);
    let directory = arguments.directory.unwrap_or_default();
    let status = run_with_signals(move || {
        let disk = Disk::start(options, &directory, &command, &mut |in_force| {
            // The limits apply even if they cannot be printed.
            let _ = print_limits(in_force);
        })?;
        Ok((disk.pidfd()?, move || disk.wait()))
    })??;
    Ok(outcome_from_status(status))
}

/// Returns true if the current directory is this one.
fn is_here(directory: &Path) -> bool {
    let here = env::current_dir();
    here.is_ok_and(|here| directory.canonicalize().is_ok_and(|directory| directory == here))
}

impl Speed {
    fn options(&self) -> anyhow::Result<DiskOptions> {
        let known = self.preset.map(DeviceProfile::limits).unwrap_or_default();
        let rates = IoLimits {
            read_bytes_per_second: self.read.or(known.read_bytes_per_second),
            write_bytes_per_second: self.write.or(known.write_bytes_per_second),
            read_iops: self.read_iops.or(known.read_iops),
            write_iops: self.write_iops.or(known.write_iops),
        };
        if rates == IoLimits::default() {
            let words = "set at least one of --preset, --read, --write, --read-iops or --write-iops";
            return Err(UsageError(words.to_owned()).into());
        }
        let bytes = |size: Option<ByteSize>| size.map(|size| size.0);
        Ok(DiskOptions {
            limits: rates,
            file_system_bytes: bytes(self.r#loop),
            max_dirty_bytes: bytes(self.write_behind),
        })
    }
}

fn print_limits(in_force: &AppliedLimits) -> std::io::Result<()> {
    print_note(&show(in_force))
}

fn show(in_force: &AppliedLimits) -> String {
    let AppliedLimits {
        device,
        file_system_bytes: file_system,
        limits: rates,
        limits_writeback: later_writes,
    } = in_force;
    let what =
        file_system.map_or_else(String::new, |bytes| format!("a new file system of {} MiB on ", bytes >> 20));
    let bandwidth = |rate: Option<u64>| rate.map(|rate| format!("{:.2} MB/s", rate as f64 / 1e6));
    let requests = |rate: Option<u64>| rate.map(|rate| format!("{rate} requests/s"));
    let both = |words: [Option<String>; 2]| {
        let words: Vec<_> = words.into_iter().flatten().collect();
        if words.is_empty() { "unlimited".to_owned() } else { format!("at most {}", words.join(" and ")) }
    };
    let later = match (later_writes, file_system) {
        (true, _) => "write-back is throttled too",
        (false, None) => "write-back is not throttled (use --loop for that)",
        (false, Some(_)) => "write-back is not throttled",
    };
    format!(
        "{what}{device}: reads {}; writes {}; {later}",
        both([bandwidth(rates.read_bytes_per_second), requests(rates.read_iops)]),
        both([bandwidth(rates.write_bytes_per_second), requests(rates.write_iops)])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(rate("60MB/s"), Ok(60_000_000));
        assert_eq!(rate("1MiB"), Ok(1 << 20));
        assert!(rate("1K").is_err() && rate("fast").is_err());
    }

    #[test]
    fn limits_in_force_are_described() {
        let rates =
            IoLimits { read_bytes_per_second: Some(5_000_000), read_iops: Some(9), ..IoLimits::default() };
        let text = |file_system, later_writes| {
            show(&AppliedLimits {
                device: "254:0".to_owned(),
                file_system_bytes: file_system,
                limits: rates,
                limits_writeback: later_writes,
            })
        };
        assert!(
            text(None, false)
                .starts_with("254:0: reads at most 5.00 MB/s and 9 requests/s; writes unlimited;")
        );
        assert!(text(None, false).contains("is not throttled"));
        assert!(text(Some(1 << 30), true).starts_with("a new file system of 1024 MiB on 254:0:"));
    }
}
