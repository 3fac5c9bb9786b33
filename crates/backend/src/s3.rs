//! The `s3` leaf: a store on top of an S3 service. It keeps no object data of its own; acknowledged writes are as
//! durable as the service makes them.

mod ambiguous_outcome;
mod aws_chunked;
mod buckets;
mod buffered_put;
mod checksum_headers;
mod classes;
mod conditions;
mod copy;
pub mod credential_sources;
mod credentials;
mod dialect;
mod endpoint;
mod etag_checks;
mod etag_kinds;
mod framing;
mod headers;
mod list;
mod list_uploads;
mod list_versions;
mod listed_pages;
mod mapped_classes;
mod missing_etag;
mod multipart_write;
mod partial_part;
mod protocol;
mod read;
mod regions;
mod repeats;
mod service_error;
mod stage;
mod substitute_proofs;
mod tags;
mod upload_cache;
mod uploads;
mod versions;
mod write_plan;
mod xml;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, Feature, GetRequest, GetResponse,
    ObjectClock, ObjectStore, StageRequest, Staged,
};
use tradewind_core::version::{ListVersions, Versioning, VersionsPage};
use tradewind_core::{
    Address, Body, BucketName, Budget, Checksum, ChecksumScope, ClassUpdate, Clock, Context, Precondition,
    Tags, Timestamp, Traffic,
};
use tradewind_wire::sigv4::Credentials;

use self::checksum_headers::ChecksumHeaders;
pub use self::checksum_headers::ChecksumUse;
use self::credentials::CredentialProvider;
pub use self::credentials::{CredentialIssuer, ExpiringCredentials};
use self::dialect::Dialect;
pub use self::endpoint::{AddressingStyle, Endpoint};
use self::etag_kinds::ETagKinds;
use self::listed_pages::ListedPages;
pub use self::mapped_classes::MappedClasses;
use self::protocol::{S3Protocol, ServiceState};
use self::regions::BucketRegions;
use self::repeats::ObservedVersioning;
use self::stage::StagedWrite;
pub use self::substitute_proofs::{SubstituteProof, SubstituteProofs};
use self::upload_cache::UploadCache;
use self::write_plan::WriteTarget;
use crate::remote::ProxyRules;
use crate::remote::client::{Call, Client};
use crate::remote::client_options::ClientOptions;
use crate::remote::pool::PoolOptions;
use tradewind_model::retry::RetryOptions;

/// Settings of an [`S3Store`].
#[derive(Debug, Clone)]
pub struct S3Options {
    /// The service's address.
    pub endpoint: Endpoint,
    /// The region of the store, part of every signature.
    pub region: String,
    /// The credentials; `None` sends unsigned requests.
    pub credentials: Option<Credentials>,
    /// When these credentials expire, if known.
    pub expires: Option<Timestamp>,
    /// Issues new credentials before these expire and when the service rejects them as expired.
    pub issuer: Option<Arc<dyn CredentialIssuer>>,
    /// TLS configuration with the trusted certificates. Required for an `https` endpoint or proxy.
    pub tls: Option<Arc<ClientConfig>>,
    /// The proxies that the service is reached through.
    pub proxies: ProxyRules,
    /// The reason why requests are not signed, if there are no credentials. It completes "the request was not signed".
    pub unsigned_because: Option<Arc<str>>,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Read buffer of one connection, in bytes.
    pub read_bytes: usize,
    /// No connection is reused.
    pub is_single_use: bool,
    /// Counts the bytes of all connections.
    pub traffic: Option<Arc<Traffic>>,
    /// Maximum time to connect.
    pub connect_timeout: Duration,
    /// Maximum time until a response begins, without the allowance for unsent body bytes and the factor for
    /// long-running requests.
    pub response_timeout: Duration,
    /// Maximum time without progress of a request or response body.
    pub stall_timeout: Duration,
    /// Retry policy.
    pub retries: RetryOptions,
    /// Part size in bytes for objects of unknown size, or that cannot be streamed in a single request; smaller ones are
    /// sent in one request. S3's minimum is 5 MiB.
    pub part_bytes: usize,
    /// Memory of all buffered parts together, in bytes.
    pub buffer_bytes: usize,
    /// Storage classes and a tag for classes of data.
    pub mapped_classes: MappedClasses,
    /// Checksum headers in requests that write (`request_checksum_calculation` of AWS).
    pub request_checksums: ChecksumUse,
    /// Requests for the checksums of objects that are read (`response_checksum_validation` of AWS).
    pub response_checksums: ChecksumUse,
    /// Counts the requests without checksum headers, whether by these settings or because the service refuses them.
    pub substitute_proofs: Arc<SubstituteProofs>,
}

