//! Headers of checksums, and services that refuse them: `x-amz-checksum-*`, `x-amz-sdk-checksum-algorithm`,
//! `x-amz-checksum-mode` and trailers. Some services reject every request that has one of them.
//!
//! A refusal is believed only if the same request succeeds without these headers. Then requests of its kind have none for
//! an hour. The body of a streamed request is gone when the refusal arrives, so that only the next attempt can prove it:
//! until then, the refusal is suspected. Bodies in memory are sent with Content-MD5 instead. The MD5 of a written body is
//! also compared with the ETag, if that is an MD5, and so is the body of a whole object that is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method};
use parking_lot::Mutex;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Checksum, ChecksumScope, Context, ETag};

use super::S3Store;
use super::headers::{self, BodyDigests, CONTENT_MD5};
use super::protocol::TRAILER;
use super::service_error::ServiceError;
use crate::remote::client::{Call, RepeatGuard};
use crate::remote::header_fields;
use crate::remote::response::{ExpectedDigest, OmittedChecksums, StoreResponse};

/// Time for which a proven refusal is remembered.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(3600);
/// Time in which a retry must prove a suspected refusal.
const SUSPICION_LIFETIME: Duration = Duration::from_secs(60);
/// The beginnings of the names by which an error response names a checksum header, or the framing with a trailer.
const REFUSED_NAMES: [&str; 4] =
    ["x-amz-checksum-", "x-amz-sdk-checksum-algorithm", TRAILER, "streaming-unsigned-payload-trailer"];

/// The use of checksum headers, named as in the settings of AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChecksumUse {
    /// In each request that supports them, unless the service refuses them.
    #[default]
    WhenSupported,
    /// Only in requests that require them. No request of this leaf does.
    WhenRequired,
}

/// The proof of a transfer without checksum headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubstituteProof {
    /// The service has compared the body with Content-MD5.
    ContentMd5,
    /// The MD5 of the body was compared with the ETag.
    ETag,
    /// Only the length was compared.
    Length,
}

impl SubstituteProof {
    /// All kinds of proof.
    pub const ALL: [Self; 3] = [Self::ContentMd5, Self::ETag, Self::Length];
}

/// Numbers of requests without checksum headers, by what proved their bodies instead. They only grow.
#[derive(Debug, Default)]
pub struct SubstituteProofs {
    content_md5: AtomicU64,
    etag: AtomicU64,
    length: AtomicU64,
}

impl SubstituteProofs {
    /// The number of requests with this proof.
    #[must_use]
    pub fn count(&self, proof: SubstituteProof) -> u64 {
        self.counter(proof).load(Ordering::Relaxed)
    }

    fn record(&self, proof: SubstituteProof) {
        self.counter(proof).fetch_add(1, Ordering::Relaxed);
    }

    const fn counter(&self, proof: SubstituteProof) -> &AtomicU64 {
        match proof {
            SubstituteProof::ContentMd5 => &self.content_md5,
            SubstituteProof::ETag => &self.etag,
            SubstituteProof::Length => &self.length,
        }
    }
}

/// The kind of request, because a service may refuse the headers of one kind only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// GET and HEAD, with `x-amz-checksum-mode`.
    Read,
    /// All others.
    Write,
}

impl RequestKind {
    fn from_method(method: &Method) -> Self {
        if matches!(*method, Method::GET | Method::HEAD) { Self::Read } else { Self::Write }
    }
}

/// The reason why a request has no checksum headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Omission {
    /// By the settings, or by a proven refusal.
    Settled,
    /// A refusal is suspected. The outcome of this request decides.
    Trial,
}

/// A refusal of checksum headers in one kind of request.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    is_proven: bool,
    until: Duration,
}

/// The use of checksum headers in requests of one kind.
#[derive(Debug, Default)]
struct KindState {
    setting: ChecksumUse,
    refusal: Mutex<Option<Refusal>>,
}

