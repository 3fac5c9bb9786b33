//! A response whose head has arrived and whose body is still to be read.

use std::fmt;
use std::io::Read as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH};
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, Incoming};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Body, ByteRange, Checksum, Context, Observation};

use super::decimal::parse_size;
use super::pool::{Connection, Pool};
use super::rcv_lowat::RcvLowat;

/// If no data arrives within this time, wake-ups are no longer batched: the reader is woken for each byte.
const MAX_BATCHED_WAIT: Duration = Duration::from_millis(250);
/// Longest body that [`StoreResponse::drain`] ignores.
const MAX_IGNORED_BODY_BYTES: usize = 64 << 10;

/// A response, of any status. Dropping it before the end of its body closes its connection.
pub(crate) struct StoreResponse {
    pub head: Parts,
    pub observation: Observation,
    /// Set if the request was sent without its checksum headers.
    pub omitted_checksums: Option<OmittedChecksums>,
    /// Decides if the body has another MD5 than [`Self::into_body`] expects; without it, the body is damaged.
    pub md5_judge: Option<Arc<dyn Md5Judge>>,
    incoming: Incoming,
    /// The end of the body was reached.
    has_ended: bool,
    /// Returned to the pool at the end of the body.
    connection: Option<HeldConnection>,
    /// The server closes the connection after this response.
    closes_connection: bool,
    stall_timeout: Duration,
    /// Set while a body is read with batched wake-ups.
    rcv_lowat: Option<Arc<RcvLowat>>,
}

/// The head of a response whose body was ignored.
pub(crate) struct ResponseHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub observation: Observation,
    /// Set if the request was sent without its checksum headers.
    pub omitted_checksums: Option<OmittedChecksums>,
}

/// The substitute for checksum headers that were omitted from a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OmittedChecksums {
    /// The MD5 of the request's body, if it was added as Content-MD5.
    pub md5: Option<[u8; 16]>,
}

/// A connection in use, and the pool that it returns to.
pub(crate) struct HeldConnection {
    pub pool: Arc<Pool>,
    pub connection: Connection,
}

impl StoreResponse {
    pub fn new(
        response: http::Response<Incoming>,
        held: HeldConnection,
        stall_timeout: Duration,
        observation: Observation,
    ) -> Self {
        let (head, incoming) = response.into_parts();
        let closes_connection = closes_connection(&head);
        Self {
            head,
            observation,
            omitted_checksums: None,
            md5_judge: None,
            incoming,
            has_ended: false,
            connection: Some(held),
            closes_connection,
            stall_timeout,
            rcv_lowat: None,
        }
    }

    /// The header's value; `None` if it is absent or not visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The value of `Content-Length`, in bytes; `None` if it is absent or invalid.
    pub fn content_length(&self) -> Option<u64> {
        parse_size(self.header(CONTENT_LENGTH.as_str())?)
    }

    /// Like [`Self::content_length`], but fails if it is absent or invalid.
    pub fn require_content_length(&self) -> Result<u64> {
        self.content_length().ok_or_else(|| {
            let why = match self.head.headers.get(CONTENT_LENGTH) {
                Some(value) => format!("the store sent Content-Length: {value:?}, which is invalid"),
                None => "the store's response has no Content-Length".to_owned(),
            };
            Error::new(Reason::Io, why)
        })
    }

    /// Returns true if the response has a `Content-Length`, even an invalid one.
    pub fn has_content_length(&self) -> bool {
        self.head.headers.contains_key(CONTENT_LENGTH)
    }

    /// Returns true if the body is encoded as gzip.
    pub fn is_gzip(&self) -> bool {
        is_gzip(&self.head.headers)
    }

    /// Reads the end of the body.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if more bytes precede it.
    pub async fn read_end(&mut self) -> Result<()> {
        match self.next_piece().await? {
            None => Ok(()),
            Some(_) => Err(length_mismatch("more")),
        }
    }

