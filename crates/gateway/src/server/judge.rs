//! Looks at every connection from outside, once a tick, and tells those that wait too long for their clients.
//!
//! While requests wait for memory it looks more often. Then a client that holds memory and moves nothing costs others
//! something: connections that are *stalled* lose their requests, as many as the waiting requests need and no more,
//! those of the tenants that hold most first. No tenant loses any to one that holds more.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tradewind_core::{Demand, Window};

use super::Shared;
use super::watch::{Command, Wait, Watch, WhenIdle};
use crate::config::Limits;

/// The bytes that a client must move in the slow client's time while others wait for its memory: about as many as its
/// request holds.
const PRESSED_BYTES: u64 = 1 << 20;

/// A connection that holds memory and did not move the slow client's bytes in this time is stalled.
const MAX_STALL_TIME: Duration = Duration::from_secs(1);

/// A request that has waited this long for memory is in need: stalled connections lose theirs.
const MAX_WAIT_TIME: Duration = Duration::from_millis(500);

/// The longest time between passes while requests wait for memory, or little is free.
const MAX_PRESSED_TICK: Duration = Duration::from_millis(250);

/// A connection that has waited this long for its next request, or for the rest of a head, gives up its buffers.
const PARK_TIME: Duration = Duration::from_secs(2);

/// The times that follow from the limits: shorter ones have shorter ticks.
#[derive(Debug, Clone, Copy)]
struct Times {
    tick: Duration,
    pressed_tick: Duration,
    stall: Duration,
    wait: Duration,
}

impl Times {
    fn new(limits: &Limits) -> Self {
        let shortest = limits.header_time.min(limits.idle_time).min(limits.slow_client_time);
        let tick = (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        Self {
            tick,
            pressed_tick: tick.min(MAX_PRESSED_TICK),
            stall: MAX_STALL_TIME.min(limits.slow_client_time),
            wait: MAX_WAIT_TIME.min(limits.slow_client_time),
        }
    }
}

/// Judges until it is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let times = Times::new(&shared.config.limits);
    let mut judge = Judge { notes: HashMap::new(), next_pass: Duration::ZERO };
    loop {
        let now = shared.clock.now();
        judge.look(&shared, now, times);
        shared.clock.sleep_until(now + times.pressed_tick).await;
    }
}

#[derive(Debug)]
struct Judge {
    notes: HashMap<u64, Notes>,
    next_pass: Duration,
}

impl Judge {
    fn look(&mut self, shared: &Shared, now: Duration, times: Times) {
        let budget = &shared.budget;
        let demands = budget.demands(now, Duration::ZERO);
        let is_scarce = budget.free() < budget.capacity() / 4;
        if now < self.next_pass && demands.is_empty() && !is_scarce {
            return;
        }
        self.next_pass = now + times.tick;
        keep_descriptors(shared, now);
        let mut seen = HashMap::new();
        let mut holders = Vec::new();
        for (id, watch) in shared.connections.all() {
            let mut note = self.notes.remove(&id).unwrap_or(Notes::new(now));
            let window = if demands.is_empty() { None } else { watch.window() };
            let is_wanted = window.as_ref().is_some_and(|window| is_wanted(window, &demands));
            if let Some(command) = note.judge(&watch, now, &shared.config.limits, is_wanted) {
                watch.tell(command);
            }
            watch.set_waits_since(note.since);
            if note.wait == Wait::Write {
                watch.refresh_untaken();
            }
            let may_park = matches!(note.wait, Wait::Request | Wait::Head);
            if may_park && !note.was_asked_to_park && note.waited(now) >= PARK_TIME {
                note.was_asked_to_park = true;
                watch.ask(WhenIdle::Park);
            }
            if let Some(window) = window {
                holders.push(Holder { stalled: note.stalled(now), watch, window });
            }
            seen.insert(id, note);
        }
        self.notes = seen;
        let is_in_need = |demand: &Demand| demand.waited >= times.wait;
        let in_need: Vec<Demand> = demands.into_iter().filter(is_in_need).collect();
        for holder in choose(holders, &in_need, times.stall) {
            shared.metrics.drop_stalled_client();
            let is_body = holder.watch.waits_for() == Wait::Body;
            holder.watch.tell(if is_body { Command::FailBody } else { Command::Close });
        }
    }
}

/// Closes connections while files are open that are kept for the store: it has more than it had when the connections
/// were accepted.
fn keep_descriptors(shared: &Shared, now: Duration) {
    let connections = &shared.connections;
    let over = shared.descriptors.count_open(connections.count());
    while over > connections.leaving() && !connections.is_making_room() && connections.make_room_for_any(now)
    {
    }
}

