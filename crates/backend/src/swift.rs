//! The `swift` leaf: a store on top of a service with OpenStack Swift's native API. It keeps no object data of its own;
//! acknowledged writes are as durable as the service makes them.
//!
//! A small object is one Swift object. The bytes of a larger one are segments in a companion container, and the key
//! names a static large object. That is written last, when all its metadata is known, and makes the object visible. See
//! `names` for the layout and `replace` for the order of writes and deletes.
//!
//! Limits of Swift's guarantees: a listing shows a write at once, unless the container server takes longer than the
//! object server waits for it; then the update is asynchronous
//! (<https://docs.openstack.org/swift/latest/overview_architecture.html#updaters>). Of two writes of a key, the one
//! that began later by the proxies' clocks wins.

mod auth;
mod buckets;
mod copy;
mod json;
mod list;
mod names;
mod part_records;
mod protocol;
mod read;
mod repeats;
mod replace;
mod segments;
mod service_error;
mod session;
mod stage;
mod stored_metadata;
mod upload_marker;
mod uploads;
mod versions;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use http::header::EXPECT;
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
use tradewind_core::version::{ListVersions, Versioning, VersionsPage, null_versions};
use tradewind_core::{Address, Body, BucketName, ClassUpdate, Clock, Context, Precondition, Tags, Traffic};

pub use self::auth::{Auth, Domain, KeystoneCredentials, NameOrId};
use self::replace::CompanionState;
use self::session::{Session, SessionManager};
use self::stage::{StagedWrite, WriteTarget};
use self::uploads::UploadLocks;
use crate::remote::ProxyRules;
use crate::remote::client::{Call, RepeatGuard};
use crate::remote::client_options::ClientOptions;
use crate::remote::limits::MAX_REQUEST_OBJECT_BYTES;
use crate::remote::pool::PoolOptions;
use crate::remote::response::{ResponseHead, StoreResponse};
use crate::remote::streaming_request::StreamingRequest;
use tradewind_model::retry::RetryOptions;

/// Maximum wait for `100 Continue`. It includes the service's token validation by Keystone.
const MAX_CONTINUE_WAIT: Duration = Duration::from_secs(5);

/// Settings of a [`SwiftStore`].
#[derive(Debug, Clone)]
pub struct SwiftOptions {
    /// Credentials, and the service that issues tokens.
    pub auth: Auth,
    /// The account's URL, if not the one returned with the token.
    pub account_url: Option<String>,
    /// TLS configuration with the trusted certificates. Required for an `https` endpoint or proxy.
    pub tls: Option<Arc<ClientConfig>>,
    /// The proxies that the service is reached through.
    pub proxies: ProxyRules,
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
    /// Segment size of large objects, in bytes: at most 5 GiB. Swift allows 1000 segments per manifest, and a million
    /// with two levels of manifests.
    pub segment_bytes: u64,
    /// Retention time of the segments of replaced and deleted objects, for reads in flight. Swift's object expirer
    /// deletes them; below one second they are deleted at once.
    pub segment_grace_period: Duration,
    /// Reads compare all replicas and use the newest. Otherwise the first replica that responds is used, which may have
    /// missed a write.
    pub read_newest: bool,
}

