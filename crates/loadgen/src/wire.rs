//! HTTP/1.1 on one persistent connection, limited to what the benchmark needs: one request in flight, and bodies framed
//! by length, by chunks or by the end of the connection. Bodies are passed on as they arrive and never buffered whole,
//! so memory does not depend on the size of objects.

use std::io;
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::record::Failure;

/// The buffer size for reads and writes.
pub const BUFFER_BYTES: usize = 256 * 1024;
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// The status line of a response and the headers that are used here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Content-Length; `None` if absent.
    pub length: Option<u64>,
    /// ETag with its quotes; `None` if absent.
    pub etag: Option<String>,
    chunked: bool,
    close: bool,
}

/// One connection. It must be dropped after a failure, because the position in its stream is then unknown.
pub struct Connection {
    stream: TcpStream,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    reusable: bool,
}

impl Connection {
    /// Connects with TCP_NODELAY.
    pub async fn open(endpoint: SocketAddr) -> Result<Self, Failure> {
        let connect = async {
            let stream = TcpStream::connect(endpoint).await?;
            stream.set_nodelay(true)?;
            io::Result::Ok(stream)
        };
        let stream = connect.await.map_err(|error| Failure::new("connect", error.to_string()))?;
        Ok(Self { stream, buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0, reusable: true })
    }

    /// Returns true if another request may be sent.
    pub fn is_reusable(&self) -> bool {
        self.reusable
    }

    /// Sends bytes of a request.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).await.map_err(|error| Failure::new("send", error.to_string()))
    }

    /// Reads up to the end of the headers.
    pub async fn receive_head(&mut self) -> Result<Head, Failure> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(length) = memmem::find(unread, b"\r\n\r\n") {
                let head = parse_head(&unread[..length + 2])?;
                self.start += length + 4;
                if head.status == 100 {
                    continue;
                }
                self.reusable = !head.close;
                return Ok(head);
            }
            if unread.len() > MAX_HEAD_BYTES {
                return Err(Failure::new("protocol", "headers too long"));
            }
            if self.read_more().await? == 0 {
                return Err(Failure::new("closed", "connection closed before a response"));
            }
        }
    }

    /// Reads the body and passes it to `sink` in pieces. An error of `sink` ends the reading.
    pub async fn receive_body(
        &mut self,
        head: &Head,
        mut sink: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match head.length {
            _ if head.status == 204 || head.status == 304 => Ok(()),
            _ if head.chunked => self.receive_chunks(&mut sink).await,
            Some(length) => self.receive_exactly(length, &mut sink).await,
            None => {
                self.reusable = false;
                loop {
                    sink(&self.buffer[self.start..self.end])?;
                    self.start = self.end;
                    if self.read_more().await? == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn receive_exactly(
        &mut self,
        mut length: u64,
        sink: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        loop {
            let here = ((self.end - self.start) as u64).min(length) as usize;
            sink(&self.buffer[self.start..self.start + here])?;
            self.start += here;
            length -= here as u64;
            if length == 0 {
                return Ok(());
            }
            if self.read_more().await? == 0 {
                return Err(Failure::new("truncated", format!("{length} bytes of the body are missing")));
            }
        }
    }

    async fn receive_chunks(
        &mut self,
        sink: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        loop {
            let line = self.receive_line().await?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let length = u64::from_str_radix(digits, 16)
                .map_err(|_| Failure::new("protocol", format!("bad chunk size {line:?}")))?;
            if length == 0 {
                while !self.receive_line().await?.is_empty() {}
                return Ok(());
            }
            self.receive_exactly(length, sink).await?;
            if !self.receive_line().await?.is_empty() {
                return Err(Failure::new("protocol", "no line end after a chunk"));
            }
        }
    }

    async fn receive_line(&mut self) -> Result<String, Failure> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(length) = memmem::find(unread, b"\r\n") {
                let line = String::from_utf8_lossy(&unread[..length]).into_owned();
                self.start += length + 2;
                return Ok(line);
            }
            if unread.len() > MAX_HEAD_BYTES || self.read_more().await? == 0 {
                return Err(Failure::new("protocol", "line without an end"));
            }
        }
    }

    /// Reads once and appends to the unread bytes. Returns 0 at the end of the connection.
    async fn read_more(&mut self) -> Result<usize, Failure> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let read = self.stream.read(&mut self.buffer[self.end..]).await;
        let read = read.map_err(|error| Failure::new("receive", error.to_string()))?;
        self.end += read;
        Ok(read)
    }
}

