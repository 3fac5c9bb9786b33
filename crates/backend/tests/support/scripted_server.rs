//! A scripted HTTP service that records its requests.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request, read completely unless the connection is reset within it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A response.
pub struct ScriptedResponse {
    head: String,
    body: Vec<u8>,
    /// The connection ends after this many bytes of the body.
    cut: Option<usize>,
}

impl ScriptedResponse {
    /// Each of the `headers` ends with a line break. A response to HEAD declares the body without sending it.
    pub fn new(status: u16, headers: &str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        Self { head, body: body.to_vec(), cut: None }
    }

    /// Sends the body as one chunk, without `Content-Length`.
    pub fn chunked(status: u16, headers: &str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n{headers}\r\n");
        let chunk = match body.len() {
            0 => Vec::new(),
            length => [format!("{length:x}\r\n").as_bytes(), body, b"\r\n"].concat(),
        };
        Self { head, body: [&chunk, &b"0\r\n\r\n"[..]].concat(), cut: None }
    }

    pub fn cut_short(self, bytes: usize) -> Self {
        Self { cut: Some(bytes), ..self }
    }
}

/// The response to a client that expects 100-continue.
pub enum ContinueReply {
    Wanted,
    /// None: the body is awaited.
    Silence,
    /// A response without reading the body.
    Refused(ScriptedResponse),
}

/// The service. It ends with the test's runtime.
pub struct ScriptedServer {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

type Respond = Arc<dyn Fn(&Request) -> ScriptedResponse + Send + Sync>;
type OnContinue = Arc<dyn Fn(&Request) -> ContinueReply + Send + Sync>;
type Reset = Arc<dyn Fn(&Request) -> Option<usize> + Send + Sync>;

impl ScriptedServer {
    pub async fn start(respond: impl Fn(&Request) -> ScriptedResponse + Send + Sync + 'static) -> Self {
        Self::start_resetting(|_| None, respond).await
    }

    /// Like [`start`](Self::start); `reset` may end a connection once a given number of body bytes has arrived.
    pub async fn start_resetting(
        reset: impl Fn(&Request) -> Option<usize> + Send + Sync + 'static,
        respond: impl Fn(&Request) -> ScriptedResponse + Send + Sync + 'static,
    ) -> Self {
        Self::start_with_continue(|_| ContinueReply::Wanted, reset, respond).await
    }

    /// Like [`start_resetting`](Self::start_resetting); `on_continue` decides on the body of a request that expects
    /// 100-continue.
    pub async fn start_with_continue(
        on_continue: impl Fn(&Request) -> ContinueReply + Send + Sync + 'static,
        reset: impl Fn(&Request) -> Option<usize> + Send + Sync + 'static,
        respond: impl Fn(&Request) -> ScriptedResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (on_continue, reset, respond): (OnContinue, Reset, Respond) =
            (Arc::new(on_continue), Arc::new(reset), Arc::new(respond));
        let all = seen.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, on_continue.clone(), reset.clone(), respond.clone(), all.clone()));
            }
        });
        Self { url, requests: seen }
    }

    pub fn seen(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub fn count(&self, path: &str) -> usize {
        self.seen().iter().filter(|request| request.path == path).count()
    }

    pub fn count_of(&self, method: &str, path: &str) -> usize {
        self.seen().iter().filter(|request| request.method == method && request.path == path).count()
    }

    /// The last request for a path.
    pub fn last(&self, path: &str) -> Request {
        self.seen().into_iter().rfind(|request| request.path == path).unwrap()
    }
}

async fn serve(
    socket: TcpStream,
    on_continue: OnContinue,
    reset: Reset,
    respond: Respond,
    seen: Arc<Mutex<Vec<Request>>>,
) {
    let mut socket = BufReader::new(socket);
    while let Some(mut request) = read_head(&mut socket).await {
        if let Some(bytes) = reset(&request) {
            let mut some = vec![0; bytes];
            let _ = socket.read_exact(&mut some).await;
            seen.lock().unwrap().push(request);
            // Unread data turns the close into a reset.
            return;
        }
        if request.header("expect").is_some() {
            let said = match on_continue(&request) {
                ContinueReply::Silence => String::new(),
                ContinueReply::Wanted => "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
                ContinueReply::Refused(reply) => {
                    seen.lock().unwrap().push(request);
                    let _ = socket.write_all(reply.head.as_bytes()).await;
                    return;
                }
            };
            if socket.write_all(said.as_bytes()).await.is_err() {
                return;
            }
        }
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        request.body = vec![0; length];
        if socket.read_exact(&mut request.body).await.is_err() {
            return;
        }
        let reply = respond(&request);
        let is_head = request.method == "HEAD";
        seen.lock().unwrap().push(request);
        let sent = if is_head { 0 } else { reply.cut.unwrap_or(reply.body.len()) };
        let whole = [reply.head.as_bytes(), &reply.body[..sent]].concat();
        if socket.write_all(&whole).await.is_err() || reply.cut.is_some() {
            return;
        }
    }
}

async fn read_head(socket: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut request = Request::default();
    let mut line = String::new();
    socket.read_line(&mut line).await.ok()?;
    let mut words = line.split(' ');
    request.method = words.next()?.to_owned();
    request.path = words.next()?.split('?').next()?.to_owned();
    loop {
        line.clear();
        socket.read_line(&mut line).await.ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => request.headers.push((name.to_lowercase(), value.to_owned())),
            None => return Some(request),
        }
    }
}
