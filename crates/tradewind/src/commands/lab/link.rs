//! Flags of an emulated link, and text output about it.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;
use tradewind_lab::wan::{ForwarderKind, JitterKind, LinkOptions, MTU, WanOptions, default_queue_bytes};

use crate::commands::UsageError;
use crate::settings::ByteSize;

/// Properties of the link. All apply to each direction.
#[derive(Debug, Args)]
pub(super) struct LinkFlags {
    /// One-way delay of packets in each direction; the RTT is twice that
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    delay: Duration,
    /// Variation of the delay per packet, in each direction: the standard deviation (normal), or half the width
    /// (uniform)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    jitter: Duration,
    /// Distribution of the jitter
    #[arg(long, value_name = "KIND", default_value = "normal")]
    jitter_kind: JitterShape,
    /// Allow jitter to reorder packets; otherwise later packets wait for earlier ones
    #[arg(long)]
    reorder: bool,
    /// Random packet loss in each direction, e.g. 0.1%
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "0%")]
    loss: f64,
    /// Rate limit of IP packets in each direction, e.g. 100mbit [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Queue limit in each direction, e.g. 256KiB; packets beyond it are dropped (drop-tail) [default: the rate times
    /// the RTT]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    queue: Option<ByteSize>,
    /// Reverse-path overrides: delay, jitter, loss, rate (or none) and queue, e.g. rate=10mbit,loss=1%
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = ReverseOverrides::parse)]
    reverse: Option<ReverseOverrides>,
    /// Packet forwarder: the built-in relay, the kernel's netem, or netem if it is available and supports the options
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    via: ForwarderChoice,
    /// Random seed of losses and jitter, for reproducible runs (needs the relay) [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

/// Distribution of the jitter
#[derive(Debug, Clone, Copy, ValueEnum)]
enum JitterShape {
    Normal,
    Uniform,
}

/// Packet forwarder
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ForwarderChoice {
    Relay,
    Netem,
    Auto,
}

/// Overrides for the reverse path.
#[derive(Debug, Clone, Default, PartialEq)]
struct ReverseOverrides {
    delay: Option<Duration>,
    jitter: Option<Duration>,
    loss: Option<f64>,
    rate: Option<Option<u64>>,
    queue: Option<ByteSize>,
}

impl ReverseOverrides {
    fn parse(text: &str) -> Result<Self, String> {
        let mut overrides = Self::default();
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not KEY=VALUE"))?;
            match key.trim() {
                "delay" => overrides.delay = Some(time(value)?),
                "jitter" => overrides.jitter = Some(time(value)?),
                "loss" => overrides.loss = Some(percent(value)?),
                "rate" if value == "none" => overrides.rate = Some(None),
                "rate" => overrides.rate = Some(Some(rate(value)?)),
                "queue" => overrides.queue = Some(ByteSize::parse(value)?),
                other => return Err(format!("{other:?} is not one of delay, jitter, loss, rate and queue")),
            }
        }
        Ok(overrides)
    }
}

impl LinkFlags {
    /// The options of both directions, with defaults.
    pub fn options(&self) -> anyhow::Result<WanOptions> {
        let jitter_kind = match self.jitter_kind {
            JitterShape::Normal => JitterKind::Normal,
            JitterShape::Uniform => JitterKind::Uniform,
        };
        let Self { delay, jitter, reorder, loss, rate, queue, .. } = *self;
        let overrides = self.reverse.clone().unwrap_or_default();
        let round_trip = delay + overrides.delay.unwrap_or(delay);
        let direction = |delay, jitter, loss, rate: Option<u64>, queue: Option<ByteSize>| {
            if jitter > delay {
                return Err(UsageError("--jitter must not exceed --delay".to_owned()));
            }
            let queue_bytes = match (rate, queue) {
                (Some(rate), None) => default_queue_bytes(rate, round_trip),
                (None, None) => u64::MAX,
                (None, Some(_)) => {
                    return Err(UsageError(
                        "--queue needs --rate: without a rate limit nothing is queued".to_owned(),
                    ));
                }
                (Some(_), Some(ByteSize(bytes))) if bytes < u64::from(MTU) => {
                    return Err(UsageError(format!("--queue must hold at least one packet of {MTU} bytes")));
                }
                (Some(_), Some(ByteSize(bytes))) => bytes,
            };
            Ok(LinkOptions {
                delay,
                jitter,
                jitter_kind,
                allow_reordering: reorder,
                loss,
                bits_per_second: rate,
                queue_bytes,
            })
        };
        let back_rate = overrides.rate.unwrap_or(rate);
        // A queue limit for both directions does not apply to a direction without a rate.
        let back_queue = overrides.queue.or(queue.filter(|_| back_rate.is_some() || rate.is_none()));
        let out_queue = queue.filter(|_| rate.is_some() || back_rate.is_none());
        let drawn = || {
            getrandom::u32()
                .map(u64::from)
                .map_err(|e| anyhow::anyhow!("cannot get random bytes from the system: {e}"))
        };
        let seed = self.seed.map_or_else(drawn, Ok)?;
        let via = match (self.via, self.seed) {
            (ForwarderChoice::Netem, Some(_)) => {
                return Err(UsageError("netem cannot be seeded: --seed needs --via relay".to_owned()).into());
            }
            (ForwarderChoice::Netem, None) => ForwarderKind::Netem,
            (ForwarderChoice::Auto, None) => ForwarderKind::Auto,
            (ForwarderChoice::Auto, Some(_)) | (ForwarderChoice::Relay, _) => ForwarderKind::Relay,
        };
        Ok(WanOptions {
            via,
            out: direction(delay, jitter, loss, rate, out_queue)?,
            back: direction(
                overrides.delay.unwrap_or(delay),
                overrides.jitter.unwrap_or(jitter),
                overrides.loss.unwrap_or(loss),
                back_rate,
                back_queue,
            )?,
            seed,
        })
    }
}

