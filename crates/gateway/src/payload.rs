//! A request's body between the connection and the operation: its framing is decoded, its hashes are verified and its
//! length is enforced. The last bytes are withheld until everything that can be verified is correct, so that even a
//! reader that stops at the announced length has only bytes that the client signed.
//!
//! Hashing runs on the connection's task in blocks of [`HASH_BYTES`] with a yield in between, so that it never occupies
//! a worker thread longer than one block takes (about 85 µs at 1.5 GB/s).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use http::request::Parts;
use http::{HeaderMap, HeaderName, header};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use parking_lot::Mutex;
use ring::digest;
use tradewind_core::Algorithm;

use crate::auth::Trailers;
use crate::body::RequestBody;
use crate::chunked::{Decoder, Step, malformed};
use crate::error::{Code, WireError};
use crate::server::connection_state::{Command, ConnectionState, Phase};
use crate::sigv4::BodyDeclaration;

/// Bytes hashed between yields.
const HASH_BYTES: usize = 128 << 10;

/// The maximum number of announced trailers.
const MAX_ANNOUNCED_TRAILERS: usize = 8;

/// A request's body, ready to be read, and the client's declarations about it.
pub(crate) struct PreparedBody {
    pub(crate) body: RequestBody,
    pub(crate) trailers: Trailers,
    /// Names of the trailers that follow the body.
    pub(crate) announced: Vec<HeaderName>,
    /// Decoded length in bytes, if declared.
    pub(crate) length: Option<u64>,
    /// SHA-256 of the whole body, if declared.
    pub(crate) sha256: Option<[u8; 32]>,
}

/// A request's body in wire format. If the operation drops it, the connection's part of the body goes to the
/// [`UnreadBody`], so that the server can drain the rest and reuse the connection.
pub(crate) struct WireBody {
    incoming: Option<Incoming>,
    unread: Option<Arc<Mutex<Option<Incoming>>>>,
}

/// Receives a [`WireBody`] that was dropped, perhaps before its end.
pub(crate) struct UnreadBody(Option<Arc<Mutex<Option<Incoming>>>>);

impl UnreadBody {
    /// The rest of the body; `None` if the request has no body or the [`WireBody`] still exists.
    pub(crate) fn take(self) -> Option<Incoming> {
        self.0.and_then(|unread| unread.lock().take())
    }
}

