//! A link of the kernel's own: a veth pair, with netem (delay, jitter, loss) and tbf (rate, queue) at either end.
//!
//! `ip` and `tc` set it up. Segmentation offload is off: a packet is one of the line's. Whether the kernel can do this is
//! found out by doing it. What netem does otherwise than asked is refused: it lets packets overtake each other under jitter.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::gettid;
use serde_json::Value;

use super::device::{without_ipv6, without_offload};
use super::link::{Counts, JitterKind, LinkOptions};
use super::namespace::{own, within};
use super::{MTU, WanOptions, address};

/// Packets under way at a time at the most: netem's own bound is a thousand.
const MOST_UNDER_WAY: &str = "1000000";
/// The near end, which has its namespace to itself.
const NEAR: &str = "twnear";

/// The link. It ends with its near end's namespace.
#[derive(Debug, Clone)]
pub(super) struct Netem {
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
        // A command that runs in the other namespace names this one by the thread.
        let near_thread = gettid().as_raw_nonzero().to_string();
        let (far, number) = within(far_namespace, || {
            let number = free_number()?;
            let far = format!("twveth{number}");
            run("ip", &["link", "add", &far, "type", "veth", "peer", "name", NEAR, "netns", &near_thread])?;
            Ok::<_, io::Error>((far, number))
        })??;
        let namespaces = Arc::new([own()?, far_namespace.try_clone()?]);
        let link = Self { far, namespaces };
        let made = link.set_up(options, number);
        if made.is_err() {
            // One end takes the other with it; where there is none, nothing is left.
            let _ = run("ip", &["link", "del", NEAR]);
        }
        made.map(|far| (link, far))
    }

    fn set_up(&self, options: WanOptions, number: u32) -> io::Result<Ipv4Addr> {
        let [near_address, far_address] = [2, 1].map(|n| address(number, n));
        end(NEAR, near_address, options.out)?;
        run("ip", &["route", "add", "default", "via", &far_address.to_string()])?;
        within(&self.namespaces[1], || end(&self.far, far_address, options.back))??;
        Ok(far_address)
    }

    /// What it carried out, and back.
    pub fn counts(&self) -> io::Result<(Counts, Counts)> {
        let of = |namespace: &File, device: &str| {
            within(namespace, || run("tc", &["-s", "-j", "qdisc", "show", "dev", device]))?
        };
        let [near, far] = &*self.namespaces;
        Ok((counts(&of(near, NEAR)?)?, counts(&of(far, &self.far)?)?))
    }
}

/// Sets up an end of the link, and what it does to what it sends.
fn end(device: &str, address: Ipv4Addr, options: LinkOptions) -> io::Result<()> {
    without_offload(device)?;
    without_ipv6(device);
    let disciplines = disciplines(options);
    run("ip", &["address", "add", &format!("{address}/30"), "dev", device])?;
    run("ip", &["link", "set", "dev", device, "mtu", &MTU.to_string(), "up"])?;
    for discipline in disciplines {
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

/// A number that no end of a link in the thread's namespace has.
fn free_number() -> io::Result<u32> {
    let names = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let is_free =
        |number: &u32| !["twveth", "twwan"].iter().any(|name| names.contains(&format!("{name}{number}:")));
    (0..16_000).find(is_free).ok_or_else(|| io::Error::other("there are too many links"))
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
mod tests {
    use super::*;

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
}