impl SwiftOptions {
    /// Default settings.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        let ClientOptions { connections, tls, retries, response_timeout, stall_timeout } =
            ClientOptions::default();
        Self {
            auth,
            account_url: None,
            tls,
            max_connections: connections.max_connections,
            read_bytes: connections.read_bytes,
            is_single_use: connections.is_single_use,
            traffic: connections.traffic,
            proxies: connections.proxies,
            connect_timeout: connections.connect_timeout,
            response_timeout,
            stall_timeout,
            retries,
            segment_bytes: 1 << 30,
            segment_grace_period: Duration::from_secs(3600),
            read_newest: true,
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

/// A store on top of a Swift service.
pub struct SwiftStore {
    this: Weak<Self>,
    sessions: SessionManager,
    /// The service does not support `Expect: 100-continue`.
    lacks_continue: AtomicBool,
    segment_bytes: u64,
    segment_grace_period: Duration,
    read_newest: bool,
    capabilities: Capabilities,
    /// Cached existence of the buckets' companions.
    companions: Mutex<HashMap<BucketName, CompanionState>>,
    /// Locks of the uploads in use in this process.
    upload_locks: UploadLocks,
}

impl SwiftStore {
    /// Creates a store. Sends nothing.
    pub fn new(options: SwiftOptions, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        if options.segment_bytes == 0 || options.segment_bytes > MAX_REQUEST_OBJECT_BYTES {
            return Err(Error::new(Reason::InvalidArgument, "the segment size must be 1 byte to 5 GiB"));
        }
        let sessions = SessionManager::new(&options, clock)?;
        let capabilities = Capabilities {
            kind: "swift",
            owns_buckets: true,
            atomic_buckets: false,
            conditional_writes: false,
            multipart: true,
            tags: false,
            generations: false,
            unique_etags: false,
            multiple_checksums: true,
            upload_metadata: false,
            reports_all_parts: false,
            reports_deleted: false,
            listing_reports_checksums: false,
            stage_checks_bucket: false,
            versions: false,
            max_key_bytes: tradewind_core::name::MAX_KEY_BYTES,
            max_object_bytes: 5 << 40,
            reported_attributes: false,
            unsupported: &[Feature::ClassChanges, Feature::Identity],
        };
        let SwiftOptions { segment_bytes, segment_grace_period, read_newest, .. } = options;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            sessions,
            lacks_continue: AtomicBool::new(false),
            segment_bytes,
            segment_grace_period,
            read_newest,
            capabilities,
            companions: Mutex::default(),
            upload_locks: UploadLocks::default(),
        }))
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.sessions.clock()
    }

    fn this(&self) -> Arc<Self> {
        let Some(this) = self.this.upgrade() else { unreachable!("a store is used only through its handle") };
        this
    }

    /// Sends a request, and once more with a new token if the token is rejected.
    async fn send(&self, context: &Context, call: &Call<'_>) -> Result<StoreResponse> {
        self.send_guarded(context, call, None).await
    }

    /// Like [`Self::send`]. An attempt of unknown outcome is repeated only if `guard` allows it, too.
    async fn send_guarded(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
    ) -> Result<StoreResponse> {
        let session = self.sessions.current(context).await?;
        match session.client.send_guarded(context, call, guard).await {
            Err(e) if service_error::is_unauthorized(&e) => {
                session.mark_rejected();
                let session = self.sessions.current(context).await?;
                session.client.send_guarded(context, call, guard).await
            }
            sent => sent,
        }
    }

    /// Like [`Self::send`], but reads and ignores the body, so that the connection can be reused.
    async fn send_and_drain(&self, context: &Context, call: &Call<'_>) -> Result<ResponseHead> {
        self.send(context, call).await?.drain().await
    }

    /// Starts a request whose body is supplied while it is sent. The body cannot be sent again, so
    /// `Expect: 100-continue` makes the service validate the token first. It is not used any more with a service that
    /// does not respond in time; there a rejected token fails the request, and the next request gets a new token.
    async fn start_streaming(
        &self,
        context: &Context,
        mut call: Call<'_>,
        length: Option<u64>,
    ) -> Result<StreamingRequest> {
        if !self.lacks_continue.load(Ordering::Relaxed) {
            call.headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        }
        let session = self.sessions.current(context).await?;
        match self.start_streaming_with(&session, context, &call, length).await {
            Err(e) if service_error::is_unauthorized(&e) => {
                session.mark_rejected();
                let session = self.sessions.current(context).await?;
                self.start_streaming_with(&session, context, &call, length).await
            }
            started => started,
        }
    }

    async fn start_streaming_with(
        &self,
        session: &Session,
        context: &Context,
        call: &Call<'_>,
        length: Option<u64>,
    ) -> Result<StreamingRequest> {
        let mut sending = session.client.start_streaming(context, call, length).await?;
        if !sending.wait_for_continue(MAX_CONTINUE_WAIT).await? {
            tracing::debug!("the service sends no 100 Continue: Expect is no longer used");
            self.lacks_continue.store(true, Ordering::Relaxed);
        }
        Ok(sending)
    }

    async fn stage_target(
        &self,
        context: &Context,
        address: &Address,
        target: WriteTarget,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        context.check()?;
        self.sessions.check_open()?;
        request.metadata.check()?;
        reject_condition(&request.precondition)?;
        Ok(Box::new(StagedWrite::new(self.this(), context, address, target, request)?))
    }
}