/// The use of checksum headers in requests to one store.
#[derive(Debug, Default)]
pub(super) struct ChecksumHeaders {
    reads: KindState,
    writes: KindState,
    /// The service has returned the checksum of an object, so it does not refuse to.
    returns_checksums: AtomicBool,
    proofs: Arc<SubstituteProofs>,
}

impl ChecksumHeaders {
    /// The state at the start of a store. `requests` applies to writes, `responses` to reads.
    pub fn new(requests: ChecksumUse, responses: ChecksumUse, proofs: Arc<SubstituteProofs>) -> Self {
        let state = |setting| KindState { setting, refusal: Mutex::default() };
        Self {
            reads: state(responses),
            writes: state(requests),
            returns_checksums: AtomicBool::new(false),
            proofs,
        }
    }

    const fn state(&self, kind: RequestKind) -> &KindState {
        match kind {
            RequestKind::Read => &self.reads,
            RequestKind::Write => &self.writes,
        }
    }

    /// The reason to omit the headers now; `None` if they are sent.
    pub fn omission(&self, kind: RequestKind, now: Duration) -> Option<Omission> {
        let state = self.state(kind);
        if state.setting == ChecksumUse::WhenRequired {
            return Some(Omission::Settled);
        }
        let refusal = (*state.refusal.lock()).filter(|refusal| now < refusal.until)?;
        Some(if refusal.is_proven { Omission::Settled } else { Omission::Trial })
    }

    /// Records a refusal that the next attempt must prove. A proven one remains.
    pub fn suspect_refusal(&self, kind: RequestKind, now: Duration) {
        let mut refusal = self.state(kind).refusal.lock();
        if !refusal.is_some_and(|known| known.is_proven && now < known.until) {
            *refusal = Some(Refusal { is_proven: false, until: now + SUSPICION_LIFETIME });
        }
    }

    /// Records that a request has succeeded without the headers after it was refused with them. A refusal that is already
    /// proven keeps its time.
    pub fn prove_refusal(&self, kind: RequestKind, now: Duration) {
        let mut refusal = self.state(kind).refusal.lock();
        if !refusal.is_some_and(|known| known.is_proven && now < known.until) {
            *refusal = Some(Refusal { is_proven: true, until: now + REFUSAL_LIFETIME });
            if kind == RequestKind::Read {
                self.returns_checksums.store(false, Ordering::Relaxed);
            }
            tracing::info!(?kind, "the store refuses checksum headers: they are omitted for an hour");
        }
    }

    /// Records that a request was rejected without the headers, too: they were not the cause.
    pub fn drop_suspicion(&self, kind: RequestKind) {
        let mut refusal = self.state(kind).refusal.lock();
        *refusal = refusal.filter(|known| known.is_proven);
    }

    /// Records that the service has returned the checksum of an object.
    pub fn record_returned_checksum(&self) {
        self.returns_checksums.store(true, Ordering::Relaxed);
    }

    /// Returns true if the error of a request may be due to its checksum headers.
    fn may_be_refused(&self, method: &Method, sent: &HeaderMap, error: &Error) -> bool {
        if !sent.keys().any(is_checksum_header) {
            return false;
        }
        // A response to HEAD has no body that could name the header.
        let is_bare_400 = |response: &ServiceError| response.status == 400 && response.code.is_empty();
        match *method {
            Method::HEAD => {
                !self.returns_checksums.load(Ordering::Relaxed)
                    && ServiceError::from_source(error).is_some_and(is_bare_400)
            }
            _ => names_checksum_header(error),
        }
    }
}

/// Returns true if a header is about checksums.
fn is_checksum_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-amz-checksum-") || matches!(name, "x-amz-sdk-checksum-algorithm" | TRAILER)
}

/// Returns true if these headers contain one about checksums.
pub(super) fn has_checksum_header(headers: &HeaderMap) -> bool {
    headers.keys().any(is_checksum_header)
}

