//! Objects: reads return exactly what was written, atomically, under any key and in any size.

use futures::StreamExt;

use crate::budget::{Budget, GRAIN_BYTES};
use crate::checksum::{Algorithm, Checksum};
use crate::clock::SystemClock;
use crate::context::{Context, Deadline};
use crate::error::{Reason, Result};
use crate::object::{Committed, Expected};
use crate::range::ByteRange;
use crate::store::{Feature, GetRequest, Select, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, drain, key_address, md5_etag, pattern, reason};

super::theme! { "objects":
    of_every_size_come_back,
    written_in_odd_buffers_come_back,
    are_overwritten_and_deleted,
    have_growing_generations needs Generations,
    have_any_key,
    are_invisible_until_committed,
    leave_nothing_when_dropped,
    follow_the_last_commit,
    are_as_long_as_was_said,
    pass_through_the_smallest_window,
    give_their_memory_back,
    are_read_to_the_end_although_overwritten,
    are_read_to_the_end_although_deleted,
    are_refused_after_close,
}

/// Sizes around those at which stores change their behaviour: nothing, a block, a page, a part.
const SIZES: [usize; 14] = [
    0,
    1,
    2,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    65_537,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (5 << 20) - 1,
    (5 << 20) + 3,
];

async fn of_every_size_come_back(desk: Fixture) {
    for size in SIZES {
        let bytes = pattern(size, size as u64);
        let committed = desk.put("sized", bytes.clone()).await;
        assert_eq!((committed.size, &committed.etag), (size as u64, &md5_etag(&bytes)));
        assert_eq!(committed.checksums, [Checksum::compute(Algorithm::Crc64Nvme, &bytes)], "{size} bytes");
        let (info, span, read) = desk.get("sized", GetRequest::default()).await.expect("a GET succeeds");
        assert!(read == bytes, "{size} bytes came back changed");
        assert_eq!((span.offset, span.length, info.size), (0, size as u64, size as u64));
        assert_eq!(info.etag, committed.etag);
        assert_eq!(info.checksums, desk.stored_checksums([Checksum::compute(Algorithm::Crc64Nvme, &bytes)]));
        if desk.capabilities().generations {
            assert_eq!((info.modified, info.generation), (committed.modified, committed.generation));
        }
        assert_eq!(info.parts, None);
        assert_eq!(desk.head("sized").await, info, "head and get agree");
    }
}

async fn written_in_odd_buffers_come_back(desk: Fixture) {
    let buffers = [1, 3, 0, 4093, 17, 65_537, 4096, 100_003, 2];
    for size in [5, 4097, 65_537, 700_001] {
        let (bytes, context) = (pattern(size, 3), context());
        let mut rest = bytes.clone();
        let mut staged = desk
            .store
            .stage(
                &context,
                &key_address("odd"),
                StageRequest { size: Some(size as u64), ..Default::default() },
            )
            .await
            .expect("staging begins");
        for buffer in buffers.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let piece = rest.split_to(rest.len().min(*buffer));
            staged.write(piece).await.expect("bytes are staged");
        }
        staged.commit(Expected::default()).await.expect("a commit succeeds");
        assert!(desk.read("odd").await == bytes, "{size} bytes came back changed");
    }
}

async fn are_overwritten_and_deleted(desk: Fixture) {
    desk.assert_absent("k").await;
    let tells = desk.capabilities().reports_deleted;
    assert!(!desk.delete("k").await || !tells, "deleting a missing object is not an error");
    for (n, size) in [10, 100_000, 0, 70_000, 5].into_iter().enumerate() {
        let bytes = pattern(size, n as u64);
        desk.put("k", bytes.clone()).await;
        assert!(desk.read("k").await == bytes);
        assert_eq!(desk.names().await, ["k"]);
    }
    assert!(desk.delete("k").await);
    desk.assert_absent("k").await;
    assert!(!desk.delete("k").await || !tells);
    desk.put("k", "again").await;
    assert_eq!(desk.read("k").await, "again");
}

async fn have_growing_generations(desk: Fixture) {
    let mut last = None;
    for n in 0..20 {
        let committed = desk.put(["a", "b", "c"][n % 3], "x").await;
        assert!(Some(committed.generation) > last, "write {n} has generation {:?}", committed.generation);
        last = Some(committed.generation);
    }
    desk.delete("a").await;
    assert!(Some(desk.put("a", "x").await.generation) > last, "a deleted key's generations are not reused");
}

