//! Conditions on single writes, deletes and reads; `concurrency` tests concurrent ones.

use crate::clock::Timestamp;
use crate::condition::{ETagMatch, Precondition, ReadConditions};
use crate::error::{ErrorKind, Reason};
use crate::object::{ETag, Expected, Generation};
use crate::range::ByteRange;
use crate::store::{GetRequest, Select, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, copy_request, key_address, key_address_two, reason};

super::theme! { "conditions":
    on_a_missing_key needs Conditions,
    on_a_present_key needs Conditions,
    are_of_the_commit_and_not_of_the_staging needs Conditions,
    on_deletes needs Conditions,
    on_reads,
    on_reads_come_before_the_range,
    on_the_source_of_a_copy,
    on_the_destination_of_a_copy needs Conditions,
    on_generations needs Generations,
}

fn other() -> ETag {
    ETag::from_text("00000000000000000000000000000000")
}

async fn on_a_missing_key(desk: Fixture) {
    let refused = |precondition: Precondition| async { reason(desk.put_if("k", "new", precondition).await) };
    assert_eq!(refused(Precondition::Matches(other())).await, Reason::NoSuchKey);
    assert_eq!(refused(Precondition::Exists).await, Reason::NoSuchKey);
    if desk.capabilities().generations {
        assert_eq!(refused(Precondition::MatchesGeneration(Generation(1))).await, Reason::Conflict);
    }
    desk.assert_absent("k").await;
    desk.put_if("k", "new", Precondition::Absent).await.expect("the key is absent");
    assert_eq!(desk.read("k").await, "new");
}

async fn on_a_present_key(desk: Fixture) {
    let old = desk.put("k", "old").await;
    let before = desk.head("k").await;
    let refused = |precondition: Precondition| async { reason(desk.put_if("k", "new", precondition).await) };
    assert_eq!(refused(Precondition::Absent).await, Reason::PreconditionFailed);
    assert_eq!(refused(Precondition::Matches(other())).await, Reason::PreconditionFailed);
    assert_eq!(desk.read("k").await, "old");
    assert_eq!(desk.head("k").await, before, "a failed write changes nothing");
    desk.put_if("k", "two", Precondition::Matches(old.etag.clone())).await.expect("the tag matches");
    assert_eq!(refused(Precondition::Matches(old.etag)).await, Reason::PreconditionFailed);
    desk.put_if("k", "three", Precondition::Exists).await.expect("the key exists");
    assert_eq!(desk.read("k").await, "three");
}

async fn on_generations(desk: Fixture) {
    let old = desk.put("k", "old").await;
    let refused = |precondition: Precondition| async { reason(desk.put_if("k", "new", precondition).await) };
    assert_eq!(
        refused(Precondition::MatchesGeneration(Generation(old.generation.0 + 1))).await,
        Reason::Conflict
    );
    assert_eq!(desk.read("k").await, "old");
    let two = desk
        .put_if("k", "two", Precondition::MatchesGeneration(old.generation))
        .await
        .expect("it is that write");
    assert_eq!(refused(Precondition::MatchesGeneration(old.generation)).await, Reason::Conflict);
    desk.put_if("k", "three", Precondition::Exists).await.expect("the key exists");
    assert_eq!(refused(Precondition::MatchesGeneration(two.generation)).await, Reason::Conflict);
    assert_eq!(desk.read("k").await, "three");
}

async fn are_of_the_commit_and_not_of_the_staging(desk: Fixture) {
    let context = context();
    let when_absent = StageRequest { precondition: Precondition::Absent, ..StageRequest::default() };
    let staging = desk.store.stage(&context, &key_address("k"), when_absent.clone()).await;
    let mut staged = staging.expect("staging begins");
    staged.write("late".into()).await.expect("bytes are staged");
    desk.put("k", "in between").await;
    assert_eq!(reason(staged.commit(Expected::default()).await), Reason::PreconditionFailed);
    assert_eq!(desk.read("k").await, "in between");

    let staged = desk.store.stage(&context, &key_address("k"), when_absent).await.expect("staging begins");
    desk.delete("k").await;
    staged.commit(Expected::default()).await.expect("the key is absent now");
    assert_eq!(desk.read("k").await, "");
}

async fn on_deletes(desk: Fixture) {
    let delete = async |precondition| desk.store.delete(&context(), &key_address("k"), precondition).await;
    let old = desk.put("k", "old").await;
    assert_eq!(reason(delete(Precondition::Matches(other())).await), Reason::PreconditionFailed);
    if desk.capabilities().generations {
        assert_eq!(
            reason(delete(Precondition::MatchesGeneration(Generation(old.generation.0 + 1))).await),
            Reason::Conflict
        );
    }
    assert_eq!(desk.read("k").await, "old");
    assert!(delete(Precondition::Matches(old.etag.clone())).await.expect("the tag matches").existed);
    assert_eq!(reason(delete(Precondition::Matches(old.etag)).await), Reason::NoSuchKey);
    assert_eq!(reason(delete(Precondition::Exists).await), Reason::NoSuchKey);
    let new = desk.put("k", "new").await;
    if desk.capabilities().generations {
        assert!(
            delete(Precondition::MatchesGeneration(new.generation)).await.expect("it is that write").existed
        );
        desk.put("k", "new").await;
    }
    assert!(delete(Precondition::Exists).await.expect("it exists").existed);
    desk.assert_absent("k").await;
}

