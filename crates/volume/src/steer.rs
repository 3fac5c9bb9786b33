//! The turns of a carrier, which follow what is carried: see [`model::steering`](tradewind_model::steering).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tradewind_model::steering::{REQUEST, Steering};

/// Turns of one request, where all are alike.
pub(super) const TURNS: usize = 64;

/// There are turns for so many of the largest requests always: some that wait for others while they have theirs, as those of a search
/// do for whoever writes, and one that the others wait for.
pub const ROOM: usize = 5;

/// Packets that were sent since the machine began, and those that were sent again.
pub type Packets = fn() -> (u64, u64);

/// A queue overruns where one packet in so many is sent again, and so many are, and where such a part of the requests stands still.
const ONE_IN: u64 = 33;
const FEWEST_AGAIN: u64 = 10;
const STANDING: f64 = 0.1;

/// Turns, of which there are more or fewer as time goes by.
#[derive(Debug)]
pub(super) struct Turns {
    turns: Semaphore,
    steer: Option<Steer>,
}

/// What is seen of requests until the look ends.
#[derive(Debug)]
struct Steer {
    /// Bytes that passed, and requests that were done.
    bytes: AtomicU64,
    done: AtomicU64,
    /// Those that ended, how many nanoseconds they took, and that times their turns.
    ended: AtomicU64,
    took: AtomicU64,
    took_turns: AtomicU64,
    packets: Packets,
    /// Somebody waited for a turn.
    is_short: AtomicBool,
    /// When the look ends, in nanoseconds.
    ends: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    steering: Steering,
    began: Duration,
    /// Turns that there are, and those of them that end with the requests that have them.
    turns: usize,
    owed: usize,
    /// Of requests that are under way: their turns, and the nanoseconds at which they began times those.
    held: u64,
    held_since: u128,
    /// Turns times nanoseconds of requests that ended, as far as they lie in the look.
    inside: u128,
    packets: (u64, u64),
}

impl Turns {
    /// For so many requests at a time, for good.
    pub fn fixed(requests: usize) -> Self {
        Self { turns: Semaphore::new(of(requests)), steer: None }
    }

    /// For as many as carry the most; one request takes up to `largest` turns.
    pub fn steered(requests: usize, (largest, most): (u32, usize), now: Duration, packets: Packets) -> Self {
        let least = (largest as usize * ROOM).div_ceil(TURNS).min(requests);
        let turns = of(requests);
        let state = State {
            steering: Steering::new(requests, (least, most)),
            began: now,
            turns,
            owed: 0,
            held: 0,
            held_since: 0,
            inside: 0,
            packets: packets(),
        };
        let steer = Steer {
            bytes: AtomicU64::new(0),
            done: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            took: AtomicU64::new(0),
            took_turns: AtomicU64::new(0),
            packets,
            is_short: AtomicBool::new(false),
            ends: AtomicU64::new(nanos(now + Steering::look(Duration::ZERO))),
            state: Mutex::new(state),
        };
        Self { turns: Semaphore::new(turns), steer: Some(steer) }
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

    /// A request begins with so many turns.
    pub fn begin(&self, turns: &SemaphorePermit<'_>, now: Duration) {
        if let Some(steer) = &self.steer {
            let held = turns.num_permits() as u64;
            let mut state = steer.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.held += held;
            state.held_since += now.as_nanos() * u128::from(held);
        }
    }

    /// A request that began then gives its turns back.
    pub fn give_back(&self, turns: SemaphorePermit<'_>, began: Duration, now: Duration) {
        let Some(steer) = &self.steer else { return };
        let took = nanos(now.saturating_sub(began));
        steer.ended.fetch_add(1, Ordering::Relaxed);
        steer.took.fetch_add(took, Ordering::Relaxed);
        steer.took_turns.fetch_add(took.saturating_mul(turns.num_permits() as u64), Ordering::Relaxed);
        let mut turns = turns;
        let held = turns.num_permits() as u64;
        let mut state = steer.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held -= held;
        state.held_since -= began.as_nanos() * u128::from(held);
        state.inside += now.saturating_sub(began.max(state.began)).as_nanos() * u128::from(held);
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
        // Whoever else is here has seen the same.
        let Ok(mut state) = steer.state.try_lock() else { return };
        if nanos(now) < steer.ends.load(Ordering::Relaxed) {
            return;
        }
        let elapsed = nanos(now.saturating_sub(state.began)).max(1);
        let counts = [&steer.bytes, &steer.done, &steer.ended, &steer.took, &steer.took_turns];
        let [bytes, done, ended, took, took_turns] = counts.map(|count| count.swap(0, Ordering::Relaxed));
        // One of which none ended may still take long.
        let latency = took.checked_div(ended).unwrap_or(u64::MAX / 4);
        let carried = (done as f64).mul_add(REQUEST, bytes as f64) * 1e9;
        // Requests that begin together end together: in a look there are a wave more of them, or fewer. What they carry in the
        // time that they take has no waves (Little 1961), but of those that take longer than the look too few end in it.
        let moving = state.moving(elapsed, latency, now);
        let carried = if 2 * latency <= elapsed {
            carried / took_turns.max(1) as f64 * moving * state.turns as f64
        } else {
            carried / elapsed as f64
        };
        let packets = (steer.packets)();
        let (sent, again) =
            (packets.0.saturating_sub(state.packets.0), packets.1.saturating_sub(state.packets.1));
        state.packets = packets;
        let overruns = again >= FEWEST_AGAIN && again * ONE_IN >= sent && moving < 1.0 - STANDING;
        // As many may ask as there are turns for: then nobody waits, and nearly all of them are taken.
        let is_full = self.turns.available_permits() * 8 <= state.turns;
        let requests = if steer.is_short.swap(false, Ordering::Relaxed) || is_full {
            state.steering.looked(carried, overruns)
        } else {
            state.steering.idled()
        };
        let wanted = of(requests);
        tracing::trace!(requests, carried, latency, elapsed, sent, again, moving, "looked");
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
        (state.turns, state.began, state.inside) = (wanted, now, 0);
        steer.ends.store(nanos(now + Steering::look(Duration::from_nanos(latency))), Ordering::Relaxed);
    }
}

impl State {
    /// The part of a look's turns and time in which as much is carried as by requests that ended in it. Those that are under way for
    /// longer than these took may stand still: they count as if they had carried what is usual in all their time.
    fn moving(&self, elapsed: u64, latency: u64, now: Duration) -> f64 {
        let all = self.turns as u128 * u128::from(elapsed);
        let pending = all.saturating_sub(self.inside) as f64;
        let age = now.as_nanos() as f64 - self.held_since as f64 / self.held.max(1) as f64;
        ((self.inside as f64 + pending * (latency as f64 / age.max(1.0)).min(1.0)) / all.max(1) as f64)
            .min(1.0)
    }
}

/// Turns of so many requests.
pub(super) fn of(requests: usize) -> usize {
    requests.clamp(1, Semaphore::MAX_PERMITS / TURNS) * TURNS
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
