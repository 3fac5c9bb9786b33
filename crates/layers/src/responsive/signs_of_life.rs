//! The signs of life of a service: when bytes were last received from it, and whether a probe has failed since.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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
    seen: Mutex<LifeState>,
}

#[derive(Debug, Clone, Copy)]
struct LifeState {
    /// The count of received bytes at the last sign of life.
    received_bytes: u64,
    /// The time at which it was noticed.
    last: Duration,
    /// The end of the last failed probe, if there was no sign of life since.
    failed: Option<Duration>,
}

/// The state of the service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// The time of the last sign of life.
    pub last: Duration,
    /// True from a failed probe until the next sign of life.
    pub is_unresponsive: bool,
    failed: Option<Duration>,
}

impl Observation {
    /// True if a probe failed at `time` or later, and there was no sign of life since.
    pub fn failed_since(&self, time: Duration) -> bool {
        self.failed.is_some_and(|failed| failed >= time)
    }
}

impl SignsOfLife {
    pub fn new(traffic: Arc<Traffic>, clock: Arc<dyn Clock>) -> Self {
        let seen =
            LifeState { received_bytes: traffic.counts().received_bytes, last: clock.now(), failed: None };
        Self { traffic, clock, seen: Mutex::new(seen) }
    }

    /// The state, with what was received until now.
    pub fn observe(&self) -> Observation {
        let received_bytes = self.traffic.counts().received_bytes;
        let mut seen = self.seen.lock();
        if received_bytes.saturating_sub(seen.received_bytes) >= MIN_SIGN_BYTES {
            seen.received_bytes = received_bytes;
            self.revive(&mut seen);
        }
        Observation { last: seen.last, is_unresponsive: seen.failed.is_some(), failed: seen.failed }
    }

    /// Notes a response to a probe.
    pub fn note_response(&self) {
        self.revive(&mut self.seen.lock());
    }

    /// Notes a failed probe.
    pub fn note_failed_probe(&self) {
        if self.seen.lock().failed.replace(self.clock.now()).is_none() {
            tracing::warn!("a service does not respond; its requests fail until it does");
        }
    }

    fn revive(&self, seen: &mut LifeState) {
        seen.last = self.clock.now();
        if seen.failed.take().is_some() {
            tracing::info!("the service responds again");
        }
    }
}
