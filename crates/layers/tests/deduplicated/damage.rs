//! Chunks that are damaged, missing or exchanged, and manifests without their layer.

use bytes::Bytes;
use tradewind_core::error::Reason;
use tradewind_core::layer::Method;
use tradewind_core::listing::ListRequest;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{context, reason, write_all};
use tradewind_core::{Address, BucketName, ByteRange, ObjectStore, Precondition};

use super::copy_request;
use super::support::{
    CHUNKS, Desk, PausingStore, address, chunks, deduplicated, get, memory, noise, put, read, try_put,
};

pub async fn replace_chunk(below: &dyn ObjectStore, key: &str, bytes: Bytes) {
    let address = Address::parse(CHUNKS, key).unwrap();
    let mut staged = below.stage(&context(), &address, StageRequest::default()).await.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

/// For each chunk: a damaged byte, another chunk, no bytes, and no object.
#[tokio::test]
async fn no_other_bytes_are_served_for_a_damaged_chunk() {
    let bytes = noise(600_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "k", bytes.clone()).await;
    let (keys, _) = chunks(&*desk.below).await;
    for key in &keys {
        let chunk = Address::parse(CHUNKS, key).unwrap();
        let original = desk.below.get(&context(), &chunk, GetRequest::default()).await.unwrap();
        let original = original.body.collect().await.unwrap();
        let mut flipped = original.to_vec();
        flipped[original.len() / 2] ^= 1;
        for damage in [Some(Bytes::from(flipped)), Some(noise(original.len(), 9)), Some(Bytes::new()), None] {
            match damage {
                Some(damage) => replace_chunk(&*desk.below, key, damage).await,
                None => drop(desk.below.delete(&context(), &chunk, Precondition::None).await.unwrap()),
            }
            assert_eq!(reason(get(&*desk.layer, "k", GetRequest::default()).await), Reason::CorruptData);
            let mut failed = 0;
            for first in (0..600_000).step_by(5_000) {
                let range = ByteRange::Inclusive { first, last: first + 99 };
                let request = GetRequest { select: Select::Range(range), ..GetRequest::default() };
                match get(&*desk.layer, "k", request).await {
                    Ok((_, _, found)) => assert!(found == bytes[first as usize..first as usize + 100]),
                    Err(error) => {
                        assert_eq!(error.reason(), Reason::CorruptData);
                        failed += 1;
                    }
                }
            }
            assert!(failed > 0 && failed < 120, "{failed} of 120 ranges failed");
        }
        replace_chunk(&*desk.below, key, original).await;
    }
    assert!(read(&*desk.layer, "k").await == bytes);
}

#[tokio::test]
async fn a_chunk_found_damaged_is_stored_again_by_the_next_write() {
    let bytes = noise(300_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "old", bytes.clone()).await;
    let (keys, _) = chunks(&*desk.below).await;
    let chunk = Address::parse(CHUNKS, &keys[0]).unwrap();
    let size = desk.below.head(&context(), &chunk, GetRequest::default()).await.unwrap().info.size;
    replace_chunk(&*desk.below, &keys[0], noise(usize::try_from(size).unwrap(), 9)).await;
    assert_eq!(reason(get(&*desk.layer, "old", GetRequest::default()).await), Reason::CorruptData);
    put(&*desk.layer, "new", bytes.clone()).await;
    for key in ["old", "new"] {
        assert!(read(&*desk.layer, key).await == bytes, "{key}");
    }
    let counts = desk.layer.counts();
    assert_eq!((counts.stored_chunks, counts.found_chunks), (keys.len() as u64 + 1, keys.len() as u64 - 1));
}

/// Nothing in memory says after a restart that the chunk was found damaged.
#[tokio::test]
async fn a_chunk_found_damaged_before_a_restart_is_stored_again_after_it() {
    let bytes = noise(300_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "old", bytes.clone()).await;
    let (keys, _) = chunks(&*desk.below).await;
    for key in &keys {
        let chunk = Address::parse(CHUNKS, key).unwrap();
        let size = desk.below.head(&context(), &chunk, GetRequest::default()).await.unwrap().info.size;
        replace_chunk(&*desk.below, key, noise(usize::try_from(size).unwrap(), 9)).await;
        assert_eq!(reason(get(&*desk.layer, "old", GetRequest::default()).await), Reason::CorruptData);
        let restarted = deduplicated(desk.below.clone()).await;
        put(&*restarted, "new", bytes.clone()).await;
        for key in ["old", "new"] {
            assert!(read(&*restarted, key).await == bytes, "{key}");
        }
    }
}

/// The keys of marks of doubt.
pub async fn marks(desk: &Desk) -> Vec<String> {
    let request = ListRequest { prefix: "doubt-".to_owned(), limit: 100, ..ListRequest::default() };
    let page = desk.below.list(&context(), &BucketName::new(CHUNKS).unwrap(), &request).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

/// The damaged bytes of an object's first chunk, whose size is right.
pub async fn damage_first_chunk(desk: &Desk) -> DamagedChunk {
    let key = chunks(&*desk.below).await.0.swap_remove(0);
    let address = Address::parse(CHUNKS, &key).unwrap();
    let found = desk.below.get(&context(), &address, GetRequest::default()).await.unwrap();
    let original = found.body.collect().await.unwrap();
    replace_chunk(&*desk.below, &key, noise(original.len(), 9)).await;
    DamagedChunk { key, original }
}

pub struct DamagedChunk {
    pub key: String,
    pub original: Bytes,
}

/// A flip in the page cache, which is gone later: the bytes on the disk were never wrong.
#[tokio::test]
async fn a_chunk_that_a_read_finds_damaged_is_marked_and_not_deleted() {
    let bytes = noise(300_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "k", bytes.clone()).await;
    let DamagedChunk { key, original } = damage_first_chunk(&desk).await;
    for _ in 0..2 {
        assert_eq!(reason(get(&*desk.layer, "k", GetRequest::default()).await), Reason::CorruptData);
        assert_eq!(marks(&desk).await, [format!("doubt-{key}")]);
    }
    replace_chunk(&*desk.below, &key, original).await;
    assert!(read(&*desk.layer, "k").await == bytes);
    // The next write stores the chunk again, and ends the doubt.
    for stored in [1, 0] {
        let before = desk.layer.counts().stored_chunks;
        put(&*desk.layer, "again", bytes.clone()).await;
        assert_eq!(desk.layer.counts().stored_chunks - before, stored);
        assert!(marks(&desk).await.is_empty());
    }
}

#[tokio::test]
async fn mark_of_a_chunk_that_no_object_needs_is_deleted_with_it() {
    let desk = Desk::new().await;
    put(&*desk.layer, "k", noise(300_000, 1)).await;
    damage_first_chunk(&desk).await;
    assert_eq!(reason(get(&*desk.layer, "k", GetRequest::default()).await), Reason::CorruptData);
    desk.collect().await;
    assert_eq!(marks(&desk).await.len(), 1);
    desk.layer.delete(&context(), &address("k"), Precondition::None).await.unwrap();
    desk.collect().await;
    assert!(marks(&desk).await.is_empty());
}

/// The write has found the chunk, and a read finds it damaged before the commit.
#[tokio::test]
async fn a_write_is_not_acknowledged_if_one_of_its_chunks_was_found_damaged() {
    let bytes = noise(300_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "old", bytes.clone()).await;
    damage_first_chunk(&desk).await;
    let request = StageRequest { size: Some(300_000), ..StageRequest::default() };
    let mut staged = desk.layer.stage(&context(), &address("new"), request).await.unwrap();
    write_all(&mut *staged, bytes.clone()).await.unwrap();
    while desk.layer.counts().found_chunks == 0 {
        tokio::task::yield_now().await;
    }
    // All but the last chunk, which the commit cuts.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reason(get(&*desk.layer, "old", GetRequest::default()).await), Reason::CorruptData);
    assert_eq!(reason(staged.commit(Expected::default()).await), Reason::Overloaded);
    let missing = desk.layer.head(&context(), &address("new"), GetRequest::default()).await;
    assert_eq!(reason(missing), Reason::NoSuchKey);
    put(&*desk.layer, "new", bytes.clone()).await;
    for key in ["old", "new"] {
        assert!(read(&*desk.layer, key).await == bytes, "{key}");
    }
}

/// The read finds the damage while the manifest is being committed: it is stored, and the client must send it again.
#[tokio::test]
async fn a_write_fails_if_one_of_its_chunks_is_found_damaged_during_the_commit() {
    let bytes = noise(300_000, 1);
    let held = PausingStore::new(memory());
    let desk = Desk::with_store(held.clone()).await;
    put(&*desk.layer, "old", bytes.clone()).await;
    damage_first_chunk(&desk).await;
    let mut hold = held.hold(Method::Stage, "bucket");
    let (layer, written) = (desk.layer.clone(), bytes.clone());
    let write = tokio::spawn(async move { try_put(&*layer, "new", written).await });
    hold.reached().await;
    assert_eq!(reason(get(&*desk.layer, "old", GetRequest::default()).await), Reason::CorruptData);
    hold.release();
    assert_eq!(reason(write.await.unwrap()), Reason::Io);
    put(&*desk.layer, "new", bytes.clone()).await;
    for key in ["old", "new"] {
        assert!(read(&*desk.layer, key).await == bytes, "{key}");
    }
}

#[tokio::test]
async fn copy_of_a_doubtful_chunk_reads_it() {
    let bytes = noise(300_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "k", bytes.clone()).await;
    let DamagedChunk { key, original } = damage_first_chunk(&desk).await;
    assert_eq!(reason(get(&*desk.layer, "k", GetRequest::default()).await), Reason::CorruptData);
    let copied = desk.layer.copy(&context(), copy_request("k", "copy")).await;
    assert_eq!(reason(copied), Reason::CorruptData);
    replace_chunk(&*desk.below, &key, original).await;
    desk.layer.copy(&context(), copy_request("k", "copy")).await.unwrap();
    assert!(read(&*desk.layer, "copy").await == bytes && marks(&desk).await.is_empty());
}

/// A manifest that is wrong about a length does not cost other objects the chunk.
#[tokio::test]
async fn a_chunk_that_is_not_damaged_is_not_deleted_by_a_failed_read() {
    use tradewind_core::stored_form::{PlainAttributes, Reported};
    let (desk, bytes) = (Desk::new().await, noise(300_000, 1));
    put(&*desk.layer, "good", bytes.clone()).await;
    let info = desk.below.head(&context(), &address("good"), GetRequest::default()).await.unwrap().info;
    let description = info.stored.unwrap().segments[0].description.clone();
    let request = GetRequest { stored: true, ..GetRequest::default() };
    let found = desk.below.get(&context(), &address("good"), request).await.unwrap();
    let mut manifest = found.body.collect().await.unwrap().to_vec();
    manifest[32] ^= 1;
    let plain = PlainAttributes { size: info.size, etag: info.etag, checksums: info.checksums };
    let reported = Some(Reported { plain, description });
    let mut staged = desk.below.stage(&context(), &address("bad"), StageRequest::default()).await.unwrap();
    staged.write(manifest.into()).await.unwrap();
    staged.commit(Expected { reported, ..Expected::default() }).await.unwrap();
    assert_eq!(reason(get(&*desk.layer, "bad", GetRequest::default()).await), Reason::CorruptData);
    assert!(read(&*desk.layer, "good").await == bytes);
}

#[tokio::test]
async fn a_chunk_of_another_length_is_stored_again() {
    let bytes = noise(300_000, 1);
    let desk = Desk::new().await;
    put(&*desk.layer, "old", bytes.clone()).await;
    for key in chunks(&*desk.below).await.0 {
        replace_chunk(&*desk.below, &key, Bytes::from_static(b"short")).await;
    }
    put(&*desk.layer, "new", bytes.clone()).await;
    assert!(read(&*desk.layer, "old").await == bytes);
}

#[tokio::test]
async fn manifest_is_not_served_without_the_layer() {
    let desk = Desk::new().await;
    put(&*desk.layer, "k", noise(300_000, 1)).await;
    let error = desk.below.get(&context(), &address("k"), GetRequest::default()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unsupported);
    assert!(error.message().contains("deduplicated"), "{error}");
    let request = GetRequest { stored: true, ..GetRequest::default() };
    assert_eq!(reason(desk.layer.get(&context(), &address("k"), request).await), Reason::Unsupported);
}

/// Parts of a manifest that are exchanged or cut.
#[tokio::test]
async fn a_manifest_of_another_size_is_not_served() {
    use tradewind_core::stored_form::{PlainAttributes, Reported};
    let desk = Desk::new().await;
    let bytes = noise(600_000, 1);
    put(&*desk.layer, "k", bytes.clone()).await;
    let info = desk.below.head(&context(), &address("k"), GetRequest::default()).await.unwrap().info;
    let description = info.stored.unwrap().segments[0].description.clone();
    let request = GetRequest { stored: true, ..GetRequest::default() };
    let (_, _, manifest) = {
        let found = desk.below.get(&context(), &address("k"), request).await.unwrap();
        (found.info, found.span, found.body.collect().await.unwrap())
    };
    let cut = manifest.slice(..manifest.len() - 40);
    let reversed: Vec<u8> = manifest.chunks(40).rev().flatten().copied().collect();
    for stored in [cut, Bytes::from(reversed), Bytes::from(vec![0; 80])] {
        let plain =
            PlainAttributes { size: info.size, etag: info.etag.clone(), checksums: info.checksums.clone() };
        let reported = Some(Reported { plain, description: description.clone() });
        let mut staged = desk.below.stage(&context(), &address("k"), StageRequest::default()).await.unwrap();
        staged.write(stored).await.unwrap();
        staged.commit(Expected { reported, ..Expected::default() }).await.unwrap();
        assert_eq!(reason(get(&*desk.layer, "k", GetRequest::default()).await), Reason::CorruptData);
        let last = Select::Range(ByteRange::Suffix(1));
        let request = GetRequest { select: last, ..GetRequest::default() };
        assert_eq!(reason(get(&*desk.layer, "k", request).await), Reason::CorruptData);
        // A collection that cannot read it deletes nothing.
        let before = desk.chunk_bytes().await;
        assert_eq!(reason(desk.layer.collect(&context()).await), Reason::CorruptData);
        assert_eq!(desk.chunk_bytes().await, before);
    }
}
