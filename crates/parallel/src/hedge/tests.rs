//! Two requests for the same range, piece by piece.

use std::sync::Arc;

use futures::stream::{iter, pending as never};
use tradewind_core::error::Error;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context};
use tradewind_core::{Address, Budget, ObjectStore, SystemClock};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;

use super::*;

const CONTENT: &[u8] = b"0123456789";

type PieceResults = Vec<Result<&'static str, Reason>>;

/// Reads a range from two requests, of which the second starts at an offset. Returns the bytes forwarded and the
/// result.
async fn read_hedged(
    first: PieceResults,
    stalls: bool,
    second: Option<(u64, PieceResults)>,
) -> (String, Result<(), Reason>) {
    let store: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    let address = Address::parse("bucket", "k").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    staged.write(Bytes::from_static(CONTENT)).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    let info = store.head(&context(), &address, GetRequest::default()).await.unwrap().info;
    let origin = Origin { store, address };
    let budget = Budget::new(1 << 20);
    let transfers =
        TransferContext::new(Plan::default(), budget.clone(), SystemClock::shared(), RetryOptions::default());

    let request = async |at, pieces: PieceResults, stalls| {
        let pieces = iter(pieces).map(|piece| {
            piece
                .map(|text| Bytes::from_static(text.as_bytes()))
                .map_err(|reason| Error::new(reason, "it failed"))
        });
        let pieces = if stalls { pieces.chain(never()).boxed() } else { pieces.boxed() };
        RangeRequest {
            permits: transfers.acquire_request_permits(10).await.unwrap(),
            pieces,
            position: at,
            has_contributed: false,
        }
    };
    let mut stream = RangeStream {
        timer: HedgeTimer::start(&transfers, 10),
        origin: &origin,
        info: &info,
        position: 0,
        end: 10,
        first: Some(request(0, first, stalls).await),
        second: None,
    };
    let mut received = String::new();
    let mut second_request = second;
    let ended = loop {
        if second_request.as_ref().is_some_and(|(at, _)| *at == stream.position)
            && let Some((at, pieces)) = second_request.take()
        {
            stream.second = Some(request(at, pieces, false).await);
        }
        match stream.next().await {
            Some(Ok(piece)) => received.push_str(std::str::from_utf8(&piece).unwrap()),
            Some(Err(e)) => break Err(e.reason()),
            None => break Ok(()),
        }
    };
    drop(stream);
    assert_eq!((budget.free(), transfers.hedge_policy().unwrap().in_flight()), (1 << 20, 0));
    (received, ended)
}

#[tokio::test]
async fn each_byte_of_a_hedged_range_is_forwarded_once() {
    let whole = ("0123456789".to_owned(), Ok(()));
    assert_eq!(read_hedged(vec![Ok("012345"), Ok("6789")], false, None).await, whole);
    // The first stalls; the second delivers the missing bytes, however they are split.
    for pieces in [vec![Ok("3456789")], vec![Ok("3"), Ok(""), Ok("45678"), Ok("9")]] {
        assert_eq!(read_hedged(vec![Ok("0"), Ok("12")], true, Some((3, pieces))).await, whole);
    }
    // Both deliver the same bytes: duplicates are dropped, and a partly new piece is trimmed.
    let first = vec![Ok("01"), Ok("234"), Ok("567"), Ok("89")];
    for pieces in [vec![Ok("23456789")], vec![Ok("2"), Ok("3456"), Ok("789")]] {
        assert_eq!(read_hedged(first.clone(), false, Some((2, pieces))).await, whole);
    }
    assert_eq!(
        read_hedged(vec![Ok("01")], true, Some((0, vec![Ok("0"), Ok("123"), Ok("456789")]))).await,
        whole
    );
}

#[tokio::test]
async fn range_survives_failure_of_one_request() {
    let whole = ("0123456789".to_owned(), Ok(()));
    let rest = || Some((2, vec![Ok("234"), Ok("56789")]));
    for reason in [Reason::Io, Reason::Conflict] {
        assert_eq!(read_hedged(vec![Ok("01"), Err(reason)], false, rest()).await, whole);
        let first = vec![Ok("01"), Ok("2345"), Ok("6789")];
        assert_eq!(read_hedged(first, false, Some((2, vec![Err(reason)]))).await, whole);
    }
    // One is truncated.
    assert_eq!(read_hedged(vec![Ok("01")], false, rest()).await, whole);
    assert_eq!(read_hedged(vec![Ok("01"), Ok("23"), Ok("456789")], false, Some((2, vec![]))).await, whole);
}

#[tokio::test]
async fn range_fails_if_both_requests_fail() {
    let failed = |received: &str, reason| (received.to_owned(), Err(reason));
    let second = || Some((2, vec![Ok("234"), Err(Reason::Overloaded)]));
    assert_eq!(
        read_hedged(vec![Ok("01"), Err(Reason::Io)], false, second()).await,
        failed("01234", Reason::Overloaded)
    );
    assert_eq!(read_hedged(vec![Ok("01"), Err(Reason::Io)], false, None).await, failed("01", Reason::Io));
    // A truncated stream just ends: the consumer counts the bytes.
    let short = ("01234".to_owned(), Ok(()));
    assert_eq!(read_hedged(vec![Ok("01")], false, Some((2, vec![Ok("234")]))).await, short);
}

/// It is unknown which of the forwarded bytes are damaged.
#[tokio::test]
async fn corruption_fails_the_range_only_if_bytes_were_forwarded() {
    let rest = Some((2, vec![Ok("234"), Ok("56789")]));
    let first = vec![Ok("01"), Err(Reason::CorruptData)];
    assert_eq!(read_hedged(first, false, rest).await, ("01".to_owned(), Err(Reason::CorruptData)));
    let first = vec![Ok("01"), Ok("23456789")];
    let spoilt = Some((2, vec![Err(Reason::CorruptData)]));
    assert_eq!(read_hedged(first, false, spoilt).await, ("0123456789".to_owned(), Ok(())));
}

/// Only the leaf can verify a whole object by its MD5 or SHA, and it sees a single request.
#[tokio::test]
async fn whole_object_verified_by_the_leaf_is_not_hedged() {
    let store: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    let address = Address::parse("bucket", "k").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    let known = store.head(&context(), &address, GetRequest::default()).await.unwrap().info;
    let unknown = ObjectInfo { checksums: Vec::new(), ..known.clone() };
    let (origin, budget) = (Origin { store, address }, Budget::new(1 << 20));
    let transfers =
        TransferContext::new(Plan::default(), budget, SystemClock::shared(), RetryOptions::default());
    for (info, size, is_once) in [(&known, 10, false), (&unknown, 10, true), (&unknown, 20, false)] {
        let info = ObjectInfo { size, ..info.clone() };
        let body = Body::from_bytes(Bytes::from_static(CONTENT));
        let (timer, permits) =
            (HedgeTimer::start(&transfers, 10), transfers.acquire_request_permits(10).await.unwrap());
        let stream = RangeStream::from_opened(
            &origin,
            &info,
            OpenedRange { timer, permits, body, length: 10, requested_whole: true },
        );
        assert_eq!(stream.timer.must_not_hedge, is_once);
    }
}