impl S3Options {
    /// Default settings.
    #[must_use]
    pub fn new(endpoint: Endpoint, region: String, credentials: Option<Credentials>) -> Self {
        let ClientOptions { connections, tls, retries, response_timeout, stall_timeout } =
            ClientOptions::default();
        Self {
            endpoint,
            region,
            credentials,
            expires: None,
            issuer: None,
            tls,
            unsigned_because: None,
            max_connections: connections.max_connections,
            read_bytes: connections.read_bytes,
            is_single_use: connections.is_single_use,
            traffic: connections.traffic,
            proxies: connections.proxies,
            connect_timeout: connections.connect_timeout,
            response_timeout,
            stall_timeout,
            retries,
            part_bytes: 8 << 20,
            buffer_bytes: 64 << 20,
            mapped_classes: MappedClasses::default(),
            request_checksums: ChecksumUse::default(),
            response_checksums: ChecksumUse::default(),
            substitute_proofs: Arc::default(),
        }
    }

    fn client_options(&self) -> ClientOptions {
        ClientOptions {
            connections: PoolOptions {
                max_connections: self.max_connections,
                connect_timeout: self.connect_timeout,
                read_bytes: self.read_bytes,
                is_single_use: self.is_single_use,
                traffic: self.traffic.clone(),
                proxies: self.proxies.clone(),
            },
            tls: self.tls.clone(),
            retries: self.retries,
            response_timeout: self.response_timeout,
            stall_timeout: self.stall_timeout,
        }
    }
}

/// A store on top of an S3 service.
pub struct S3Store {
    this: Weak<Self>,
    /// Client of the store's own region.
    client: Arc<Client>,
    endpoint: Endpoint,
    region: String,
    shared: Arc<ServiceState>,
    /// Buckets in other regions, and their clients.
    regions: Mutex<BucketRegions>,
    part_bytes: usize,
    buffer_budget: Budget,
    /// The service's S3 dialect, detected from its first response.
    dialect: OnceLock<Dialect>,
    /// The use of checksum headers, and refusals of them.
    checksum_headers: ChecksumHeaders,
    /// The kinds of ETags, which decide whether they are compared.
    etag_kinds: ETagKinds,
    /// The service has acknowledged a write without an ETag.
    lacks_etags: AtomicBool,
    /// The service has rejected signed chunks.
    rejects_signed_chunks: AtomicBool,
    /// The service has named a version, so it does not ignore the version in a request.
    names_versions: AtomicBool,
    /// The versioning of buckets, as observed in responses to writes.
    observed_versioning: ObservedVersioning,
    /// Uploads started or used by this store.
    uploads: Mutex<UploadCache>,
    listed_pages: ListedPages,
    mapped_classes: MappedClasses,
}

