//! A link of the kernel: a veth pair, with netem (delay, jitter, loss) and tbf (rate, queue) at either end.
//!
//! Configured with `ip` and `tc`. Segmentation offload is off, so that each packet is one of the link's. Kernel
//! support is tested by trying. Options that netem implements differently are rejected: it reorders packets under
//! jitter.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;
use serde_json::Value;

use super::link::{JitterKind, LinkCounts, LinkOptions, drain_time};
use super::link_number::{VETH_PREFIX, link_address, with_free_number};
use super::namespace::{in_namespace, open_current};
use super::tun_device::{without_ipv6, without_offload};
use super::{MTU, WanOptions};

/// Maximum packets in flight; netem's default is 1,000.
const MAX_IN_FLIGHT_PACKETS: &str = "1000000";
/// The near end, alone in its namespace.
const NEAR: &str = "twnear";

/// The link. Dropping it takes it down.
#[derive(Debug)]
pub(super) struct Netem {
    options: WanOptions,
    counter: NetemCounter,
}

/// A readable handle on the link's counters, valid while the link exists.
#[derive(Debug, Clone)]
pub(super) struct NetemCounter {
    far: String,
    /// The near and the far namespace.
    namespaces: Arc<[File; 2]>,
}

impl Netem {
    /// Creates a link between the thread's namespace and another one; returns the address of the far end.
    pub fn create(options: WanOptions, far_namespace: &File) -> io::Result<(Self, Ipv4Addr)> {
        for direction in [options.out, options.back] {
            if !direction.jitter.is_zero() && !direction.allow_reordering {
                return Err(io::Error::other("netem reorders packets under jitter: add --reorder"));
            }
        }
        let (link, addresses) = Self::connect(options, far_namespace)?;
        link.shape()?;
        Ok((link, addresses[1]))
    }

    /// Creates the near and the far end, without any shaping; returns their addresses.
    fn connect(options: WanOptions, far_namespace: &File) -> io::Result<(Self, [Ipv4Addr; 2])> {
        // A command in the far namespace identifies the near one by the thread.
        let near_thread = gettid().as_raw_nonzero().to_string();
        let add = |number| {
            let far = format!("{VETH_PREFIX}{number}");
            let [near_hardware, far_hardware] = [2, 1].map(|n| hardware(link_address(number, n)));
            let far_words = ["link", "add", &far, "address", &far_hardware, "type", "veth"];
            let near_words = ["peer", "name", NEAR, "address", &near_hardware, "netns", &near_thread];
            run("ip", &[far_words, near_words].concat())?;
            Ok::<_, io::Error>((far, number))
        };
        let (far, number) = in_namespace(far_namespace, || with_free_number(add))???;
        let namespaces = Arc::new([open_current()?, far_namespace.try_clone()?]);
        let link = Self { options, counter: NetemCounter { far, namespaces } };
        let [near, far] = [2, 1].map(|n| link_address(number, n));
        set_up(NEAR, near, far)?;
        run("ip", &["route", "add", "default", "via", &far.to_string()])?;
        in_namespace(&link.counter.namespaces[1], || set_up(&link.counter.far, far, near))??;
        Ok((link, [near, far]))
    }

    /// Applies the options to both ends' egress.
    fn shape(&self) -> io::Result<()> {
        shape(NEAR, self.options.out)?;
        in_namespace(&self.counter.namespaces[1], || shape(&self.counter.far, self.options.back))?
    }

    /// A handle on its counters.
    pub fn counter(&self) -> NetemCounter {
        self.counter.clone()
    }

    /// Waits until the last packets, such as connection teardown, have been delivered.
    pub fn linger(&self) {
        let WanOptions { out, back, .. } = self.options;
        // If `tc` does not report a backlog, only the delays are waited for.
        let [near, far] = self.counter.qdiscs().unwrap_or_default();
        let waits = backlog_time(&near, out.bits_per_second).max(backlog_time(&far, back.bits_per_second));
        thread::sleep(drain_time(waits, [out.max_delay(), back.max_delay()]));
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        // A link that cannot be taken down disappears with the near end's namespace.
        let _ = take_down(&self.counter.namespaces[0]);
    }
}

/// Takes down the link whose near end is in a namespace, if there is one. Deleting one end deletes both.
pub(super) fn take_down(near_namespace: &File) -> io::Result<()> {
    in_namespace(near_namespace, || {
        let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
        if devices.contains(&format!("{NEAR}:")) {
            run("ip", &["link", "del", NEAR])?;
        }
        Ok(())
    })?
}

