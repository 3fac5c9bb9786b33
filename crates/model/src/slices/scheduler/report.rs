//! The state of a scheduler for operators.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{DiskScheduler, DiskWork, Entry, TurnRequest, Urgency};
use crate::slices::statistics::{DiskStatistics, RequestGroup, RequestKind, WaitingRequests};

impl TurnRequest {
    /// The kind of the request and the group of its stream, for statistics.
    #[must_use]
    pub fn group(&self) -> RequestGroup {
        let kind = match (self.work, self.urgency) {
            (DiskWork::Change, _) => RequestKind::Change,
            (_, Urgency::Stream(_)) => RequestKind::Stream,
            (DiskWork::StreamHead | DiskWork::Write { .. }, Urgency::First) => RequestKind::StreamHead,
            (DiskWork::Small | DiskWork::Read { .. }, Urgency::First) => RequestKind::Small,
        };
        RequestGroup { kind, class: self.share.class }
    }
}

impl DiskScheduler {
    /// Counts since the start.
    #[must_use]
    pub const fn statistics(&self) -> &DiskStatistics {
        &self.statistics
    }

    /// The requests that wait at the time `now`, by group.
    #[must_use]
    pub fn waiting(&self, now: Duration) -> BTreeMap<RequestGroup, WaitingRequests> {
        let mut groups: BTreeMap<RequestGroup, WaitingRequests> = BTreeMap::new();
        let entries = self.queue.iter().chain(&self.next);
        let requests = entries.filter_map(|entry| match entry {
            Entry::Request(queued) => Some(queued),
            Entry::Changes => None,
        });
        for queued in requests.chain(&self.changes) {
            groups.entry(queued.request.group()).or_default().add(now.saturating_sub(queued.since));
        }
        groups
    }

    /// The number of requests that have a turn, by group.
    #[must_use]
    pub fn in_service(&self) -> BTreeMap<RequestGroup, usize> {
        let mut groups = BTreeMap::new();
        for turn in self.turns.values() {
            *groups.entry(turn.request.group()).or_default() += 1;
        }
        groups
    }
}
