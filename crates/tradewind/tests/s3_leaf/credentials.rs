//! Credentials that expire while they are in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tradewind_backend::s3::{CredentialIssuer, ExpiringCredentials, S3Store};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore, Timestamp};
use tradewind_wire::sigv4::Credentials;

use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

/// Issues `token-2`, `token-3` and so on.
#[derive(Debug, Default)]
struct Counting {
    times: AtomicU64,
    /// Lifetime of each token.
    life: Option<Duration>,
    /// The last token that is issued; later calls return it again.
    last: Option<u64>,
    /// Each call fails.
    is_broken: bool,
}

fn issued(n: u64, life: Option<Duration>) -> ExpiringCredentials {
    let token = Some(format!("token-{n}"));
    let credentials = Credentials { id: "id".to_owned(), secret: "secret".to_owned(), token };
    ExpiringCredentials { credentials, expires: life.map(|life| Timestamp::from(SystemTime::now() + life)) }
}

#[async_trait]
impl CredentialIssuer for Counting {
    async fn issue(&self) -> Result<ExpiringCredentials> {
        let n = self.times.fetch_add(1, Ordering::Relaxed) + 2;
        // Time for concurrent requests to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        if self.is_broken {
            return Err(Error::new(Reason::AccessDenied, "the program fails"));
        }
        Ok(issued(n.min(self.last.unwrap_or(n)), self.life))
    }
}

fn leaf(server: &ScriptedServer, first: ExpiringCredentials, issuer: &Arc<Counting>) -> Arc<S3Store> {
    crate::leaf_over(server.address, |options| {
        options.credentials = Some(first.credentials);
        options.expires = first.expires;
        options.issuer = Some(issuer.clone());
    })
}

fn token(request: &Request) -> &str {
    request.header("x-amz-security-token")
}

fn expired() -> Reply {
    Reply::Respond(ScriptedResponse::error(400, "ExpiredToken", "The provided token has expired."))
}

/// Sends 20 concurrent reads. Returns the first failure, if any.
async fn read_together(store: &Arc<S3Store>) -> Result<()> {
    let reads = (0..20).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let address = Address::parse(BUCKET, "x").unwrap();
            store.head(&context(), &address, GetRequest::default()).await.map(drop)
        })
    });
    for read in futures::future::join_all(reads).await {
        read.unwrap()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_credentials_are_renewed_once() {
    let server =
        ScriptedServer::start(
            |request, answer| {
                if token(request) == "token-1" { expired() } else { Reply::Respond(answer) }
            },
        );
    server.put_object("x", b"bytes".to_vec());
    let issuer = Arc::new(Counting::default());
    let store = leaf(&server, issued(1, None), &issuer);
    read_together(&store).await.unwrap();
    assert_eq!(issuer.times.load(Ordering::Relaxed), 1);
    read_together(&store).await.unwrap();
    assert_eq!(issuer.times.load(Ordering::Relaxed), 1, "the new ones are valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn expiring_credentials_are_renewed_once() {
    let server = ScriptedServer::start(|_, answer| Reply::Respond(answer));
    server.put_object("x", b"bytes".to_vec());
    let issuer = Arc::new(Counting { life: Some(Duration::from_secs(3600)), ..Counting::default() });
    let store = leaf(&server, issued(1, Some(Duration::from_millis(1000))), &issuer);
    read_together(&store).await.unwrap();
    assert_eq!(issuer.times.load(Ordering::Relaxed), 0, "they are still valid");
    tokio::time::sleep(Duration::from_millis(950)).await;
    let before = server.requests().len();
    read_together(&store).await.unwrap();
    assert_eq!(issuer.times.load(Ordering::Relaxed), 1);
    assert!(server.requests()[before..].iter().all(|request| token(request) == "token-2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_is_final_without_other_credentials() {
    let server = ScriptedServer::start(|_, _| expired());
    let issuer = Arc::new(Counting { last: Some(1), ..Counting::default() });
    let store = leaf(&server, issued(1, None), &issuer);
    let address = Address::parse(BUCKET, "x").unwrap();
    let failed = store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::AccessDenied);
    assert!(failed.message().contains("ExpiredToken"), "{failed}");
    assert_eq!((server.requests().len(), issuer.times.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_new_credentials_are_not_renewed_again() {
    let server = ScriptedServer::start(|_, _| expired());
    let issuer = Arc::new(Counting::default());
    let store = leaf(&server, issued(1, None), &issuer);
    let address = Address::parse(BUCKET, "x").unwrap();
    store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_renewal_is_tolerated_before_expiry() {
    let server = ScriptedServer::start(|_, answer| Reply::Respond(answer));
    server.put_object("x", b"bytes".to_vec());
    let issuer = Arc::new(Counting { is_broken: true, ..Counting::default() });
    let store = leaf(&server, issued(1, Some(Duration::from_millis(1500))), &issuer);
    tokio::time::sleep(Duration::from_millis(1400)).await;
    read_together(&store).await.unwrap();
    assert_eq!(issuer.times.load(Ordering::Relaxed), 1, "it is not retried at once");
}

/// End to end: a program in the profile, and a command with many concurrent requests.
#[test]
fn credential_process_runs_again_after_expiry() {
    let server = ScriptedServer::start(|request, answer| {
        if token(request) == "token-1" && request.number > 2 { expired() } else { Reply::Respond(answer) }
    });
    let mut caller = CommandRunner::new(server.address);
    caller.environment.retain(|(name, _)| !name.contains("KEY"));
    caller.write("issue", "#!/bin/sh\necho x >> \"$1\"\nn=$(wc -l < \"$1\" | tr -d ' ')\n\
        echo '{\"Version\":1,\"AccessKeyId\":\"id\",\"SecretAccessKey\":\"secret\",\"SessionToken\":\"token-'$n'\"}'\n");
    let (program, count) = (caller.path("issue"), caller.path("count"));
    let process = format!("credential_process = sh {} {}\n", program.display(), count.display());
    caller.write("home/.aws/config", format!("[default]\n{process}"));
    for n in 0..40 {
        caller.write(format!("tree/{n}"), vec![7; if n % 8 == 0 { 300_000 } else { 100 }]);
    }
    caller.run_ok(&["cp", "-r", "tree", "s3://bucket"]);
    assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 2);
    for n in 0..40 {
        assert_eq!(server.object(&n.to_string()).unwrap().len(), if n % 8 == 0 { 300_000 } else { 100 });
    }
}
