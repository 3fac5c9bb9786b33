//! What is told of a link, as JSON: how it is set up, and what it carried.

use std::io;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::{Counts, JitterKind, LinkOptions, Via, WanOptions};

/// All of a link. Times are milliseconds, rates bits a second, sizes bytes, loss a share; what has no bound, or what netem does not
/// say, is null. What is under `out` and `back` is each direction's own; `uncounted` is why all counts are null.
#[must_use]
pub fn told(options: WanOptions, via: Via, far: Ipv4Addr, carried: &io::Result<(Counts, Counts)>) -> Value {
    let is_relay = via == Via::Relay;
    let (out, back) = carried.as_ref().map_or((None, None), |(out, back)| (Some(*out), Some(*back)));
    json!({
        "via": if is_relay { "relay" } else { "netem" },
        "far": far.to_string(),
        "seed": is_relay.then_some(options.seed),
        "uncounted": carried.as_ref().err().map(ToString::to_string),
        "out": direction(options.out, out, is_relay),
        "back": direction(options.back, back, is_relay),
    })
}

fn direction(options: LinkOptions, counts: Option<Counts>, is_relay: bool) -> Value {
    let LinkOptions { delay, jitter, jitter_kind, reorder, loss, rate, queue_bytes } = options;
    let count = |of: fn(Counts) -> u64| counts.map(of);
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
        "longest_queue": rate.filter(|_| is_relay).and_then(|_| count(|counts| counts.longest_queue)),
    })
}
