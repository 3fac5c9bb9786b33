//! Sends each request to the region of its bucket, with valid credentials. If an error response shows that either is
//! wrong, the new region is cached or the credentials are renewed, and the request is sent once more. A bucket may be
//! deleted and created again in another region, so a later redirect replaces a cached region. If a bucket is missing in its
//! cached region, the request is sent to the store's own region, which may redirect it.

use std::collections::HashMap;
use std::sync::Arc;

use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};

use super::S3Store;
use super::dialect::Dialect;
use super::protocol::S3Protocol;
use super::service_error::ServiceError;
use crate::remote::client::{Call, Client, RepeatGuard};
use crate::remote::response::StoreResponse;
use crate::remote::streaming_request::StreamingRequest;

/// Maximum number of buckets whose region is cached.
const MAX_CACHED_BUCKETS: usize = 4096;
/// Maximum number of regions with a client.
const MAX_REGIONS: usize = 64;

/// Buckets in other regions than the store's, and the clients of those regions.
#[derive(Default)]
pub(super) struct BucketRegions {
    by_bucket: HashMap<Box<str>, Arc<str>>,
    clients: HashMap<Arc<str>, Arc<Client>>,
}

impl BucketRegions {
    /// Closes the connections to other regions.
    pub fn close(&self) {
        self.clients.values().for_each(|client| client.pool.close());
    }
}

/// The assumptions under which a request was sent.
#[derive(Debug, Clone)]
pub(super) struct SentWith {
    /// Number of renewals of the credentials; `None` without any.
    credential_renewals: Option<u64>,
    /// The cached region of the bucket; `None` if the request is sent to the store's own region.
    region: Option<Arc<str>>,
}

/// The client that a request is sent with, and the assumptions behind this choice.
struct Route {
    client: Arc<Client>,
    sent: SentWith,
}

/// A correction after which a rejected request may succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Correction {
    /// The service has redirected the request to another region.
    Region,
    /// The bucket is missing in its cached region, so the request is sent to the store's own one.
    OwnRegion,
    Credentials,
}

impl S3Store {
    /// Sends a request. Learns the service's dialect from the response, and corrects region and credentials.
    /// [`Self::send_guarded`] describes the checksum headers.
    pub(super) async fn send(&self, context: &Context, call: &Call<'_>) -> Result<StoreResponse> {
        self.send_guarded(context, call, None).await
    }

    /// Sends a request with all its headers. After an attempt of unknown outcome, it is repeated only if `guard` allows it,
    /// too.
    pub(super) async fn send_corrected(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
    ) -> Result<StoreResponse> {
        self.check_key(call)?;
        let mut corrections = Vec::new();
        loop {
            let Route { client, sent } = self.prepare(context, call.bucket).await?;
            match client.send_guarded(context, call, guard).await {
                Ok(response) => {
                    // A service without request ids is not radosgw.
                    self.set_dialect(Dialect::detect(&response.head.headers).or(Some(Dialect::Plain)));
                    return Ok(response);
                }
                Err(e) => match Box::pin(self.correct(context, call.bucket, &sent, &e)).await? {
                    // Each correction is tried once per request.
                    Some(correction) if !corrections.contains(&correction) => corrections.push(correction),
                    _ => return Err(e),
                },
            }
        }
    }

    /// Starts a request whose body is supplied while it is sent. It cannot be retried here: see
    /// [`Self::correct_after_failure`].
    pub(super) async fn start_streaming(
        &self,
        context: &Context,
        call: &Call<'_>,
        length: u64,
    ) -> Result<(StreamingRequest, SentWith)> {
        self.check_key(call)?;
        let Route { client, sent } = self.prepare(context, call.bucket).await?;
        Ok((client.start_streaming(context, call, Some(length)).await?, sent))
    }

    /// Corrects the region or the credentials after the failure of a request that cannot be retried here. Returns its
    /// error, which becomes retryable if there was a correction.
    pub(super) async fn correct_after_failure(
        &self,
        context: &Context,
        bucket: &str,
        sent: SentWith,
        error: Error,
    ) -> Error {
        match self.correct(context, Some(bucket), &sent, &error).await {
            Ok(None) => error,
            Ok(Some(_)) => Error::with_source(Reason::Io, error.message().to_owned(), error),
            Err(e) => e,
        }
    }

