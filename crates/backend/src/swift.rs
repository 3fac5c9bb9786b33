//! The `swift` leaf: a store that speaks OpenStack Swift's own API with a service. It holds no bytes of its own; what is
//! acknowledged is as durable as the service makes it.
//!
//! Small objects are Swift objects. Of larger ones the bytes lie in segments in a container beside the bucket's, and
//! what the key names is a static large object, written last: only then is everything known that it has to say, and
//! only then is it visible. See `names` for where things lie and `replace` for the order in which they come and go.
//!
//! What Swift does not promise: listings show a write at once unless the container server is slower than the object
//! server waits for it (then the update comes later,
//! <https://docs.openstack.org/swift/latest/overview_architecture.html#updaters>), and of two writes of a key the one
//! wins that began later by the clocks of the proxies.

mod auth;
mod buckets;
mod copy;
mod failure;
mod headers;
mod json;
mod list;
mod marker;
mod names;
mod parts;
mod protocol;
mod read;
mod replace;
mod segments;
mod session;
mod stage;
mod uploads;

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
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, Found, GetRequest, ObjectStore,
    StageRequest, Staged,
};
use tradewind_core::{Address, Body, BucketName, Clock, Context, Precondition, Tags, Traffic};

pub use self::auth::{Auth, Domain, Login, Party};
use self::replace::Companions;
use self::session::{Session, Sessions};
use self::stage::{StagedWrite, Target};
use self::uploads::Turns;
use crate::remote::answer::Answer;
use crate::remote::client::Call;
use crate::remote::pool::READ_BYTES;
use crate::remote::sending::Sending;
use tradewind_model::retry::RetryOptions;

/// Swift takes no larger object in one request: the default of its `max_file_size`.
const MOST_OBJECT_BYTES: u64 = 5 << 30;
/// An answer without anything to read.
const MOST_EMPTY_BYTES: usize = 64 << 10;
/// A service that wants a body says so within this time, Keystone's answer to it included.
const INVITATION_TIME: Duration = Duration::from_secs(5);

/// What is to be known of a service.
#[derive(Debug, Clone)]
pub struct SwiftOptions {
    /// Who asks, and where a token is got.
    pub auth: Auth,
    /// The account's URL, where it is not the one that comes with the token.
    pub account_url: Option<String>,
    /// What TLS trusts. An endpoint with `https` needs it.
    pub tls: Option<Arc<ClientConfig>>,
    /// The most connections at a time.
    pub connections: usize,
    /// What a connection reads at once, in bytes.
    pub read_bytes: usize,
    /// No connection serves a second request.
    pub is_fresh: bool,
    /// What the connections carry is counted here.
    pub traffic: Option<Arc<Traffic>>,
    /// How long connecting may take.
    pub connect_time: Duration,
    /// How long an answer may take to begin, and more the larger the request is.
    pub answer_time: Duration,
    /// How long a body may stand still.
    pub stall_time: Duration,
    /// When a request is sent again.
    pub retries: RetryOptions,
    /// Larger objects are cut into segments of this size, in bytes. Swift takes none over 5 GiB, and a thousand of them
    /// in one object, or a million in one of two levels.
    pub segment_bytes: u64,
    /// How long the segments of what was replaced or deleted stay, for those who read it still. They go with Swift's
    /// object expirer; none: they are deleted at once.
    pub grace: Duration,
    /// Reads ask all replicas for the newest state. Otherwise the first that answers is believed, and one that missed
    /// a write answers the state before it.
    pub newest: bool,
}

impl SwiftOptions {
    /// The usual ones.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        Self {
            auth,
            account_url: None,
            tls: None,
            connections: 64,
            read_bytes: READ_BYTES,
            is_fresh: false,
            traffic: None,
            connect_time: Duration::from_secs(5),
            answer_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(30),
            retries: RetryOptions::default(),
            segment_bytes: 1 << 30,
            grace: Duration::from_secs(3600),
            newest: true,
        }
    }
}

/// A store that speaks Swift's own API with a service.
pub struct SwiftStore {
    this: Weak<Self>,
    sessions: Sessions,
    /// The service does not say that it wants a body before it comes.
    is_silent: AtomicBool,
    segment_bytes: u64,
    grace: Duration,
    newest: bool,
    capabilities: Capabilities,
    /// What is known of the buckets' companions.
    companions: Mutex<HashMap<BucketName, Companions>>,
    /// Uploads that are at work here.
    turns: Turns,
}

