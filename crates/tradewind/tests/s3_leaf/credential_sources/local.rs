//! Services of the machine: the container's endpoint and instance metadata.

use std::time::{Duration, Instant};

use super::{Setting, instance};
use crate::support::credential_service::{CredentialService, IssueReply, LATER_MILLIS};

#[test]
fn container_credentials_are_issued_with_the_current_token() {
    let service = CredentialService::start(|request| {
        IssueReply::keys(&format!("container-{}", request.number), "s", Some("t"), None)
    });
    let setting = Setting::new("")
        .with_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{}/creds?id=1", service.url()))
        .with_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN", "plain");
    assert_eq!(setting.issue().credentials.id, "container-1");
    let setting = setting
        .with_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "~/token")
        .with_file("token", "one\n");
    setting.issue();
    setting.write("token", "two");
    let issued = setting.issue();
    assert_eq!(issued.expires.map(|expires| expires.millis()), Some(LATER_MILLIS));
    let requests = service.requests();
    let sent: Vec<&str> = requests.iter().map(|request| request.header("authorization")).collect();
    assert_eq!(sent, ["plain", "one", "two"]);
    assert!(requests.iter().all(|request| request.target == "/creds?id=1" && request.method == "GET"));
}

#[test]
fn failing_container_endpoint_is_named() {
    let service = CredentialService::start(|request| match request.target.as_str() {
        "/busy" => IssueReply::Respond(500, String::new()),
        "/odd" => IssueReply::ok("{\"AccessKeyId\": \"hush\"}"),
        _ => IssueReply::Respond(403, "{\"code\": \"Denied\", \"message\": \"no\"}".to_owned()),
    });
    let variable = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    for (path, expected, requests) in [
        ("/x", "GET /x on HOST: 403 Forbidden (Denied: no)", 1),
        ("/busy", "GET /busy on HOST: 500 Internal Server Error", 3),
        ("/odd", "the container's endpoint http://HOST sent credentials without SecretAccessKey", 1),
    ] {
        let before = service.requests().len();
        let setting = Setting::new("").with_variable(variable, &format!("{}{path}", service.url()));
        assert_eq!(setting.failure(&service), format!("{variable}: {expected}"));
        assert_eq!(service.requests().len() - before, requests, "{path}");
    }
    let setting = Setting::new("")
        .with_variable(variable, &service.url())
        .with_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hu\nsh");
    assert_eq!(
        setting.failure(&service),
        format!("{variable}: the authorization token contains a line break or another control character")
    );
}

#[test]
fn instance_metadata_is_requested_with_a_session_token() {
    let service = CredentialService::start(instance(|_| IssueReply::keys("i", "s", Some("t"), None)));
    let setting = Setting::new("").with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url());
    let issued = setting.issue();
    assert_eq!((issued.credentials.id.as_str(), issued.credentials.token.as_deref()), ("i", Some("t")));
    assert_eq!(issued.expires.map(|expires| expires.millis()), Some(LATER_MILLIS));
    let requests = service.requests();
    let sent: Vec<String> = requests.iter().map(|sent| format!("{} {}", sent.method, sent.target)).collect();
    let path = "/latest/meta-data/iam/security-credentials/";
    assert_eq!(sent, ["PUT /latest/api/token".to_owned(), format!("GET {path}"), format!("GET {path}web")]);
    assert_eq!(requests[0].header("x-aws-ec2-metadata-token-ttl-seconds"), "60");
}

/// The service returns expired credentials while it cannot renew them; S3 accepts these.
#[test]
fn expired_instance_credentials_are_used_for_a_while() {
    let service = CredentialService::start(instance(|_| {
        IssueReply::keys("i", "s", Some("t"), Some("2020-01-01T00:00:00Z"))
    }));
    let setting = Setting::new("").with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url());
    let expires = setting.issue().expires.unwrap().to_system_time();
    let left = expires.duration_since(std::time::SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(300), "{left:?}");
}

