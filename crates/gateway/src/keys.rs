//! Access keys and the public buckets. `serve` reads them once, at startup.
//!
//! Secrets never print. Derived signing keys are cached only with their secret, in a small bounded table that only
//! requests with a valid signature fill. Results of verification are never cached.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::hmac;

use crate::auth::{Buckets, Identity, Permissions};
use tradewind_wire::sigv4::SigningKey;

/// One access key from the settings.
#[derive(Clone)]
pub struct AccessKey {
    /// The access key ID.
    pub id: String,
    /// The secret. Never printed.
    pub secret: String,
    /// The operations that it permits.
    pub permissions: Permissions,
    /// The buckets that it permits.
    pub buckets: Buckets,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .field("secret", &"<redacted>")
            .field("permissions", &self.permissions)
            .field("buckets", &self.buckets)
            .finish()
    }
}

/// The set of keys in force. Cheap to clone.
#[derive(Clone)]
pub struct Keys(Arc<KeySet>);

impl Keys {
    /// A set of keys. Objects of `public_buckets` may be read without a key.
    #[must_use]
    pub fn new(
        keys: impl IntoIterator<Item = AccessKey>,
        public_buckets: impl IntoIterator<Item = String>,
    ) -> Self {
        Self(Arc::new(KeySet::new(keys, public_buckets)))
    }

    /// The key with this ID.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<ActiveKey>> {
        self.0.keys.get(id).cloned()
    }

    /// The identity of requests without a key.
    #[must_use]
    pub fn anonymous(&self) -> Arc<Identity> {
        self.0.anonymous.clone()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.keys.len())
    }
}

struct KeySet {
    keys: HashMap<String, Arc<ActiveKey>>,
    anonymous: Arc<Identity>,
}

impl KeySet {
    fn new(
        keys: impl IntoIterator<Item = AccessKey>,
        public_buckets: impl IntoIterator<Item = String>,
    ) -> Self {
        let public_buckets: Arc<BTreeSet<String>> = Arc::new(public_buckets.into_iter().collect());
        let entry = |key: AccessKey| (key.id.clone(), Arc::new(ActiveKey::new(key, public_buckets.clone())));
        let keys = keys.into_iter().map(entry).collect();
        Self { keys, anonymous: Arc::new(Identity::anonymous(public_buckets)) }
    }
}

/// The maximum number of signing keys cached for one access key: enough for a few regions around midnight.
const MAX_SIGNING_KEYS: usize = 8;

/// A key in force with the signing keys derived from it.
pub(crate) struct ActiveKey {
    secret: String,
    identity: Arc<Identity>,
    /// Signing keys with their scopes, latest first.
    derived: ArcSwap<Vec<(Box<str>, Arc<SigningKey>)>>,
}

impl ActiveKey {
    fn new(key: AccessKey, public_buckets: Arc<BTreeSet<String>>) -> Self {
        let identity = Identity::key(key.id.as_str().into(), key.permissions, key.buckets);
        Self {
            identity: Arc::new(identity.with_public_buckets(public_buckets)),
            secret: key.secret,
            derived: ArcSwap::default(),
        }
    }

    /// The identity of the key's holder.
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The signing key of a scope (`date/region/service/aws4_request`), and true if it was cached.
    pub(crate) fn signing_key(&self, scope: &str) -> (Arc<SigningKey>, bool) {
        match self.derived.load().iter().find(|(cached, _)| **cached == *scope) {
            Some((_, key)) => (key.clone(), true),
            None => (Arc::new(SigningKey::derive(&self.secret, scope)), false),
        }
    }

    /// Returns true if `signature` is that of `text` in version 2: an HMAC-SHA1 by the secret itself. Runs in constant
    /// time.
    pub(crate) fn verify_sigv2(&self, text: &[u8], signature: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, self.secret.as_bytes());
        hmac::verify(&key, text, signature).is_ok()
    }

    /// Caches a signing key that produced a valid signature. A client without the secret can therefore not evict a
    /// cached key.
    pub(crate) fn cache_signing_key(&self, scope: &str, key: &Arc<SigningKey>) {
        self.derived.rcu(|derived| {
            let newest = std::iter::once((scope.into(), key.clone()));
            let others = derived.iter().filter(|(cached, _)| **cached != *scope).cloned();
            newest.chain(others.take(MAX_SIGNING_KEYS - 1)).collect::<Vec<_>>()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> AccessKey {
        AccessKey {
            id: id.into(),
            secret: "hush-hush".into(),
            permissions: Permissions::ReadOnly,
            buckets: Buckets::All,
        }
    }

    #[test]
    fn secrets_never_print() {
        let keys = Keys::new([key("a")], []);
        let printed = format!("{:?} {keys:?} {:?}", key("a"), keys.find("a").unwrap().identity());
        assert!(!printed.contains("hush"), "{printed}");
    }

    #[test]
    fn a_key_may_read_public_buckets() {
        let only = Buckets::Names(["mine".to_owned()].into());
        let keys = Keys::new([AccessKey { buckets: only, ..key("a") }], ["open".to_owned()]);
        let key = keys.find("a").unwrap();
        assert!(key.identity().may(crate::auth::Access::Read, Some("open")));
    }

    #[test]
    fn the_number_of_cached_signing_keys_is_bounded() {
        let keys = Keys::new([key("a")], []);
        let key = keys.find("a").unwrap();
        for day in 10..30 {
            let scope = format!("201305{day}/us-east-1/s3/aws4_request");
            let (signing, is_cached) = key.signing_key(&scope);
            assert!(!is_cached, "not cached before a signature was valid");
            key.cache_signing_key(&scope, &signing);
            assert!(key.signing_key(&scope).1);
        }
        assert_eq!(key.derived.load().len(), MAX_SIGNING_KEYS);
    }
}
