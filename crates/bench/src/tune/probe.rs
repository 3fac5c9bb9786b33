//! One probe: so many requests of a size at a time, for as short as says enough.
//!
//! Nothing counts until each of those that ask was answered: connections are made and windows open meanwhile. What counts then is
//! how much they did, by the time that they had; a request that fails takes time and does nothing.

mod seats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_model::store_model::Direction;
use tradewind_model::tune::sampling::{LEAST_SECONDS, ROUNDS_OF_SHORT};
use tradewind_model::tune::{Cell, Sample};

use self::seats::Seats;
use super::ground::{Ground, Hand};
use crate::drive::Stop;
use crate::packets::Packets;
use crate::usage::Usage;

/// How often it is looked whether it is enough.
const LOOK: Duration = Duration::from_millis(10);
/// Who counts what was done rests so many times as long as that took: those who are measured need the processor.
const REST: u32 = 30;
/// It counts for so long at the least and so many rounds, where those do not last long for many of them.
const LEAST: Duration = Duration::from_millis((LEAST_SECONDS * 1e3) as u64);
const LEAST_ROUNDS: f64 = 2.0;
/// Where packets are lost, windows that have met no loss yet carry more than they will: what comes in the first time does not count,
/// nor what comes before as much is carried as later; and what counts goes on for longer.
const BEFORE_LOSSES: Duration = Duration::from_millis(700);
const LEAST_WITH_LOSSES: Duration = Duration::from_millis(800);
const LONGEST_WITH_LOSSES: Duration = Duration::from_millis(2300);
/// Fewer connections than these do not tell by themselves what they carry in the mean: each has to have met so many losses, in so long
/// and within so many bytes at the most. Of downloads only the other end knows how many there were: those have all of it.
const FEW: usize = 16;
const LOSSES_OF_EACH: u64 = 6;
const LONGEST_OF_FEW: Duration = Duration::from_millis(4500);
const MOST_BYTES_OF_FEW: u64 = 20 << 20;
/// More connections do, in the time that they have; they carry more in it, but no more than a part of what is left.
const MOST_BYTES_OF_MANY: u64 = 192 << 20;
const OF_WHAT_IS_LEFT: u64 = 4;
/// What fits into a new window (RFC 6928) is carried by any.
const NEW_WINDOW: u64 = 10 * 1460;
/// Enough is known when the mean is, to this part.
const SURE: f64 = 0.04;
/// What is under way at the end is waited for, so long: to break off costs a connection.
const DRAIN: Duration = Duration::from_millis(500);
/// A request that failed is followed by the next so much later, and each further one by twice that.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
const LONGEST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How far a probe may go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Seconds, all in all.
    pub time: Duration,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Both where packets turn out to be lost, which takes longer to know.
    pub most: (Duration, u64),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    /// Uploads or downloads.
    pub direction: Direction,
    /// Of which cell.
    pub cell: Cell,
    /// What is known of it; `None` where not one request counted.
    pub sample: Option<Sample>,
    /// Requests that counted.
    pub requests: u64,
    /// Those that failed.
    pub failures: u64,
    /// One of them in full.
    pub failure: Option<String>,
    /// The latency that 95 and 99 of a hundred of them had at the most, in seconds.
    pub tail: [f64; 2],
    /// Processor time of this process for each request, in seconds.
    pub cpu: f64,
    /// How much of the processors that it may use this process had: 0 to 1.
    pub busy: f64,
    /// Bytes of bodies, those that did not count as well.
    pub bytes: u64,
    /// How long all of it took.
    pub time: Duration,
}

/// What those that ask have in common.
#[derive(Debug)]
struct Shared {
    seats: Seats,
    failure: Mutex<Option<String>>,
    /// What nobody may do.
    denied: Mutex<Option<String>>,
    /// Requests that may still be begun.
    left: AtomicU64,
    is_over: AtomicBool,
}

