//! A wide area link, emulated: a command runs in a network namespace of its own, whose only road leads through two TUN
//! devices and a relay between them that lets every packet wait. What runs in the caller's namespace is at its other
//! end. Packets are not reordered, and carry at most [`MTU`] bytes, so that no offload makes one of many.

mod device;
mod link;
mod namespace;
mod relay;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use self::device::Device;
pub use self::link::{Counts, Link, LinkOptions};
use self::relay::Relay;

/// Bytes of the largest packet: that of Ethernet.
pub const MTU: u16 = 1500;
/// What a command finds in its environment: the address at which it reaches what runs at the link's other end.
pub const FAR_ADDRESS: &str = "TRADEWIND_LAB_FAR";

/// What could not be done.
#[derive(Debug)]
pub struct Failed {
    what: String,
    error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.error)?;
        if self.error.kind() == io::ErrorKind::PermissionDenied {
            f.write_str("; it needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Failed {
    |error| Failed { what: what.into(), error: error.into() }
}

/// The two directions of a link, each on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WanOptions {
    /// From the command to what is at the other end.
    pub out: LinkOptions,
    /// The way back.
    pub back: LinkOptions,
}

/// A command at one end of a link, while it runs.
#[derive(Debug)]
pub struct Wan {
    child: Child,
    relay: Relay,
    far: Ipv4Addr,
}

/// How it went.
#[derive(Debug)]
pub struct Ended {
    /// The command's.
    pub status: ExitStatus,
    /// What the link carried from the command.
    pub out: Counts,
    /// What it carried to the command.
    pub back: Counts,
}

impl Wan {
    /// Makes the link and starts a command at its end. Dropped, the command is killed.
    pub fn start(options: WanOptions, command: &[OsString]) -> Result<Self, Failed> {
        let far = Device::create().map_err(failed("make a TUN device"))?;
        let number = far.number();
        // A network of four addresses for each link of a namespace.
        let address =
            |n: u32| Ipv4Addr::from_bits(Ipv4Addr::new(10, 77, 0, 0).to_bits() + number % 16_000 * 4 + n);
        let (far_address, near_address) = (address(1), address(2));
        far.configure(far_address).map_err(failed("set up the far end of the link"))?;
        let (child, near) = namespace::apart(move || {
            let near = Device::create().map_err(failed("make a TUN device"))?;
            namespace::raise_loopback().map_err(failed("set up the loopback device"))?;
            near.configure(near_address).map_err(failed("set up the near end of the link"))?;
            near.route_all_through().map_err(failed("set up the road through the link"))?;
            let (program, arguments) = command.split_first().unwrap_or((const { &OsString::new() }, &[]));
            let mut command = Command::new(program);
            command.args(arguments).env(FAR_ADDRESS, far_address.to_string());
            let child = command.spawn().map_err(failed(format!("run {}", program.display())))?;
            Ok((child, near))
        })?;
        let relay = Relay::new(near, far, options);
        Ok(Self { child, relay, far: far_address })
    }

    /// Where the command reaches what runs here.
    #[must_use]
    pub const fn far(&self) -> Ipv4Addr {
        self.far
    }

    /// The command's process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Carries packets until the command has ended, and its last ones. For the time that packets wait to be exact, the calling thread asks to
    /// be run before others; `on_refused` hears where it may not be.
    pub fn run(mut self, on_refused: impl FnOnce(&io::Error)) -> Result<Ended, Failed> {
        if let Err(e) = relay::before_others() {
            on_refused(&e);
        }
        self.relay.run(&self.child).map_err(failed("carry packets"))?;
        let status = self.child.wait().map_err(failed("wait for the command"))?;
        let (out, back) = self.relay.counts();
        Ok(Ended { status, out, back })
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and need not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The queue of a line that holds what is under way on it: the rate times the round trip, as routers are set up.
#[must_use]
pub fn usual_queue(rate: u64, round_trip: Duration) -> u64 {
    let bits = u128::from(rate) * round_trip.as_nanos() / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX).max(u64::from(MTU) * 16)
}
