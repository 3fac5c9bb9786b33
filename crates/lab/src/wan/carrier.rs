//! The packet forwarder of a link: the built-in relay or the kernel's netem.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};

use super::link::Counts;
use super::netem::{Counter, Netem};
use super::relay::{Gauge, Relay};
use super::wake::{self, Unsteady};
use super::{Via, WanOptions};
use crate::failed::{Failed, failed};

/// A packet forwarder.
#[derive(Debug)]
pub(super) enum Carrier {
    Relay(Box<Relay>),
    Netem(Netem),
}

/// A readable handle on the counters of a forwarder.
#[derive(Debug, Clone)]
pub(super) enum Carried {
    Relay(Gauge),
    Netem(Counter),
}

impl Carried {
    /// The counters out and back; an error if the kernel does not report them.
    pub fn read(&self) -> io::Result<(Counts, Counts)> {
        match self {
            Self::Relay(gauge) => Ok(gauge.read()),
            Self::Netem(counter) => counter.read(),
        }
    }
}

impl Carrier {
    /// Creates the link between the thread's namespace and `far`; returns the address of the far end.
    pub fn make(options: WanOptions, far: &File) -> Result<(Self, Ipv4Addr), Failed> {
        let relay = || Relay::make(options, far).map(|(relay, far)| (Self::Relay(Box::new(relay)), far));
        match options.via {
            Via::Relay => relay(),
            Via::Netem => {
                let made = Netem::make(options, far)
                    .map_err(failed("create a link with the kernel's netem (not needed with --via relay)"));
                made.map(|(netem, far)| (Self::Netem(netem), far))
            }
            Via::Auto => match Netem::make(options, far) {
                Ok((netem, far)) => Ok((Self::Netem(netem), far)),
                Err(_) => relay(),
            },
        }
    }

    /// The kind of forwarder.
    pub const fn via(&self) -> Via {
        match self {
            Self::Relay(_) => Via::Relay,
            Self::Netem(_) => Via::Netem,
        }
    }

    /// Raises the priority of the calling thread if that thread forwards the packets, so that delays are exact.
    pub fn before_others(&self) -> Result<(), Unsteady> {
        match self {
            Self::Relay(_) => wake::before_others(),
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

    pub fn carried(&self) -> Carried {
        match self {
            Self::Relay(relay) => Carried::Relay(relay.gauge()),
            Self::Netem(netem) => Carried::Netem(netem.counter()),
        }
    }
}
