//! A blocking S3 client on a plain socket or on TLS: one connection, one request in flight, no retries. An error means
//! that there was no response, which tests of durability must distinguish from an error response.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::sign::{self, Credentials};

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Larger bodies are not signed: the tests compare the bytes themselves.
const MAX_SIGNED_BODY_BYTES: usize = 64 << 10;

/// One client, with its connection.
#[derive(Debug)]
pub struct S3 {
    address: SocketAddr,
    credentials: Option<Credentials>,
    /// The service that signatures are for.
    service: &'static str,
    tls: Option<Arc<ClientConfig>>,
    connection: Option<Connection>,
}

/// A bidirectional byte stream.
trait Wire: io::Read + io::Write + std::fmt::Debug + Send {}

impl<T: io::Read + io::Write + std::fmt::Debug + Send> Wire for T {}

type Connection = BufReader<Box<dyn Wire>>;

/// A request. `query` is not encoded.
#[derive(Debug, Default, Clone)]
pub struct Request<'a> {
    pub method: &'a str,
    /// `bucket/key`, `bucket` or empty; not encoded.
    pub path: &'a str,
    pub query: Vec<(&'a str, String)>,
    pub headers: Vec<(&'a str, String)>,
    pub body: &'a [u8],
}

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The S3 error code of the body, or the status.
    pub fn code(&self) -> String {
        super::xml::text(&self.text(), "Code").unwrap_or_else(|| self.status.to_string())
    }
}

impl S3 {
    pub fn new(address: SocketAddr, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..Self::anonymous(address) }
    }

    pub fn anonymous(address: SocketAddr) -> Self {
        Self { address, credentials: None, service: sign::S3_SERVICE, tls: None, connection: None }
    }

    /// Signs for another service than S3.
    pub fn for_service(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    /// Connects with TLS. The server's certificate must be for its address.
    pub fn over_tls(self, config: Arc<ClientConfig>) -> Self {
        Self { tls: Some(config), ..self }
    }

    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.send(Request { method: "GET", path, ..Request::default() })
    }

    pub fn put(&mut self, path: &str, body: &[u8]) -> io::Result<Response> {
        self.send(Request { method: "PUT", path, body, ..Request::default() })
    }

    pub fn delete(&mut self, path: &str) -> io::Result<Response> {
        self.send(Request { method: "DELETE", path, ..Request::default() })
    }

    /// Sends a request and reads the whole response. After an error, the next request uses a new connection.
    pub fn send(&mut self, request: Request<'_>) -> io::Result<Response> {
        let head = self.head(&request);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        connection.get_mut().write_all(head.as_bytes())?;
        connection.get_mut().write_all(request.body)?;
        connection.get_mut().flush()?;
        let response = read_response(&mut connection, request.method)?;
        if response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(BufReader::new(match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let tls = ClientConnection::new(config.clone(), self.address.ip().into());
                Box::new(StreamOwned::new(tls.map_err(io::Error::other)?, stream))
            }
        }))
    }

    fn head(&self, request: &Request<'_>) -> String {
        let path = format!("/{}", sign::encode(request.path, true));
        let mut query: Vec<(String, String)> = request
            .query
            .iter()
            .map(|(name, value)| (sign::encode(name, false), sign::encode(value, false)))
            .collect();
        query.sort();
        let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let query = query.join("&");
        let mut headers: Vec<(String, String)> =
            request.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        headers.push(("host".to_owned(), self.address.to_string()));
        if let Some(credentials) = &self.credentials {
            let timestamp = sign::timestamp();
            let payload_hash = if request.body.len() > MAX_SIGNED_BODY_BYTES {
                sign::UNSIGNED.to_owned()
            } else {
                sign::sha256_hex(request.body)
            };
            headers.push(("x-amz-date".to_owned(), timestamp.clone()));
            headers.push(("x-amz-content-sha256".to_owned(), payload_hash.clone()));
            headers.sort();
            let authorization = credentials.authorization_for(
                self.service,
                request.method,
                &path,
                &query,
                &headers,
                &payload_hash,
                &timestamp,
            );
            headers.push(("authorization".to_owned(), authorization));
        }
        if !request.body.is_empty() || matches!(request.method, "PUT" | "POST") {
            headers.push(("content-length".to_owned(), request.body.len().to_string()));
        }
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let mut head = format!("{} {target} HTTP/1.1\r\n", request.method);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    }
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn read_line(connection: &mut Connection) -> io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 || !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

fn read_response(connection: &mut Connection, method: &str) -> io::Result<Response> {
    let (mut status, mut headers) = read_head(connection)?;
    while status == 100 {
        (status, headers) = read_head(connection)?;
    }
    let mut response = Response { status, headers, body: Vec::new() };
    if method == "HEAD" || status == 204 || status == 304 {
        return Ok(response);
    }
    if response.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = read_line(connection)?;
            let size = usize::from_str_radix(&size, 16).map_err(|_| broken("a chunk without a size"))?;
            let start = response.body.len();
            response.body.resize(start + size, 0);
            connection.read_exact(&mut response.body[start..])?;
            if !read_line(connection)?.is_empty() {
                return Err(broken("a chunk without an end"));
            }
            if size == 0 {
                return Ok(response);
            }
        }
    }
    let length = response.header("content-length").ok_or_else(|| broken("a response without a length"))?;
    let length: usize = length.parse().map_err(|_| broken("a length that is no number"))?;
    response.body.resize(length, 0);
    connection.read_exact(&mut response.body)?;
    Ok(response)
}

fn read_head(connection: &mut Connection) -> io::Result<(u16, Vec<(String, String)>)> {
    let line = read_line(connection)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| broken(&format!("{line:?} is no status line")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(connection)?;
        if line.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| broken("a header without a colon"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}
