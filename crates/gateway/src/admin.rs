//! The admin listener: `/health/live`, `/health/ready` and `/metrics`, without authentication, for an address that only
//! operators can reach. They expose no objects and no names of objects. The paths below `/v1/` are the admin [`api`],
//! which needs a signature.

pub mod api;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::body::ResponseBody;
use api::{CallsInFlight, GuardedApi};

/// Timeout for a request's head, from the start of the connection or the end of the previous response.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks if requests can be served. The error is the reason, shown to operators.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The content served by the admin listener.
#[derive(Clone)]
pub struct Admin {
    /// For `/health/ready`.
    pub ready: Readiness,
    /// For `/metrics`.
    pub metrics: Arc<Registry>,
    /// For `/v1/`; `None` if there is no API.
    pub api: Option<GuardedApi>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}

/// Serves until `shutdown`. Beyond `max_connections` (at least 1), a new connection replaces the oldest one, so that
/// unused connections cannot block health checks. Connections with a call of the API in flight, whose number is bounded,
/// are replaced last.
pub async fn serve(listener: TcpListener, admin: Admin, max_connections: usize, shutdown: CancellationToken) {
    let mut tasks = JoinSet::new();
    let mut open = VecDeque::<OpenConnection>::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_ended) = tasks.join_next() => open.retain(|connection| !connection.task.is_finished()),
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    if open.len() >= max_connections {
                        let idle = open.iter().position(|connection| connection.calls.is_zero());
                        if let Some(replaced) = open.remove(idle.unwrap_or(0)) {
                            replaced.task.abort();
                        }
                    }
                    let calls = CallsInFlight::default();
                    let task = tasks.spawn(serve_connection(socket, admin.clone(), calls.clone()));
                    open.push_back(OpenConnection { task, calls });
                }
                Err(e) => {
                    tracing::warn!(error = %e, "an admin connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    tasks.shutdown().await;
    if let Some(api) = admin.api {
        // They end because their connections ended.
        api.streams.close();
        api.streams.wait().await;
    }
}

struct OpenConnection {
    task: AbortHandle,
    calls: CallsInFlight,
}

async fn serve_connection(socket: TcpStream, admin: Admin, calls: CallsInFlight) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(match &admin.api {
            Some(api) if GuardedApi::owns(request.uri().path()) => api.respond(request, &calls).await,
            _ => answer(&admin, request.method(), request.uri().path()),
        })
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(16 << 10);
    if let Err(e) = http.serve_connection(TokioIo::new(socket), service).await {
        tracing::debug!(error = %e, "an admin connection ended early");
    }
}

fn answer(admin: &Admin, method: &Method, path: &str) -> Response<ResponseBody> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
    }
    match path {
        "/health/live" => text(StatusCode::OK, "live\n"),
        "/health/ready" => match (admin.ready)() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => {
            let mut out = String::new();
            match prometheus_text::encode(&mut out, &admin.metrics) {
                Ok(()) => text(StatusCode::OK, out),
                Err(fmt::Error) => text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be encoded\n"),
            }
        }
        _ => {
            text(StatusCode::NOT_FOUND, "not found; the paths are /health/live, /health/ready and /metrics\n")
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(body.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use prometheus_client::metrics::gauge::Gauge;

    #[tokio::test]
    async fn each_path_has_its_response() {
        let mut registry = Registry::default();
        let gauge = Gauge::<i64>::default();
        gauge.set(1);
        registry.register("a", "A gauge", gauge);
        let metrics = Arc::new(registry);
        let admin = |ready: Result<(), String>| Admin {
            ready: Arc::new(move || ready.clone()),
            metrics: metrics.clone(),
            api: None,
        };
        let ask = async |admin: &Admin, method: Method, path: &str| {
            let response = answer(admin, &method, path);
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        let ready = admin(Ok(()));
        assert_eq!(ask(&ready, Method::GET, "/health/live").await.0, 200);
        assert_eq!(ask(&ready, Method::HEAD, "/health/ready").await.0, 200);
        assert_eq!(
            ask(&ready, Method::GET, "/metrics").await,
            (200, "# HELP a A gauge.\n# TYPE a gauge\na 1\n".to_owned())
        );
        assert_eq!(ask(&ready, Method::GET, "/").await.0, 404);
        assert_eq!(ask(&ready, Method::POST, "/metrics").await.0, 405);
        let unready = admin(Err("the store is read-only".to_owned()));
        assert_eq!(
            ask(&unready, Method::GET, "/health/ready").await,
            (503, "the store is read-only\n".to_owned())
        );
        assert_eq!(ask(&unready, Method::GET, "/health/live").await.0, 200);
    }

    #[tokio::test]
    async fn unused_connections_do_not_block_health_checks() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let admin = Admin { ready: Arc::new(|| Ok(())), metrics: Arc::default(), api: None };
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, admin, 4, shutdown.clone()));
        let mut unused = Vec::new();
        for _ in 0..20 {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(b"GET /hea").await.unwrap();
            unused.push(socket);
        }
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET /health/ready HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        let read = socket.read_exact(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), read).await.expect("an answer").unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        shutdown.cancel();
        served.await.unwrap();
    }
}
