//! A small S3 server with scripted faults: it stores the objects of one bucket in memory, responds as S3 does, and lets
//! a script change each response. It records every request, so that a test can count them.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tradewind_core::{Algorithm, Checksum};

use super::{sign, xml};

/// The server's only bucket.
pub const BUCKET: &str = "bucket";
/// The maximum number of requests that are served: more indicate a runaway client.
const MAX_REQUESTS: usize = 2000;
/// The maximum size of a request's body.
const MAX_BODY_BYTES: usize = 64 << 20;
/// The last-modified time of every object, in both of S3's formats.
const MODIFIED: [&str; 2] = ["Fri, 02 Jan 2026 03:04:05 GMT", "2026-01-02T03:04:05.000Z"];

/// A request as received.
#[derive(Debug, Clone)]
pub struct Request {
    /// The name of the S3 operation.
    pub operation: &'static str,
    /// The ordinal among the requests of this operation, from 1.
    pub number: usize,
    pub key: String,
    pub query: BTreeMap<String, String>,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// A response.
#[derive(Debug, Clone, Default)]
pub struct ScriptedResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ScriptedResponse {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// An error response in S3's format.
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        Self::error_with(status, code, message, "")
    }

    /// An error response with additional elements.
    pub fn error_with(status: u16, code: &str, message: &str, more: &str) -> Self {
        let error = format!("<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>");
        Self::new(status, format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{error}"))
    }

    pub fn document(body: &str) -> Self {
        Self::new(200, body)
    }

    /// Sets a header.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Sends the body in chunks, without `Content-Length`.
    pub fn chunked(mut self) -> Self {
        let mut framed = Vec::new();
        for chunk in self.body.chunks(64 << 10) {
            framed.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            framed.extend_from_slice(chunk);
            framed.extend_from_slice(b"\r\n");
        }
        framed.extend_from_slice(b"0\r\n\r\n");
        self.body = framed;
        self.with_header("Transfer-Encoding", "chunked")
    }

    /// Flips one bit of the body.
    pub fn with_flipped_bit(mut self, at: usize) -> Self {
        self.body[at] ^= 1;
        self
    }
}

/// The treatment of a request.
#[derive(Debug)]
pub enum Reply {
    /// The response is sent.
    Respond(ScriptedResponse),
    /// The connection is reset without a response.
    Reset,
    /// The request is executed, and the connection is reset without a response.
    ResetAfterExecution(ScriptedResponse),
    /// No response is sent, and the connection stays open.
    Silence,
    /// The full length is announced, the given number of bytes of the body is sent, and the connection is closed.
    Truncated(ScriptedResponse, usize),
    /// Like [`Truncated`](Self::Truncated), but the connection stays open.
    Stalled(ScriptedResponse, usize),
    /// The full length is announced, and the body is sent in pieces of the given size, one per 100 ms.
    Trickled(ScriptedResponse, usize),
    /// The full length is announced, and after each pause the given number of bytes of the body is sent. The rest is
    /// never sent.
    Paced(ScriptedResponse, Vec<(Duration, usize)>),
}

/// Decides the treatment of a request, given its correct response.
type Script = Box<dyn Fn(&Request, ScriptedResponse) -> Reply + Send + Sync>;

/// An object with its checksum.
#[derive(Debug, Clone)]
struct Object {
    bytes: Vec<u8>,
    checksum: String,
    /// User metadata, as headers.
    metadata: Vec<(String, String)>,
}

impl Object {
    fn new(bytes: Vec<u8>) -> Self {
        Self { checksum: checksum(&bytes), bytes, metadata: Vec::new() }
    }

