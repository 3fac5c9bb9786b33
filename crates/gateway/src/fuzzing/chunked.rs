//! Compares the aws-chunked decoder with a reference decoder that has the whole body in memory.

use bytes::Bytes;
use http::{HeaderName, Request};

use super::client::{self, Chain};
use super::input::Input;
use crate::chunked::{Decoder, Step};
use crate::error::Code;
use crate::sigv4::{BodyDeclaration, ChunkSignatureChain};

const SIGNATURE: &str = "x-amz-trailer-signature";
const TRAILERS: [&str; 3] = ["x-amz-checksum-crc32c", "x-amz-meta-a", SIGNATURE];

/// Decodes a body, split into pieces: either arbitrary bytes, or the body of a client with at most one mutation. The
/// result must equal that of the reference decoder and must not depend on the split. No more data than announced may be
/// returned, and none after an error.
pub fn chunked(data: &[u8]) {
    let mut input = Input::new(data);
    let cuts = input.length_prefixed(8);
    let max_bytes = 1 + input.index(300);
    let case = Case::read(&mut input);
    let whole = case.decode(&[&case.body], usize::MAX);
    assert_eq!(
        case.decode(&split(&case.body, cuts), max_bytes),
        whole,
        "the result depends on the split: {case:?}"
    );
    match (whole.end, case.reference()) {
        (Ok(trailers), Some(expected)) => assert_eq!((whole.data, trailers), expected, "{case:?}"),
        (Ok(_), None) => panic!("an invalid body was accepted: {case:?}"),
        (Err(e), Some(_)) if case.is_clients => panic!("a client's body was rejected: {e:?}: {case:?}"),
        (Err(_), _) => {}
    }
}

/// Names in lower case with their values, sorted.
type Trailers = Vec<(String, Vec<u8>)>;

#[derive(Debug, PartialEq)]
struct Outcome {
    /// The decoded data, including that before an error.
    data: Vec<u8>,
    end: Result<Trailers, Code>,
}

#[derive(Debug)]
struct Case {
    is_signed: bool,
    has_trailers: bool,
    announced: Vec<&'static str>,
    length: u64,
    body: Vec<u8>,
    /// Built as a client does, and not mutated.
    is_clients: bool,
}

impl Case {
    fn read(input: &mut Input<'_>) -> Self {
        let choice = input.byte();
        let bit = |at: u8| choice >> at & 1 == 1;
        // A client never announces the trailers' signature itself.
        let announced = TRAILERS.into_iter().enumerate();
        let announced = announced.filter(|(i, _)| input.byte() & 1 == 1 && (*i < 2 || bit(3)));
        let mut case = Self {
            is_signed: bit(0),
            has_trailers: bit(1),
            announced: announced.map(|(_, name)| name).collect(),
            length: 0,
            body: Vec::new(),
            is_clients: false,
        };
        if bit(2) {
            case.length = u64::from(input.byte());
            case.body = input.rest().to_vec();
            return case;
        }
        case.is_clients = !case.announced.contains(&SIGNATURE);
        let mutation = bit(4).then(|| (input.byte() % 3, input.index(usize::from(u16::MAX)), input.byte()));
        case.write_body(input);
        if let Some((kind, at, byte)) = mutation {
            let at = at % case.body.len();
            match kind {
                0 => case.body[at] ^= byte,
                1 => case.body.push(byte),
                _ => case.body.truncate(at),
            }
            case.is_clients &= kind == 0 && byte == 0;
        }
        case
    }