    /// The next piece of the body; `None` at its end.
    async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        loop {
            if self.has_ended {
                return Ok(None);
            }
            let Some(frame) = self.next_frame().await? else {
                self.has_ended = true;
                self.release_connection();
                return Ok(None);
            };
            // Trailers are ignored.
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                // A reader that counts bytes never polls for the end, so the connection is released here.
                if self.incoming.is_end_stream() {
                    self.release_connection();
                }
                return Ok(Some(data));
            }
        }
    }

    async fn next_frame(&mut self) -> Result<Option<Frame<Bytes>>> {
        let mut frame = self.incoming.frame();
        let mut frame = pin!(async {
            match &mut self.connection {
                Some(held) => held.connection.drive(Pin::new(&mut frame)).await,
                None => frame.await,
            }
        });
        let soon = match &self.rcv_lowat {
            Some(_) => tokio::time::timeout(MAX_BATCHED_WAIT, frame.as_mut()).await.ok(),
            None => None,
        };
        let received = match soon {
            Some(frame) => Ok(frame),
            None => {
                if let Some(rcv_lowat) = self.rcv_lowat.take() {
                    rcv_lowat.disable();
                }
                tokio::time::timeout(self.stall_timeout, frame).await
            }
        };
        let frame = received.map_err(|_| {
            let seconds = self.stall_timeout.as_secs();
            Error::new(
                Reason::Io,
                format!("the store sent nothing for {seconds} s in the middle of a response"),
            )
        })?;
        frame.transpose().map_err(|e| {
            Error::with_source(Reason::Io, "the connection closed in the middle of a response", e)
        })
    }

    fn release_connection(&mut self) {
        if let Some(held) = self.connection.take()
            && !self.closes_connection
        {
            held.pool.release(held.connection);
        }
    }

    /// Reads the whole body. Fails if it is longer than `max_bytes`.
    pub async fn collect(mut self, max_bytes: usize) -> Result<Bytes> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next_piece().await? {
            if all.len() + piece.len() > max_bytes {
                return Err(too_long_error(max_bytes));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    /// Reads and ignores a short body, so that the connection can be reused.
    pub async fn drain(mut self) -> Result<ResponseHead> {
        let (status, headers) = (self.head.status, std::mem::take(&mut self.head.headers));
        let (observation, omitted_checksums) = (self.observation.clone(), self.omitted_checksums);
        self.collect(MAX_IGNORED_BODY_BYTES).await?;
        Ok(ResponseHead { status, headers, observation, omitted_checksums })
    }

    /// Reads the whole body and decodes gzip (RFC 1952), which the request must have accepted. Fails if the body is
    /// longer than `max_bytes`, before or after decoding.
    pub async fn collect_document(self, max_bytes: usize) -> Result<Bytes> {
        let is_gzip = is_gzip(&self.head.headers);
        let bytes = self.collect(max_bytes).await?;
        if is_gzip { gunzip(&bytes, max_bytes) } else { Ok(bytes) }
    }

    /// Converts the response into an object's body of `length` bytes, verified against `expected` if given. The last
    /// piece is yielded only after the checksum of all bytes matches. If the connection does not delimit the body by that
    /// length, the last piece also waits for the end of the body. An empty body is verified here, because it may never be
    /// polled; [`Self::read_end`] must precede if the response has no `Content-Length`.
    ///
    /// # Errors
    /// [`CorruptData`](Reason::CorruptData) if the body is empty and `expected` is not the checksum of no bytes.
    pub fn into_body(
        mut self,
        context: Context,
        length: u64,
        expected: Option<ExpectedDigest>,
    ) -> Result<Body> {
        let verifier = expected.map(BodyVerifier::new);
        if length == 0 && (self.has_ended || self.incoming.is_end_stream()) {
            verifier.map_or(Ok(()), |verifier| verifier.finish().check())?;
            self.release_connection();
            return Ok(Body::from_bytes(Bytes::new()));
        }
        // Only with an exact length: a chunked body's `Content-Length` proves nothing about the bytes to come.
        let exact_length = self.incoming.size_hint().exact();
        if let (Some(held), Some(bytes)) = (&self.connection, exact_length) {
            self.rcv_lowat = Some(held.connection.expect_body(bytes));
        }
        let awaits_end = exact_length.is_none();
        let reading = BodyReader { response: self, context, remaining_bytes: length, awaits_end, verifier };
        let stream = futures::stream::try_unfold(Some(reading), |reading| async {
            let Some(mut reading) = reading else { return Ok(None) };
            let piece = reading.next_piece().await?;
            Ok(piece.map(|piece| (piece, Some(reading))))
        });
        Ok(Body::from_stream(length, stream))
    }
}

/// Checks an empty response against the size of what it should contain, which the object's head reports.
///
/// # Errors
/// [`Io`](Reason::Io) if bytes are missing, [`InvalidRange`](Reason::InvalidRange) if a range of an empty object was
/// requested.
pub(crate) fn check_empty(actual_bytes: u64, requested: Option<ByteRange>) -> Result<()> {
    if actual_bytes > 0 {
        return Err(Error::new(Reason::Io, format!("the store sent 0 of {actual_bytes} bytes")));
    }
    requested.map_or(Ok(()), |range| range.resolve(0).map(drop))
}

/// Returns true for `gzip` and its alias `x-gzip` (RFC 9110, section 8.4.1.3).
fn is_gzip(headers: &HeaderMap) -> bool {
    let coding = headers.get(CONTENT_ENCODING).map_or(&b""[..], |coding| coding.as_bytes());
    [&b"gzip"[..], b"x-gzip"].iter().any(|name| coding.eq_ignore_ascii_case(name))
}

fn gunzip(bytes: &[u8], max_bytes: usize) -> Result<Bytes> {
    let mut all = Vec::new();
    let mut decoder = MultiGzDecoder::new(bytes).take(max_bytes as u64 + 1);
    decoder.read_to_end(&mut all).map_err(|e| {
        Error::with_source(Reason::Io, "the store's response is declared as gzip but cannot be decoded", e)
    })?;
    if all.len() > max_bytes {
        return Err(too_long_error(max_bytes));
    }
    Ok(all.into())
}

fn too_long_error(max_bytes: usize) -> Error {
    Error::new(Reason::Io, format!("the store's response is longer than {max_bytes} bytes"))
}

/// Returns true if the server closes the connection after this response (RFC 9112, section 9.6).
fn closes_connection(head: &Parts) -> bool {
    let says_close = |value: &http::HeaderValue| {
        value.as_bytes().split(|b| *b == b',').any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    };
    head.version != http::Version::HTTP_11 || head.headers.get_all(CONNECTION).iter().any(says_close)
}

/// The expected digest of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedDigest {
    Checksum(Checksum),
    Md5([u8; 16]),
}

