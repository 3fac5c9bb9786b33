//! The flags that say how an emulated line is, and what is told of one.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;
use tradewind_lab::wan::{JitterKind, LinkOptions, MTU, Via, WanOptions, usual_queue};

use crate::commands::Misused;
use crate::settings::ByteSize;

/// How the line is. Everything is each direction's.
#[derive(Debug, Args)]
pub(super) struct LineFlags {
    /// How long a packet is under way, in each direction: a round trip takes twice that
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    delay: Duration,
    /// How far the delay varies, in each direction, packet by packet: the standard deviation (normal), or half the width
    /// (uniform)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    jitter: Duration,
    /// How jitter is distributed
    #[arg(long, value_name = "KIND", default_value = "normal")]
    jitter_kind: Kind,
    /// Let packets overtake each other under jitter; without it those that follow closely wait for the slowest
    #[arg(long)]
    reorder: bool,
    /// Share of the packets that each direction loses by chance, as 0.1%
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "0%")]
    loss: f64,
    /// Bits of IP packets that each direction takes a second, as 100mbit [default: no bound]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// What waits for the line in each direction at the most, as 256KiB; more is dropped, the newest first [default: the rate
    /// times the round trip]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    queue: Option<ByteSize>,
    /// Where the way back differs: delay, jitter, loss, rate (also none) and queue, as rate=10mbit,loss=1%
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = Differing::parse)]
    back: Option<Differing>,
    /// What carries the packets: our own relay, the kernel's netem, or netem where that works and does what is asked
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    via: Carrier,
    /// What losses and jitter follow from (needs the relay): the same number brings the same again [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

/// How jitter is distributed
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Normal,
    Uniform,
}

/// What carries packets
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Carrier {
    Relay,
    Netem,
    Auto,
}

/// What of the way back was told apart.
#[derive(Debug, Clone, Default, PartialEq)]
struct Differing {
    delay: Option<Duration>,
    jitter: Option<Duration>,
    loss: Option<f64>,
    rate: Option<Option<u64>>,
    queue: Option<ByteSize>,
}

impl Differing {
    fn parse(text: &str) -> Result<Self, String> {
        let mut differing = Self::default();
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not KEY=VALUE"))?;
            match key.trim() {
                "delay" => differing.delay = Some(time(value)?),
                "jitter" => differing.jitter = Some(time(value)?),
                "loss" => differing.loss = Some(percent(value)?),
                "rate" if value == "none" => differing.rate = Some(None),
                "rate" => differing.rate = Some(Some(rate(value)?)),
                "queue" => differing.queue = Some(ByteSize::parse(value)?),
                other => return Err(format!("{other:?} is none of delay, jitter, loss, rate and queue")),
            }
        }
        Ok(differing)
    }
}