/// A note on a new link: its packet forwarder and the queue limits, which may be defaults.
pub(super) fn describe_setup(options: WanOptions, via: ForwarderKind) -> String {
    let via = if via == ForwarderKind::Relay { "the built-in relay" } else { "the kernel's netem" };
    let queues = queues(options).map_or_else(String::new, |queues| format!("; {queues}"));
    format!("packets are forwarded by {via}{queues}")
}

fn queues(options: WanOptions) -> Option<String> {
    let WanOptions { out, back, .. } = options;
    match (out.bits_per_second.map(|_| out.queue_bytes), back.bits_per_second.map(|_| back.queue_bytes)) {
        (None, None) => None,
        (Some(out), Some(back)) if out == back => {
            Some(format!("each direction queues up to {out} bytes and drops the excess"))
        }
        (out, back) => {
            let show = |queue: Option<u64>| {
                queue.map_or("nothing".to_owned(), |bytes| format!("up to {bytes} bytes"))
            };
            Some(format!("out queues {}, back {}; the excess is dropped", show(out), show(back)))
        }
    }
}

/// The reason for which the traffic of a link is unknown, from its JSON status; `None` if it is known.
pub(super) fn unknown_traffic_reason(status: &Value) -> Option<String> {
    let why = status["uncounted"].as_str()?;
    Some(format!("traffic is unknown: {why}"))
}

/// The traffic of one direction, from its JSON status.
pub(super) fn describe_traffic(direction: &Value) -> String {
    let count = |name: &str| direction[name].as_u64().unwrap_or_default();
    let (packets, bytes, lost) = (count("packets"), count("bytes"), count("lost"));
    let mut text = format!("{packets} packets, {bytes} bytes, {lost} lost at random");
    if !direction["rate"].is_null() {
        text += &format!(", {} dropped by the full queue", count("dropped"));
    }
    if let Some(max_queue) = direction["max_queue_bytes"].as_u64() {
        text += &format!(", queue up to {max_queue} bytes");
    }
    if count("missed") > 0 {
        text += &format!(", {} missed: this machine was too slow for the link", count("missed"));
    }
    text
}

/// The properties of one direction, from its JSON status.
pub(super) fn describe_link(direction: &Value) -> String {
    let number = |name: &str| direction[name].as_f64().unwrap_or_default();
    let mut text = format!("{} ms", number("delay_ms"));
    if number("jitter_ms") > 0.0 {
        let kind = direction["jitter_kind"].as_str().unwrap_or_default();
        let order = if direction["reorder"] == true { ", overtaking" } else { "" };
        text += &format!(" +- {} ms ({kind}{order})", number("jitter_ms"));
    }
    if number("loss") > 0.0 {
        text += &format!(", {:.3} % lost", number("loss") * 100.0);
    }
    if let (Some(rate), Some(queue)) = (direction["rate"].as_f64(), direction["queue"].as_u64()) {
        text += &format!(", {} Mbit/s with a queue of {queue} bytes", rate / 1e6);
    }
    text
}

fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let read = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.trim().strip_suffix(unit)?.trim_end().parse().ok()?;
        // At most one hour.
        Some(number * seconds).filter(|seconds| (0.0..=3600.0).contains(seconds))
    });
    let read = if text == "0" { Some(0.0) } else { read };
    read.map(Duration::from_secs_f64).ok_or_else(|| "write a time such as 25ms, in us, ms or s".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = number.filter(|number| (0.0..=100.0).contains(number)).map(|number| number / 100.0);
    share.ok_or_else(|| "write a percentage such as 0.1%, from 0% to 100%".to_owned())
}