    /// An entity tag that depends only on the bytes.
    fn etag(&self) -> String {
        format!("\"{}\"", self.checksum)
    }
}

struct ServerState {
    script: Script,
    objects: Mutex<BTreeMap<String, Object>>,
    /// Parts by key and number. A key has at most one upload.
    parts: Mutex<BTreeMap<(String, u32), Vec<u8>>>,
    seen: Mutex<Vec<Request>>,
    /// The number of responses that are or were held, so that a test can wait for one.
    held: Mutex<usize>,
    is_over: AtomicBool,
}

/// A running server.
pub struct ScriptedServer {
    pub address: SocketAddr,
    state: Arc<ServerState>,
    accepting: Option<JoinHandle<()>>,
}

impl ScriptedServer {
    pub fn start(script: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ServerState {
            script: Box::new(script),
            objects: Mutex::default(),
            parts: Mutex::default(),
            seen: Mutex::default(),
            held: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let shared = state.clone();
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, state) = (stream.unwrap(), shared.clone());
                // The thread ends with the client's connection.
                std::thread::spawn(move || {
                    let _ = state.serve(stream);
                });
            }
        });
        Self { address, state, accepting: Some(accepting) }
    }

    /// Stores an object directly.
    pub fn put_object(&self, key: &str, bytes: Vec<u8>) {
        self.state.objects.lock().unwrap().insert(key.to_owned(), Object::new(bytes));
    }

    /// The bytes of an object; `None` if it does not exist.
    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        self.state.objects.lock().unwrap().get(key).map(|object| object.bytes.clone())
    }

    /// An object's entity tag.
    pub fn etag(&self, key: &str) -> String {
        self.state.objects.lock().unwrap()[key].etag()
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.seen.lock().unwrap().clone()
    }

    /// The requests of an operation so far.
    pub fn requests_of(&self, operation: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.operation == operation).collect()
    }

    /// The number of requests of each operation, sorted by name.
    pub fn request_counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts = BTreeMap::new();
        self.requests().iter().for_each(|request| *counts.entry(request.operation).or_insert(0) += 1);
        counts.into_iter().collect()
    }

    /// The number of responses that are or were held.
    pub fn stalled_count(&self) -> usize {
        *self.state.held.lock().unwrap()
    }

    /// Waits until the given number of responses was held.
    pub fn wait_until_stalled(&self, number: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.stalled_count() < number {
            assert!(
                Instant::now() < deadline,
                "timeout: only {} of {number} responses are held",
                self.stalled_count()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl ServerState {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some((method, request)) = self.read(&mut reader)? {
            let stream = reader.get_mut();
            let reply = (self.script)(&request, self.answer(&request));
            if let Reply::Respond(answer)
            | Reply::Truncated(answer, _)
            | Reply::Stalled(answer, _)
            | Reply::ResetAfterExecution(answer)
            | Reply::Trickled(answer, _) = &reply
                && answer.status < 300
                // S3 may respond with status 200 and then report an error in the body.
                && !answer.body.windows(7).any(|text| text == b"<Error>")
            {
                self.carry_out(&request);
            }
            match reply {
                Reply::Respond(answer) => write(stream, &method, &answer, answer.body.len())?,
                Reply::Reset | Reply::ResetAfterExecution(_) => {
                    set_socket_linger(&*stream, Some(Duration::ZERO))?;
                    return Ok(());
                }
                Reply::Truncated(answer, length) => {
                    write(stream, &method, &answer, length)?;
                    return stream.shutdown(Shutdown::Both);
                }
                Reply::Silence => {
                    *self.held.lock().unwrap() += 1;
                    // Waits until the client disconnects.
                    return stream.read_exact(&mut [0]);
                }
                Reply::Trickled(answer, piece) => {
                    write(stream, &method, &answer, 0)?;
                    for piece in answer.body.chunks(piece) {
                        std::thread::sleep(Duration::from_millis(100));
                        stream.write_all(piece)?;
                    }
                }
                Reply::Paced(answer, pieces) => {
                    write(stream, &method, &answer, 0)?;
                    let mut rest = &answer.body[..];
                    for (pause, bytes) in pieces {
                        std::thread::sleep(pause);
                        let (piece, left) = rest.split_at(bytes);
                        stream.write_all(piece)?;
                        rest = left;
                    }
                    if !rest.is_empty() {
                        return stream.read_exact(&mut [0]);
                    }
                }
                Reply::Stalled(answer, length) => {
                    write(stream, &method, &answer, length)?;
                    *self.held.lock().unwrap() += 1;
                    // Waits until the client disconnects.
                    return stream.read_exact(&mut [0]);
                }
            }
        }
        Ok(())
    }

    fn read(&self, reader: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Request)>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        assert!(length <= MAX_BODY_BYTES, "a body of {length} bytes");
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if let Some(length) = headers.get("x-amz-decoded-content-length") {
            body = unframed(&body);
            assert_eq!(
                body.len(),
                length.parse::<usize>().unwrap(),
                "the framed length must match the header"
            );
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let path = xml::decode_url(path);
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key).to_owned();
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (xml::decode_url(name), xml::decode_url(value))
        };
        let query: BTreeMap<_, _> = query.split('&').filter(|text| !text.is_empty()).map(pair).collect();
        let operation = operation(&method, &key, &query, &headers);
        let mut seen = self.seen.lock().unwrap();
        if seen.len() == MAX_REQUESTS {
            return Ok(None);
        }
        let number = 1 + seen.iter().filter(|request| request.operation == operation).count();
        let request = Request { operation, number, key, query, headers, body };
        // Bodies are large and are not needed later.
        seen.push(Request { body: Vec::new(), ..request.clone() });
        Ok(Some((method, request)))
    }

    /// S3's response to a request.
    fn answer(&self, request: &Request) -> ScriptedResponse {
        let objects = self.objects.lock().unwrap();
        match request.operation {
            "ListObjectsV2" => {
                listing_page(objects.iter().map(|(key, object)| (key, &object.bytes)), request, 1000)
            }
            "HeadBucket" => ScriptedResponse::new(200, ""),
            "GetObject" | "HeadObject" => match objects.get(&request.key) {
                Some(object) => object_response(object, request),
                None => ScriptedResponse::error(404, "NoSuchKey", "The specified key does not exist."),
            },
            "PutObject" if !condition_holds(request, objects.get(&request.key)) => {
                ScriptedResponse::error(412, "PreconditionFailed", "At least one precondition did not hold.")
            }
            "PutObject" | "UploadPart" => {
                ScriptedResponse::new(200, "").with_header("ETag", &etag(&request.body))
            }
            "DeleteObject" | "AbortMultipartUpload" => ScriptedResponse::new(204, ""),
            "CreateMultipartUpload" => ScriptedResponse::document(
                "<InitiateMultipartUploadResult><UploadId>upload</UploadId></InitiateMultipartUploadResult>",
            ),
            "ListParts" => {
                let parts = self.parts.lock().unwrap();
                let of_key = parts.iter().filter(|((key, _), _)| *key == request.key);
                let lines: String = of_key.map(|((_, number), bytes)| part_line(*number, bytes)).collect();
                if lines.is_empty() {
                    return ScriptedResponse::error(
                        404,
                        "NoSuchUpload",
                        "The specified upload does not exist.",
                    );
                }
                ScriptedResponse::document(&format!("<ListPartsResult>{lines}</ListPartsResult>"))
            }
            "CompleteMultipartUpload" => {
                let tag = xml::escape(&etag(&self.joined_parts(request)));
                ScriptedResponse::document(&format!(
                    "<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
                ))
            }
            _ => ScriptedResponse::error(501, "NotImplemented", "Not in these tests."),
        }
    }
}

