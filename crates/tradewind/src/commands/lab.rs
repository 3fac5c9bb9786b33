//! `tradewind lab`: emulated worlds.

mod client;
mod disk;
mod run;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tradewind_lab::wan::{Counts, LinkOptions, Wan, WanOptions, usual_queue};

use super::Ended;
use super::signals::{Caught, Signals};
use crate::settings::Span;

/// Emulated worlds to try things in
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Wan(WanArguments),
    Client(client::Arguments),
    Disk(disk::Arguments),
}

/// Run a command behind an emulated wide area link
///
/// The command runs in a network namespace of its own, whose only road leads through the link. What runs here and listens
/// on 0.0.0.0 is at the other end, at the address in $TRADEWIND_LAB_FAR; 127.0.0.1 is not the same there as here. Delay
/// and rate are those of each direction: a round trip takes twice the delay. Packets have up to 1500 bytes and are not
/// reordered. Needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab wan --delay 25ms -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n  \
    tradewind lab wan --delay 10ms --rate 100mbit -- sh -c 'tradewind ls s3://data \\\n      \
    --endpoint-url http://$TRADEWIND_LAB_FAR:9000'\n\n\
    Exit status: that of the command; 128 and the signal's number where one ended it.")]
pub(super) struct WanArguments {
    /// How long a packet is under way, in each direction
    #[arg(long, value_name = "TIME", value_parser = Span::parse)]
    delay: Span,
    /// Bits of IP packets that each direction takes a second, as 100mbit [default: no bound]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Say what the link carried when the command has ended
    #[arg(long)]
    counts: bool,
    /// What is run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];
    let read = units.iter().find_map(|(unit, bits)| {
        let number: u64 = lower.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*bits).filter(|rate| *rate >= 1_000)
    });
    read.ok_or_else(|| "write it as 100mbit, in bit, kbit, mbit or gbit a second, from 1kbit on".to_owned())
}

pub(super) fn run(command: Command) -> anyhow::Result<Ended> {
    let arguments = match command {
        Command::Wan(arguments) => arguments,
        Command::Client(arguments) => return client::run(&arguments),
        Command::Disk(arguments) => return disk::run(arguments),
    };
    let delay = arguments.delay.0;
    let queue_bytes = arguments.rate.map_or(u64::MAX, |rate| usual_queue(rate, delay * 2));
    let link = LinkOptions { delay, rate: arguments.rate, queue_bytes };
    let wan = Wan::start(WanOptions { out: link, back: link }, &arguments.command)?;
    if arguments.rate.is_some() {
        note(&format!("each direction queues up to {queue_bytes} bytes and drops what comes on top"))?;
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    let ended = runtime.context("cannot wait for signals")?.block_on(carry(wan))?;
    if arguments.counts {
        note(&format!("out {}; back {}", show(ended.out), show(ended.back)))?;
    }
    Ok(match status(ended.status) {
        0 => Ended::Done,
        status => Ended::Status(status),
    })
}

/// Carries packets until the command ends; signals are for it.
async fn carry(wan: Wan) -> anyhow::Result<tradewind_lab::wan::Ended> {
    let process = Pid::from_raw(wan.process().cast_signed()).context("a process without a number")?;
    let mut signals = Signals::new()?;
    let refused = |e: &io::Error| {
        // Whoever emulates should know what the figures are worth.
        let _ =
            note(&format!("packets may be late on a busy machine, since no priority is given to them: {e}"));
    };
    let mut running = tokio::task::spawn_blocking(move || wan.run(refused));
    loop {
        let signal = tokio::select! {
            ended = &mut running => return Ok(ended.context("the link's thread failed")??),
            caught = signals.next() => match caught {
                Caught::Interrupt => Signal::INT,
                Caught::Terminate => Signal::TERM,
            },
        };
        // It may have ended just now.
        let _ = kill_process(process, signal);
    }
}

fn status(ended: ExitStatus) -> u8 {
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn show(counts: Counts) -> String {
    let Counts { packets, bytes, dropped, longest_queue } = counts;
    format!("{packets} packets, {bytes} bytes, {dropped} dropped, queue up to {longest_queue} bytes")
}

fn note(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "tradewind: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(rate("100mbit"), Ok(100_000_000));
        assert_eq!(rate("1 Gbit"), Ok(1_000_000_000));
        assert_eq!(rate("9600bit"), Ok(9600));
        for bad in ["", "100", "mbit", "10bit", "-1mbit", "1MB", "99999999999gbit"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
