//! Two requests for one chunk, piece by piece.

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

type Pieces = Vec<Result<&'static str, Reason>>;

/// Reads a chunk from two requests; the second begins at an offset. Answers what came, and how it ended.
async fn read(first: Pieces, stalls: bool, second: Option<(u64, Pieces)>) -> (String, Result<(), Reason>) {
    let store: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    let address = Address::parse("bucket", "k").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    staged.write(Bytes::from_static(CONTENT)).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    let info = store.head(&context(), &address, GetRequest::default()).await.unwrap().info;
    let origin = Origin { store, address };
    let budget = Budget::new(1 << 20);
    let carrier =
        Carrier::new(Plan::default(), budget.clone(), SystemClock::shared(), RetryOptions::default());

    let request = async |at, pieces: Pieces, stalls| {
        let pieces = iter(pieces).map(|piece| {
            piece
                .map(|text| Bytes::from_static(text.as_bytes()))
                .map_err(|reason| Error::new(reason, "it failed"))
        });
        let pieces = if stalls { pieces.chain(never()).boxed() } else { pieces.boxed() };
        Request { slot: carrier.slot(10).await.unwrap(), pieces, at, counts: false }
    };
    let mut coming = Coming {
        watch: Watch::begin(&carrier, 10),
        origin: &origin,
        info: &info,
        at: 0,
        end: 10,
        first: Some(request(0, first, stalls).await),
        second: None,
    };
    let mut came = String::new();
    let mut begun = second;
    let ended = loop {
        if begun.as_ref().is_some_and(|(at, _)| *at == coming.at)
            && let Some((at, pieces)) = begun.take()
        {
            coming.second = Some(request(at, pieces, false).await);
        }
        match coming.next().await {
            Some(Ok(piece)) => came.push_str(std::str::from_utf8(&piece).unwrap()),
            Some(Err(e)) => break Err(e.reason()),
            None => break Ok(()),
        }
    };
    drop(coming);
    assert_eq!((budget.free(), carrier.hedges().unwrap().under_way()), (1 << 20, 0));
    (came, ended)
}

#[tokio::test]
async fn every_byte_comes_once() {
    let whole = ("0123456789".to_owned(), Ok(()));
    assert_eq!(read(vec![Ok("012345"), Ok("6789")], false, None).await, whole);
    // The first stalls; the second brings what is missing, however it is cut.
    for pieces in [vec![Ok("3456789")], vec![Ok("3"), Ok(""), Ok("45678"), Ok("9")]] {
        assert_eq!(read(vec![Ok("0"), Ok("12")], true, Some((3, pieces))).await, whole);
    }
    // Both bring the same: what comes later is dropped, and a piece of which a part is new is cut.
    let first = vec![Ok("01"), Ok("234"), Ok("567"), Ok("89")];
    for pieces in [vec![Ok("23456789")], vec![Ok("2"), Ok("3456"), Ok("789")]] {
        assert_eq!(read(first.clone(), false, Some((2, pieces))).await, whole);
    }
    assert_eq!(read(vec![Ok("01")], true, Some((0, vec![Ok("0"), Ok("123"), Ok("456789")]))).await, whole);
}

#[tokio::test]
async fn one_may_fail() {
    let whole = ("0123456789".to_owned(), Ok(()));
    let rest = || Some((2, vec![Ok("234"), Ok("56789")]));
    for reason in [Reason::Io, Reason::Conflict] {
        assert_eq!(read(vec![Ok("01"), Err(reason)], false, rest()).await, whole);
        let first = vec![Ok("01"), Ok("2345"), Ok("6789")];
        assert_eq!(read(first, false, Some((2, vec![Err(reason)]))).await, whole);
    }
    // One ends early.
    assert_eq!(read(vec![Ok("01")], false, rest()).await, whole);
    assert_eq!(read(vec![Ok("01"), Ok("23"), Ok("456789")], false, Some((2, vec![]))).await, whole);
}

#[tokio::test]
async fn where_both_fail_the_chunk_does() {
    let failed = |came: &str, reason| (came.to_owned(), Err(reason));
    let second = || Some((2, vec![Ok("234"), Err(Reason::Overloaded)]));
    assert_eq!(
        read(vec![Ok("01"), Err(Reason::Io)], false, second()).await,
        failed("01234", Reason::Overloaded)
    );
    assert_eq!(read(vec![Ok("01"), Err(Reason::Io)], false, None).await, failed("01", Reason::Io));
    // Whoever reads counts what came.
    let short = ("01234".to_owned(), Ok(()));
    assert_eq!(read(vec![Ok("01")], false, Some((2, vec![Ok("234")]))).await, short);
}

/// Of bytes that were handed on and are damaged nobody knows which they are.
#[tokio::test]
async fn damage_is_that_of_the_chunk() {
    let rest = Some((2, vec![Ok("234"), Ok("56789")]));
    let first = vec![Ok("01"), Err(Reason::CorruptData)];
    assert_eq!(read(first, false, rest).await, ("01".to_owned(), Err(Reason::CorruptData)));
    let first = vec![Ok("01"), Ok("23456789")];
    let spoilt = Some((2, vec![Err(Reason::CorruptData)]));
    assert_eq!(read(first, false, spoilt).await, ("0123456789".to_owned(), Ok(())));
}

/// Only the leaf could compare a whole object with its MD5 or SHA, and it sees one request.
#[tokio::test]
async fn what_only_the_leaf_verifies_comes_from_one_request() {
    let store: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    let address = Address::parse("bucket", "k").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    let known = store.head(&context(), &address, GetRequest::default()).await.unwrap().info;
    let unknown = ObjectInfo { checksums: Vec::new(), ..known.clone() };
    let (origin, budget) = (Origin { store, address }, Budget::new(1 << 20));
    let carrier = Carrier::new(Plan::default(), budget, SystemClock::shared(), RetryOptions::default());
    for (info, size, is_once) in [(&known, 10, false), (&unknown, 10, true), (&unknown, 20, false)] {
        let info = ObjectInfo { size, ..info.clone() };
        let body = Body::from_bytes(Bytes::from_static(CONTENT));
        let (watch, slot) = (Watch::begin(&carrier, 10), carrier.slot(10).await.unwrap());
        let coming = Coming::begun(&origin, &info, Begun { watch, slot, body, length: 10, is_whole: true });
        assert_eq!(coming.watch.is_once, is_once);
    }
}
