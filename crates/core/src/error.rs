//! One error type for the whole port. The *kind* names what the caller can do about the error, and by default decides
//! whether to retry. The *reason* names the cause, finely enough for a front end to choose its own code (S3, errno,
//! exit status) in one translation file.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::multipart::PartNumber;
use crate::version::VersionId;

/// The result of every call through the port.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an error, which names the action of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The addressed bucket, object or upload does not exist: do not retry.
    NotFound,
    /// A condition of the caller did not hold at the linearization point: read the object again, then decide.
    Precondition,
    /// The request itself is wrong: correct it.
    Invalid,
    /// The caller may not do this.
    Denied,
    /// The store works, but cannot accept the request now: retry later, with backoff.
    Busy,
    /// The store cannot be used now (full, read-only, unreachable, out of time): a retry elsewhere
    /// or later may succeed. A write may or may not have been applied.
    Unavailable,
    /// Bytes failed their checksum. Damage at rest persists: read another copy, if there is one. After damage in
    /// transit, a retry may succeed.
    Corrupt,
    /// A defect of the store.
    Internal,
}

impl ErrorKind {
    /// Returns true if the same request may succeed when it is simply sent again: the default for callers of the port.
    /// A retry of a write that is not idempotent needs more than this: see [`Reason::DeadlineExceeded`].
    ///
    /// Two callers deviate: the transfer manager also retries damage in transit (`CorruptData`, `BadDigest`), and a
    /// leaf classifies the responses of its service.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::Unavailable)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $kind:ident,)*) => {
        /// The cause, one level finer than [`ErrorKind`]. Each reason belongs to one kind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// The kind this reason belongs to.
            #[must_use]
            pub const fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$kind,)* }
            }

            /// Every reason, for tests that check a translation is total.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

reasons! {
    /// The bucket does not exist.
    NoSuchBucket => NotFound,
    /// The object does not exist.
    NoSuchKey => NotFound,
    /// The version does not exist.
    NoSuchVersion => NotFound,
    /// The version named is a delete marker, which cannot be read.
    DeleteMarker => NotFound,
    /// The multipart upload does not exist: completed, aborted or never created.
    NoSuchUpload => NotFound,
    /// A write or read precondition (`If-Match`, `If-None-Match`, ...) did not hold.
    PreconditionFailed => Precondition,
    /// A read condition says that the caller's copy is current (HTTP 304).
    NotModified => Precondition,
    /// The bucket exists already.
    BucketExists => Precondition,
    /// The bucket still holds objects.
    BucketNotEmpty => Precondition,
    /// A concurrent change to the same object intervened; nothing was applied.
    Conflict => Precondition,
    /// A bucket name that the rules forbid.
    InvalidBucketName => Invalid,
    /// A key that the store cannot hold.
    InvalidKey => Invalid,
    /// A key over the store's length limit (1,024 bytes of UTF-8).
    KeyTooLong => Invalid,
    /// A range that contains no byte of the object, or a part that does not exist.
    InvalidRange => Invalid,
    /// The body's checksum or MD5 is not the one the caller declared.
    BadDigest => Invalid,
    /// The body ended before the declared length.
    IncompleteBody => Invalid,
    /// The body is larger than the store or the declared length allows.
    EntityTooLarge => Invalid,
    /// A part other than the last is under 5 MiB.
    EntityTooSmall => Invalid,
    /// A part named at completion is missing or has another ETag or checksum.
    InvalidPart => Invalid,
    /// Parts named at completion are not in ascending order.
    InvalidPartOrder => Invalid,
    /// User metadata over the limit (2 KiB).
    MetadataTooLarge => Invalid,
    /// Tags over the limits or malformed.
    InvalidTag => Invalid,
    /// A version id that no version of the store can have. A store that does not know the form of its ids reports
    /// [`NoSuchVersion`](Self::NoSuchVersion) instead.
    InvalidVersionId => Invalid,
    /// Another argument is wrong; the message says which.
    InvalidArgument => Invalid,
    /// The request contradicts itself; the message says how.
    InvalidRequest => Invalid,
    /// The caller's credentials do not allow it.
    AccessDenied => Denied,
    /// The store's device has no space left for this write; deletes still work.
    Full => Unavailable,
    /// The store accepts no writes until it is reopened, after a failure that leaves the state on disk unknown; reads
    /// still work.
    ReadOnly => Unavailable,
    /// The deadline passed. A commit that was already in flight may still be applied.
    DeadlineExceeded => Unavailable,
    /// The caller cancelled. A commit that was already in flight may still be applied.
    Cancelled => Unavailable,
    /// The store is shutting down.
    ShuttingDown => Unavailable,
    /// The store could not be reached or failed with an I/O error.
    Io => Unavailable,
    /// Too many requests, or no memory window was free in time.
    Overloaded => Busy,
    /// Bytes failed their checksum, stored or in transit. They were not served.
    CorruptData => Corrupt,
    /// The store does not have this capability.
    Unsupported => Invalid,
    /// A broken invariant.
    Defect => Internal,
}

