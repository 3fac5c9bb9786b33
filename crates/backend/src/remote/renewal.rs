//! Renewal of credentials and tokens. They are renewed before they expire, by one request while the others wait: a
//! service that issues them is slow, and would otherwise receive one request per waiting transfer.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};

/// Credentials are renewed this long before they expire, or after 90 % of their lifetime if that is later.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// The time from now until the renewal of credentials with the given remaining lifetime.
pub(crate) fn renewal_delay(lifetime: Duration) -> Duration {
    lifetime.saturating_sub(RENEW_BEFORE).max(lifetime / 10 * 9)
}

/// Held by the request that renews.
pub(crate) struct RenewalLock(Semaphore);

impl RenewalLock {
    pub fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// Waits while another request renews. Fails if the store is closed.
    pub async fn lock(&self, context: &Context) -> Result<SemaphorePermit<'_>> {
        let permit = context.guard(self.0.acquire()).await?;
        permit.map_err(|e| Error::with_source(Reason::ShuttingDown, "the store is closed", e))
    }

    /// Rejects further calls.
    pub fn close(&self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_five_minutes_early_or_at_90_percent() {
        let delay = |seconds| renewal_delay(Duration::from_secs(seconds)).as_secs();
        assert_eq!([delay(0), delay(100), delay(3000), delay(3600)], [0, 90, 2700, 3300]);
    }
}
