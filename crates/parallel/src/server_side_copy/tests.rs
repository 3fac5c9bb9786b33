use bytes::Bytes;
use tradewind_core::object::Expected;
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, context};
use tradewind_core::{
    Address, Budget, Class, Classes, Metadata, Precondition, ReadConditions, SystemClock, SystemHeaders, Tags,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;

use super::*;

const MIB: usize = 1 << 20;

fn transfers() -> Arc<TransferContext> {
    let plan = Plan::default().with_chunk_bytes(5 << 20);
    Arc::new(TransferContext::new(
        plan,
        Budget::new(64 << 20),
        SystemClock::shared(),
        RetryOptions::default(),
    ))
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn request() -> CopyRequest {
    CopyRequest {
        source: address("from"),
        source_conditions: ReadConditions::default(),
        destination: address("to"),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::default(),
    }
}

/// A store that rejects copies, with an object.
async fn store_without_copies(bytes: &Bytes) -> Arc<Faulty<MemoryStore>> {
    let lacking = Fault::FailBefore(Reason::Unsupported);
    let plan = FaultPlan::none().with_fault(Operation::Copy, FaultSchedule::Always, lacking).with_fault(
        Operation::CopyPart,
        FaultSchedule::Always,
        lacking,
    );
    let store = Faulty::new(MemoryStore::new(SystemClock::shared()), plan);
    store.create_bucket(&context(), &address("a").bucket).await.unwrap();
    let metadata = Metadata {
        headers: SystemHeaders {
            content_type: Some("text/plain".to_owned()),
            website_redirect: Some("/elsewhere".to_owned()),
            ..SystemHeaders::default()
        },
        user: vec![("color".to_owned(), "blue".to_owned())],
        tags: Tags::new(vec![("team".to_owned(), "a".to_owned())]).unwrap(),
        classes: Classes { object: Some(Class::new(25).unwrap()), ..Classes::default() },
    };
    let stage = StageRequest { metadata, ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address("from"), stage).await.unwrap();
    staged.write(bytes.clone()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    store
}

#[tokio::test]
async fn object_is_not_relayed_over_itself_without_a_condition() {
    let bytes = Bytes::from_static(b"bytes");
    let faulty = store_without_copies(&bytes).await;
    let (store, transfers): (Arc<dyn ObjectStore>, _) = (faulty.clone(), transfers());
    let own = CopyRequest { destination: address("from"), metadata: Some(Metadata::default()), ..request() };
    // Known to lack copies, and not yet known.
    for round in 0..2 {
        let rejected = copy_with_limit(&transfers, &store, &own, MAX_SINGLE_COPY_BYTES).await;
        assert_eq!(rejected.unwrap_err().reason(), Reason::Unsupported, "round {round}");
        copy_with_limit(&transfers, &store, &request(), MAX_SINGLE_COPY_BYTES).await.unwrap();
    }
    let conditional = CopyRequest { precondition: Precondition::Exists, ..own };
    copy_with_limit(&transfers, &store, &conditional, MAX_SINGLE_COPY_BYTES).await.unwrap();
}

#[tokio::test]
async fn store_without_copies_is_read_and_written() {
    // In one request, and in parts.
    for (size, max_single_bytes) in
        [(1000, MAX_SINGLE_COPY_BYTES), (1000, 10), (12 * MIB, MAX_SINGLE_COPY_BYTES)]
    {
        let bytes = Bytes::from((0..size).map(|n| (n % 251) as u8).collect::<Vec<u8>>());
        let faulty = store_without_copies(&bytes).await;
        let (store, transfers): (Arc<dyn ObjectStore>, _) = (faulty.clone(), transfers());
        for round in 1..=3 {
            let copied = copy_with_limit(&transfers, &store, &request(), max_single_bytes).await.unwrap();
            assert_eq!(copied.committed.size, size as u64);
            let found = store.get(&context(), &address("to"), GetRequest::default()).await.unwrap();
            let metadata = found.info.metadata;
            assert!(found.body.collect().await.unwrap() == bytes);
            assert_eq!(metadata.headers.content_type.as_deref(), Some("text/plain"));
            assert_eq!(metadata.headers.website_redirect, None, "as of a copy by the store");
            assert_eq!(metadata.user, [("color".to_owned(), "blue".to_owned())]);
            assert_eq!(metadata.tags.pairs().len(), 1);
            assert_eq!(metadata.classes.object, Some(Class::new(25).unwrap()));
            let attempts = faulty.calls(Operation::Copy) + faulty.calls(Operation::CopyPart);
            assert_eq!(attempts, 1, "round {round}");
        }
    }
}

#[tokio::test]
async fn relayed_copy_has_its_changes_and_conditions() {
    let faulty = store_without_copies(&Bytes::from("bytes")).await;
    let (store, transfers): (Arc<dyn ObjectStore>, _) = (faulty, transfers());
    let new = Metadata { user: vec![("color".to_owned(), "red".to_owned())], ..Metadata::default() };
    let changed = CopyRequest { metadata: Some(new), tags: Some(Tags::default()), ..request() };
    copy_within_store(&transfers, &store, changed).await.unwrap();
    let found = store.head(&context(), &address("to"), GetRequest::default()).await.unwrap().info.metadata;
    assert_eq!(found.user, [("color".to_owned(), "red".to_owned())]);
    assert_eq!((found.tags.pairs().len(), found.headers.content_type), (0, None));

    let other = Some(ETagMatch::OneOf(vec![tradewind_core::ETag::from_text("\"other\"")]));
    let source_conditions = ReadConditions { if_match: other, ..ReadConditions::default() };
    for refused in [
        CopyRequest { source_conditions, ..request() },
        CopyRequest { precondition: Precondition::Absent, ..request() },
    ] {
        let error = copy_within_store(&transfers, &store, refused).await.unwrap_err();
        assert_eq!(error.reason(), Reason::PreconditionFailed);
    }
}
