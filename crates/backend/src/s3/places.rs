//! Sending requests to where their buckets are, with credentials that are good. What an answer teaches of either is
//! remembered, and the request goes once more: to the region that a bucket is in, or with other credentials.

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

/// Buckets whose region is remembered, and regions that are asked.
const MOST_BUCKETS: usize = 4096;
const MOST_REGIONS: usize = 64;

/// Buckets that are in another region than the store's, and the clients of those.
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

/// What a request was sent with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// Of the credentials; `None` without any.
    generation: Option<u64>,
    /// The bucket was known to be in another region than the store's.
    is_abroad: bool,
}

/// What makes a request go through that was refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lesson {
    Region,
    Credentials,
}

impl S3Store {
    /// Sends a request, and looks at what comes back for what it says of the service.
    pub(super) async fn send(&self, context: &Context, call: &Call<'_>) -> Result<Answer> {
        self.check_key(call)?;
        let mut learned = Vec::new();
        loop {
            let sent = self.ready(context, call.bucket).await?;
            match self.client_of(call.bucket).send(context, call).await {
                Ok(answer) => {
                    // A service that gives no names to requests is no radosgw.
                    self.heed(Dialect::of(&answer.head.headers).or(Some(Dialect::Plain)));
                    return Ok(answer);
                }
                Err(e) => match Box::pin(self.learn(context, call.bucket, sent, &e)).await? {
                    // Nothing is learned twice from one request.
                    Some(lesson) if !learned.contains(&lesson) => learned.push(lesson),
                    _ => return Err(e),
                },
            }
        }
    }

    /// Begins a request whose body comes while it is sent. Its bytes are gone where it fails: see
    /// [`Self::explain`].
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

    /// What the failure of a request means whose bytes are gone: it may pass, where something was learned from it.
    pub(super) async fn explain(&self, context: &Context, bucket: &str, sent: Sent, error: Error) -> Error {
        match self.learn(context, Some(bucket), sent, &error).await {
            Ok(None) => error,
            Ok(Some(_)) => Error::with_source(Reason::Io, error.message().to_owned(), error),
            Err(e) => e,
        }
    }

    async fn ready(&self, context: &Context, bucket: Option<&str>) -> Result<Sent> {
        let generation = match &self.shared.login {
            Some(login) => Some(login.ready(context).await?),
            None => None,
        };
        let is_abroad = bucket.is_some_and(|bucket| self.places.lock().regions.contains_key(bucket));
        Ok(Sent { generation, is_abroad })
    }

    async fn learn(
        &self,
        context: &Context,
        bucket: Option<&str>,
        sent: Sent,
        error: &Error,
    ) -> Result<Option<Lesson>> {
        let Some(refusal) = Refusal::of(error) else { return Ok(None) };
        self.heed(refusal.dialect);
        if let (Some(bucket), Some(region)) = (bucket, refusal.moved_to())
            && self.move_to(bucket, region, sent)
        {
            tracing::debug!(bucket, region, "a bucket is in another region");
            return Ok(Some(Lesson::Region));
        }
        if let (true, Some(login), Some(generation)) =
            (refusal.is_expired(), &self.shared.login, sent.generation)
            && login.reject(generation)
            && login.ready(context).await? != generation
        {
            return Ok(Some(Lesson::Credentials));
        }
        Ok(None)
    }

    /// Remembers where a bucket is, and says whether what was sent goes there now. Once: a store that sends from one region to the next
    /// is not followed.
    fn move_to(&self, bucket: &str, region: &str, sent: Sent) -> bool {
        let mut places = self.places.lock();
        if let Some(known) = places.regions.get(bucket) {
            // Another request was answered so while this one was under way.
            return !sent.is_abroad && **known == *region;
        }
        if region == self.region
            || (!places.clients.contains_key(region) && places.clients.len() == MOST_REGIONS)
        {
            return false;
        }
        if places.regions.len() == MOST_BUCKETS {
            places.regions.clear();
        }
        places.regions.insert(bucket.into(), region.into());
        places.clients.entry(region.into()).or_insert_with(|| Arc::new(self.client_in(region)));
        true
    }

    /// The client of the region that a bucket is in, as far as that is known.
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
