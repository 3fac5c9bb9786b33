//! The origin of a connection, by which limits distinguish clients before they are authenticated.

use std::net::{IpAddr, Ipv6Addr};

/// A network address that stands for one client: an IPv4 address, or an IPv6 /64 network, the usual allocation of one
/// client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Peer(IpAddr);

/// The bits of an IPv6 address that a client may choose.
const IPV6_HOST_BITS: u32 = 64;

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> IPV6_HOST_BITS << IPV6_HOST_BITS;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::from(address.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn addresses_of_one_client_are_one_peer() {
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:0:0:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
    }
}
