//! Bytes that are not what the store has of an object never become a file.

use super::{content, files, refusal, scene};
use crate::support::caller::Caller;
use crate::support::scripted::{Answer, Reply, Request, Scripted};

/// Bytes of one request.
const CHUNK: usize = 1 << 20;
/// More than two chunks.
const SEVERAL: usize = 2 * CHUNK + 1;

/// Copies an object down whose answers are changed: as a file, as one of a tree, and to standard output, where what
/// was written cannot be taken back. All must fail, and no file be left. Answers the servers and what was said.
fn refused(
    size: usize,
    change: impl Fn(&Request, Answer) -> Reply + Send + Sync + Clone + 'static,
) -> Vec<(Scripted, String)> {
    let commands: [&[&str]; 3] =
        [&["cp", "s3://bucket/x", "x"], &["cp", "-r", "s3://bucket", "there"], &["cat", "s3://bucket/x"]];
    refused_by(&["--chunk-size", "1MiB"], &commands, size, change)
}

fn refused_by(
    flags: &[&str],
    commands: &[&[&str]],
    size: usize,
    change: impl Fn(&Request, Answer) -> Reply + Send + Sync + Clone + 'static,
) -> Vec<(Scripted, String)> {
    let run = |command: &&[&str]| {
        let change = change.clone();
        let (server, caller): (Scripted, Caller) = scene(move |request, answer| {
            if request.operation == "GetObject" { change(request, answer) } else { Reply::Answer(answer) }
        });
        let caller = caller.with("AWS_MAX_ATTEMPTS", "3");
        server.lay("x", content(1, size));
        let ran = caller.run(&[*command, flags].concat());
        assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{command:?}: {}", ran.err);
        assert_eq!(files(&caller), [""; 0], "{command:?}");
        (server, ran.err)
    };
    commands.iter().map(run).collect()
}

fn is_at(request: &Request, offset: usize) -> bool {
    request.header("range").starts_with(&format!("bytes={offset}-"))
}

#[test]
fn a_bit_that_is_flipped_every_time() {
    for size in [1000, CHUNK] {
        for (server, said) in refused(size, move |_, answer| Reply::Answer(answer.damaged(size / 2))) {
            assert!(said.contains("the object's bytes came with another checksum (CRC64NVME:"), "{said}");
            assert!(server.of("GetObject").len() <= 3, "{:?}", server.counts());
        }
    }
}

/// Its name is told, though its letter stands in what is said of it.
#[test]
fn a_damaged_object_of_many_is_named() {
    let (server, caller) =
        scene(|request, answer| Reply::Answer(if request.key == "e" { answer.damaged(0) } else { answer }));
    let caller = caller.with("AWS_MAX_ATTEMPTS", "1");
    ["a", "e", "f"].iter().for_each(|key| server.lay(key, key.as_bytes().to_vec()));
    let ran = caller.run(&["cp", "-r", "s3://bucket", "there"]);
    assert!(
        ran.err.starts_with("tradewind: e: the object's bytes came with another checksum ("),
        "{}",
        ran.err
    );
    assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1));
    assert_eq!(files(&caller), ["there/a", "there/f"]);
}

#[test]
fn a_bit_that_was_flipped_on_the_way_is_fetched_again() {
    for size in [1000, 3_000_000] {
        let (server, caller) = scene(move |request, answer| {
            Reply::Answer(if request.number == 1 { answer.damaged(size - 1) } else { answer })
        });
        server.lay("x", content(1, size));
        caller.done(&["cp", "s3://bucket/x", "x"]);
        assert!(std::fs::read(caller.path("x")).unwrap() == content(1, size));
        assert_eq!(server.counts(), [("GetObject", 2)]);
    }
}

#[test]
fn a_damaged_chunk_of_many() {
    let damage = |offset| {
        move |request: &Request, answer: Answer| {
            Reply::Answer(if is_at(request, offset) { answer.damaged(0) } else { answer })
        }
    };
    let several = [0, CHUNK].into_iter().flat_map(|offset| refused(SEVERAL, damage(offset)));
    let usual = refused_by(&[], &[&["cp", "s3://bucket/x", "x"]], (16 << 20) + 1, damage(8 << 20));
    // Three chunks, or 4 MiB and what is left in pieces of 2.
    for ((server, said), most) in
        several.map(|refused| (refused, 3)).chain(usual.into_iter().map(|refused| (refused, 8)))
    {
        assert!(said.contains("what arrived has the checksum CRC64NVME:"), "{said}");
        assert!(server.of("GetObject").len() <= most, "{:?}", server.counts());
    }
}