impl fmt::Debug for ExpectedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum(checksum) => checksum.fmt(f),
            Self::Md5(md5) => {
                f.write_str("MD5:")?;
                md5.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Decides whether a body whose MD5 is another one than expected is damaged: the expected one may be no MD5.
#[async_trait]
pub(crate) trait Md5Judge: Send + Sync {
    /// Records that a body has the expected MD5.
    fn record_match(&self);

    /// Returns true if a body with the MD5 `found` is not damaged.
    async fn accepts(&self, found: [u8; 16]) -> Result<bool>;
}

/// The digest of a body, and the expected one.
struct ComparedDigests {
    found: ExpectedDigest,
    expected: ExpectedDigest,
}

impl ComparedDigests {
    /// Fails with [`CorruptData`](Reason::CorruptData) if they differ.
    fn check(&self) -> Result<()> {
        let Self { found, expected } = self;
        if found == expected {
            return Ok(());
        }
        let what = format!("checksum mismatch: received {found:?}, the store has {expected:?}");
        Err(Error::new(Reason::CorruptData, what))
    }
}

/// Computes the digest of a body while it is read, and compares it with the expected one.
enum BodyVerifier {
    Checksum(Hasher, Checksum),
    Md5(Md5, [u8; 16]),
}

impl BodyVerifier {
    fn new(expected: ExpectedDigest) -> Self {
        match expected {
            ExpectedDigest::Checksum(expected) => Self::Checksum(Hasher::new(expected.algorithm()), expected),
            ExpectedDigest::Md5(expected) => Self::Md5(Md5::new(), expected),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Checksum(hasher, _) => hasher.update(bytes),
            Self::Md5(hasher, _) => hasher.update(bytes),
        }
    }

    fn finish(self) -> ComparedDigests {
        match self {
            Self::Checksum(hasher, expected) => ComparedDigests {
                found: ExpectedDigest::Checksum(hasher.finish()),
                expected: ExpectedDigest::Checksum(expected),
            },
            Self::Md5(hasher, expected) => ComparedDigests {
                found: ExpectedDigest::Md5(hasher.finalize().into()),
                expected: ExpectedDigest::Md5(expected),
            },
        }
    }
}

/// State of a body stream.
struct BodyReader {
    response: StoreResponse,
    context: Context,
    /// Bytes not yet received.
    remaining_bytes: u64,
    /// The connection does not delimit the body by its length: more bytes may follow the last one.
    awaits_end: bool,
    verifier: Option<BodyVerifier>,
}

impl BodyReader {
    async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        let piece = self.context.guard(self.response.next_piece()).await??;
        match &piece {
            Some(piece) => {
                self.remaining_bytes = self
                    .remaining_bytes
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| length_mismatch("more"))?;
                if let Some(verifier) = &mut self.verifier {
                    verifier.update(piece);
                }
            }
            None if self.remaining_bytes > 0 => return Err(length_mismatch("fewer")),
            None => {}
        }
        if self.remaining_bytes == 0 && self.awaits_end {
            self.context.guard(self.response.read_end()).await??;
            self.awaits_end = false;
        }
        // Also covers an empty body, which has no pieces.
        if self.remaining_bytes == 0
            && let Some(verifier) = self.verifier.take()
        {
            self.verify(verifier).await?;
        }
        Ok(piece)
    }

    /// Verifies the digest of the whole body.
    async fn verify(&self, verifier: BodyVerifier) -> Result<()> {
        let compared = verifier.finish();
        let checked = compared.check();
        let (Some(judge), ExpectedDigest::Md5(found)) = (&self.response.md5_judge, compared.found) else {
            return checked;
        };
        match checked {
            Ok(()) => judge.record_match(),
            Err(e) if !self.context.guard(judge.accepts(found)).await?? => return Err(e),
            Err(_) => {}
        }
        Ok(())
    }
}

