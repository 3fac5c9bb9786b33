//! The aws-chunked framing, as an incremental state machine without I/O: bytes go in as they arrive, slices of the same
//! buffers come out, trailers at the end.
//!
//! A chunk's bytes are returned before its signature is verified, so that nothing is buffered; the signature is checked
//! when the chunk is complete. The consumer must therefore commit nothing before [`Step::Done`]. Every length is
//! bounded before it is trusted: a header line, the trailers, and the data, whose total must equal
//! `x-amz-decoded-content-length`.

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use ring::digest;

use crate::error::{Code, WireError};
use crate::sigv4::ChunkSignatureChain;
use tradewind_wire::sigv4::hex::from_hex;

/// The longest line (a chunk's header or a trailer) in bytes, without its line feed.
const MAX_LINE_BYTES: usize = 1024;
/// The length of a signature in the header of a chunk.
const SIGNATURE_BYTES: usize = 64;
/// The maximum number of trailers.
const MAX_TRAILERS: usize = 16;
/// The trailer that signs the others.
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

/// The result of [`Decoder::next`].
#[derive(Debug)]
pub enum Step {
    /// More input is needed: call [`Decoder::feed`], or [`Decoder::finish`] if there is none.
    NeedInput,
    /// Bytes of the body.
    Data(Bytes),
    /// The end was reached and everything that can be verified is correct. Contains the trailers.
    Done(HeaderMap),
}

/// The decoder of one body.
#[derive(Debug)]
pub struct Decoder {
    input: Bytes,
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
    state: DecoderState,
    /// Data bytes that are still to come.
    left: u64,
    signing: Option<Signing>,
    announced: Vec<HeaderName>,
    trailers: HeaderMap,
    /// True if trailers follow the last chunk.
    has_trailers: bool,
    /// The rest of a line end that some clients write after a trailer: LF CR LF. It may be missing.
    optional_end: &'static [u8],
}

#[derive(Debug)]
enum DecoderState {
    /// A chunk's header.
    Header,
    /// Bytes of a chunk, and how many are left.
    Data(u64),
    /// The line end after a chunk's bytes.
    DataEnd,
    /// Trailers, up to an empty line.
    Trailers,
    /// All was read and verified.
    Done,
    /// An error was returned; decoding cannot continue.
    Failed,
}

struct Signing {
    signatures: ChunkSignatureChain,
    /// The hash of the current chunk.
    hash: digest::Context,
    /// The signature in its header.
    claimed: [u8; 32],
    /// The trailers in the form that is signed.
    trailers: Vec<u8>,
}

impl std::fmt::Debug for Signing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.signatures.fmt(f)
    }
}

impl Decoder {
    /// A decoder for a body of `length` data bytes. With `signatures`, every chunk must be signed. `announced` are the
    /// names in `x-amz-trailer`: if `has_trailers` is true, exactly these must follow the last chunk.
    #[must_use]
    pub fn new(
        length: u64,
        signatures: Option<ChunkSignatureChain>,
        has_trailers: bool,
        announced: Vec<HeaderName>,
    ) -> Self {
        let signing = signatures.map(|signatures| Signing {
            signatures,
            hash: digest::Context::new(&digest::SHA256),
            claimed: [0; 32],
            trailers: Vec::new(),
        });
        Self {
            input: Bytes::new(),
            line: Vec::new(),
            state: DecoderState::Header,
            left: length,
            signing,
            announced,
            trailers: HeaderMap::new(),
            has_trailers,
            optional_end: b"",
        }
    }

    /// Returns true if `next` hashes the data that it returns.
    #[must_use]
    pub const fn hashes(&self) -> bool {
        self.signing.is_some()
    }

    /// Supplies the next bytes. Call only after [`Step::NeedInput`].
    pub fn feed(&mut self, input: Bytes) {
        debug_assert!(self.input.is_empty(), "`feed` was called before the last input was consumed");
        self.input = input;
    }

    /// The next step, with at most `max_bytes` bytes of data.
    pub fn next(&mut self, max_bytes: usize) -> Result<Step, WireError> {
        match self.advance(max_bytes) {
            Ok(step) => Ok(step),
            Err(e) => {
                self.state = DecoderState::Failed;
                self.input.clear();
                Err(e)
            }
        }
    }

    /// Ends the input. Returns an error unless the end of the body was reached.
    pub fn finish(&self) -> Result<(), WireError> {
        match self.state {
            DecoderState::Done => Ok(()),
            _ => Err(malformed("the body ends before its last chunk")),
        }
    }

