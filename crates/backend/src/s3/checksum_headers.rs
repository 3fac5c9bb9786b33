//! Headers of checksums, and services that refuse them: `x-amz-checksum-*`, `x-amz-sdk-checksum-algorithm`,
//! `x-amz-checksum-mode` and trailers. Some services reject every request that has one of them, others only trailers.
//!
//! A refusal is believed only if the same request succeeds without these headers. Then requests of its kind have none for
//! an hour. The body of a streamed request is gone when the refusal arrives, so that only its retry can prove it: until
//! then, the refusal is suspected for this one write. Bodies in memory are sent with Content-MD5 instead. The MD5 of a
//! written body is also compared with the ETag, if that is an MD5, and so is the body of a whole object that is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method};
use parking_lot::Mutex;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::{Address, Context};

use super::S3Store;
use super::headers::{self, BodyDigests, CONTENT_MD5};
use super::protocol::TRAILER;
use super::service_error::ServiceError;
use super::substitute_proofs::{SubstituteProof, SubstituteProofs};
use crate::remote::client::{Call, RepeatGuard};
use crate::remote::response::{OmittedChecksums, StoreResponse};

/// Time for which a proven refusal is remembered.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(3600);
/// Time in which a retry must prove a suspected refusal.
const SUSPICION_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of suspicions; the oldest one is dropped for a new one.
const MAX_SUSPICIONS: usize = 256;
/// The beginnings of the names by which an error response names a checksum header, or the framing with a trailer.
const REFUSED_NAMES: [&str; 4] =
    ["x-amz-checksum-", "x-amz-sdk-checksum-algorithm", TRAILER, "streaming-unsigned-payload-trailer"];

/// The use of checksum headers, named as in the settings of AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChecksumUse {
    /// In each request that supports them, unless the service refuses them.
    #[default]
    WhenSupported,
    /// Only in requests that require them: the parts of an upload that another client created with an algorithm.
    WhenRequired,
}

/// The kind of checksum header, because a service may refuse one kind only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderKind {
    /// `x-amz-checksum-mode` of GET and HEAD.
    Read,
    /// The headers of all other requests.
    Write,
    /// The trailer of a streamed body, with its framing.
    Trailer,
}

impl HeaderKind {
    fn from_method(method: &Method) -> Self {
        if matches!(*method, Method::GET | Method::HEAD) { Self::Read } else { Self::Write }
    }
}

/// The reason why a streamed write has no checksum headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Omission {
    /// By the settings, by a proven refusal, or by the way its upload was created.
    Settled,
    /// A refusal is suspected. The outcome of this write decides.
    Trial,
}

/// The decision about the headers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderNeed {
    /// They are omitted if the service is known to refuse them.
    Optional,
    /// Its upload was created with an algorithm: they are omitted only if the service refuses them in this request.
    Required,
}

/// Identifies a write and its retries: of an object, or of a part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WriteId {
    address: Address,
    part: Option<PartId>,
}

/// Identifies a part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PartId {
    upload: UploadId,
    number: PartNumber,
}

impl WriteId {
    pub const fn of_object(address: Address) -> Self {
        Self { address, part: None }
    }

    pub const fn of_part(address: Address, upload: UploadId, number: PartNumber) -> Self {
        Self { address, part: Some(PartId { upload, number }) }
    }
}

/// A suspicion that headers are refused, because a streamed write with them was rejected.
#[derive(Debug)]
struct Suspicion {
    write: WriteId,
    until: Duration,
}

/// The refusals of one kind of header.
#[derive(Debug, Default)]
struct Refusals {
    proven_until: Option<Duration>,
    /// Oldest first.
    suspicions: Vec<Suspicion>,
}

impl Refusals {
    fn drop_suspicion(&mut self, write: &WriteId) {
        self.suspicions.retain(|suspicion| suspicion.write != *write);
    }
}

/// The use of one kind of header.
#[derive(Debug, Default)]
struct KindState {
    setting: ChecksumUse,
    refusals: Mutex<Refusals>,
}

impl KindState {
    fn new(setting: ChecksumUse) -> Self {
        Self { setting, refusals: Mutex::default() }
    }
}

/// The use of checksum headers in requests to one store.
#[derive(Debug, Default)]
pub(super) struct ChecksumHeaders {
    reads: KindState,
    writes: KindState,
    trailers: KindState,
    /// The service has returned the checksum of an object, so it does not refuse to.
    returns_checksums: AtomicBool,
    proofs: Arc<SubstituteProofs>,
}

impl ChecksumHeaders {
    /// The state at the start of a store. `requests` applies to writes, `responses` to reads.
    pub fn new(requests: ChecksumUse, responses: ChecksumUse, proofs: Arc<SubstituteProofs>) -> Self {
        Self { reads: KindState::new(responses), writes: KindState::new(requests), proofs, ..Self::default() }
    }

