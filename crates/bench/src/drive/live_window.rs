//! The measurement window of a running load: not open yet, open, or closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tradewind_core::Clock;

use crate::record::MeasurementWindow;

/// A measurement window, whose ends are set while requests are in flight.
pub(crate) struct LiveWindow {
    clock: Arc<dyn Clock>,
    /// Begin and end, in nanoseconds of the clock; `u64::MAX` until set.
    begin: AtomicU64,
    end: AtomicU64,
}

/// Converts a time of the clock to nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl LiveWindow {
    /// A window that is not open yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, begin: AtomicU64::new(u64::MAX), end: AtomicU64::new(u64::MAX) }
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Opens the window now.
    pub fn open(&self) -> Duration {
        let now = self.now();
        self.begin.store(nanos(now), Ordering::Relaxed);
        now
    }

    /// Closes the window at `time`.
    pub fn close_at(&self, time: Duration) {
        self.end.store(nanos(time), Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.end.load(Ordering::Relaxed) != u64::MAX
    }

    /// Its bounds as far as they are set. Nothing is within a window that is not open yet.
    pub fn bounds(&self) -> MeasurementWindow {
        let read = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
        MeasurementWindow { begin: read(&self.begin), end: read(&self.end) }
    }
}