/// Returns true if a service has rejected a request with 400 or 501 and names a checksum header. Damaged bytes are no
/// refusal.
pub(super) fn names_checksum_header(error: &Error) -> bool {
    let Some(response) = ServiceError::from_source(error) else { return false };
    if !matches!(response.status.as_u16(), 400 | 501) || error.reason() == Reason::BadDigest {
        return false;
    }
    let text = format!("{} {}", response.message, response.named_header).to_ascii_lowercase();
    // "did not match", "mismatch": the value was compared.
    !text.contains("match") && REFUSED_NAMES.iter().any(|name| text.contains(name))
}

/// Returns true if a service has rejected a request as such, and not for a lack of resources.
fn is_rejection(error: &Error) -> bool {
    ServiceError::from_source(error).is_some_and(|response| matches!(response.status.as_u16(), 400 | 501))
}

/// The MD5 of an object's or a part's bytes according to its ETag. `None` if the ETag has another form, or if the bytes
/// are encrypted with keys for which it is something else.
pub(super) fn etag_md5(headers: &HeaderMap) -> Option<[u8; 16]> {
    let has_other_etag = headers
        .get("x-amz-server-side-encryption")
        .is_some_and(|encryption| encryption.as_bytes().starts_with(b"aws:kms"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm");
    let etag: Option<ETag> = header_fields::etag(headers).ok().filter(|_| !has_other_etag);
    etag?.md5()
}

/// The MD5 of a body that was sent without checksum headers.
pub(super) struct SentMd5 {
    pub md5: [u8; 16],
    /// The request had it as Content-MD5.
    pub is_header: bool,
    /// The checksum of the same body.
    pub checksum: Checksum,
}

/// A call without checksum headers.
struct BareCall<'a> {
    call: Call<'a>,
    omitted: OmittedChecksums,
}

/// Removes the checksum headers of a call. The body of an object or part gets Content-MD5, unless it has one.
fn without_checksums<'a>(call: &Call<'a>) -> Result<BareCall<'a>> {
    let mut headers: HeaderMap = HeaderMap::with_capacity(call.headers.len());
    for (name, value) in &call.headers {
        if !is_checksum_header(name) {
            headers.append(name, value.clone());
        }
    }
    let has_body =
        call.method == Method::PUT && call.key.is_some() && !headers.contains_key("x-amz-copy-source");
    let md5 = (has_body && !headers.contains_key(CONTENT_MD5)).then(|| call.payload.md5());
    headers::write_body_digests(BodyDigests { checksum: None, md5 }, &mut headers)?;
    Ok(BareCall { call: call.with_headers(headers), omitted: OmittedChecksums { md5 } })
}

impl S3Store {
    /// Sends a request, with credentials and region corrected. Omits its checksum headers if the service is known to
    /// refuse them. If it refuses them now, the request is sent once without them.
    pub(super) async fn send_guarded(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
    ) -> Result<StoreResponse> {
        let kind = RequestKind::from_method(&call.method);
        match self.checksum_headers.omission(kind, self.client.clock.now()) {
            Some(omission) => Box::pin(self.send_bare(context, call, guard, omission)).await,
            None => match self.send_corrected(context, call, guard).await {
                Err(e) if self.checksum_headers.may_be_refused(&call.method, &call.headers, &e) => {
                    tracing::debug!(error = %e, "a request is sent without checksum headers");
                    Box::pin(self.send_bare(context, call, guard, Omission::Trial)).await
                }
                sent => sent,
            },
        }
    }

