//! Connections that the peer closes between two requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use bytes::Bytes;
use http::header::EXPECT;
use parking_lot::Mutex;
use tradewind_core::SystemClock;
use tradewind_core::testing::context;

use super::*;
use crate::remote::Peer;
use crate::remote::client_options::ClientOptions;

const BODY: &[u8] = b"0123456789";

/// A service that answers each request with 200.
#[derive(Default)]
struct Service {
    /// The bodies of the requests.
    bodies: Mutex<Vec<Vec<u8>>>,
    connections: Mutex<Vec<TcpStream>>,
}

impl Service {
    fn start() -> (Arc<Self>, Peer) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = Arc::new(Self::default());
        let serving = service.clone();
        // The threads end with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, service) = (stream.unwrap(), serving.clone());
                service.connections.lock().push(stream.try_clone().unwrap());
                std::thread::spawn(move || service.serve(stream));
            }
        });
        (service, Peer { is_tls: false, host: "127.0.0.1".to_owned(), port })
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let (mut length, mut line) = (0, String::new());
            while line != "\r\n" {
                line.clear();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                match line.trim_end().split_once(": ") {
                    Some(("content-length", value)) => length = value.parse().unwrap(),
                    Some(("expect", _)) => reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?,
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            self.bodies.lock().push(body);
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        }
    }

    /// Closes the connection that was opened last, and waits until another thread of the runtime has noticed it.
    fn close_connection(&self) {
        self.connections.lock().last().unwrap().shutdown(Shutdown::Both).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A protocol whose second request finds its connection closed after it was taken from the pool.
struct ClosingProtocol {
    service: Arc<Service>,
    has_closed: AtomicBool,
}

impl Protocol for ClosingProtocol {
    fn scheme(&self) -> &'static str {
        ""
    }

    fn request_target(&self, _: &Call<'_>) -> Result<(Uri, HeaderValue)> {
        Ok((Uri::from_static("/"), HeaderValue::from_static("service")))
    }

    fn authorize(
        &self,
        _: &Method,
        _: &Uri,
        _: &mut HeaderMap,
        _: &Payload,
        _: Timestamp,
    ) -> Result<Option<ChunkSignatureChain>> {
        if self.service.bodies.lock().len() == 1 && !self.has_closed.swap(true, Ordering::Relaxed) {
            self.service.close_connection();
        }
        Ok(None)
    }

    fn classify_and_record(&self, response: &ErrorResponse<'_>) -> ClassifiedError {
        panic!("{response:?}")
    }
}

/// A client without retries that has two idle connections. Its next request finds the first one closed.
async fn client_with_closing_connection() -> (Arc<Client>, Arc<Service>) {
    let (service, peer) = Service::start();
    let protocol = ClosingProtocol { service: service.clone(), has_closed: AtomicBool::new(false) };
    let options = ClientOptions { retries: RetryOptions::disabled(), ..ClientOptions::default() };
    let client = options.client(&peer, Arc::new(protocol), SystemClock::shared()).unwrap();
    let other = client.pool.acquire(false, Reuse::Never).await.unwrap();
    let response = client.send(&context(), &Call::service(Method::GET)).await.unwrap();
    client.pool.release(other);
    response.drain().await.unwrap();
    (Arc::new(client), service)
}

/// Checks that the second request was sent once, on a new connection, and that the other idle connection was kept.
async fn assert_sent_once(client: &Client, service: &Service, body: &[u8]) {
    assert_eq!(*service.bodies.lock(), [&b""[..], body]);
    assert_eq!(service.connections.lock().len(), 3);
    let idle = [
        client.pool.acquire(false, Reuse::Any).await.unwrap(),
        client.pool.acquire(false, Reuse::Any).await.unwrap(),
    ];
    assert!(idle.iter().all(|connection| connection.is_reused));
}

#[tokio::test(flavor = "multi_thread")]
async fn request_on_a_connection_closed_before_writing_is_sent() {
    // POST: a request that may not be repeated.
    for method in [Method::GET, Method::POST] {
        let (client, service) = client_with_closing_connection().await;
        let mut call = Call::service(method);
        call.payload = BufferedBody::from_buffers([Bytes::from_static(BODY)]);
        client.send(&context(), &call).await.unwrap().drain().await.unwrap();
        assert_sent_once(&client, &service, BODY).await;
        assert!(!call.outcome_unknown.load(Ordering::Relaxed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_on_a_connection_closed_before_writing_is_sent() {
    for (pieces, waits) in [(1, false), (5, false), (2, true)] {
        let (client, service) = client_with_closing_connection().await;
        let mut call = Call::service(Method::PUT);
        if waits {
            call.headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        }
        let mut request = client.start_streaming(&context(), &call, Some(BODY.len() as u64)).await.unwrap();
        assert!(request.wait_for_continue(Duration::from_secs(10)).await.unwrap());
        for piece in BODY.chunks(BODY.len() / pieces) {
            request.write(Bytes::from_static(piece)).await.unwrap();
        }
        request.finish().await.unwrap().drain().await.unwrap();
        assert_sent_once(&client, &service, BODY).await;
    }
}