/// Most services say nothing of the whole beside a range, even if the range is all of it.
#[test]
fn what_a_range_does_not_say_is_asked_for() {
    for size in [1, 1 << 20, 4 << 20, (4 << 20) + 1, 12 << 20] {
        for is_damaged in [false, true] {
            let (server, caller) = scene(move |request, answer| {
                if request.operation != "GetObject" || request.header("range").is_empty() {
                    return Reply::Answer(answer);
                }
                let answer = answer.without("x-amz-checksum-crc64nvme");
                Reply::Answer(if is_damaged && is_at(request, 0) { answer.damaged(0) } else { answer })
            });
            let bytes = content(1, size);
            server.lay("x", bytes.clone());
            let ran = caller.run(&["cp", "s3://bucket/x", "x"]);
            assert_eq!(server.of("HeadObject").len(), 1, "{size} bytes: {:?}", server.counts());
            if is_damaged {
                assert_eq!(ran.status.code(), Some(1), "{size} bytes");
                assert!(ran.err.contains("what arrived has the checksum CRC64NVME:"), "{}", ran.err);
                assert!(!caller.path("x").exists(), "{size} bytes");
            } else {
                assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
                assert!(std::fs::read(caller.path("x")).unwrap() == bytes, "{size} bytes");
            }
        }
    }
}

#[test]
fn an_answer_of_another_length() {
    // Fewer bytes than the range that is named, and more.
    for length in [999_999_usize, 1_000_001] {
        for (server, said) in refused(1_000_000, move |_, mut answer: Answer| {
            answer.body.resize(length, 0);
            answer.status = 206;
            Reply::Answer(answer.with("Content-Range", "bytes 0-999999/1000000"))
        }) {
            let words = format!("the store answered {length} bytes where 1000000 were asked for");
            assert!(said.contains(&words), "{said}");
            assert!(server.of("GetObject").len() <= 3, "{:?}", server.counts());
        }
    }
}

/// Without a checksum to tell, only what the answer says of its place does.
#[test]
fn an_answer_of_other_bytes() {
    let plain = |answer: Answer| answer.without("x-amz-checksum-crc64nvme");
    // Those of another place, as many as were asked for.
    refused(SEVERAL, move |request, answer| {
        let other = is_at(request, CHUNK);
        let range = format!("bytes 0-{}/{SEVERAL}", answer.body.len() - 1);
        Reply::Answer(if other { plain(answer).with("Content-Range", &range) } else { plain(answer) })
    });
    // The whole object, for one of its chunks.
    let all = content(1, SEVERAL);
    refused(SEVERAL, move |request, answer| {
        let whole =
            |answer: Answer| Answer { status: 200, body: all.clone(), ..answer.without("Content-Range") };
        Reply::Answer(if is_at(request, 0) { plain(answer) } else { whole(plain(answer)) })
    });
}

#[test]
fn an_object_that_changes_between_its_chunks() {
    for (server, said) in refused(SEVERAL, |request, answer| {
        if is_at(request, CHUNK) {
            refusal(
                412,
                "PreconditionFailed",
                "At least one of the pre-conditions you specified did not hold",
            )
        } else {
            Reply::Answer(answer)
        }
    }) {
        assert!(said.starts_with("tradewind: \"x\" changed while it was read"), "{said}");
        let asked = server.of("GetObject");
        assert_eq!(
            asked.iter().filter(|request| is_at(request, CHUNK)).count(),
            1,
            "it is not asked for again"
        );
    }
}

#[test]
fn an_object_that_is_not_described() {
    for header in ["ETag", "Last-Modified"] {
        for (server, said) in refused(1000, move |_, answer| Reply::Answer(answer.without(header))) {
            let words = if header == "ETag" { "has no entity tag" } else { "says no time" };
            assert!(said.contains(&format!("the store's answer {words}")), "{said}");
            assert!(server.of("GetObject").len() <= 3, "{:?}", server.counts());
        }
    }
}
