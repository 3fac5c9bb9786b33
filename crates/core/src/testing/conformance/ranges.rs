//! Ranges: exactly the requested bytes, at any offset.

use crate::error::Reason;
use crate::range::{ByteRange, Span};
use crate::store::{GetRequest, Select};
use crate::testing::context;

use super::fixture::{Fixture, key_address, part_number, pattern, reason};

super::theme! { "ranges":
    across_every_border_match_a_slice,
    of_large_objects_match_a_slice,
    without_a_byte_are_refused,
    of_an_empty_object_are_refused,
    as_part_one_are_the_whole,
    are_reported_by_head,
}

async fn check(desk: &Fixture, key: &str, bytes: &[u8], range: ByteRange) {
    let select = Select::Range(range);
    match range.resolve(bytes.len() as u64) {
        Ok(expected) => {
            let (info, span, read) = desk.select(key, select).await.expect("the range holds bytes");
            assert_eq!((span, info.size), (expected, bytes.len() as u64), "{range:?}");
            assert!(read == slice(bytes, span), "{range:?} of {} bytes", bytes.len());
        }
        Err(_) => assert_eq!(reason(desk.select(key, select).await), Reason::InvalidRange, "{range:?}"),
    }
}

fn slice(bytes: &[u8], span: Span) -> &[u8] {
    let index = |n: u64| usize::try_from(n).expect("a small object");
    &bytes[index(span.offset)..index(span.end())]
}

async fn across_every_border_match_a_slice(desk: Fixture) {
    for size in [1, 4096, 131_073, 300_001_u64] {
        let bytes = pattern(usize::try_from(size).expect("a small object"), size);
        desk.put("k", bytes.clone()).await;
        let mut borders = vec![0, 1, 4095, 4096, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 196_608];
        borders.extend([size - 1, size, size + 1]);
        borders.sort_unstable();
        borders.dedup();
        for (n, &first) in borders.iter().enumerate() {
            for &last in &borders[n..] {
                check(&desk, "k", &bytes, ByteRange::Inclusive { first, last }).await;
            }
            check(&desk, "k", &bytes, ByteRange::From(first)).await;
            check(&desk, "k", &bytes, ByteRange::Suffix(first)).await;
        }
        check(&desk, "k", &bytes, ByteRange::Inclusive { first: 0, last: u64::MAX }).await;
        check(&desk, "k", &bytes, ByteRange::Suffix(u64::MAX)).await;
        check(&desk, "k", &bytes, ByteRange::From(u64::MAX)).await;
    }
}

async fn of_large_objects_match_a_slice(desk: Fixture) {
    let size = (5 << 20) + 3;
    let bytes = pattern(size, 1);
    desk.put("k", bytes.clone()).await;
    let mut state = 12_345_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for n in 0..80 {
        let first = draw(size as u64);
        let length = draw([10, 4096, 70_000, 2_000_000][n % 4]);
        check(&desk, "k", &bytes, ByteRange::Inclusive { first, last: first + length }).await;
    }
}

async fn without_a_byte_are_refused(desk: Fixture) {
    desk.put("k", pattern(100, 1)).await;
    for range in [ByteRange::From(100), ByteRange::Inclusive { first: 100, last: 200 }, ByteRange::Suffix(0)]
    {
        assert_eq!(reason(desk.select("k", Select::Range(range)).await), Reason::InvalidRange, "{range:?}");
    }
    let part_two = desk.select("k", Select::Part(part_number(2))).await;
    assert_eq!(reason(part_two), Reason::InvalidRange, "an object without parts has no part two");
}

async fn of_an_empty_object_are_refused(desk: Fixture) {
    desk.put("k", "").await;
    for range in [ByteRange::From(0), ByteRange::Inclusive { first: 0, last: 0 }, ByteRange::Suffix(1)] {
        assert_eq!(reason(desk.select("k", Select::Range(range)).await), Reason::InvalidRange, "{range:?}");
    }
    let (_, span, read) = desk.select("k", Select::Whole).await.expect("a GET succeeds");
    assert_eq!((span, read.len()), (Span::whole(0), 0));
}

async fn as_part_one_are_the_whole(desk: Fixture) {
    for size in [0, 100, 70_000] {
        let bytes = pattern(size, 1);
        desk.put("k", bytes.clone()).await;
        let (info, span, read) =
            desk.select("k", Select::Part(part_number(1))).await.expect("a GET succeeds");
        assert_eq!((span, info.parts), (Span::whole(size as u64), None));
        assert!(read == bytes);
    }
}

async fn are_reported_by_head(desk: Fixture) {
    desk.put("k", pattern(100, 1)).await;
    let head = async |range| {
        let request = GetRequest { select: Select::Range(range), ..GetRequest::default() };
        desk.store.head(&context(), &key_address("k"), request).await
    };
    let found = head(ByteRange::Suffix(10)).await.expect("a HEAD succeeds");
    assert_eq!((found.span, found.info.size), (Span { offset: 90, length: 10 }, 100));
    assert_eq!(reason(head(ByteRange::From(100)).await), Reason::InvalidRange);
}
