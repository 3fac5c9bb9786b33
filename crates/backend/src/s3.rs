//! The `s3` leaf: a store that speaks S3 with a service. It holds no bytes of its own; what is acknowledged is as
//! durable as the service makes it.

mod buckets;
mod chunks;
mod copy;
mod endpoint;
mod failure;
mod headers;
mod list;
mod parts;
mod protocol;
mod read;
mod stage;
mod uploads;
mod xml;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, Found, GetRequest, ObjectStore,
    StageRequest, Staged,
};
use tradewind_core::{Address, Algorithm, Body, BucketName, Budget, Clock, Context, Precondition, Tags};
use tradewind_wire::sigv4::{Credentials, Signer};

pub use self::endpoint::{Endpoint, Style};
use self::protocol::S3;
use self::stage::{StagedWrite, Target};
use crate::remote::client::{Call, Client};
use crate::remote::payload::Held;
use crate::remote::pool::Pool;
use crate::remote::query::Query;
use tradewind_model::retry::{RetryBudget, RetryOptions};

/// An answer without anything to read.
const MOST_EMPTY_BYTES: usize = 64 << 10;

/// What is to be known of a service.
#[derive(Debug, Clone)]
pub struct S3Options {
    /// Where it answers.
    pub endpoint: Endpoint,
    /// Its region, part of every signature.
    pub region: String,
    /// Who asks; `None` asks without a signature.
    pub credentials: Option<Credentials>,
    /// What TLS trusts. An endpoint with `https` needs it.
    pub tls: Option<Arc<ClientConfig>>,
    /// The most connections at a time.
    pub connections: usize,
    /// How long connecting may take.
    pub connect_time: Duration,
    /// How long an answer may take to begin, and more the larger the request is.
    pub answer_time: Duration,
    /// How long a body may stand still.
    pub stall_time: Duration,
    /// When a request is sent again.
    pub retries: RetryOptions,
    /// Objects up to this size, in bytes, go out whole, larger ones in parts of it. S3 takes none under 5 MiB.
    pub part_bytes: usize,
    /// What all writes of unknown size may gather together, in bytes.
    pub gathered_bytes: usize,
}

impl S3Options {
    /// The usual ones.
    #[must_use]
    pub fn new(endpoint: Endpoint, region: String, credentials: Option<Credentials>) -> Self {
        Self {
            endpoint,
            region,
            credentials,
            tls: None,
            connections: 64,
            connect_time: Duration::from_secs(5),
            answer_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(30),
            retries: RetryOptions::default(),
            part_bytes: 8 << 20,
            gathered_bytes: 64 << 20,
        }
    }
}

/// A store that speaks S3 with a service.
pub struct S3Store {
    this: Weak<Self>,
    client: Arc<Client>,
    region: String,
    part_bytes: usize,
    gathering: Budget,
    capabilities: Capabilities,
    /// Whether the store has answered a checksum that it was told.
    trailers: AtomicBool,
    /// Unsigned requests do not say how their bodies are framed.
    is_signed: bool,
    /// Which checksum the parts of an upload carry, for uploads begun or seen here.
    uploads: Mutex<HashMap<UploadId, Option<Algorithm>>>,
}