    const fn state(&self, kind: HeaderKind) -> &KindState {
        match kind {
            HeaderKind::Read => &self.reads,
            HeaderKind::Write => &self.writes,
            HeaderKind::Trailer => &self.trailers,
        }
    }

    /// Returns true if the headers are omitted from all requests now.
    pub fn are_omitted(&self, kind: HeaderKind, now: Duration) -> bool {
        let state = self.state(kind);
        state.setting == ChecksumUse::WhenRequired
            || state.refusals.lock().proven_until.is_some_and(|until| now < until)
    }

    /// Returns true if this write was rejected with the headers, and must be tried without them.
    pub fn are_suspect(&self, kind: HeaderKind, write: &WriteId, now: Duration) -> bool {
        let refusals = self.state(kind).refusals.lock();
        refusals.suspicions.iter().any(|suspicion| suspicion.write == *write && now < suspicion.until)
    }

    /// Records that a streamed write was rejected with the headers. Its retry must prove the refusal.
    pub fn suspect_refusal(&self, kind: HeaderKind, write: &WriteId, now: Duration) {
        let mut refusals = self.state(kind).refusals.lock();
        refusals.drop_suspicion(write);
        refusals.suspicions.retain(|suspicion| now < suspicion.until);
        if refusals.suspicions.len() == MAX_SUSPICIONS {
            refusals.suspicions.remove(0);
        }
        refusals.suspicions.push(Suspicion { write: write.clone(), until: now + SUSPICION_LIFETIME });
    }

    /// Records that a write was rejected without the headers, too: they were not the cause.
    pub fn drop_suspicion(&self, kind: HeaderKind, write: &WriteId) {
        self.state(kind).refusals.lock().drop_suspicion(write);
    }

    /// Records that a request has succeeded without the headers after it was refused with them. A refusal that is already
    /// proven keeps its time.
    pub fn prove_refusal(&self, kind: HeaderKind, now: Duration) {
        let mut refusals = self.state(kind).refusals.lock();
        refusals.suspicions.clear();
        if refusals.proven_until.is_none_or(|until| until <= now) {
            refusals.proven_until = Some(now + REFUSAL_LIFETIME);
            if kind == HeaderKind::Read {
                self.returns_checksums.store(false, Ordering::Relaxed);
            }
            tracing::info!(?kind, "the store refuses checksum headers: they are omitted for an hour");
        }
    }

    /// Records that the service has returned the checksum of an object.
    pub fn record_returned_checksum(&self) {
        self.returns_checksums.store(true, Ordering::Relaxed);
    }

    /// Returns true if the error of a request may be due to its checksum headers.
    fn may_be_refused(&self, method: &Method, sent: &HeaderMap, error: &Error) -> bool {
        if !has_checksum_header(sent) {
            return false;
        }
        match *method {
            Method::HEAD => !self.returns_checksums.load(Ordering::Relaxed) && is_bare_400(error),
            _ => names_checksum_header(error),
        }
    }
}

