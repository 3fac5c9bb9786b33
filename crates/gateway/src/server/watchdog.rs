//! Watchdog of the connections: checks every connection once a tick and closes those that have waited too long for
//! their clients.
//!
//! It ticks faster while requests wait for memory, because then a client that holds memory without progress delays
//! others. The requests of such *stalled* connections are aborted: only as many as the waiting requests need, and those
//! of the tenants with most memory first. No tenant loses memory to one that holds more.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tradewind_core::{Demand, Window};

use super::GatewayState;
use super::connection_state::{Command, ConnectionState, IdleAction, WaitingFor};
use crate::config::Limits;

/// The bytes that a client must transfer within `slow_client_time` while others wait for its memory: about as many as
/// its request holds.
const MIN_PRESSURE_BYTES: u64 = 1 << 20;

/// A connection that holds memory and has not transferred `slow_client_bytes` within this time is stalled.
const MAX_STALL_TIME: Duration = Duration::from_secs(1);

/// Once a request has waited this long for memory, requests of stalled connections are aborted for it.
const MAX_WAIT_TIME: Duration = Duration::from_millis(500);

/// The longest time between passes while requests wait for memory or little of it is free.
const MAX_PRESSURE_TICK: Duration = Duration::from_millis(250);

/// A connection that has waited this long for its next request, or for the rest of a head, is parked.
const PARK_TIME: Duration = Duration::from_secs(2);

/// Intervals derived from the limits: shorter limits give shorter ticks.
#[derive(Debug, Clone, Copy)]
struct Intervals {
    tick: Duration,
    pressed_tick: Duration,
    stall: Duration,
    wait: Duration,
}

impl Intervals {
    fn new(limits: &Limits) -> Self {
        let shortest = limits.header_time.min(limits.idle_time).min(limits.slow_client_time);
        let tick = (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        Self {
            tick,
            pressed_tick: tick.min(MAX_PRESSURE_TICK),
            stall: MAX_STALL_TIME.min(limits.slow_client_time),
            wait: MAX_WAIT_TIME.min(limits.slow_client_time),
        }
    }
}

/// Runs passes until it is dropped.
pub(super) async fn run(shared: Arc<GatewayState>) {
    let times = Intervals::new(&shared.config.limits);
    let mut watchdog = Watchdog { records: HashMap::new(), next_pass: Duration::ZERO };
    loop {
        let now = shared.clock.now();
        watchdog.run_pass(&shared, now, times);
        shared.clock.sleep_until(now + times.pressed_tick).await;
    }
}

#[derive(Debug)]
struct Watchdog {
    records: HashMap<u64, ConnectionRecord>,
    next_pass: Duration,
}

impl Watchdog {
    fn run_pass(&mut self, shared: &GatewayState, now: Duration, times: Intervals) {
        let budget = &shared.budget;
        let demands = budget.demands(now, Duration::ZERO);
        let is_scarce = budget.free() < budget.capacity() / 4;
        if now < self.next_pass && demands.is_empty() && !is_scarce {
            return;
        }
        self.next_pass = now + times.tick;
        enforce_descriptor_limit(shared, now);
        let mut seen = HashMap::new();
        let mut holders = Vec::new();
        for (id, watch) in shared.connections.all() {
            let mut record = self.records.remove(&id).unwrap_or(ConnectionRecord::new(now));
            let window = if demands.is_empty() { None } else { watch.window() };
            let is_wanted = window.as_ref().is_some_and(|window| is_wanted(window, &demands));
            if let Some(command) = record.update(&watch, now, &shared.config.limits, is_wanted) {
                watch.raise_command(command);
            }
            watch.set_waits_since(record.since);
            if record.wait == WaitingFor::Write {
                watch.refresh_unacked_bytes();
            }
            let may_park = matches!(record.wait, WaitingFor::Request | WaitingFor::Head);
            if may_park && !record.is_park_requested && record.waited(now) >= PARK_TIME {
                record.is_park_requested = true;
                watch.request_idle_action(IdleAction::Park);
            }
            if let Some(window) = window {
                holders.push(MemoryHolder { stalled_for: record.stalled_for(now), watch, window });
            }
            seen.insert(id, record);
        }
        self.records = seen;
        let is_in_need = |demand: &Demand| demand.waited >= times.wait;
        let in_need: Vec<Demand> = demands.into_iter().filter(is_in_need).collect();
        for holder in select_stalled(holders, &in_need, times.stall) {
            shared.metrics.count_stalled_client();
            let is_body = holder.watch.waits_for() == WaitingFor::Body;
            holder.watch.raise_command(if is_body { Command::FailBody } else { Command::Close });
        }
    }
}

/// Evicts connections while they take descriptors that are reserved for the store. The store may have opened more files
/// since the connections were accepted.
fn enforce_descriptor_limit(shared: &GatewayState, now: Duration) {
    let connections = &shared.connections;
    let over = shared.descriptors.count_excess_connections(connections.count());
    while over > connections.evicting_count()
        && !connections.is_eviction_limit_reached()
        && connections.evict_any(now)
    {}
}

/// Returns true if a tenant that holds no more memory than this window's tenant waits for memory.
fn is_wanted(window: &Window, demands: &[Demand]) -> bool {
    let held = window.account().tenant_held();
    demands.iter().any(|demand| demand.tenant_held <= held)
}

/// A connection that holds memory.
struct MemoryHolder {
    watch: Arc<ConnectionState>,
    window: Arc<Window>,
    /// Time without progress of the client; zero while the connection waits for the store.
    stalled_for: Duration,
}

/// Selects the stalled holders to abort: as many as the requests in `in_need` require.
fn select_stalled(holders: Vec<MemoryHolder>, in_need: &[Demand], stall: Duration) -> Vec<MemoryHolder> {
    if in_need.is_empty() {
        return Vec::new();
    }
    let needed_from = |holder: &MemoryHolder| -> usize {
        let held = holder.window.account().tenant_held();
        in_need.iter().filter(|demand| demand.tenant_held <= held).map(|demand| demand.bytes).sum()
    };
    let (going, mut stalled): (Vec<MemoryHolder>, Vec<MemoryHolder>) =
        holders.into_iter().partition(|holder| holder.watch.command() >= Command::FailBody);
    // These are already closing, so their memory will be free soon.
    let mut freed: usize = going.iter().map(|holder| holder.window.held()).sum();
    stalled.retain(|holder| holder.stalled_for >= stall);
    stalled.sort_by_cached_key(|holder| {
        let account = holder.window.account();
        Reverse((account.tenant_held(), account.held(), holder.stalled_for))
    });
    stalled.retain(|holder| {
        let is_needed = freed < needed_from(holder);
        if is_needed {
            freed += holder.window.held();
        }
        is_needed
    });
    stalled
}

/// The watchdog's record of one connection.
#[derive(Debug, Clone, Copy)]
struct ConnectionRecord {
    wait: WaitingFor,
    requests: u32,
    moved: u64,
    since: Duration,
    /// Until then the client must transfer more, because others wait for its memory. Gaps in the demand shorter than
    /// half of `slow_client_time` do not end this period.
    pressed_until: Duration,
    progress: Progress,
    /// The connection was already asked to park during this wait.
    is_park_requested: bool,
}

/// The byte count and time at which a client last had transferred `slow_client_bytes`.
#[derive(Debug, Clone, Copy)]
struct Progress {
    moved: u64,
    at: Duration,
}

impl ConnectionRecord {
    const fn new(now: Duration) -> Self {
        Self {
            wait: WaitingFor::Nothing,
            requests: 0,
            moved: 0,
            since: now,
            pressed_until: Duration::ZERO,
            progress: Progress { moved: 0, at: now },
            is_park_requested: false,
        }
    }

    fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    fn stalled_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.progress.at)
    }

    /// Updates the record at a tick and returns the command for the connection, if any. A client must have been slow
    /// for the whole `slow_client_time`; short memory pressure is not enough.
    fn update(
        &mut self,
        watch: &ConnectionState,
        now: Duration,
        limits: &Limits,
        is_wanted: bool,
    ) -> Option<Command> {
        let (wait, requests, moved) = (watch.waits_for(), watch.requests(), watch.transferred_bytes());
        let is_on_client = matches!(wait, WaitingFor::Body | WaitingFor::Write);
        let is_new = requests != self.requests;
        // Bytes in the kernel's send buffer count only until the connection blocks, so `moved` may have decreased.
        self.moved = self.moved.min(moved);
        self.progress.moved = self.progress.moved.min(moved);
        if is_new || !is_on_client || moved - self.progress.moved >= limits.slow_client_bytes {
            self.progress = Progress { moved, at: now };
        }
        if is_wanted {
            self.pressed_until = now + limits.slow_client_time / 2;
        }
        let is_under_pressure = now < self.pressed_until;
        let enough = if is_under_pressure {
            limits.slow_client_bytes.max(MIN_PRESSURE_BYTES)
        } else {
            limits.slow_client_bytes
        };
        let has_progress = is_on_client && moved - self.moved >= enough;
        if wait != self.wait || is_new || has_progress || wait == WaitingFor::Nothing {
            *self = Self { wait, requests, moved, since: now, is_park_requested: false, ..*self };
            return None;
        }
        let timeout = match wait {
            WaitingFor::Nothing => return None,
            WaitingFor::Request => limits.idle_time,
            WaitingFor::Head => limits.header_time,
            WaitingFor::Body | WaitingFor::Write => limits.slow_client_time,
            // Further bytes do not extend the lingering close.
            WaitingFor::End => limits.slow_client_time.min(Duration::from_secs(2)),
        };
        if self.waited(now) < timeout {
            return None;
        }
        Some(match wait {
            WaitingFor::Request => Command::Finish,
            // First the operation may respond with an error. If the client is still slow after that, the connection is
            // closed.
            WaitingFor::Body if watch.command() < Command::FailBody => {
                self.since = now;
                Command::FailBody
            }
            _ => Command::Close,
        })
    }
}

#[cfg(test)]
mod tests;
