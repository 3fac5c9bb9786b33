//! Invalid listings end the command: items that they omit would be missing at the destination, or be removed there.

use super::{files, scene};
use crate::support::scripted_server::{
    Reply, Request, Rest, ScriptedResponse, ScriptedServer, listing, listing_entry, listing_page,
};

/// A listing page of `keys`.
fn page_of(keys: &[&str], rest: Rest<'_>) -> ScriptedResponse {
    let lines: Vec<String> = keys.iter().map(|key| listing_entry(key, b"bytes")).collect();
    listing(&lines, rest)
}

/// Runs `ls`, `rm`, `cp` and `sync` with the listing that `answer` returns. All must fail with a message that contains
/// `words`, and must not remove the file at the destination.
fn assert_rejected(
    words: &str,
    answer: impl Fn(&Request, ScriptedResponse) -> ScriptedResponse + Send + Sync + Clone + 'static,
) {
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
            Reply::Respond(if is_listing { answer(request, proper) } else { proper })
        });
        let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "2");
        ["a", "b", "c"].iter().for_each(|key| server.put_object(key, b"bytes".to_vec()));
        caller.write("there/zzz", "mine");
        let ran = caller.run(command);
        assert_eq!(ran.status.code(), Some(1), "{command:?}: {ran:?}");
        let failures: Vec<&str> = ran.err.lines().filter(|line| !line.contains("not removed: ")).collect();
        assert!(failures.len() == 1 && failures[0].contains(words), "{command:?}: {}", ran.err);
        assert!(listed(&server) <= 4, "{command:?}: {:?}", server.request_counts());
        assert!(files(&caller).contains(&"there/zzz".to_owned()), "{command:?}");
    }
}

fn listed(server: &ScriptedServer) -> usize {
    server.requests_of("ListObjectsV2").len()
}

#[test]
fn malformed_listings_are_rejected() {
    let malformed = "the store sent invalid XML";
    for document in ["<ListBucketResult><Contents><Key>a</Key>", "<a></b>", "<html><p>Hello</html>"] {
        assert_rejected(malformed, move |_, _| ScriptedResponse::document(document));
    }
    assert_rejected(malformed, |_, answer| answer.with_flipped_bit(1));
    let nameless = "an entry of the store's listing has no key, no valid Size or no LastModified";
    assert_rejected(nameless, |_, _| {
        ScriptedResponse::document("<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>")
    });
}

/// A response that is no listing does not count as an empty bucket.
#[test]
fn response_that_is_no_listing_is_rejected() {
    for page in ["", "Hello", "<html><body>Welcome</body></html>"] {
        assert_rejected("the store's response is not a listing", move |_, _| {
            ScriptedResponse::document(page)
        });
    }
}

#[test]
fn endless_listing_is_rejected() {
    // An identical page for every request.
    assert_rejected("the store's listing makes no progress", |_, _| {
        page_of(&["a", "b"], Rest::After("next"))
    });
    assert_rejected("does not continue after \"b\"", |_, _| page_of(&["a", "b"], Rest::WithoutToken));
    // An empty page that declares more to follow.
    assert_rejected("the store's listing makes no progress", |_, _| page_of(&[], Rest::After("next")));
    assert_rejected("is empty, and has no token", |_, _| page_of(&[], Rest::WithoutToken));
}

#[test]
fn unordered_listing_without_tokens_is_rejected() {
    // After an unsorted page, it is unknown where the next one starts.
    assert_rejected("lists keys out of order, and has no token", |request, _| {
        if request.query.contains_key("start-after") {
            page_of(&["a"], Rest::None)
        } else {
            page_of(&["c", "b"], Rest::WithoutToken)
        }
    });
    // The second page has a key before those of the first.
    assert_rejected("does not continue after \"c\"", |request, _| {
        if request.query.contains_key("start-after") {
            page_of(&["a"], Rest::None)
        } else {
            page_of(&["b", "c"], Rest::WithoutToken)
        }
    });
    // An unsorted but complete listing is accepted.
    let (_server, caller) = scene(|_, _| Reply::Respond(page_of(&["b", "c", "a"], Rest::None)));
    let listed = caller.run_ok(&["ls", "s3://bucket"]);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["b", "c", "a"], "as the store lists them");
}

#[test]
fn all_short_pages_are_requested() {
    let keys: Vec<String> = (0..10).map(|n| format!("{n}/{n}")).collect();
    let all: Vec<(String, Vec<u8>)> = keys.iter().map(|key| (key.clone(), b"bytes".to_vec())).collect();
    let (server, caller) = scene(move |request, answer| {
        Reply::Respond(match request.operation {
            "ListObjectsV2" => listing_page(all.iter().map(|(key, bytes)| (key, bytes)), request, 3),
            _ => answer,
        })
    });
    keys.iter().for_each(|key| server.put_object(key, b"bytes".to_vec()));
    caller.run_ok(&["cp", "-r", "s3://bucket", "there"]);
    assert_eq!(files(&caller), keys.iter().map(|key| format!("there/{key}")).collect::<Vec<_>>());
    assert_eq!(server.request_counts(), [("GetObject", 10), ("ListObjectsV2", 4)]);
}

#[test]
fn listing_with_a_size_that_is_no_size_is_rejected() {
    for size in ["-1", "+5", " 5", "", "5x", "0x5", "5.0", "9223372036854775808", "18446744073709551615"] {
        assert_rejected("no valid Size", move |_, _| {
            let mut page = page_of(&["a", "b", "c"], Rest::None);
            let text = String::from_utf8(page.body).unwrap();
            page.body = text.replacen("<Size>5</Size>", &format!("<Size>{size}</Size>"), 1).into();
            page
        });
    }
}

/// The size is possible, but not that of the object.
#[test]
fn object_of_another_size_than_listed_leaves_no_file() {
    for size in ["2147483648", "9007199254740992"] {
        let (server, caller) = scene(move |request, proper| {
            if request.operation != "ListObjectsV2" {
                return Reply::Respond(proper);
            }
            let text = String::from_utf8(proper.body).unwrap();
            let body = text.replace("<Size>5</Size>", &format!("<Size>{size}</Size>")).into();
            Reply::Respond(ScriptedResponse { body, ..proper })
        });
        server.put_object("a", b"bytes".to_vec());
        let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "2");
        let ran = caller.run(&["cp", "-r", "s3://bucket", "there"]);
        let left = files(&caller);
        let is_right = ran.status.success()
            && left == ["there/a"]
            && caller.path("there/a").metadata().unwrap().len() == 5;
        assert!(is_right || (ran.status.code() == Some(1) && left.is_empty()), "{size}: {ran:?}, {left:?}");
    }
}
