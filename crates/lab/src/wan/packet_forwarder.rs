//! The packet forwarder of a link: the built-in relay or the kernel's netem.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};

use super::link::LinkCounts;
use super::netem::{Netem, NetemCounter};
use super::relay::{Relay, RelayCounter};
use super::wakeup::{self, TimingWarning};
use super::{ForwarderKind, WanOptions};
use crate::error::{LabError, cannot};

/// A packet forwarder.
#[derive(Debug)]
pub(super) enum PacketForwarder {
    Relay(Box<Relay>),
    Netem(Netem),
}

/// A readable handle on the counters of a forwarder.
#[derive(Debug, Clone)]
pub(super) enum LinkCounter {
    Relay(RelayCounter),
    Netem(NetemCounter),
}

impl LinkCounter {
    /// The counters out and back; an error if the kernel does not report them.
    pub fn read(&self) -> io::Result<(LinkCounts, LinkCounts)> {
        match self {
            Self::Relay(counter) => Ok(counter.read()),
            Self::Netem(counter) => counter.read(),
        }
    }
}

impl PacketForwarder {
    /// Creates the link between the thread's namespace and `far`; returns the address of the far end.
    pub fn create(options: WanOptions, far: &File) -> Result<(Self, Ipv4Addr), LabError> {
        let relay = || Relay::create(options, far).map(|(relay, far)| (Self::Relay(Box::new(relay)), far));
        match options.via {
            ForwarderKind::Relay => relay(),
            ForwarderKind::Netem => {
                let created = Netem::create(options, far)
                    .map_err(cannot("create a link with the kernel's netem (not needed with --via relay)"));
                created.map(|(netem, far)| (Self::Netem(netem), far))
            }
            ForwarderKind::Auto => match Netem::create(options, far) {
                Ok((netem, far)) => Ok((Self::Netem(netem), far)),
                Err(_) => relay(),
            },
        }
    }

    /// The kind of forwarder.
    pub const fn via(&self) -> ForwarderKind {
        match self {
            Self::Relay(_) => ForwarderKind::Relay,
            Self::Netem(_) => ForwarderKind::Netem,
        }
    }

    /// Raises the priority of the calling thread if that thread forwards the packets, so that delays are exact.
    pub fn raise_priority(&self) -> Result<(), TimingWarning> {
        match self {
            Self::Relay(_) => wakeup::raise_priority(),
            Self::Netem(_) => Ok(()),
        }
    }

    /// Forwards packets until `ended` is readable; see [`Relay::run`].
    pub fn run(&mut self, ended: BorrowedFd<'_>, lingers: bool) -> io::Result<()> {
        match self {
            Self::Relay(relay) => relay.run(ended, lingers),
            Self::Netem(netem) => {
                while let Err(e) = poll(&mut [PollFd::from_borrowed_fd(ended, PollFlags::IN)], None) {
                    if e != rustix::io::Errno::INTR {
                        return Err(e.into());
                    }
                }
                if lingers {
                    netem.linger();
                }
                Ok(())
            }
        }
    }

    pub fn counter(&self) -> LinkCounter {
        match self {
            Self::Relay(relay) => LinkCounter::Relay(relay.counter()),
            Self::Netem(netem) => LinkCounter::Netem(netem.counter()),
        }
    }
}
