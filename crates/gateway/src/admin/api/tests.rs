use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use parking_lot::Mutex;
use tradewind_core::Timestamp;
use tradewind_wire::sigv4::{Credentials, Payload, Signer};

use super::*;
use crate::auth::{Buckets, Permissions};
use crate::keys::AccessKey;
use crate::sigv4::testing::{SIGNED_AT, StoppedClock};

const ROOT_ID: &str = "root";

/// Records calls, and answers them as `respond` says.
struct RecordingApi {
    calls: Mutex<Vec<AdminCall>>,
    respond: Box<dyn Fn() -> AdminResponse + Send + Sync>,
}

#[async_trait]
impl AdminApi for RecordingApi {
    async fn call(&self, call: AdminCall) -> AdminResponse {
        self.calls.lock().push(call);
        (self.respond)()
    }
}

struct Scene {
    api: GuardedApi,
    recorded: Arc<RecordingApi>,
    in_flight: CallsInFlight,
}

impl Scene {
    fn new(respond: impl Fn() -> AdminResponse + Send + Sync + 'static) -> Self {
        let key = |id: &str| AccessKey {
            id: id.to_owned(),
            secret: format!("secret of {id}"),
            permissions: Permissions::ReadWrite,
            buckets: Buckets::All,
        };
        let recorded = Arc::new(RecordingApi { calls: Mutex::default(), respond: Box::new(respond) });
        // The bucket `v1` is public: that must open nothing here.
        let keys = Keys::new([key(ROOT_ID), key("other")], ["v1".to_owned()]);
        let api = GuardedApi::new(recorded.clone(), keys, ROOT_ID, Arc::new(StoppedClock(SIGNED_AT)));
        Self { api, recorded, in_flight: CallsInFlight::default() }
    }

    fn with_document() -> Self {
        Self::new(|| AdminResponse::document(&json!({ "fine": true })))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = self.api.respond(request, &self.in_flight).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    fn calls(&self) -> Vec<AdminCall> {
        std::mem::take(&mut self.recorded.calls.lock())
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// The code in a JSON error.
    fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert!(json["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{json}");
        json["error"]["code"].as_str().unwrap().to_owned()
    }
}

/// The parts of a signature that a test varies.
struct Signed<'a> {
    service: &'static str,
    id: &'a str,
    secret: &'a str,
    /// Seconds since 1970.
    at: i64,
    payload: Option<Payload>,
}

const BY_ROOT: Signed<'_> =
    Signed { service: ADMIN_SERVICE, id: ROOT_ID, secret: "secret of root", at: SIGNED_AT, payload: None };

const BODY: &[u8] = br#"{"bucket":"b"}"#;

fn request(signed: &Signed<'_>) -> Request<Full<Bytes>> {
    let request = Request::post("/v1/volumes/v%20w/evict?a=b").header("host", "127.0.0.1:9001");
    let mut request = request.body(Full::new(Bytes::from_static(BODY))).unwrap();
    let credentials = Credentials { id: signed.id.to_owned(), secret: signed.secret.to_owned(), token: None };
    let signer = Signer::for_service(signed.service, credentials, "us-east-1".to_owned());
    let payload = signed.payload.unwrap_or_else(|| Payload::Sha256(sha256(BODY)));
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let now = Timestamp::from_millis(signed.at * 1000);
    signer.sign(None, &method, &uri, request.headers_mut(), payload, now).unwrap();
    request
}

fn with_body(mut request: Request<Full<Bytes>>, body: &'static [u8]) -> Request<Full<Bytes>> {
    *request.body_mut() = Full::new(Bytes::from_static(body));
    request
}

#[tokio::test]
async fn call_signed_by_the_root_key_is_executed() {
    let scene = Scene::with_document();
    let answer = scene.send(request(&BY_ROOT)).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "{\"fine\":true}"));
    let path = ["volumes", "v w", "evict"].map(str::to_owned).to_vec();
    let query = Some("a=b".to_owned());
    assert_eq!(scene.calls(), [AdminCall { method: Method::POST, path, query, body: BODY.into() }]);
    assert!(scene.in_flight.is_zero());
}

