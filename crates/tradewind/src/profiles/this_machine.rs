//! Properties of this machine that limit throughput: its CPUs, and the network interface towards a store.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use tradewind_model::tune::extrapolate::ClientEnvironment;

/// Number of CPUs available to this process.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// This machine as a client with `cpus` CPUs, and its network interface towards a host. Sends nothing.
#[must_use]
pub fn client(host: &str, cpus: usize) -> ClientEnvironment {
    ClientEnvironment {
        cpus: Some(cpus as f64),
        interface_bandwidth: interface_bytes_per_second(host),
        ..ClientEnvironment::default()
    }
}

/// Speed in bytes per second of the interface for packets to a host. A host name is not resolved; the default route is
/// assumed. `None` for loopback, or if the system does not report the speed, as on most virtual machines.
#[must_use]
pub fn interface_bytes_per_second(host: &str) -> Option<f64> {
    let address = host.parse::<IpAddr>().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return None;
    }
    let to = match address {
        Some(IpAddr::V4(address)) => Some(address),
        Some(IpAddr::V6(_)) | None => None,
    };
    let routes = fs::read_to_string("/proc/net/route").ok()?;
    let interface = route_interface(&routes, to)?;
    let speed = fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    let megabits: f64 = speed.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
}

/// The interface of the most specific route to an address, and of these the one with the lowest metric. Without an
/// address, that of the default route.
fn route_interface(routes: &str, to: Option<Ipv4Addr>) -> Option<&str> {
    let route = |line: &'_ str| -> Option<(u32, std::cmp::Reverse<u32>)> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, destination, _, _, _, _, metric, mask, ..] = fields[..] else { return None };
        // Addresses are printed in host byte order, which is little-endian.
        let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
        let (destination, mask) = (number(destination)?, number(mask)?);
        let is_in = to.map_or(mask == 0, |to| u32::from(to) & mask == destination);
        is_in.then_some((mask, std::cmp::Reverse(metric.parse().ok()?)))
    };
    let all = routes.lines().skip(1).filter_map(|line| Some((route(line)?, line.split_whitespace().next()?)));
    all.max_by_key(|(route, _)| *route).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_follows_prefix_length_then_metric() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            slow\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            fast\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            near\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(route_interface(routes, Some(Ipv4Addr::new(192, 0, 2, 7))), Some("near"));
        assert_eq!(route_interface(routes, Some(Ipv4Addr::new(198, 51, 100, 1))), Some("fast"));
        assert_eq!(route_interface(routes, None), Some("fast"));
        assert_eq!(route_interface("", None), None);
        assert_eq!(interface_bytes_per_second("127.0.0.1"), None);
    }
}
