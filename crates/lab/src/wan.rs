//! An emulated wide area link. A command runs in its own network namespace, whose only route leads through two TUN
//! devices and a relay that delays every packet, or through the kernel's netem. Services in the caller's namespace
//! are at the far end. Packets carry at most [`MTU`] bytes, so that no offload merges them. [`standing`] links are
//! named and persist until they are taken down.

mod carrier;
mod device;
mod link;
mod namespace;
mod netem;
mod number;
mod relay;
pub mod standing;
mod told;
mod wake;

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use self::carrier::Carrier;
pub use self::link::{Counts, JitterKind, Link, LinkOptions};
pub use self::told::told;
pub use self::wake::Unsteady;
use crate::failed::{Failed, failed};
use crate::running::Running;

/// Maximum packet size in bytes: Ethernet's.
pub const MTU: u16 = 1500;
/// Environment variable with the address of the far end, for the command.
pub const FAR_ADDRESS: &str = "TRADEWIND_LAB_FAR";

/// The two directions of a link, configured separately.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WanOptions {
    /// From the command to the far end.
    pub out: LinkOptions,
    /// From the far end to the command.
    pub back: LinkOptions,
    /// Seed of losses and jitter if the relay decides them.
    pub seed: u64,
    /// The packet forwarder.
    pub via: Via,
}

/// The packet forwarder of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Via {
    /// The built-in relay, between TUN devices.
    #[default]
    Relay,
    /// The kernel's netem, between veth devices. An error if unavailable or unable to do what is requested.
    Netem,
    /// Netem if it works, otherwise the relay.
    Auto,
}

/// A running command at one end of a link.
#[derive(Debug)]
pub struct Wan {
    running: Running,
    carrier: Carrier,
    far: Ipv4Addr,
}

/// The result of a finished command.
#[derive(Debug)]
pub struct Ended {
    /// The command's exit status.
    pub status: ExitStatus,
    /// The counters of both directions: from the command, and to it. An error if the kernel did not report them.
    pub carried: io::Result<(Counts, Counts)>,
}

impl Wan {
    /// Creates the link and starts a command at its near end. Dropping the value kills the command.
    pub fn start(options: WanOptions, command: &[OsString]) -> Result<Self, Failed> {
        let (running, carrier, far) = link(options, |far| {
            Running::start(command, |command| {
                command.env(FAR_ADDRESS, far.to_string());
            })
        })?;
        Ok(Self { running, carrier, far })
    }

    /// Address of the far end, at which the command reaches services in the caller's namespace.
    #[must_use]
    pub const fn far(&self) -> Ipv4Addr {
        self.far
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.running.process()
    }

    /// The command's PID.
    #[must_use]
    pub fn process_number(&self) -> u32 {
        self.running.number()
    }

    /// The packet forwarder in use: never [`Via::Auto`].
    #[must_use]
    pub const fn via(&self) -> Via {
        self.carrier.via()
    }

    /// Forwards packets until the command has exited and its last packets are delivered. Requests real-time priority
    /// for the calling thread, so that delays are exact; `on_refused` is called if it is unavailable or limited.
    pub fn run(mut self, on_refused: impl FnOnce(&Unsteady)) -> Result<Ended, Failed> {
        if let Err(e) = self.carrier.before_others() {
            on_refused(&e);
        }
        self.carrier.run(self.running.watched(), true).map_err(failed("carry packets"))?;
        let carried = self.carrier.carried().read();
        let status = self.running.wait()?;
        Ok(Ended { status, carried })
    }
}

/// Creates a link and runs `near_end` in its near namespace, with the address of the far end.
fn link<T: Send>(
    options: WanOptions,
    near_end: impl FnOnce(Ipv4Addr) -> Result<T, Failed> + Send,
) -> Result<(T, Carrier, Ipv4Addr), Failed> {
    let far = namespace::own().map_err(failed("find the network namespace"))?;
    namespace::apart(move || {
        namespace::raise_loopback().map_err(failed("set up the loopback device"))?;
        let (carrier, far) = Carrier::make(options, &far)?;
        Ok((near_end(far)?, carrier, far))
    })
}

/// The usual router queue: the bandwidth-delay product, at least 16 packets.
#[must_use]
pub fn usual_queue(rate: u64, round_trip: Duration) -> u64 {
    let bits = u128::from(rate) * round_trip.as_nanos() / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX).max(u64::from(MTU) * 16)
}
