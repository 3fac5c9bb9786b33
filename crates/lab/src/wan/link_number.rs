//! Link numbers, which determine a link's addresses: chosen so that no other link of the far namespace and none of
//! that namespace's own routes uses them.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use super::namespace::CURRENT_PATH;

/// Each number has a /30 network in 10.77.0.0/16.
const MAX_LINKS: u32 = 1 << 14;
/// Prefix length of a link's network.
const NETWORK_BITS: u32 = 30;
/// Interface name prefixes at the far end, followed by the number.
pub(super) const TUN_PREFIX: &str = "twwan";
pub(super) const VETH_PREFIX: &str = "twveth";

/// An address of a link's network.
pub(super) fn link_address(link: u32, host: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 77, 0, 0).to_bits() + link % MAX_LINKS * 4 + host)
}

/// Runs `make` with a number that is free in the thread's network namespace. The number is reserved during the call;
/// when it returns, a device with the number in its name or the link's address must exist.
pub(super) fn with_free_number<T>(make: impl FnOnce(u32) -> T) -> io::Result<T> {
    // The namespace file is the lock; each open file description locks independently.
    let alone = File::open(CURRENT_PATH)?;
    alone.lock()?;
    let read = |what: &str| fs::read_to_string(format!("/proc/thread-self/net/{what}"));
    let number = first_free(&routes(&read("fib_trie")?), &read("dev")?);
    number.map(make).ok_or_else(|| io::Error::other("all link numbers are in use"))
}

/// A route: the destination network and its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    to: u32,
    bits: u32,
}

impl Route {
    fn addresses(self) -> RangeInclusive<u32> {
        let others = u32::MAX.checked_shr(self.bits).unwrap_or(0);
        self.to & !others..=self.to | others
    }

    fn overlaps(self, other: Self) -> bool {
        let (ours, others) = (self.addresses(), other.addresses());
        ours.start() <= others.end() && others.start() <= ours.end()
    }
}

/// The first number without a device or an overlapping route. If wide routes cover all numbers, only routes at least
/// as specific as a link's network count: the link's route has precedence over the others.
fn first_free(routes: &[Route], devices: &str) -> Option<u32> {
    let is_named = |number: u32| {
        [TUN_PREFIX, VETH_PREFIX].iter().any(|kind| devices.contains(&format!("{kind}{number}:")))
    };
    let first = |min_bits: u32| {
        let routes: Vec<Route> = routes.iter().copied().filter(|route| route.bits >= min_bits).collect();
        (0..MAX_LINKS).find(|number| {
            let network = Route { to: link_address(*number, 0).to_bits(), bits: NETWORK_BITS };
            !routes.iter().any(|route| route.overlaps(network)) && !is_named(*number)
        })
    };
    // A default route does not count.
    first(1).or_else(|| first(NETWORK_BITS))
}

/// Parses /proc/net/fib_trie: the routes of a namespace, and its addresses as local routes. Below each `|--` address
/// are the routes that start there, each with prefix length, scope and type.
fn routes(fib_trie: &str) -> Vec<Route> {
    let (mut routes, mut to) = (Vec::new(), None);
    for line in fib_trie.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            to = address.trim().parse::<Ipv4Addr>().ok();
        } else if let (Some(to), Some(route)) = (to, line.strip_prefix('/')) {
            let bits = route.split(' ').next().and_then(|bits| bits.parse().ok());
            routes.extend(bits.map(|bits| Route { to: to.to_bits(), bits }));
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_DEVICES: &str = "Inter-| Receive\n face |bytes\n    lo: 0 0\n";

    fn route(a: u8, b: u8, c: u8, d: u8, bits: u32) -> Route {
        Route { to: Ipv4Addr::new(a, b, c, d).to_bits(), bits }
    }

    #[test]
    fn first_free_skips_used_addresses_and_names() {
        let lan = [route(0, 0, 0, 0, 0), route(192, 168, 0, 0, 16), route(127, 0, 0, 1, 32)];
        assert_eq!(first_free(&lan, NO_DEVICES), Some(0));
        // The near end of a link that encloses this one.
        assert_eq!(first_free(&[route(10, 77, 0, 2, 32)], NO_DEVICES), Some(1));
        assert_eq!(first_free(&[route(10, 77, 0, 5, 32), route(10, 77, 0, 4, 30)], NO_DEVICES), Some(0));
        assert_eq!(first_free(&[route(10, 77, 0, 0, 24)], NO_DEVICES), Some(64));
        // A device that is down has no route.
        let devices = format!("{NO_DEVICES}{TUN_PREFIX}0: 0 0\n{VETH_PREFIX}1: 0\n {TUN_PREFIX}10: 0\n");
        assert_eq!(first_free(&lan, &devices), Some(2));
    }

    #[test]
    fn first_free_ignores_wide_routes_if_all_overlap() {
        let wide = route(10, 0, 0, 0, 8);
        assert_eq!(first_free(&[wide], NO_DEVICES), Some(0));
        assert_eq!(
            first_free(&[wide, route(10, 77, 0, 1, 32), route(10, 77, 0, 4, 30)], NO_DEVICES),
            Some(2)
        );
        let all: Vec<Route> =
            (0..MAX_LINKS).map(|number| Route { to: link_address(number, 1).to_bits(), bits: 32 }).collect();
        assert_eq!(first_free(&all, NO_DEVICES), None);
    }

    #[test]
    fn routes_parses_fib_trie() {
        let fib_trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.77.0.0/30 2 0 2\n\
            \x20       |-- 10.77.0.0\n           /30 link UNICAST\n           /24 universe UNREACHABLE\n        |-- 10.77.0.2\n\
            \x20          /32 host LOCAL\nLocal:\n";
        let found = routes(fib_trie);
        let expected =
            [route(0, 0, 0, 0, 0), route(10, 77, 0, 0, 30), route(10, 77, 0, 0, 24), route(10, 77, 0, 2, 32)];
        assert_eq!(found, expected);
    }
}
