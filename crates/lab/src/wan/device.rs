//! A TUN device: a network interface whose packets a process sends and receives.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use super::MTU;

/// The device. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Device {
    file: File,
    name: String,
    refusals: Arc<Refusals>,
}

/// What a device could not keep until it was received.
#[derive(Debug)]
pub(super) struct Refusals {
    name: String,
    /// The counts of all interfaces of its namespace, wherever they are read from.
    counts: File,
}

impl Refusals {
    /// Packets; 0 where the kernel does not say.
    pub fn packets(&self) -> u64 {
        let (mut table, mut page) = (Vec::new(), vec![0; 16 << 10]);
        // The kernel gives a page or so at a time, and the last interface stands at the end.
        while let Ok(length @ 1..) = self.counts.read_at(&mut page, table.len() as u64) {
            table.extend_from_slice(&page[..length]);
        }
        refused(&String::from_utf8_lossy(&table), &self.name).unwrap_or_default()
    }
}

/// Packets that wait for the process that reads them.
const QUEUE_PACKETS: i32 = 10_000;

impl Device {
    /// Makes one in the thread's network namespace, with a name that none has there.
    pub fn create(name: String) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        let mut request = named(&name);
        // One that is there already is not taken over. The constants fill the field, and no more.
        let flags = u16::try_from(libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL);
        request.ifr_ifru.ifru_flags = flags.map_err(io::Error::other)?.cast_signed();
        control(file.as_raw_fd(), libc::TUNSETIFF, &mut request)?;
        let counts = File::open("/proc/thread-self/net/dev")?;
        let refusals = Arc::new(Refusals { name: name.clone(), counts });
        Ok(Self { file, name, refusals })
    }

    /// What it refuses, to be looked at from elsewhere.
    pub fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// Gives it an address in a network of four, and raises it.
    pub fn configure(&self, address: Ipv4Addr) -> io::Result<()> {
        let socket = socket()?;
        let control = |what, set: &dyn Fn(&mut libc::ifreq)| {
            let mut request = named(&self.name);
            set(&mut request);
            control(socket.as_raw_fd(), what, &mut request)
        };
        control(libc::SIOCSIFADDR, &|request| request.ifr_ifru.ifru_addr = plain(address))?;
        let mask = Ipv4Addr::new(255, 255, 255, 252);
        control(libc::SIOCSIFNETMASK, &|request| request.ifr_ifru.ifru_netmask = plain(mask))?;
        control(libc::SIOCSIFMTU, &|request| request.ifr_ifru.ifru_mtu = i32::from(MTU))?;
        control(libc::SIOCSIFTXQLEN, &|request| request.ifr_ifru.ifru_metric = QUEUE_PACKETS)?;
        without_ipv6(&self.name);
        raise(&self.name)
    }

    /// Sends everything that is for no network nearer by through this device.
    pub fn route_all_through(&self) -> io::Result<()> {
        let mut name: Vec<libc::c_char> = self.name.bytes().chain([0]).map(u8::cast_signed).collect();
        let any = plain(Ipv4Addr::UNSPECIFIED);
        // SAFETY: all zeroes are a valid `rtentry`.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        (route.rt_dst, route.rt_genmask) = (any, any);
        route.rt_flags = libc::RTF_UP;
        route.rt_dev = name.as_mut_ptr();
        let socket = socket()?;
        control(socket.as_raw_fd(), libc::SIOCADDRT, &mut route)
    }

    /// Takes a packet that the interface sends, if there is one; answers its length.
    pub fn receive(&self, packet: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(packet) {
            Ok(length) => Ok(Some(length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Has the interface receive a packet. Whether it took it: one that it does not take is lost, as on any line.
    pub fn send(&self, packet: &[u8]) -> io::Result<bool> {
        match (&self.file).write(packet) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // No room; no packet of anything that an interface understands; set down, for as long as somebody likes.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::EINVAL | libc::EIO)) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What an interface did not send, of the kernel's table: behind eight counts of what it received come bytes, packets,
/// errors, and this.
fn refused(table: &str, name: &str) -> Option<u64> {
    let counts = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    counts.split_ascii_whitespace().nth(11)?.parse().ok()
}

/// Has an interface of the thread's namespace do without IPv6, which a link has no addresses of: its announcements would be
/// packets that nobody sent. Some kernels have no IPv6, and others do not let it be set.
pub(super) fn without_ipv6(name: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
}

/// Has an interface of the thread's namespace send and receive packets as they are on a line: none that is cut up later, none
/// that was put together.
pub(super) fn without_offload(name: &str) -> io::Result<()> {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct Setting {
        what: u32,
        value: u32,
    }
    const TCP_SEGMENTATION: u32 = 0x1f;
    const SEGMENTATION: u32 = 0x24;
    const GATHERING: u32 = 0x19;
    const CHECKSUMS: u32 = 0x17;
    const RECEIVED_TOGETHER: u32 = 0x2c;
    let socket = socket()?;
    // Those that cut up in other protocols need gathering and checksums.
    for what in [TCP_SEGMENTATION, SEGMENTATION, RECEIVED_TOGETHER, GATHERING, CHECKSUMS] {
        let mut setting = Setting { what, value: 0 };
        let mut request = named(name);
        request.ifr_ifru.ifru_data = (&raw mut setting).cast();
        control(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut request)?;
    }
    Ok(())
}

/// Raises an interface of the thread's namespace.
pub(super) fn raise(name: &str) -> io::Result<()> {
    let mut request = named(name);
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    control(socket()?.as_raw_fd(), libc::SIOCSIFFLAGS, &mut request)
}

/// Any socket of the thread's namespace will do to speak of interfaces.
fn socket() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
}

fn named(name: &str) -> libc::ifreq {
    // SAFETY: all zeroes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last one stays zero.
    let places = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name[..places].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    request
}

fn plain(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(u8::cast_signed);
    let family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
    // The port, which is none, lies before the address.
    libc::sockaddr { sa_family: family, sa_data: [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0] }
}

fn control<T>(descriptor: i32, what: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: the descriptor is open while its owner lends it, and each caller passes what its request reads and
    // writes: an `ifreq`, with what it points to, or an `rtentry`.
    match unsafe { libc::ioctl(descriptor, what, &raw mut *argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::refused;

    #[test]
    fn what_was_refused_is_read_of_the_right_interface() {
        let table = "Inter-|   Receive  |  Transmit\n \
            face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo\n\
            twwan1:  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n twwan10: 0 0 0 0 0 0 0 0 0 0 0 77 0 0 0 0\n";
        assert_eq!(refused(table, "twwan1"), Some(12));
        assert_eq!(refused(table, "twwan10"), Some(77));
        assert_eq!(refused(table, "twwan"), None);
    }
}