    /// Builds a body as a client does.
    fn write_body(&mut self, input: &mut Input<'_>) {
        let mut chain = self.is_signed.then(|| Chain::new(request_signature(self.has_trailers)));
        let sizes: Vec<usize> = input.length_prefixed(4).iter().map(|size| usize::from(*size)).collect();
        let values: Vec<Vec<u8>> = TRAILERS.iter().map(|_| visible(input.length_prefixed(12))).collect();
        let filling = input.rest();
        // The last chunk is empty.
        for size in sizes.into_iter().filter(|size| *size > 0).chain([0]) {
            let chunk: Vec<u8> = filling.iter().copied().chain(0..=255).cycle().take(size).collect();
            self.length += size as u64;
            self.body.extend_from_slice(format!("{size:x}").as_bytes());
            if let Some(chain) = &mut chain {
                self.body.extend_from_slice(format!(";chunk-signature={}", chain.chunk(&chunk)).as_bytes());
            }
            self.body.extend_from_slice(b"\r\n");
            if size > 0 {
                self.body.extend_from_slice(&chunk);
                self.body.extend_from_slice(b"\r\n");
            }
        }
        if self.has_trailers {
            let mut signed = Vec::new();
            for (name, value) in self.announced.iter().zip(values) {
                let line = [name.as_bytes(), b":", &value].concat();
                signed.extend_from_slice(&[&line[..], b"\n"].concat());
                self.body.extend_from_slice(&[&line[..], b"\r\n"].concat());
            }
            if let Some(chain) = &mut chain {
                let signature = chain.trailers(&signed);
                self.body.extend_from_slice(format!("{SIGNATURE}:{signature}\r\n").as_bytes());
            }
        }
        self.body.extend_from_slice(b"\r\n");
    }

    /// The reference result; `None` if the body is malformed or not correctly signed.
    fn reference(&self) -> Option<(Vec<u8>, Trailers)> {
        let mut chain = self.is_signed.then(|| Chain::new(request_signature(self.has_trailers)));
        let (mut data, mut rest) = (Vec::new(), self.body.as_slice());
        loop {
            let line = take_line(&mut rest)?.strip_suffix(b"\r")?;
            let mut fields = line.splitn(2, |c| *c == b';');
            let size = std::str::from_utf8(fields.next()?).ok().filter(|size| !size.starts_with('+'))?;
            let size = usize::from_str_radix(size, 16).ok().filter(|_| size.len() <= 16)?;
            let chunk = rest.get(..size)?;
            rest = &rest[size..];
            if let Some(chain) = &mut chain {
                let claimed = fields.next()?.strip_prefix(b"chunk-signature=")?;
                signature_matches(claimed, chain.chunk(chunk)).then_some(())?;
            }
            if size == 0 {
                break;
            }
            data.extend_from_slice(chunk);
            rest = rest.strip_prefix(b"\r\n")?;
        }
        let trailers = self.reference_trailers(&mut rest, chain)?;
        (rest.is_empty() && data.len() as u64 == self.length).then_some((data, trailers))
    }

    fn reference_trailers(&self, rest: &mut &[u8], chain: Option<Chain>) -> Option<Trailers> {
        let (mut trailers, mut signed, mut signature) = (Trailers::new(), Vec::new(), None);
        loop {
            let line = take_line(rest)?;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                break;
            }
            let colon = line.iter().position(|c| *c == b':').filter(|_| self.has_trailers)?;
            let name = String::from_utf8(line[..colon].trim_ascii().to_ascii_lowercase()).ok()?;
            let value = line[colon + 1..].trim_ascii();
            if signature.is_some() {
                return None;
            }
            if chain.is_some() && name == SIGNATURE {
                signature = Some(value);
                continue;
            }
            signed.extend_from_slice(&[name.as_bytes(), b":", value, b"\n"].concat());
            trailers.push((name, value.to_vec()));
        }
        if self.has_trailers {
            if let Some(mut chain) = chain {
                signature_matches(signature?, chain.trailers(&signed)).then_some(())?;
            }
            let mut announced = self.announced.clone();
            announced.sort_unstable();
            trailers.sort_unstable();
            let names: Vec<&str> = trailers.iter().map(|(name, _)| name.as_str()).collect();
            (names == announced).then_some(())?;
        }
        Some(trailers)
    }

    fn decode(&self, pieces: &[&[u8]], max_bytes: usize) -> Outcome {
        let signatures = self.is_signed.then(|| signatures(self.has_trailers));
        let announced = self.announced.iter().copied().map(HeaderName::from_static).collect();
        let mut decoder = Decoder::new(self.length, signatures, self.has_trailers, announced);
        let mut pieces = pieces.iter().map(|piece| Bytes::copy_from_slice(piece));
        let (mut data, mut trailers) = (Vec::new(), None);
        let end = loop {
            match decoder.next(max_bytes) {
                Ok(Step::Data(bytes)) => {
                    assert!(trailers.is_none(), "data after the end: {self:?}");
                    assert!(!bytes.is_empty() && bytes.len() <= max_bytes, "a step of {} bytes", bytes.len());
                    data.extend_from_slice(&bytes);
                    assert!(data.len() as u64 <= self.length, "more data than announced: {self:?}");
                }
                Ok(Step::NeedInput) => match pieces.next() {
                    Some(piece) => decoder.feed(piece),
                    None => break Err(decoder.finish().expect_err("the body is incomplete").code()),
                },
                Ok(Step::Done(found)) => {
                    trailers.get_or_insert(found);
                    // Any further bytes must be rejected.
                    let Some(piece) = pieces.next() else { break Ok(trailers.unwrap_or_default()) };
                    decoder.feed(piece);
                }
                Err(e) => {
                    assert_stays_failed(&mut decoder);
                    break Err(e.code());
                }
            }
        };
        assert_eq!(end.is_ok(), decoder.finish().is_ok(), "{self:?}");
        let end = end.map(|trailers| {
            let pairs = trailers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
            let mut pairs: Trailers = pairs.collect();
            pairs.sort_unstable();
            pairs
        });
        Outcome { data, end }
    }
}

