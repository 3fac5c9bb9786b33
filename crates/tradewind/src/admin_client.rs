//! A client of the admin API of a running server. Each call is signed by the root key; the body is covered by the
//! signature.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value as Json;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_core::SystemClock;
use tradewind_wire::sigv4::{ADMIN_SERVICE, Credentials, Payload, Signer, sha256};

/// The time to connect.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time to the next bytes of a response. A server that works sends a line every second.
const MAX_SILENT_TIME: Duration = Duration::from_secs(90);
/// The maximum size of a document and of a line.
const MAX_DOCUMENT_BYTES: usize = 16 << 20;
/// The region in signatures, which the server does not compare.
const REGION: &str = "us-east-1";

/// A client of one server.
pub struct AdminClient {
    address: SocketAddr,
    signer: Signer,
}

impl fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminClient({})", self.address)
    }
}

/// An error that the server reports.
#[derive(Debug)]
pub struct AdminError {
    /// The status of the response.
    pub status: StatusCode,
    /// The server's message.
    pub message: String,
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for AdminError {}

impl AdminClient {
    /// A client for the admin listener at `address`; if that is the address of all interfaces, of this machine.
    #[must_use]
    pub fn new(address: SocketAddr, root_id: String, root_secret: String) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let credentials = Credentials { id: root_id, secret: root_secret, token: None };
        let signer = Signer::for_service(ADMIN_SERVICE, credentials, REGION.to_owned());
        Self { address: SocketAddr::new(ip, address.port()), signer }
    }

    /// The address that is connected to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads a document. `path` is encoded.
    ///
    /// # Errors
    /// [`AdminError`] if the server responds with an error; an [`std::io::Error`] if it cannot be reached.
    pub async fn read(&self, path: &str) -> anyhow::Result<Json> {
        let mut lines = self.send(Method::GET, path, Bytes::new()).await?;
        let document = lines.all().await?;
        serde_json::from_slice(&document).context("the server's response is not JSON")
    }

    /// Makes a change, and returns the document of the response. `path` is encoded.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub async fn change(&self, path: &str, body: &Json) -> anyhow::Result<Json> {
        let document = self.start(path, body).await?.all().await?;
        serde_json::from_slice(&document).context("the server's response is not JSON")
    }

    /// Starts work of which the server reports by lines. `path` is encoded. Dropping the lines ends the work.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub async fn start(&self, path: &str, body: &Json) -> anyhow::Result<ResponseLines> {
        self.send(Method::POST, path, body.to_string().into()).await
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<ResponseLines> {
        let request = self.request(method, path, body)?;
        let connecting = timeout(MAX_CONNECT_TIME, TcpStream::connect(self.address)).await;
        let socket = connecting.map_err(|_elapsed| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let connection = tokio::spawn(async move {
            // An error of the connection is also one of the response.
            let _ = connection.await;
        });
        let responding = timeout(MAX_SILENT_TIME, sender.send_request(request)).await;
        let response =
            responding.context("the server does not respond")?.context("the server does not answer")?;
        let status = response.status();
        let mut lines = ResponseLines { response, buffer: Vec::new(), connection };
        if status.is_success() {
            return Ok(lines);
        }
        let document = lines.all().await?;
        let json: Json = serde_json::from_slice(&document).unwrap_or_default();
        match json["error"]["message"].as_str() {
            Some(message) => Err(AdminError { status, message: message.to_owned() }.into()),
            None => bail!("it responds with {status} and has no admin API: is it an older version?"),
        }
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let uri: Uri = path.parse().context("the name of the volume cannot be part of a URL")?;
        let payload = if body.is_empty() { Payload::Empty } else { Payload::Sha256(sha256(&body)) };
        let mut request = Request::new(Full::new(body));
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::from_str(&self.address.to_string())?);
        let now = SystemClock::shared().wall();
        let signed = self.signer.sign(None, &method, &uri, headers, payload, now);
        signed.map_err(|error| anyhow::anyhow!("the call cannot be signed: {error}"))?;
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        Ok(request)
    }
}

/// The response of a server, line by line.
pub struct ResponseLines {
    response: Response<Incoming>,
    /// Bytes that were received after the last line.
    buffer: Vec<u8>,
    connection: tokio::task::JoinHandle<()>,
}

impl fmt::Debug for ResponseLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseLines")
    }
}

impl ResponseLines {
    /// The next line; `None` after the last one.
    pub async fn next(&mut self) -> anyhow::Result<Option<Json>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).context("the server's line is not JSON");
            }
            if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    async fn all(&mut self) -> anyhow::Result<Vec<u8>> {
        while self.receive().await? {}
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Receives more bytes. Returns false at the end.
    async fn receive(&mut self) -> anyhow::Result<bool> {
        let frame = timeout(MAX_SILENT_TIME, self.response.body_mut().frame()).await;
        let Some(frame) = frame.context("the server stopped responding")? else { return Ok(false) };
        if let Ok(data) = frame.context("the connection to the server was lost")?.into_data() {
            self.buffer.extend_from_slice(&data);
        }
        if self.buffer.len() > MAX_DOCUMENT_BYTES {
            bail!("the server's response is too long");
        }
        Ok(true)
    }
}

impl Drop for ResponseLines {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_all_interfaces_is_reached_by_loopback() {
        for (address, expected) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("10.0.0.1:3", "10.0.0.1:3")]
        {
            let client = AdminClient::new(address.parse().unwrap(), "id".to_owned(), "secret".to_owned());
            assert_eq!(client.address(), expected.parse().unwrap());
        }
    }
}