    /// Ensures valid credentials. Returns the client of the bucket's region, and the assumptions for [`Self::correct`].
    async fn prepare(&self, context: &Context, bucket: Option<&str>) -> Result<Route> {
        let credential_renewals = match &self.shared.credentials {
            Some(credentials) => Some(credentials.ensure_valid(context).await?),
            None => None,
        };
        let regions = self.regions.lock();
        let region = bucket.and_then(|bucket| regions.by_bucket.get(bucket)).cloned();
        let client = region.as_ref().and_then(|region| regions.clients.get(region));
        let client = client.unwrap_or(&self.client).clone();
        Ok(Route { client, sent: SentWith { credential_renewals, region } })
    }

    /// Evaluates an error response; returns a correction if the request is worth sending once more.
    async fn correct(
        &self,
        context: &Context,
        bucket: Option<&str>,
        sent: &SentWith,
        error: &Error,
    ) -> Result<Option<Correction>> {
        let Some(response) = ServiceError::from_source(error) else { return Ok(None) };
        self.set_dialect(response.dialect);
        if let (Some(bucket), Some(region)) = (bucket, response.redirect_region())
            && self.redirect_bucket(bucket, region, sent)
        {
            tracing::debug!(bucket, region, "a bucket is in another region");
            return Ok(Some(Correction::Region));
        }
        if let (Some(bucket), Some(region), Reason::NoSuchBucket) = (bucket, &sent.region, error.reason()) {
            // It may have been deleted, and be created again in the store's own region.
            self.forget_region(bucket, region);
            return Ok(Some(Correction::OwnRegion));
        }
        if let (true, Some(credentials), Some(credential_renewals)) =
            (response.is_expired(), &self.shared.credentials, sent.credential_renewals)
            && credentials.mark_expired(credential_renewals)
            && credentials.ensure_valid(context).await? != credential_renewals
        {
            return Ok(Some(Correction::Credentials));
        }
        Ok(None)
    }

    /// Caches the region of a bucket in place of the one that the request was sent to. Returns true if the request would now
    /// be sent elsewhere. Each request follows one redirect, so that regions that redirect to each other cause no loop.
    fn redirect_bucket(&self, bucket: &str, region: &str, sent: &SentWith) -> bool {
        if region == sent.region.as_deref().unwrap_or(&self.region) {
            return false;
        }
        let mut regions = self.regions.lock();
        if regions.by_bucket.get(bucket) != sent.region.as_ref() {
            // Another request was redirected while this one was in flight.
            return true;
        }
        if region == self.region {
            regions.by_bucket.remove(bucket);
            return true;
        }
        if !regions.clients.contains_key(region) && regions.clients.len() == MAX_REGIONS {
            return false;
        }
        if !regions.by_bucket.contains_key(bucket) && regions.by_bucket.len() == MAX_CACHED_BUCKETS {
            regions.by_bucket.clear();
        }
        regions.by_bucket.insert(bucket.into(), region.into());
        regions.clients.entry(region.into()).or_insert_with(|| Arc::new(self.client_for_region(region)));
        true
    }

    /// Removes the cached region of a bucket, unless it has been replaced.
    fn forget_region(&self, bucket: &str, region: &Arc<str>) {
        let mut regions = self.regions.lock();
        if regions.by_bucket.get(bucket) == Some(region) {
            regions.by_bucket.remove(bucket);
        }
    }

    /// The client of the bucket's region; the store's own region if unknown.
    pub(super) fn client_for_bucket(&self, bucket: Option<&str>) -> Arc<Client> {
        let regions = self.regions.lock();
        let redirected = bucket.and_then(|bucket| regions.clients.get(regions.by_bucket.get(bucket)?));
        redirected.unwrap_or(&self.client).clone()
    }

    fn client_for_region(&self, region: &str) -> Client {
        let endpoint = self.endpoint.in_region(region);
        let client = Client::clone(&self.client);
        let (peer, pool, outage) = if endpoint == self.endpoint {
            (client.peer.clone(), client.pool.clone(), client.outage.clone())
        } else {
            let pool = client.pool.for_peer(endpoint.peer.clone());
            (endpoint.to_string().into(), Arc::new(pool), Arc::default())
        };
        let (region, shared) = (Some(region.to_owned()), self.shared.clone());
        Client { protocol: Arc::new(S3Protocol::new(endpoint, region, shared)), peer, pool, outage, ..client }
    }
}
