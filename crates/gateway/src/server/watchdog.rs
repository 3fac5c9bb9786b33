//! Watchdog of the connections: each pass checks every connection and closes those that have waited too long for their
//! clients.
//!
//! Passes are more frequent while requests wait for memory, because a client that holds memory but transfers little
//! then delays other clients. The requests of such *stalled* connections are aborted: only as many as the waiting
//! requests need, and those of the tenants with most memory first. No tenant loses memory to a tenant that holds more.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tradewind_core::{Demand, Window};

use super::GatewayState;
use super::connection_state::{Command, ConnectionState, IdleAction, WaitingFor};
use crate::config::Limits;

/// The bytes that a client must transfer within `slow_client_time` under memory pressure, that is, while other clients
/// wait for its memory: about as many as its request holds.
const MIN_PRESSURE_BYTES: u64 = 1 << 20;

/// A connection that holds memory and has not transferred `slow_client_bytes` within this time is stalled.
const MAX_STALL_TIME: Duration = Duration::from_secs(1);

/// Once a request has waited this long for memory, requests of stalled connections are aborted for it.
const MAX_WAIT_TIME: Duration = Duration::from_millis(500);

/// The maximum interval between passes while requests wait for memory or little of it is free.
const MAX_PRESSURE_PASS_INTERVAL: Duration = Duration::from_millis(250);

/// A connection that has waited this long for its next request, or for the rest of a head, is parked (see
/// `connection`).
const PARK_TIME: Duration = Duration::from_secs(2);

/// Intervals derived from the limits: shorter limits give shorter intervals.
#[derive(Debug, Clone, Copy)]
struct Intervals {
    /// The interval between passes.
    pass_interval: Duration,
    /// The interval between passes under memory pressure.
    pressure_pass_interval: Duration,
    /// See [`MAX_STALL_TIME`].
    max_stall: Duration,
    /// See [`MAX_WAIT_TIME`].
    max_wait: Duration,
}

impl Intervals {
    fn new(limits: &Limits) -> Self {
        let shortest = limits.header_time.min(limits.idle_time).min(limits.slow_client_time);
        let pass_interval = (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        Self {
            pass_interval,
            pressure_pass_interval: pass_interval.min(MAX_PRESSURE_PASS_INTERVAL),
            max_stall: MAX_STALL_TIME.min(limits.slow_client_time),
            max_wait: MAX_WAIT_TIME.min(limits.slow_client_time),
        }
    }
}

/// Runs passes until the future is dropped.
pub(super) async fn run(shared: Arc<GatewayState>) {
    let intervals = Intervals::new(&shared.config.limits);
    let mut watchdog = Watchdog { records: HashMap::new(), next_pass: Duration::ZERO };
    loop {
        let now = shared.clock.now();
        watchdog.run_pass(&shared, now, intervals);
        shared.clock.sleep_until(now + intervals.pressure_pass_interval).await;
    }
}

#[derive(Debug)]
struct Watchdog {
    records: HashMap<u64, ConnectionRecord>,
    next_pass: Duration,
}

impl Watchdog {
    /// Checks all connections, if a pass is due or there is memory pressure.
    fn run_pass(&mut self, shared: &GatewayState, now: Duration, intervals: Intervals) {
        let budget = &shared.budget;
        let demands = budget.demands(now, Duration::ZERO);
        let is_scarce = budget.free() < budget.capacity() / 4;
        if now < self.next_pass && demands.is_empty() && !is_scarce {
            return;
        }
        self.next_pass = now + intervals.pass_interval;
        enforce_descriptor_limit(shared, now);
        let mut records = HashMap::new();
        let mut holders = Vec::new();
        for (id, connection) in shared.connections.all() {
            let mut record = self.records.remove(&id).unwrap_or(ConnectionRecord::new(now));
            let window = if demands.is_empty() { None } else { connection.window() };
            let is_memory_needed = window.as_ref().is_some_and(|window| is_memory_needed(window, &demands));
            if let Some(command) = record.update(&connection, now, &shared.config.limits, is_memory_needed) {
                connection.raise_command(command);
            }
            connection.set_waits_since(record.since);
            if record.wait == WaitingFor::Write {
                connection.refresh_unacked_bytes();
            }
            let may_park = matches!(record.wait, WaitingFor::Request | WaitingFor::Head);
            if may_park && !record.is_park_requested && record.waited(now) >= PARK_TIME {
                record.is_park_requested = true;
                connection.request_idle_action(IdleAction::Park);
            }
            if let Some(window) = window {
                holders.push(MemoryHolder { stalled_for: record.stalled_for(now), connection, window });
            }
            records.insert(id, record);
        }
        self.records = records;
        let is_urgent = |demand: &Demand| demand.waited >= intervals.max_wait;
        let urgent: Vec<Demand> = demands.into_iter().filter(is_urgent).collect();
        for holder in select_stalled(holders, &urgent, intervals.max_stall) {
            shared.metrics.count_stalled_client();
            let is_body = holder.connection.waits_for() == WaitingFor::Body;
            holder.connection.raise_command(if is_body { Command::FailBody } else { Command::Close });
        }
    }
}

/// Evicts connections while they use descriptors that are reserved for the store, which may have opened more files
/// since the connections were accepted.
fn enforce_descriptor_limit(shared: &GatewayState, now: Duration) {
    let connections = &shared.connections;
    let excess = shared.descriptors.refresh(connections.count());
    while excess > connections.evicting_count()
        && !connections.is_eviction_limit_reached()
        && connections.evict_any(now)
    {}
}

/// Returns true if requests of tenants that hold no more than the window's tenant wait for memory. Only for those may
/// the window's memory be taken.
fn is_memory_needed(window: &Window, demands: &[Demand]) -> bool {
    let held = window.account().tenant_held();
    demands.iter().any(|demand| demand.tenant_held <= held)
}

/// A connection that holds memory.
struct MemoryHolder {
    connection: Arc<ConnectionState>,
    window: Arc<Window>,
    /// Time since the connection's last [`StallMark`]; zero while it waits for the store.
    stalled_for: Duration,
}

/// Selects the stalled holders to abort: as many as the `urgent` demands require. A holder is stalled if its last
/// [`StallMark`] is at least `max_stall` ago.
fn select_stalled(holders: Vec<MemoryHolder>, urgent: &[Demand], max_stall: Duration) -> Vec<MemoryHolder> {
    if urgent.is_empty() {
        return Vec::new();
    }
    // Demands of tenants that hold more than the holder's tenant do not count.
    let needed_from = |holder: &MemoryHolder| -> usize {
        let held = holder.window.account().tenant_held();
        urgent.iter().filter(|demand| demand.tenant_held <= held).map(|demand| demand.bytes).sum()
    };
    let (closing, mut stalled): (Vec<MemoryHolder>, Vec<MemoryHolder>) =
        holders.into_iter().partition(|holder| holder.connection.command() >= Command::FailBody);
    // The memory of closing connections is free soon.
    let mut freed: usize = closing.iter().map(|holder| holder.window.held()).sum();
    stalled.retain(|holder| holder.stalled_for >= max_stall);
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

/// The watchdog's record of one connection. Two timers: `since` for slow and idle clients, `stall` for stalled ones.
#[derive(Debug, Clone, Copy)]
struct ConnectionRecord {
    wait: WaitingFor,
    requests: u32,
    /// The byte count when the current wait began, or when the client was last fast enough.
    transferred: u64,
    /// The time of `transferred`, or of a later [`Command::FailBody`].
    since: Duration,
    /// End of the memory pressure, during which the client must transfer [`MIN_PRESSURE_BYTES`]. The pressure lasts for
    /// half of `slow_client_time` after the last pass with demand for its memory, so that short gaps in the demand do
    /// not end it.
    pressure_until: Duration,
    stall: StallMark,
    /// The connection already received [`IdleAction::Park`] during this wait.
    is_park_requested: bool,
}

/// The byte count and the time when the client had last transferred another `slow_client_bytes`. While the connection
/// does not wait for the client, each pass sets it.
#[derive(Debug, Clone, Copy)]
struct StallMark {
    transferred: u64,
    at: Duration,
}

impl ConnectionRecord {
    const fn new(now: Duration) -> Self {
        Self {
            wait: WaitingFor::Nothing,
            requests: 0,
            transferred: 0,
            since: now,
            pressure_until: Duration::ZERO,
            stall: StallMark { transferred: 0, at: now },
            is_park_requested: false,
        }
    }

    fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    fn stalled_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.stall.at)
    }