impl S3Store {
    /// Creates a store. Sends nothing.
    pub fn new(options: S3Options, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let client_options = options.client_options();
        let S3Options { endpoint, region, credentials, expires, issuer, unsigned_because, .. } = options;
        let initial = credentials.map(|credentials| ExpiringCredentials { credentials, expires });
        let credentials =
            initial.map(|initial| CredentialProvider::new(initial, issuer, region.clone(), clock.clone()));
        let shared = Arc::new(ServiceState {
            credentials,
            unsigned_because,
            verifies_checksums: AtomicBool::new(false),
        });
        let protocol = Arc::new(S3Protocol::new(endpoint.clone(), None, shared.clone()));
        let client = client_options.client(&endpoint.peer, protocol, clock)?;
        let client = Client { peer: endpoint.to_string().into(), ..client };
        let checksum_headers = ChecksumHeaders::new(
            options.request_checksums,
            options.response_checksums,
            options.substitute_proofs,
        );
        let (part_bytes, buffer_budget) = (options.part_bytes, Budget::new(options.buffer_bytes));
        let client = Arc::new(client);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            client,
            endpoint,
            shared,
            regions: Mutex::default(),
            checksum_headers,
            etag_kinds: ETagKinds::default(),
            lacks_etags: AtomicBool::new(false),
            rejects_signed_chunks: AtomicBool::new(false),
            region,
            part_bytes,
            buffer_budget,
            dialect: OnceLock::new(),
            names_versions: AtomicBool::new(false),
            observed_versioning: ObservedVersioning::default(),
            uploads: Mutex::default(),
            listed_pages: ListedPages::default(),
            mapped_classes: options.mapped_classes,
        }))
    }

    /// Rejects a key that this service does not support.
    fn check_key(&self, call: &Call<'_>) -> Result<()> {
        if !self.capabilities().supports(Feature::NulInKeys) && call.key.is_some_and(|key| key.contains('\0'))
        {
            return Err(Error::new(
                Reason::InvalidKey,
                "radosgw does not support keys with the character U+0000",
            ));
        }
        Ok(())
    }

    /// Sets the dialect, if it is not known yet.
    fn set_dialect(&self, dialect: Option<Dialect>) {
        if let Some(dialect) = dialect {
            self.dialect.get_or_init(|| dialect);
        }
    }

    /// Returns true if the service is radosgw.
    async fn is_ceph(&self, context: &Context) -> Result<bool> {
        Ok(self.dialect(context).await? == Dialect::Ceph)
    }

    /// The service's dialect. Sends a request to find out, if there has been no response yet.
    async fn dialect(&self, context: &Context) -> Result<Dialect> {
        if self.dialect.get().is_none() {
            // Boxed, because it is needed only once.
            match Box::pin(self.send(context, &Call::service(Method::HEAD))).await {
                Ok(response) => drop(response.collect(0).await?),
                // An error response, such as "access denied", identifies the service too.
                Err(e) if e.kind().is_retryable() => return Err(e),
                Err(_) => {}
            }
        }
        // A service that does not identify itself is treated as plain S3.
        Ok(*self.dialect.get_or_init(|| Dialect::Plain))
    }

    fn stage_target(
        &self,
        context: &Context,
        address: &Address,
        target: WriteTarget,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        context.check()?;
        self.client.pool.check_open()?;
        request.metadata.check()?;
        let Some(this) = self.this.upgrade() else { unreachable!("a store is used only through its handle") };
        // If the response is lost, the current version is compared with the write.
        let address = address.clone().with_version(None);
        Ok(Box::new(StagedWrite::new(this, context, &address, target, request)?))
    }

    /// Records whether the service verifies checksums.
    fn set_verifies_checksums(&self, verifies_checksums: bool) {
        self.shared.verifies_checksums.store(verifies_checksums, Ordering::Relaxed);
    }

    /// Evaluates the response to a write. A service that returns the checksum verifies checksums; one that received a
    /// checksum (`was_sent`) and returns none does not.
    ///
    /// # Errors
    /// [`BadDigest`](Reason::BadDigest) if the service returns another checksum: it has stored other bytes.
    fn check_response_checksum(
        &self,
        headers: &HeaderMap,
        checksum: &Checksum,
        was_sent: bool,
    ) -> Result<()> {
        let (found, scope) = headers::checksums(headers)?;
        let found = found.into_iter().find(|found| found.algorithm() == checksum.algorithm());
        let found = found.filter(|_| scope == ChecksumScope::FullObject);
        let is_other = found.is_some_and(|found| found != *checksum);
        if found.is_some() || was_sent {
            self.set_verifies_checksums(found.is_some() && !is_other);
        }
        if is_other {
            let why = format!("the store returned checksum {found:?}; the bytes sent have {checksum:?}");
            return Err(Error::new(Reason::BadDigest, why));
        }
        Ok(())
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Store({})", self.endpoint)
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    /// The capabilities of plain S3, until a response identifies the service.
    fn capabilities(&self) -> &Capabilities {
        match self.dialect.get().copied().unwrap_or(Dialect::Plain) {
            // Only Amazon's endpoints are derived from a domain.
            Dialect::Plain if self.endpoint.domain.is_some() => &dialect::AMAZON,
            Dialect::Plain if self.endpoint.peer.host.ends_with(dialect::R2_HOST_SUFFIX) => &dialect::R2,
            dialect => dialect.capabilities(),
        }
    }

    fn prewarm(&self, bucket: &BucketName, requests: usize) {
        self.client_for_bucket(Some(bucket.as_str())).pool.prewarm(requests);
    }

    fn min_rtt(&self, bucket: &BucketName) -> Option<Duration> {
        self.client_for_bucket(Some(bucket.as_str())).pool.min_rtt()
    }

    fn object_clock(&self, bucket: &BucketName) -> ObjectClock {
        let offset_ms = self.client_for_bucket(Some(bucket.as_str())).peer_clock.offset_ms();
        ObjectClock { offset_ms, rounds_up: false }
    }

    fn accepts(&self, address: &Address, request: &StageRequest) -> bool {
        let dialects = match self.dialect.get() {
            Some(dialect) => std::slice::from_ref(dialect),
            None => &Dialect::ALL,
        };
        // The layer above knows the capabilities of plain S3, as long as the service is not identified.
        dialects.iter().all(|dialect| {
            dialect.capabilities().cover(address, request)
                && self.accepts_metadata(&request.metadata, *dialect)
        })
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.put_bucket(context, bucket).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.remove_bucket(context, bucket).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.find_bucket(context, bucket).await
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.all_buckets(context).await
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.read_versioning(context, bucket).await
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        self.write_versioning(context, bucket, versioning).await
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.read_head(context, address, &request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.read_object(context, address, &request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        context.check()?;
        self.check_write_condition(context, &request.precondition).await?;
        self.prepare_classes(context, &request.metadata).await?;
        self.stage_target(context, address, WriteTarget::Object, request)
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.delete_object(context, address, &precondition).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.list_page(context, bucket, request).await
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        self.versions_page(context, bucket, request).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.copy_object(context, request).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.replace_tags(context, address, tags).await
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        self.write_classes(context, address, &update).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.list_object_parts(context, address, after, limit).await
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.start_upload(context, address, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let algorithm = self.part_checksum_algorithm(context, address, upload).await?;
        let target = WriteTarget::Part { upload: upload.clone(), number, algorithm };
        self.stage_target(context, address, target, request)
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.copy_to_part(context, request).await
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.parts_page(context, address, upload, after, limit).await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.uploads_page(context, bucket, request).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        self.complete_upload_checked(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.abort(context, address, upload).await
    }

    async fn close(&self) -> Result<()> {
        self.client.pool.close();
        self.regions.lock().close();
        Ok(())
    }
}
