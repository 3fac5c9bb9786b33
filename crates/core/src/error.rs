//! One error for the whole port. The *kind* names what the caller can do about it and alone decides
//! retryability; the *reason* names what happened finely enough for an edge to choose its own code
//! (S3, errno, exit status) in one translation file.

use std::error::Error as StdError;
use std::fmt;

/// The result of every call through the port.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The thing addressed is not there: do not retry, create it or give up.
    NotFound,
    /// A condition the caller set did not hold at the linearization point: read again, decide anew.
    Precondition,
    /// The request itself is wrong: correct it.
    Invalid,
    /// The caller may not do this.
    Denied,
    /// The store is there and healthy but cannot take this now: retry later, with backoff.
    Busy,
    /// The store cannot be used now (full, read-only, out of reach, out of time): a retry elsewhere
    /// or later may succeed. A write may or may not have been applied.
    Unavailable,
    /// Stored bytes are not what was written: do not retry here, read another replica.
    Corrupt,
    /// A defect of the store.
    Internal,
}

impl ErrorKind {
    /// Whether the same request may succeed if it is simply sent again. Retryability is decided
    /// here and nowhere else. A retry of a write that is not idempotent needs more than this: see
    /// [`Reason::DeadlineExceeded`].
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::Unavailable)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $kind:ident,)*) => {
        /// What happened, one level finer than [`ErrorKind`]. Each reason belongs to one kind.
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
    /// The multipart upload does not exist: completed, aborted or never begun.
    NoSuchUpload => NotFound,
    /// A write or read precondition (`If-Match`, `If-None-Match`, ...) did not hold.
    PreconditionFailed => Precondition,
    /// A read condition says that the caller's copy is current (HTTP 304).
    NotModified => Precondition,
    /// The bucket exists already.
    BucketExists => Precondition,
    /// The bucket still holds objects.
    BucketNotEmpty => Precondition,
    /// A concurrent change to the same object got in between; nothing was applied.
    Conflict => Precondition,
    /// A bucket name that the rules refuse.
    InvalidBucketName => Invalid,
    /// A key that the store cannot hold.
    InvalidKey => Invalid,
    /// A key over the store's length limit (1,024 bytes of UTF-8).
    KeyTooLong => Invalid,
    /// A range that starts at or behind the object's end.
    InvalidRange => Invalid,
    /// The body's checksum or MD5 is not the one the caller promised.
    BadDigest => Invalid,
    /// The body ended before the promised length.
    IncompleteBody => Invalid,
    /// The body is larger than the store or the promise allows.
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
    /// Another argument is wrong; the message says which.
    InvalidArgument => Invalid,
    /// The request contradicts itself; the message says how.
    InvalidRequest => Invalid,
    /// The caller's credentials do not allow it.
    AccessDenied => Denied,
    /// The store's device has no room left for this write; deletes still work.
    Full => Unavailable,
    /// The store stopped taking writes after a failed sync; reads go on until it is reopened.
    ReadOnly => Unavailable,
    /// The deadline passed. A commit that was already under way may still be applied.
    DeadlineExceeded => Unavailable,
    /// The caller cancelled. A commit that was already under way may still be applied.
    Cancelled => Unavailable,
    /// The store is shutting down.
    ShuttingDown => Unavailable,
    /// The store could not be reached or failed with an I/O error.
    Io => Unavailable,
    /// Too many requests, or no memory window was free in time.
    Overloaded => Busy,
    /// Stored data failed its checksum. It was not served.
    CorruptData => Corrupt,
    /// The store does not have this capability.
    Unsupported => Invalid,
    /// A broken invariant.
    Defect => Internal,
}

/// An error of the port: reason, a message that says what happened and what to do, and the cause.
///
/// The message is for the operator of the store: it may name files, peers and what they said. Only that of an error made
/// by [`Error::of_request`] is for clients, too.
pub struct Error {
    reason: Reason,
    was_retried: bool,
    is_for_all: bool,
    is_of_request: bool,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a message for the operator.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            was_retried: false,
            is_for_all: false,
            is_of_request: false,
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

    /// An error that the request alone explains. Its message repeats what the client sent or may ask for, and names
    /// nothing of where objects lie: an edge shows it to the client.
    pub fn of_request(reason: Reason, message: impl Into<String>) -> Self {
        Self { is_of_request: true, ..Self::new(reason, message) }
    }

    /// The same failure in other words; what can be done about it stays what it was.
    #[must_use]
    pub fn retold(self, message: impl Into<String>) -> Self {
        let Self { reason, was_retried, is_for_all, .. } = self;
        Self { was_retried, is_for_all, ..Self::with_source(reason, message, self) }
    }

    /// The same, of the last of several attempts: whoever gets it need not try again.
    #[must_use]
    pub fn after_retries(mut self) -> Self {
        self.was_retried = true;
        self
    }

    /// Whether what failed was tried as often as it is worth.
    #[must_use]
    pub const fn was_retried(&self) -> bool {
        self.was_retried
    }

    /// The same, of what every other request of the caller's would get too: keys that the store does not know, a clock
    /// that is wrong.
    #[must_use]
    pub fn for_all(mut self) -> Self {
        self.is_for_all = true;
        self
    }

    /// Whether other requests to the same bucket would fail as this one did.
    #[must_use]
    pub fn is_for_all(&self) -> bool {
        self.is_for_all || self.reason == Reason::NoSuchBucket
    }

    /// Whether it is of this moment or of whoever asks, and so says nothing of what was asked for.
    #[must_use]
    pub fn says_nothing(&self) -> bool {
        self.kind().is_retryable() || self.is_for_all()
    }

    /// Whether what was begun may go on another time: the failure may pass by itself, or with other keys.
    #[must_use]
    pub const fn may_go_on(&self) -> bool {
        self.kind().is_retryable() || matches!(self.kind(), ErrorKind::Denied)
    }

    /// What the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }

    /// What happened.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The message, without the cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The message, if it is for the client, too: see [`Self::of_request`].
    #[must_use]
    pub fn client_message(&self) -> Option<&str> {
        self.is_of_request.then_some(&self.message)
    }

    /// The bucket does not exist.
    pub fn no_such_bucket(bucket: &str) -> Self {
        Self::new(Reason::NoSuchBucket, format!("bucket {bucket:?} does not exist"))
    }

    /// The object does not exist.
    pub fn no_such_key(key: &str) -> Self {
        Self::new(Reason::NoSuchKey, format!("key {key:?} does not exist"))
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
