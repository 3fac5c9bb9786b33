//! Credentials that may expire. They are renewed before they expire, and when the service rejects them as expired. One
//! request renews them while the others wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tradewind_core::error::Result;
use tradewind_core::{Clock, Context, Timestamp};
use tradewind_wire::sigv4::{Credentials, Signer};

use crate::remote::renewal::{RenewalLock, renewal_delay};

/// Delay before the next attempt after a failed renewal, while the credentials are still valid.
const RETRY_MILLIS: i64 = 10_000;

/// Credentials, and when they expire, if known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiringCredentials {
    /// The credentials.
    pub credentials: Credentials,
    /// When they expire; `None` if unknown or never.
    pub expires: Option<Timestamp>,
}

/// Issues new credentials. It may be slow: only requests without valid credentials wait for it.
#[async_trait]
pub trait CredentialIssuer: fmt::Debug + Send + Sync {
    /// Returns the current credentials. If they equal the previous ones, no others are available.
    async fn issue(&self) -> Result<ExpiringCredentials>;
}

/// The credentials that requests are signed with.
pub(super) struct CredentialProvider {
    pub signer: Signer,
    issuer: Option<Arc<dyn CredentialIssuer>>,
    clock: Arc<dyn Clock>,
    state: Mutex<CredentialState>,
    renewal: RenewalLock,
}

struct CredentialState {
    /// Number of renewals, which identifies the credentials.
    renewals: u64,
    credentials: Credentials,
    /// When to renew them; `None` if they do not expire.
    renew_at: Option<Timestamp>,
    /// When they expire; `None` if unknown or never.
    expires: Option<Timestamp>,
    /// The service rejected the credentials as expired; a renewal is due.
    is_expired: bool,
}

impl CredentialProvider {
    /// Creates a provider that signs for `region` by default.
    pub fn new(
        issued: ExpiringCredentials,
        issuer: Option<Arc<dyn CredentialIssuer>>,
        region: String,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let signer = Signer::new(issued.credentials.clone(), region);
        let state = Mutex::new(CredentialState::new(0, issued, clock.wall()));
        Self { signer, issuer, clock, state, renewal: RenewalLock::new() }
    }

    /// Renews the credentials if necessary. Returns the number of renewals so far, which identifies them.
    pub async fn ensure_valid(&self, context: &Context) -> Result<u64> {
        if let Some(renewals) = self.renewals_if_valid() {
            return Ok(renewals);
        }
        let Some(issuer) = &self.issuer else { return Ok(self.state.lock().renewals) };
        let _renewal = self.renewal.lock(context).await?;
        // Another request may have renewed them meanwhile.
        if let Some(renewals) = self.renewals_if_valid() {
            return Ok(renewals);
        }
        let issued = context.guard(issuer.issue()).await?;
        let now = self.clock.wall();
        let mut state = self.state.lock();
        match issued {
            Ok(issued) if state.is_expired && issued.credentials == state.credentials => {
                // The issuer has no other credentials: the rejection is final, and no further renewal is tried for it.
                state.is_expired = false;
                state.renew_at = state.renew_at.map(|_| Timestamp::from_millis(now.millis() + RETRY_MILLIS));
                Ok(state.renewals)
            }
            Ok(issued) => {
                self.signer.set_credentials(issued.credentials.clone());
                *state = CredentialState::new(state.renewals + 1, issued, now);
                Ok(state.renewals)
            }
            Err(e) if !state.is_expired && state.expires.is_none_or(|end| now < end) => {
                tracing::warn!(error = %e, "cannot renew the credentials; the current ones are still valid");
                state.renew_at = Some(Timestamp::from_millis(now.millis() + RETRY_MILLIS));
                Ok(state.renewals)
            }
            Err(e) => Err(e),
        }
    }

    /// Records that the service rejected the credentials after this number of renewals as expired. Returns true if
    /// others may be available.
    pub fn mark_expired(&self, renewals: u64) -> bool {
        let mut state = self.state.lock();
        if state.renewals == renewals {
            state.is_expired = true;
        }
        self.issuer.is_some()
    }

    /// The number of renewals so far, if the credentials need no other.
    fn renewals_if_valid(&self) -> Option<u64> {
        let state = self.state.lock();
        let is_good = !state.is_expired && state.renew_at.is_none_or(|at| self.clock.wall() < at);
        is_good.then_some(state.renewals)
    }
}

impl CredentialState {
    fn new(renewals: u64, issued: ExpiringCredentials, now: Timestamp) -> Self {
        let ExpiringCredentials { credentials, expires } = issued;
        let renew_at = expires.map(|end| {
            let millis = u64::try_from(end.millis().saturating_sub(now.millis())).unwrap_or(0);
            let delay = renewal_delay(Duration::from_millis(millis)).as_millis();
            Timestamp::from_millis(now.millis().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX)))
        });
        Self { renewals, credentials, renew_at, expires, is_expired: false }
    }
}