impl NetemCounter {
    /// The counters out and back.
    pub fn read(&self) -> io::Result<(LinkCounts, LinkCounts)> {
        let [near, far] = self.qdiscs()?;
        Ok((counts(&near)?, counts(&far)?))
    }

    /// The `tc` statistics of the near end's and the far end's egress.
    fn qdiscs(&self) -> io::Result<[String; 2]> {
        let show = |namespace: &File, device: &str| {
            in_namespace(namespace, || run("tc", &["-s", "-j", "qdisc", "show", "dev", device]))?
        };
        let [near, far] = &*self.namespaces;
        Ok([show(near, NEAR)?, show(far, &self.far)?])
    }
}

/// Configures one end, with a static neighbour entry for the other: ARP would add a round trip to the first packet.
fn set_up(device: &str, address: Ipv4Addr, other: Ipv4Addr) -> io::Result<()> {
    without_offload(device)?;
    without_ipv6(device);
    run("ip", &["address", "add", &format!("{address}/30"), "dev", device])?;
    run("ip", &["link", "set", "dev", device, "mtu", &MTU.to_string(), "up"])?;
    let (other, hardware) = (other.to_string(), hardware(other));
    run("ip", &["neigh", "replace", &other, "lladdr", &hardware, "nud", "permanent", "dev", device])?;
    Ok(())
}

