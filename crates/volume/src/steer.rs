//! The turns of a carrier, which follow what is carried: see [`model::steering`](tradewind_model::steering).

mod look;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tradewind_model::steering::Steering;

use self::look::{Look, Looked};

/// Turns of one request, where all are alike.
pub(super) const TURNS: usize = 64;

/// There are turns for so many of the largest requests always: some that wait for others while they have theirs, as those of a search
/// do for whoever writes, and one that the others wait for.
pub const ROOM: usize = 5;

/// Connections are new for so long behind the first request that carries something.
const NEW: Duration = Duration::from_secs(1);

/// Packets that were sent since the machine began, and those that were sent again.
pub type Packets = fn() -> (u64, u64);

/// Turns, of which there are more or fewer as time goes by.
#[derive(Debug)]
pub(super) struct Turns {
    turns: Semaphore,
    steer: Option<Steer>,
    /// When the first request that carries something began.
    first: OnceLock<Duration>,
}

/// What is seen of requests until the look ends.
#[derive(Debug)]
struct Steer {
    /// Bytes that passed, and requests that were done.
    bytes: AtomicU64,
    done: AtomicU64,
    packets: Packets,
    /// Fewer may be under way at first than later: what is carried then says nothing about the number.
    is_planned: bool,
    /// Somebody waited for a turn.
    is_short: AtomicBool,
    /// When the look ends, in nanoseconds.
    ends: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    steering: Steering,
    look: Look,
    /// Turns that there are, and those of them that end with the requests that have them.
    turns: usize,
    owed: usize,
}

impl Turns {
    /// For so many requests at a time, for good.
    pub fn fixed(requests: usize) -> Self {
        Self { turns: Semaphore::new(of(requests)), steer: None, first: OnceLock::new() }
    }

    /// For as many as carry the most, from so many on, which may be what a plan says; one request takes up to `largest` turns, and up to
    /// `heaviest` over new connections.
    pub fn steered(
        (requests, is_planned): (usize, bool),
        ((largest, heaviest), most): ((u32, u32), usize),
        now: Duration,
        packets: Packets,
    ) -> Self {
        let least = (largest as usize * ROOM).max(heaviest as usize).div_ceil(TURNS).min(requests);
        let turns = of(requests);
        let steering = Steering::new(requests, (least, most));
        let steering = if is_planned { steering.planned() } else { steering };
        let look = Look::new(now, packets());
        let state = State { steering, look, turns, owed: 0 };
        let steer = Steer {
            bytes: AtomicU64::new(0),
            done: AtomicU64::new(0),
            packets,
            is_planned,
            is_short: AtomicBool::new(false),
            ends: AtomicU64::new(nanos(now + Steering::look(Duration::ZERO))),
            state: Mutex::new(state),
        };
        Self { turns: Semaphore::new(turns), steer: Some(steer), first: OnceLock::new() }
    }

