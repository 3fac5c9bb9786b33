//! STS and the sign-on portal.

use super::{Setting, instance};
use crate::support::credential_service::{CredentialService, IssueReply, IssueRequest, LATER_MILLIS};

const KEYS: &str = "aws_access_key_id = base\naws_secret_access_key = hush\n";

/// Assumes every role; the key of the n-th response is `role-n`.
fn assume(request: &IssueRequest) -> IssueReply {
    IssueReply::assumed(request.field("Action"), &format!("role-{}", request.number))
}

/// The id and the scope of a signature.
fn signer(request: &IssueRequest) -> String {
    let credential = request.header("authorization").split_once("Credential=").map_or("", |(_, rest)| rest);
    let credential = credential.split(',').next().unwrap();
    let parts: Vec<&str> = credential.split('/').collect();
    match parts[..] {
        [id, _, region, service, _] => format!("{id} {region} {service}"),
        _ => "unsigned".to_owned(),
    }
}

#[test]
fn role_is_assumed_with_the_keys_of_its_source_profile() {
    let sts = CredentialService::start(assume);
    let config = format!(
        "[default]\nregion = eu-west-1\nrole_arn = arn:aws:iam::1:role/web\nsource_profile = base\n\
         external_id = a/b\nrole_session_name = me\nduration_seconds = 900\n[profile base]\n{KEYS}"
    );
    let setting = Setting::new(&config).with_variable("AWS_ENDPOINT_URL_STS", &sts.url());
    let issued = setting.issue();
    assert_eq!(issued.credentials.id, "role-1");
    assert_eq!(issued.credentials.token.as_deref(), Some("token-of-role-1"));
    assert_eq!(issued.expires.map(|expires| expires.millis()), Some(LATER_MILLIS));
    let request = &sts.requests()[0];
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/"));
    assert_eq!(signer(request), "base eu-west-1 sts");
    for (name, expected) in [
        ("Action", "AssumeRole"),
        ("Version", "2011-06-15"),
        ("RoleArn", "arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fweb"),
        ("RoleSessionName", "me"),
        ("ExternalId", "a%2Fb"),
        ("DurationSeconds", "900"),
    ] {
        assert_eq!(request.field(name), expected, "{name}");
    }
    assert_eq!(setting.issue().credentials.id, "role-2", "each renewal asks again");
}

/// The service plays the proxy: it receives the request in absolute form.
#[test]
fn role_is_requested_through_the_proxy_and_instance_metadata_is_not() {
    let proxy = CredentialService::start(assume);
    let metadata = CredentialService::start(instance(|_| IssueReply::keys("metadata", "s", Some("t"), None)));
    let config = "[default]\nrole_arn = arn\ncredential_source = Ec2InstanceMetadata\n";
    let setting = Setting::new(config)
        .with_variable("AWS_ENDPOINT_URL_STS", "http://sts.example")
        .with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url())
        .with_variable("http_proxy", &proxy.url());
    assert_eq!(setting.issue().credentials.id, "role-1");
    assert_eq!(proxy.requests()[0].target, "http://sts.example/");
}

#[test]
fn chained_role_is_assumed_with_the_keys_of_the_role_before() {
    let sts = CredentialService::start(assume);
    let config = format!(
        "[profile base]\n{KEYS}[profile a]\nrole_arn = arn:a\nsource_profile = base\n[default]\nrole_arn = arn:b\n\
         source_profile = a\nservices = ours\n[services ours]\nsts =\n  endpoint_url = {}\n",
        sts.url()
    );
    assert_eq!(Setting::new(&config).issue().credentials.id, "role-2");
    let requests = sts.requests();
    assert_eq!((requests[0].field("RoleArn"), requests[1].field("RoleArn")), ("arn%3Aa", "arn%3Ab"));
    assert_eq!((signer(&requests[0]), signer(&requests[1])), {
        ("base us-east-1 sts".to_owned(), "role-1 us-east-1 sts".to_owned())
    });
    assert_eq!(requests[1].header("x-amz-security-token"), "token-of-role-1");
    assert_eq!(
        (requests[1].field("RoleSessionName"), requests[1].field("DurationSeconds")),
        ("tradewind", "")
    );
}

