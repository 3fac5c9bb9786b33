//! Stores with deduplicated objects whose bucket of chunks is gone, or whose marker is damaged.

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

/// Flips a bit of these bytes in the log. The server is stopped.
fn damage_log(data: &Path, bytes: &[u8]) {
    let mut damaged = 0;
    let mut directories = vec![data.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let mut content = std::fs::read(&path).unwrap();
            let found = content.windows(bytes.len()).position(|window| window == bytes);
            if let Some(position) = found {
                content[position] ^= 1;
                std::fs::write(&path, content).unwrap();
                damaged += 1;
            }
        }
    }
    assert_eq!(damaged, 1, "the bytes are in one file");
}

#[test]
fn server_starts_with_a_damaged_marker_of_the_chunks() {
    let dir = TestDir::new();
    let data = dir.directory.path().join("data");
    let setup = setup_with_deduplication(dir.directory.path(), &data);
    let mut server = setup.start().unwrap();
    let mut s3 = S3::new(server.endpoint, root_key());
    s3.put("bucket", &[]).unwrap();
    super::eventually("the layer is ready", || server.logged().contains("all objects are examined"));
    let content = Content { id: 1, size: 300_000 }.bytes();
    assert_eq!(s3.put("bucket/large", &content).unwrap().status, 200);
    assert!(server.terminate().unwrap().success());
    damage_log(&data, b"tradewind deduplicated chunks 1\n");
    for _ in 0..2 {
        let mut server = setup.start().unwrap();
        let mut s3 = S3::new(server.endpoint, root_key());
        assert!(s3.get("bucket/large").unwrap().body == content);
        assert_eq!(
            server.logged().matches("is damaged; writing it again").count(),
            1,
            "only the first start"
        );
        assert!(server.terminate().unwrap().success());
    }
}
