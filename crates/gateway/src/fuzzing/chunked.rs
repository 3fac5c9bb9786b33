//! The aws-chunked decoder against a decoder that has the whole body before it.

use bytes::Bytes;
use http::{HeaderName, Request};

use super::client::{self, Chain};
use super::input::Input;
use crate::chunked::{Decoder, Step};
use crate::error::Code;
use crate::sigv4::{ChunkSigner, Payload};

const SIGNATURE: &str = "x-amz-trailer-signature";
const TRAILERS: [&str; 3] = ["x-amz-checksum-crc32c", "x-amz-meta-a", SIGNATURE];

/// A body, either any bytes or made as a client makes it and perhaps changed in one place, longer or
/// shorter, and cut into pieces. What comes out must be what a simple decoder finds or a refusal, in
/// every way of cutting the same; never more than was announced, and nothing after a refusal.
pub fn chunked(data: &[u8]) {
    let mut input = Input::new(data);
    let cuts = input.some(8);
    let most = 1 + input.index(300);
    let case = Case::read(&mut input);
    let whole = case.decode(&[&case.body], usize::MAX);
    assert_eq!(case.decode(&cut(&case.body, cuts), most), whole, "depends on how it is cut: {case:?}");
    match (whole.end, case.reference()) {
        (Ok(trailers), Some(expected)) => assert_eq!((whole.data, trailers), expected, "{case:?}"),
        (Ok(_), None) => panic!("was taken, and is wrong: {case:?}"),
        (Err(e), Some(_)) if case.is_clients => panic!("a client's body was refused: {e:?}: {case:?}"),
        (Err(_), _) => {}
    }
}

/// Names in lower case with their values, sorted.
type Trailers = Vec<(String, Vec<u8>)>;

#[derive(Debug, PartialEq)]
struct Outcome {
    /// What came out, also before a refusal.
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
    /// Made as a client makes it and not changed.
    is_clients: bool,
}

impl Case {
    fn read(input: &mut Input<'_>) -> Self {
        let choice = input.byte();
        let bit = |at: u8| choice >> at & 1 == 1;
        // Announcing the trailers' signature itself is nothing a client does.
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
        let change = bit(4).then(|| (input.byte() % 3, input.index(usize::from(u16::MAX)), input.byte()));
        case.write_body(input);
        if let Some((what, at, byte)) = change {
            let at = at % case.body.len();
            match what {
                0 => case.body[at] ^= byte,
                1 => case.body.push(byte),
                _ => case.body.truncate(at),
            }
            case.is_clients &= what == 0 && byte == 0;
        }
        case
    }

    /// A body as a client makes it.
    fn write_body(&mut self, input: &mut Input<'_>) {
        let mut chain = self.is_signed.then(|| Chain::new(request_signature(self.has_trailers)));
        let sizes: Vec<usize> = input.some(4).iter().map(|size| usize::from(*size)).collect();
        let values: Vec<Vec<u8>> = TRAILERS.iter().map(|_| visible(input.some(12))).collect();
        let filling = input.rest();
        // A chunk of no bytes is the last one.
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

    /// What the body is, or `None` where it is not well formed and rightly signed throughout.
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
                is_same(claimed, chain.chunk(chunk)).then_some(())?;
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
                is_same(signature?, chain.trailers(&signed)).then_some(())?;
            }
            let mut announced = self.announced.clone();
            announced.sort_unstable();
            trailers.sort_unstable();
            let names: Vec<&str> = trailers.iter().map(|(name, _)| name.as_str()).collect();
            (names == announced).then_some(())?;
        }
        Some(trailers)
    }

    fn decode(&self, pieces: &[&[u8]], most: usize) -> Outcome {
        let signer = self.is_signed.then(|| signer(self.has_trailers));
        let announced = self.announced.iter().copied().map(HeaderName::from_static).collect();
        let mut decoder = Decoder::new(self.length, signer, self.has_trailers, announced);
        let mut pieces = pieces.iter().map(|piece| Bytes::copy_from_slice(piece));
        let (mut data, mut trailers) = (Vec::new(), None);
        let end = loop {
            match decoder.next(most) {
                Ok(Step::Data(bytes)) => {
                    assert!(trailers.is_none(), "data behind the end: {self:?}");
                    assert!(!bytes.is_empty() && bytes.len() <= most, "{} bytes at once", bytes.len());
                    data.extend_from_slice(&bytes);
                    assert!(data.len() as u64 <= self.length, "more than was announced: {self:?}");
                }
                Ok(Step::NeedInput) => match pieces.next() {
                    Some(piece) => decoder.feed(piece),
                    None => break Err(decoder.finish().expect_err("nothing is done yet").code()),
                },
                Ok(Step::Done(found)) => {
                    trailers.get_or_insert(found);
                    // Whatever follows must be refused.
                    let Some(piece) = pieces.next() else { break Ok(trailers.unwrap_or_default()) };
                    decoder.feed(piece);
                }
                Err(e) => {
                    stays_refused(&mut decoder);
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

/// Nothing that comes behind a refusal brings the decoder back.
fn stays_refused(decoder: &mut Decoder) {
    for more in ["\r\n", "0\r\n\r\n", "\r\n\r\n", "1\r\na\r\n0\r\n\r\n"] {
        decoder.feed(Bytes::from_static(more.as_bytes()));
        for _ in 0..8 {
            match decoder.next(usize::MAX) {
                Ok(Step::NeedInput) => break,
                Ok(step) => panic!("{step:?} after a refusal"),
                Err(_) => {}
            }
        }
    }
}

fn cut<'a>(body: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let mut input = Input::new(body);
    let mut pieces = Vec::new();
    let mut taken = 0;
    // Pieces of nothing are legal, but not for ever.
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

fn is_same(claimed: &[u8], signature: &str) -> bool {
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

/// The signer as the server gets it: by verifying that request.
fn signer(has_trailers: bool) -> ChunkSigner {
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
    match verified.payload {
        Payload::SignedChunks { signer, trailer } if trailer == has_trailers => signer,
        other => panic!("the body was announced as another: {other:?}"),
    }
}
