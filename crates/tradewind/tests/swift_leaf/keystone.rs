//! The `swift` leaf with tokens from a real Keystone, which may revoke them at any time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tradewind_backend::swift::{Auth, Domain, KeystoneCredentials, NameOrId, SwiftOptions, SwiftStore};
use tradewind_core::object::Expected;
use tradewind_core::store::{Select, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Clock, ObjectStore as _, SystemClock, Timestamp};

use super::support::swift::SwiftServer;
use super::{address, bucket, pattern, put, read};

/// The options of porter's store, with segments of 1 MiB.
fn options(laboratory: &SwiftServer) -> SwiftOptions {
    let party = |name: &str| NameOrId::Named(name.to_owned(), Domain::Name("yard".to_owned()));
    let (user, project, password) = (party("porter"), party("cargo"), "secret".to_owned());
    let auth = Auth::Keystone {
        url: laboratory.setting("OS_AUTH_URL"),
        login: KeystoneCredentials::Password { user, password, project },
        region: Some("harbour".to_owned()),
        interface: "public".to_owned(),
    };
    SwiftOptions { segment_bytes: 1 << 20, ..SwiftOptions::new(auth) }
}

/// A clock that is an hour slow, so that tokens seem to be valid for longer than they are.
#[derive(Debug)]
struct Slow(Arc<dyn Clock>);

impl Clock for Slow {
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0.wall().millis() - 3_600_000)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until)
    }
}

/// Writes the first half of an object, runs `between`, writes the second half and reads the whole object.
async fn write_over(store: &SwiftStore, key: &str, bytes: &Bytes, between: impl AsyncFnOnce()) {
    let mut staged = store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    let (first, second) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
    staged.write(first).await.unwrap();
    between().await;
    for piece in second.chunks(64 << 10) {
        staged.write(second.slice_ref(piece)).await.unwrap();
    }
    staged.commit(Expected::default()).await.unwrap();
    assert!(read(store, key, Select::Whole).await == *bytes, "{key}");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_token_is_renewed_in_the_middle_of_a_write() {
    // Swift validates the token of every request.
    let no_cache = [("TOKEN_CACHE", "-1")];
    let name = "revoked_token_is_renewed_in_the_middle_of_a_write";
    let Some(laboratory) = SwiftServer::with_keystone(name, &no_cache) else { return };
    let store = SwiftStore::new(options(&laboratory), SystemClock::shared()).unwrap();
    store.create_bucket(&context(), &bucket()).await.unwrap();
    let bytes = pattern(5_000_000, 1);
    write_over(&store, "first", &bytes, async || laboratory.revoke("porter")).await;
    // Before the first byte of a large object, of a small one, and of reads.
    laboratory.revoke("porter");
    put(&store, "large", &bytes).await;
    laboratory.revoke("porter");
    assert!(read(&store, "large", Select::Whole).await == bytes);
    laboratory.revoke("porter");
    put(&store, "small", &"small".into()).await;
    laboratory.revoke("porter");
    store.head_bucket(&context(), &bucket()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn short_lived_tokens_are_renewed() {
    let name = "short_lived_tokens_are_renewed";
    let Some(laboratory) = SwiftServer::with_keystone(name, &[("EXPIRATION", "5")]) else { return };
    let system: Arc<dyn Clock> = SystemClock::shared();
    let bytes = pattern(5_000_000, 1);
    // The first store renews its tokens in time, the second when they are rejected.
    for (clock, key) in [(system.clone(), "right"), (Arc::new(Slow(system)), "slow")] {
        let store = SwiftStore::new(options(&laboratory), clock).unwrap();
        if key == "right" {
            store.create_bucket(&context(), &bucket()).await.unwrap();
        }
        let expires = async || tokio::time::sleep(Duration::from_secs(6)).await;
        write_over(&store, key, &bytes, expires).await;
    }
}
