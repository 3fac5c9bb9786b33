//! Corrupted bytes on disk are never served, and everything else still is.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::collections::BTreeMap;

use bytes::Bytes;
use tradewind_backend::local::LocalOptions;
use tradewind_core::error::Reason;

use test_store::{
    Random, TestStore, check, copy_tree, find_offset, invert_byte, pattern, range, reason, segments, small,
};

/// Fills a store with small and large objects, an upload and a multipart object; returns its contents.
async fn filled(root: &std::path::Path) -> BTreeMap<String, Bytes> {
    let desk = TestStore::new(root).await;
    let mut expected = BTreeMap::new();
    for n in 0..12 {
        expected.insert(format!("small{n}"), pattern(200 + 100 * n, n as u64));
        expected.insert(format!("large{n}"), pattern(20_000 * (n + 1), 100 + n as u64));
    }
    for (key, bytes) in &expected {
        desk.put(key, bytes.clone()).await;
    }
    let upload = desk.create_upload("multi").await;
    let part = desk.part("multi", &upload, 1, pattern(150_000, 77)).await.unwrap();
    desk.complete("multi", &upload, vec![part]).await.unwrap();
    expected.insert("multi".to_owned(), pattern(150_000, 77));
    desk.close().await;
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_byte_damages_at_most_one_object() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let expected = filled(&root).await;
    let mut random = Random(4711);
    let files = [segments(&root, "log"), segments(&root, "bulk")].concat();
    let mut spoiled_ever = 0;
    for round in 0..60 {
        let original = &files[random.below(files.len())];
        let good = std::fs::read(original).unwrap();
        let offset = random.below(good.len());
        invert_byte(original, offset);
        let desk = TestStore::open(&root, small()).unwrap();
        let mut spoiled = Vec::new();
        for (key, bytes) in &expected {
            match desk.get(key).await {
                Ok(got) => assert!(got == *bytes, "round {round}: {key} has wrong bytes"),
                Err(e) => {
                    assert_eq!(e.reason(), Reason::CorruptData, "round {round}: {key}: {e:?}");
                    spoiled.push(format!("bucket/{key}"));
                }
            }
        }
        assert!(spoiled.len() <= 1, "round {round}: {} at {offset} spoiled {spoiled:?}", original.display());
        assert_eq!(desk.names().await.len(), expected.len());
        let closed = desk.close().await;
        let named: Vec<_> = check(&closed).unwrap().damage.into_iter().map(|damage| damage.item).collect();
        let objects: Vec<_> = named.iter().filter(|what| what.starts_with("bucket/")).cloned().collect();
        assert_eq!(objects, spoiled, "round {round}: check names exactly the damaged objects");
        spoiled_ever += spoiled.len();
        std::fs::write(original, good).unwrap();
    }
    assert!(spoiled_ever > 20, "the damage had an effect {spoiled_ever} times");
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_and_reindex_affect_only_damaged_objects() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let expected = filled(&root).await;
    let mut random = Random(815);
    for round in 0..25 {
        let copied = place.path().join(round.to_string());
        copy_tree(&root, &copied);
        let files = [segments(&copied, "log"), segments(&copied, "bulk")].concat();
        let file = &files[random.below(files.len())];
        let offset = random.below(std::fs::metadata(file).unwrap().len() as usize);
        invert_byte(file, offset);
        std::fs::remove_dir_all(copied.join("index")).unwrap();
        let desk = TestStore::open(&copied, small()).unwrap();
        // If the bucket's own record is hit, its objects are kept under a name that indicates this.
        let context = tradewind_core::testing::context();
        let buckets = tradewind_core::ObjectStore::list_buckets(&*desk.store, &context).await.unwrap();
        let bucket = buckets.into_iter().next().expect("a bucket exists").name;
        let mut spoiled = 0;
        for (key, bytes) in &expected {
            let address = tradewind_core::Address::parse(bucket.as_str(), key).unwrap();
            let context = tradewind_core::testing::context();
            let got =
                tradewind_core::ObjectStore::get(&*desk.store, &context, &address, Default::default()).await;
            let got = match got {
                Ok(found) => test_store::drain(found.body).await,
                Err(e) => Err(e),
            };
            match got {
                Ok(got) => assert!(got == *bytes, "round {round}: {key} has wrong bytes"),
                Err(_) => spoiled += 1,
            }
        }
        assert!(spoiled <= 1, "round {round}: {} at {offset} spoiled {spoiled}", file.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bucket_with_lost_record_keeps_its_objects() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let expected = filled(&root).await;
    let log = &segments(&root, "log")[0];
    invert_byte(log, find_offset(log, b"bucket").unwrap());
    std::fs::remove_dir_all(root.join("index")).unwrap();
    for turn in 0..3 {
        let desk = TestStore::open(&root, small()).unwrap();
        let context = tradewind_core::testing::context();
        let buckets = tradewind_core::ObjectStore::list_buckets(&*desk.store, &context).await.unwrap();
        assert_eq!(buckets.len(), 1, "turn {turn}");
        let name = buckets[0].name.clone();
        assert!(name.as_str().starts_with("recovered-"), "{name}");
        let request = tradewind_core::listing::ListRequest { limit: 1000, ..Default::default() };
        let page = tradewind_core::ObjectStore::list(&*desk.store, &context, &name, &request).await.unwrap();
        assert_eq!(page.entries.len(), expected.len());
        desk.compact().await;
        desk.close().await;
        if turn == 0 {
            std::fs::remove_dir_all(root.join("index")).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_short_segment_affects_only_its_objects() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    filled(&root).await;
    let bulk = segments(&root, "bulk").pop().unwrap();
    let length = std::fs::metadata(&bulk).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&bulk).unwrap().set_len(length / 2).unwrap();
    let accepting = || LocalOptions { accept_loss: true, ..small() };
    let desk = TestStore::open(&root, accepting()).unwrap();
    assert_eq!(reason(desk.get("multi").await), Reason::CorruptData);
    desk.assert_holds("small3", &pattern(500, 3)).await;
    desk.put("new", pattern(50_000, 5)).await;
    let root = desk.close().await;
    std::fs::remove_file(&bulk).unwrap();
    let desk = TestStore::open(&root, accepting()).unwrap();
    assert_eq!(reason(desk.get("multi").await), Reason::CorruptData);
    desk.assert_holds("small3", &pattern(500, 3)).await;
    desk.compact().await;
    desk.assert_holds("small3", &pattern(500, 3)).await;
    desk.assert_holds("new", &pattern(50_000, 5)).await;
    assert!(!check(&desk.close().await).unwrap().damage.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn small_range_of_large_object_reads_at_most_two_blocks() {
    const BLOCK: u64 = 64 << 10;
    const HEAD: u64 = 2048;
    let place = tempfile::tempdir().unwrap();
    let desk =
        TestStore::with_options(place.path(), LocalOptions { inline_bytes: 128 << 10, ..small() }).await;
    let bytes = pattern(9 << 20, 1);
    desk.put("large", bytes.clone()).await;
    desk.put("inline", bytes.slice(..128 << 10)).await;
    let mut random = Random(99);
    for round in 0..60 {
        let first = if round % 5 == 0 {
            BLOCK * (round / 5 + 1) - 100
        } else {
            random.below((9 << 20) - 4096) as u64
        };
        let first = first.min((9 << 20) - 4096);
        let before = desk.store.read_bytes();
        let got = desk.get_range("large", range(first, 4096)).await.unwrap();
        assert!(got == bytes[first as usize..first as usize + 4096]);
        let read = desk.store.read_bytes() - before;
        assert!(read <= 2 * BLOCK + 3 * HEAD, "{read} bytes were read for 4,096 at {first}");
    }
    let before = desk.store.read_bytes();
    desk.get_range("inline", range(70_000, 4096)).await.unwrap();
    assert!(desk.store.read_bytes() - before <= 2 * BLOCK + HEAD);
}