/// Returns true if a tenant that holds no more than this window's tenant waits for memory.
fn is_wanted(window: &Window, demands: &[Demand]) -> bool {
    let held = window.account().tenant_held();
    demands.iter().any(|demand| demand.tenant_held <= held)
}

/// A connection that holds memory.
struct Holder {
    watch: Arc<Watch>,
    window: Arc<Window>,
    /// The time without progress of the client; zero while the store is waited for.
    stalled: Duration,
}

/// Selects the stalled holders that lose their memory: as many as the requests in need require.
fn choose(holders: Vec<Holder>, in_need: &[Demand], stall: Duration) -> Vec<Holder> {
    if in_need.is_empty() {
        return Vec::new();
    }
    let needed_of = |holder: &Holder| -> usize {
        let held = holder.window.account().tenant_held();
        in_need.iter().filter(|demand| demand.tenant_held <= held).map(|demand| demand.bytes).sum()
    };
    let (going, mut stalled): (Vec<Holder>, Vec<Holder>) =
        holders.into_iter().partition(|holder| holder.watch.command() >= Command::FailBody);
    // These were told before, and their memory is on its way back.
    let mut freed: usize = going.iter().map(|holder| holder.window.held()).sum();
    stalled.retain(|holder| holder.stalled >= stall);
    stalled.sort_by_cached_key(|holder| {
        let account = holder.window.account();
        Reverse((account.tenant_held(), account.held(), holder.stalled))
    });
    stalled.retain(|holder| {
        let is_needed = freed < needed_of(holder);
        if is_needed {
            freed += holder.window.held();
        }
        is_needed
    });
    stalled
}

/// The judge's notes on one connection.
#[derive(Debug, Clone, Copy)]
struct Notes {
    wait: Wait,
    requests: u32,
    moved: u64,
    since: Duration,
    /// The end of the time in which the client must move more because others wait for its memory. A pause shorter than
    /// half the slow client's time does not end it.
    pressed_until: Duration,
    progress: Progress,
    /// It was told already, in this wait for a request.
    was_asked_to_park: bool,
}

/// The last time that a client was seen to have moved the slow client's bytes.
#[derive(Debug, Clone, Copy)]
struct Progress {
    moved: u64,
    at: Duration,
}

impl Notes {
    const fn new(now: Duration) -> Self {
        Self {
            wait: Wait::Nothing,
            requests: 0,
            moved: 0,
            since: now,
            pressed_until: Duration::ZERO,
            progress: Progress { moved: 0, at: now },
            was_asked_to_park: false,
        }
    }

    fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    fn stalled(&self, now: Duration) -> Duration {
        now.saturating_sub(self.progress.at)
    }

    /// Updates the notes at a tick and returns the command that the connection must get. Only a client that was slow for
    /// the whole of its time gets one: a moment's pressure is not enough.
    fn judge(&mut self, watch: &Watch, now: Duration, limits: &Limits, is_wanted: bool) -> Option<Command> {
        let (wait, requests, moved) = (watch.waits_for(), watch.requests(), watch.moved());
        let is_on_client = matches!(wait, Wait::Body | Wait::Write);
        let is_new = requests != self.requests;
        // What went to the kernel counts until the connection is blocked.
        self.moved = self.moved.min(moved);
        self.progress.moved = self.progress.moved.min(moved);
        if is_new || !is_on_client || moved - self.progress.moved >= limits.slow_client_bytes {
            self.progress = Progress { moved, at: now };
        }
        if is_wanted {
            self.pressed_until = now + limits.slow_client_time / 2;
        }
        let is_pressed = now < self.pressed_until;
        let enough =
            if is_pressed { limits.slow_client_bytes.max(PRESSED_BYTES) } else { limits.slow_client_bytes };
        let has_progress = is_on_client && moved - self.moved >= enough;
        if wait != self.wait || is_new || has_progress || wait == Wait::Nothing {
            *self = Self { wait, requests, moved, since: now, was_asked_to_park: false, ..*self };
            return None;
        }
        let patience = match wait {
            Wait::Nothing => return None,
            Wait::Request => limits.idle_time,
            Wait::Head => limits.header_time,
            Wait::Body | Wait::Write => limits.slow_client_time,
            // A courtesy, no more than that: whatever still comes does not prolong it.
            Wait::End => limits.slow_client_time.min(Duration::from_secs(2)),
        };
        if self.waited(now) < patience {
            return None;
        }
        Some(match wait {
            Wait::Request => Command::Finish,
            // First the operation may answer; if that does not help, the connection goes.
            Wait::Body if watch.command() < Command::FailBody => {
                self.since = now;
                Command::FailBody
            }
            _ => Command::Close,
        })
    }
}

#[cfg(test)]
mod tests;