impl ServerState {
    /// The joined bytes of the parts that a completion names.
    fn joined_parts(&self, request: &Request) -> Vec<u8> {
        let text = String::from_utf8_lossy(&request.body);
        let named =
            text.split("<PartNumber>").skip(1).map(|rest| rest.split('<').next().unwrap().parse().unwrap());
        let parts = self.parts.lock().unwrap();
        let part = |number: u32| parts.get(&(request.key.clone(), number)).cloned().unwrap_or_default();
        named.flat_map(part).collect()
    }

    /// Executes a request with a successful response.
    fn carry_out(&self, request: &Request) {
        let (key, body) = (request.key.clone(), request.body.clone());
        match request.operation {
            "PutObject" => {
                let is_metadata = |(name, _): &(&String, &String)| name.starts_with("x-amz-meta-");
                let metadata = request.headers.iter().filter(is_metadata);
                let metadata = metadata.map(|(name, value)| (name.clone(), value.clone())).collect();
                let object = Object { metadata, ..Object::new(body) };
                self.objects.lock().unwrap().insert(key, object);
            }
            "DeleteObject" => drop(self.objects.lock().unwrap().remove(&key)),
            "UploadPart" => {
                let number = request.parameter("partNumber").parse().unwrap();
                self.parts.lock().unwrap().insert((key, number), body);
            }
            "CompleteMultipartUpload" => {
                let joined_parts = self.joined_parts(request);
                self.parts.lock().unwrap().retain(|(of, _), _| *of != key);
                self.objects.lock().unwrap().insert(key, Object::new(joined_parts));
            }
            "AbortMultipartUpload" => self.parts.lock().unwrap().retain(|(of, _), _| *of != key),
            _ => {}
        }
    }
}