/// Keys are bytes: nothing in them is special, and no two of them are equivalent.
pub(super) fn odd_keys(desk: &Fixture) -> Vec<String> {
    let mut keys: Vec<String> = [
        "a",
        "A",
        "a/",
        "a//",
        "/a",
        "//",
        "/",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/./b",
        " ",
        "a ",
        "a\0",
        "\0",
        "\0\0",
        "a\0b",
        "a\nb",
        "a\tb",
        "\u{7f}",
        "é",
        "e\u{301}",
        "日本語/キー",
        "\u{ffff}",
        "\u{10ffff}",
        "😀",
        "%2F",
        "a%00",
        "a+b",
        "a?b#c",
        "a\\b",
        "a\"b'c",
        "<k>&amp;",
        "con",
        "-rf",
        "~",
        "a*",
        "{a}",
        "x:y",
    ]
    .map(str::to_owned)
    .to_vec();
    keys.push("k".repeat(1024));
    keys.push("日".repeat(341));
    keys.push(format!("{}/", "d/".repeat(511)));
    keys.retain(|key| desk.supports(Feature::NulInKeys) || !key.contains('\0'));
    keys.sort();
    keys
}

async fn have_any_key(desk: Fixture) {
    let keys = odd_keys(&desk);
    for (n, key) in keys.iter().enumerate() {
        desk.put(key, format!("value {n}")).await;
    }
    assert_eq!(desk.names().await, keys);
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(desk.read(key).await, format!("value {n}"), "{key:?}");
    }
    for key in &keys {
        assert!(desk.delete(key).await, "{key:?} was there");
        desk.assert_absent(key).await;
    }
    assert!(desk.names().await.is_empty());
}

async fn are_invisible_until_committed(desk: Fixture) {
    for size in [10, 300_000] {
        let (context, bytes) = (context(), pattern(size, 1));
        let mut staged =
            desk.store.stage(&context, &key_address("k"), StageRequest::default()).await.expect("begins");
        desk.assert_absent("k").await;
        staged.write(bytes.clone()).await.expect("bytes are staged");
        desk.assert_absent("k").await;
        staged.commit(Expected::default()).await.expect("a commit succeeds");
        assert!(desk.read("k").await == bytes);
        desk.delete("k").await;
    }
}

async fn leave_nothing_when_dropped(desk: Fixture) {
    let context = context();
    desk.put("old", "stays").await;
    let before = desk.head("old").await;
    for size in [0, 10, 70_000, 2 << 20] {
        for key in ["new", "old"] {
            let mut staged =
                desk.store.stage(&context, &key_address(key), StageRequest::default()).await.expect("begins");
            for piece in pattern(size, 9).chunks(60_000) {
                staged.write(piece.to_vec().into()).await.expect("bytes are staged");
            }
            drop(staged);
        }
        desk.assert_absent("new").await;
        assert_eq!(desk.read("old").await, "stays");
        assert_eq!(desk.head("old").await, before);
        assert_eq!(desk.names().await, ["old"]);
    }
}

async fn follow_the_last_commit(desk: Fixture) {
    let context = context();
    let mut staged = Vec::new();
    for content in ["first", "second", "third"] {
        let mut one =
            desk.store.stage(&context, &key_address("k"), StageRequest::default()).await.expect("begins");
        one.write(content.into()).await.expect("bytes are staged");
        staged.push((content, one));
    }
    staged.rotate_left(1);
    for (content, one) in staged {
        one.commit(Expected::default()).await.expect("a commit succeeds");
        assert_eq!(desk.read("k").await, content);
    }
}

/// If a size is declared, fewer or more bytes are rejected.
async fn are_as_long_as_was_said(desk: Fixture) {
    for size in [0, 1, 90_000, 256 << 10, 700_001, (2 << 20) + 400_000] {
        let bytes = pattern(size, 4);
        let put = async |said: u64| -> Result<Committed> {
            let request = StageRequest { size: Some(said), ..Default::default() };
            let mut staged = desk.store.stage(&context(), &key_address("k"), request).await?;
            for piece in bytes.chunks(64 << 10) {
                staged.write(bytes.slice_ref(piece)).await?;
            }
            Ok(staged.commit(Expected::default()).await?.0)
        };
        assert_eq!(put(size as u64).await.expect("the size is as declared").size, size as u64);
        assert!(desk.read("k").await == bytes, "{size} bytes");
        if size > 90_000 {
            let range = GetRequest {
                select: Select::Range(ByteRange::Inclusive { first: 70_001, last: 89_998 }),
                ..Default::default()
            };
            assert!(desk.get("k", range).await.expect("a GET succeeds").2 == bytes[70_001..89_999]);
        }
        desk.delete("k").await;
        for said in [0, 1, 90_000, 400_000, 1 << 20, (1 << 20) + (256 << 10), 3 << 20, (1 << 32) + 1] {
            let expected = match said.cmp(&(size as u64)) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Less => Reason::InvalidRequest,
                std::cmp::Ordering::Greater => Reason::IncompleteBody,
            };
            assert_eq!(reason(put(said).await), expected, "{size} bytes, but {said} declared");
            desk.assert_absent("k").await;
        }
    }
}

