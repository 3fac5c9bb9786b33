//! The signals that ask a command to end.

use anyhow::Context as _;
use tokio::signal::unix::{self, SignalKind, signal};

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caught {
    Interrupt,
    Terminate,
}

impl Caught {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// The exit status of a command that it ended, as shells tell it: 128 and the signal's number.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Listens for them. From then on they no longer end the process by themselves.
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    /// Must be called within a runtime.
    pub fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.terminate.recv() => Caught::Terminate,
            _ = self.interrupt.recv() => Caught::Interrupt,
        }
    }
}