#[test]
fn absent_instance_metadata_means_no_credentials() {
    let silent = CredentialService::start(|_| IssueReply::Silence);
    let old = CredentialService::start(|_| IssueReply::Respond(404, String::new()));
    let roleless = CredentialService::start(|request| match request.method.as_str() {
        "PUT" => IssueReply::ok("session"),
        _ => IssueReply::Respond(404, String::new()),
    });
    let untrusted = CredentialService::start(instance(|_| {
        IssueReply::ok(
            "{\"Code\": \"AssumeRoleUnauthorizedAccess\", \"Message\": \"EC2 cannot assume the role\"}",
        )
    }));
    let places = "AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, HOME/.aws/credentials, HOME/.aws/config (profile \
                  default), AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, AWS_CONTAINER_CREDENTIALS_FULL_URI";
    for (service, expected) in [
        (&silent, "HOST did not answer within 1 s"),
        (&old, "PUT /latest/api/token on HOST: 404 Not Found"),
        (
            &roleless,
            "GET /latest/meta-data/iam/security-credentials/ on HOST: 404 Not Found; the instance has no role: attach \
             an instance profile",
        ),
        (
            &untrusted,
            "the instance metadata service http://HOST has no credentials of the role web \
             (\"AssumeRoleUnauthorizedAccess\"); check its trust policy",
        ),
    ] {
        let setting = Setting::new("").with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url());
        let started = Instant::now();
        let searched = setting.searched().replace(&service.address.to_string(), "HOST");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        // Of the two timeouts of one second, either may end first.
        let searched = searched.replace("PUT /latest/api/token on HOST: no response", "HOST did not answer");
        let searched = searched.replace("http://HOST did not", "HOST did not");
        assert_eq!(searched, format!("{places} and the instance metadata service ({expected})"));
        let disabled = setting.with_variable("AWS_EC2_METADATA_DISABLED", "true");
        let before = service.requests().len();
        let excluded = "AWS_EC2_METADATA_DISABLED excludes the instance metadata service";
        assert_eq!(disabled.searched(), format!("{places}; {excluded}"));
        assert_eq!(service.requests().len(), before, "it is not asked");
    }
}

#[test]
fn instance_metadata_is_retried_as_configured() {
    let service = CredentialService::start(|_| IssueReply::Respond(503, String::new()));
    let ask = |setting: Setting| {
        let before = service.requests().len();
        setting.with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url()).searched();
        service.requests().len() - before
    };
    let patient = [("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "3"), ("AWS_METADATA_SERVICE_TIMEOUT", "5")];
    let setting = patient.iter().fold(Setting::new(""), |all, (name, value)| all.with_variable(name, value));
    assert_eq!(ask(setting), 3);
    assert_eq!(ask(Setting::new("").with_variable("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")), 1);
}

#[test]
fn failing_issuers_are_waited_out() {
    for failure in [
        IssueReply::Respond(500, String::new()),
        IssueReply::Respond(503, String::new()),
        IssueReply::Respond(429, String::new()),
        IssueReply::Close,
    ] {
        let container = CredentialService::start({
            let failure = failure.clone();
            move |request| match request.number {
                1..=4 if !matches!(failure, IssueReply::Respond(500, _)) => failure.clone(),
                1 => failure.clone(),
                _ => IssueReply::keys("i", "s", Some("t"), None),
            }
        });
        let setting = Setting::new("").with_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI", &container.url());
        assert_eq!(setting.issue().credentials.id, "i", "{failure:?}");

        // No answer to the first request means that there is no such service.
        let first = if matches!(failure, IssueReply::Close) { 2 } else { 1 };
        let reply = instance(|_| IssueReply::keys("i", "s", Some("t"), None));
        let metadata = CredentialService::start({
            let failure = failure.clone();
            move |request| if request.number == first { failure.clone() } else { reply(request) }
        });
        let setting = Setting::new("").with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url());
        assert_eq!(setting.issue().credentials.id, "i", "{failure:?}");
        assert_eq!(metadata.requests().len(), 4, "{failure:?}");
    }
}
