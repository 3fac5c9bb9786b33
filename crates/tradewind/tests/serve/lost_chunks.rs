//! A store with deduplicated objects whose bucket of chunks is gone.

use std::path::Path;

use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::listing::ListRequest;
use tradewind_core::testing::context;
use tradewind_core::{Address, BucketName, ObjectStore as _, Precondition, SystemClock};

use super::TestDir;
use super::support::content::Content;
use super::support::s3::S3;
use super::support::server::root_key;
use super::support::setup_with_deduplication;

const CHUNKS: &str = "tradewind-deduplicated-chunks";

/// Deletes the bucket of chunks. The server is stopped.
async fn delete_chunks(data: &Path) {
    let store = LocalStore::open(data, LocalOptions::default(), SystemClock::shared()).unwrap();
    let bucket = BucketName::new(CHUNKS).unwrap();
    let request = ListRequest { limit: 1_000, ..ListRequest::default() };
    let page = store.list(&context(), &bucket, &request).await.unwrap();
    assert!(page.entries.len() > 1, "nothing was deduplicated");
    for entry in page.entries {
        let address = Address::parse(CHUNKS, entry.name()).unwrap();
        store.delete(&context(), &address, Precondition::None).await.unwrap();
    }
    store.delete_bucket(&context(), &bucket).await.unwrap();
    store.close().await.unwrap();
}

#[test]
fn server_stops_with_an_error_if_the_bucket_of_chunks_is_gone() {
    let dir = TestDir::new();
    let data = dir.directory.path().join("data");
    let setup = setup_with_deduplication(dir.directory.path(), &data);
    let mut server = setup.start().unwrap();
    let mut s3 = S3::new(server.endpoint, root_key());
    s3.put("bucket", &[]).unwrap();
    // The new layer stores plain objects until it is ready.
    super::eventually("the layer is ready", || server.logged().contains("all objects are examined"));
    assert_eq!(s3.put("bucket/large", &Content { id: 1, size: 300_000 }.bytes()).unwrap().status, 200);
    assert!(server.terminate().unwrap().success());
    tokio::runtime::Runtime::new().unwrap().block_on(delete_chunks(&data));
    for _ in 0..2 {
        let reported = match setup.start() {
            Ok(mut server) => {
                let status = server.wait().unwrap();
                assert_eq!(status.code(), Some(1), "{}", server.logged());
                server.logged()
            }
            // It may end before it is seen to be ready.
            Err(refused) => format!("{refused} {}", std::fs::read_to_string(&setup.log).unwrap()),
        };
        let words = ["a store cannot be served", "volume \"v\"", "\"large\"", "restore the bucket"];
        let reported = reported.replace('\\', "");
        assert!(words.iter().all(|word| reported.contains(word)), "{reported}");
    }
}