fn rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];
    let read = units.iter().find_map(|(unit, bits)| {
        let number: u64 = lower.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*bits).filter(|rate| *rate >= 1_000)
    });
    read.ok_or_else(|| {
        "write a rate such as 100mbit, in bit, kbit, mbit or gbit per second, at least 1kbit".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tradewind_lab::wan::{LinkCounts, link_report};

    use super::*;

    #[derive(Debug, Parser)]
    struct LinkLine {
        #[command(flatten)]
        flags: LinkFlags,
    }

    fn options(line: &str) -> anyhow::Result<WanOptions> {
        let words = ["line"].into_iter().chain(line.split_whitespace());
        LinkLine::try_parse_from(words)?.flags.options()
    }

    #[test]
    fn rates() {
        assert_eq!(rate("100mbit"), Ok(100_000_000));
        assert_eq!(rate("1 Gbit"), Ok(1_000_000_000));
        assert_eq!(rate("9600bit"), Ok(9600));
        for bad in ["", "100", "mbit", "10bit", "-1mbit", "1MB", "99999999999gbit"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_and_percentages() {
        assert_eq!(time("25ms"), Ok(Duration::from_millis(25)));
        assert_eq!(time("0.14ms"), Ok(Duration::from_micros(140)));
        assert_eq!(time("80us"), Ok(Duration::from_micros(80)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        for bad in ["", "25", "-1ms", "1h", "nanms", "infs", "9999s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(percent("0.1%"), Ok(0.001));
        for bad in ["", "1", "-1%", "101%", "nan%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reverse_path_differs_only_in_its_overrides() {
        let alike = options("--delay 25ms --jitter 5ms --loss 0.1% --rate 100mbit --seed 7").unwrap();
        assert_eq!(alike.out, alike.back);
        assert_eq!(alike.seed, 7);
        // 100 Mbit/s for 50 ms.
        assert_eq!(alike.out.queue_bytes, 625_000);
        let apart =
            options("--delay 25ms --rate 100mbit --reverse delay=75ms,rate=10mbit,loss=1%,jitter=2ms")
                .unwrap();
        let back = LinkOptions {
            delay: Duration::from_millis(75),
            jitter: Duration::from_millis(2),
            loss: 0.01,
            bits_per_second: Some(10_000_000),
            queue_bytes: 125_000,
            ..apart.out
        };
        assert_eq!(apart.back, back);
        assert_eq!(apart.out.queue_bytes, 1_250_000);
        let open = options("--rate 10mbit --queue 64KiB --reverse rate=none").unwrap();
        assert_eq!(
            (open.out.queue_bytes, open.back.bits_per_second, open.back.queue_bytes),
            (65536, None, u64::MAX)
        );
        assert_eq!(
            queues(open).unwrap(),
            "out queues up to 65536 bytes, back nothing; the excess is dropped"
        );
        assert_eq!(queues(options("--delay 1s").unwrap()), None);
    }

    #[test]
    fn queue_drops_are_reported_for_each_forwarder() {
        let options = options("--rate 10mbit").unwrap();
        let far = std::net::Ipv4Addr::LOCALHOST;
        let counts = LinkCounts { packets: 9, dropped: 7, max_queue_bytes: 11, ..LinkCounts::default() };
        let report = |via| link_report(options, via, far, &Ok((counts, counts)));
        assert!(
            describe_traffic(&report(ForwarderKind::Relay)["out"])
                .ends_with(", 7 dropped by the full queue, queue up to 11 bytes")
        );
        assert!(
            describe_traffic(&report(ForwarderKind::Netem)["out"]).ends_with(", 7 dropped by the full queue")
        );
        assert_eq!(unknown_traffic_reason(&report(ForwarderKind::Netem)), None);
    }

    #[test]
    fn unknown_traffic_is_null_not_zero() {
        let options = options("--rate 10mbit").unwrap();
        let refused = Err(std::io::Error::other("`tc -s`: no such device"));
        let report = link_report(options, ForwarderKind::Netem, std::net::Ipv4Addr::LOCALHOST, &refused);
        assert!(report["out"]["packets"].is_null() && report["back"]["dropped"].is_null(), "{report}");
        let why = "traffic is unknown: `tc -s`: no such device";
        assert_eq!(unknown_traffic_reason(&report).as_deref(), Some(why));
    }

    #[test]
    fn contradictory_options_are_rejected() {
        for (bad, why) in [
            ("--delay 1ms --jitter 2ms", "must not exceed --delay"),
            ("--delay 1ms --reverse jitter=2ms", "must not exceed --delay"),
            ("--queue 64KiB", "needs --rate"),
            ("--rate 1mbit --queue 100B", "must hold at least one packet"),
            ("--reverse speed=1mbit", "is not one of delay"),
            ("--via netem --seed 1", "needs --via relay"),
            ("--reverse rate", "is not KEY=VALUE"),
        ] {
            let refused = options(bad).unwrap_err().to_string();
            assert!(refused.contains(why), "{bad}: {refused}");
        }
    }
}
