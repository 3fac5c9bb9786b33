//! Commands that use and renew issued credentials.

use super::instance;
use crate::support::command_runner::CommandRunner;
use crate::support::credential_service::{CredentialService, IssueReply, LATER};
use crate::support::scripted_server::{Reply, ScriptedResponse, ScriptedServer};
use crate::support::server::root_key;
use crate::support::test_store::TestStore;

/// A runner without keys.
fn without_keys(mut runner: CommandRunner) -> CommandRunner {
    runner.environment.retain(|(name, _)| !name.contains("KEY"));
    runner.with_variable("AWS_EC2_METADATA_DISABLED", "false")
}

#[test]
fn commands_use_the_credentials_of_the_instance() {
    let store = TestStore::new();
    let root = root_key();
    let service =
        CredentialService::start(instance(move |_| IssueReply::keys(&root.id, &root.secret, None, None)));
    let runner = CommandRunner::new(store.runner.endpoint())
        .with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url());
    let runner = without_keys(runner);
    runner.write("tree/a", "bytes");
    runner.run_ok(&["cp", "-r", "--quiet", "tree", "s3://bucket/tree"]);
    assert_eq!(runner.keys("s3://bucket"), ["tree/a"]);
    assert_eq!(service.requests().len(), 6, "three for each command");
}

/// The first credentials have already expired, so they are renewed before the first request.
#[test]
fn expiring_credentials_of_a_container_are_renewed_before_use() {
    let service = CredentialService::start(|request| {
        let expires = if request.number == 1 { "2020-01-01T00:00:00Z" } else { LATER };
        IssueReply::keys("id", "secret", Some(&format!("token-{}", request.number)), Some(expires))
    });
    let server = ScriptedServer::start(|_, answer| Reply::Respond(answer));
    server.put_object("x", b"bytes".to_vec());
    let runner = CommandRunner::new(server.address)
        .with_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI", &service.url())
        .with_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN", "a");
    let runner = without_keys(runner);
    assert_eq!(runner.read("s3://bucket/x"), b"bytes");
    assert_eq!(service.requests().len(), 2);
    let requests = server.requests();
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|request| request.header("x-amz-security-token") == "token-2"));
}

#[test]
fn rejected_credentials_of_a_role_are_renewed() {
    let sts = CredentialService::start(|request| {
        IssueReply::assumed("AssumeRoleWithWebIdentity", &format!("role-{}", request.number))
    });
    let server = ScriptedServer::start(|request, answer| match request.header("x-amz-security-token") {
        "token-of-role-1" => {
            let message = "The provided token has expired.";
            Reply::Respond(ScriptedResponse::error(400, "ExpiredToken", message))
        }
        _ => Reply::Respond(answer),
    });
    server.put_object("x", b"bytes".to_vec());
    let runner = CommandRunner::new(server.address)
        .with_variable("AWS_ENDPOINT_URL_STS", &sts.url())
        .with_variable("AWS_ROLE_ARN", "arn")
        .with_variable("AWS_WEB_IDENTITY_TOKEN_FILE", "token");
    let runner = without_keys(runner);
    runner.write("token", "web");
    assert_eq!(runner.read("s3://bucket/x"), b"bytes");
    assert_eq!(sts.requests().len(), 2);
}

#[test]
fn failing_source_fails_the_command() {
    let server = ScriptedServer::start(|_, answer| Reply::Respond(answer));
    let sts = CredentialService::start(|_| IssueReply::sts_error(403, "AccessDenied", "not authorized"));
    let runner = CommandRunner::new(server.address)
        .with_variable("AWS_ENDPOINT_URL_STS", &sts.url())
        .with_variable("AWS_ROLE_ARN", "arn")
        .with_variable("AWS_WEB_IDENTITY_TOKEN_FILE", "token");
    let runner = without_keys(runner);
    runner.write("token", "hush");
    let failed = runner.run(&["ls", "s3://bucket"]);
    let expected = "AWS_WEB_IDENTITY_TOKEN_FILE: the role arn cannot be assumed: POST / on ";
    assert!(failed.err.contains(expected) && !failed.err.contains("hush"), "{failed:?}");
    assert!(!failed.status.success());
    assert!(server.requests().is_empty(), "nothing is requested without them");
    runner.run_ok(&["ls", "--no-sign-request", "s3://bucket"]);
    assert_eq!(sts.requests().len(), 1);
}
