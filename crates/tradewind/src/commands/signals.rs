//! The signals that ask a command to stop: SIGINT, SIGTERM and SIGHUP.

use anyhow::Context as _;
use tokio::signal::unix::{self, SignalKind, signal};

/// A signal received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaughtSignal {
    Interrupt,
    Terminate,
    Hangup,
}

impl CaughtSignal {
    /// The signal's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        }
    }

    /// The exit status of a command stopped by the signal, as shells report it: 128 plus the signal's number.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }
}

/// Listeners for the signals. Once created, the signals no longer terminate the process.
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    /// `None` if the parent process ignored SIGHUP, as `nohup` does: the command then outlives its terminal.
    hangup: Option<unix::Signal>,
}

impl Signals {
    /// Starts to listen. Must be called within a runtime.
    pub fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = (!ignores(&status, SignalKind::hangup())).then(|| listen(SignalKind::hangup()));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Listens to SIGHUP also if the parent process ignored it: for commands that do not stop then.
    pub fn listen_to_hangup(&mut self) -> anyhow::Result<()> {
        if self.hangup.is_none() {
            self.hangup = Some(signal(SignalKind::hangup()).context("cannot listen for signals")?);
        }
        Ok(())
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> CaughtSignal {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => CaughtSignal::Terminate,
            _ = self.interrupt.recv() => CaughtSignal::Interrupt,
            _ = hangup => CaughtSignal::Hangup,
        }
    }

    /// Waits for another signal, except SIGHUP: a terminal that closes causes two of them, from its shell and from the
    /// kernel, which is not a second request to stop.
    pub async fn next_except_hangup(&mut self) -> CaughtSignal {
        loop {
            match self.next().await {
                CaughtSignal::Hangup => {}
                caught => return caught,
            }
        }
    }
}

/// Returns true if a process ignores a signal, according to its `/proc/PID/status`.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_proc_status() {
        let status =
            "Name:\ttradewind\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\tffff\n";
        assert!(ignores(status, SignalKind::hangup()));
        assert!(!ignores(status, SignalKind::interrupt()) && !ignores(status, SignalKind::terminate()));
        assert!(!ignores("SigIgn:\t0000000000001000\n", SignalKind::hangup()), "SIGPIPE is ignored");
        assert!(!ignores("", SignalKind::hangup()));
    }
}