impl SwiftStore {
    /// A store over a service. Nothing is sent yet.
    pub fn new(options: SwiftOptions, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        if options.segment_bytes == 0 || options.segment_bytes > MOST_OBJECT_BYTES {
            return Err(Error::new(Reason::InvalidArgument, "a segment has 1 byte to 5 GiB"));
        }
        let sessions = Sessions::new(&options, clock)?;
        let capabilities = Capabilities {
            kind: "swift",
            owns_buckets: true,
            atomic_buckets: false,
            conditional_writes: false,
            multipart: true,
            tags: false,
            generations: false,
            unique_etags: false,
            several_checksums: true,
            upload_metadata: false,
            tells_parts: false,
            tells_deleted: false,
            lists_checksums: false,
            refuses_at_stage: false,
            max_key_bytes: tradewind_core::name::MAX_KEY_BYTES,
            max_object_bytes: 5 << 40,
            lacks: &[],
        };
        let SwiftOptions { segment_bytes, grace, newest, .. } = options;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            sessions,
            is_silent: AtomicBool::new(false),
            segment_bytes,
            grace,
            newest,
            capabilities,
            companions: Mutex::default(),
            turns: Turns::default(),
        }))
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.sessions.clock()
    }

    fn this(&self) -> Arc<Self> {
        let Some(this) = self.this.upgrade() else { unreachable!("a store is used only through its handle") };
        this
    }

    /// Sends a request; once more with another token where this one is not accepted.
    async fn send(&self, context: &Context, call: &Call<'_>) -> Result<Answer> {
        let session = self.sessions.current(context).await?;
        match session.client.send(context, call).await {
            Err(e) if failure::is_unauthorized(&e) => {
                session.reject();
                self.sessions.current(context).await?.client.send(context, call).await
            }
            answered => answered,
        }
    }

    /// The same where the answer says nothing but headers. Its body is read, so that the connection is free for others.
    async fn send_and_drain(&self, context: &Context, call: &Call<'_>) -> Result<http::response::Parts> {
        let mut answer = self.send(context, call).await?;
        let (status, headers) = (answer.head.status, std::mem::take(&mut answer.head.headers));
        answer.collect(MOST_EMPTY_BYTES).await?;
        let (mut head, ()) = http::Response::new(()).into_parts();
        (head.status, head.headers) = (status, headers);
        Ok(head)
    }

    /// Begins a request whose body comes while it is sent. Its bytes cannot be sent again, so the token is accepted
    /// before the first of them: the service says that it wants them. One that does not say so in time is not asked
    /// again, and there a token that is not accepted fails the request; the next one gets another token.
    async fn begin(&self, context: &Context, mut call: Call<'_>, length: Option<u64>) -> Result<Sending> {
        if !self.is_silent.load(Ordering::Relaxed) {
            call.headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        }
        let session = self.sessions.current(context).await?;
        match self.begin_with(&session, context, &call, length).await {
            Err(e) if failure::is_unauthorized(&e) => {
                session.reject();
                let session = self.sessions.current(context).await?;
                self.begin_with(&session, context, &call, length).await
            }
            begun => begun,
        }
    }

    async fn begin_with(
        &self,
        session: &Session,
        context: &Context,
        call: &Call<'_>,
        length: Option<u64>,
    ) -> Result<Sending> {
        let mut sending = session.client.begin(context, call, length).await?;
        if !sending.invited(INVITATION_TIME).await? {
            tracing::debug!("the service does not say that it wants a body; it is not asked again");
            self.is_silent.store(true, Ordering::Relaxed);
        }
        Ok(sending)
    }

    async fn stage_target(
        &self,
        context: &Context,
        address: &Address,
        target: Target,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        context.check()?;
        self.sessions.check()?;
        request.metadata.check()?;
        refuse_condition(&request.precondition)?;
        Ok(Box::new(StagedWrite::new(self.this(), context, address, target, request)?))
    }
}

/// Swift evaluates no `If-Match` on a PUT or a DELETE, and `If-None-Match: *` only in each object server for itself,
/// before the body: of two writers both may find nothing, or each the other
/// (<https://docs.openstack.org/api-ref/object-store/#create-or-replace-object>).
fn refuse_condition(precondition: &Precondition) -> Result<()> {
    match precondition {
        Precondition::None => Ok(()),
        _ => Err(Error::unsupported("write on a condition: Swift evaluates none at one place")),
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
        self.stage_target(context, address, Target::Object, request).await
    }

    /// Whether there was an object Swift says of each of its servers: of two deletes both may have found it.
    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        context.check()?;
        refuse_condition(&precondition)?;
        self.remove(context, address).await?;
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

    /// A POST would replace all metadata, change the time and, where somebody wrote the object meanwhile, put the old
    /// one's metadata to the new one's bytes: there is no condition that prevents it.
    async fn set_tags(&self, context: &Context, _address: &Address, _tags: Tags) -> Result<()> {
        context.check()?;
        Err(Error::unsupported("change tags: Swift replaces all metadata, of whatever object is there then"))
    }

    async fn object_parts(
        &self,
        context: &Context,
        _address: &Address,
        _after: Option<PartNumber>,
        _limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        context.check()?;
        Err(Error::unsupported("tell an object's parts"))
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
        let marker = self.find_upload(context, address, upload).await?;
        let algorithm = marker.algorithm();
        let target = Target::Part { upload: upload.clone(), number, algorithm };
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
        self.end_upload(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.give_up(context, address, upload).await
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close();
        Ok(())
    }
}
