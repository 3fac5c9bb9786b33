//! The client's side of signatures, written from the specification and independently of the verifier; and a verifier
//! that has this client's key and a clock stopped at the client's date.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::future::BoxFuture;
use ring::{digest, hmac};
use tradewind_core::{Clock, Timestamp};

use crate::auth::{Buckets, Permissions};
use crate::keys::{AccessKey, Keys};
use crate::sigv4::Verifier;

pub(super) const ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
pub(super) const DATE: &str = "20130524T000000Z";
pub(super) const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";
/// `DATE` in milliseconds since 1970.
const NOW: i64 = 1_369_353_600_000;

/// The signature of a text for `scope`, in hexadecimal.
pub(super) fn sign(scope: &str, text: &[u8]) -> String {
    let mac = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
    let secret = format!("AWS4{SECRET}").into_bytes();
    let key = scope.split('/').fold(secret, |key, part| mac(&key, part.as_bytes()).as_ref().to_vec());
    hex::encode(mac(&key, text))
}

pub(super) fn sha256(data: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, data))
}

/// The signatures of a body's chunks. Each one covers the previous one.
pub(super) struct Chain {
    previous: String,
}

impl Chain {
    /// A chain that begins with the request's signature.
    pub(super) const fn new(seed: String) -> Self {
        Self { previous: seed }
    }

    pub(super) fn chunk(&mut self, chunk: &[u8]) -> &str {
        self.step("PAYLOAD", &format!("{}\n{}", sha256(b""), sha256(chunk)))
    }

    /// `text` is a line `name:value\n` for each trailer.
    pub(super) fn trailers(&mut self, text: &[u8]) -> &str {
        self.step("TRAILER", &sha256(text))
    }

    fn step(&mut self, what: &str, end: &str) -> &str {
        let text = format!("AWS4-HMAC-SHA256-{what}\n{DATE}\n{SCOPE}\n{}\n{end}", self.previous);
        self.previous = sign(SCOPE, text.as_bytes());
        &self.previous
    }
}

#[derive(Debug)]
struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(NOW)
    }

    fn sleep_until(&self, _until: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

pub(super) static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| {
    let key = AccessKey {
        id: ID.to_owned(),
        secret: SECRET.to_owned(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    Verifier::new(Keys::new([key], []), Arc::new(StoppedClock), None)
});
