use super::*;
use crate::clock::SystemClock;
use crate::object::Expected;
use crate::store::{GetRequest, Select, StageRequest};
use crate::testing::context;

async fn with_bucket() -> (Arc<MemoryStore>, Address) {
    let store = MemoryStore::new(SystemClock::shared());
    let address = Address::parse("bucket", "key").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    (store, address)
}

async fn put(
    store: &dyn ObjectStore,
    address: &Address,
    bytes: Vec<u8>,
    when: Precondition,
) -> Result<Committed> {
    let context = context();
    let request = StageRequest { precondition: when, ..StageRequest::default() };
    let mut staged = store.stage(&context, address, request).await?;
    staged.write(bytes.into()).await?;
    Ok(staged.commit(Expected::default()).await?.0)
}

#[tokio::test]
async fn bytes_come_back_in_pieces() {
    let (store, address) = with_bucket().await;
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let committed = put(&*store, &address, bytes.clone(), Precondition::Absent).await.unwrap();
    assert_eq!(committed.etag.md5(), Some(<md5::Md5 as md5::Digest>::digest(&bytes).into()));
    let found = store.get(&context(), &address, GetRequest::default()).await.unwrap();
    assert_eq!(found.info.size, 200_000);
    assert_eq!(found.body.collect().await.unwrap(), bytes);
    let again = put(&*store, &address, vec![], Precondition::Absent).await.unwrap_err();
    assert_eq!(again.reason(), Reason::PreconditionFailed);
}

#[tokio::test]
async fn parts_become_an_object() {
    let (store, address) = with_bucket().await;
    let context = context();
    let id = store.create_upload(&context, &address, CreateUpload::default()).await.unwrap();
    let mut parts = Vec::new();
    for (number, size) in [(2, 5 << 20), (7, 3)] {
        let number = PartNumber::new(number).unwrap();
        let mut staged =
            store.stage_part(&context, &address, &id, number, StageRequest::default()).await.unwrap();
        staged.write(vec![9; size].into()).await.unwrap();
        let (committed, _) = staged.commit(Expected::default()).await.unwrap();
        parts.push(crate::multipart::CompletePart { number, etag: committed.etag, checksum: None });
    }
    let request = CompleteUpload { parts, ..CompleteUpload::default() };
    let committed = store.complete_upload(&context, &address, &id, request).await.unwrap();
    assert!(committed.etag.as_str().ends_with("-2"));
    let select = Select::Part(PartNumber::new(7).unwrap());
    let found = store.get(&context, &address, GetRequest { select, ..GetRequest::default() }).await.unwrap();
    assert_eq!((found.span.offset, found.info.parts), (5 << 20, Some(2)));
    assert_eq!(found.body.collect().await.unwrap(), vec![9; 3]);
}

#[tokio::test]
async fn nothing_works_after_close() {
    let (store, address) = with_bucket().await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    let error = put(&*store, &address, vec![], Precondition::None).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ShuttingDown);
}
