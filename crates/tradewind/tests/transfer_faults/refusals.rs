//! Permanent errors of the store: reported in one line with advice, and not retried.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::{content, files, scene};
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{Reply, ScriptedResponse};

/// Status, code, message and extra elements of a store's error, and the advice in our message.
const REFUSALS: [(u16, &str, &str, &str, &str); 5] = [
    (
        400,
        "AuthorizationHeaderMalformed",
        "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-central-1'",
        "<Region>eu-central-1</Region>",
        "; the bucket is in region eu-central-1: set AWS_REGION or the store's region",
    ),
    (
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
        "<MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>",
        "; set this machine's clock",
    ),
    (400, "ExpiredToken", "The provided token has expired.", "", "; get new temporary credentials"),
    (403, "AccessDenied", "Access Denied", "<HostId>host</HostId>", ""),
    (
        301,
        "PermanentRedirect",
        "The bucket you are attempting to access must be addressed using the specified endpoint.",
        "<Endpoint>bucket.s3.eu-west-1.amazonaws.com</Endpoint>",
        "; check the region and the endpoint",
    ),
];

#[test]
fn permanent_errors_take_one_line_and_are_not_retried() {
    for (status, code, message, more, advice) in REFUSALS {
        let expected = format!("{} ({code}){advice}", message.trim_end_matches('.'));
        let commands: [(&[&str], &str); 6] = [
            (&["ls", "s3://bucket"], "GET s3://bucket on HOST"),
            (&["cat", "s3://bucket/x"], "GET s3://bucket/x on HOST"),
            (&["cp", "s3://bucket/x", "there"], "GET s3://bucket/x on HOST"),
            (&["cp", "small", "s3://bucket/x"], "small: PUT s3://bucket/x on HOST"),
            (&["cp", "large", "s3://bucket/x"], "large: PUT s3://bucket/x on HOST"),
            (&["rm", "s3://bucket/x"], "DELETE s3://bucket/x on HOST"),
        ];
        for (command, what) in commands {
            let (server, caller) =
                scene(move |_, _| Reply::Respond(ScriptedResponse::error_with(status, code, message, more)));
            caller.write("small", content(1, 1000));
            caller.write("large", content(1, 1 << 20));
            caller.run_failing(command, &[&format!("{what}: {expected}")]);
            // A region in the error leads to one retry there.
            let attempts = if more.contains("<Region>") { 2 } else { 1 };
            assert_eq!(server.requests().len(), attempts, "{:?}", server.request_counts());
            assert_eq!(files(&caller), ["large", "small"]);
        }
    }
}

/// The message names where credentials were looked for, but only if access is denied.
#[test]
fn unsigned_request_that_is_denied_names_the_missing_credentials() {
    let (_server, caller) = scene(|request, answer| match request.key.as_str() {
        "denied" => Reply::Respond(ScriptedResponse::error(403, "AccessDenied", "Access Denied")),
        _ => Reply::Respond(answer),
    });
    let caller = caller.with_variable("AWS_ACCESS_KEY_ID", "").with_variable("AWS_SECRET_ACCESS_KEY", "");
    let home = caller.path("home").display().to_string();
    let what = "GET s3://bucket/denied on HOST: Access Denied (AccessDenied); the request was not signed";
    let searched = format!(
        "AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, {home}/.aws/credentials, {home}/.aws/config (profile \
         default), AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, AWS_CONTAINER_CREDENTIALS_FULL_URI; \
         AWS_EC2_METADATA_DISABLED excludes the instance metadata service"
    );
    caller.run_failing(
        &["cat", "s3://bucket/denied"],
        &[&format!("{what} because no credentials were found in {searched}")],
    );
    caller.run_failing(
        &["cat", "--no-sign-request", "s3://bucket/denied"],
        &[&format!("{what} as --no-sign-request asks")],
    );
    let missing = "GET s3://bucket/x on HOST: The specified key does not exist (NoSuchKey)";
    caller.run_failing(&["cat", "s3://bucket/x"], &[missing]);
}

/// An https endpoint whose port speaks HTTP.
#[test]
fn https_to_a_port_that_speaks_http_names_the_scheme() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let url = format!("https://{address}");
    let caller = CommandRunner::new(address).with_variable("AWS_ENDPOINT_URL_S3", &url);
    let start = Instant::now();
    caller.run_failing(&["cat", "s3://bucket/x"], &["HOST does not speak TLS; try http://HOST"]);
    assert!(start.elapsed() < Duration::from_secs(5), "it is not retried");
}

/// An error of one object does not prevent the transfer of others.
#[test]
fn failure_of_one_object_does_not_stop_the_others() {
    let (server, caller) = scene(|request, answer| {
        Reply::Respond(match request.key.as_str() {
            "e" => ScriptedResponse::error(403, "AccessDenied", "Access Denied"),
            _ => answer,
        })
    });
    let keys = ["a", "b", "d/c", "e", "f"];
    keys.iter().for_each(|key| server.put_object(key, key.as_bytes().to_vec()));
    let expected = "GET s3://bucket/e on HOST: Access Denied (AccessDenied)";
    caller.run_failing(&["cp", "-r", "s3://bucket", "there"], &[expected]);
    assert_eq!(files(&caller), ["there/a", "there/b", "there/d/c", "there/f"]);
    caller.write("there/e", "mine");
    let expected = "PUT s3://bucket/e on HOST: Access Denied (AccessDenied)";
    caller.run_failing(&["sync", "there", "s3://bucket"], &[expected]);
    assert_eq!((server.object("e").unwrap(), server.object("f").unwrap()), (b"e".to_vec(), b"f".to_vec()));
}

/// A response that is no S3 error is reported by its status.
#[test]
fn error_without_an_s3_body_is_reported_by_status() {
    let (_server, caller) = scene(|_, _| {
        Reply::Respond(ScriptedResponse {
            status: 403,
            headers: Vec::new(),
            body: b"<html>No</html".to_vec(),
        })
    });
    caller.run_failing(
        &["cat", "s3://bucket/x"],
        &["GET s3://bucket/x on HOST: access is denied (403 Forbidden)"],
    );
}
