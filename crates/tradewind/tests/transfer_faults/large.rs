//! Faults during transfers of large objects: expired credentials, parts that cannot be listed, and a replaced source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{content, scene};
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};

const PART: usize = 5 << 20;
const UPLOAD: [&str; 7] = ["cp", "--chunk-size", "5MiB", "--concurrency", "1", "here", "s3://bucket/x"];

/// A server that rejects expired credentials after the first part, until the returned flag is set.
fn with_expiring_credentials(
    after: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, CommandRunner, Arc<AtomicBool>) {
    let is_good = Arc::new(AtomicBool::new(false));
    let good = is_good.clone();
    let (server, caller) = scene(move |request, answer| {
        if good.load(Ordering::Relaxed) {
            after(request, answer)
        } else if request.operation == "UploadPart" && request.number > 1 {
            Reply::Respond(ScriptedResponse::error(400, "ExpiredToken", "The provided token has expired."))
        } else {
            Reply::Respond(answer)
        }
    });
    (server, caller, is_good)
}

fn numbers(server: &ScriptedServer) -> Vec<String> {
    server.requests_of("UploadPart").iter().map(|request| request.query["partNumber"].clone()).collect()
}

#[test]
fn expired_credentials_do_not_discard_stored_parts() {
    let (server, caller, is_good) = with_expiring_credentials(|_, answer| Reply::Respond(answer));
    let bytes = content(1, 3 * PART + 1000);
    caller.write("here", &bytes);
    let message = "here: PUT s3://bucket/x on HOST: The provided token has expired (ExpiredToken); get new temporary credentials";
    caller.run_failing(&UPLOAD, &[message]);
    assert!(server.requests_of("AbortMultipartUpload").is_empty(), "{:?}", server.request_counts());
    let before = numbers(&server).len();
    is_good.store(true, Ordering::Relaxed);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    let (stored, mut sent) = (numbers(&server)[0].clone(), numbers(&server).split_off(before));
    assert!(!sent.contains(&stored), "part {stored} is stored already");
    sent.push(stored);
    sent.sort();
    assert_eq!(sent, ["1", "2", "3", "4"]);
    assert_eq!(server.requests_of("CreateMultipartUpload").len(), 1);
}

/// Without permission to list parts, the upload restarts from scratch.
#[test]
fn upload_restarts_if_parts_cannot_be_listed() {
    let (server, caller, is_good) = with_expiring_credentials(|request, answer| {
        Reply::Respond(match request.operation {
            "ListParts" => ScriptedResponse::error(403, "AccessDenied", "Access Denied"),
            _ => answer,
        })
    });
    let bytes = content(1, 3 * PART + 1000);
    caller.write("here", &bytes);
    assert!(!caller.run(&UPLOAD).status.success());
    let before = numbers(&server).len();
    is_good.store(true, Ordering::Relaxed);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    let mut sent = numbers(&server).split_off(before);
    sent.sort();
    assert_eq!(sent, ["1", "2", "3", "4"]);
    assert_eq!(
        (server.requests_of("CreateMultipartUpload").len(), server.requests_of("AbortMultipartUpload").len()),
        (2, 1)
    );
}

/// More than S3 copies in one request: thirteen parts. The scripted store does not save their data.
const LARGE: &str = "6710886401";

/// A server whose source object is replaced after `replaced_after` parts.
fn replaced_source(replaced_after: usize) -> (ScriptedServer, CommandRunner) {
    scene(move |request, answer| {
        Reply::Respond(match request.operation {
            "HeadObject" => answer.with_header("Content-Length", LARGE),
            "UploadPart" if request.number > replaced_after => {
                ScriptedResponse::error(412, "PreconditionFailed", "At least one precondition did not hold.")
            }
            "UploadPart" => {
                ScriptedResponse::document("<CopyPartResult><ETag>\"part\"</ETag></CopyPartResult>")
            }
            _ => answer,
        })
    })
}

#[test]
fn large_copy_is_pinned_to_one_version() {
    for replaced_after in [usize::MAX, 4, 0] {
        let (server, caller) = replaced_source(replaced_after);
        server.put_object("source", b"bytes".to_vec());
        let tag = server.etag("source");
        let ran = caller.run(&["cp", "s3://bucket/source", "s3://bucket/x"]);
        let parts = server.requests_of("UploadPart");
        assert!(!parts.is_empty());
        assert!(
            parts.iter().all(|part| part.header("x-amz-copy-source-if-match") == tag),
            "each part is pinned to the version"
        );
        let ends = (
            server.requests_of("CompleteMultipartUpload").len(),
            server.requests_of("AbortMultipartUpload").len(),
        );
        if replaced_after == usize::MAX {
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!((parts.len(), ends), (13, (1, 0)));
            let last = parts.iter().find(|part| part.query["partNumber"] == "13").unwrap();
            assert_eq!(last.header("x-amz-copy-source-range"), "bytes=6442450944-6710886400");
        } else {
            assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{ran:?}");
            assert!(ran.err.contains("PreconditionFailed"), "{}", ran.err);
            assert_eq!(ends, (0, 1), "no object is created from two versions");
        }
    }
}

/// Virtual-hosted addressing, set in the AWS configuration file.
#[test]
fn virtual_hosted_addressing_puts_the_bucket_in_the_host() {
    let (server, caller) = scene(|_, answer| Reply::Respond(answer));
    let port = server.address.port();
    let caller = caller.with_variable("AWS_ENDPOINT_URL_S3", &format!("http://localhost:{port}"));
    caller.write("home/.aws/config", "[default]\ns3 =\n  addressing_style = virtual\n");
    caller.run_ok(&["ls", "s3://bucket"]);
    let seen = server.requests();
    assert_eq!((seen.len(), seen[0].operation), (1, "ListObjectsV2"));
    assert_eq!(seen[0].header("host"), format!("bucket.localhost:{port}"));
}