fn length_mismatch(what: &str) -> Error {
    Error::new(Reason::Io, format!("the store sent {what} bytes than it announced"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gunzip_restores_the_bytes_and_rejects_damage() {
        let page = b"<Contents/>".repeat(1000);
        let sent = gzip(&page);
        assert_eq!(gunzip(&sent, page.len()).unwrap(), page);
        assert_eq!(gunzip(&[gzip(b"one"), gzip(b"two")].concat(), 10).unwrap(), "onetwo");
        for torn in [0, 5, sent.len() / 2, sent.len() - 1] {
            let found = gunzip(&sent[..torn], page.len());
            assert_eq!(found.map_err(|e| e.reason()), Err(Reason::Io), "{torn} bytes of {}", sent.len());
        }
        let mut changed = sent.clone();
        let last = changed.len() - 6;
        changed[last] ^= 1;
        assert!(gunzip(&changed, page.len()).is_err(), "the checksum differs");
    }

    #[test]
    fn gunzip_fails_beyond_the_maximum_length() {
        let sent = gzip(&vec![0; 1 << 20]);
        assert!(sent.len() < 10_000, "{}", sent.len());
        assert!(gunzip(&sent, 1 << 20).is_ok());
        assert!(gunzip(&sent, (1 << 20) - 1).unwrap_err().to_string().contains("longer than"));
    }
}