    /// Updates the record in a pass and returns the command for the connection, if any. A client is too slow only if it
    /// was slow for the whole `slow_client_time`: memory pressure for a shorter time does not close its connection.
    fn update(
        &mut self,
        connection: &ConnectionState,
        now: Duration,
        limits: &Limits,
        is_memory_needed: bool,
    ) -> Option<Command> {
        let (wait, requests) = (connection.waits_for(), connection.requests());
        let transferred = connection.transferred_bytes();
        let waits_for_client = matches!(wait, WaitingFor::Body | WaitingFor::Write);
        let is_new_request = requests != self.requests;
        // Bytes in the kernel's send buffer count only until the connection blocks, so the count may have decreased.
        self.transferred = self.transferred.min(transferred);
        self.stall.transferred = self.stall.transferred.min(transferred);
        let bytes_since_mark = transferred - self.stall.transferred;
        if is_new_request || !waits_for_client || bytes_since_mark >= limits.slow_client_bytes {
            self.stall = StallMark { transferred, at: now };
        }
        if is_memory_needed {
            self.pressure_until = now + limits.slow_client_time / 2;
        }
        let is_under_pressure = now < self.pressure_until;
        let required_bytes = if is_under_pressure {
            limits.slow_client_bytes.max(MIN_PRESSURE_BYTES)
        } else {
            limits.slow_client_bytes
        };
        let is_fast_enough = waits_for_client && transferred - self.transferred >= required_bytes;
        if wait != self.wait || is_new_request || is_fast_enough || wait == WaitingFor::Nothing {
            *self = Self { wait, requests, transferred, since: now, is_park_requested: false, ..*self };
            return None;
        }
        let timeout = match wait {
            WaitingFor::Nothing => return None,
            WaitingFor::Request => limits.idle_time,
            WaitingFor::Head => limits.header_time,
            WaitingFor::Body | WaitingFor::Write => limits.slow_client_time,
            // Further bytes do not extend the lingering close.
            WaitingFor::Eof => limits.slow_client_time.min(Duration::from_secs(2)),
        };
        if self.waited(now) < timeout {
            return None;
        }
        Some(match wait {
            WaitingFor::Request => Command::Finish,
            // First the operation may respond with an error. If the client is still slow after another timeout, the
            // connection is closed.
            WaitingFor::Body if connection.command() < Command::FailBody => {
                self.since = now;
                Command::FailBody
            }
            _ => Command::Close,
        })
    }
}

#[cfg(test)]
mod tests;
