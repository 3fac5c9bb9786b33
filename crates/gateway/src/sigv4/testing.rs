//! A client that signs requests, for tests only. It is written from the specification and independently of the
//! verifier.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use ring::hmac;
use tradewind_core::{Clock, Timestamp};

use crate::auth::{Buckets, Permissions};
use crate::keys::{AccessKey, Keys};
use tradewind_wire::sigv4::{AmzDate, ChunkSignatureChain, EMPTY_SHA256, SigningKey, sha256};

/// The credentials and date of a signing client.
pub(crate) struct Signer {
    pub(crate) id: &'static str,
    pub(crate) secret: &'static str,
    pub(crate) date: &'static str,
    pub(crate) region: &'static str,
}

pub(crate) const SIGNER: Signer = Signer {
    id: "AKIAIOSFODNN7EXAMPLE",
    secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    date: "20130524T000000Z",
    region: "us-east-1",
};

/// 2013-05-24T00:00:00Z, the time at which AWS's examples were signed.
pub(crate) const SIGNED_AT: i64 = 1_369_353_600;

/// A clock that is stopped at a wall time.
#[derive(Debug)]
pub(crate) struct StoppedClock(pub(crate) i64);

impl Clock for StoppedClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0 * 1000)
    }

    fn sleep_until(&self, _until: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// The signer's key, with all permissions.
pub(crate) fn keys() -> Keys {
    let key = AccessKey {
        id: SIGNER.id.into(),
        secret: SIGNER.secret.into(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    Keys::new([key], [])
}

impl Signer {
    pub(crate) fn scope(&self) -> String {
        format!("{}/{}/s3/aws4_request", &self.date[..8], self.region)
    }

    fn signature(&self, canonical: &str) -> [u8; 32] {
        let scope = self.scope();
        let text = format!(
            "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
            self.date,
            hex::encode(sha256(canonical.as_bytes()))
        );
        SigningKey::derive(self.secret, &scope).sign(text.as_bytes())
    }

    /// Adds date, payload hash and signature to a request whose path and query are canonical. Signs all its headers.
    /// Returns the signature.
    pub(crate) fn sign(&self, request: &mut Request<()>, payload: &str) -> [u8; 32] {
        self.sign_with_names(request, payload, str::to_owned)
    }

    /// Like [`sign`](Self::sign), but changes the list of signed names before signing.
    pub(crate) fn sign_with_names(
        &self,
        request: &mut Request<()>,
        payload: &str,
        change: impl Fn(&str) -> String,
    ) -> [u8; 32] {
        let headers = request.headers_mut();
        headers.insert("x-amz-date", self.date.parse().unwrap());
        headers.insert("x-amz-content-sha256", payload.parse().unwrap());
        let names = change(&header_lines(request).0);
        let line = |name| format!("{name}:{}\n", request.headers()[name].to_str().unwrap());
        let lines: String = names.split(';').map(line).collect();
        let canonical = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{payload}",
            request.method(),
            request.uri().path(),
            sorted(request.uri().query().unwrap_or_default()),
        );
        let signature = self.signature(&canonical);
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={names},Signature={}",
            self.id,
            self.scope(),
            hex::encode(signature)
        );
        request.headers_mut().insert("authorization", value.parse().unwrap());
        signature
    }

    /// A URL signed in version 2. The signed text has `signed.0` (`Content-MD5` and `Content-Type`) before the time of
    /// expiry, and `signed.1` (the `x-amz-*` headers and the resource) after it.
    pub(crate) fn presign_v2(
        &self,
        method: &str,
        target: &str,
        signed: (&str, &str),
        expires_at: i64,
    ) -> String {
        use base64::Engine as _;
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, self.secret.as_bytes());
        let text = format!("{method}\n{}\n{expires_at}\n{}", signed.0, signed.1);
        let signature = hmac::sign(&key, text.as_bytes());
        let signature = base64::engine::general_purpose::STANDARD.encode(signature);
        let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        let mark = if target.contains('?') { '&' } else { '?' };
        format!("{target}{mark}AWSAccessKeyId={}&Signature={signature}&Expires={expires_at}", self.id)
    }

    /// Adds the signature to the query. Signs all headers of the request.
    pub(crate) fn presign(&self, request: &mut Request<()>, expires: &str) {
        let (names, lines) = header_lines(request);
        let credential = format!("{}/{}", self.id, self.scope()).replace('/', "%2F");
        let signed_names = names.replace(';', "%3B");
        let mut query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={}&X-Amz-Expires={expires}&X-Amz-SignedHeaders={signed_names}",
            self.date
        );
        if let Some(more) = request.uri().query() {
            query = format!("{query}&{more}");
        }
        let path = request.uri().path().to_owned();
        let canonical =
            format!("{}\n{path}\n{}\n{lines}\n{names}\nUNSIGNED-PAYLOAD", request.method(), sorted(&query));
        let signature = hex::encode(self.signature(&canonical));
        *request.uri_mut() = format!("{path}?{query}&X-Amz-Signature={signature}").parse().unwrap();
    }
}

fn header_lines(request: &Request<()>) -> (String, String) {
    let headers: BTreeMap<&str, &str> =
        request.headers().iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
    let names: Vec<&str> = headers.keys().copied().collect();
    let lines = headers.iter().map(|(n, v)| format!("{n}:{v}\n")).collect();
    (names.join(";"), lines)
}

fn sorted(query: &str) -> String {
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|p| if p.contains('=') { p.to_owned() } else { format!("{p}=") })
        .collect();
    pairs.sort();
    pairs.join("&")
}

/// The server's side of a chain of chunk signatures.
pub(crate) fn chunk_signatures(
    secret: &str,
    date: &str,
    scope: &str,
    seed: &[u8; 32],
) -> ChunkSignatureChain {
    let date = AmzDate::parse(date.as_bytes()).unwrap();
    ChunkSignatureChain::new(Arc::new(SigningKey::derive(secret, scope)), &date, scope, seed)
}

/// The client's side of a chain of chunk signatures.
pub(crate) struct ClientSignatureChain {
    key: SigningKey,
    date: String,
    scope: String,
    previous: String,
}

impl ClientSignatureChain {
    pub(crate) fn new(secret: &str, date: &str, scope: &str, seed: &[u8; 32]) -> Self {
        let previous = hex::encode(seed);
        Self {
            key: SigningKey::derive(secret, scope),
            date: date.to_owned(),
            scope: scope.to_owned(),
            previous,
        }
    }

    /// The signature of a `PAYLOAD` or a `TRAILER` with the given hash.
    pub(crate) fn sign(&mut self, what: &str, hash: &[u8; 32]) -> String {
        let Self { date, scope, previous, .. } = self;
        let empty = if what == "PAYLOAD" { format!("{EMPTY_SHA256}\n") } else { String::new() };
        let hash = hex::encode(hash);
        let text = format!("AWS4-HMAC-SHA256-{what}\n{date}\n{scope}\n{previous}\n{empty}{hash}");
        self.previous = hex::encode(self.key.sign(text.as_bytes()));
        self.previous.clone()
    }
}
