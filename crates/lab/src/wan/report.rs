//! The JSON report of a link: its options and counters.

use std::io;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::{ForwarderKind, JitterKind, LinkCounts, LinkOptions, WanOptions};

/// The report of a link. Times are in milliseconds, rates in bits per second, sizes in bytes, loss is a fraction.
/// Values that are unlimited or unknown to netem are null. `out` and `back` describe the directions; `uncounted` is the
/// reason if all counters are null.
#[must_use]
pub fn link_report(
    options: WanOptions,
    via: ForwarderKind,
    far: Ipv4Addr,
    counts: &io::Result<(LinkCounts, LinkCounts)>,
) -> Value {
    let is_relay = via == ForwarderKind::Relay;
    let (out, back) = counts.as_ref().map_or((None, None), |(out, back)| (Some(*out), Some(*back)));
    json!({
        "via": if is_relay { "relay" } else { "netem" },
        "far": far.to_string(),
        "seed": is_relay.then_some(options.seed),
        "uncounted": counts.as_ref().err().map(ToString::to_string),
        "out": direction(options.out, out, is_relay),
        "back": direction(options.back, back, is_relay),
    })
}

fn direction(options: LinkOptions, counts: Option<LinkCounts>, is_relay: bool) -> Value {
    let LinkOptions {
        delay,
        jitter,
        jitter_kind,
        allow_reordering: reorder,
        loss,
        bits_per_second: rate,
        queue_bytes,
    } = options;
    let count = |field: fn(LinkCounts) -> u64| counts.map(field);
    json!({
        "delay_ms": delay.as_secs_f64() * 1e3,
        "jitter_ms": jitter.as_secs_f64() * 1e3,
        "jitter_kind": match jitter_kind {
            JitterKind::Normal => "normal",
            JitterKind::Uniform => "uniform",
        },
        "reorder": reorder,
        "loss": loss,
        "rate": rate,
        "queue": rate.map(|_| queue_bytes),
        "packets": count(|counts| counts.packets),
        "bytes": count(|counts| counts.bytes),
        "lost": count(|counts| counts.lost),
        "dropped": count(|counts| counts.dropped),
        "missed": count(|counts| counts.missed),
        "max_queue_bytes": rate.filter(|_| is_relay).and_then(|_| count(|counts| counts.max_queue_bytes)),
    })
}
