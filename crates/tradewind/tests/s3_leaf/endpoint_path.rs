//! A service below a path of its host, behind a reverse proxy. Clients sign the whole path, and the proxy verifies that.
//! The service itself is a gateway without the path, so the proxy signs again what it forwards.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use http::{HeaderValue, Request, StatusCode, Uri};
use hyper::body::Incoming;
use tradewind_backend::s3::{AddressingStyle, Endpoint, S3Options, S3Store};
use tradewind_core::testing::{conformance, context};
use tradewind_core::{BucketName, ObjectStore, SystemClock};
use tradewind_wire::sigv4::{AmzDate, Credentials, SignedParts, SigningKey, sha256, string_to_sign};

use crate::support::authority::Authority;
use crate::support::command_runner::CommandRunner;
use crate::support::content::content;
use crate::support::http_server::{AnyResponse, HttpServer, empty, forward};
use crate::support::server::{ServerSetup, root_key};
use crate::{ID, SECRET};

const PREFIX: &str = "/storage/v1/s3";

/// The signature of a request as if it had this path.
fn signature(request: &Request<Incoming>, path: &str, secret: &str) -> String {
    let header = |name: &str| request.headers()[name].to_str().unwrap();
    let field = |name: &str| {
        let after = header("authorization").split_once(name).unwrap().1;
        after.split(',').next().unwrap().to_owned()
    };
    let (_, scope) =
        field("Credential=").split_once('/').map(|(id, scope)| (id.to_owned(), scope.to_owned())).unwrap();
    let names = field("SignedHeaders=");
    let signed = SignedParts {
        method: request.method(),
        path,
        query: request.uri().query(),
        headers: request.headers(),
        names: &names,
        payload: header("x-amz-content-sha256").as_bytes(),
    };
    let date = AmzDate::parse(header("x-amz-date").as_bytes()).unwrap();
    let text = string_to_sign(&date, &scope, &sha256(&signed.text().unwrap()));
    hex::encode(SigningKey::derive(secret, &scope).sign(&text))
}

/// Verifies the signature and strips the prefix. The reason why that failed, otherwise.
fn strip(request: &mut Request<Incoming>, secret: &str) -> Result<(), String> {
    let path = request.uri().path().to_owned();
    let rest = path.strip_prefix(PREFIX).filter(|rest| rest.starts_with('/'));
    let rest = rest.ok_or_else(|| format!("{path} does not begin with {PREFIX}"))?;
    let authorization = request.headers()["authorization"].to_str().unwrap().to_owned();
    let (before, found) = authorization.rsplit_once("Signature=").unwrap();
    if found != signature(request, &path, secret) {
        return Err(format!("the signature does not cover {path}"));
    }
    let signed_again = format!("{before}Signature={}", signature(request, rest, secret));
    request.headers_mut().insert("authorization", HeaderValue::try_from(signed_again).unwrap());
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    *request.uri_mut() = format!("{rest}{query}").parse::<Uri>().unwrap();
    Ok(())
}

/// A reverse proxy with TLS in front of a gateway, and the requests that it has rejected. Over TLS, chunks of a body are
/// not signed, so that it need not sign them again.
fn reverse_proxy(
    target: SocketAddr,
    authority: &Authority,
    secret: String,
) -> (HttpServer, Arc<Mutex<Vec<String>>>) {
    let rejected = Arc::new(Mutex::new(Vec::new()));
    let log = rejected.clone();
    let acceptor = Some(authority.acceptor("localhost"));
    let server = HttpServer::start(acceptor, move |mut request| {
        let stripped = strip(&mut request, &secret);
        let log = log.clone();
        async move {
            let response: AnyResponse = match stripped {
                Ok(()) => forward(request, target).await,
                Err(why) => {
                    log.lock().unwrap().push(why);
                    empty(StatusCode::FORBIDDEN)
                }
            };
            response
        }
    });
    (server, rejected)
}

