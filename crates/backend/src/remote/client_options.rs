//! Settings of a client, and its construction from them. S3 and Swift have the same settings with the same defaults;
//! their public options repeat them as fields.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::outage::OutageTracker;
use tradewind_model::retry::{RetryBudget, RetryOptions};

use super::client::{Client, Protocol};
use super::peer::Peer;
use super::pool::{Pool, PoolOptions};
use super::proxy::Proxy;

/// Settings of a client.
#[derive(Debug, Clone)]
pub(crate) struct ClientOptions {
    pub connections: PoolOptions,
    /// TLS configuration with the trusted certificates. Required for an `https` endpoint or proxy.
    pub tls: Option<Arc<ClientConfig>>,
    /// Retry policy.
    pub retries: RetryOptions,
    /// Maximum time until a response begins, without the allowance for unsent body bytes and the factor for
    /// long-running requests.
    pub response_timeout: Duration,
    /// Maximum time without progress of a request or response body.
    pub stall_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connections: PoolOptions::default(),
            tls: None,
            retries: RetryOptions::default(),
            response_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

impl ClientOptions {
    /// Checks that a peer, and the proxy that it is reached through, can be connected to with these settings.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if TLS is required but missing, or the proxy's URL is invalid.
    pub fn check_peer(&self, peer: &Peer) -> Result<()> {
        let proxy = self.connections.proxies.proxy_for(peer)?;
        let secured = [Some(peer), proxy.map(Proxy::peer)].into_iter().flatten().find(|peer| peer.is_tls);
        if let (Some(secured), None) = (secured, &self.tls) {
            let why = format!("https://{secured} needs a TLS configuration");
            return Err(Error::new(Reason::InvalidArgument, why));
        }
        Ok(())
    }

    /// Creates a client with its own connections and retry budget. Sends nothing.
    pub fn client(&self, peer: &Peer, protocol: Arc<dyn Protocol>, clock: Arc<dyn Clock>) -> Result<Client> {
        self.check_peer(peer)?;
        let pool = Pool::new(peer.clone(), self.tls.clone(), self.connections.clone(), clock.clone());
        Ok(Client {
            protocol,
            peer: peer.to_string().into(),
            pool: Arc::new(pool),
            retry_options: self.retries,
            retry_budget: Arc::new(RetryBudget::new()),
            outage: Arc::new(OutageTracker::new()),
            clock,
            peer_clock: Arc::default(),
            response_timeout: self.response_timeout,
            stall_timeout: self.stall_timeout,
        })
    }
}
