//! Extents that are being filled: of the readers to which an extent passes, one copies and stores it. A claim lasts until
//! the extent is stored or dropped, so that the next reader finds either the claim or the extent.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// The extents that readers fill, by their fingerprints.
#[derive(Debug, Default)]
pub(crate) struct ExtentClaims(Mutex<HashSet<u64>>);

/// The right to fill one extent, until it is dropped.
#[derive(Debug)]
pub(crate) struct ExtentClaim {
    claims: Arc<ExtentClaims>,
    fingerprint: u64,
}

impl ExtentClaims {
    /// Claims an extent; `None` if another reader fills it.
    pub fn claim(self: &Arc<Self>, fingerprint: u64) -> Option<ExtentClaim> {
        let is_free = self.0.lock().insert(fingerprint);
        is_free.then(|| ExtentClaim { claims: self.clone(), fingerprint })
    }
}

impl Drop for ExtentClaim {
    fn drop(&mut self) {
        self.claims.0.lock().remove(&self.fingerprint);
    }
}
