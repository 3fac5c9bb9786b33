//! Remote stores behind an HTTP proxy: tunnels for https, absolute form for http, credentials, failures, and the
//! variables and settings that name the proxy.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use futures::FutureExt as _;
use http::StatusCode;
use support::authority::Authority;
use support::command_runner::CommandRunner;
use support::content::content;
use support::proxy::{ProxyOptions, TestProxy};
use support::s3::S3;
use support::server::{Server, ServerSetup, root_key};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind_backend::remote::ProxyRules;
use tradewind_backend::s3::{AddressingStyle, Endpoint, S3Options, S3Store};
use tradewind_core::error::{Error, Reason};
use tradewind_core::testing::{MemoryStore, conformance, context};
use tradewind_core::{BucketName, ObjectStore, SystemClock};
use tradewind_gateway::Gateway;
use tradewind_gateway::auth::{Buckets, Permissions};
use tradewind_gateway::config::{GatewayConfig, TlsIdentity};
use tradewind_gateway::keys::{AccessKey, Keys};
use tradewind_model::retry::RetryOptions;
use tradewind_wire::sigv4::Credentials;

/// A name that only the proxy resolves.
const STORE: &str = "store.example";
/// `Proxy-Authorization` of the user `ann` with the password `s@cret`.
const ANN: &str = "Basic YW5uOnNAY3JldA==";
const SECRET: &str = "a secret of the tests";