/// The hardware address of an end: locally administered, with its IP address in it.
fn hardware(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Applies the options to the egress of an end.
fn shape(device: &str, options: LinkOptions) -> io::Result<()> {
    for discipline in disciplines(options) {
        let words = ["qdisc", "add", "dev", device].into_iter().chain(discipline.split(' '));
        run("tc", &words.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// The `tc` arguments of a direction: netem, followed by tbf with the queue.
fn disciplines(options: LinkOptions) -> Vec<String> {
    let micros = |time: Duration| format!("{}us", time.as_micros());
    let mut netem =
        format!("root handle 1: netem limit {MAX_IN_FLIGHT_PACKETS} delay {}", micros(options.delay));
    if !options.jitter.is_zero() {
        netem += &format!(" {}", micros(options.jitter));
        // Uniform is netem's default.
        if options.jitter_kind == JitterKind::Normal {
            netem += " distribution normal";
        }
    }
    if options.loss > 0.0 {
        netem += &format!(" loss {}%", options.loss * 100.0);
    }
    let tbf = options.bits_per_second.map(|rate| {
        // Tokens for 1 ms, the timer's granularity, or for two packets.
        let burst = (rate / 8000).max(u64::from(MTU) * 2);
        format!("parent 1:1 handle 10: tbf rate {rate}bit burst {burst} limit {}", options.queue_bytes)
    });
    [netem].into_iter().chain(tbf).collect()
}

/// Parses the `tc` counters. Its byte count includes Ethernet headers, which are subtracted.
fn counts(qdiscs: &str) -> io::Result<LinkCounts> {
    let disciplines: Value = serde_json::from_str(qdiscs)?;
    let counter = |kind: &str, name: &str| {
        let found = disciplines.as_array()?.iter().find(|discipline| discipline["kind"] == kind)?;
        found[name].as_u64()
    };
    let last = if counter("tbf", "packets").is_some() { "tbf" } else { "netem" };
    let count = |kind, name| counter(kind, name).unwrap_or_default();
    let packets = count(last, "packets");
    Ok(LinkCounts {
        packets,
        bytes: count(last, "bytes").saturating_sub(packets * 14),
        lost: count("netem", "drops").saturating_sub(count("tbf", "drops")),
        dropped: count("tbf", "drops"),
        ..LinkCounts::default()
    })
}

/// The time to transmit the backlog that `tc` reports.
fn backlog_time(qdiscs: &str, rate: Option<u64>) -> Duration {
    let disciplines: Value = serde_json::from_str(qdiscs).unwrap_or_default();
    let all = disciplines.as_array().into_iter().flatten();
    let bytes = all.filter_map(|discipline| discipline["backlog"].as_u64()).max().unwrap_or_default();
    let takes = |rate: u64| Duration::try_from_secs_f64(bytes as f64 * 8.0 / rate.max(1) as f64);
    rate.map_or(Duration::ZERO, |rate| takes(rate).unwrap_or(Duration::MAX))
}

fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("cannot run {program}: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let why = why.lines().next().unwrap_or_default().trim_start_matches("Error: ");
    Err(io::Error::other(format!("`{program} {}`: {why}", arguments.join(" "))))
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a skipped test prints why")]
mod tests {
    use super::super::namespace::in_new_namespace;
    use super::super::relay::Relay;
    use super::*;
    use crate::error::cannot;

    #[test]
    fn disciplines_formats_tc_arguments() {
        let options = LinkOptions {
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(5),
            allow_reordering: true,
            loss: 0.001,
            bits_per_second: Some(100_000_000),
            queue_bytes: 625_000,
            ..LinkOptions::default()
        };
        let netem = "root handle 1: netem limit 1000000 delay 25000us 5000us distribution normal loss 0.1%";
        let tbf = "parent 1:1 handle 10: tbf rate 100000000bit burst 12500 limit 625000";
        assert_eq!(disciplines(options), [netem, tbf]);
        assert_eq!(disciplines(LinkOptions::default()), ["root handle 1: netem limit 1000000 delay 0us"]);
    }

    #[test]
    fn counts_subtracts_ethernet_headers() {
        let qdiscs = r#"[{"kind":"netem","handle":"1:","bytes":3000,"packets":30,"drops":7},
            {"kind":"tbf","handle":"10:","bytes":2420,"packets":20,"drops":5}]"#;
        let found = counts(qdiscs).unwrap();
        assert_eq!(
            found,
            LinkCounts { packets: 20, bytes: 2140, lost: 2, dropped: 5, ..LinkCounts::default() }
        );
        assert!(counts("no qdisc").is_err());
    }

    #[test]
    fn waits_is_backlog_over_rate() {
        let qdiscs = r#"[{"kind":"netem","backlog":12500,"qlen":9},{"kind":"tbf","backlog":3000,"qlen":2}]"#;
        assert_eq!(backlog_time(qdiscs, Some(1_000_000)), Duration::from_millis(100));
        assert_eq!(backlog_time(qdiscs, None), Duration::ZERO);
        assert_eq!(backlog_time("", Some(1_000)), Duration::ZERO);
    }

    /// Two ends without shaping in their own namespaces; prints the reason and returns `None` if they cannot be
    /// created.
    fn connected<T: Send>(work: impl FnOnce(Netem, [Ipv4Addr; 2], &File) -> T + Send) -> Option<T> {
        let made = in_new_namespace(|| {
            let far = open_current().map_err(cannot("find the far namespace"))?;
            in_new_namespace(|| {
                let connected = Netem::connect(WanOptions::default(), &far);
                let (link, addresses) = connected.map_err(cannot("connect two ends"))?;
                Ok(work(link, addresses, &far))
            })
        });
        made.inspect_err(|e| println!("skipped: {e}")).ok()
    }

    #[test]
    fn ends_have_static_neighbour_entries() {
        connected(|link, [near_address, far_address], far| {
            let neighbours = || run("ip", &["neigh", "show", "nud", "permanent"]).unwrap();
            let says = |address: Ipv4Addr| format!("{address} dev ");
            assert!(neighbours().contains(&says(far_address)), "{}", neighbours());
            let far_neighbours = in_namespace(far, neighbours).unwrap();
            assert!(far_neighbours.contains(&says(near_address)), "{far_neighbours}");
            // Packets also arrive through these entries.
            let there =
                in_namespace(far, || std::net::UdpSocket::bind((far_address, 7302)).unwrap()).unwrap();
            there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            std::net::UdpSocket::bind((near_address, 0))
                .unwrap()
                .send_to(b"here", there.local_addr().unwrap())
                .unwrap();
            assert_eq!(there.recv(&mut [0; 8]).unwrap(), 4);
            drop(link);
        });
    }

    #[test]
    fn drop_takes_down_link_with_occupied_namespace() {
        connected(|link, _, far| {
            let is_there = || fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains(VETH_PREFIX);
            assert!(in_namespace(far, is_there).unwrap());
            // This thread is in the near end's namespace.
            drop(link);
            assert!(!in_namespace(far, is_there).unwrap());
        });
    }

    #[test]
    fn counter_read_fails_without_link() {
        connected(|link, _, _| {
            let counter = link.counter();
            drop(link);
            assert!(counter.read().is_err());
        });
    }

    #[test]
    fn relay_and_netem_links_get_distinct_addresses() {
        connected(|_link, [_, far_address], far| {
            let relay = in_new_namespace(|| Relay::create(WanOptions::default(), far));
            match relay {
                Ok((_, relay_address)) => assert_ne!(relay_address, far_address),
                Err(e) => println!("skipped: {e}"),
            }
        });
    }
}