impl WireBody {
    pub(crate) fn new(incoming: Incoming) -> (Self, UnreadBody) {
        if incoming.is_end_stream() {
            return (Self { incoming: None, unread: None }, UnreadBody(None));
        }
        let unread = Some(Arc::<Mutex<Option<Incoming>>>::default());
        (Self { incoming: Some(incoming), unread: unread.clone() }, UnreadBody(unread))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for WireBody {
    fn drop(&mut self) {
        if let (Some(incoming), Some(unread)) = (self.incoming.take(), self.unread.take()) {
            *unread.lock() = Some(incoming);
        }
    }
}

/// Prepares a request's body, and removes the headers of framing and signature. Sets `Content-Length` to the decoded
/// length. `max_bytes` is the maximum decoded length.
pub(crate) fn prepare(
    parts: &mut Parts,
    incoming: WireBody,
    declared: BodyDeclaration,
    connection: Arc<ConnectionState>,
    max_bytes: u64,
) -> Result<PreparedBody, WireError> {
    let headers = &mut parts.headers;
    let is_chunked = declared.is_chunked();
    let length = if is_chunked { Some(decoded_length(headers)?) } else { plain_length(headers)? };
    if length.is_some_and(|length| length > max_bytes) {
        return Err(WireError::new(
            Code::EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed object size.",
        ));
    }
    let announced = announced_trailers(headers)?;
    if !is_chunked && !announced.is_empty() {
        return Err(wrong_trailer());
    }
    let sha256 = match &declared {
        BodyDeclaration::Sha256(hash) => Some(*hash),
        _ => None,
    };
    remove_framing_headers(headers, is_chunked, length);
    let trailers = Trailers::default();
    let decoder = match declared {
        BodyDeclaration::Unsigned => PayloadDecoder::Plain,
        BodyDeclaration::Sha256(expected) => PayloadDecoder::Hashed {
            hash: Box::new(digest::Context::new(&digest::SHA256)),
            expected,
            left: length,
        },
        BodyDeclaration::SignedChunks { signatures, has_trailers } => PayloadDecoder::chunked(
            Decoder::new(length.unwrap_or(0), Some(signatures), has_trailers, announced.clone()),
            length,
        ),
        BodyDeclaration::UnsignedChunks => {
            PayloadDecoder::chunked(Decoder::new(length.unwrap_or(0), None, true, announced.clone()), length)
        }
    };
    // An empty body needs no stream. Its hash is verified; a missing last chunk is an error.
    let body = if incoming.is_end_stream() {
        decoder.check_end()?;
        RequestBody::empty()
    } else {
        let stream = PayloadStream {
            incoming,
            decoder,
            input: Bytes::new(),
            hashed: 0,
            undeclared_left: if length.is_none() { max_bytes } else { u64::MAX },
            connection,
            trailers: trailers.clone(),
            is_finished: false,
        };
        RequestBody::new(length, stream)
    };
    Ok(PreparedBody { body, trailers, announced, length, sha256 })
}

fn plain_length(headers: &HeaderMap) -> Result<Option<u64>, WireError> {
    let Some(value) = headers.get(header::CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| WireError::new(Code::InvalidArgument, "Content-Length is not a number."))
}

/// The length of the data in a chunked body. As in S3, a length that is no number is a missing one.
fn decoded_length(headers: &HeaderMap) -> Result<u64, WireError> {
    let value = headers.get("x-amz-decoded-content-length");
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let digits = Some(text).filter(|text| text.bytes().all(|c| c.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).ok_or_else(|| {
        WireError::with_source(
            Code::MissingContentLength,
            "You must provide the Content-Length HTTP header.",
            format!("x-amz-decoded-content-length is {text:?}"),
        )
    })
}

/// The names in `x-amz-trailer`. Only supported checksums are allowed.
fn announced_trailers(headers: &HeaderMap) -> Result<Vec<HeaderName>, WireError> {
    let mut names = Vec::new();
    for value in headers.get_all("x-amz-trailer") {
        for name in value.to_str().map_err(|_| wrong_trailer())?.split(',') {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong_trailer())?;
            if Algorithm::from_header(name.as_str()).is_none() || names.len() >= MAX_ANNOUNCED_TRAILERS {
                return Err(wrong_trailer());
            }
            names.push(name);
        }
    }
    Ok(names)
}

fn wrong_trailer() -> WireError {
    WireError::new(Code::InvalidRequest, "The value specified in the x-amz-trailer header is not supported")
}

fn remove_framing_headers(headers: &mut HeaderMap, is_chunked: bool, length: Option<u64>) {
    headers.remove(header::AUTHORIZATION);
    headers.remove(header::EXPECT);
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove("x-amz-content-sha256");
    headers.remove("x-amz-decoded-content-length");
    headers.remove("x-amz-trailer");
    headers.remove("x-amz-date");
    if !is_chunked {
        return;
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    // `aws-chunked` is removed with the framing; all other codings belong to the object.
    let codings: Vec<String> = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("aws-chunked"))
        .map(str::to_owned)
        .collect();
    headers.remove(header::CONTENT_ENCODING);
    if !codings.is_empty()
        && let Ok(value) = codings.join(",").parse()
    {
        headers.insert(header::CONTENT_ENCODING, value);
    }
}

enum PayloadDecoder {
    /// No framing, no hash.
    Plain,
    /// No framing; the hash is verified at the end.
    Hashed { hash: Box<digest::Context>, expected: [u8; 32], left: Option<u64> },
    /// aws-chunked. `withheld` are the last data bytes, until the end of the body is verified. `left` is the number of
    /// data bytes still to come.
    Chunked { decoder: Box<Decoder>, withheld: Option<Bytes>, left: u64 },
}

impl PayloadDecoder {
    fn chunked(decoder: Decoder, length: Option<u64>) -> Self {
        Self::Chunked { decoder: Box::new(decoder), withheld: None, left: length.unwrap_or(0) }
    }

    const fn hashes(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::Hashed { .. } => true,
            Self::Chunked { decoder, .. } => decoder.hashes(),
        }
    }

    /// Verifies what can be verified once there is no more input: the hash, or that the last chunk was received.
    fn check_end(&self) -> Result<(), WireError> {
        match self {
            Self::Plain => Ok(()),
            Self::Hashed { hash, expected, .. } => check_hash(hash, expected),
            Self::Chunked { decoder, .. } => decoder.finish(),
        }
    }
}

fn check_hash(hash: &digest::Context, expected: &[u8; 32]) -> Result<(), WireError> {
    if hash.clone().finish().as_ref() == expected {
        return Ok(());
    }
    Err(WireError::new(
        Code::ContentSha256Mismatch,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ))
}

struct PayloadStream {
    incoming: WireBody,
    decoder: PayloadDecoder,
    /// Bytes received but not decoded.
    input: Bytes,
    /// Bytes hashed since the last yield.
    hashed: usize,
    /// Bytes that a body without a declared length may still have. `u64::MAX` for a body with a declared length, which
    /// [`prepare`] has checked.
    undeclared_left: u64,
    connection: Arc<ConnectionState>,
    trailers: Trailers,
    is_finished: bool,
}

impl Stream for PayloadStream {
    type Item = Result<Bytes, WireError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_finished {
            return Poll::Ready(None);
        }
        let result = ready!(self.poll_data(cx));
        if !matches!(result, Ok(Some(_))) {
            self.is_finished = true;
        }
        Poll::Ready(result.transpose())
    }
}

