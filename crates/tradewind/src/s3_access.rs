//! Options of the S3 store for commands without a server, resolved like the AWS CLI.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tradewind_backend::remote::ProxyRules;
use tradewind_backend::s3::{CredentialIssuer, ExpiringCredentials, S3Options};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::retry::RetryOptions;

use crate::aws::{self, Inputs, Issued, Problem, S3Access};

/// Command-line flags about the store. They override every other source.
#[derive(Debug, Clone, Default)]
pub struct S3Flags {
    /// `--profile`.
    pub profile: Option<String>,
    /// `--endpoint-url`.
    pub endpoint_url: Option<String>,
    /// `--region`.
    pub region: Option<String>,
    /// `--no-sign-request`.
    pub is_anonymous: bool,
}

/// Resolves the S3 store's options from flags, environment and `~/.aws`. Its requests use `proxies`. Runs the program that
/// issues the credentials, or requests them from a service, if there is one.
pub fn resolve(overrides: &S3Flags, proxies: ProxyRules) -> anyhow::Result<S3Options> {
    let mut inputs = Inputs::gather(overrides.profile.as_deref())?;
    // Flags act like the variables with the highest precedence.
    for (variable, value) in
        [("AWS_ENDPOINT_URL_S3", &overrides.endpoint_url), ("AWS_REGION", &overrides.region)]
    {
        if let Some(value) = value {
            inputs.environment.insert(variable.to_owned(), value.clone());
        }
    }
    let read = |path: &std::path::Path| std::fs::read(path);
    let access = S3Access::resolve(&inputs, &read)?;
    let (issued, unsigned_because) = if overrides.is_anonymous {
        (None, Some("as --no-sign-request asks".to_owned()))
    } else {
        match access.issue(&inputs, &read)? {
            Issued::Credentials(issued) => (Some(issued), None),
            Issued::Missing { searched } => {
                (None, Some(format!("because no credentials were found in {searched}")))
            }
        }
    };
    let endpoint = access.endpoint.value.clone();
    let proxy = proxies.proxy_for(&endpoint.peer)?;
    let tls = if endpoint.peer.is_tls || proxy.is_some_and(|proxy| proxy.peer().is_tls) {
        Some(aws::client_tls(access.ca_bundle.as_ref(), &inputs, &read)?)
    } else {
        None
    };
    let region = access.region.value.clone();
    let expires = issued.as_ref().and_then(|issued| issued.expires);
    let mut options = S3Options::new(endpoint, region, issued.map(|issued| issued.credentials));
    options.expires = expires;
    if !overrides.is_anonymous {
        options.issuer = Some(Arc::new(AccessReloader { inputs }));
    }
    (options.tls, options.proxies) = (tls, proxies);
    options.retries = match &access.max_attempts {
        Some(attempts) => RetryOptions::with_max_attempts(attempts.value),
        None => RetryOptions::for_commands(),
    };
    options.request_checksums = access.request_checksums.map(|given| given.value).unwrap_or_default();
    options.response_checksums = access.response_checksums.map(|given| given.value).unwrap_or_default();
    options.unsigned_because = unsigned_because.map(Into::into);
    Ok(options)
}

/// Renews credentials by resolving them again: reads the files, which may have changed, and runs the program or sends
/// the request.
struct AccessReloader {
    inputs: Inputs,
}

impl fmt::Debug for AccessReloader {
    /// Omits the variables, some of which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessReloader")
    }
}

#[async_trait]
impl CredentialIssuer for AccessReloader {
    async fn issue(&self) -> Result<ExpiringCredentials> {
        let inputs = self.inputs.clone();
        let found = tokio::task::spawn_blocking(move || {
            let read = |path: &std::path::Path| std::fs::read(path);
            S3Access::resolve(&inputs, &read)?.issue(&inputs, &read)
        });
        let found = found.await.map_err(|e| Error::with_source(Reason::Defect, "a task failed", e))?;
        let rejected = |problem: Problem| {
            let what = format!("the credentials cannot be renewed: {problem}");
            Error::with_source(Reason::AccessDenied, what, problem)
        };
        match found.map_err(rejected)? {
            Issued::Credentials(issued) => Ok(issued),
            Issued::Missing { searched } => {
                let what = format!("the credentials cannot be renewed: there are none in {searched}");
                Err(Error::new(Reason::AccessDenied, what))
            }
        }
    }
}
