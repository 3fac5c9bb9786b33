//! Which number a link has, and with it which addresses: one that no other link of its far namespace has, nor one through
//! which that namespace is itself reached.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use super::namespace::OWN;

/// Each number has a network of four addresses below 10.77.0.0/16.
const NUMBERS: u32 = 1 << 14;
/// The bits of their addresses that are the network's.
const NETWORK_BITS: u32 = 30;
/// What devices at the far ends are called, before the number.
pub(super) const TUN: &str = "twwan";
pub(super) const VETH: &str = "twveth";

/// An address of the link with a number.
pub(super) fn address(link: u32, of: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 77, 0, 0).to_bits() + link % NUMBERS * 4 + of)
}

/// Does something with a number that is free in the thread's network namespace. Nobody else is given one of that namespace
/// meanwhile, so that a device with the number in its name, or with its address, has to be there when it is done.
pub(super) fn with_free<T>(make: impl FnOnce(u32) -> T) -> io::Result<T> {
    // The namespace is its own lock, which every opening of it holds by itself.
    let alone = File::open(OWN)?;
    alone.lock()?;
    let read = |what: &str| fs::read_to_string(format!("/proc/thread-self/net/{what}"));
    let number = free(&roads(&read("fib_trie")?), &read("dev")?);
    number.map(make).ok_or_else(|| io::Error::other("there are too many links"))
}

/// Addresses to which a namespace has a road, and how many bits of them are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Road {
    to: u32,
    bits: u32,
}

impl Road {
    fn addresses(self) -> RangeInclusive<u32> {
        let others = u32::MAX.checked_shr(self.bits).unwrap_or(0);
        self.to & !others..=self.to | others
    }

    fn meets(self, other: Self) -> bool {
        let (ours, others) = (self.addresses(), other.addresses());
        ours.start() <= others.end() && others.start() <= ours.end()
    }
}

/// The first number that no device has and no road leads to. Where wide roads lead to all of them, those that are no narrower than a
/// link's network count only: it goes before the others.
fn free(roads: &[Road], devices: &str) -> Option<u32> {
    let is_named = |number: u32| [TUN, VETH].iter().any(|kind| devices.contains(&format!("{kind}{number}:")));
    let first = |least_bits: u32| {
        let roads: Vec<Road> = roads.iter().copied().filter(|road| road.bits >= least_bits).collect();
        (0..NUMBERS).find(|number| {
            let network = Road { to: address(*number, 0).to_bits(), bits: NETWORK_BITS };
            !roads.iter().any(|road| road.meets(network)) && !is_named(*number)
        })
    };
    // A road to everywhere leads nowhere in particular.
    first(1).or_else(|| first(NETWORK_BITS))
}

/// Reads /proc/net/fib_trie, which has the roads of a namespace and, as roads to itself, its addresses: below each address
/// that begins with `|--` stand the roads to it and to those around it, each as how many bits it has, whose, and which kind.
fn roads(told: &str) -> Vec<Road> {
    let (mut roads, mut to) = (Vec::new(), None);
    for line in told.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            to = address.trim().parse::<Ipv4Addr>().ok();
        } else if let (Some(to), Some(road)) = (to, line.strip_prefix('/')) {
            let bits = road.split(' ').next().and_then(|bits| bits.parse().ok());
            roads.extend(bits.map(|bits| Road { to: to.to_bits(), bits }));
        }
    }
    roads
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_DEVICES: &str = "Inter-| Receive\n face |bytes\n    lo: 0 0\n";

    fn road(a: u8, b: u8, c: u8, d: u8, bits: u32) -> Road {
        Road { to: Ipv4Addr::new(a, b, c, d).to_bits(), bits }
    }

    #[test]
    fn a_number_is_one_that_neither_addresses_nor_names_have() {
        let lan = [road(0, 0, 0, 0, 0), road(192, 168, 0, 0, 16), road(127, 0, 0, 1, 32)];
        assert_eq!(free(&lan, NO_DEVICES), Some(0));
        // The near end of a link around this one.
        assert_eq!(free(&[road(10, 77, 0, 2, 32)], NO_DEVICES), Some(1));
        assert_eq!(free(&[road(10, 77, 0, 5, 32), road(10, 77, 0, 4, 30)], NO_DEVICES), Some(0));
        assert_eq!(free(&[road(10, 77, 0, 0, 24)], NO_DEVICES), Some(64));
        // A device that is not raised, so that no road leads to it.
        let devices = format!("{NO_DEVICES}{TUN}0: 0 0\n{VETH}1: 0\n {TUN}10: 0\n");
        assert_eq!(free(&lan, &devices), Some(2));
    }

    #[test]
    fn a_link_goes_before_a_road_to_all_that_it_could_have() {
        let wide = road(10, 0, 0, 0, 8);
        assert_eq!(free(&[wide], NO_DEVICES), Some(0));
        assert_eq!(free(&[wide, road(10, 77, 0, 1, 32), road(10, 77, 0, 4, 30)], NO_DEVICES), Some(2));
        let all: Vec<Road> =
            (0..NUMBERS).map(|number| Road { to: address(number, 1).to_bits(), bits: 32 }).collect();
        assert_eq!(free(&all, NO_DEVICES), None);
    }

    #[test]
    fn roads_and_addresses_are_read() {
        let told = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.77.0.0/30 2 0 2\n\
            \x20       |-- 10.77.0.0\n           /30 link UNICAST\n           /24 universe UNREACHABLE\n        |-- 10.77.0.2\n\
            \x20          /32 host LOCAL\nLocal:\n";
        let found = roads(told);
        let expected =
            [road(0, 0, 0, 0, 0), road(10, 77, 0, 0, 30), road(10, 77, 0, 0, 24), road(10, 77, 0, 2, 32)];
        assert_eq!(found, expected);
    }
}
