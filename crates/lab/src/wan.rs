//! An emulated wide area link. A command runs in its own network namespace, whose only route leads through two TUN
//! devices and a relay that delays every packet, or through the kernel's netem. Services in the caller's namespace
//! are at the far end. Packets carry at most [`MTU`] bytes, so that no offload merges them. [`named_link`] links are
//! named and persist until they are taken down.

mod link;
mod link_number;
pub mod named_link;
mod namespace;
mod netem;
mod packet_forwarder;
mod relay;
mod report;
mod tun_device;
mod wakeup;

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

pub use self::link::{JitterKind, Link, LinkCounts, LinkOptions};
use self::packet_forwarder::PacketForwarder;
pub use self::report::link_report;
pub use self::wakeup::TimingWarning;
use crate::error::{LabError, cannot};
use crate::running_command::RunningCommand;

/// Maximum packet size in bytes: Ethernet's.
pub const MTU: u16 = 1500;
/// Environment variable with the address of the far end, for the command.
pub const FAR_ADDRESS_ENV: &str = "TRADEWIND_LAB_FAR";

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
    pub via: ForwarderKind,
}

/// The packet forwarder of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForwarderKind {
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
    running: RunningCommand,
    forwarder: PacketForwarder,
    far_address: Ipv4Addr,
}

/// The result of a finished command.
#[derive(Debug)]
pub struct WanResult {
    /// The command's exit status.
    pub status: ExitStatus,
    /// The counters of both directions: from the command, and to it. An error if the kernel did not report them.
    pub counts: io::Result<(LinkCounts, LinkCounts)>,
}

impl Wan {
    /// Creates the link and starts a command at its near end. Dropping the value kills the command.
    pub fn start(options: WanOptions, command: &[OsString]) -> Result<Self, LabError> {
        let (running, forwarder, far_address) = create_link(options, |far| {
            RunningCommand::start(command, |command| {
                command.env(FAR_ADDRESS_ENV, far.to_string());
            })
        })?;
        Ok(Self { running, forwarder, far_address })
    }

    /// Address of the far end, at which the command reaches services in the caller's namespace.
    #[must_use]
    pub const fn far(&self) -> Ipv4Addr {
        self.far_address
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn pidfd(&self) -> Result<OwnedFd, LabError> {
        self.running.process()
    }

    /// The command's PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// The packet forwarder in use: never [`ForwarderKind::Auto`].
    #[must_use]
    pub const fn via(&self) -> ForwarderKind {
        self.forwarder.via()
    }

    /// Forwards packets until the command has exited and its last packets are delivered. Requests real-time priority
    /// for the calling thread, so that delays are exact; `on_refused` is called if it is unavailable or limited.
    pub fn run(mut self, on_refused: impl FnOnce(&TimingWarning)) -> Result<WanResult, LabError> {
        if let Err(e) = self.forwarder.raise_priority() {
            on_refused(&e);
        }
        self.forwarder.run(self.running.as_pidfd(), true).map_err(cannot("forward packets"))?;
        let counts = self.forwarder.counter().read();
        let status = self.running.wait()?;
        Ok(WanResult { status, counts })
    }
}

/// Creates a link and runs `near_end` in its near namespace, with the address of the far end.
fn create_link<T: Send>(
    options: WanOptions,
    near_end: impl FnOnce(Ipv4Addr) -> Result<T, LabError> + Send,
) -> Result<(T, PacketForwarder, Ipv4Addr), LabError> {
    let far = namespace::open_current().map_err(cannot("find the network namespace"))?;
    namespace::in_new_namespace(move || {
        namespace::raise_loopback().map_err(cannot("set up the loopback device"))?;
        let (forwarder, far_address) = PacketForwarder::create(options, &far)?;
        Ok((near_end(far_address)?, forwarder, far_address))
    })
}

/// The usual router queue: the bandwidth-delay product, at least 16 packets.
#[must_use]
pub fn default_queue_bytes(rate: u64, round_trip: Duration) -> u64 {
    let bits = u128::from(rate) * round_trip.as_nanos() / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX).max(u64::from(MTU) * 16)
}
