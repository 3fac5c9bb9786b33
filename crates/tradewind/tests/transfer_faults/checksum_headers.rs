//! Transfers with a store that refuses checksum headers, and settings that omit them.

use serde_json::Value as Json;
use tradewind_core::{Algorithm, Checksum};

use super::{content, scene};
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};

/// An object of two parts.
const PARTS: usize = (5 << 20) + 1000;

fn checksum_header(request: &Request) -> Option<&String> {
    request.headers.keys().find(|name| name.starts_with("x-amz-checksum-") || *name == "x-amz-trailer")
}

/// The response of a store without checksums, whose ETags are MD5s.
fn plain(request: &Request, answer: ScriptedResponse) -> ScriptedResponse {
    let answer = answer.without_header("x-amz-checksum-crc64nvme").without_header("x-amz-checksum-type");
    let is_write = matches!(request.operation, "PutObject" | "UploadPart");
    if !is_write || answer.status != 200 {
        return answer;
    }
    let md5 = Checksum::compute(Algorithm::Md5, &request.body);
    answer.with_header("ETag", &format!("\"{}\"", hex::encode(md5.bytes())))
}

/// A store that refuses checksum headers.
fn refusing() -> (ScriptedServer, CommandRunner) {
    scene(|request, answer| {
        Reply::Respond(match checksum_header(request) {
            Some(header) => {
                let message = format!("Unsupported header '{header}' received for this API call.");
                ScriptedResponse::error(400, "InvalidArgument", &message)
            }
            None => plain(request, answer),
        })
    })
}

#[test]
fn refusing_store_can_be_used() {
    let (server, caller) = refusing();
    let (small, large) = (content(1, 1000), content(2, PARTS));
    caller.write("tree/small", &small);
    caller.write("tree/large", &large);
    caller.run_ok(&["cp", "-r", "--chunk-size", "1MiB", "tree", "s3://bucket/"]);
    assert!(server.object("small").unwrap() == small && server.object("large").unwrap() == large);
    caller.run_ok(&["cp", "-r", "--chunk-size", "1MiB", "s3://bucket", "back"]);
    for (name, bytes) in [("small", small), ("large", large)] {
        assert!(std::fs::read(caller.path("back").join(name)).unwrap() == bytes, "{name}");
    }
    let stat = caller.stat("s3://bucket/small");
    assert_eq!(stat["size"], 1000, "{stat}");
    assert!(caller.run_ok(&["sync", "tree", "s3://bucket/"]).is_empty());
}

#[test]
fn summary_says_what_was_verified_instead() {
    let (_server, caller) = refusing();
    let summary = |arguments: &[&str]| -> Json {
        serde_json::from_str(&caller.run_ok(&[&["cp", "--json", "--chunk-size", "1MiB"], arguments].concat()))
            .unwrap()
    };
    let proofs = |summary: &Json| summary["stores"][0]["without_checksum_headers"].clone();
    caller.write("small", content(1, 1000));
    caller.write("large", content(2, PARTS));
    let sent = summary(&["small", "s3://bucket/small"]);
    assert_eq!(proofs(&sent), serde_json::json!({"content_md5": 1, "etag": 0, "length": 0}), "{sent}");
    // The first part is streamed, the second is buffered.
    let sent = summary(&["large", "s3://bucket/large"]);
    assert_eq!(proofs(&sent), serde_json::json!({"content_md5": 1, "etag": 1, "length": 0}), "{sent}");
    let (_server, caller) = scene(|_, answer| Reply::Respond(answer));
    caller.write("small", content(1, 1000));
    let sent: Json =
        serde_json::from_str(&caller.run_ok(&["cp", "--json", "small", "s3://bucket/x"])).unwrap();
    assert!(proofs(&sent).is_null(), "{sent}");
}

#[test]
fn variables_and_profile_omit_checksum_headers() {
    let omitted = |caller: CommandRunner, server: &ScriptedServer| {
        caller.write("here", content(1, 1000));
        caller.run_ok(&["cp", "here", "s3://bucket/x"]);
        caller.run_ok(&["cp", "s3://bucket/x", "back"]);
        let has_one = |request: &Request| checksum_header(request).is_some();
        ["PutObject", "GetObject"].map(|operation| !server.requests_of(operation).iter().any(has_one))
    };
    let (server, caller) = scene(|request, answer| Reply::Respond(plain(request, answer)));
    assert_eq!(omitted(caller, &server), [false, false]);
    for (variable, expected) in [
        ("AWS_REQUEST_CHECKSUM_CALCULATION", [true, false]),
        ("AWS_RESPONSE_CHECKSUM_VALIDATION", [false, true]),
    ] {
        let (server, caller) = scene(|request, answer| Reply::Respond(plain(request, answer)));
        let caller = caller.with_variable(variable, "when_required");
        assert_eq!(omitted(caller, &server), expected, "{variable}");
    }
    let (server, caller) = scene(|request, answer| Reply::Respond(plain(request, answer)));
    let profile = "[default]\nrequest_checksum_calculation = when_required\n\
                   response_checksum_validation = when_required\n";
    caller.write("config", profile);
    let path = caller.path("config");
    let caller = caller.with_variable("AWS_CONFIG_FILE", path.to_str().unwrap());
    assert_eq!(omitted(caller, &server), [true, true]);
}