/// Asserts that no further input makes the decoder recover from an error.
fn assert_stays_failed(decoder: &mut Decoder) {
    for more in ["\r\n", "0\r\n\r\n", "\r\n\r\n", "1\r\na\r\n0\r\n\r\n"] {
        decoder.feed(Bytes::from_static(more.as_bytes()));
        for _ in 0..8 {
            match decoder.next(usize::MAX) {
                Ok(Step::NeedInput) => break,
                Ok(step) => panic!("{step:?} after an error"),
                Err(_) => {}
            }
        }
    }
}

fn split<'a>(body: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let mut input = Input::new(body);
    let mut pieces = Vec::new();
    let mut taken = 0;
    // Empty pieces are allowed, but not only empty ones.
    let sizes = cuts.iter().cycle().take_while(|_| cuts.iter().any(|size| *size > 0));
    for size in sizes {
        if taken == body.len() {
            return pieces;
        }
        pieces.push(input.take(usize::from(*size)));
        taken += pieces.last().map_or(0, |piece| piece.len());
    }
    vec![body]
}

/// A line without its LF.
fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|c| *c == b'\n')?;
    let line = &rest[..end];
    *rest = &rest[end + 1..];
    Some(line)
}

fn signature_matches(claimed: &[u8], signature: &str) -> bool {
    claimed.eq_ignore_ascii_case(signature.as_bytes())
}

fn visible(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte % 94 + 33).collect()
}

fn payload_word(has_trailers: bool) -> &'static str {
    if has_trailers {
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    } else {
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    }
}

/// The signature of the request that the body belongs to.
fn request_signature(has_trailers: bool) -> String {
    let word = payload_word(has_trailers);
    let names = "host;x-amz-content-sha256;x-amz-date";
    let headers = format!("host:h\nx-amz-content-sha256:{word}\nx-amz-date:{}\n", client::DATE);
    let canonical = client::sha256(format!("PUT\n/b/k\n\n{headers}\n{names}\n{word}").as_bytes());
    let text = format!("AWS4-HMAC-SHA256\n{}\n{}\n{canonical}", client::DATE, client::SCOPE);
    client::sign(client::SCOPE, text.as_bytes())
}

/// The chain of signatures as the server obtains it: by verifying that request.
fn signatures(has_trailers: bool) -> ChunkSignatureChain {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature={}",
        client::ID,
        client::SCOPE,
        request_signature(has_trailers)
    );
    let request = Request::put("/b/k")
        .header("host", "h")
        .header("x-amz-date", client::DATE)
        .header("x-amz-content-sha256", payload_word(has_trailers))
        .header("authorization", authorization);
    let verified = client::VERIFIER.verify(&request.body(()).unwrap().into_parts().0).unwrap();
    match verified.declared {
        BodyDeclaration::SignedChunks { signatures, has_trailers: declared } if declared == has_trailers => {
            signatures
        }
        other => panic!("unexpected declaration: {other:?}"),
    }
}
