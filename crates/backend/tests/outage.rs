//! Outages of a service on a simulated clock: requests wait for it together, for a bounded time.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind_backend::remote::ProxyRules;
use tradewind_backend::s3::{AddressingStyle, Endpoint, S3Options, S3Store};
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::testing::{SimulatedClock, context};
use tradewind_core::{Address, BucketName, Clock, Context, ObjectStore, Precondition};
use tradewind_model::retry::RetryOptions;

const UNAVAILABLE: &str = "HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n";
const FOUND: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A service that responds to each request with the next of these responses, and with the last one to all others. Counts
/// its requests. Instead of an empty response it closes the connection.
async fn service(responses: Vec<String>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let served = count.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (served, responses) = (served.clone(), responses.clone());
            tokio::spawn(async move {
                while stream.read(&mut [0; 4096]).await.is_ok_and(|length| length > 0) {
                    let number = served.fetch_add(1, Ordering::Relaxed);
                    let response = &responses[number.min(responses.len() - 1)];
                    if response.is_empty() || stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, count)
}

/// The address of a port that no process listens on.
async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn store(address: SocketAddr, retries: RetryOptions, clock: &Arc<SimulatedClock>) -> Arc<S3Store> {
    let endpoint = Endpoint::parse(&format!("http://{address}"), AddressingStyle::Path).unwrap();
    let options = S3Options { retries, ..S3Options::new(endpoint, "us-east-1".to_owned(), None) };
    S3Store::new(options, clock.clone()).unwrap()
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

/// Runs `work`. Whenever it waits for the clock, the clock jumps to the next sleeper.
async fn simulate<T>(clock: &SimulatedClock, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            // Requests on loopback are answered within this time.
            () = tokio::time::sleep(Duration::from_millis(3)) => {
                if let Some(wake) = clock.next_wake() {
                    clock.advance(wake.saturating_sub(clock.now()));
                }
            }
        }
    }
}

async fn failure(store: &S3Store, context: &Context) -> Error {
    store.head_bucket(context, &bucket()).await.unwrap_err()
}

#[tokio::test]
async fn closed_port_is_retried_for_30_s() {
    let clock = SimulatedClock::new();
    let store = store(closed_port().await, RetryOptions::for_commands(), &clock);
    let failed = simulate(&clock, failure(&store, &context())).await;
    assert!((30..36).contains(&clock.now().as_secs()), "{:?}", clock.now());
    assert!(failed.is_final() && failed.message().starts_with("retried for 3"), "{failed}");
}

/// The endpoint's name is resolved by the proxy only.
#[tokio::test]
async fn closed_port_of_a_proxy_is_retried_for_30_s() {
    for endpoint in ["http://store.example", "https://store.example"] {
        let clock = SimulatedClock::new();
        let proxy = closed_port().await.to_string();
        let endpoint = Endpoint::parse(endpoint, AddressingStyle::Path).unwrap();
        let mut options = S3Options::new(endpoint, "us-east-1".to_owned(), None);
        options.retries = RetryOptions::for_commands();
        options.proxies =
            ProxyRules::direct().with_http("HTTP_PROXY", &proxy).with_https("HTTPS_PROXY", &proxy);
        options.tls = Some(trust_nothing());
        let store = S3Store::new(options, clock.clone()).unwrap();
        let failed = simulate(&clock, failure(&store, &context())).await;
        assert!((30..36).contains(&clock.now().as_secs()), "{:?}", clock.now());
        assert!(failed.message().contains(&format!("the proxy http://{proxy} failed")), "{failed}");
    }
}

/// A TLS configuration for endpoints that are never reached.
fn trust_nothing() -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

#[tokio::test]
async fn unavailable_service_is_retried_until_it_responds() {
    let (address, count) = service([vec![UNAVAILABLE.to_owned(); 10], vec![FOUND.to_owned()]].concat()).await;
    let clock = SimulatedClock::new();
    let store = store(address, RetryOptions::for_commands(), &clock);
    simulate(&clock, store.head_bucket(&context(), &bucket())).await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 11);
    assert!(clock.now() > Duration::from_secs(4), "{:?}", clock.now());
}

#[tokio::test]
async fn requests_in_flight_share_one_wait() {
    let (address, count) = service(vec![UNAVAILABLE.to_owned()]).await;
    let clock = SimulatedClock::new();
    let store = store(address, RetryOptions::for_commands(), &clock);
    let (context, bucket) = (context(), bucket());
    let all = futures::future::join_all((0..40).map(|_| store.head_bucket(&context, &bucket)));
    let results: Vec<Result<()>> = simulate(&clock, all).await;
    assert!(results.iter().all(Result::is_err));
    assert!((30..45).contains(&clock.now().as_secs()), "all wait at the same time: {:?}", clock.now());
    let requests = count.load(Ordering::Relaxed);
    // Once the first requests of a round have failed, the others wait for the next one.
    assert!((100..40 * 10).contains(&requests), "{requests}");
    // A later request does not wait again.
    let before = clock.now();
    simulate(&clock, failure(&store, &context)).await;
    assert!(clock.now() - before < Duration::from_secs(4), "{:?}", clock.now() - before);
}

