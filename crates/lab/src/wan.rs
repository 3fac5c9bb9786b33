//! A wide area link, emulated: a command runs in a network namespace of its own, whose only road leads through two TUN
//! devices and a relay between them that lets every packet wait, or through the kernel's netem where it has that. What runs in the caller's namespace is at its other
//! end. Packets carry at most [`MTU`] bytes, so that no offload makes one of many. [`standing`] links have a name, and
//! last until they are taken down.

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

/// Bytes of the largest packet: that of Ethernet.
pub const MTU: u16 = 1500;
/// What a command finds in its environment: the address at which it reaches what runs at the link's other end.
pub const FAR_ADDRESS: &str = "TRADEWIND_LAB_FAR";

/// The two directions of a link, each on its own.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WanOptions {
    /// From the command to what is at the other end.
    pub out: LinkOptions,
    /// The way back.
    pub back: LinkOptions,
    /// What losses and jitter follow from, where the relay decides of them.
    pub seed: u64,
    /// What carries the packets.
    pub via: Via,
}

/// What carries a link's packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Via {
    /// Our own relay, between TUN devices.
    #[default]
    Relay,
    /// The kernel's netem, between veth devices; an error where it is not there, or does otherwise than asked.
    Netem,
    /// Netem where that works, else the relay.
    Auto,
}

/// A command at one end of a link, while it runs.
#[derive(Debug)]
pub struct Wan {
    running: Running,
    carrier: Carrier,
    far: Ipv4Addr,
}

/// How it went.
#[derive(Debug)]
pub struct Ended {
    /// The command's.
    pub status: ExitStatus,
    /// What the link carried from the command, and to it; an error where the kernel did not say.
    pub carried: io::Result<(Counts, Counts)>,
}

impl Wan {
    /// Makes the link and starts a command at its end. Dropped, the command is killed.
    pub fn start(options: WanOptions, command: &[OsString]) -> Result<Self, Failed> {
        let (running, carrier, far) = link(options, |far| {
            Running::start(command, |command| {
                command.env(FAR_ADDRESS, far.to_string());
            })
        })?;
        Ok(Self { running, carrier, far })
    }

    /// Where the command reaches what runs here.
    #[must_use]
    pub const fn far(&self) -> Ipv4Addr {
        self.far
    }

    /// The command's process, to send signals to. It never means another process that was given the same number.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.running.process()
    }

    /// The number of the command's process.
    #[must_use]
    pub fn process_number(&self) -> u32 {
        self.running.number()
    }

    /// What carries the packets: not [`Via::Auto`].
    #[must_use]
    pub const fn via(&self) -> Via {
        self.carrier.via()
    }

    /// Carries packets until the command has ended, and its last ones. For the time that packets wait to be exact, the calling thread asks to
    /// be run before others; `on_refused` hears where it is not always.
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

/// Makes a link, and does something at its near end, given the address of the far one.
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

/// The queue of a line that holds what is under way on it: the rate times the round trip, as routers are set up.
#[must_use]
pub fn usual_queue(rate: u64, round_trip: Duration) -> u64 {
    let bits = u128::from(rate) * round_trip.as_nanos() / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX).max(u64::from(MTU) * 16)
}
