//! Opens the store that commands without a server speak with.

use std::env;
use std::sync::Arc;

use anyhow::Context as _;
use tradewind_backend::s3::{Endpoint, S3Options, S3Store, Style};
use tradewind_core::Clock;
use tradewind_wire::sigv4::Credentials;

/// The S3 store that the environment names.
pub fn open(clock: Arc<dyn Clock>, connections: usize) -> anyhow::Result<Arc<S3Store>> {
    let url = env::var("AWS_ENDPOINT_URL").context("AWS_ENDPOINT_URL is not set")?;
    let region = env::var("AWS_DEFAULT_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
    let id = env::var("AWS_ACCESS_KEY_ID").context("AWS_ACCESS_KEY_ID is not set")?;
    let secret = env::var("AWS_SECRET_ACCESS_KEY").context("AWS_SECRET_ACCESS_KEY is not set")?;
    let credentials = Credentials { id, secret, token: env::var("AWS_SESSION_TOKEN").ok() };
    let endpoint = Endpoint::parse(&url, Style::Path)?;
    let options = S3Options { connections, ..S3Options::new(endpoint, region, Some(credentials)) };
    Ok(S3Store::new(options, clock)?)
}
