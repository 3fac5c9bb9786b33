//! The endpoints that are reached without a proxy, in the syntax of `NO_PROXY`: names, addresses and networks, separated
//! by commas or blanks. It has no standard: an entry matches what it matches for curl, the AWS CLI or Go. They differ in a
//! leading dot (for Go, the domain itself is not meant), networks and ports.

use std::net::IpAddr;

use super::super::Peer;

/// Endpoints that are reached directly. The default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoProxy(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    hosts: Hosts,
    /// `None` is any port.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    All,
    /// A lower-case domain and its subdomains.
    Domain(String),
    Network {
        address: IpAddr,
        prefix_bits: u32,
    },
}

impl NoProxy {
    /// Parses a list of these entries; others are ignored:
    /// - `*`: every endpoint;
    /// - `example.com`, `.example.com` or `*.example.com`: the domain and its subdomains;
    /// - `10.1.2.3`, `fd00::1`, `10.0.0.0/8`: endpoints with such an address instead of a name;
    /// - one of the above with `:PORT`, an IPv6 address in brackets: that port only.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        let entries = list.split(|c: char| c == ',' || c.is_ascii_whitespace());
        Self(entries.filter(|entry| !entry.is_empty()).filter_map(Entry::parse).collect())
    }

    /// Returns true if the peer is reached directly.
    #[must_use]
    pub fn matches(&self, peer: &Peer) -> bool {
        let host = peer.host.trim_end_matches('.').to_ascii_lowercase();
        let address = parse_address(&host);
        let is_match = |entry: &Entry| match (&entry.hosts, address) {
            (Hosts::All, _) => true,
            (Hosts::Domain(domain), None) => is_in_domain(&host, domain),
            (Hosts::Network { address, prefix_bits }, Some(host)) => {
                is_in_network(host, *address, *prefix_bits)
            }
            (Hosts::Domain(_), Some(_)) | (Hosts::Network { .. }, None) => false,
        };
        self.0.iter().any(|entry| entry.port.is_none_or(|port| port == peer.port) && is_match(entry))
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if let Some(hosts) = parse_network(text) {
            return Some(Self { hosts, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let hosts = if host == "*" {
            Hosts::All
        } else if let Some(network) = parse_network(unbracketed.unwrap_or(host)) {
            network
        } else {
            let domain = host.strip_prefix('*').unwrap_or(host);
            let domain = domain.trim_start_matches('.').trim_end_matches('.');
            let is_name = !domain.is_empty() && !domain.contains(['/', ':', '[', ']', '*']);
            is_name.then(|| Hosts::Domain(domain.to_ascii_lowercase()))?
        };
        Some(Self { hosts, port })
    }
}

/// An address, or a network in CIDR notation.
fn parse_network(text: &str) -> Option<Hosts> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address = parse_address(address)?;
    let all_bits = bits_of(address).len;
    let prefix_bits = prefix.map_or(Some(all_bits), |prefix| prefix.parse().ok())?;
    (prefix_bits <= all_bits).then_some(Hosts::Network { address, prefix_bits })
}

/// An IP address, with or without brackets. An IPv4 address written as IPv6 is the IPv4 address.
fn parse_address(text: &str) -> Option<IpAddr> {
    let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    unbracketed.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

struct AddressBits {
    /// Left-aligned.
    value: u128,
    len: u32,
}

fn bits_of(address: IpAddr) -> AddressBits {
    match address {
        IpAddr::V4(address) => AddressBits { value: u128::from(address.to_bits()) << 96, len: 32 },
        IpAddr::V6(address) => AddressBits { value: address.to_bits(), len: 128 },
    }
}

fn is_in_network(host: IpAddr, network: IpAddr, prefix_bits: u32) -> bool {
    let (host, network) = (bits_of(host), bits_of(network));
    let difference = host.value ^ network.value;
    // A shift by all 128 bits, for the prefix 0, has no result.
    host.len == network.len && difference.checked_shr(128 - prefix_bits).unwrap_or_default() == 0
}

fn is_in_domain(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Returns true if a host is this machine by its name or address.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    is_in_domain(&host, "localhost") || parse_address(&host).is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_direct(list: &str, url: &str) -> bool {
        NoProxy::parse(list).matches(&Peer::parse(url).unwrap().0)
    }

    #[test]
    fn entries_match_their_endpoints_only() {
        for (list, matching, others) in [
            ("", &[][..], &["http://a", "http://10.0.0.1"][..]),
            ("*", &["http://a", "https://10.0.0.1", "https://[fd00::1]:9000"], &[]),
            ("a.example,*", &["http://b.example"], &[]),
            (
                "example.com",
                &["http://example.com", "https://s3.Example.COM:9000", "http://example.com./"],
                &["http://anexample.com", "http://example.com.org", "http://com"],
            ),
            (".example.com", &["http://example.com", "http://s3.example.com"], &["http://anexample.com"]),
            ("*.example.com", &["http://s3.example.com"], &["http://anexample.com"]),
            ("EXAMPLE.com.", &["http://s3.example.com"], &["http://example.org"]),
            (
                " a.example , b.example c.example",
                &["http://b.example", "http://c.example"],
                &["http://d.example"],
            ),
            (
                "s3.example:9000",
                &["http://s3.example:9000"],
                &["http://s3.example", "https://s3.example:9001"],
            ),
            ("s3.example:443", &["https://s3.example"], &["http://s3.example"]),
            ("10.1.2.3", &["http://10.1.2.3:9000"], &["http://10.1.2.30", "http://s3.10.1.2.3.example"]),
            ("10.1.2.3:9000", &["http://10.1.2.3:9000"], &["http://10.1.2.3"]),
            ("10.0.0.0/8", &["http://10.255.0.1", "http://[::ffff:10.1.1.1]"], &["http://11.0.0.1"]),
            ("10.1.2.3/31", &["http://10.1.2.2"], &["http://10.1.2.4"]),
            ("0.0.0.0/0", &["http://8.8.8.8"], &["http://[fd00::1]", "http://a.example"]),
            ("::/0", &["http://[fd00::1]"], &["http://8.8.8.8"]),
            ("fd00::/8", &["http://[fd12::1]:9000"], &["http://[fe80::1]"]),
            ("fd00::1", &["http://[fd00::1]:9000"], &["http://[fd00::2]"]),
            ("[fd00::1]", &["http://[fd00::1]"], &["http://[fd00::2]"]),
            ("[fd00::1]:9000", &["http://[fd00::1]:9000"], &["http://[fd00::1]"]),
            ("10.0.0.0/33,a.example:x,/,:,.,10.0.0.0/x,[", &[], &["http://10.0.0.1", "http://a.example"]),
        ] {
            for url in matching {
                assert!(is_direct(list, url), "{list:?} matches {url}");
            }
            for url in others {
                assert!(!is_direct(list, url), "{list:?} does not match {url}");
            }
        }
    }

    #[test]
    fn loopback_is_recognized_by_name_and_address() {
        for host in
            ["localhost", "LOCALHOST.", "s3.localhost", "127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["nolocalhost", "localhost.example", "10.0.0.1", "0.0.0.0", "fd00::1"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
