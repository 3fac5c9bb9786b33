//! Sends each request to the region of its bucket, with valid credentials. If an error response shows that either is
//! wrong, the new region is cached or the credentials are renewed, and the request is sent once more.

use std::collections::HashMap;
use std::sync::Arc;

use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};

use super::S3Store;
use super::dialect::Dialect;
use super::failure::Refusal;
use super::protocol::S3;
use crate::remote::answer::Answer;
use crate::remote::client::{Call, Client};
use crate::remote::sending::Sending;

/// Maximum number of buckets whose region is cached.
const MAX_CACHED_BUCKETS: usize = 4096;
/// Maximum number of regions with a client.
const MAX_REGIONS: usize = 64;

/// Buckets in other regions than the store's, and the clients of those regions.
#[derive(Default)]
pub(super) struct Places {
    regions: HashMap<Box<str>, Box<str>>,
    clients: HashMap<Box<str>, Arc<Client>>,
}

impl Places {
    /// Closes the connections to other regions.
    pub fn close(&self) {
        self.clients.values().for_each(|client| client.pool.close());
    }
}

/// The assumptions under which a request was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// Generation of the credentials; `None` without any.
    generation: Option<u64>,
    /// The bucket was cached as being in another region than the store's.
    is_abroad: bool,
}

/// A correction after which a rejected request may succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Correction {
    Region,
    Credentials,
}

impl S3Store {
    /// Sends a request. Learns the service's dialect from the response, and corrects region and credentials.
    pub(super) async fn send(&self, context: &Context, call: &Call<'_>) -> Result<Answer> {
        self.check_key(call)?;
        let mut learned = Vec::new();
        loop {
            let sent = self.ready(context, call.bucket).await?;
            match self.client_of(call.bucket).send(context, call).await {
                Ok(answer) => {
                    // A service without request ids is not radosgw.
                    self.heed(Dialect::of(&answer.head.headers).or(Some(Dialect::Plain)));
                    return Ok(answer);
                }
                Err(e) => match Box::pin(self.learn(context, call.bucket, sent, &e)).await? {
                    // Each correction is tried once per request.
                    Some(lesson) if !learned.contains(&lesson) => learned.push(lesson),
                    _ => return Err(e),
                },
            }
        }
    }

    /// Starts a request whose body is supplied while it is sent. It cannot be retried here: see [`Self::explain`].
    pub(super) async fn begin(
        &self,
        context: &Context,
        call: &Call<'_>,
        length: u64,
    ) -> Result<(Sending, Sent)> {
        self.check_key(call)?;
        let sent = self.ready(context, call.bucket).await?;
        Ok((self.client_of(call.bucket).begin(context, call, Some(length)).await?, sent))
    }

    /// Converts the error of a request that cannot be retried here: it becomes retryable if the region or the
    /// credentials were corrected.
    pub(super) async fn explain(&self, context: &Context, bucket: &str, sent: Sent, error: Error) -> Error {
        match self.learn(context, Some(bucket), sent, &error).await {
            Ok(None) => error,
            Ok(Some(_)) => Error::with_source(Reason::Io, error.message().to_owned(), error),
            Err(e) => e,
        }
    }

    /// Ensures valid credentials. Returns the assumptions for [`Self::learn`].
    async fn ready(&self, context: &Context, bucket: Option<&str>) -> Result<Sent> {
        let generation = match &self.shared.login {
            Some(login) => Some(login.ready(context).await?),
            None => None,
        };
        let is_abroad = bucket.is_some_and(|bucket| self.places.lock().regions.contains_key(bucket));
        Ok(Sent { generation, is_abroad })
    }

    /// Evaluates an error response; returns a correction if the request is worth sending once more.
    async fn learn(
        &self,
        context: &Context,
        bucket: Option<&str>,
        sent: Sent,
        error: &Error,
    ) -> Result<Option<Correction>> {
        let Some(refusal) = Refusal::of(error) else { return Ok(None) };
        self.heed(refusal.dialect);
        if let (Some(bucket), Some(region)) = (bucket, refusal.moved_to())
            && self.move_to(bucket, region, sent)
        {
            tracing::debug!(bucket, region, "a bucket is in another region");
            return Ok(Some(Correction::Region));
        }
        if let (true, Some(login), Some(generation)) =
            (refusal.is_expired(), &self.shared.login, sent.generation)
            && login.reject(generation)
            && login.ready(context).await? != generation
        {
            return Ok(Some(Correction::Credentials));
        }
        Ok(None)
    }

    /// Caches the region of a bucket. Returns true if the request would now be sent elsewhere. Only the first redirect
    /// is followed, so that regions that redirect to each other cause no loop.
    fn move_to(&self, bucket: &str, region: &str, sent: Sent) -> bool {
        let mut places = self.places.lock();
        if let Some(known) = places.regions.get(bucket) {
            // Another request received the same redirect while this one was in flight.
            return !sent.is_abroad && **known == *region;
        }
        if region == self.region
            || (!places.clients.contains_key(region) && places.clients.len() == MAX_REGIONS)
        {
            return false;
        }
        if places.regions.len() == MAX_CACHED_BUCKETS {
            places.regions.clear();
        }
        places.regions.insert(bucket.into(), region.into());
        places.clients.entry(region.into()).or_insert_with(|| Arc::new(self.client_in(region)));
        true
    }

    /// The client of the bucket's region; the store's own region if unknown.
    pub(super) fn client_of(&self, bucket: Option<&str>) -> Arc<Client> {
        let places = self.places.lock();
        let abroad = bucket.and_then(|bucket| places.clients.get(places.regions.get(bucket)?));
        abroad.unwrap_or(&self.client).clone()
    }

    fn client_in(&self, region: &str) -> Client {
        let endpoint = self.endpoint.in_region(region);
        let client = Client::clone(&self.client);
        let (peer, pool) = if endpoint == self.endpoint {
            (client.peer.clone(), client.pool.clone())
        } else {
            let pool = client.pool.to(endpoint.peer.clone());
            (endpoint.peer.to_string().into(), Arc::new(pool))
        };
        let (region, shared) = (Some(region.to_owned()), self.shared.clone());
        Client { protocol: Arc::new(S3::new(endpoint, region, shared)), peer, pool, ..client }
    }
}