impl PayloadStream {
    /// The next bytes, verified as far as possible; `None` at the end.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, WireError>> {
        loop {
            if self.hashed >= HASH_BYTES {
                self.hashed = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let max_bytes = if self.decoder.hashes() { HASH_BYTES } else { usize::MAX };
            match &mut self.decoder {
                PayloadDecoder::Plain => return self.poll_input(cx),
                PayloadDecoder::Hashed { hash, expected, left } if !self.input.is_empty() => {
                    let data = self.input.split_to(self.input.len().min(max_bytes));
                    hash.update(&data);
                    self.hashed += data.len();
                    if let Some(left) = left {
                        *left = left.saturating_sub(data.len() as u64);
                        if *left == 0 {
                            check_hash(hash, expected)?;
                        }
                    }
                    return Poll::Ready(Ok(Some(data)));
                }
                PayloadDecoder::Hashed { .. } => match ready!(self.poll_input(cx))? {
                    Some(bytes) => self.input = bytes,
                    None => return Poll::Ready(self.decoder.check_end().map(|()| None)),
                },
                PayloadDecoder::Chunked { decoder, withheld, left } => match decoder.next(max_bytes)? {
                    Step::Data(bytes) => {
                        if decoder.hashes() {
                            self.hashed += bytes.len();
                        }
                        *left = left.saturating_sub(bytes.len() as u64);
                        if *left > 0 {
                            return Poll::Ready(Ok(Some(bytes)));
                        }
                        *withheld = Some(bytes);
                    }
                    Step::Done(trailers) => {
                        self.trailers.publish(trailers);
                        // The optional rest of a line end is awaited only if the HTTP body has not ended.
                        if decoder.may_have_more()
                            && !self.incoming.is_end_stream()
                            && let Some(bytes) = ready!(self.poll_input(cx))?
                        {
                            self.feed(bytes);
                            continue;
                        }
                        let PayloadDecoder::Chunked { withheld, .. } = &mut self.decoder else { continue };
                        let last = withheld.take();
                        return match last {
                            Some(bytes) => Poll::Ready(self.expect_end(cx).map(|()| Some(bytes))),
                            None => Poll::Ready(Ok(None)),
                        };
                    }
                    Step::NeedInput => match ready!(self.poll_input(cx))? {
                        Some(bytes) => self.feed(bytes),
                        None => {
                            let PayloadDecoder::Chunked { decoder, .. } = &self.decoder else { continue };
                            return Poll::Ready(decoder.finish().map(|()| None));
                        }
                    },
                },
            }
        }
    }

    fn feed(&mut self, bytes: Bytes) {
        if let PayloadDecoder::Chunked { decoder, .. } = &mut self.decoder {
            decoder.feed(bytes);
        }
    }

    /// Checks that no bytes follow the last chunk, among those that have already arrived. Does not wait for the end of
    /// the HTTP body: later bytes remain unread and are drained, or the connection is closed.
    fn expect_end(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        match self.poll_input(cx) {
            Poll::Ready(Ok(Some(_))) => Err(malformed("there are bytes after the last chunk")),
            Poll::Ready(Err(e)) => Err(e),
            Poll::Ready(Ok(None)) => Ok(()),
            Poll::Pending => {
                // The body is complete, so the request no longer waits for the client.
                self.connection.set_phase(Phase::Working);
                Ok(())
            }
        }
    }

    /// The next bytes in wire format.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, WireError>> {
        loop {
            if self.connection.command() >= Command::FailBody {
                return Poll::Ready(Err(WireError::new(
                    Code::RequestTimeout,
                    "Your socket connection to the server was not read from or written to within the timeout \
                     period. Idle connections will be closed.",
                )));
            }
            let frame = match self.incoming.poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.connection.set_phase(Phase::Body);
                    return Poll::Pending;
                }
            };
            if self.connection.phase() == Phase::Body {
                self.connection.set_phase(Phase::Working);
            }
            match frame {
                None => {
                    self.connection.set_body_read();
                    return Poll::Ready(Ok(None));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => {
                        self.undeclared_left = match self.undeclared_left.checked_sub(bytes.len() as u64) {
                            Some(left) => left,
                            None => {
                                return Poll::Ready(Err(WireError::new(
                                    Code::EntityTooLarge,
                                    "Your proposed upload exceeds the maximum allowed object size.",
                                )));
                            }
                        };
                        if self.incoming.is_end_stream() {
                            self.connection.set_body_read();
                        }
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                    // HTTP trailers have no meaning in S3.
                    Err(_) => {}
                },
                Some(Err(e)) => {
                    return Poll::Ready(Err(WireError::with_source(
                        Code::IncompleteBody,
                        "The request body terminated unexpectedly",
                        e,
                    )));
                }
            }
        }
    }
}
