//! What authentication found out, as the operations see it: who asks and what they may do, and the
//! facts about the body that only its end will confirm.
//!
//! The operations find one [`Authenticated`] (and the port's `Context`) in each request's extensions.
//! By then credentials and framing are gone from the request: operations cannot see a secret and
//! cannot mistake an unverified header for a verified one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use http::HeaderMap;

use crate::request_id::RequestId;

/// What a request wants to do to a bucket or to what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read an object, its metadata, its tags.
    Read,
    /// List objects, uploads and parts, or look at the bucket itself. Without a bucket: list buckets.
    List,
    /// Make, change or remove objects, uploads, tags or the bucket itself.
    Write,
}

/// Which buckets a key may touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Buckets {
    /// Every one, those not yet made too.
    #[default]
    All,
    /// Only these.
    Names(BTreeSet<String>),
}

impl Buckets {
    fn contain(&self, bucket: &str) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.contains(bucket),
        }
    }
}

/// What a key may do with its buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// Read and list.
    ReadOnly,
    /// Everything.
    #[default]
    ReadWrite,
}

/// Who asks.
#[derive(Clone)]
pub struct Identity {
    key: Option<Key>,
    /// The buckets whose objects anybody may read.
    readable: Arc<BTreeSet<String>>,
}

#[derive(Clone)]
struct Key {
    id: Arc<str>,
    permissions: Permissions,
    buckets: Buckets,
}

impl Identity {
    /// Nobody in particular: may read objects of the buckets named, and nothing else.
    #[must_use]
    pub const fn anonymous(readable: Arc<BTreeSet<String>>) -> Self {
        Self { key: None, readable }
    }

    /// The holder of an access key.
    #[must_use]
    pub fn key(id: Arc<str>, permissions: Permissions, buckets: Buckets) -> Self {
        Self { key: Some(Key { id, permissions, buckets }), readable: Arc::default() }
    }

    /// The same where anybody may read the objects of the buckets named: so may who has a key.
    #[must_use]
    pub fn with_readable(self, readable: Arc<BTreeSet<String>>) -> Self {
        Self { readable, ..self }
    }

    /// The access key's id; `None` for anonymous requests.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.key.as_ref().map(|key| &*key.id)
    }

    /// The same, to be kept.
    #[must_use]
    pub fn client(&self) -> Option<Arc<str>> {
        self.key.as_ref().map(|key| key.id.clone())
    }

    /// Whether this identity may do that. `bucket` is `None` only for listing buckets, which every
    /// key may; which of them it sees is `may(Access::List, Some(name))` for each.
    #[must_use]
    pub fn may(&self, access: Access, bucket: Option<&str>) -> bool {
        self.key.as_ref().is_some_and(|key| key.may(access, bucket))
            || access == Access::Read && bucket.is_some_and(|bucket| self.readable.contains(bucket))
    }
}

impl Key {
    fn may(&self, access: Access, bucket: Option<&str>) -> bool {
        let permitted = access != Access::Write || self.permissions == Permissions::ReadWrite;
        permitted
            && match bucket {
                Some(bucket) => self.buckets.contain(bucket),
                None => access == Access::List,
            }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key_id() {
            None => f.write_str("anonymous"),
            Some(id) => write!(f, "key {id}"),
        }
    }
}

/// Trailers of an aws-chunked body (`x-amz-checksum-*`). They are there once the body was read to its
/// end and, where it is signed, the trailer's signature was verified; [`get`](Self::get) answers
/// `None` before.
#[derive(Debug, Clone, Default)]
pub struct Trailers(Arc<OnceLock<HeaderMap>>);

impl Trailers {
    /// The trailers, where the body's end was reached.
    #[must_use]
    pub fn get(&self) -> Option<&HeaderMap> {
        self.0.get()
    }

    /// Publishes the trailers. Only the first call counts.
    pub(crate) fn publish(&self, trailers: HeaderMap) {
        let _first = self.0.set(trailers);
    }
}

/// One authenticated request.
#[derive(Debug, Clone)]
pub struct Authenticated {
    /// Who asks.
    pub identity: Arc<Identity>,
    /// Trailers, once the body was read.
    pub trailers: Trailers,
    /// Names that `x-amz-trailer` announced: what checksum to plan for at staging.
    pub announced_trailers: Vec<http::HeaderName>,
    /// Bytes in the decoded body, where the client said.
    pub decoded_length: Option<u64>,
    /// The request's id, as answered in `x-amz-request-id`.
    pub request_id: RequestId,
    /// The SHA-256 of the whole body where the client signed one. The body verifies it itself: its
    /// last bytes are followed by an error where it differs.
    pub payload_sha256: Option<[u8; 32]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights() {
        let some = Buckets::Names(["mine".to_owned()].into());
        let reader = Identity::key("r".into(), Permissions::ReadOnly, some);
        assert!(reader.may(Access::Read, Some("mine")) && reader.may(Access::List, Some("mine")));
        assert!(!reader.may(Access::Write, Some("mine")) && !reader.may(Access::Read, Some("other")));
        assert!(reader.may(Access::List, None) && !reader.may(Access::Write, None));
        let root = Identity::key("root".into(), Permissions::ReadWrite, Buckets::All);
        assert!(root.may(Access::Write, Some("any")));
        let nobody = Identity::anonymous(Arc::new(["open".to_owned()].into()));
        assert!(nobody.may(Access::Read, Some("open")) && !nobody.may(Access::List, Some("open")));
        assert!(!nobody.may(Access::Read, Some("mine")) && !nobody.may(Access::List, None));
        let reader = reader.with_readable(Arc::new(["open".to_owned()].into()));
        assert!(reader.may(Access::Read, Some("open")) && reader.may(Access::Read, Some("mine")));
        assert!(!reader.may(Access::List, Some("open")) && !reader.may(Access::Read, Some("other")));
    }
}
