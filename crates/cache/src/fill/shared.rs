//! Fills of one content by several readers: one of them fills an extent, and all use the same space on the SSD, so that
//! neighbours stay neighbours.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tradewind_core::Span;

use crate::claims::{ExtentClaim, ExtentClaims};
use crate::disk::FillRun;
use crate::head::Head;
use crate::tiers::Tiers;

/// See the module's head.
#[derive(Default)]
pub(crate) struct SharedFills {
    claims: Arc<ExtentClaims>,
    runs: Mutex<HashMap<RunKey, Weak<FillRun>>>,
}

/// Readers share a run if their spans have the same end: the last extent of a run has its own length.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RunKey {
    content: u64,
    end: u64,
}

impl SharedFills {
    /// Claims an extent; `None` if another reader fills it.
    pub fn claim(&self, tiers: &Tiers, head: &Head, number: u32) -> Option<ExtentClaim> {
        self.claims.claim(tiers.fingerprints.data(head.content, number))
    }

    /// The space of the extents of a span; see [`Tiers::fill_run`].
    pub fn run(&self, tiers: &Tiers, head: &Head, span: Span) -> Option<Arc<FillRun>> {
        let key = RunKey { content: head.content.0, end: span.end() };
        let mut runs = self.runs.lock();
        if let Some(run) = runs.get(&key).and_then(Weak::upgrade) {
            return Some(run);
        }
        let run = tiers.fill_run(head, span)?;
        runs.retain(|_, run| run.strong_count() > 0);
        runs.insert(key, Arc::downgrade(&run));
        Some(run)
    }
}
