//! A listing that cannot be trusted ends the command: what it leaves out would be missing, or be removed at the other
//! end.

use super::{files, scene};
use crate::support::scripted::{Answer, Reply, Request, Scripted, line, listing, page};

/// A page of these keys.
fn page_of(keys: &[&str], is_truncated: bool) -> Answer {
    let lines: Vec<String> = keys.iter().map(|key| line(key, b"bytes")).collect();
    listing(&lines, is_truncated)
}

/// Lists, copies, removes and syncs from what is listed so. All must fail, say this, and leave the file at the
/// destination of a sync, which is not listed, where it is.
fn refused(words: &str, answer: impl Fn(&Request, Answer) -> Answer + Send + Sync + Clone + 'static) {
    let commands: [&[&str]; 4] = [
        &["ls", "-r", "s3://bucket"],
        &["rm", "-r", "s3://bucket"],
        &["cp", "-r", "s3://bucket", "there"],
        &["sync", "--delete", "s3://bucket", "there"],
    ];
    for command in commands {
        let answer = answer.clone();
        let (server, caller) = scene(move |request, proper| {
            let is_listing = request.operation == "ListObjectsV2";
            Reply::Answer(if is_listing { answer(request, proper) } else { proper })
        });
        let caller = caller.with("AWS_MAX_ATTEMPTS", "2");
        ["a", "b", "c"].iter().for_each(|key| server.lay(key, b"bytes".to_vec()));
        caller.write("there/zzz", "mine");
        let ran = caller.run(command);
        assert_eq!(ran.status.code(), Some(1), "{command:?}: {ran:?}");
        assert!(ran.err.lines().count() == 1 && ran.err.contains(words), "{command:?}: {}", ran.err);
        assert!(listed(&server) <= 4, "{command:?}: {:?}", server.counts());
        assert!(files(&caller).contains(&"there/zzz".to_owned()), "{command:?}");
    }
}

fn listed(server: &Scripted) -> usize {
    server.of("ListObjectsV2").len()
}

#[test]
fn garbage() {
    let malformed = "the store answered XML that cannot be read";
    for garbage in ["<ListBucketResult><Contents><Key>a</Key>", "<a></b>", "<html><p>Hello</html>"] {
        refused(malformed, move |_, _| Answer::document(garbage));
    }
    refused(malformed, |_, answer| answer.damaged(1));
    let nameless = "a line of the store's listing lacks its key or its time";
    refused(nameless, |_, _| {
        Answer::document("<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>")
    });
}

/// Nothing is said of the bucket: that is not a bucket with nothing in it.
#[test]
fn something_that_is_no_listing() {
    for page in ["", "Hello", "<html><body>Welcome</body></html>"] {
        refused("the store answered something else than a listing", move |_, _| Answer::document(page));
    }
}

#[test]
fn one_that_never_ends() {
    // The same page, whatever is asked for.
    refused("the store's listing does not get on", |_, _| page_of(&["a", "b"], true));
    // Nothing, and more to come.
    refused("without an entry and more to come", |_, _| page_of(&[], true));
}

#[test]
fn one_out_of_order() {
    // Nobody knows what is behind such a page.
    refused("the store lists keys out of order", |request, _| {
        if request.query.contains_key("start-after") {
            page_of(&["a"], false)
        } else {
            page_of(&["c", "b"], true)
        }
    });
    // What comes behind the first page is before it.
    refused("the store's listing does not get on", |request, _| {
        if request.query.contains_key("start-after") {
            page_of(&["a"], false)
        } else {
            page_of(&["b", "c"], true)
        }
    });
    // All of it is there.
    let (_server, caller) = scene(|_, _| Reply::Answer(page_of(&["b", "c", "a"], false)));
    let listed = caller.done(&["ls", "s3://bucket"]);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn short_pages_are_all_asked_for() {
    let keys: Vec<String> = (0..10).map(|n| format!("{n}/{n}")).collect();
    let all: Vec<(String, Vec<u8>)> = keys.iter().map(|key| (key.clone(), b"bytes".to_vec())).collect();
    let (server, caller) = scene(move |request, answer| {
        Reply::Answer(match request.operation {
            "ListObjectsV2" => page(all.iter().map(|(key, bytes)| (key, bytes)), request, 3),
            _ => answer,
        })
    });
    keys.iter().for_each(|key| server.lay(key, b"bytes".to_vec()));
    caller.done(&["cp", "-r", "s3://bucket", "there"]);
    assert_eq!(files(&caller), keys.iter().map(|key| format!("there/{key}")).collect::<Vec<_>>());
    assert_eq!(server.counts(), [("GetObject", 10), ("ListObjectsV2", 4)]);
}
