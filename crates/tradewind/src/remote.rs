//! An S3 store that commands without a server speak with, as the AWS CLI would find it.

use tradewind_backend::s3::S3Options;

use crate::aws::{self, Access, Inputs};

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
    let credentials = if overrides.is_anonymous { None } else { access.credentials()? };
    let endpoint = access.endpoint.value.clone();
    let tls = if endpoint.peer.is_tls {
        Some(aws::client_tls(access.ca_bundle.as_ref(), &inputs, &read)?)
    } else {
        None
    };
    let region = access.region.value.clone();
    let mut options = S3Options::new(endpoint, region, credentials.map(|issued| issued.credentials));
    options.tls = tls;
    if let Some(attempts) = &access.max_attempts {
        options.retries.attempts = attempts.value;
    }
    Ok(options)
}
