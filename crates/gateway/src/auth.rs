//! The result of authentication, as passed to the operations: the client's identity and permissions, and declarations
//! about the body that are confirmed only at its end.
//!
//! Each request carries one [`Authenticated`] (and the port's `Context`) in its extensions. Credentials and framing
//! have been removed by then: an operation cannot see a secret or mistake an unverified header for a verified one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use http::HeaderMap;

use crate::request_id::RequestId;

/// The kind of access that a request needs to a bucket or its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read an object, its metadata, its tags.
    Read,
    /// Read a version named by its id. A public bucket does not grant it: what was replaced or deleted is no
    /// longer public.
    ReadVersion,
    /// List objects, uploads and parts, or query the bucket itself. Without a bucket: list buckets.
    List,
    /// Create, change or delete objects, uploads, tags or the bucket itself.
    Write,
}

/// The buckets that a key may access.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Buckets {
    /// All, including those created later.
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

/// The operations that a key may perform on its buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// Read and list.
    ReadOnly,
    /// Everything.
    #[default]
    ReadWrite,
}

/// The authenticated or anonymous sender of a request.
#[derive(Clone)]
pub struct Identity {
    key: Option<Key>,
    /// The buckets whose objects are public.
    public_buckets: Arc<BTreeSet<String>>,
}

#[derive(Clone)]
struct Key {
    id: Arc<str>,
    permissions: Permissions,
    buckets: Buckets,
}

impl Identity {
    /// The anonymous identity. It may only read objects of the public buckets.
    #[must_use]
    pub const fn anonymous(public_buckets: Arc<BTreeSet<String>>) -> Self {
        Self { key: None, public_buckets }
    }

    /// The holder of an access key.
    #[must_use]
    pub fn key(id: Arc<str>, permissions: Permissions, buckets: Buckets) -> Self {
        Self { key: Some(Key { id, permissions, buckets }), public_buckets: Arc::default() }
    }

    /// Adds the public buckets: a key may read their objects, too.
    #[must_use]
    pub fn with_public_buckets(self, public_buckets: Arc<BTreeSet<String>>) -> Self {
        Self { public_buckets, ..self }
    }

    /// The access key ID; `None` for anonymous requests.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.key.as_ref().map(|key| &*key.id)
    }

    /// Like [`key_id`](Self::key_id), but reference-counted.
    #[must_use]
    pub fn shared_key_id(&self) -> Option<Arc<str>> {
        self.key.as_ref().map(|key| key.id.clone())
    }

    /// Returns true if this identity has the given access. `bucket` is `None` only for listing buckets, which every key
    /// may do; the list has the buckets for which `may(Access::List, Some(name))` is true.
    #[must_use]
    pub fn may(&self, access: Access, bucket: Option<&str>) -> bool {
        self.key.as_ref().is_some_and(|key| key.may(access, bucket))
            || access == Access::Read && bucket.is_some_and(|bucket| self.public_buckets.contains(bucket))
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

/// Trailers of an aws-chunked body (`x-amz-checksum-*`). They are available once the body was read to its end and, if
/// it is signed, the trailer's signature was verified. Until then [`get`](Self::get) returns `None`.
#[derive(Debug, Clone, Default)]
pub struct Trailers(Arc<OnceLock<HeaderMap>>);

impl Trailers {
    /// The trailers; `None` before the body's end.
    #[must_use]
    pub fn get(&self) -> Option<&HeaderMap> {
        self.0.get()
    }

    /// Publishes the trailers. Only the first call has an effect.
    pub(crate) fn publish(&self, trailers: HeaderMap) {
        let _first = self.0.set(trailers);
    }
}

/// One authenticated request.
#[derive(Debug, Clone)]
pub struct Authenticated {
    /// The sender of the request.
    pub identity: Arc<Identity>,
    /// Trailers, available once the body was read.
    pub trailers: Trailers,
    /// Names announced by `x-amz-trailer`: the checksums to compute while staging.
    pub announced_trailers: Vec<http::HeaderName>,
    /// Length of the decoded body in bytes; `None` if the client did not declare it.
    pub decoded_length: Option<u64>,
    /// The request ID, as returned in `x-amz-request-id`.
    pub request_id: RequestId,
    /// The SHA-256 of the whole body if the client signed one. The body verifies it: on a mismatch it ends with an
    /// error.
    pub payload_sha256: Option<[u8; 32]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_follow_key_and_public_buckets() {
        let some = Buckets::Names(["mine".to_owned()].into());
        let reader = Identity::key("r".into(), Permissions::ReadOnly, some);
        assert!(reader.may(Access::Read, Some("mine")) && reader.may(Access::List, Some("mine")));
        assert!(!reader.may(Access::Write, Some("mine")) && !reader.may(Access::Read, Some("other")));
        assert!(reader.may(Access::List, None) && !reader.may(Access::Write, None));
        let root = Identity::key("root".into(), Permissions::ReadWrite, Buckets::All);
        assert!(root.may(Access::Write, Some("any")));
        let anonymous = Identity::anonymous(Arc::new(["open".to_owned()].into()));
        assert!(anonymous.may(Access::Read, Some("open")) && !anonymous.may(Access::List, Some("open")));
        assert!(!anonymous.may(Access::Read, Some("mine")) && !anonymous.may(Access::List, None));
        assert!(!anonymous.may(Access::ReadVersion, Some("open")));
        assert!(
            reader.may(Access::ReadVersion, Some("mine")) && !reader.may(Access::ReadVersion, Some("other"))
        );
        let reader = reader.with_public_buckets(Arc::new(["open".to_owned()].into()));
        assert!(reader.may(Access::Read, Some("open")) && reader.may(Access::Read, Some("mine")));
        assert!(!reader.may(Access::ReadVersion, Some("open")));
        assert!(!reader.may(Access::List, Some("open")) && !reader.may(Access::Read, Some("other")));
    }
}
