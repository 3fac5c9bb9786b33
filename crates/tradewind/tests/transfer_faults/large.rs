//! What befalls large objects while they are under way: a store that does not say what it has of one, keys that run out,
//! and a source that is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{content, scene};
use crate::support::caller::Caller;
use crate::support::scripted::{Answer, Reply, Request, Scripted};

const PART: usize = 5 << 20;
const UPLOAD: [&str; 7] = ["cp", "--chunk-size", "5MiB", "--jobs", "1", "here", "s3://bucket/x"];

/// A server that keys run out at behind the first part, until they are said to be good again.
fn running_out(
    after: impl Fn(&Request, Answer) -> Reply + Send + Sync + 'static,
) -> (Scripted, Caller, Arc<AtomicBool>) {
    let is_good = Arc::new(AtomicBool::new(false));
    let good = is_good.clone();
    let (server, caller) = scene(move |request, answer| {
        if good.load(Ordering::Relaxed) {
            after(request, answer)
        } else if request.operation == "UploadPart" && request.number > 1 {
            Reply::Answer(Answer::refusal(400, "ExpiredToken", "The provided token has expired."))
        } else {
            Reply::Answer(answer)
        }
    });
    (server, caller, is_good)
}

fn numbers(server: &Scripted) -> Vec<String> {
    server.of("UploadPart").iter().map(|request| request.query["partNumber"].clone()).collect()
}

#[test]
fn keys_that_run_out_cost_no_progress() {
    let (server, caller, is_good) = running_out(|_, answer| Reply::Answer(answer));
    let bytes = content(1, 3 * PART + 1000);
    caller.write("here", &bytes);
    let said = "here: PUT s3://bucket/x on HOST: The provided token has expired (ExpiredToken); get new temporary credentials";
    caller.fails(&UPLOAD, &[said]);
    assert!(server.of("AbortMultipartUpload").is_empty(), "{:?}", server.counts());
    let before = numbers(&server).len();
    is_good.store(true, Ordering::Relaxed);
    caller.done(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    let (kept, mut sent) = (numbers(&server)[0].clone(), numbers(&server).split_off(before));
    assert!(!sent.contains(&kept), "{kept} is there");
    sent.push(kept);
    sent.sort();
    assert_eq!(sent, ["1", "2", "3", "4"]);
    assert_eq!(server.of("CreateMultipartUpload").len(), 1);
}

/// Who may write need not be one who may list: the transfer begins anew.
#[test]
fn parts_that_may_not_be_listed_are_sent_again() {
    let (server, caller, is_good) = running_out(|request, answer| {
        Reply::Answer(match request.operation {
            "ListParts" => Answer::refusal(403, "AccessDenied", "Access Denied"),
            _ => answer,
        })
    });
    let bytes = content(1, 3 * PART + 1000);
    caller.write("here", &bytes);
    assert!(!caller.run(&UPLOAD).status.success());
    let before = numbers(&server).len();
    is_good.store(true, Ordering::Relaxed);
    caller.done(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    let mut sent = numbers(&server).split_off(before);
    sent.sort();
    assert_eq!(sent, ["1", "2", "3", "4"]);
    assert_eq!((server.of("CreateMultipartUpload").len(), server.of("AbortMultipartUpload").len()), (2, 1));
}

/// More than S3 copies in one request: thirteen parts, of which the store keeps nothing here.
const LARGE: &str = "6710886401";

/// A copy of an object that is replaced behind so many of its parts.
fn copied(replaced_behind: usize) -> (Scripted, Caller) {
    scene(move |request, answer| {
        Reply::Answer(match request.operation {
            "HeadObject" => answer.with("Content-Length", LARGE),
            "UploadPart" if request.number > replaced_behind => {
                Answer::refusal(412, "PreconditionFailed", "At least one precondition did not hold.")
            }
            "UploadPart" => Answer::document("<CopyPartResult><ETag>\"part\"</ETag></CopyPartResult>"),
            _ => answer,
        })
    })
}

#[test]
fn a_large_copy_is_of_one_version() {
    for replaced_behind in [usize::MAX, 4, 0] {
        let (server, caller) = copied(replaced_behind);
        server.lay("source", b"bytes".to_vec());
        let tag = server.tag("source");
        let ran = caller.run(&["cp", "s3://bucket/source", "s3://bucket/x"]);
        let parts = server.of("UploadPart");
        assert!(!parts.is_empty());
        assert!(parts.iter().all(|part| part.header("x-amz-copy-source-if-match") == tag), "each is pinned");
        let ends = (server.of("CompleteMultipartUpload").len(), server.of("AbortMultipartUpload").len());
        if replaced_behind == usize::MAX {
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!((parts.len(), ends), (13, (1, 0)));
            let last = parts.iter().find(|part| part.query["partNumber"] == "13").unwrap();
            assert_eq!(last.header("x-amz-copy-source-range"), "bytes=6442450944-6710886400");
        } else {
            assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{ran:?}");
            assert!(ran.err.contains("PreconditionFailed"), "{}", ran.err);
            assert_eq!(ends, (0, 1), "nothing of two versions becomes an object");
        }
    }
}

/// The bucket stands in the host's name, where the configuration says so.
#[test]
fn the_bucket_in_the_host() {
    let (server, caller) = scene(|_, answer| Reply::Answer(answer));
    let port = server.address.port();
    let caller = caller.with("AWS_ENDPOINT_URL_S3", &format!("http://localhost:{port}"));
    caller.write("home/.aws/config", "[default]\ns3 =\n  addressing_style = virtual\n");
    caller.done(&["ls", "s3://bucket"]);
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].operation), (1, "ListObjectsV2"));
    assert_eq!(seen[0].header("host"), format!("bucket.localhost:{port}"));
}