    fn advance(&mut self, max_bytes: usize) -> Result<Step, WireError> {
        loop {
            if let DecoderState::Data(size) = self.state {
                if self.input.is_empty() {
                    return Ok(Step::NeedInput);
                }
                return Ok(Step::Data(self.data(size, max_bytes)));
            }
            if matches!(self.state, DecoderState::Done) {
                self.skip_optional_end();
                if !self.input.is_empty() {
                    return Err(malformed("there are bytes after the last chunk"));
                }
                return Ok(Step::Done(std::mem::take(&mut self.trailers)));
            }
            let Some(line) = self.take_line()? else { return Ok(Step::NeedInput) };
            match self.state {
                DecoderState::Header => self.begin_chunk(&line)?,
                DecoderState::DataEnd if line.is_empty() => {
                    self.verify_chunk()?;
                    self.state = DecoderState::Header;
                }
                DecoderState::DataEnd => {
                    return Err(malformed("a chunk is longer than its header declares"));
                }
                // The trailer ended in LF CR LF, and others follow.
                DecoderState::Trailers
                    if line.is_empty() && !self.optional_end.is_empty() && !self.has_all_trailers() =>
                {
                    self.optional_end = b"";
                }
                DecoderState::Trailers if line.is_empty() => self.end_trailers()?,
                DecoderState::Trailers => self.add_trailer(&line)?,
                DecoderState::Data(_) | DecoderState::Done => {}
                DecoderState::Failed => return Err(malformed("the body was already rejected")),
            }
        }
    }

    /// Returns true if the body may have more bytes after [`Step::Done`]: the rest of a line end. They are supplied by
    /// [`feed`](Self::feed) and verified by [`next`](Self::next), like all others.
    #[must_use]
    pub const fn may_have_more(&self) -> bool {
        matches!(self.state, DecoderState::Done) && !self.optional_end.is_empty()
    }

    fn skip_optional_end(&mut self) {
        let is_same = |(found, expected): &(&u8, &u8)| found == expected;
        let length = self.input.iter().zip(self.optional_end).take_while(is_same).count();
        self.input.advance(length);
        self.optional_end = &self.optional_end[length..];
    }

    /// The next bytes of the current chunk.
    fn data(&mut self, size: u64, max_bytes: usize) -> Bytes {
        let available = self.input.len().min(max_bytes.max(1));
        let length = usize::try_from(size).map_or(available, |size| available.min(size));
        let data = self.input.split_to(length);
        self.left -= length as u64;
        if let Some(signing) = &mut self.signing {
            signing.hash.update(&data);
        }
        let left = size - length as u64;
        self.state = if left > 0 { DecoderState::Data(left) } else { DecoderState::DataEnd };
        data
    }

    /// A line without its end; `None` while it is not complete.
    fn take_line(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let end = memchr::memchr(b'\n', &self.input);
        let length = end.unwrap_or(self.input.len());
        if self.line.len() + length > MAX_LINE_BYTES {
            return Err(malformed("a line of the chunked body is too long"));
        }
        self.line.extend_from_slice(&self.input[..length]);
        if end.is_none() {
            self.input.clear();
            return Ok(None);
        }
        self.input.advance(length + 1);
        let mut line = std::mem::take(&mut self.line);
        let has_cr = line.pop_if(|c| *c == b'\r').is_some();
        if matches!(self.state, DecoderState::Trailers) {
            if !line.is_empty() {
                self.optional_end = if has_cr { b"" } else { b"\r\n" };
            }
        } else if !has_cr {
            return Err(malformed("a line of the chunked body does not end in CR LF"));
        }
        Ok(Some(line))
    }

    /// `size` or `size;chunk-signature=...`.
    fn begin_chunk(&mut self, line: &[u8]) -> Result<(), WireError> {
        let (size, extension) = match memchr::memchr(b';', line) {
            Some(at) => (&line[..at], Some(&line[at + 1..])),
            None => (line, None),
        };
        let size =
            parse_size(size).ok_or_else(|| malformed("the size of a chunk is not a hexadecimal number"))?;
        if let Some(signing) = &mut self.signing {
            let signature = extension.and_then(|e| e.strip_prefix(b"chunk-signature="));
            let signature = signature.filter(|text| text.len() == SIGNATURE_BYTES).ok_or_else(|| {
                malformed("the header of a chunk has no signature, or one that is not of 64 digits")
            })?;
            signing.claimed = from_hex(signature).ok_or_else(wrong_signature)?;
        }
        if size > self.left {
            return Err(wrong_length(
                "the chunks have more bytes than x-amz-decoded-content-length declares",
            ));
        }
        if size > 0 {
            self.state = DecoderState::Data(size);
            return Ok(());
        }
        if self.left > 0 {
            return Err(wrong_length(
                "the chunks have fewer bytes than x-amz-decoded-content-length declares",
            ));
        }
        self.verify_chunk()?;
        self.state = DecoderState::Trailers;
        Ok(())
    }