impl LineFlags {
    /// Both directions, with what was not told.
    pub fn options(&self) -> anyhow::Result<WanOptions> {
        let jitter_kind = match self.jitter_kind {
            Kind::Normal => JitterKind::Normal,
            Kind::Uniform => JitterKind::Uniform,
        };
        let Self { delay, jitter, reorder, loss, rate, queue, .. } = *self;
        let differing = self.back.clone().unwrap_or_default();
        let round_trip = delay + differing.delay.unwrap_or(delay);
        let direction = |delay, jitter, loss, rate: Option<u64>, queue: Option<ByteSize>| {
            if jitter > delay {
                return Err(Misused(
                    "a delay cannot vary by more than itself: --jitter is above --delay".to_owned(),
                ));
            }
            let queue_bytes = match (rate, queue) {
                (Some(rate), None) => usual_queue(rate, round_trip),
                (None, None) => u64::MAX,
                (None, Some(_)) => {
                    return Err(Misused("without a --rate nothing waits: --queue needs one".to_owned()));
                }
                (Some(_), Some(ByteSize(bytes))) if bytes < u64::from(MTU) => {
                    return Err(Misused(format!("a --queue has to hold a packet: {MTU} bytes")));
                }
                (Some(_), Some(ByteSize(bytes))) => bytes,
            };
            Ok(LinkOptions { delay, jitter, jitter_kind, reorder, loss, rate, queue_bytes })
        };
        let back_rate = differing.rate.unwrap_or(rate);
        // A queue that was told for both does not concern a way back without a rate.
        let back_queue = differing.queue.or(queue.filter(|_| back_rate.is_some() || rate.is_none()));
        let out_queue = queue.filter(|_| rate.is_some() || back_rate.is_none());
        let drawn = || {
            getrandom::u32()
                .map(u64::from)
                .map_err(|e| anyhow::anyhow!("the system gives no random bytes: {e}"))
        };
        let seed = self.seed.map_or_else(drawn, Ok)?;
        let via = match (self.via, self.seed) {
            (Carrier::Netem, Some(_)) => {
                return Err(Misused("netem draws by itself: --seed needs --via relay".to_owned()).into());
            }
            (Carrier::Netem, None) => Via::Netem,
            (Carrier::Auto, None) => Via::Auto,
            (Carrier::Auto, Some(_)) | (Carrier::Relay, _) => Via::Relay,
        };
        Ok(WanOptions {
            via,
            out: direction(delay, jitter, loss, rate, out_queue)?,
            back: direction(
                differing.delay.unwrap_or(delay),
                differing.jitter.unwrap_or(jitter),
                differing.loss.unwrap_or(loss),
                back_rate,
                back_queue,
            )?,
            seed,
        })
    }
}

/// What somebody should know of a link that was made: what carries it, and what they may not have said, how long queues are.
pub(super) fn made(options: WanOptions, via: Via) -> String {
    let via = if via == Via::Relay { "our relay" } else { "the kernel's netem" };
    let queues = queues(options).map_or_else(String::new, |queues| format!("; {queues}"));
    format!("{via} carries the packets{queues}")
}

fn queues(options: WanOptions) -> Option<String> {
    let WanOptions { out, back, .. } = options;
    match (out.rate.map(|_| out.queue_bytes), back.rate.map(|_| back.queue_bytes)) {
        (None, None) => None,
        (Some(out), Some(back)) if out == back => {
            Some(format!("each direction queues up to {out} bytes and drops what comes on top"))
        }
        (out, back) => {
            let show = |queue: Option<u64>| {
                queue.map_or("nothing".to_owned(), |bytes| format!("up to {bytes} bytes"))
            };
            Some(format!("out queues {}, back {}; what comes on top is dropped", show(out), show(back)))
        }
    }
}

/// Why it is not known what a link carried, of what is told of it; `None` where it is.
pub(super) fn uncounted(told: &Value) -> Option<String> {
    let why = told["uncounted"].as_str()?;
    Some(format!("what it carried is not known: {why}"))
}

/// What one direction carried, of what is told of its link.
pub(super) fn carried(direction: &Value) -> String {
    let count = |name: &str| direction[name].as_u64().unwrap_or_default();
    let (packets, bytes, lost) = (count("packets"), count("bytes"), count("lost"));
    let mut text = format!("{packets} packets, {bytes} bytes, {lost} lost by chance");
    if !direction["rate"].is_null() {
        text += &format!(", {} dropped by the full queue", count("dropped"));
    }
    if let Some(longest) = direction["longest_queue"].as_u64() {
        text += &format!(", queue up to {longest} bytes");
    }
    if count("missed") > 0 {
        text += &format!(", {} missed: this machine was too slow for the line", count("missed"));
    }
    text
}

/// How one direction is, of what is told of its link.
pub(super) fn line(direction: &Value) -> String {
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
        // An hour is more than the road to Mars and back.
        Some(number * seconds).filter(|seconds| (0.0..=3600.0).contains(seconds))
    });
    let read = if text == "0" { Some(0.0) } else { read };
    read.map(Duration::from_secs_f64).ok_or_else(|| "write it as 25ms, in us, ms or s".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = number.filter(|number| (0.0..=100.0).contains(number)).map(|number| number / 100.0);
    share.ok_or_else(|| "write it as 0.1%, from 0% to 100%".to_owned())
}

