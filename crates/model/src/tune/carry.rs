//! What is known of a store from one client, carried over to another client or another store (Hou 2017, section 5.4).
//!
//! Samples mean nothing elsewhere; the law's numbers do, each in its own way. The round trips that a request takes are as many
//! as they were, and what the store takes besides is as long. A connection's window is what it was, so that it carries less the
//! further it goes. What all share is the link's where the link was full, the storage's where that was, and otherwise the
//! processors', where those can have been the limit. What comes of it is a [`Belief`]: a surface without samples follows from it,
//! and sampling may begin with it.
//!
//! How much is lost on the way is not known of a line that nobody has measured: what is carried over from one that loses
//! nothing asks for too little where packets are lost.

mod closest;

use super::law::{Belief, COUNT, Law};
use super::surface::Surface;

pub use closest::{Origin, closest, is_same_site};

/// A round trip that counts for more than what a store and a processor take, in seconds. One that is shorter does not tell
/// how many of them a request takes, or how large a window is.
const FAR: f64 = 5e-3;
/// Round trips of a request on a connection that is open, at the most.
const MOST_TRIPS: f64 = 4.0;
/// The window of a connection that nobody has looked at, in bytes, and the standard deviation of its logarithm: what Linux gives
/// one unasked.
const WINDOW: f64 = 2e6;
const WINDOW_DEVIATION: f64 = 1.0;
/// What a connection carries where no window is its limit, in bytes a second, and the standard deviation of its logarithm: what its
/// two ends do one after the other, as it was behind short round trips.
const CONNECTION: f64 = 200e6;
const CONNECTION_DEVIATION: f64 = 0.5;
/// A link, or storage, of which so much was carried was the limit.
const FULL: f64 = 0.7;
/// What requests carry of a full one at the least: the rest are heads of packets.
const OF_FULL: f64 = 0.95;
/// Bytes and requests a second that fill a processor, at the least. A client whose processors do less is held up by a line or by
/// the store, and would be with more of them.
const PROCESSOR_BYTES: f64 = 10e6;
const PROCESSOR_REQUESTS: f64 = 100.0;
/// How much less sure each number is elsewhere, however alike the two are.
const ELSEWHERE: [f64; COUNT] = [0.1, 0.3, 0.2, 0.1, 0.2, 0.2, 0.5];
/// A number that was scaled is unsure by this part of the scale's logarithm.
const SCALED: f64 = 0.5;
/// How unsure the fixed part is where nobody knows the round trip.
const UNTOLD: f64 = 0.7;
/// Sampling begins with this part of what would be unsure without anything known, or more.
const OPEN: f64 = 0.5;

/// What of a client, and of the way to its store, decides how fast the two are. What is not known is taken for the same. Memory is not
/// among it: it bounds what is under way, which whoever moves data keeps to by itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Client {
    /// Processors, of which a part may be one's own.
    pub processors: Option<f64>,
    /// Bytes a second that its storage takes, where objects go there or come from there.
    pub storage: Option<f64>,
    /// How long a round trip to the store takes, in seconds.
    pub round_trip: Option<f64>,
    /// Bytes a second of the link towards the store.
    pub link: Option<f64>,
}

/// What is to be believed at `to` of what was measured at `from`. The knee is taken for softer than it was, by as much as it was
/// unsure: more at a time than are of use cost little, and fewer cost in proportion.
#[must_use]
pub fn carry(known: &Surface, from: &Client, to: &Client) -> Belief {
    let learnt = known.learnt();
    let law = &learnt.mean;
    let here = from.round_trip.unwrap_or(law.fixed());
    let there = to.round_trip.unwrap_or(here);
    let slower = slower(from, to, 1.0 / law.shared_fixed() / PROCESSOR_REQUESTS);
    let (shared_per_byte, is_told) = shared_per_byte(law, from, to);
    let softer = law.0[4] - learnt.deviation[4];
    let scaled = [
        fixed(law, here, there).ln(),
        per_byte(&learnt, here, there).ln(),
        (law.shared_fixed() * slower).ln(),
        shared_per_byte.ln(),
        softer,
        law.0[5],
        law.0[6],
    ];
    let apart = (there / here).ln().abs();
    let besides = [
        if to.round_trip.is_some() { 0.0 } else { UNTOLD },
        SCALED * (scaled[1] - law.0[1]),
        SCALED * slower.ln(),
        // Who is as far away is likely to be on the same line. That weaker processors may be the limit before a link is would be
        // as true of all cells, and say nothing about which is the best.
        if is_told { 0.0 } else { SCALED * (scaled[3] - law.0[3]) + apart },
        0.0,
        0.0,
        0.0,
    ];
    let usual = Belief::default().deviation;
    let deviation = std::array::from_fn(|i| {
        let all = [learnt.deviation[i], ELSEWHERE[i], besides[i]];
        all.iter().map(|part| part * part).sum::<f64>().sqrt().min(usual[i])
    });
    Belief { mean: Law(scaled), deviation }
}