#[test]
fn role_is_assumed_with_the_keys_of_its_credential_source() {
    let sts = CredentialService::start(assume);
    let metadata = CredentialService::start(instance(|_| IssueReply::keys("metadata", "s", Some("t"), None)));
    let container = CredentialService::start(|_| IssueReply::keys("container", "s", Some("t"), None));
    for (source, expected) in [
        ("Environment", "environment us-east-1 sts"),
        ("Ec2InstanceMetadata", "metadata us-east-1 sts"),
        ("EcsContainer", "container us-east-1 sts"),
    ] {
        let config = format!("[profile web]\nrole_arn = arn\ncredential_source = {source}\n");
        let mut setting = Setting::new(&config)
            .with_variable("AWS_ENDPOINT_URL_STS", &sts.url())
            .with_variable("AWS_ACCESS_KEY_ID", "environment")
            .with_variable("AWS_SECRET_ACCESS_KEY", "hush")
            .with_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url())
            .with_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI", &container.url());
        setting.inputs.profile = Some("web".to_owned());
        setting.issue();
        assert_eq!(signer(sts.requests().last().unwrap()), expected);
    }
}

#[test]
fn rejected_role_fails_with_the_reason_of_sts() {
    let sts = CredentialService::start(|request| match request.field("RoleArn") {
        "busy" => IssueReply::sts_error(400, "Throttling", "Rate exceeded"),
        "odd" => IssueReply::ok("<AssumeRoleResponse/>"),
        "html" => IssueReply::ok("<html></html>"),
        _ => IssueReply::sts_error(403, "AccessDenied", "User: base is not authorized"),
    });
    let prefix = "HOME/.aws/config:2: the role";
    for (role, expected, requests) in [
        (
            "arn",
            "arn cannot be assumed: POST / on HOST: 403 Forbidden (AccessDenied: User: base is not authorized); check \
             the role's trust policy, and that the caller may assume it",
            1,
        ),
        ("busy", "busy cannot be assumed: POST / on HOST: 400 Bad Request (Throttling: Rate exceeded)", 3),
        ("odd", "odd cannot be assumed: the response of STS has no credentials, or no valid expiration", 1),
        ("html", "html cannot be assumed: the store's response is not that of STS to AssumeRole", 1),
    ] {
        let before = sts.requests().len();
        let config = format!("[default]\nrole_arn = {role}\nsource_profile = base\n[profile base]\n{KEYS}");
        let setting = Setting::new(&config).with_variable("AWS_ENDPOINT_URL_STS", &sts.url());
        assert_eq!(setting.failure(&sts), format!("{prefix} {expected}"));
        assert_eq!(sts.requests().len() - before, requests, "{role}");
    }
}

#[test]
fn web_identity_reads_its_token_for_each_request() {
    let sts = CredentialService::start(assume);
    let config = "[profile web]\nweb_identity_token_file = ~/token\nrole_arn = arn:profile\n\
                  role_session_name = me\n";
    let setting = Setting::new(config)
        .with_variable("AWS_ENDPOINT_URL_STS", &sts.url())
        .with_variable("AWS_WEB_IDENTITY_TOKEN_FILE", "~/token")
        .with_variable("AWS_ROLE_ARN", "arn:environment")
        .with_file("token", "one\n");
    assert_eq!(setting.issue().credentials.id, "role-1");
    setting.write("token", "two");
    assert_eq!(setting.issue().credentials.id, "role-2");
    let mut setting = setting;
    setting.inputs.profile = Some("web".to_owned());
    setting.issue();
    let sent: Vec<_> = sts
        .requests()
        .iter()
        .map(|request| {
            assert_eq!(request.field("Action"), "AssumeRoleWithWebIdentity");
            assert_eq!(signer(request), "unsigned");
            ["WebIdentityToken", "RoleArn", "RoleSessionName"]
                .map(|name| request.field(name).to_owned())
                .join(" ")
        })
        .collect();
    assert_eq!(
        sent,
        ["one arn%3Aenvironment tradewind", "two arn%3Aenvironment tradewind", "two arn%3Aprofile me"]
    );
}