    /// Waits for so many turns; `None` where there are to be none any more.
    pub async fn take(&self, turns: u32) -> Option<SemaphorePermit<'_>> {
        if let Ok(taken) = self.turns.try_acquire_many(turns) {
            return Some(taken);
        }
        if let Some(steer) = &self.steer {
            steer.is_short.store(true, Ordering::Relaxed);
        }
        self.turns.acquire_many(turns).await.ok()
    }

    /// So many turns where nobody has to wait for them.
    pub fn try_take(&self, turns: u32) -> Option<SemaphorePermit<'_>> {
        self.turns.try_acquire_many(turns).ok()
    }

    /// Turns that nobody has.
    pub fn spare(&self) -> usize {
        self.turns.available_permits()
    }

    /// Bytes of a body passed.
    pub fn passed(&self, bytes: u64, now: impl FnOnce() -> Duration) {
        if let Some(steer) = &self.steer {
            steer.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.look(steer, now());
        }
    }

    /// Something that was asked for is done: what failed carries nothing.
    pub fn done(&self) {
        if let Some(steer) = &self.steer {
            steer.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether connections have carried for too short a time to be like those that a plan is of.
    pub fn are_new(&self, now: Duration) -> bool {
        self.first.get().is_none_or(|first| now.saturating_sub(*first) < NEW)
    }

    /// A request begins with so many turns, which may carry something.
    pub fn begin(&self, turns: &SemaphorePermit<'_>, carries: bool, now: Duration) {
        if carries {
            self.first.get_or_init(|| now);
        }
        if let Some(steer) = &self.steer {
            steer.state().look.begin(turns.num_permits() as u64, now);
        }
    }

    /// A request that began then gives its turns back.
    pub fn give_back(&self, mut turns: SemaphorePermit<'_>, began: Duration, now: Duration) {
        let Some(steer) = &self.steer else { return };
        let mut state = steer.state();
        state.look.end(turns.num_permits() as u64, began, now);
        let owed = state.owed.min(turns.num_permits());
        state.owed -= owed;
        drop(state);
        if let Some(over) = turns.split(owed) {
            over.forget();
        }
        drop(turns);
        self.look(steer, now);
    }

    /// At the end of a look there may be more turns, or fewer.
    fn look(&self, steer: &Steer, now: Duration) {
        if nanos(now) < steer.ends.load(Ordering::Relaxed) {
            return;
        }
        let packets = (steer.packets)();
        // Whoever has it ends the look, or what ended comes with the next.
        let Ok(mut state) = steer.state.try_lock() else { return };
        if nanos(now) < steer.ends.load(Ordering::Relaxed) {
            return;
        }
        let [bytes, done] = [&steer.bytes, &steer.done].map(|count| count.swap(0, Ordering::Relaxed));
        let turns = state.turns;
        let was_new = steer.is_planned && self.are_new(state.look.began());
        let Looked { carried, overruns, latency } = state.look.end_look(now, turns, (bytes, done), packets);
        // As many may ask as there are turns for: then nobody waits, and nearly all of them are taken.
        let is_full = self.turns.available_permits() * 8 <= state.turns;
        let is_busy = steer.is_short.swap(false, Ordering::Relaxed) || is_full;
        let requests = if is_busy && !was_new {
            state.steering.looked(carried, overruns)
        } else {
            state.steering.idled()
        };
        let wanted = of(requests);
        if wanted >= state.turns {
            let more = wanted - state.turns;
            let paid = state.owed.min(more);
            state.owed -= paid;
            self.turns.add_permits(more - paid);
        } else {
            let fewer = state.turns - wanted;
            state.owed += fewer - self.turns.forget_permits(fewer);
        }
        if wanted != state.turns {
            tracing::debug!(requests, "requests at a time");
        }
        state.turns = wanted;
        steer.ends.store(nanos(now + Steering::look(latency)), Ordering::Relaxed);
    }
}

impl Steer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns of so many requests.
pub(super) fn of(requests: usize) -> usize {
    requests.clamp(1, Semaphore::MAX_PERMITS / TURNS) * TURNS
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When more requests are tried than there are at first, where those that are under way carry all the time.
    fn first_try(is_planned: bool) -> Option<Duration> {
        let turns = Turns::steered((8, is_planned), ((64, 64), 256), Duration::ZERO, || (0, 0));
        let held = turns.try_take(8 * 64)?;
        turns.begin(&held, true, Duration::ZERO);
        (0..100).map(|n| Duration::from_millis(50) * n).find(|now| {
            turns.passed(1 << 20, || *now);
            turns.spare() > 0
        })
    }

    #[test]
    fn what_new_connections_carry_says_nothing_about_a_plan() {
        // Where none of them ends a look takes 1.2 s; one that began in the first second does not count.
        assert!(first_try(false).unwrap() < Duration::from_secs(2));
        let planned = first_try(true).unwrap();
        assert!(planned > Duration::from_secs(2) && planned < Duration::from_secs(5), "{planned:?}");
    }

    #[test]
    fn there_are_always_turns_for_the_heaviest() {
        // Five of the largest would be eight requests' turns.
        let turns = Turns::steered((64, true), ((100, 1024), 256), Duration::ZERO, || (0, 0));
        let steer = turns.steer.as_ref().unwrap();
        let mut steering = steer.state().steering.clone();
        // Fewer carry as much, whatever is tried.
        let least = (0..500).map(|_| steering.looked(1e6, false)).min().unwrap();
        assert_eq!(least, 16);
    }
}