#[tokio::test]
async fn server_does_not_wait_for_its_service() {
    for address in [closed_port().await, service(vec![UNAVAILABLE.to_owned()]).await.0] {
        let clock = SimulatedClock::new();
        let store = store(address, RetryOptions::default(), &clock);
        simulate(&clock, failure(&store, &context())).await;
        assert!(clock.now() < Duration::from_secs(4), "{:?}", clock.now());
    }
}

#[tokio::test]
async fn max_attempts_disables_the_wait() {
    let (address, count) = service(vec![UNAVAILABLE.to_owned()]).await;
    let clock = SimulatedClock::new();
    let store = store(address, RetryOptions::with_max_attempts(3), &clock);
    simulate(&clock, failure(&store, &context())).await;
    assert_eq!(count.load(Ordering::Relaxed), 3);
    assert!(clock.now() < Duration::from_secs(1), "{:?}", clock.now());
}

#[tokio::test]
async fn retry_after_is_honoured() {
    for (seconds, retries, expected) in [
        (7, RetryOptions::for_commands(), 7),
        (7, RetryOptions::with_max_attempts(2), 7),
        (3600, RetryOptions::for_commands(), 30),
        (7, RetryOptions::default(), 1),
    ] {
        let busy = format!("HTTP/1.1 503 Busy\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n");
        let (address, _) = service(vec![busy, FOUND.to_owned()]).await;
        let clock = SimulatedClock::new();
        let store = store(address, retries, &clock);
        simulate(&clock, store.head_bucket(&context(), &bucket())).await.unwrap();
        assert_eq!(clock.now().as_secs(), expected, "{retries:?}");
    }
}

#[tokio::test]
async fn deadline_and_cancellation_end_the_wait() {
    let clock = SimulatedClock::new();
    let store = store(closed_port().await, RetryOptions::for_commands(), &clock);
    let window = context().window;
    let deadline = Deadline::after(clock.clone(), Duration::from_secs(5));
    let failed = simulate(&clock, failure(&store, &Context::new(deadline, window.clone()))).await;
    assert_eq!(failed.reason(), Reason::DeadlineExceeded, "{failed}");
    assert_eq!(clock.now(), Duration::from_secs(5));

    let token = CancellationToken::new();
    let deadline = Deadline::none(clock.clone()).with_cancellation(token.clone());
    let context = Context::new(deadline, window);
    let (failed, ()) = tokio::join!(failure(&store, &context), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        token.cancel();
    });
    assert_eq!(failed.reason(), Reason::Cancelled, "{failed}");
    assert_eq!(clock.now(), Duration::from_secs(5), "it waited for no time to pass");
}

/// Deletes an object whose first request gets no response, in a bucket without versions. Returns the number of requests.
async fn delete_without_response(context: &Context) -> (Result<()>, usize) {
    let document = "<VersioningConfiguration/>";
    let versioning = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{document}", document.len());
    let (address, count) = service(vec![String::new(), versioning, FOUND.to_owned()]).await;
    let clock = SimulatedClock::new();
    let store = store(address, RetryOptions::for_commands(), &clock);
    let key = Address::parse("bucket", "key").unwrap();
    let deleted = simulate(&clock, store.delete(context, &key, Precondition::None)).await;
    (deleted.map(drop), count.load(Ordering::Relaxed))
}

#[tokio::test]
async fn change_of_unknown_outcome_is_repeated_only_if_the_caller_allows_it() {
    let (deleted, requests) = delete_without_response(&context()).await;
    // The second request asks for the versioning of the bucket.
    assert!(deleted.is_ok() && requests == 3, "{deleted:?}, {requests}");
    let cautious = context().with_on_unknown_outcome(OnUnknownOutcome::Fail);
    let (deleted, requests) = delete_without_response(&cautious).await;
    assert!(deleted.is_err_and(|e| e.reason() == Reason::Io) && requests == 1, "{requests}");
}

#[tokio::test]
async fn read_without_a_response_is_repeated_for_every_caller() {
    let (address, count) = service(vec![String::new(), FOUND.to_owned()]).await;
    let clock = SimulatedClock::new();
    let store = store(address, RetryOptions::for_commands(), &clock);
    let cautious = context().with_on_unknown_outcome(OnUnknownOutcome::Fail);
    let key = Address::parse("bucket", "key").unwrap();
    // Whether the response is a complete one does not matter here.
    let _ = simulate(&clock, store.head(&cautious, &key, GetRequest::default())).await;
    assert_eq!(count.load(Ordering::Relaxed), 2);
}