impl S3Store {
    /// A store over a service. Nothing is sent yet.
    pub fn new(options: S3Options, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let S3Options { endpoint, region, credentials, tls, .. } = options;
        let is_signed = credentials.is_some();
        if endpoint.peer.is_tls && tls.is_none() {
            return Err(Error::new(Reason::InvalidArgument, "an https endpoint needs to know what to trust"));
        }
        let pool = Pool::new(
            endpoint.peer.clone(),
            tls.filter(|_| endpoint.peer.is_tls),
            options.connections,
            options.connect_time,
            clock.clone(),
        );
        let client = Client {
            peer: endpoint.peer.to_string().into(),
            protocol: Arc::new(S3 {
                endpoint,
                signer: credentials.map(|credentials| Signer::new(credentials, region.clone())),
            }),
            pool: Arc::new(pool),
            retries: options.retries,
            budget: Arc::new(RetryBudget::new()),
            clock,
            answer_time: options.answer_time,
            stall_time: options.stall_time,
        };
        let capabilities = Capabilities {
            kind: "s3",
            owns_buckets: true,
            atomic_buckets: true,
            conditional_writes: true,
            multipart: true,
            tags: true,
            generations: false,
            unique_etags: false,
            several_checksums: false,
            lists_checksums: true,
            upload_metadata: false,
            tells_parts: false,
            tells_deleted: false,
            refuses_at_stage: false,
            max_key_bytes: tradewind_core::name::MAX_KEY_BYTES,
            max_object_bytes: 5 << 40,
        };
        let (part_bytes, gathering) = (options.part_bytes, Budget::new(options.gathered_bytes));
        let client = Arc::new(client);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            client,
            trailers: AtomicBool::new(false),
            is_signed,
            region,
            part_bytes,
            gathering,
            capabilities,
            uploads: Mutex::default(),
        }))
    }

    fn stage_target(
        &self,
        context: &Context,
        address: &Address,
        target: Target,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        context.check()?;
        self.client.pool.check()?;
        request.metadata.check()?;
        let Some(this) = self.this.upgrade() else { unreachable!("a store is used only through its handle") };
        Ok(Box::new(StagedWrite::new(this, context, address, target, request)?))
    }

    /// Whether checksums may follow a body. A store that does not know them would keep the frame as if it were part of
    /// the object: only one is asked that has answered a checksum.
    fn takes_trailers(&self) -> bool {
        self.is_signed && self.trailers.load(Ordering::Relaxed)
    }

    /// The store was told a checksum, and answered it or not.
    fn learn_trailers(&self, has_answered: bool) {
        self.trailers.store(has_answered, Ordering::Relaxed);
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Store({})", self.client.peer)
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.make_bucket(context, bucket).await
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

    async fn head(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<()>> {
        self.read_head(context, address, &request).await
    }

    async fn get(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<Body>> {
        self.read_bytes(context, address, &request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.stage_target(context, address, Target::Object, request)
    }

    /// DeleteObject. S3 does not say whether there was an object: it is taken for granted.
    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        let mut call = Call::object(Method::DELETE, &address.bucket, address.key.as_str());
        headers::write_precondition(&precondition, &mut call.headers)?;
        call.may_repeat = precondition == Precondition::None;
        self.client.send(context, &call).await?.collect(MOST_EMPTY_BYTES).await?;
        Ok(Deleted { existed: true })
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.list_page(context, bucket, request).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.copy_object(context, request).await
    }

    /// PutObjectTagging, and DeleteObjectTagging where there are none.
    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        let method = if tags.is_empty() { Method::DELETE } else { Method::PUT };
        let mut call = Call::object(method, &address.bucket, address.key.as_str());
        call.query = Query::default().flag("tagging");
        if !tags.is_empty() {
            let mut document = "<Tagging><TagSet>".to_owned();
            for (key, value) in tags.pairs() {
                document.push_str("<Tag><Key>");
                xml::escape(key, &mut document);
                document.push_str("</Key><Value>");
                xml::escape(value, &mut document);
                document.push_str("</Value></Tag>");
            }
            document.push_str("</TagSet></Tagging>");
            call.payload = Held::of([Bytes::from(document)]);
        }
        self.client.send(context, &call).await?.collect(MOST_EMPTY_BYTES).await.map(drop)
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.parts_of_object(context, address, after, limit).await
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.begin_upload(context, address, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let algorithm = self.checksum_of_parts(context, address, upload).await?;
        self.stage_target(context, address, Target::Part(upload.clone(), number, algorithm), request)
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
        self.end_upload(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.give_up(context, address, upload).await
    }

    async fn close(&self) -> Result<()> {
        self.client.pool.close();
        Ok(())
    }
}
