//! Access keys and what anonymous requests may read: a set that is swapped whole while requests are
//! served. Secrets never print, and signing keys derived from them are kept only beside them, in a
//! small bounded table filled by requests whose signature was right. Verdicts are never kept.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::auth::{Buckets, Identity, Permissions};
use tradewind_wire::sigv4::SigningKey;

/// One access key, as settings say it.
#[derive(Clone)]
pub struct AccessKey {
    /// Its public name.
    pub id: String,
    /// Its secret. Never printed.
    pub secret: String,
    /// What it may do.
    pub permissions: Permissions,
    /// Where.
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

/// The set of keys in force. Clones share it: [`replace`](Self::replace) is seen by all.
#[derive(Clone)]
pub struct Keys(Arc<ArcSwap<Set>>);

impl Keys {
    /// The set of these keys; `anonymous` names the buckets whose objects anybody may read.
    #[must_use]
    pub fn new(
        keys: impl IntoIterator<Item = AccessKey>,
        anonymous: impl IntoIterator<Item = String>,
    ) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Set::new(keys, anonymous))))
    }

    /// Puts another set in force for requests that begin from now on.
    pub fn replace(
        &self,
        keys: impl IntoIterator<Item = AccessKey>,
        anonymous: impl IntoIterator<Item = String>,
    ) {
        self.0.store(Arc::new(Set::new(keys, anonymous)));
    }

    /// The key of this id.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<KnownKey>> {
        self.0.load().keys.get(id).cloned()
    }

    /// Who comes without a key.
    #[must_use]
    pub fn anonymous(&self) -> Arc<Identity> {
        self.0.load().anonymous.clone()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.load().keys.len())
    }
}

struct Set {
    keys: HashMap<String, Arc<KnownKey>>,
    anonymous: Arc<Identity>,
}

impl Set {
    fn new(keys: impl IntoIterator<Item = AccessKey>, anonymous: impl IntoIterator<Item = String>) -> Self {
        let readable: Arc<BTreeSet<String>> = Arc::new(anonymous.into_iter().collect());
        let known = |key: AccessKey| (key.id.clone(), Arc::new(KnownKey::new(key, readable.clone())));
        let keys = keys.into_iter().map(known).collect();
        Self { keys, anonymous: Arc::new(Identity::anonymous(readable)) }
    }
}

/// The most signing keys kept for one access key: a few regions around midnight.
const MAX_SIGNING_KEYS: usize = 8;

/// A key in force with what was derived from it.
pub(crate) struct KnownKey {
    secret: String,
    identity: Arc<Identity>,
    derived: ArcSwap<Vec<(Box<str>, Arc<SigningKey>)>>,
}

impl KnownKey {
    fn new(key: AccessKey, readable: Arc<BTreeSet<String>>) -> Self {
        let identity = Identity::key(key.id.as_str().into(), key.permissions, key.buckets);
        Self {
            identity: Arc::new(identity.with_readable(readable)),
            secret: key.secret,
            derived: ArcSwap::default(),
        }
    }

    /// Whose it is.
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The signing key of a scope (`date/region/service/aws4_request`), and whether it was at hand.
    pub(crate) fn signing_key(&self, scope: &str) -> (Arc<SigningKey>, bool) {
        match self.derived.load().iter().find(|(known, _)| **known == *scope) {
            Some((_, key)) => (key.clone(), true),
            None => (Arc::new(SigningKey::derive(&self.secret, scope)), false),
        }
    }

    /// Keeps a signing key that a right signature was made with. Nobody without the secret can make
    /// this forget another one.
    pub(crate) fn keep(&self, scope: &str, key: &Arc<SigningKey>) {
        self.derived.rcu(|derived| {
            let newest = std::iter::once((scope.into(), key.clone()));
            let others = derived.iter().filter(|(known, _)| **known != *scope).cloned();
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
    fn a_replaced_set_is_seen_by_clones() {
        let keys = Keys::new([key("a")], []);
        let clone = keys.clone();
        keys.replace([key("b")], []);
        assert!(clone.find("a").is_none() && clone.find("b").is_some());
    }

    #[test]
    fn a_key_reads_what_anybody_may() {
        let only = Buckets::Names(["mine".to_owned()].into());
        let keys = Keys::new([AccessKey { buckets: only, ..key("a") }], ["open".to_owned()]);
        let known = keys.find("a").unwrap();
        assert!(known.identity().may(crate::auth::Access::Read, Some("open")));
    }

    #[test]
    fn few_signing_keys_are_kept() {
        let keys = Keys::new([key("a")], []);
        let known = keys.find("a").unwrap();
        for day in 10..30 {
            let scope = format!("201305{day}/us-east-1/s3/aws4_request");
            let (signing, at_hand) = known.signing_key(&scope);
            assert!(!at_hand, "not kept before it proved right");
            known.keep(&scope, &signing);
            assert!(known.signing_key(&scope).1);
        }
        assert_eq!(known.derived.load().len(), MAX_SIGNING_KEYS);
    }
}