/// An error of the port: the reason, a message that says what happened and what to do, and the source.
///
/// The message is for the operator of the store: it may name files and peers, and quote peers. Only the message of an
/// error created by [`Error::for_client`] is also for clients.
pub struct Error {
    reason: Reason,
    is_final: bool,
    is_unsent: bool,
    affects_whole_bucket: bool,
    is_for_client: bool,
    part: Option<PartNumber>,
    outage_delay: Option<Duration>,
    /// Boxed: errors are rarely about one.
    delete_marker: Option<Box<FoundMarker>>,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The delete marker that hides an object, or that was named.
#[derive(Debug, Clone)]
struct FoundMarker {
    version: VersionId,
    /// When it was created, if it was named and the store reports it.
    created: Option<Timestamp>,
}

impl Error {
    /// An error with a message for the operator.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            is_final: false,
            is_unsent: false,
            affects_whole_bucket: false,
            is_for_client: false,
            part: None,
            outage_delay: None,
            delete_marker: None,
            message: message.into(),
            source: None,
        }
    }

    /// Like [`Self::new`], with the error that caused it.
    pub fn with_source(
        reason: Reason,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { source: Some(source.into()), ..Self::new(reason, message) }
    }

    /// An error whose message may be shown to the client, because the request alone explains it. The message may repeat
    /// what the client sent, but must not reveal where objects are stored.
    pub fn for_client(reason: Reason, message: impl Into<String>) -> Self {
        Self { is_for_client: true, ..Self::new(reason, message) }
    }

    /// This error with the one that caused it, which is for the operator.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// This error with another message for the operator. The reason and the marks stay, except for
    /// [`Self::is_unsent`]; this error becomes the source.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        let Self { reason, is_final, affects_whole_bucket, outage_delay, .. } = self;
        let delete_marker = self.delete_marker.clone();
        Self {
            is_final,
            affects_whole_bucket,
            outage_delay,
            delete_marker,
            ..Self::with_source(reason, message, self)
        }
    }

    /// Marks an error that the caller must not retry: attempts are used up, or would not help.
    #[must_use]
    pub fn without_retry(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// Marks an error of a request that did not reach the store: a change was certainly not applied, and will not be.
    #[must_use]
    pub fn before_sending(mut self) -> Self {
        self.is_unsent = true;
        self
    }

    /// Returns true if the request did not reach the store: see [`Self::before_sending`].
    #[must_use]
    pub const fn is_unsent(&self) -> bool {
        self.is_unsent
    }

    /// Names the part of an upload that the error is about.
    #[must_use]
    pub fn about_part(mut self, part: PartNumber) -> Self {
        self.part = Some(part);
        self
    }

    /// The part of an upload that the error is about, if it is about one.
    #[must_use]
    pub const fn part(&self) -> Option<PartNumber> {
        self.part
    }

    /// Returns true if the caller must not retry: see [`Self::without_retry`].
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.is_final
    }

    /// Marks an error due to an outage of the store that is waited out: a retry after `delay` does not count as an
    /// attempt. All requests to the store share the wait.
    #[must_use]
    pub fn during_outage(mut self, delay: Duration) -> Self {
        self.outage_delay = Some(delay);
        self
    }

    /// The delay before a retry during an outage: see [`Self::during_outage`].
    #[must_use]
    pub const fn outage_delay(&self) -> Option<Duration> {
        self.outage_delay
    }

    /// Marks an error that all other requests to the bucket would get, too: unknown access keys, a wrong clock.
    #[must_use]
    pub fn affecting_whole_bucket(mut self) -> Self {
        self.affects_whole_bucket = true;
        self
    }

    /// Returns true if other requests to the same bucket would fail like this one.
    #[must_use]
    pub fn affects_whole_bucket(&self) -> bool {
        self.affects_whole_bucket || self.reason == Reason::NoSuchBucket
    }

    /// Returns true if the error is transient or due to the caller, and so reveals nothing about the object requested.
    #[must_use]
    pub fn is_inconclusive(&self) -> bool {
        self.kind().is_retryable() || self.affects_whole_bucket()
    }

    /// Returns true if the operation may be resumed later: the failure may pass by itself or with other access keys.
    #[must_use]
    pub const fn is_resumable(&self) -> bool {
        self.kind().is_retryable() || matches!(self.kind(), ErrorKind::Denied)
    }

    /// The kind, which names what the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }

    /// The reason, which names what happened.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The delete marker that hides the object, or that was named.
    #[must_use]
    pub fn delete_marker(&self) -> Option<&VersionId> {
        self.delete_marker.as_ref().map(|marker| &marker.version)
    }

    /// When the delete marker that was named was created, if the store reports it.
    #[must_use]
    pub fn delete_marker_time(&self) -> Option<Timestamp> {
        self.delete_marker.as_ref()?.created
    }

    /// The message, without the source.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The message, if it is also for the client: see [`Self::for_client`].
    #[must_use]
    pub fn client_message(&self) -> Option<&str> {
        self.is_for_client.then_some(&self.message)
    }

    /// The bucket does not exist.
    pub fn no_such_bucket(bucket: &str) -> Self {
        Self::new(Reason::NoSuchBucket, format!("bucket {bucket:?} does not exist"))
    }

    /// The object does not exist.
    pub fn no_such_key(key: &str) -> Self {
        Self::new(Reason::NoSuchKey, format!("key {key:?} does not exist"))
    }

    /// The newest version of the object is a delete marker.
    pub fn deleted(key: &str, delete_marker: VersionId) -> Self {
        let marker = FoundMarker { version: delete_marker, created: None };
        Self { delete_marker: Some(Box::new(marker)), ..Self::no_such_key(key) }
    }

    /// The version does not exist.
    pub fn no_such_version(key: &str, version: &VersionId) -> Self {
        Self::new(Reason::NoSuchVersion, format!("key {key:?} has no version {version}"))
    }

    /// No version of the store can have this id.
    pub fn invalid_version_id(version: &VersionId) -> Self {
        Self::new(Reason::InvalidVersionId, format!("{version:?} is not a version id of this store"))
    }

    /// The version named is a delete marker, created at `created` if that is known.
    pub fn is_a_delete_marker(key: &str, version: VersionId, created: Option<Timestamp>) -> Self {
        let message = format!("version {version} of key {key:?} is a delete marker");
        let marker = FoundMarker { version, created };
        Self { delete_marker: Some(Box::new(marker)), ..Self::new(Reason::DeleteMarker, message) }
    }

    /// The upload does not exist.
    pub fn no_such_upload(upload: &str) -> Self {
        Self::new(
            Reason::NoSuchUpload,
            format!("upload {upload:?} does not exist; it may have been completed or aborted"),
        )
    }

    /// The store cannot do this; `what` completes "this store cannot ...".
    pub fn unsupported(what: &str) -> Self {
        Self::new(Reason::Unsupported, format!("this store cannot {what}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.reason, self.message)?;
        let mut cause = self.source.as_deref().map(|e| e as &dyn StdError);
        while let Some(e) = cause {
            write!(f, ": {e}")?;
            cause = e.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
