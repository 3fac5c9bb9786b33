//! The signs of life of a service: when bytes were last received from it, and whether a probe has failed since.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tradewind_core::Clock;
use tradewind_core::traffic::Traffic;

/// Bytes that must arrive to count as a sign of life: less than the head of a response. A service that sends a byte a second
/// gives none.
const MIN_SIGN_BYTES: u64 = 64;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct SignsOfLife {
    traffic: Arc<Traffic>,
    clock: Arc<dyn Clock>,
    state: Mutex<LifeState>,
    /// Notified by each sign of life that is noted.
    noticed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct LifeState {
    /// The count of received bytes at the last sign of life.
    received_bytes: u64,
    /// The time at which it was noticed.
    last: Duration,
    /// True from a failed probe until the next sign of life.
    is_unresponsive: bool,
}

/// The state of the service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// The time of the last sign of life.
    pub last: Duration,
    /// True from a failed probe until the next sign of life.
    pub is_unresponsive: bool,
}

impl SignsOfLife {
    pub fn new(traffic: Arc<Traffic>, clock: Arc<dyn Clock>) -> Self {
        let state = LifeState {
            received_bytes: traffic.counts().received_bytes,
            last: clock.now(),
            is_unresponsive: false,
        };
        Self { traffic, clock, state: Mutex::new(state), noticed: Notify::new() }
    }

    /// The state, with what was received until now.
    pub fn observe(&self) -> Observation {
        let received_bytes = self.traffic.counts().received_bytes;
        let mut state = self.state.lock();
        if received_bytes.saturating_sub(state.received_bytes) >= MIN_SIGN_BYTES {
            state.received_bytes = received_bytes;
            self.revive(&mut state);
        }
        Observation { last: state.last, is_unresponsive: state.is_unresponsive }
    }

    /// Waits for the next response that is noted.
    pub fn noticed(&self) -> impl Future<Output = ()> + '_ {
        self.noticed.notified()
    }

    /// Notes a response to a probe.
    pub fn note_response(&self) {
        self.revive(&mut self.state.lock());
        self.noticed.notify_waiters();
    }

    /// Notes that no sign of life followed a probe in time.
    pub fn note_silence(&self) {
        if !std::mem::replace(&mut self.state.lock().is_unresponsive, true) {
            tracing::warn!("a service does not respond; its requests fail until it does");
        }
    }

    fn revive(&self, state: &mut LifeState) {
        state.last = self.clock.now();
        if std::mem::take(&mut state.is_unresponsive) {
            tracing::info!("the service responds again");
        }
    }
}
