//! `tradewind-powerloss mount DIR [--from DIR] [--threads N]`: the mount for scripts.
//!
//! Reads one command per line from standard input and answers each with one line that starts with `ok` or `error`. The
//! end of the input unmounts.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tradewind_powerloss::{FsyncFailure, MountHandle, MountOptions, PowerLossFs};

const USAGE: &str = "usage: tradewind-powerloss mount DIR [--from DIR] [--threads N]
commands on standard input:
  crash SEED drop-all|keep-all|random   cut the power; EIO until revive
  revive                                serve requests again
  export DIR                            write the tree as ordinary files
  fail-fsync-after N drop|keep          one sync fails after N more; pending data dropped or kept
  limit-bytes N|none                    return ENOSPC beyond N bytes
  sync-delay MILLISECONDS               delay each sync
  counters                              print request counters
  quit                                  unmount";

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Arguments {
    mountpoint: PathBuf,
    from: Option<PathBuf>,
    options: MountOptions,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("tradewind-powerloss: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tradewind-powerloss: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Arguments> {
    if words.next().as_deref() != Some("mount") {
        return Err("the first argument must be `mount`".into());
    }
    let mut arguments = Arguments {
        mountpoint: words.next().ok_or("the mount directory is missing")?.into(),
        from: None,
        options: MountOptions::default(),
    };
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--from" => arguments.from = Some(value.into()),
            "--threads" => arguments.options.threads = value.parse()?,
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    Ok(arguments)
}

fn run(arguments: &Arguments) -> Outcome<()> {
    let handle =
        PowerLossFs::mount_with(&arguments.mountpoint, arguments.from.as_deref(), arguments.options)?;
    let mut out = io::stdout().lock();
    writeln!(out, "ok mounted {}", handle.path().display())?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => continue,
            ["quit"] => break,
            words => match execute(&handle, words) {
                Ok(answer) => writeln!(out, "{}", format!("ok {answer}").trim_end())?,
                Err(error) => writeln!(out, "error {error}")?,
            },
        }
        out.flush()?;
    }
    handle.unmount()?;
    Ok(())
}

fn execute(handle: &MountHandle, words: &[&str]) -> Outcome<String> {
    match words {
        ["crash", seed, mode] => return Ok(handle.crash(seed.parse()?, mode.parse()?).to_string()),
        ["revive"] => handle.revive(),
        ["export", to] => handle.export(to.as_ref())?,
        ["fail-fsync-after", count, "drop"] => {
            handle.fail_fsync_after(count.parse()?, FsyncFailure::DropPending);
        }
        ["fail-fsync-after", count, "keep"] => {
            handle.fail_fsync_after(count.parse()?, FsyncFailure::KeepPending);
        }
        ["limit-bytes", "none"] => handle.limit_bytes(None),
        ["limit-bytes", limit] => handle.limit_bytes(Some(limit.parse()?)),
        ["sync-delay", millis] => handle.set_sync_delay(Duration::from_millis(millis.parse()?)),
        ["counters"] => return Ok(format!("{:?}", handle.counters())),
        _ => return Err(format!("unknown command {:?}", words.join(" ")).into()),
    }
    Ok(String::new())
}