#[tokio::test(flavor = "multi_thread")]
async fn leaf_below_a_path_conforms() {
    let authority = Arc::new(Authority::new("ours"));
    let all_rejected = Arc::new(Mutex::new(Vec::new()));
    conformance::run(|| {
        let (authority, all_rejected) = (authority.clone(), all_rejected.clone());
        async move {
            let gateway = crate::gateway().await;
            let (server, rejected) = reverse_proxy(gateway, &authority, SECRET.to_owned());
            all_rejected.lock().unwrap().push(rejected);
            let url = format!("https://localhost:{}{PREFIX}", server.address.port());
            // It lives as long as the process.
            std::mem::forget(server);
            let endpoint = Endpoint::parse(&url, AddressingStyle::Path).unwrap();
            let credentials = Credentials { id: ID.to_owned(), secret: SECRET.to_owned(), token: None };
            let mut options = S3Options::new(endpoint, "us-east-1".to_owned(), Some(credentials));
            options.tls = Some(authority.client());
            let store: Arc<dyn ObjectStore> = S3Store::new(options, SystemClock::shared()).unwrap();
            store
        }
        .boxed()
    })
    .await;
    for rejected in &*all_rejected.lock().unwrap() {
        assert_eq!(*rejected.lock().unwrap(), Vec::<String>::new());
    }
}

/// A bucket that is missing below the path is not the path's fault, and messages name the endpoint with its path.
#[tokio::test(flavor = "multi_thread")]
async fn error_names_the_endpoint_with_its_path() {
    let authority = Authority::new("ours");
    let (server, _) = reverse_proxy(crate::gateway().await, &authority, SECRET.to_owned());
    let address = format!("localhost:{}{PREFIX}", server.address.port());
    let endpoint = Endpoint::parse(&format!("https://{address}/"), AddressingStyle::Path).unwrap();
    let credentials = Credentials { id: ID.to_owned(), secret: SECRET.to_owned(), token: None };
    let mut options = S3Options::new(endpoint, "us-east-1".to_owned(), Some(credentials));
    options.tls = Some(authority.client());
    let store = S3Store::new(options, SystemClock::shared()).unwrap();
    assert_eq!(format!("{store:?}"), format!("S3Store({address})"));
    let bucket = BucketName::new("missing").unwrap();
    let failed = store.head_bucket(&context(), &bucket).await.unwrap_err();
    assert!(failed.message().contains("missing"), "{failed}");
}

/// The endpoint of the environment, of a flag and of the settings, for transfers and a benchmark.
#[test]
fn commands_accept_an_endpoint_with_a_path() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let authority = Authority::new("ours");
    let (proxy, rejected) = reverse_proxy(server.endpoint, &authority, root_key().secret);
    let url = format!("https://localhost:{}{PREFIX}/", proxy.address.port());
    let runner = CommandRunner::new(server.endpoint)
        .with_settings(&format!("[store.deep]\ntype = \"s3\"\nendpoint = {url:?}\n"))
        .with_variable("AWS_ENDPOINT_URL_S3", &url);
    runner.write("authority.pem", authority.pem());
    let certificates = runner.path("authority.pem");
    let runner = runner.with_variable("AWS_CA_BUNDLE", certificates.to_str().unwrap());
    runner.run_ok(&["mb", "s3://bucket"]);
    let large = content(1, 20 << 20);
    runner.write("file", &large);
    runner.run_ok(&["cp", "file", "s3://bucket/a b"]);
    runner.run_ok(&["cp", "s3://bucket/a b", "s3://bucket/copy"]);
    assert!(runner.read("deep://bucket/copy") == large);
    assert_eq!(runner.run_ok(&["ls", "--endpoint-url", &url, "s3://bucket"]).lines().count(), 2);
    runner.run_ok(&["rm", "-r", "s3://bucket/"]);
    let options = "--mix put --size 4KiB --concurrency 2 --count 20 --no-out";
    let bench = ["bench", "object", "s3://bucket"].into_iter().chain(options.split(' ')).collect::<Vec<_>>();
    let measured = runner.run(&bench);
    assert!(measured.status.success(), "{}", measured.err);
    assert_eq!(*rejected.lock().unwrap(), Vec::<String>::new());
}