/// With a window of one grain a store works with less memory instead of waiting for more.
async fn pass_through_the_smallest_window(desk: Fixture) {
    let budget = Budget::new(GRAIN_BYTES);
    let deadline = Deadline::none(SystemClock::shared());
    let window = budget.admit(GRAIN_BYTES, &deadline).await.expect("the budget is free");
    let context = Context::new(deadline, window);
    let bytes = pattern((1 << 20) + 11, 5);
    let (staged, commit) = (StageRequest::default(), Expected::default());
    desk.put_within(&context, &key_address("k"), bytes.clone(), staged, commit)
        .await
        .expect("a PUT succeeds");
    let found =
        desk.store.get(&context, &key_address("k"), GetRequest::default()).await.expect("a GET succeeds");
    assert!(drain(found.body).await.expect("the body is read") == bytes);
}

/// All memory is released once a request is over, however it ended.
async fn give_their_memory_back(desk: Fixture) {
    let context = context();
    let size = context.window.size();
    let bytes = pattern(3 << 20, 6);
    let (staged, commit) = (StageRequest::default(), Expected::default());
    desk.put_within(&context, &key_address("k"), bytes.clone(), staged, commit)
        .await
        .expect("a PUT succeeds");
    let found =
        desk.store.get(&context, &key_address("k"), GetRequest::default()).await.expect("a GET succeeds");
    drain(found.body).await.expect("the body is read");
    let found =
        desk.store.get(&context, &key_address("k"), GetRequest::default()).await.expect("a GET succeeds");
    let mut half_read = found.body;
    half_read.next().await.expect("a first piece").expect("without an error");
    drop(half_read);
    let mut staged =
        desk.store.stage(&context, &key_address("k"), StageRequest::default()).await.expect("begins");
    staged.write(bytes.slice(..200_000)).await.expect("bytes are staged");
    drop(staged);
    // A store may still process the dropped write, but not for long.
    for _ in 0..500 {
        if context.window.left() == size {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} of {size} bytes of the window were not released", size - context.window.left());
}

/// Reads the first piece, runs `during`, and reads the rest: all bytes are of one write.
async fn read_around(desk: &Fixture, during: impl AsyncFnOnce(&Fixture)) {
    let bytes = pattern((5 << 20) + 3, 7);
    desk.put("k", bytes.clone()).await;
    let context = context();
    let found =
        desk.store.get(&context, &key_address("k"), GetRequest::default()).await.expect("a GET succeeds");
    let mut body = found.body;
    let first = body.next().await.expect("a first piece").expect("without an error");
    let at = first.len();
    assert!(first == bytes[..at]);
    drop(first);
    during(desk).await;
    assert!(drain(body).await.expect("reading continues") == bytes[at..], "old and new bytes were mixed");
}

async fn are_read_to_the_end_although_overwritten(desk: Fixture) {
    read_around(&desk, async |desk| {
        for n in 0..5 {
            desk.put("k", pattern((5 << 20) + 3, 100 + n)).await;
        }
    })
    .await;
    assert!(desk.read("k").await == pattern((5 << 20) + 3, 104));
}

async fn are_read_to_the_end_although_deleted(desk: Fixture) {
    read_around(&desk, async |desk| {
        desk.delete("k").await;
        desk.put("other", pattern(6 << 20, 8)).await;
    })
    .await;
    desk.assert_absent("k").await;
}

async fn are_refused_after_close(desk: Fixture) {
    desk.put("k", "bytes").await;
    desk.store.close().await.expect("a store closes");
    desk.store.close().await.expect("closing twice is not an error");
    let refused = [
        reason(desk.try_head("k").await),
        reason(desk.get("k", GetRequest::default()).await),
        reason(desk.store.stage(&context(), &key_address("k"), StageRequest::default()).await),
        reason(desk.store.delete(&context(), &key_address("k"), crate::condition::Precondition::None).await),
        reason(
            desk.store
                .list(&context(), &key_address("k").bucket, &crate::listing::ListRequest::default())
                .await,
        ),
    ];
    assert_eq!(refused, [Reason::ShuttingDown; 5]);
}