/// Makes a probe. Dropping the future breaks it off; what it wrote is left. Fails where it may not be done at all; requests that
/// fail otherwise are a part of what is measured.
pub async fn probe(
    ground: &Arc<Ground>,
    (direction, cell): (Direction, Cell),
    extent: Extent,
    (cores, stop): (usize, &Stop),
) -> Result<Probed> {
    let clock = ground.bed().clock.clone();
    let is_few = cell.parallel < FEW && cell.bytes > NEW_WINDOW;
    let requests = |bytes: u64| (bytes / cell.bytes.max(1)).max(1);
    // More of them where it takes longer to know.
    let most_bytes = if is_few {
        MOST_BYTES_OF_FEW.min(extent.most.1)
    } else {
        MOST_BYTES_OF_MANY.min(extent.most.1 / OF_WHAT_IS_LEFT)
    };
    let more = requests(most_bytes).saturating_sub(requests(extent.bytes));
    let shared = Arc::new(Shared {
        seats: Seats::new(cell.parallel),
        failure: Mutex::default(),
        denied: Mutex::default(),
        left: AtomicU64::new(requests(extent.bytes)),
        is_over: AtomicBool::new(false),
    });
    let mut asking = JoinSet::new();
    let bed = ground.fresh()?;
    let (start, at_start) = (clock.now(), usage()?);
    for number in 0..cell.parallel {
        let hand = ground.hand(&bed, (direction, cell.bytes), number).await?;
        asking.spawn(ask(hand, number, shared.clone(), ground.clone()));
    }
    let mut warm: Option<(Duration, Usage)> = None;
    // What it began with, for want of a better beginning.
    let mut early = None;
    let packets_before = Packets::up_to_now();
    let packets = || Packets::up_to_now().since(&packets_before);
    let again = || if direction == Direction::Write { packets().again } else { 0 };
    let (mut loses, mut least, mut most_time) = (false, LEAST, extent.time);
    let mut next_count = start;
    let end = loop {
        tokio::time::sleep(LOOK).await;
        let now = clock.now();
        let is_open = !loses || now - start >= BEFORE_LOSSES;
        if warm.is_none() && is_open && shared.seats.is_warm() {
            warm = Some((now, usage()?));
        }
        let is_spent = now - start >= most_time || shared.left.load(Ordering::Relaxed) == 0;
        let may_be_enough = |from: Duration| now >= next_count && (!loses || now - from >= least);
        let is_enough = warm.as_ref().filter(|(from, _)| may_be_enough(*from)).is_some_and(|(from, _)| {
            let began = clock.now();
            let (from, is_settled) = if loses { shared.seats.settled((*from, now)) } else { (*from, true) };
            let counted = shared.seats.count((from, now));
            let has_met = !loses || !is_few || again() >= LOSSES_OF_EACH * cell.parallel as u64;
            let is_long = now - from >= least && has_met || counted.rounds >= ROUNDS_OF_SHORT && !loses;
            let is_sure = counted.rounds >= LEAST_ROUNDS && counted.error <= SURE;
            let is_enough = is_long && is_settled && is_sure && !shared.seats.grows((from, now));
            let ended = clock.now();
            next_count = ended + (ended - began) * REST;
            is_enough
        });
        if let Some(denied) = shared.denied.lock().take() {
            return Err(Error::new(Reason::AccessDenied, denied));
        }
        let longest = if is_few { LONGEST_OF_FEW } else { LONGEST_WITH_LOSSES };
        let is_new = (is_enough || is_spent) && !loses && now - start < longest;
        if is_new && (ground.loses() || ground.is_slowed_by(packets().lost())) {
            ground.found_losses();
            (loses, least, most_time) = (true, LEAST_WITH_LOSSES, most_time.max(longest.min(extent.most.0)));
            shared.left.fetch_add(more, Ordering::Relaxed);
            early = warm.take_if(|(from, _)| *from - start < BEFORE_LOSSES);
        } else if is_spent || is_enough || stop.is_asked() {
            break now;
        }
    };
    // Where not each of them was answered, all that was seen has to do.
    let (from, before) = beginning(warm, early, end).unwrap_or((start, at_start));
    let used = usage()?.since(&before);
    shared.is_over.store(true, Ordering::Relaxed);
    let drained = tokio::time::timeout(DRAIN, async { while asking.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        asking.shutdown().await;
    }
    let seconds = (end - from).as_secs_f64();
    let all = shared.seats.amount((from, end)).amount;
    let (settled, _) = if loses { shared.seats.settled((from, end)) } else { (from, true) };
    let mut counted = shared.seats.count((settled, end));
    if counted.done == 0 {
        // All were answered at the very end: that is what there is.
        counted = shared.seats.count((start, end));
    }
    let of_machine =
        if seconds > 0.0 { used.total().as_secs_f64() / seconds / cores.max(1) as f64 } else { 0.0 };
    Ok(Probed {
        direction,
        cell,
        sample: counted.sample(cell),
        requests: counted.done,
        failures: shared.seats.failed(),
        failure: shared.failure.lock().clone(),
        tail: counted.tail,
        cpu: used.total().as_secs_f64() / all.max(1.0),
        busy: of_machine,
        bytes: shared.seats.begun().saturating_mul(cell.bytes),
        time: clock.now() - start,
    })
}

/// What counts begins when it was warm, or earlier where next to nothing is left of it since losses were found.
fn beginning<T>(
    warm: Option<(Duration, T)>,
    early: Option<(Duration, T)>,
    end: Duration,
) -> Option<(Duration, T)> {
    let is_much = warm.as_ref().is_some_and(|(from, _)| end.saturating_sub(*from) >= LEAST);
    if is_much { warm } else { early.or(warm) }
}

fn usage() -> Result<Usage> {
    Usage::now().map_err(|e| Error::with_source(Reason::Io, "this process cannot be measured", e))
}

async fn ask(mut hand: Hand, number: usize, shared: Arc<Shared>, ground: Arc<Ground>) {
    let clock = &ground.bed().clock;
    let mut pause = AFTER_FAILURE;
    while !shared.is_over.load(Ordering::Relaxed) {
        if !shared.may_begin() {
            // There may be more.
            tokio::time::sleep(LOOK).await;
            continue;
        }
        // A store that always answers at once would never let anybody else have a turn.
        tokio::task::coop::consume_budget().await;
        shared.seats.begin(number, clock.now());
        let answered = hand.ask().await;
        let failed = answered.is_err();
        shared.seats.end(number, clock.now(), !failed);
        match answered {
            Ok(()) => pause = AFTER_FAILURE,
            Err(failed) => {
                // What was done before is allowed: then one that is refused has failed and no more.
                if failed.error == Some(ErrorKind::Denied) && !shared.seats.has_done() {
                    shared.denied.lock().get_or_insert(failed.what);
                    return;
                }
                shared.failure.lock().get_or_insert(failed.what);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_AFTER_FAILURE);
            }
        }
    }
}

impl Shared {
    /// Takes one of the requests that may be begun.
    fn may_begin(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_to_nothing_is_not_all_that_counts() {
        let at = |milliseconds| Some((Duration::from_millis(milliseconds), ()));
        let end = Duration::from_millis(1000);
        assert_eq!(beginning(at(950), at(100), end), at(100), "50 ms are next to nothing");
        assert_eq!(beginning(at(700), at(100), end), at(700));
        assert_eq!(beginning(at(950), None, end), at(950), "all there is");
        assert_eq!(beginning(None, at(100), end), at(100));
        assert_eq!(beginning::<()>(None, None, end), None);
    }
}
