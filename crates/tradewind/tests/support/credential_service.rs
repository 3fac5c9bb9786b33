//! A mock of the services that issue credentials: STS, a sign-on portal, a container's endpoint, instance metadata. A
//! script answers each request; all requests are recorded.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Maximum length of a request's body.
const MAX_BODY_BYTES: usize = 1 << 20;

/// A request as received.
#[derive(Debug, Clone)]
pub struct IssueRequest {
    /// The ordinal among all requests, from 1.
    pub number: usize,
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Headers by name in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl IssueRequest {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The encoded value of a field of the form in the body.
    pub fn field(&self, name: &str) -> &str {
        let fields = self.body.split('&').filter_map(|field| field.split_once('='));
        fields.filter(|(found, _)| *found == name).map(|(_, value)| value).next().unwrap_or_default()
    }
}

/// The treatment of a request.
#[derive(Debug, Clone)]
pub enum IssueReply {
    /// A response with a status and a body.
    Respond(u16, String),
    /// No response; the connection stays open.
    Silence,
    /// No response; the connection is closed.
    Close,
}

impl IssueReply {
    pub fn ok(body: impl Into<String>) -> Self {
        Self::Respond(200, body.into())
    }

    /// Credentials as JSON of the container's endpoint and of instance metadata. They expire in 2100, unless an
    /// expiration is given.
    pub fn keys(id: &str, secret: &str, token: Option<&str>, expires: Option<&str>) -> Self {
        let token = token.map(|token| format!("\"Token\": {token:?}, ")).unwrap_or_default();
        let expires = expires.unwrap_or(LATER);
        Self::ok(format!(
            "{{\"Code\": \"Success\", \"AccessKeyId\": {id:?}, \"SecretAccessKey\": {secret:?}, {token}\
             \"Expiration\": {expires:?}}}"
        ))
    }

    /// The response of STS to `action`, with the key `id` and the session token `token-of-ID`.
    pub fn assumed(action: &str, id: &str) -> Self {
        Self::ok(format!(
            "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result><Credentials>\
             <AccessKeyId>{id}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>\
             <SessionToken>token-of-{id}</SessionToken><Expiration>{LATER}</Expiration></Credentials>\
             </{action}Result></{action}Response>"
        ))
    }

    /// An error response of STS.
    pub fn sts_error(status: u16, code: &str, message: &str) -> Self {
        let error =
            format!("<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>");
        Self::Respond(status, format!("<ErrorResponse>{error}</ErrorResponse>"))
    }
}

/// The expiration of credentials that last.
pub const LATER: &str = "2100-01-01T00:00:00Z";
/// [`LATER`] in milliseconds since 1970.
pub const LATER_MILLIS: i64 = 4_102_444_800_000;

type Script = Box<dyn Fn(&IssueRequest) -> IssueReply + Send + Sync>;

struct ServiceState {
    script: Script,
    seen: Mutex<Vec<IssueRequest>>,
    is_over: AtomicBool,
}

/// A running mock.
pub struct CredentialService {
    pub address: SocketAddr,
    state: Arc<ServiceState>,
    accepting: Option<JoinHandle<()>>,
}

impl CredentialService {
    pub fn start(script: impl Fn(&IssueRequest) -> IssueReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, is_over) = (Mutex::default(), AtomicBool::new(false));
        let state = Arc::new(ServiceState { script: Box::new(script), seen, is_over });
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

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<IssueRequest> {
        self.state.seen.lock().unwrap().clone()
    }
}

impl Drop for CredentialService {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl ServiceState {
    /// Answers one request; the client uses a new connection for the next.
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let Some(request) = self.read(&mut reader)? else { return Ok(()) };
        match (self.script)(&request) {
            IssueReply::Respond(status, body) => {
                let head = format!("HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\n", body.len());
                reader.get_mut().write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
            }
            IssueReply::Close => Ok(()),
            // Until the client closes the connection.
            IssueReply::Silence => reader.read(&mut [0; 1]).map(drop),
        }
    }

    fn read(&self, reader: &mut BufReader<TcpStream>) -> io::Result<Option<IssueRequest>> {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut words = first.split_whitespace().map(str::to_owned);
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        assert!(length <= MAX_BODY_BYTES);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8(body).unwrap();
        let mut seen = self.seen.lock().unwrap();
        let request = IssueRequest { number: seen.len() + 1, method, target, headers, body };
        seen.push(request.clone());
        Ok(Some(request))
    }
}
