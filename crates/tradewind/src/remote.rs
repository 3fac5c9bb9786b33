//! An S3 store that commands without a server speak with, as the AWS CLI would find it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tradewind_backend::s3::{Issued, Issuer, S3Options};
use tradewind_core::error::{Error, Reason, Result};

use crate::aws::{self, Access, Inputs, Problem};

/// What the command line says about the store, before everything that is found elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--profile`.
    pub profile: Option<String>,
    /// `--endpoint-url`.
    pub endpoint_url: Option<String>,
    /// `--region`.
    pub region: Option<String>,
    /// `--no-sign-request`.
    pub is_anonymous: bool,
}

/// What is to be known of the S3 store that flags, environment and `~/.aws` name. Runs a `credential_process` where there is one.
pub fn options(overrides: &Overrides) -> anyhow::Result<S3Options> {
    let mut inputs = Inputs::gather(overrides.profile.as_deref())?;
    // As if they were set for this command alone: the variables that come before all others.
    for (variable, value) in
        [("AWS_ENDPOINT_URL_S3", &overrides.endpoint_url), ("AWS_REGION", &overrides.region)]
    {
        if let Some(value) = value {
            inputs.environment.insert(variable.to_owned(), value.clone());
        }
    }
    let read = |path: &std::path::Path| std::fs::read(path);
    let access = Access::find(&inputs, &read)?;
    let issued = if overrides.is_anonymous { None } else { access.credentials()? };
    let endpoint = access.endpoint.value.clone();
    let tls = if endpoint.peer.is_tls {
        Some(aws::client_tls(access.ca_bundle.as_ref(), &inputs, &read)?)
    } else {
        None
    };
    let region = access.region.value.clone();
    let expires = issued.as_ref().and_then(|issued| issued.expires);
    let mut options = S3Options::new(endpoint, region, issued.map(|issued| issued.credentials));
    options.expires = expires;
    if !overrides.is_anonymous {
        options.issuer = Some(Arc::new(Again { inputs }));
    }
    options.tls = tls;
    if let Some(attempts) = &access.max_attempts {
        options.retries.attempts = attempts.value;
    }
    Ok(options)
}

/// Finds credentials as they were found before: a program is run again, and files are read that somebody may have
/// written anew.
struct Again {
    inputs: Inputs,
}

impl fmt::Debug for Again {
    /// Without the variables, some of which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Again")
    }
}

#[async_trait]
impl Issuer for Again {
    async fn issue(&self) -> Result<Issued> {
        let inputs = self.inputs.clone();
        let found = tokio::task::spawn_blocking(move || {
            Access::find(&inputs, &|path: &std::path::Path| std::fs::read(path))?.credentials()
        });
        let found = found.await.map_err(|e| Error::with_source(Reason::Defect, "a task failed", e))?;
        let refused = |problem: Problem| {
            let what = format!("the credentials cannot be renewed: {problem}");
            Error::with_source(Reason::AccessDenied, what, problem)
        };
        let none = || Error::new(Reason::AccessDenied, "there are no credentials any more");
        found.map_err(refused)?.ok_or_else(none)
    }
}