/// The same for who will sample: so unsure that a few samples change it where it is wrong.
#[must_use]
pub fn begin(known: &Surface, from: &Client, to: &Client) -> Belief {
    let Belief { mean, deviation } = carry(known, from, to);
    let usual = to.round_trip.map_or_else(Belief::default, |time| Belief::default().with_round_trip(time));
    Belief { mean, deviation: std::array::from_fn(|i| deviation[i].max(OPEN * usual.deviation[i])) }
}

/// How many times as slow the processors of the other client are, where it was processors that did this, and so many can be filled
/// with it.
fn slower(from: &Client, to: &Client, filled: f64) -> f64 {
    match (from.processors, to.processors) {
        (Some(here), Some(there)) if filled > here => here / there,
        _ => 1.0,
    }
}

/// As many round trips, and what the store takes besides.
fn fixed(law: &Law, here: f64, there: f64) -> f64 {
    let trips = if here < FAR { 1.0 } else { (law.fixed() / here).round().clamp(1.0, MOST_TRIPS) };
    let besides = (law.fixed() - trips * here).max(0.0);
    trips * there + besides
}

/// A byte's time on a connection with the same window. Further away it is never shorter, and nearer never longer. One that would be
/// faster than connections are is so as far as that is sure: a plan of one large request at a time would rely on it alone.
fn per_byte(learnt: &Belief, here: f64, there: f64) -> f64 {
    let usual = 1.0 / CONNECTION;
    let seen = (here / learnt.mean.per_byte()).ln();
    let weigh = |(a, deviation): (f64, f64), (b, usual): (f64, f64)| {
        let weights = [deviation, usual].map(|deviation| deviation.powi(-2));
        (a * weights[0] + b * weights[1]) / (weights[0] + weights[1])
    };
    let per_byte = if learnt.mean.per_byte() < usual {
        weigh((learnt.mean.0[1], learnt.deviation[1]), (usual.ln(), CONNECTION_DEVIATION)).exp()
    } else {
        learnt.mean.per_byte()
    };
    let window = if here < FAR {
        // Something else was the limit before the window was.
        seen.max(WINDOW.ln())
    } else {
        weigh((seen, learnt.deviation[1]), (WINDOW.ln(), WINDOW_DEVIATION))
    };
    let bound = there / window.exp();
    match there.total_cmp(&here) {
        std::cmp::Ordering::Less if here >= FAR => per_byte.min(bound.max(usual)),
        std::cmp::Ordering::Greater => per_byte.max(bound),
        _ => per_byte,
    }
}

/// A byte's time of what all share, and whether it is known what decides it.
fn shared_per_byte(law: &Law, from: &Client, to: &Client) -> (f64, bool) {
    let rate = 1.0 / law.shared_per_byte();
    let is_full = |most: &f64| rate > most * FULL;
    let limits = [(from.link, to.link), (from.storage, to.storage)];
    let full = limits.iter().find_map(|(from, to)| Some((from.filter(is_full)?, *to)));
    let scaled = match full {
        Some((from, Some(to))) if from != to => to * (rate / from).clamp(OF_FULL, 1.0),
        Some(_) => rate,
        None => rate / slower(from, to, rate / PROCESSOR_BYTES),
    };
    let most = limits.iter().filter_map(|(_, to)| *to).fold(f64::MAX, f64::min);
    let is_told = matches!(full, Some((_, Some(_)))) || scaled > most;
    (1.0 / scaled.min(most), is_told)
}
