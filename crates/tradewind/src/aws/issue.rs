//! Requests credentials from a service, in code that is not asynchronous.

use std::future::Future;
use std::path::{Path, PathBuf};

use tokio::runtime::Builder;
use tradewind_backend::remote::{Peer, ProxyRules};
use tradewind_backend::s3::ExpiringCredentials;
use tradewind_backend::s3::credential_sources::IssuerClient;
use tradewind_core::SystemClock;
use tradewind_core::error::Result as CoreResult;

use super::origin::{Origin, Problem, Traced};
use super::{Inputs, ReadFile, trust};
use crate::proxies;

/// Inputs of a request for credentials, in addition to their source.
pub(super) struct IssueContext<'a> {
    pub inputs: &'a Inputs,
    pub read: ReadFile<'a>,
    pub ca_bundle: Option<&'a Traced<PathBuf>>,
}

impl IssueContext<'_> {
    /// The proxies of the environment, for services outside of this machine and its host.
    pub fn proxies(&self) -> ProxyRules {
        proxies::rules(&self.inputs.environment)
    }

    /// Runs a request to `peer` on a thread of its own, because the caller may be in an asynchronous runtime already.
    /// Blocks until it ends. A failure becomes a problem with `origin`.
    pub fn issue<F>(
        &self,
        peer: &Peer,
        proxies: ProxyRules,
        origin: &Origin,
        request: impl FnOnce(IssuerClient) -> F + Send,
    ) -> Result<ExpiringCredentials, Problem>
    where
        F: Future<Output = CoreResult<ExpiringCredentials>>,
    {
        let proxy =
            proxies.proxy_for(peer).map_err(|error| Problem::new(origin.clone(), error.to_string()))?;
        let tls = match peer.is_tls || proxy.is_some_and(|proxy| proxy.peer().is_tls) {
            true => Some(trust::client_tls(self.ca_bundle, self.inputs, self.read)?),
            false => None,
        };
        let client = IssuerClient { tls, proxies, clock: SystemClock::shared() };
        let cannot = |why: std::io::Error| format!("cannot start a thread for the request: {why}");
        let send = || {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
            let issued = runtime.block_on(request(client)).map_err(|error| error.to_string());
            // A name that is still being resolved is not waited for.
            runtime.shutdown_background();
            issued
        };
        let issued =
            std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, send) {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(why) => Err(cannot(why)),
            });
        issued.map_err(|message| Problem::new(origin.clone(), message))
    }

    /// Reads a file with a token. It is read for each request, since another program replaces it.
    pub fn read_token(&self, path: &Path, origin: &Origin) -> Result<String, Problem> {
        let unusable = |why: &dyn std::fmt::Display| {
            let message = format!("cannot read the token in {}: {why}", path.display());
            Problem::new(origin.clone(), message)
        };
        let bytes = (self.read)(path).map_err(|error| unusable(&error))?;
        let text = String::from_utf8(bytes).map_err(|_| unusable(&"it is not UTF-8"))?;
        match text.trim() {
            "" => Err(unusable(&"the file is empty")),
            token => Ok(token.to_owned()),
        }
    }
}