async fn on_reads(desk: Fixture) {
    let etag = desk.put("k", "bytes").await.etag;
    let modified = desk.head("k").await.modified;
    let later = |seconds: i64| Some(Timestamp::from_millis(modified.millis() + seconds * 1000));
    let this = Some(ETagMatch::OneOf(vec![other(), etag]));
    let not_this = Some(ETagMatch::OneOf(vec![other()]));
    let none = ReadConditions::default;
    let outcomes = [
        (ReadConditions { if_match: this.clone(), ..none() }, None),
        (ReadConditions { if_match: Some(ETagMatch::Any), ..none() }, None),
        (ReadConditions { if_match: not_this.clone(), ..none() }, Some(Reason::PreconditionFailed)),
        (ReadConditions { if_none_match: not_this.clone(), ..none() }, None),
        (ReadConditions { if_none_match: this.clone(), ..none() }, Some(Reason::NotModified)),
        (ReadConditions { if_none_match: Some(ETagMatch::Any), ..none() }, Some(Reason::NotModified)),
        (ReadConditions { if_modified_since: later(-5), ..none() }, None),
        (ReadConditions { if_modified_since: later(0), ..none() }, Some(Reason::NotModified)),
        (ReadConditions { if_unmodified_since: later(0), ..none() }, None),
        (ReadConditions { if_unmodified_since: later(-5), ..none() }, Some(Reason::PreconditionFailed)),
        (ReadConditions { if_match: this, if_unmodified_since: later(-5), ..none() }, None),
        (ReadConditions { if_none_match: not_this, if_modified_since: later(5), ..none() }, None),
    ];
    for (conditions, refused) in outcomes {
        let request = GetRequest { conditions: conditions.clone(), ..GetRequest::default() };
        let got = desk.get("k", request.clone()).await;
        let head = desk.store.head(&context(), &key_address("k"), request).await;
        assert_eq!(got.err().map(|e| e.reason()), refused, "get with {conditions:?}");
        assert_eq!(head.err().map(|e| e.reason()), refused, "head with {conditions:?}");
    }
    let anything = ReadConditions { if_match: Some(ETagMatch::Any), ..none() };
    let missing = desk.get("other", GetRequest { conditions: anything, ..GetRequest::default() }).await;
    assert_eq!(reason(missing), Reason::NoSuchKey, "conditions apply to existing objects");
}

async fn on_reads_come_before_the_range(desk: Fixture) {
    let etag = desk.put("k", "bytes").await.etag;
    let conditions =
        ReadConditions { if_none_match: Some(ETagMatch::OneOf(vec![etag])), ..ReadConditions::default() };
    let request =
        GetRequest { select: Select::Range(ByteRange::From(100)), conditions, ..GetRequest::default() };
    assert_eq!(reason(desk.get("k", request).await), Reason::NotModified);
}

async fn on_the_source_of_a_copy(desk: Fixture) {
    let etag = desk.put("from", "bytes").await.etag;
    let copy = async |conditions: ReadConditions| {
        let request = crate::store::CopyRequest {
            source_conditions: conditions,
            ..copy_request(key_address("from"), key_address_two("to"))
        };
        desk.store.copy(&context(), request).await
    };
    let tags = |etag: ETag| Some(ETagMatch::OneOf(vec![etag]));
    let none = ReadConditions::default;
    let unmatched = copy(ReadConditions { if_match: tags(other()), ..none() }).await;
    assert_eq!(reason(unmatched), Reason::PreconditionFailed);
    let known = copy(ReadConditions { if_none_match: tags(etag.clone()), ..none() }).await;
    assert_eq!(reason(known).kind(), ErrorKind::Precondition);
    let target = desk.store.head(&context(), &key_address_two("to"), GetRequest::default()).await;
    assert_eq!(reason(target), Reason::NoSuchKey, "a failed copy writes nothing");
    copy(ReadConditions { if_match: tags(etag), ..none() }).await.expect("the tag matches");
}

async fn on_the_destination_of_a_copy(desk: Fixture) {
    desk.put("from", "bytes").await;
    let copy = async |precondition: Precondition| {
        let request = crate::store::CopyRequest {
            precondition,
            ..copy_request(key_address("from"), key_address("to"))
        };
        desk.store.copy(&context(), request).await
    };
    assert_eq!(reason(copy(Precondition::Exists).await), Reason::NoSuchKey);
    let first = copy(Precondition::Absent).await.expect("the key is absent");
    assert_eq!(reason(copy(Precondition::Absent).await), Reason::PreconditionFailed);
    assert_eq!(reason(copy(Precondition::Matches(other())).await), Reason::PreconditionFailed);
    if desk.capabilities().generations {
        let second = copy(Precondition::MatchesGeneration(first.generation)).await.expect("it is that write");
        assert_eq!(reason(copy(Precondition::MatchesGeneration(first.generation)).await), Reason::Conflict);
        assert_eq!(desk.head("to").await.generation, second.generation);
    }
}