/// The data of an `aws-chunked` body. Only real servers verify its signatures.
fn unframed(mut body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let end = body.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let (head, rest) = (std::str::from_utf8(&body[..end]).unwrap(), &body[end + 2..]);
        let size = usize::from_str_radix(head.split(';').next().unwrap(), 16).unwrap();
        if size == 0 {
            return bytes;
        }
        bytes.extend_from_slice(&rest[..size]);
        assert_eq!(&rest[size..size + 2], b"\r\n");
        body = &rest[size + 2..];
    }
}

fn operation(
    method: &str,
    key: &str,
    query: &BTreeMap<String, String>,
    headers: &BTreeMap<String, String>,
) -> &'static str {
    let has = |name: &str| query.contains_key(name);
    match (method, key.is_empty()) {
        ("GET", true) if has("list-type") => "ListObjectsV2",
        ("GET", true) if has("versioning") => "GetBucketVersioning",
        ("GET", false) if has("uploadId") => "ListParts",
        ("GET", false) => "GetObject",
        ("HEAD", true) => "HeadBucket",
        ("HEAD", false) => "HeadObject",
        ("PUT", false) if has("partNumber") => "UploadPart",
        ("PUT", false) if headers.contains_key("x-amz-copy-source") => "CopyObject",
        ("PUT", false) => "PutObject",
        ("POST", false) if has("uploads") => "CreateMultipartUpload",
        ("POST", false) => "CompleteMultipartUpload",
        ("DELETE", false) if has("uploadId") => "AbortMultipartUpload",
        ("DELETE", false) => "DeleteObject",
        _ => "Other",
    }
}

/// Returns true if a write's condition holds for the existing object.
fn condition_holds(request: &Request, existing: Option<&Object>) -> bool {
    let is_tag = match request.header("if-match") {
        "" => true,
        "*" => existing.is_some(),
        tag => existing.is_some_and(|object| object.etag() == tag),
    };
    is_tag && (request.header("if-none-match") != "*" || existing.is_none())
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{}\"", checksum(bytes))
}

/// The checksum of a whole object, in the format of its header.
pub fn checksum(bytes: &[u8]) -> String {
    Checksum::compute(Algorithm::Crc64Nvme, bytes).to_base64()
}

