//! A link of the kernel's own: a veth pair, with netem (delay, jitter, loss) and tbf (rate, queue) at either end.
//!
//! `ip` and `tc` set it up. Segmentation offload is off: a packet is one of the line's. Whether the kernel can do this is
//! found out by doing it. What netem does otherwise than asked is refused: it lets packets overtake each other under jitter.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;
use serde_json::Value;

use super::device::{without_ipv6, without_offload};
use super::link::{Counts, JitterKind, LinkOptions, last_words};
use super::namespace::{own, within};
use super::number::{VETH, address, with_free};
use super::{MTU, WanOptions};

/// Packets under way at a time at the most: netem's own bound is a thousand.
const MOST_UNDER_WAY: &str = "1000000";
/// The near end, which has its namespace to itself.
const NEAR: &str = "twnear";

/// The link. Dropped, it is taken down.
#[derive(Debug)]
pub(super) struct Netem {
    options: WanOptions,
    counter: Counter,
}

/// What a link carried so far, for others to look at while there is one.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    far: String,
    /// The two namespaces, near and far.
    namespaces: Arc<[File; 2]>,
}

impl Netem {
    /// Makes a link between the thread's namespace and another one; answers the address of the far end.
    pub fn make(options: WanOptions, far_namespace: &File) -> io::Result<(Self, Ipv4Addr)> {
        for direction in [options.out, options.back] {
            if !direction.jitter.is_zero() && !direction.reorder {
                return Err(io::Error::other(
                    "netem lets packets overtake each other under jitter: say --reorder",
                ));
            }
        }
        let (link, addresses) = Self::connect(options, far_namespace)?;
        link.slow()?;
        Ok((link, addresses[1]))
    }

    /// Makes the two ends, near and far, between which there is nothing yet; answers their addresses.
    fn connect(options: WanOptions, far_namespace: &File) -> io::Result<(Self, [Ipv4Addr; 2])> {
        // A command that runs in the other namespace names this one by the thread.
        let near_thread = gettid().as_raw_nonzero().to_string();
        let add = |number| {
            let far = format!("{VETH}{number}");
            let [near_hardware, far_hardware] = [2, 1].map(|n| hardware(address(number, n)));
            let far_words = ["link", "add", &far, "address", &far_hardware, "type", "veth"];
            let near_words = ["peer", "name", NEAR, "address", &near_hardware, "netns", &near_thread];
            run("ip", &[far_words, near_words].concat())?;
            Ok::<_, io::Error>((far, number))
        };
        let (far, number) = within(far_namespace, || with_free(add))???;
        let namespaces = Arc::new([own()?, far_namespace.try_clone()?]);
        let link = Self { options, counter: Counter { far, namespaces } };
        let [near, far] = [2, 1].map(|n| address(number, n));
        set_up(NEAR, near, far)?;
        run("ip", &["route", "add", "default", "via", &far.to_string()])?;
        within(&link.counter.namespaces[1], || set_up(&link.counter.far, far, near))??;
        Ok((link, [near, far]))
    }

    /// Has both ends do to what they send what was asked.
    fn slow(&self) -> io::Result<()> {
        slow(NEAR, self.options.out)?;
        within(&self.counter.namespaces[1], || slow(&self.counter.far, self.options.back))?
    }

    /// What it carries, to be looked at from elsewhere.
    pub fn counter(&self) -> Counter {
        self.counter.clone()
    }

    /// Waits until what was said last has been carried: that connections are closed.
    pub fn linger(&self) {
        let WanOptions { out, back, .. } = self.options;
        // Where it does not say what waits, delays are waited for.
        let [near, far] = self.counter.told().unwrap_or_default();
        let waits = waits(&near, out.rate).max(waits(&far, back.rate));
        thread::sleep(last_words(waits, [out.longest_delay(), back.longest_delay()]));
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        // What cannot be taken down goes with the near end's namespace.
        let _ = take_down(&self.counter.namespaces[0]);
    }
}

