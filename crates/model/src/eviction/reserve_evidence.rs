//! The evidence that a reserved share is reused, which ages by the requests for its class only: a share of which the rest
//! of the traffic is a thousand times as much must end, too.

use super::Entry;
use super::classes::Usage;
use super::miniature::MIN_SAVED_COST_SHARE;

/// Misses of the class, relative to its share, after which a lack of reuse ends the share.
const MIN_TURNOVERS: f64 = 2.0;
/// Requests for the class, relative to its share, after which the evidence counts half. Misses that count half still
/// suffice to end the share.
const MAX_TURNOVERS: f64 = 2.0 * MIN_TURNOVERS;

/// See the module's head.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReserveEvidence {
    saved_cost: f64,
    missed_cost: f64,
    /// The misses, in shares: the larger part of each by blocks or by entries, as the share has both limits.
    missed_turnovers: f64,
    /// All requests, in shares.
    turnovers: f64,
}

impl ReserveEvidence {
    /// Records a request for an entry of the class, whose share is `reserved`.
    pub(super) fn record(&mut self, entry: &Entry, is_hit: bool, cost: f64, reserved: Usage) {
        let part = |amount: u64, of: u64| amount as f64 / of.max(1) as f64;
        let usage = Usage::of_entry(entry);
        let turnover = part(usage.blocks, reserved.blocks).max(part(usage.slots, reserved.slots));
        self.turnovers += turnover;
        if is_hit {
            self.saved_cost += cost;
        } else {
            self.missed_cost += cost;
            self.missed_turnovers += turnover;
        }
        if self.turnovers >= MAX_TURNOVERS {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.saved_cost /= 2.0;
        self.missed_cost /= 2.0;
        self.missed_turnovers /= 2.0;
        self.turnovers /= 2.0;
    }

    /// Returns false if the share was turned over without reuse.
    pub(super) fn is_reserve_earned(&self) -> bool {
        let all = self.saved_cost + self.missed_cost;
        self.missed_turnovers < MIN_TURNOVERS || self.saved_cost > all * MIN_SAVED_COST_SHARE
    }
}