/// Parses status line and headers, each ended by CR LF.
fn parse_head(bytes: &[u8]) -> Result<Head, Failure> {
    let protocol_error = |detail: &str| Failure::new("protocol", detail.to_owned());
    let text = std::str::from_utf8(bytes).map_err(|_| protocol_error("headers are not text"))?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let version_ok = status_line.starts_with("HTTP/1.1 ") || status_line.starts_with("HTTP/1.0 ");
    let status = status_line.get(9..12).and_then(|digits| digits.parse().ok());
    let status = status.filter(|_| version_ok).ok_or_else(|| protocol_error("bad status line"))?;
    let mut head = Head { status, close: status_line.starts_with("HTTP/1.0"), ..Head::default() };
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| protocol_error("header without a colon"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            head.length = Some(value.parse().map_err(|_| protocol_error("bad Content-Length"))?);
        } else if name.eq_ignore_ascii_case("etag") {
            head.etag = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = value.eq_ignore_ascii_case("chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            head.close = value.eq_ignore_ascii_case("close");
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Sends `response` in fragments of `fragment_bytes` and returns the client's result.
    async fn exchange(response: &'static [u8], fragment_bytes: usize) -> Result<(Head, Vec<u8>), Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let endpoint = listener.local_addr().expect("address");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            stream.set_nodelay(true).expect("nodelay");
            for part in response.chunks(fragment_bytes) {
                stream.write_all(part).await.expect("write");
                tokio::task::yield_now().await;
            }
        });
        let mut connection = Connection::open(endpoint).await?;
        let head = connection.receive_head().await?;
        let mut body = Vec::new();
        let outcome = connection
            .receive_body(&head, |bytes| {
                body.extend_from_slice(bytes);
                Ok(())
            })
            .await;
        server.await.expect("server");
        outcome.map(|()| (head, body))
    }

    #[tokio::test]
    async fn bodies_are_read_by_length_chunks_and_end_of_connection() {
        for fragment_bytes in [1, 7, 1000] {
            let (head, body) =
                exchange(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\netag: \"x\"\r\nContent-Length: 5\r\n\r\nhello", fragment_bytes)
                    .await
                    .expect("by length");
            assert_eq!(
                (head.status, head.etag.as_deref(), body.as_slice()),
                (200, Some("\"x\""), &b"hello"[..])
            );
            let (_, body) = exchange(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nx: y\r\n\r\n",
                fragment_bytes,
            )
            .await
            .expect("chunked");
            assert_eq!(body, b"hello");
            let (_, body) =
                exchange(b"HTTP/1.1 200 OK\r\n\r\nhello", fragment_bytes).await.expect("until the end");
            assert_eq!(body, b"hello");
        }
    }

    #[tokio::test]
    async fn truncated_bodies_and_malformed_heads_fail() {
        let kind = |outcome: Result<(Head, Vec<u8>), Failure>| outcome.err().map(|failure| failure.kind);
        let short = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", 100).await;
        assert_eq!(kind(short).as_deref(), Some("truncated"));
        assert_eq!(kind(exchange(b"SPDY 200\r\n\r\n", 100).await).as_deref(), Some("protocol"));
        assert_eq!(kind(exchange(b"HTTP/1.1 200 OK\r\nno end", 100).await).as_deref(), Some("closed"));
    }
}