/// The response to a GET or HEAD of an object.
fn object_response(object: &Object, request: &Request) -> ScriptedResponse {
    let (bytes, tag) = (object.bytes.as_slice(), object.etag());
    if !matches!(request.header("if-match"), "" | "*") && request.header("if-match") != tag {
        return ScriptedResponse::error(412, "PreconditionFailed", "At least one precondition did not hold.");
    }
    let describe = |mut answer: ScriptedResponse| {
        answer.headers.extend(object.metadata.iter().cloned());
        let answer = answer.with_header("ETag", &tag).with_header("Last-Modified", MODIFIED[0]);
        answer
            .with_header("x-amz-checksum-crc64nvme", &object.checksum)
            .with_header("x-amz-checksum-type", "FULL_OBJECT")
    };
    let Some((first, last)) = request.header("range").trim_start_matches("bytes=").split_once('-') else {
        return describe(ScriptedResponse::new(200, bytes));
    };
    let (first, last): (usize, usize) = match first {
        // A suffix range.
        "" => (bytes.len().saturating_sub(last.parse().unwrap()), usize::MAX),
        first => (first.parse().unwrap(), last.parse().unwrap()),
    };
    if first >= bytes.len() {
        return ScriptedResponse::error(416, "InvalidRange", "The requested range is not satisfiable");
    }
    let last = last.min(bytes.len() - 1);
    let range = format!("bytes {first}-{last}/{}", bytes.len());
    describe(ScriptedResponse::new(206, &bytes[first..=last])).with_header("Content-Range", &range)
}

/// A page of a listing with at most `max_keys` keys.
pub fn listing_page<'a>(
    objects: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>,
    request: &Request,
    max_keys: usize,
) -> ScriptedResponse {
    let after = request.parameter("start-after").max(request.parameter("continuation-token"));
    let is_selected = |key: &str| key.starts_with(request.parameter("prefix")) && key > after;
    let mut matching = objects.into_iter().filter(|(key, _)| is_selected(key)).peekable();
    let page: Vec<_> = matching.by_ref().take(max_keys).collect();
    let lines: Vec<String> = page.iter().map(|(key, bytes)| listing_entry(key, bytes)).collect();
    let last = page.last().filter(|_| matching.peek().is_some());
    listing(&lines, last.map_or(Rest::None, |(key, _)| Rest::After(key)))
}

/// The rest of a listing after a page.
#[derive(Debug, Clone, Copy)]
pub enum Rest<'a> {
    None,
    /// More, after this token.
    After(&'a str),
    /// More, but the page has no token.
    WithoutToken,
}

/// The entry of an object in a listing.
pub fn listing_entry(key: &str, bytes: &[u8]) -> String {
    let (key, size, tag) = (sign::encode(key, false), bytes.len(), xml::escape(&etag(bytes)));
    let rest = format!("<LastModified>{}</LastModified><ETag>{tag}</ETag><Size>{size}</Size>", MODIFIED[1]);
    format!("<Contents><Key>{key}</Key>{rest}</Contents>")
}

/// The entry of a part in the listing of an upload.
fn part_line(number: u32, bytes: &[u8]) -> String {
    let (size, tag, sum) = (bytes.len(), xml::escape(&etag(bytes)), checksum(bytes));
    let sum = format!("<ChecksumCRC64NVME>{sum}</ChecksumCRC64NVME>");
    format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><Size>{size}</Size>{sum}</Part>")
}

/// A page of these entries.
pub fn listing(lines: &[String], rest: Rest<'_>) -> ScriptedResponse {
    let is_truncated = !matches!(rest, Rest::None);
    let token = match rest {
        Rest::After(token) => {
            format!("<NextContinuationToken>{}</NextContinuationToken>", xml::escape(token))
        }
        Rest::None | Rest::WithoutToken => String::new(),
    };
    ScriptedResponse::document(&format!(
        "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{is_truncated}</IsTruncated>{token}{}\
         </ListBucketResult>",
        lines.concat()
    ))
}

fn write(stream: &mut TcpStream, method: &str, answer: &ScriptedResponse, length: usize) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Answer\r\n", answer.status);
    let is_delimited = |name: &str| matches!(name, "Content-Length" | "Transfer-Encoding");
    if !answer.headers.iter().any(|(name, _)| is_delimited(name)) && answer.status != 204 {
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
    }
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"\r\n")?;
    if method != "HEAD" {
        stream.write_all(&answer.body[..length.min(answer.body.len())])?;
    }
    stream.flush()
}