    /// Sends a request without its checksum headers.
    async fn send_bare(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
        omission: Omission,
    ) -> Result<StoreResponse> {
        let bare = without_checksums(call)?;
        let sent = self.send_corrected(context, &bare.call, guard).await;
        // A request that never carries the headers, such as a DELETE, proves nothing.
        let is_write_of_object = call.method == Method::PUT && call.key.is_some();
        if is_write_of_object || call.headers.keys().any(is_checksum_header) {
            let kind = RequestKind::from_method(&call.method);
            self.record_omission_outcome(kind, omission, sent.as_ref().err());
        }
        sent.map(|mut response| {
            response.omitted_checksums = Some(bare.omitted);
            response
        })
    }

    /// Evaluates the outcome of a request without checksum headers, and its error if it failed.
    pub(super) fn record_omission_outcome(
        &self,
        kind: RequestKind,
        omission: Omission,
        error: Option<&Error>,
    ) {
        match (omission, error) {
            (Omission::Settled, _) => {}
            (Omission::Trial, None) => {
                self.checksum_headers.prove_refusal(kind, self.client.clock.now());
                if kind == RequestKind::Write {
                    self.set_verifies_checksums(false);
                }
            }
            (Omission::Trial, Some(error)) if is_rejection(error) => {
                self.checksum_headers.drop_suspicion(kind);
            }
            (Omission::Trial, Some(_)) => {}
        }
    }

    /// The reason why writes have no checksum headers now; `None` if they have.
    pub(super) fn write_omission(&self) -> Option<Omission> {
        self.checksum_headers.omission(RequestKind::Write, self.client.clock.now())
    }

    /// Compares the MD5 of the bytes sent with the ETag in the response, if that is an MD5. Not needed if the service has
    /// returned their checksum: some services have ETags that only look like MD5s.
    ///
    /// # Errors
    /// [`BadDigest`](Reason::BadDigest) if it differs: the service has stored other bytes.
    pub(super) fn check_response_etag(&self, headers: &HeaderMap, sent: &SentMd5) -> Result<()> {
        let (returned, scope) = headers::checksums(headers)?;
        if scope == ChecksumScope::FullObject && returned.contains(&sent.checksum) {
            return Ok(());
        }
        let found = etag_md5(headers);
        if let Some(found) = found.filter(|found| *found != sent.md5) {
            let (found, sent) = (ExpectedDigest::Md5(found), ExpectedDigest::Md5(sent.md5));
            let why = format!("the store returned the ETag {found:?}; the bytes sent have {sent:?}");
            return Err(Error::new(Reason::BadDigest, why));
        }
        self.record_proof(match found {
            _ if sent.is_header => SubstituteProof::ContentMd5,
            Some(_) => SubstituteProof::ETag,
            None => SubstituteProof::Length,
        });
        Ok(())
    }