/// Rejects conditional writes. Swift ignores `If-Match` on a PUT or a DELETE. It evaluates `If-None-Match: *` in each
/// object server separately, before the body: two concurrent writers may both succeed or both fail
/// (<https://docs.openstack.org/api-ref/object-store/#create-or-replace-object>).
fn reject_condition(precondition: &Precondition) -> Result<()> {
    match precondition {
        Precondition::None => Ok(()),
        _ => {
            Err(Error::unsupported("make conditional writes: Swift does not evaluate conditions atomically"))
        }
    }
}

impl fmt::Debug for SwiftStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SwiftStore({})", self.sessions.account())
    }
}

#[async_trait]
impl ObjectStore for SwiftStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn object_clock(&self, _: &BucketName) -> ObjectClock {
        ObjectClock { offset_ms: self.sessions.clock_offset_ms(), rounds_up: true }
    }

    /// Metadata of any kind has a place: in headers, or in the companion. A key may be too long once it is escaped.
    fn accepts(&self, address: &Address, _: &StageRequest) -> bool {
        names::object(address.key.as_str()).is_ok()
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.put_container(context, bucket).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.delete_container(context, bucket).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.find_bucket(context, bucket).await
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.all_buckets(context).await
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.head_bucket(context, bucket).await?;
        Ok(Versioning::Off)
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        _versioning: Versioning,
    ) -> Result<()> {
        self.head_bucket(context, bucket).await?;
        Err(Error::unsupported("keep versions of objects"))
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.require_current(context, address).await?;
        self.read_head(context, address, &request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.require_current(context, address).await?;
        self.read_object(context, address, &request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.stage_target(context, address, WriteTarget::Object, request).await
    }

    /// The result assumes that the object existed: each of Swift's object servers reports that separately, so two
    /// concurrent deletes may both find it. A version other than the `null` version never exists.
    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        context.check()?;
        reject_condition(&precondition)?;
        let version = address.version.clone();
        match self.require_current(context, address).await {
            Err(e) if e.reason() == Reason::NoSuchVersion => {
                return Ok(Deleted { existed: false, version, is_delete_marker: false });
            }
            current => current?,
        }
        self.delete_object(context, address).await?;
        Ok(Deleted { existed: true, version, is_delete_marker: false })
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
        null_versions(self.list(context, bucket, &request.as_list_request()).await?, request)
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.copy_object(context, request).await
    }

    /// Unsupported. A POST replaces all metadata, changes the modification time and, if the object was overwritten
    /// concurrently, combines the old metadata with the new bytes. No condition prevents that.
    async fn set_tags(&self, context: &Context, _address: &Address, _tags: Tags) -> Result<()> {
        context.check()?;
        Err(Error::unsupported("change tags: Swift would replace all metadata, even of a newer object"))
    }

    /// Unsupported, for the reasons of [`set_tags`](Self::set_tags).
    async fn set_classes(&self, context: &Context, _address: &Address, _update: ClassUpdate) -> Result<()> {
        context.check()?;
        Err(Error::unsupported("change classes: Swift would replace all metadata, even of a newer object"))
    }

    async fn object_parts(
        &self,
        context: &Context,
        _address: &Address,
        _after: Option<PartNumber>,
        _limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        context.check()?;
        Err(Error::unsupported("list an object's parts"))
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
        let marker = self.find_upload(context, address, upload).await?;
        let algorithm = marker.algorithm();
        let target = WriteTarget::Part { upload: upload.clone(), number, algorithm };
        self.stage_target(context, address, target, request).await
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
        self.complete_in_background(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.abort(context, address, upload).await
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close();
        Ok(())
    }
}
