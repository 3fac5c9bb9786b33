//! A client that can misbehave: it writes arbitrary bytes and reads responses.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::TestGateway;
use crate::config::TlsIdentity;
use crate::sigv4::testing::{SIGNER, Signer};

pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// A response.
#[derive(Debug)]
pub(super) struct ClientResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl ClientResponse {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The S3 code of an error.
    pub(super) fn code(&self) -> &str {
        let (_, rest) = self.text().split_once("<Code>").expect("an error in XML");
        rest.split_once("</Code>").unwrap().0
    }
}

/// The head of a signed request as text, and the signature.
pub(super) fn signed(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    payload: &str,
) -> (String, [u8; 32]) {
    signed_by(&SIGNER, method, target, headers, payload)
}

/// Like [`signed`], but by the given signer.
pub(super) fn signed_by(
    signer: &Signer,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    payload: &str,
) -> (String, [u8; 32]) {
    let mut request = Request::builder().method(method).uri(target).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(()).unwrap();
    let signature = signer.sign(&mut request, payload);
    (head_text(&request), signature)
}

/// A request's head as text.
pub(super) fn head_text(request: &Request<()>) -> String {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        text.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    text + "\r\n"
}

pub(super) struct Client(pub(super) TcpStream);

impl Client {
    pub(super) async fn new(server: &TestGateway) -> Self {
        Self(TcpStream::connect(server.address).await.unwrap())
    }

    /// A client with a small receive buffer in the kernel, at another address of this machine.
    pub(super) async fn with_small_buffer(server: &TestGateway, from: [u8; 4]) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind((from, 0).into()).unwrap();
        Self(socket.connect(server.address).await.unwrap())
    }

    pub(super) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next response; `None` if the connection ends instead.
    pub(super) async fn read_response(&mut self, to_head: bool) -> Option<ClientResponse> {
        tokio::time::timeout(Duration::from_secs(20), self.read(to_head)).await.expect("a response in time")
    }

    async fn read(&mut self, to_head: bool) -> Option<ClientResponse> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.0.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return None,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                (name.to_owned(), value.trim().to_owned())
            })
            .collect();
        let mut response = ClientResponse { status, headers, body: Vec::new() };
        if let Some(length) = response.header("content-length").filter(|_| !to_head && status != 304) {
            response.body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut response.body).await.ok()?;
        } else if response.header("transfer-encoding") == Some("chunked") {
            response.body = self.read_chunks().await?;
        }
        Some(response)
    }

    async fn read_chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.push(self.0.read_u8().await.ok()?);
            }
            let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk).await.ok()?;
            if size == 0 {
                return Some(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    /// Returns true if the server closes the connection without another byte.
    pub(super) async fn is_closed(&mut self) -> bool {
        let read = tokio::time::timeout(Duration::from_secs(20), self.0.read_u8()).await;
        read.expect("the connection ends in time").is_err()
    }

    /// Sends a signed request and reads its response.
    pub(super) async fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> ClientResponse {
        let length = body.len().to_string();
        let mut all = headers.to_vec();
        if !body.is_empty() || method == "PUT" {
            all.push(("content-length", &length));
        }
        let (head, _) = signed(method, target, &all, UNSIGNED);
        self.send(head).await;
        self.send(body).await;
        self.read_response(method == "HEAD").await.expect("a response")
    }
}

/// The server's TLS identity in tests.
pub(super) fn tls_identity() -> TlsIdentity {
    TlsIdentity {
        certificates_pem: include_bytes!("localhost.cert.pem").to_vec(),
        key_pem: include_bytes!("localhost.key.pem").to_vec(),
    }
}

/// A TLS connection that trusts [`tls_identity`].
pub(super) async fn connect_tls(server: &TestGateway) -> TlsStream<TcpStream> {
    let certificate = CertificateDer::from_pem_slice(&tls_identity().certificates_pem).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = Client::new(server).await.0;
    let name = "localhost".try_into().unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, socket).await.unwrap()
}