    /// Counts a request without checksum headers.
    pub(super) fn record_proof(&self, proof: SubstituteProof) {
        self.checksum_headers.proofs.record(proof);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::client::ResourceKind;
    use http::{HeaderValue, StatusCode};

    const NOW: Duration = Duration::from_secs(1000);

    fn rejection(status: u16, code: &str, message: &str) -> Error {
        let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
        let status = StatusCode::from_u16(status).unwrap();
        let parsed = ServiceError::parse(status, &HeaderMap::new(), body.as_bytes());
        parsed.into_error(status, ResourceKind::Object, "x")
    }

    #[test]
    fn refusal_is_a_400_or_501_that_names_a_header() {
        for (status, code, message) in [
            (
                400,
                "InvalidArgument",
                "Unsupported header 'x-amz-checksum-crc64nvme' received for this API call.",
            ),
            (400, "InvalidArgument", "Unsupported header 'X-Amz-Sdk-Checksum-Algorithm' received."),
            (501, "NotImplemented", "Header 'x-amz-checksum-algorithm' with value 'CRC32' not implemented"),
            (501, "NotImplemented", "x-amz-trailer is not supported"),
            (400, "InvalidRequest", "STREAMING-UNSIGNED-PAYLOAD-TRAILER is not supported"),
        ] {
            assert!(names_checksum_header(&rejection(status, code, message)), "{message}");
        }
        for (status, code, message) in [
            (400, "InvalidArgument", "Invalid version id specified"),
            (501, "NotImplemented", "A header you provided implies functionality that is not implemented."),
            (403, "AccessDenied", "x-amz-checksum-crc64nvme is not signed"),
            (503, "SlowDown", "x-amz-checksum-crc64nvme"),
            (400, "BadDigest", "x-amz-checksum-crc64nvme differs"),
            (400, "XAmzContentChecksumMismatch", "The provided 'x-amz-checksum-crc32' header is wrong."),
            (400, "InvalidRequest", "The 'x-amz-checksum-crc32' header does not match what was computed."),
        ] {
            assert!(!names_checksum_header(&rejection(status, code, message)), "{message}");
        }
        let body = b"<Error><Code>NotImplemented</Code><Message>No.</Message><Header>x-amz-checksum-crc32</Header></Error>";
        let status = StatusCode::NOT_IMPLEMENTED;
        let error = ServiceError::parse(status, &HeaderMap::new(), body);
        assert!(names_checksum_header(&error.into_error(status, ResourceKind::Object, "x")));
    }

    #[test]
    fn proven_refusal_ends_after_an_hour() {
        let (headers, kind) = (ChecksumHeaders::default(), RequestKind::Write);
        headers.suspect_refusal(kind, NOW);
        assert_eq!(headers.omission(kind, NOW), Some(Omission::Trial));
        assert_eq!(headers.omission(RequestKind::Read, NOW), None, "each kind has its own refusal");
        headers.prove_refusal(kind, NOW);
        headers.drop_suspicion(kind);
        let last = NOW + REFUSAL_LIFETIME - Duration::from_nanos(1);
        assert_eq!(headers.omission(kind, last), Some(Omission::Settled));
        headers.prove_refusal(kind, last);
        headers.suspect_refusal(kind, last);
        assert_eq!(headers.omission(kind, NOW + REFUSAL_LIFETIME), None, "later successes do not extend it");
    }

    #[test]
    fn suspected_refusal_ends_with_a_rejection_or_in_time() {
        let (headers, kind) = (ChecksumHeaders::default(), RequestKind::Write);
        headers.suspect_refusal(kind, NOW);
        assert_eq!(headers.omission(kind, NOW + SUSPICION_LIFETIME), None);
        headers.suspect_refusal(kind, NOW);
        headers.drop_suspicion(kind);
        assert_eq!(headers.omission(kind, NOW), None);
    }

    #[test]
    fn bare_400_of_head_is_no_refusal_if_checksums_were_returned() {
        let headers = ChecksumHeaders::default();
        let mut sent = HeaderMap::new();
        let status = StatusCode::BAD_REQUEST;
        let bare = || ServiceError::parse(status, &HeaderMap::new(), b"");
        let bare = bare().into_error(status, ResourceKind::Object, "x");
        assert!(!headers.may_be_refused(&Method::HEAD, &sent, &bare), "there is no such header");
        sent.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        assert!(headers.may_be_refused(&Method::HEAD, &sent, &bare));
        assert!(!headers.may_be_refused(&Method::GET, &sent, &bare), "the body must name the header");
        headers.record_returned_checksum();
        assert!(!headers.may_be_refused(&Method::HEAD, &sent, &bare));
    }

    #[test]
    fn etag_of_bytes_encrypted_with_managed_keys_is_no_md5() {
        let mut headers = HeaderMap::new();
        headers.insert("etag", HeaderValue::from_static("\"d41d8cd98f00b204e9800998ecf8427e\""));
        assert!(etag_md5(&headers).is_some());
        headers.insert("x-amz-server-side-encryption", HeaderValue::from_static("AES256"));
        assert!(etag_md5(&headers).is_some());
        headers.insert("x-amz-server-side-encryption", HeaderValue::from_static("aws:kms:dsse"));
        assert_eq!(etag_md5(&headers), None);
    }
}
