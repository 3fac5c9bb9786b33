//! Tokens. They are requested when first needed, and renewed before they expire and when one is rejected. One request
//! renews a token while the others wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tradewind_core::error::Result;
use tradewind_core::{Clock, Context};

use super::SwiftOptions;
use super::auth::{Auth, IssuedToken};
use super::protocol::SwiftProtocol;
use crate::remote::Peer;
use crate::remote::client::Client;
use crate::remote::client_options::ClientOptions;
use crate::remote::pool::PoolOptions;
use crate::remote::renewal::{RenewalLock, renewal_delay};

/// Maximum number of connections to the service that issues tokens.
const MAX_TOKEN_CONNECTIONS: usize = 2;

/// A token, and the client that sends it.
pub(super) struct Session {
    pub client: Arc<Client>,
    peer: Peer,
    /// When to renew the token, by the store's clock.
    renew_at: Option<Duration>,
    /// When the token expires, by the store's clock.
    expires_at: Option<Duration>,
    is_rejected: AtomicBool,
}

impl Session {
    /// Records that the token was rejected: the next request gets a new one.
    pub fn mark_rejected(&self) {
        self.is_rejected.store(true, Ordering::Release);
    }

    fn is_valid(&self, until: Option<Duration>, now: Duration) -> bool {
        !self.is_rejected.load(Ordering::Acquire) && until.is_none_or(|at| now < at)
    }
}

/// The current session, and how to open a new one.
pub(super) struct SessionManager {
    auth: Auth,
    /// Client of the service that issues tokens.
    token_client: Client,
    /// Overrides the URL returned with a token.
    account_url: Option<String>,
    /// Settings of the account's client.
    client_options: ClientOptions,
    current: Mutex<Option<Arc<Session>>>,
    renewal: RenewalLock,
}

impl SessionManager {
    /// Validates the options. Sends nothing.
    pub fn new(options: &SwiftOptions, clock: Arc<dyn Clock>) -> Result<Self> {
        let (peer, path) = Peer::parse(options.auth.url())?;
        let client_options = options.client_options();
        let connections =
            PoolOptions { max_connections: MAX_TOKEN_CONNECTIONS, ..client_options.connections.clone() };
        let token_options = ClientOptions { connections, ..client_options.clone() };
        let protocol = Arc::new(SwiftProtocol::new(&peer, path, None)?);
        let token_client = token_options.client(&peer, protocol, clock)?;
        if let Some(url) = &options.account_url {
            client_options.check_peer(&Peer::parse(url)?.0)?;
        }
        Ok(Self {
            auth: options.auth.clone(),
            token_client,
            account_url: options.account_url.clone(),
            client_options,
            current: Mutex::default(),
            renewal: RenewalLock::new(),
        })
    }

    /// The store's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.token_client.clock
    }

    /// The account's clock minus this machine's, in milliseconds; `None` before the first response.
    pub fn clock_offset_ms(&self) -> Option<i64> {
        self.current.lock().as_ref()?.client.peer_clock.offset_ms()
    }

    /// The account in one line, without secrets.
    pub fn account(&self) -> String {
        match &self.account_url {
            Some(url) => format!("{url} as {}", self.auth),
            None => self.auth.to_string(),
        }
    }

    /// Fails if the store is closed.
    pub fn check_open(&self) -> Result<()> {
        self.token_client.pool.check_open()
    }

    /// Returns a session whose token has neither expired nor been rejected. Requests a token if necessary.
    pub async fn current(&self, context: &Context) -> Result<Arc<Session>> {
        self.check_open()?;
        context.check()?;
        if let Some(session) = self.valid_session() {
            return Ok(session);
        }
        let _renewal = self.renewal.lock(context).await?;
        // Another request may have renewed it meanwhile.
        if let Some(session) = self.valid_session() {
            return Ok(session);
        }
        let previous = self.current.lock().clone();
        let opened = self
            .auth
            .request_token(context, &self.token_client)
            .await
            .and_then(|issued| self.open_session(issued, previous.as_deref()));
        match (opened, previous) {
            (Ok(session), _) => {
                let session = Arc::new(session);
                *self.current.lock() = Some(session.clone());
                // If the store was closed meanwhile, nothing else closes these connections.
                self.check_open().inspect_err(|_| session.client.pool.close())?;
                Ok(session)
            }
            (Err(e), Some(previous))
                if previous.is_valid(previous.expires_at, self.token_client.clock.now()) =>
            {
                tracing::warn!(error = %e, "cannot renew the token; the current one is still valid");
                Ok(previous)
            }
            (Err(e), _) => Err(e),
        }
    }

    /// Closes all connections.
    pub fn close(&self) {
        self.token_client.pool.close();
        self.renewal.close();
        if let Some(session) = &*self.current.lock() {
            session.client.pool.close();
        }
    }

    fn valid_session(&self) -> Option<Arc<Session>> {
        let now = self.token_client.clock.now();
        self.current.lock().clone().filter(|session| session.is_valid(session.renew_at, now))
    }

    /// Creates the session of a new token. Connections are kept if the account's address is the same.
    fn open_session(&self, issued: IssuedToken, previous: Option<&Session>) -> Result<Session> {
        let (peer, path) = Peer::parse(self.account_url.as_ref().unwrap_or(&issued.url))?;
        let now = self.token_client.clock.now();
        let protocol = Arc::new(SwiftProtocol::new(&peer, path, Some(issued.token))?);
        let client = match previous {
            Some(previous) if previous.peer == peer => Client { protocol, ..Client::clone(&previous.client) },
            _ => self.client_options.client(&peer, protocol, self.clock().clone())?,
        };
        let renew_after = issued.lifetime.map(renewal_delay);
        Ok(Session {
            client: Arc::new(client),
            peer,
            renew_at: renew_after.map(|after| now + after),
            expires_at: issued.lifetime.map(|lifetime| now + lifetime),
            is_rejected: AtomicBool::new(false),
        })
    }
}