/// Returns true for status 400 without a message. A response to HEAD has no body that could name the header.
fn is_bare_400(error: &Error) -> bool {
    ServiceError::from_source(error)
        .is_some_and(|response| response.status == 400 && response.code.is_empty())
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
    /// Sends a request, with credentials and region corrected. Unless `need` forbids it, omits its checksum headers if the
    /// service is known to refuse them. If it refuses them now, the request is sent once without them.
    pub(super) async fn send_with_need(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
        need: HeaderNeed,
    ) -> Result<StoreResponse> {
        let kind = HeaderKind::from_method(&call.method);
        if need == HeaderNeed::Optional && self.omits_headers(kind) {
            return Box::pin(self.send_bare(context, call, guard)).await;
        }
        match self.send_corrected(context, call, guard).await {
            Err(e) if self.checksum_headers.may_be_refused(&call.method, &call.headers, &e) => {
                Box::pin(self.try_without_headers(context, call, guard, e)).await
            }
            sent => sent,
        }
    }

    /// Like [`Self::send_with_need`], for headers that are optional.
    pub(super) async fn send_guarded(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
    ) -> Result<StoreResponse> {
        self.send_with_need(context, call, guard, HeaderNeed::Optional).await
    }

    /// Sends a request without its checksum headers.
    async fn send_bare(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
    ) -> Result<StoreResponse> {
        let bare = without_checksums(call)?;
        let mut response = self.send_corrected(context, &bare.call, guard).await?;
        response.omitted_checksums = Some(bare.omitted);
        Ok(response)
    }

    /// Sends a request without its checksum headers after it was refused with them. Its success proves the refusal, unless
    /// that did not name the header: an error that has passed looks the same, so the headers are then sent once more.
    async fn try_without_headers(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
        refusal: Error,
    ) -> Result<StoreResponse> {
        tracing::debug!(error = %refusal, "a request is sent without checksum headers");
        let mut response = self.send_bare(context, call, guard).await?;
        if !names_checksum_header(&refusal) {
            response.read_end().await?;
            match self.send_corrected(context, call, guard).await {
                Ok(confirmed) => return Ok(confirmed),
                Err(e) if self.checksum_headers.may_be_refused(&call.method, &call.headers, &e) => {}
                Err(e) => {
                    tracing::debug!(error = %e, "cannot confirm that checksum headers are refused");
                    return Ok(response);
                }
            }
        }
        self.prove_refusal(HeaderKind::from_method(&call.method));
        Ok(response)
    }

    /// Records that a request has succeeded without the headers after it was refused with them.
    pub(super) fn prove_refusal(&self, kind: HeaderKind) {
        self.checksum_headers.prove_refusal(kind, self.client.clock.now());
        if kind == HeaderKind::Write {
            self.set_verifies_checksums(false);
        }
    }

    /// Evaluates the outcome of a streamed write, and its error if it failed. A trial without the headers proves or
    /// disproves that they are refused.
    pub(super) fn record_trial(
        &self,
        kind: HeaderKind,
        write: &WriteId,
        omission: Option<Omission>,
        error: Option<&Error>,
    ) {
        match (omission, error) {
            (Some(Omission::Trial), None) => self.prove_refusal(kind),
            (Some(Omission::Trial), Some(error)) if is_rejection(error) => {
                self.checksum_headers.drop_suspicion(kind, write);
            }
            _ => {}
        }
    }

    /// Returns true if the headers are omitted from all requests now.
    pub(super) fn omits_headers(&self, kind: HeaderKind) -> bool {
        self.checksum_headers.are_omitted(kind, self.client.clock.now())
    }

    /// The reason to omit the headers from a streamed write; `None` if they are sent.
    pub(super) fn stream_omission(&self, kind: HeaderKind, write: &WriteId) -> Option<Omission> {
        let now = self.client.clock.now();
        if self.checksum_headers.are_suspect(kind, write, now) {
            return Some(Omission::Trial);
        }
        self.checksum_headers.are_omitted(kind, now).then_some(Omission::Settled)
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

    fn write(key: &str) -> WriteId {
        WriteId::of_object(Address::parse("bucket", key).unwrap())
    }

    fn part(number: i64) -> WriteId {
        let (address, number) = (Address::parse("bucket", "k").unwrap(), PartNumber::new(number).unwrap());
        WriteId::of_part(address, UploadId("upload".to_owned()), number)
    }

    #[test]
    fn proven_refusal_ends_after_an_hour() {
        let (headers, kind) = (ChecksumHeaders::default(), HeaderKind::Write);
        headers.suspect_refusal(kind, &write("k"), NOW);
        assert!(headers.are_suspect(kind, &write("k"), NOW) && !headers.are_omitted(kind, NOW));
        headers.prove_refusal(kind, NOW);
        assert!(!headers.are_suspect(kind, &write("k"), NOW), "the suspicion is proven");
        for other in [HeaderKind::Read, HeaderKind::Trailer] {
            assert!(!headers.are_omitted(other, NOW), "each kind has its own refusal");
        }
        let last = NOW + REFUSAL_LIFETIME - Duration::from_nanos(1);
        assert!(headers.are_omitted(kind, last));
        headers.prove_refusal(kind, last);
        assert!(!headers.are_omitted(kind, NOW + REFUSAL_LIFETIME), "later successes do not extend it");
    }

    #[test]
    fn suspicion_is_about_one_write_and_ends_in_time() {
        let (headers, kind) = (ChecksumHeaders::default(), HeaderKind::Trailer);
        headers.suspect_refusal(kind, &write("k"), NOW);
        headers.drop_suspicion(kind, &write("other"));
        for other in [write("other"), part(1)] {
            assert!(!headers.are_suspect(kind, &other, NOW), "{other:?}");
        }
        assert!(headers.are_suspect(kind, &write("k"), NOW + SUSPICION_LIFETIME - Duration::from_nanos(1)));
        assert!(!headers.are_suspect(kind, &write("k"), NOW + SUSPICION_LIFETIME));
        headers.drop_suspicion(kind, &write("k"));
        assert!(!headers.are_suspect(kind, &write("k"), NOW));
        headers.suspect_refusal(kind, &part(1), NOW);
        assert!(headers.are_suspect(kind, &part(1), NOW) && !headers.are_suspect(kind, &part(2), NOW));
    }

    #[test]
    fn suspicions_are_bounded() {
        let (headers, kind) = (ChecksumHeaders::default(), HeaderKind::Write);
        for number in 0..=MAX_SUSPICIONS {
            headers.suspect_refusal(kind, &write(&format!("key-{number}")), NOW);
        }
        assert!(!headers.are_suspect(kind, &write("key-0"), NOW));
        assert!(headers.are_suspect(kind, &write("key-1"), NOW));
        assert_eq!(headers.writes.refusals.lock().suspicions.len(), MAX_SUSPICIONS);
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
}