#[tokio::test]
async fn call_without_the_root_keys_signature_is_denied() {
    let scene = Scene::with_document();
    let window = 15 * 60;
    let unsigned_headers = || {
        let mut request = request(&BY_ROOT);
        request.headers_mut().remove(header::AUTHORIZATION);
        request
    };
    let changed = |change: fn(&mut Request<Full<Bytes>>)| {
        let mut request = request(&BY_ROOT);
        change(&mut request);
        request
    };
    let denied = [
        ("unsigned", unsigned_headers(), "AccessDenied"),
        ("unknown key", request(&Signed { id: "none", ..BY_ROOT }), "InvalidAccessKeyId"),
        ("wrong secret", request(&Signed { secret: "guess", ..BY_ROOT }), "SignatureDoesNotMatch"),
        (
            "another key of the server",
            request(&Signed { id: "other", secret: "secret of other", ..BY_ROOT }),
            "AccessDenied",
        ),
        ("signed for S3", request(&Signed { service: "s3", ..BY_ROOT }), "AuthorizationHeaderMalformed"),
        ("too old", request(&Signed { at: SIGNED_AT - window - 1, ..BY_ROOT }), "RequestTimeTooSkewed"),
        ("too new", request(&Signed { at: SIGNED_AT + window + 1, ..BY_ROOT }), "RequestTimeTooSkewed"),
        ("unsigned body", request(&Signed { payload: Some(Payload::Unsigned), ..BY_ROOT }), "AccessDenied"),
        (
            "signed chunks",
            request(&Signed { payload: Some(Payload::SignedChunks), ..BY_ROOT }),
            "AccessDenied",
        ),
        (
            "unsigned chunks",
            request(&Signed { payload: Some(Payload::UnsignedTrailer), ..BY_ROOT }),
            "AccessDenied",
        ),
        ("other body", with_body(request(&BY_ROOT), br#"{"bucket":"c"}"#), "XAmzContentSHA256Mismatch"),
        ("no body", with_body(request(&BY_ROOT), b""), "XAmzContentSHA256Mismatch"),
        (
            "other path",
            changed(|request| *request.uri_mut() = "/v1/volumes/w/evict?a=b".parse().unwrap()),
            "SignatureDoesNotMatch",
        ),
        (
            "other query",
            changed(|request| *request.uri_mut() = "/v1/volumes/v%20w/evict?a=c".parse().unwrap()),
            "SignatureDoesNotMatch",
        ),
        ("other method", changed(|request| *request.method_mut() = Method::PUT), "SignatureDoesNotMatch"),
        (
            "other host",
            changed(|request| drop(request.headers_mut().insert("host", HeaderValue::from_static("h")))),
            "SignatureDoesNotMatch",
        ),
        (
            "unsigned header",
            changed(|request| drop(request.headers_mut().insert("x-amz-a", HeaderValue::from_static("b")))),
            "AccessDenied",
        ),
    ];
    for (what, request, code) in denied {
        let answer = scene.send(request).await;
        assert_eq!(answer.status, 403, "{what}: {answer:?}");
        assert_eq!(answer.code(), code, "{what}: {answer:?}");
        assert_eq!(scene.calls(), [], "{what}");
    }
    for edge in [SIGNED_AT - window, SIGNED_AT + window] {
        assert_eq!(scene.send(request(&Signed { at: edge, ..BY_ROOT })).await.status, 200);
    }
}

#[tokio::test]
async fn signature_in_the_url_is_denied() {
    let scene = Scene::with_document();
    let query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=root%2F20130524%2Fus-east-1%2Ftradewind-admin\
                 %2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host";
    let target = format!("/v1/volumes?{query}");
    let key = tradewind_wire::sigv4::SigningKey::derive(
        "secret of root",
        "20130524/us-east-1/tradewind-admin/aws4_request",
    );
    let mut sorted: Vec<&str> = query.split('&').collect();
    sorted.sort_unstable();
    let canonical = format!("GET\n/v1/volumes\n{}\nhost:h\n\nhost\nUNSIGNED-PAYLOAD", sorted.join("&"));
    let text = format!(
        "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/tradewind-admin/aws4_request\n{}",
        hex::encode(sha256(canonical.as_bytes()))
    );
    let signature = hex::encode(key.sign(text.as_bytes()));
    let request = Request::get(format!("{target}&X-Amz-Signature={signature}")).header("host", "h");
    let answer = scene.send(request.body(Full::default()).unwrap()).await;
    assert!(answer.status == 403 && answer.body.contains("Authorization header"), "{answer:?}");
    assert_eq!(scene.calls(), []);
}

#[tokio::test]
async fn body_over_the_limit_is_rejected_before_it_is_read() {
    let scene = Scene::with_document();
    let mut large = request(&BY_ROOT);
    *large.body_mut() = Full::new(vec![0; MAX_BODY_BYTES + 1].into());
    let answer = scene.send(large).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "EntityTooLarge"));
    assert_eq!(scene.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn body_that_does_not_arrive_ends_the_call() {
    let scene = Scene::with_document();
    let (parts, _) = request(&BY_ROOT).into_parts();
    let never: UnsyncBoxBody<Bytes, BoxError> =
        UnsyncBoxBody::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, BoxError>>()));
    let response = scene.api.respond(Request::from_parts(parts, never), &scene.in_flight).await;
    assert_eq!(response.status(), 408);
    assert!(scene.in_flight.is_zero());
}