#[test]
fn rejected_web_identity_fails_without_its_token() {
    let sts =
        CredentialService::start(|_| IssueReply::sts_error(400, "ExpiredTokenException", "Token expired"));
    let setting = Setting::new("[default]\nweb_identity_token_file = ~/token\nrole_arn = arn\n")
        .with_variable("AWS_ENDPOINT_URL_STS", &sts.url());
    let missing = "HOME/.aws/config:2: cannot read the token in HOME/token";
    assert_eq!(setting.failure(&sts), format!("{missing}: No such file or directory (os error 2)"));
    setting.write("token", " \n");
    assert_eq!(setting.failure(&sts), format!("{missing}: the file is empty"));
    setting.write("token", "hush");
    assert_eq!(
        setting.failure(&sts),
        "HOME/.aws/config:2: the role arn cannot be assumed: POST / on HOST: 400 Bad Request (ExpiredTokenException: \
         Token expired); get a new token or new source credentials"
    );
}

/// The file of the token, named after the session or the start URL.
const SESSION_FILE: &str = ".aws/sso/cache/e274eeff768c6396088ec6eb091f4bf4d47ab1e0.json";
const LEGACY_FILE: &str = ".aws/sso/cache/b1cd59fdb1bf6dd82462b29a459d769bd127bb65.json";
const SESSION: &str = "[default]\nsso_account_id = 1234\nsso_role_name = Read Only\nsso_session = work\n\
                       [sso-session work]\nsso_region = eu-west-1\nsso_start_url = https://start.example.com\n";
const LEGACY: &str = "[default]\nsso_account_id = 1234\nsso_role_name = Read Only\nsso_region = eu-west-1\n\
                      sso_start_url = https://start.example.com\n";

fn token(token: &str, expires: &str) -> String {
    format!("{{\"accessToken\": {token:?}, \"expiresAt\": {expires:?}}}")
}

fn portal(request: &IssueRequest) -> IssueReply {
    if request.header("x-amz-sso_bearer_token") != "valid" {
        return IssueReply::Respond(401, "{\"message\": \"Session token not found or invalid\"}".to_owned());
    }
    IssueReply::ok(format!(
        "{{\"roleCredentials\": {{\"accessKeyId\": \"sso\", \"secretAccessKey\": \"s\", \"sessionToken\": \"t\", \
         \"expiration\": {LATER_MILLIS}}}}}"
    ))
}

#[test]
fn sign_on_exchanges_the_cached_token() {
    for (config, file, expires) in
        [(SESSION, SESSION_FILE, "2100-01-01T00:00:00Z"), (LEGACY, LEGACY_FILE, "2100-01-01T00:00:00UTC")]
    {
        let service = CredentialService::start(portal);
        let setting = Setting::new(config)
            .with_variable("AWS_ENDPOINT_URL_SSO", &service.url())
            .with_file(file, &token("valid", expires));
        let issued = setting.issue();
        assert_eq!((issued.credentials.id.as_str(), issued.credentials.token.as_deref()), ("sso", Some("t")));
        assert_eq!(issued.expires.map(|expires| expires.millis()), Some(LATER_MILLIS));
        let requests = service.requests();
        assert_eq!(requests[0].target, "/federation/credentials?role_name=Read%20Only&account_id=1234");
        assert_eq!(requests[0].method, "GET");
    }
}

#[test]
fn expired_sign_on_fails_with_the_command_to_run() {
    let service = CredentialService::start(portal);
    let setting = Setting::new(SESSION).with_variable("AWS_ENDPOINT_URL_SSO", &service.url());
    let run = "run \"aws sso login --profile default\"";
    let fails = |text: Option<String>, expected: &str| {
        if let Some(text) = text {
            setting.write(SESSION_FILE, &text);
        }
        assert_eq!(setting.failure(&service), format!("HOME/.aws/config:2: {expected}; {run}"));
    };
    fails(
        None,
        &format!("there is no access token in HOME/{SESSION_FILE} (No such file or directory (os error 2))"),
    );
    fails(Some("hush".to_owned()), &format!("HOME/{SESSION_FILE} has no valid access token"));
    fails(Some(token("hush", "2020-01-01T00:00:00Z")), "the access token has expired");
    assert_eq!(service.requests().len(), 0);
    fails(
        Some(token("hush", "2100-01-01T00:00:00Z")),
        "the access token is not valid any more (GET /federation/credentials on HOST: 401 Unauthorized (Session token \
         not found or invalid))",
    );
}