fn rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];
    let read = units.iter().find_map(|(unit, bits)| {
        let number: u64 = lower.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*bits).filter(|rate| *rate >= 1_000)
    });
    read.ok_or_else(|| "write it as 100mbit, in bit, kbit, mbit or gbit a second, from 1kbit on".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tradewind_lab::wan::{Counts, told};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: LineFlags,
    }

    fn options(line: &str) -> anyhow::Result<WanOptions> {
        let words = ["line"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words)?.flags.options()
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
    fn times_and_shares() {
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
    fn both_directions_are_alike_but_for_what_differs() {
        let alike = options("--delay 25ms --jitter 5ms --loss 0.1% --rate 100mbit --seed 7").unwrap();
        assert_eq!(alike.out, alike.back);
        assert_eq!(alike.seed, 7);
        // 100 Mbit/s for 50 ms.
        assert_eq!(alike.out.queue_bytes, 625_000);
        let apart =
            options("--delay 25ms --rate 100mbit --back delay=75ms,rate=10mbit,loss=1%,jitter=2ms").unwrap();
        let back = LinkOptions {
            delay: Duration::from_millis(75),
            jitter: Duration::from_millis(2),
            loss: 0.01,
            rate: Some(10_000_000),
            queue_bytes: 125_000,
            ..apart.out
        };
        assert_eq!(apart.back, back);
        assert_eq!(apart.out.queue_bytes, 1_250_000);
        let open = options("--rate 10mbit --queue 64KiB --back rate=none").unwrap();
        assert_eq!((open.out.queue_bytes, open.back.rate, open.back.queue_bytes), (65536, None, u64::MAX));
        assert_eq!(
            queues(open).unwrap(),
            "out queues up to 65536 bytes, back nothing; what comes on top is dropped"
        );
        assert_eq!(queues(options("--delay 1s").unwrap()), None);
    }

    #[test]
    fn what_the_full_queue_dropped_is_told_whoever_carries() {
        let options = options("--rate 10mbit").unwrap();
        let far = std::net::Ipv4Addr::LOCALHOST;
        let counts = Counts { packets: 9, dropped: 7, longest_queue: 11, ..Counts::default() };
        let told = |via| told(options, via, far, &Ok((counts, counts)));
        assert!(
            carried(&told(Via::Relay)["out"])
                .ends_with(", 7 dropped by the full queue, queue up to 11 bytes")
        );
        assert!(carried(&told(Via::Netem)["out"]).ends_with(", 7 dropped by the full queue"));
        assert_eq!(uncounted(&told(Via::Netem)), None);
    }

    #[test]
    fn what_was_not_counted_is_no_zero() {
        let options = options("--rate 10mbit").unwrap();
        let refused = Err(std::io::Error::other("`tc -s`: no such device"));
        let told = told(options, Via::Netem, std::net::Ipv4Addr::LOCALHOST, &refused);
        assert!(told["out"]["packets"].is_null() && told["back"]["dropped"].is_null(), "{told}");
        let why = "what it carried is not known: `tc -s`: no such device";
        assert_eq!(uncounted(&told).as_deref(), Some(why));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (bad, why) in [
            ("--delay 1ms --jitter 2ms", "vary by more than itself"),
            ("--delay 1ms --back jitter=2ms", "vary by more than itself"),
            ("--queue 64KiB", "needs one"),
            ("--rate 1mbit --queue 100B", "has to hold a packet"),
            ("--back speed=1mbit", "is none of delay"),
            ("--via netem --seed 1", "needs --via relay"),
            ("--back rate", "is not KEY=VALUE"),
        ] {
            let refused = options(bad).unwrap_err().to_string();
            assert!(refused.contains(why), "{bad}: {refused}");
        }
    }
}