#[tokio::test]
async fn calls_beyond_the_limit_are_rejected_until_one_ends() {
    let scene = Scene::new(|| AdminResponse::Lines(stream::pending().boxed()));
    let mut open = Vec::new();
    for _ in 0..MAX_CALLS {
        open.push(scene.api.respond(request(&BY_ROOT), &scene.in_flight).await);
    }
    let answer = scene.send(request(&BY_ROOT)).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "SlowDown"));
    assert!(!scene.in_flight.is_zero());
    drop(open);
    scene.api.streams.close();
    scene.api.streams.wait().await;
    assert!(scene.in_flight.is_zero(), "a client that goes away ends its call");
}

#[tokio::test]
async fn lines_arrive_in_order() {
    let lines = || stream::iter([Bytes::from_static(b"1\n"), Bytes::from_static(b"2\n")]).boxed();
    let scene = Scene::new(move || AdminResponse::Lines(lines()));
    let answer = scene.send(request(&BY_ROOT)).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "1\n2\n"));
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_ends_its_call() {
    let scene = Scene::new(|| AdminResponse::Lines(stream::repeat(Bytes::from_static(b"a\n")).boxed()));
    let _unread = scene.api.respond(request(&BY_ROOT), &scene.in_flight).await;
    scene.api.streams.close();
    scene.api.streams.wait().await;
    assert!(scene.in_flight.is_zero());
}

#[test]
fn every_path_below_the_root_belongs_to_the_api() {
    for (path, is_owned) in [
        ("/v1", true),
        ("/v1/", true),
        ("/v1/volumes", true),
        ("/v1x", false),
        ("/metrics", false),
        ("/%761/a", false),
    ] {
        assert_eq!(GuardedApi::owns(path), is_owned, "{path}");
    }
}

/// A call over a socket, whose lines never end.
#[tokio::test]
async fn connection_with_a_call_is_replaced_last_and_ends_the_call() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::{Admin, serve};

    let lines = || stream::iter([Bytes::from_static(b"first\n")]).chain(stream::pending()).boxed();
    let scene = Scene::new(move || AdminResponse::Lines(lines()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let admin = Admin { ready: Arc::new(|| Ok(())), metrics: Arc::default(), api: Some(scene.api.clone()) };
    let shutdown = tokio_util::sync::CancellationToken::new();
    let served = tokio::spawn(serve(listener, admin, 4, shutdown.clone()));

    let (parts, _) = request(&BY_ROOT).into_parts();
    let mut head = format!("{} {} HTTP/1.1\r\ncontent-length: {}\r\n", parts.method, parts.uri, BODY.len());
    for (name, value) in &parts.headers {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    let mut calling = TcpStream::connect(address).await.unwrap();
    calling.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    calling.write_all(BODY).await.unwrap();
    let mut received = Vec::new();
    while !received.windows(5).any(|window| window == b"first") {
        assert!(calling.read_buf(&mut received).await.unwrap() > 0, "{}", String::from_utf8_lossy(&received));
    }
    let mut unused = Vec::new();
    for _ in 0..20 {
        unused.push(TcpStream::connect(address).await.unwrap());
    }
    let mut checking = TcpStream::connect(address).await.unwrap();
    checking.write_all(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    checking.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(scene.api.calls.available_permits(), MAX_CALLS - 1, "the call is in flight");
    drop(calling);
    let ended = async {
        while scene.api.calls.available_permits() < MAX_CALLS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), ended).await.expect("the call ends with its client");
    shutdown.cancel();
    served.await.unwrap();
}