/// A gateway on an in-memory store.
async fn gateway(tls: Option<TlsIdentity>) -> SocketAddr {
    let clock = SystemClock::shared();
    let key = AccessKey {
        id: "proxied".to_owned(),
        secret: SECRET.to_owned(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    let config = GatewayConfig { tls, ..GatewayConfig::default() };
    let keys = Keys::new([key], []);
    let gateway = Gateway::new(config, MemoryStore::new(clock.clone()), keys, clock).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { gateway.serve(listener, CancellationToken::new()).await });
    address
}

async fn tls_gateway(authority: &Authority) -> SocketAddr {
    let (certificate, key) = authority.identity(STORE, |_| {});
    gateway(Some(TlsIdentity { certificates_pem: certificate.into_bytes(), key_pem: key.into_bytes() })).await
}

/// Options for the store at `url` behind a proxy, without retries.
fn options(url: &str, proxy: &str) -> S3Options {
    let endpoint = Endpoint::parse(url, AddressingStyle::Path).unwrap();
    let credentials = Credentials { id: "proxied".to_owned(), secret: SECRET.to_owned(), token: None };
    let mut options = S3Options::new(endpoint, "us-east-1".to_owned(), Some(credentials));
    options.proxies = ProxyRules::direct().with_http("HTTP_PROXY", proxy).with_https("HTTPS_PROXY", proxy);
    options.retries = RetryOptions::disabled();
    options
}

fn open(options: S3Options) -> Arc<S3Store> {
    S3Store::new(options, SystemClock::shared()).unwrap()
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

async fn failure(options: S3Options) -> Error {
    open(options).head_bucket(&context(), &bucket()).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn http_endpoint_conforms_in_absolute_form() {
    conformance::run(|| {
        async {
            let proxy = TestProxy::start(gateway(None).await);
            let store =
                open(options(&format!("http://{STORE}:9000"), &format!("http://{}", proxy.address())));
            // It lives as long as the process.
            std::mem::forget(proxy);
            let store: Arc<dyn ObjectStore> = store;
            store
        }
        .boxed()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_an_http_endpoint_are_sent_in_absolute_form() {
    let proxy = TestProxy::start(gateway(None).await);
    for (url, style, target) in [
        ("http://store.example", AddressingStyle::Path, "http://store.example/bucket/"),
        ("http://store.example:9000", AddressingStyle::Path, "http://store.example:9000/bucket/"),
        ("http://store.example", AddressingStyle::VirtualHost, "http://bucket.store.example/"),
    ] {
        let mut options = options(url, &format!("http://{}", proxy.address()));
        options.endpoint.style = style;
        // The gateway has no such domain, so that the request in the last case is for another resource.
        let _ = open(options).head_bucket(&context(), &bucket()).await;
        assert_eq!(proxy.passed().last().unwrap(), &format!("HEAD {target}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_an_https_endpoint_share_a_tunnel() {
    let authority = Authority::new("ours");
    let proxy = TestProxy::start(tls_gateway(&authority).await);
    let mut options = options(&format!("https://{STORE}"), &proxy.address().to_string());
    options.tls = Some(authority.client());
    let store = open(options);
    store.create_bucket(&context(), &bucket()).await.unwrap();
    for _ in 0..5 {
        store.head_bucket(&context(), &bucket()).await.unwrap();
    }
    assert_eq!(proxy.passed(), ["CONNECT store.example:443"]);
}

/// TLS to the proxy, with TLS to the endpoint in its tunnel.
#[tokio::test(flavor = "multi_thread")]
async fn https_proxy_is_used_for_both_schemes() {
    let authority = Authority::new("ours");
    for (url, target, passed) in [
        ("https://store.example", tls_gateway(&authority).await, "CONNECT store.example:443"),
        ("http://store.example", gateway(None).await, "HEAD http://store.example/bucket/"),
    ] {
        let tls = Some(authority.acceptor("localhost"));
        let proxy = TestProxy::start_with(target, ProxyOptions { authorization: None, status: None, tls });
        let mut options = options(url, &format!("https://localhost:{}", proxy.address().port()));
        let missing = S3Store::new(options.clone(), SystemClock::shared()).err().unwrap();
        assert!(missing.message().contains("needs a TLS configuration"), "{missing}");
        options.tls = Some(authority.client());
        assert_eq!(failure(options).await.reason(), Reason::NoSuchBucket, "{url}");
        assert_eq!(proxy.passed(), [passed]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_credentials_are_sent_and_never_shown() {
    let authority = Authority::new("ours");
    for (url, target) in [
        ("https://store.example", tls_gateway(&authority).await),
        ("http://store.example", gateway(None).await),
    ] {
        let limits = ProxyOptions { authorization: Some(ANN), status: None, tls: None };
        let proxy = TestProxy::start_with(target, limits);
        let open_with = |user: &str| {
            let mut options = options(url, &format!("http://{user}{}", proxy.address()));
            options.tls = Some(authority.client());
            options
        };
        let allowed = failure(open_with("ann:s%40cret@")).await;
        assert_eq!(allowed.reason(), Reason::NoSuchBucket, "{url}: {allowed}");
        assert_eq!(proxy.passed().len(), 1, "{url}");
        for (user, why) in [("", "needs a user and password"), ("ann:hush@", "rejects the user or password")]
        {
            let options = open_with(user);
            let shown = format!("{options:?}");
            let denied = failure(options).await;
            assert_eq!(denied.reason(), Reason::AccessDenied, "{url}: {denied}");
            let named = format!("the proxy http://{} {why}", proxy.address());
            assert!(denied.message().contains(&named), "{url}: {denied}");
            assert!(!format!("{shown} {denied:?}").contains("hush"), "{shown} {denied:?}");
        }
        assert_eq!(proxy.passed().len(), 1, "{url}");
    }
}

/// A server that sends these bytes on each connection, once a request has begun, and closes it.
fn raw_server(response: &'static [u8]) -> SocketAddr {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if socket.read(&mut byte).unwrap_or_default() == 0 {
                    break;
                }
                head.push(byte[0]);
            }
            let _ = socket.write_all(response);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_proxy_is_named_in_the_error() {
    let authority = Authority::new("ours");
    let closed = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let with_status = |status: u16| {
        let status = Some(StatusCode::from_u16(status).unwrap());
        TestProxy::start_with(closed, ProxyOptions { authorization: None, status, tls: None })
    };
    let proxies = [403, 405, 502, 503, 500].map(with_status);
    let [forbidden, no_tunnels, bad_gateway, unavailable, broken] =
        proxies.each_ref().map(TestProxy::address);
    let https = "https://store.example";
    for (url, proxy, reason, words) in [
        (https, closed, Reason::Io, "connecting to the proxy http://HOST failed"),
        (https, forbidden, Reason::AccessDenied, "rejected a tunnel to store.example with status 403"),
        (https, forbidden, Reason::AccessDenied, "add the host to NO_PROXY"),
        (https, no_tunnels, Reason::AccessDenied, "rejected a tunnel to store.example with status 405"),
        (https, bad_gateway, Reason::Io, "the proxy http://HOST cannot reach store.example"),
        (https, unavailable, Reason::Io, "responded with status 503"),
        (
            https,
            broken,
            Reason::Io,
            "the proxy http://HOST rejected a tunnel to store.example with status 500",
        ),
        (
            https,
            raw_server(b"SSH-2.0-x\r\n"),
            Reason::InvalidArgument,
            "http://HOST does not respond like an HTTP",
        ),
        (https, raw_server(b""), Reason::Io, "the connection to the proxy http://HOST failed"),
        (
            https,
            raw_server(b"HTTP/1.0 200 OK\r\n\r\nHello"),
            Reason::InvalidArgument,
            "does not respond like",
        ),
        ("http://store.example", closed, Reason::Io, "connecting to the proxy http://HOST failed"),
        (
            "http://store.example",
            forbidden,
            Reason::AccessDenied,
            "on store.example through the proxy http://HOST",
        ),
        ("http://store.example", bad_gateway, Reason::Io, "on store.example through the proxy http://HOST"),
        (
            "http://store.example",
            raw_server(b""),
            Reason::Io,
            "on store.example through the proxy http://HOST",
        ),
    ] {
        let mut options = options(url, &format!("http://ann:hush@{proxy}"));
        options.tls = Some(authority.client());
        let error = failure(options).await;
        let message = error.message().replace(&proxy.to_string(), "HOST");
        assert!(error.reason() == reason && message.contains(words), "{words:?} in {error:?}");
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
    }
}

/// Old proxies respond with HTTP/1.0.
#[tokio::test(flavor = "multi_thread")]
async fn tunnel_opens_with_a_response_of_http_1_0() {
    let error = {
        let mut options =
            options("https://store.example", &raw_server(b"HTTP/1.0 200 OK\r\n\r\n").to_string());
        options.tls = Some(Authority::new("ours").client());
        failure(options).await
    };
    // The server closes the connection after that.
    assert!(error.message().starts_with("TLS with store.example failed"), "{error}");
}

/// A server with a bucket, and a proxy in front of it.
struct TestSetup {
    server: Server,
    proxy: TestProxy,
    data: tempfile::TempDir,
}

impl TestSetup {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let server = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
        assert_eq!(S3::new(server.endpoint, root_key()).put("bucket", &[]).unwrap().status, 200);
        let proxy = TestProxy::start(server.endpoint);
        Self { server, proxy, data }
    }

    fn url(&self) -> String {
        format!("http://{}", self.proxy.address())
    }

    fn runner(&self) -> CommandRunner {
        CommandRunner::new(self.server.endpoint).with_variable("NO_PROXY", "other.example")
    }
}

#[test]
fn commands_use_the_proxy_of_the_environment() {
    let setup = TestSetup::new();
    let runner = setup.runner().with_variable("AWS_ENDPOINT_URL_S3", "http://store.example:9000");
    let runner = runner.with_variable("HTTP_PROXY", &setup.url());
    let large = content(1, 20 << 20);
    runner.write("file", &large);
    runner.run_ok(&["cp", "file", "s3://bucket/key"]);
    assert!(runner.read("s3://bucket/key") == large);
    let passed = setup.proxy.passed();
    let is_upload = |line: &String| line.starts_with("PUT http://store.example:9000/bucket/key");
    assert!(passed.iter().any(is_upload), "{passed:?}");
}

#[test]
fn loopback_endpoint_is_reached_directly() {
    let setup = TestSetup::new();
    let runner = setup.runner().with_variable("HTTP_PROXY", &setup.url());
    runner.run_ok(&["ls", "s3://bucket"]);
    assert_eq!(setup.proxy.passed(), Vec::<String>::new());
}

#[test]
fn invalid_proxy_is_reported_with_its_variable() {
    let setup = TestSetup::new();
    let runner = setup.runner().with_variable("HTTP_PROXY", "socks5://ann:hush@localhost:1080");
    // It is not needed here.
    runner.run_ok(&["ls", "s3://bucket"]);
    let runner = runner.with_variable("AWS_ENDPOINT_URL_S3", "http://store.example:9000");
    let failed = runner.run(&["ls", "s3://bucket"]);
    assert!(failed.err.contains("HTTP_PROXY has the scheme \"socks5\""), "{}", failed.err);
    assert!(!failed.err.contains("hush"), "{}", failed.err);
}

#[test]
fn proxy_of_a_store_overrides_the_environment() {
    let setup = TestSetup::new();
    let settings = format!(
        "[store.near]\ntype = \"s3\"\nendpoint = \"http://{}\"\nproxy = \"http://ann:hush@{}\"\n",
        setup.server.endpoint,
        setup.proxy.address()
    );
    let runner = setup.runner().with_settings(&settings).with_variable("HTTP_PROXY", "http://127.0.0.1:1");
    runner.run_ok(&["ls", "near://bucket"]);
    assert!(setup.proxy.passed().iter().any(|line| line.starts_with("GET http://127.0.0.1:")));
    let shown = runner.run_ok(&["settings", "show"]);
    assert!(shown.contains(&setup.url()) && !shown.contains("hush"), "{shown}");
}

#[test]
fn served_service_is_reached_through_its_proxy() {
    let setup = TestSetup::new();
    let settings = setup.data.path().join("front.toml");
    let text = "[store.far]\ntype = \"s3\"\nendpoint = \"http://store.example:9000\"\n";
    std::fs::write(&settings, text).unwrap();
    let data = setup.data.path();
    let mut front =
        ServerSetup::new(&data.join("front"), &data.join("front.log")).flag("--config", &settings);
    let root = root_key();
    front.environment.extend(
        [
            ("HTTP_PROXY", setup.url()),
            ("NO_PROXY", "other.example".to_owned()),
            ("AWS_ACCESS_KEY_ID", root.id),
            ("AWS_SECRET_ACCESS_KEY", root.secret),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let mut front = front.start().unwrap();
    let mut client = S3::new(front.endpoint, root_key());
    assert_eq!(client.put("bucket/key", b"body").unwrap().status, 200);
    assert_eq!(client.get("bucket/key").unwrap().body, b"body");
    let passed = setup.proxy.passed();
    assert!(
        passed.iter().any(|line| line.starts_with("PUT http://store.example:9000/bucket/key")),
        "{passed:?}"
    );
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}