    fn verify_chunk(&mut self) -> Result<(), WireError> {
        let Some(signing) = &mut self.signing else { return Ok(()) };
        let fresh = digest::Context::new(&digest::SHA256);
        let hash = finish_hash(std::mem::replace(&mut signing.hash, fresh));
        if signing.signatures.verify_chunk(&hash, &signing.claimed) { Ok(()) } else { Err(wrong_signature()) }
    }

    fn add_trailer(&mut self, line: &[u8]) -> Result<(), WireError> {
        if !self.has_trailers {
            return Err(malformed("there are bytes after the last chunk"));
        }
        let at = memchr::memchr(b':', line).ok_or_else(|| malformed_trailer("a trailer has no value"))?;
        let name = HeaderName::from_bytes(line[..at].trim_ascii());
        let name = name.map_err(|_| malformed_trailer("the name of a trailer is malformed"))?;
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii());
        let value = value.map_err(|_| malformed_trailer("the value of a trailer is malformed"))?;
        if let Some(signing) = &mut self.signing {
            if name == TRAILER_SIGNATURE {
                let claimed = from_hex(value.as_bytes()).ok_or_else(wrong_signature)?;
                let mut hash = digest::Context::new(&digest::SHA256);
                hash.update(&signing.trailers);
                if !signing.signatures.verify_trailer(&finish_hash(hash), &claimed) {
                    return Err(wrong_signature());
                }
                // Kept as a marker: trailers after the signature are not covered by it and are rejected below.
                self.trailers.insert(name, value);
                return Ok(());
            }
            if self.trailers.contains_key(TRAILER_SIGNATURE) {
                return Err(malformed_trailer("a trailer follows the signature of the trailers"));
            }
            signing.trailers.extend_from_slice(name.as_str().as_bytes());
            signing.trailers.push(b':');
            signing.trailers.extend_from_slice(value.as_bytes());
            signing.trailers.push(b'\n');
        }
        if !self.announced.contains(&name) {
            return Err(malformed_trailer("a trailer is not announced in x-amz-trailer"));
        }
        if self.trailers.len() >= MAX_TRAILERS || self.trailers.insert(name, value).is_some() {
            return Err(malformed_trailer("a trailer is given twice"));
        }
        Ok(())
    }

    /// Returns true if the announced trailers were received and, in a signed body, their signature.
    fn has_all_trailers(&self) -> bool {
        let is_signed = self.signing.is_none() || self.trailers.contains_key(TRAILER_SIGNATURE);
        is_signed && self.announced.iter().all(|name| self.trailers.contains_key(name))
    }

    fn end_trailers(&mut self) -> Result<(), WireError> {
        if self.has_trailers {
            if self.signing.is_some() && self.trailers.remove(TRAILER_SIGNATURE).is_none() {
                return Err(wrong_signature());
            }
            if let Some(missing) = self.announced.iter().find(|name| !self.trailers.contains_key(*name)) {
                return Err(malformed_trailer(format!("the announced trailer {missing} is missing")));
            }
        }
        self.state = DecoderState::Done;
        Ok(())
    }
}

/// Parses up to 16 hexadecimal digits.
fn parse_size(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0_u64, |n, c| {
        let digit = char::from(*c).to_digit(16)?;
        Some(n << 4 | u64::from(digit))
    })
}

fn finish_hash(hash: digest::Context) -> [u8; 32] {
    let mut value = [0; 32];
    value.copy_from_slice(hash.finish().as_ref());
    value
}

fn wrong_signature() -> WireError {
    WireError::new(
        Code::SignatureDoesNotMatch,
        "The signature of a chunk or of the trailers does not match what was received; nothing was stored.",
    )
}

/// The error of malformed framing. The log has the cause.
pub(crate) fn malformed(why: &'static str) -> WireError {
    WireError::with_source(Code::IncompleteBody, "The request body terminated unexpectedly", why)
}

/// The error of chunks that are not as long together as the client declared.
fn wrong_length(why: &'static str) -> WireError {
    let message = "You did not provide the number of bytes specified by the Content-Length HTTP header";
    WireError::with_source(Code::IncompleteBody, message, why)
}

/// The error of a malformed trailer. The log has the cause.
pub(crate) fn malformed_trailer(why: impl Into<String>) -> WireError {
    let message = "The request contained trailing data that was not well-formed or did not conform to our \
                   published schema.";
    WireError::with_source(Code::MalformedTrailer, message, why.into())
}

#[cfg(test)]
mod tests;
