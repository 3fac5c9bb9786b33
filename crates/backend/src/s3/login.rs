//! Who asks: credentials that may end. They are renewed before they do, and once they are refused as expired; by one
//! request, while the others wait for it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Clock, Context, Timestamp};
use tradewind_wire::sigv4::{Credentials, Signer};

/// Credentials are renewed this long before they end, or after nine tenths of their life where that is later.
const RENEW_BEFORE_MILLIS: i64 = 300_000;
/// Where that failed, the next try comes this much later, as long as they are good.
const RETRY_MILLIS: i64 = 10_000;

/// Credentials, and from when on they are refused, where that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The credentials.
    pub credentials: Credentials,
    /// Their end.
    pub expires: Option<Timestamp>,
}

/// Issues credentials anew. It may take its time: nothing waits for it that need not.
#[async_trait]
pub trait Issuer: fmt::Debug + Send + Sync {
    /// Those of now. The same as before say that there are no others.
    async fn issue(&self) -> Result<Issued>;
}

/// The credentials that requests are signed with.
pub(super) struct Login {
    pub signer: Signer,
    issuer: Option<Arc<dyn Issuer>>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Whose turn it is to ask for others.
    turn: Semaphore,
}

struct State {
    /// How often they were renewed.
    generation: u64,
    credentials: Credentials,
    renew_at: Option<Timestamp>,
    expires: Option<Timestamp>,
    is_rejected: bool,
}

impl Login {
    /// Signs for `region` where a request's bucket is not known to be elsewhere.
    pub fn new(
        issued: Issued,
        issuer: Option<Arc<dyn Issuer>>,
        region: String,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let signer = Signer::new(issued.credentials.clone(), region);
        let state = Mutex::new(State::new(0, issued, clock.wall()));
        Self { signer, issuer, clock, state, turn: Semaphore::new(1) }
    }

    /// Sees to it that the credentials are good, as far as is known. Answers which they are.
    pub async fn ready(&self, context: &Context) -> Result<u64> {
        if let Some(generation) = self.good() {
            return Ok(generation);
        }
        let Some(issuer) = &self.issuer else { return Ok(self.state.lock().generation) };
        let turn = context.guard(self.turn.acquire()).await?;
        let _turn = turn.map_err(|e| Error::with_source(Reason::ShuttingDown, "the store is closed", e))?;
        // Somebody else may have renewed them meanwhile.
        if let Some(generation) = self.good() {
            return Ok(generation);
        }
        let issued = context.guard(issuer.issue()).await?;
        let now = self.clock.wall();
        let mut state = self.state.lock();
        match issued {
            Ok(issued) if state.is_rejected && issued.credentials == state.credentials => {
                // There are no others: whoever was refused is refused.
                state.is_rejected = false;
                state.renew_at = state.renew_at.map(|_| Timestamp::from_millis(now.millis() + RETRY_MILLIS));
                Ok(state.generation)
            }
            Ok(issued) => {
                self.signer.renew(issued.credentials.clone());
                *state = State::new(state.generation + 1, issued, now);
                Ok(state.generation)
            }
            Err(e) if !state.is_rejected && state.expires.is_none_or(|end| now < end) => {
                tracing::warn!(error = %e, "the credentials could not be renewed; they are still good");
                state.renew_at = Some(Timestamp::from_millis(now.millis() + RETRY_MILLIS));
                Ok(state.generation)
            }
            Err(e) => Err(e),
        }
    }

    /// Says that the credentials of this generation were refused as expired. Answers whether there may be others.
    pub fn reject(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.is_rejected = true;
        }
        self.issuer.is_some()
    }

    fn good(&self) -> Option<u64> {
        let state = self.state.lock();
        let is_good = !state.is_rejected && state.renew_at.is_none_or(|at| self.clock.wall() < at);
        is_good.then_some(state.generation)
    }
}

impl State {
    fn new(generation: u64, issued: Issued, now: Timestamp) -> Self {
        let Issued { credentials, expires } = issued;
        let renew_at = expires.map(|end| {
            let life = end.millis().saturating_sub(now.millis()).max(0);
            let after = (life - RENEW_BEFORE_MILLIS).max(life / 10 * 9);
            Timestamp::from_millis(now.millis().saturating_add(after))
        });
        Self { generation, credentials, renew_at, expires, is_rejected: false }
    }
}