/// Takes down the link whose near end is in a namespace, if one is. One end takes the other with it.
pub(super) fn take_down(near_namespace: &File) -> io::Result<()> {
    within(near_namespace, || {
        let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
        if devices.contains(&format!("{NEAR}:")) {
            run("ip", &["link", "del", NEAR])?;
        }
        Ok(())
    })?
}

impl Counter {
    /// What it carried out, and back.
    pub fn read(&self) -> io::Result<(Counts, Counts)> {
        let [near, far] = self.told()?;
        Ok((counts(&near)?, counts(&far)?))
    }

    /// What `tc` says of what leaves the near end, and the far one.
    fn told(&self) -> io::Result<[String; 2]> {
        let of = |namespace: &File, device: &str| {
            within(namespace, || run("tc", &["-s", "-j", "qdisc", "show", "dev", device]))?
        };
        let [near, far] = &*self.namespaces;
        Ok([of(near, NEAR)?, of(far, &self.far)?])
    }
}

/// Sets up an end of the link. It knows who is at the other: asking would take a round trip of the first packet's time.
fn set_up(device: &str, address: Ipv4Addr, other: Ipv4Addr) -> io::Result<()> {
    without_offload(device)?;
    without_ipv6(device);
    run("ip", &["address", "add", &format!("{address}/30"), "dev", device])?;
    run("ip", &["link", "set", "dev", device, "mtu", &MTU.to_string(), "up"])?;
    let (other, hardware) = (other.to_string(), hardware(other));
    run("ip", &["neigh", "replace", &other, "lladdr", &hardware, "nud", "permanent", "dev", device])?;
    Ok(())
}

