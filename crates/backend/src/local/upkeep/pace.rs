//! How fast upkeep may write.

use std::time::{Duration, Instant};

use super::Control;
use crate::local::space::Space;

/// A longer time without writing gives no right to write faster later.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Shorter sleeps are saved up.
const WORTH_SLEEPING: Duration = Duration::from_millis(20);
/// From this shortage on the pace does not count.
const HURRY_ABOVE: f64 = 0.75;

/// Spreads writing over time.
pub(super) struct Pace {
    bytes_per_second: u64,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), begun: Instant::now(), bytes: 0 }
    }

    /// Counts bytes and sleeps while they are ahead of time, unless writes are about to be refused. False where
    /// the thread shall stop.
    pub fn spend(&mut self, bytes: u64, control: &Control, space: &Space) -> bool {
        self.bytes += bytes;
        #[expect(clippy::cast_precision_loss, reason = "a duration")]
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_second as f64);
        let elapsed = self.begun.elapsed();
        if elapsed > due + LONGEST_PAUSE {
            // What was not written while something else was done is not caught up with in one go.
            *self = Self::new(self.bytes_per_second);
        }
        let ahead = due.saturating_sub(elapsed);
        if ahead < WORTH_SLEEPING {
            return !control.stopped();
        }
        if space.shortage() > HURRY_ABOVE {
            *self = Self::new(self.bytes_per_second);
            return !control.stopped();
        }
        control.sleep(ahead)
    }
}
