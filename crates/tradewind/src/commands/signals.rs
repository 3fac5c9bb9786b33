//! The signals that ask a command to end: the keys of a terminal, whoever asks politely, and a terminal that goes away.

use anyhow::Context as _;
use tokio::signal::unix::{self, SignalKind, signal};

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caught {
    Interrupt,
    Terminate,
    Hangup,
}

impl Caught {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        }
    }

    /// The exit status of a command that it ended, as shells tell it: 128 and the signal's number.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }
}

/// Listens for them. From then on they no longer end the process by themselves.
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    /// There is none where whoever started this had it ignored, as `nohup` does: it goes on without its terminal then.
    hangup: Option<unix::Signal>,
}

impl Signals {
    /// Must be called within a runtime.
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

    /// Waits for the next one.
    pub async fn next(&mut self) -> Caught {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Caught::Terminate,
            _ = self.interrupt.recv() => Caught::Interrupt,
            _ = hangup => Caught::Hangup,
        }
    }

    /// Waits until somebody asks once more. A terminal that goes away says so twice, by its shell and by the kernel: that is
    /// nobody's impatience.
    pub async fn again(&mut self) -> Caught {
        loop {
            match self.next().await {
                Caught::Hangup => {}
                caught => return caught,
            }
        }
    }
}

/// Whether a process has a signal ignored, by what the kernel says of it.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_ignored_is() {
        let status =
            "Name:\ttradewind\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\tffff\n";
        assert!(ignores(status, SignalKind::hangup()));
        assert!(!ignores(status, SignalKind::interrupt()) && !ignores(status, SignalKind::terminate()));
        assert!(!ignores("SigIgn:\t0000000000001000\n", SignalKind::hangup()), "broken pipes are");
        assert!(!ignores("", SignalKind::hangup()));
    }
}