/// The hardware address of an end: one that nobody sells, with the end's own in it.
fn hardware(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Sets up what an end does to what it sends.
fn slow(device: &str, options: LinkOptions) -> io::Result<()> {
    for discipline in disciplines(options) {
        let words = ["qdisc", "add", "dev", device].into_iter().chain(discipline.split(' '));
        run("tc", &words.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// What `tc` has to add for a direction: netem first, and behind it the line with its queue.
fn disciplines(options: LinkOptions) -> Vec<String> {
    let micros = |time: Duration| format!("{}us", time.as_micros());
    let mut netem = format!("root handle 1: netem limit {MOST_UNDER_WAY} delay {}", micros(options.delay));
    if !options.jitter.is_zero() {
        netem += &format!(" {}", micros(options.jitter));
        // Uniform is what netem does by itself.
        if options.jitter_kind == JitterKind::Normal {
            netem += " distribution normal";
        }
    }
    if options.loss > 0.0 {
        netem += &format!(" loss {}%", options.loss * 100.0);
    }
    let line = options.rate.map(|rate| {
        // What the clock's coarseness lets through at once: a millisecond's worth, or two packets.
        let burst = (rate / 8000).max(u64::from(MTU) * 2);
        format!("parent 1:1 handle 10: tbf rate {rate}bit burst {burst} limit {}", options.queue_bytes)
    });
    [netem].into_iter().chain(line).collect()
}

/// Reads what `tc` counted. Its bytes are those of frames, whose heads are taken off.
fn counts(told: &str) -> io::Result<Counts> {
    let disciplines: Value = serde_json::from_str(told)?;
    let of = |kind: &str, name: &str| {
        let found = disciplines.as_array()?.iter().find(|discipline| discipline["kind"] == kind)?;
        found[name].as_u64()
    };
    let last = if of("tbf", "packets").is_some() { "tbf" } else { "netem" };
    let count = |kind, name| of(kind, name).unwrap_or_default();
    let packets = count(last, "packets");
    Ok(Counts {
        packets,
        bytes: count(last, "bytes").saturating_sub(packets * 14),
        lost: count("netem", "drops").saturating_sub(count("tbf", "drops")),
        dropped: count("tbf", "drops"),
        ..Counts::default()
    })
}

/// How long a line of a rate needs for what `tc` says is under way to it and waits for it.
fn waits(told: &str, rate: Option<u64>) -> Duration {
    let disciplines: Value = serde_json::from_str(told).unwrap_or_default();
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
#[allow(clippy::print_stdout, reason = "a test says that it is skipped")]
mod tests {
    use super::super::namespace::apart;
    use super::super::relay::Relay;
    use super::*;
    use crate::failed::failed;

    #[test]
    fn a_direction_is_told_in_the_words_of_tc() {
        let options = LinkOptions {
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(5),
            reorder: true,
            loss: 0.001,
            rate: Some(100_000_000),
            queue_bytes: 625_000,
            ..LinkOptions::default()
        };
        let netem = "root handle 1: netem limit 1000000 delay 25000us 5000us distribution normal loss 0.1%";
        let line = "parent 1:1 handle 10: tbf rate 100000000bit burst 12500 limit 625000";
        assert_eq!(disciplines(options), [netem, line]);
        assert_eq!(disciplines(LinkOptions::default()), ["root handle 1: netem limit 1000000 delay 0us"]);
    }

    #[test]
    fn what_tc_counted_is_read() {
        let told = r#"[{"kind":"netem","handle":"1:","bytes":3000,"packets":30,"drops":7},
            {"kind":"tbf","handle":"10:","bytes":2420,"packets":20,"drops":5}]"#;
        let found = counts(told).unwrap();
        assert_eq!(found, Counts { packets: 20, bytes: 2140, lost: 2, dropped: 5, ..Counts::default() });
        assert!(counts("no qdisc").is_err());
    }

    #[test]
    fn what_waits_is_waited_for_as_long_as_it_takes() {
        let told = r#"[{"kind":"netem","backlog":12500,"qlen":9},{"kind":"tbf","backlog":3000,"qlen":2}]"#;
        assert_eq!(waits(told, Some(1_000_000)), Duration::from_millis(100));
        assert_eq!(waits(told, None), Duration::ZERO);
        assert_eq!(waits("", Some(1_000)), Duration::ZERO);
    }

    /// Two ends with nothing between them, in namespaces of their own; `None`, and a reason printed, where there can be none.
    fn connected<T: Send>(work: impl FnOnce(Netem, [Ipv4Addr; 2], &File) -> T + Send) -> Option<T> {
        let made = apart(|| {
            let far = own().map_err(failed("find the far namespace"))?;
            apart(|| {
                let connected = Netem::connect(WanOptions::default(), &far);
                let (link, addresses) = connected.map_err(failed("connect two ends"))?;
                Ok(work(link, addresses, &far))
            })
        });
        made.inspect_err(|e| println!("skipped: {e}")).ok()
    }

    #[test]
    fn each_end_knows_the_other_before_the_first_packet() {
        connected(|link, [near_address, far_address], far| {
            let known = || run("ip", &["neigh", "show", "nud", "permanent"]).unwrap();
            let says = |of: Ipv4Addr| format!("{of} dev ");
            assert!(known().contains(&says(far_address)), "{}", known());
            let known_there = within(far, known).unwrap();
            assert!(known_there.contains(&says(near_address)), "{known_there}");
            // And packets arrive by what they know.
            let there = within(far, || std::net::UdpSocket::bind((far_address, 7302)).unwrap()).unwrap();
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
    fn a_link_is_taken_down_though_somebody_is_still_at_its_end() {
        connected(|link, _, far| {
            let is_there = || fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains(VETH);
            assert!(within(far, is_there).unwrap());
            // This thread is in the near end's namespace.
            drop(link);
            assert!(!within(far, is_there).unwrap());
        });
    }

    #[test]
    fn what_tc_does_not_say_is_an_error() {
        connected(|link, _, _| {
            let counter = link.counter();
            drop(link);
            assert!(counter.read().is_err());
        });
    }

    #[test]
    fn a_relay_has_other_addresses_than_a_link_of_the_kernel_s() {
        connected(|_link, [_, far_address], far| {
            let beside = apart(|| Relay::make(WanOptions::default(), far));
            match beside {
                Ok((_, beside)) => assert_ne!(beside, far_address),
                Err(e) => println!("skipped: {e}"),
            }
        });
    }
}
