//! A relay in front of a service that loses chosen requests or responses.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const INTERNAL_ERROR: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 44\r\n\r\n\
    <Error><Code>InternalError</Code></Error>   ";
const DENIED: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 42\r\n\r\n\
    <Error><Code>AccessDenied</Code></Error>  ";

/// The treatment of a request.
#[derive(Clone)]
pub enum Treatment {
    Relay,
    /// The connection is closed once this many bytes of the body have arrived. The service receives nothing.
    CutRequest(usize),
    /// The service carries out the request, and the connection is closed without a response.
    LoseResponse,
    /// Like `LoseResponse`, after another client has acted.
    LoseResponseAfter(Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>),
    /// The service carries out the request, and the response is an error.
    AnswerError,
    /// The service carries out the request, and the response ends after its head.
    CutResponse,
    /// The connection is closed, and the service carries out the request after this event.
    CarryOutLater(Arc<Notify>),
    /// The service receives nothing, and the response denies access.
    Deny,
}

/// Decides the treatment of a request, given its method, its target and its ordinal among requests of the same method
/// and target, from 1.
type Script = Arc<dyn Fn(&str, &str, usize) -> Treatment + Send + Sync>;

/// A running relay. It ends with the runtime of the test.
pub struct Relay {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<(String, String)>>>,
}

impl Relay {
    pub async fn start(
        service: SocketAddr,
        script: impl Fn(&str, &str, usize) -> Treatment + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (script, seen): (Script, _) = (Arc::new(script), Arc::default());
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, service, script.clone(), Arc::clone(&shared)));
            }
        });
        Self { address, seen }
    }

    /// The number of requests of a method whose target contains `part`.
    pub fn count(&self, method: &str, part: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(seen, target)| seen == method && target.contains(part)).count()
    }
}

async fn serve(
    client: TcpStream,
    service: SocketAddr,
    script: Script,
    seen: Arc<Mutex<Vec<(String, String)>>>,
) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let head = read_head(&mut client).await?;
        let mut words = head.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push((method.clone(), target.clone()));
            seen.iter().filter(|(other, at)| *other == method && *at == target).count()
        };
        let treatment = script(&method, &target, number);
        let length = content_length(&head).unwrap_or(0);
        if let Treatment::CutRequest(bytes) = treatment {
            client.read_exact(&mut vec![0; bytes.min(length)]).await.ok()?;
            return None;
        }
        let mut body = vec![0; length];
        client.read_exact(&mut body).await.ok()?;
        let request = [head.as_bytes(), &body].concat();
        match treatment {
            Treatment::CarryOutLater(event) => {
                drop(client);
                event.notified().await;
                exchange(service, &method, &request).await;
                event.notify_waiters();
                return None;
            }
            Treatment::Deny => {
                client.get_mut().write_all(DENIED.as_bytes()).await.ok()?;
                continue;
            }
            _ => {}
        }
        let response = exchange(service, &method, &request).await?;
        match treatment {
            Treatment::LoseResponse => return None,
            Treatment::LoseResponseAfter(action) => {
                action().await;
                return None;
            }
            Treatment::AnswerError => client.get_mut().write_all(INTERNAL_ERROR.as_bytes()).await.ok()?,
            Treatment::CutResponse => {
                let text = String::from_utf8_lossy(&response);
                // At least one byte of a body is missing.
                let head = text.split_once("\r\n\r\n")?.0.to_lowercase();
                let head = head.replace("content-length: 0", "content-length: 5");
                client.get_mut().write_all(format!("{head}\r\n\r\n").as_bytes()).await.ok()?;
                return None;
            }
            _ => client.get_mut().write_all(&response).await.ok()?,
        }
    }
}

/// Sends a request over a new connection and reads the response.
async fn exchange(service: SocketAddr, method: &str, request: &[u8]) -> Option<Vec<u8>> {
    let mut service = BufReader::new(TcpStream::connect(service).await.ok()?);
    service.get_mut().write_all(request).await.ok()?;
    let mut response = read_head(&mut service).await?;
    while response.starts_with("HTTP/1.1 100") {
        response = read_head(&mut service).await?;
    }
    let has_body = method != "HEAD" && !response.starts_with("HTTP/1.1 204");
    let mut body = vec![0; content_length(&response).filter(|_| has_body).unwrap_or(0)];
    if has_body && response.to_lowercase().contains("transfer-encoding: chunked") {
        read_chunks(&mut service, &mut body).await?;
    } else {
        service.read_exact(&mut body).await.ok()?;
    }
    Some([response.as_bytes(), &body].concat())
}

/// Reads a chunked body with its framing.
async fn read_chunks(service: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> Option<()> {
    loop {
        let mut line = String::new();
        service.read_line(&mut line).await.ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        service.read_exact(&mut chunk).await.ok()?;
        body.extend_from_slice(line.as_bytes());
        body.extend_from_slice(&chunk);
        if size == 0 {
            return Some(());
        }
    }
}

async fn read_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

fn content_length(head: &str) -> Option<usize> {
    let line = head.lines().find(|line| line.to_lowercase().starts_with("content-length:"))?;
    line.split_once(':')?.1.trim().parse().ok()
}
