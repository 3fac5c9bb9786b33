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
pub(super) struct TunDevice {
    file: File,
    name: String,
    drops: Arc<DeviceDrops>,
}

/// Counter of the packets that a device's queue dropped.
#[derive(Debug)]
pub(super) struct DeviceDrops {
    name: String,
    /// The interface table of its namespace, readable from any namespace.
    counts: File,
}

impl DeviceDrops {
    /// Number of packets; 0 if the kernel does not report it.
    pub fn packets(&self) -> u64 {
        let (mut table, mut page) = (Vec::new(), vec![0; 16 << 10]);
        // The kernel returns about a page per read, and the newest interface is last.
        while let Ok(length @ 1..) = self.counts.read_at(&mut page, table.len() as u64) {
            table.extend_from_slice(&page[..length]);
        }
        tx_drops(&String::from_utf8_lossy(&table), &self.name).unwrap_or_default()
    }
}

/// Packets queued for the reading process.
const QUEUE_PACKETS: i32 = 10_000;

impl TunDevice {
    /// Creates a device with an unused name in the thread's network namespace.
    pub fn create(name: String) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        let mut request = interface_request(&name);
        // IFF_TUN_EXCL rejects an existing device. The constants fit into the field.
        let flags = u16::try_from(libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL);
        request.ifr_ifru.ifru_flags = flags.map_err(io::Error::other)?.cast_signed();
        control(file.as_raw_fd(), libc::TUNSETIFF, &mut request)?;
        let counts = File::open("/proc/thread-self/net/dev")?;
        let drops = Arc::new(DeviceDrops { name: name.clone(), counts });
        Ok(Self { file, name, drops })
    }

    /// A handle on its drop counter.
    pub fn drops(&self) -> Arc<DeviceDrops> {
        Arc::clone(&self.drops)
    }

    /// Assigns an address in a /30 network and raises the interface.
    pub fn configure(&self, address: Ipv4Addr) -> io::Result<()> {
        let socket = socket()?;
        let control = |what, set: &dyn Fn(&mut libc::ifreq)| {
            let mut request = interface_request(&self.name);
            set(&mut request);
            control(socket.as_raw_fd(), what, &mut request)
        };
        control(libc::SIOCSIFADDR, &|request| request.ifr_ifru.ifru_addr = socket_address(address))?;
        let mask = Ipv4Addr::new(255, 255, 255, 252);
        control(libc::SIOCSIFNETMASK, &|request| request.ifr_ifru.ifru_netmask = socket_address(mask))?;
        control(libc::SIOCSIFMTU, &|request| request.ifr_ifru.ifru_mtu = i32::from(MTU))?;
        control(libc::SIOCSIFTXQLEN, &|request| request.ifr_ifru.ifru_metric = QUEUE_PACKETS)?;
        without_ipv6(&self.name);
        raise(&self.name)
    }

    /// Adds a default route through this device.
    pub fn route_all_through(&self) -> io::Result<()> {
        let mut name: Vec<libc::c_char> = self.name.bytes().chain([0]).map(u8::cast_signed).collect();
        let any = socket_address(Ipv4Addr::UNSPECIFIED);
        // SAFETY: all zeroes are a valid `rtentry`.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        (route.rt_dst, route.rt_genmask) = (any, any);
        route.rt_flags = libc::RTF_UP;
        route.rt_dev = name.as_mut_ptr();
        let socket = socket()?;
        control(socket.as_raw_fd(), libc::SIOCADDRT, &mut route)
    }

    /// Receives a packet that the interface sent, if there is one; returns its length.
    pub fn receive(&self, packet: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(packet) {
            Ok(length) => Ok(Some(length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sends a packet to the interface. Returns false if the interface did not accept it: the packet is lost, as on
    /// any link.
    pub fn send(&self, packet: &[u8]) -> io::Result<bool> {
        match (&self.file).write(packet) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // The queue is full, the packet is malformed, or the interface is down.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::EINVAL | libc::EIO)) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The transmit drops of an interface in /proc/net/dev: the fourth counter after the eight receive counters.
fn tx_drops(table: &str, name: &str) -> Option<u64> {
    let counts = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    counts.split_ascii_whitespace().nth(11)?.parse().ok()
}

/// Disables IPv6 on an interface of the thread's namespace, because its announcements would be unsolicited packets on
/// the link. Errors are ignored: some kernels lack IPv6 or this setting.
pub(super) fn without_ipv6(name: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
}

/// Disables the offloads of an interface of the thread's namespace, so that it sends and receives packets exactly as
/// on the link: neither segmented later nor merged.
pub(super) fn without_offload(name: &str) -> io::Result<()> {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct Setting {
        what: u32,
        value: u32,
    }
    const TCP_SEGMENTATION: u32 = 0x1f;
    const GENERIC_SEGMENTATION: u32 = 0x24;
    const SCATTER_GATHER: u32 = 0x19;
    const CHECKSUMS: u32 = 0x17;
    const GENERIC_RECEIVE: u32 = 0x2c;
    let socket = socket()?;
    // Segmentation in other protocols requires scatter-gather and checksums, so these go last.
    for what in [TCP_SEGMENTATION, GENERIC_SEGMENTATION, GENERIC_RECEIVE, SCATTER_GATHER, CHECKSUMS] {
        let mut setting = Setting { what, value: 0 };
        let mut request = interface_request(name);
        request.ifr_ifru.ifru_data = (&raw mut setting).cast();
        control(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut request)?;
    }
    Ok(())
}

/// Raises an interface of the thread's namespace.
pub(super) fn raise(name: &str) -> io::Result<()> {
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    control(socket()?.as_raw_fd(), libc::SIOCSIFFLAGS, &mut request)
}

/// A socket for interface ioctls: any one of the thread's namespace.
fn socket() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: all zeroes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let max_len = request.ifr_name.len() - 1;
    for (target, byte) in request.ifr_name[..max_len].iter_mut().zip(name.bytes()) {
        *target = byte.cast_signed();
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(u8::cast_signed);
    let family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
    // The port, zero, precedes the address.
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
    use super::tx_drops;

    #[test]
    fn tx_drops_reads_the_named_interface() {
        let table = "Inter-|   Receive  |  Transmit\n \
            face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo\n\
            twwan1:  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n twwan10: 0 0 0 0 0 0 0 0 0 0 0 77 0 0 0 0\n";
        assert_eq!(tx_drops(table, "twwan1"), Some(12));
        assert_eq!(tx_drops(table, "twwan10"), Some(77));
        assert_eq!(tx_drops(table, "twwan"), None);
    }
}
