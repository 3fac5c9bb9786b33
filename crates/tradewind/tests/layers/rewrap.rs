//! Rotation of keys over a local store: bytes stay on the disk, and races and restarts lose nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tradewind_backend::local::{LocalOptions, LocalStore, check, reindex};
use tradewind_core::multipart::{
    CompletePart, CompleteUpload, CreateUpload, MIN_PART_BYTES, PartNumber, UploadId,
};
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{context, pattern, write_all};
use tradewind_core::{BucketName, ObjectStore, SystemClock};
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{Keyring, MasterKey};

use super::{POLICIES, address, get, put};

fn open(directory: &Path) -> Arc<LocalStore> {
    LocalStore::open(directory, LocalOptions::default(), SystemClock::shared()).unwrap()
}

/// The layer with these keys, the first of which is current.
fn layer(below: &Arc<LocalStore>, names: &[&str]) -> Arc<Transformed> {
    let keys = names.iter().map(|name| ((*name).to_owned(), MasterKey::new([name.len() as u8; 32])));
    let keys = Keyring { current: Some(names[0].to_owned()), keys: keys.collect() };
    Transformed::new(below.clone(), POLICIES[1], keys).unwrap()
}

/// The contents of the segments by name, without the zeros behind the log.
fn segments(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(directory.join("segments")).unwrap();
    files
        .map(|file| {
            let file = file.unwrap();
            let mut content = std::fs::read(file.path()).unwrap();
            content.truncate(content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            (file.file_name().into_string().unwrap(), content)
        })
        .collect()
}

async fn put_part(store: &dyn ObjectStore, upload: &UploadId, number: i64, bytes: Bytes) -> CompletePart {
    let number = PartNumber::new(number).unwrap();
    let (context, address) = (context(), address("parts"));
    let staged = store.stage_part(&context, &address, upload, number, StageRequest::default()).await;
    let mut staged = staged.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    let (committed, _) = staged.commit(Expected::default()).await.unwrap();
    CompletePart { number, etag: committed.etag, checksum: None }
}

/// An object in extents, and an upload of two parts. Their extents must survive the records that referred to them first.
#[tokio::test(flavor = "multi_thread")]
async fn rewrap_moves_no_stored_byte() {
    let directory = tempfile::tempdir().unwrap();
    let (path, large) = (directory.path(), pattern(3 << 20, 1));
    let parts = [pattern(usize::try_from(MIN_PART_BYTES).unwrap(), 2), pattern(1000, 3)];
    let local = open(path);
    local.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let old = layer(&local, &["old"]);
    put(&*old, "large", &large).await;
    put(&*old, "small", b"small").await;
    let upload = old.create_upload(&context(), &address("parts"), CreateUpload::default()).await.unwrap();
    let mut named = Vec::new();
    for (number, part) in (1..).zip(&parts) {
        named.push(put_part(&*old, &upload, number, part.clone()).await);
    }
    let before = segments(path);
    let both = layer(&local, &["newer", "old"]);
    for key in ["large", "small"] {
        assert_eq!(both.rewrap(&context(), &address(key)).await.unwrap().rewrapped, 1, "{key}");
    }
    let rewrapped = both.rewrap_upload(&context(), &address("parts"), &upload).await.unwrap();
    assert_eq!((rewrapped.rewrapped, rewrapped.needed_keys.len()), (2, 1), "{:?}", rewrapped.failure);
    let after = segments(path);
    let bytes = |files: &BTreeMap<String, Vec<u8>>| files.values().map(Vec::len).sum::<usize>();
    assert!(bytes(&after) < bytes(&before) + 16_384, "{} bytes were written", bytes(&after) - bytes(&before));
    for (name, content) in &before {
        assert!(after[name].starts_with(content), "{name} has other bytes");
    }
    local.run_upkeep().unwrap();
    local.close().await.unwrap();
    drop((old, both, local));

    // Once from the index, once from the log alone.
    for is_rebuilt in [false, true] {
        if is_rebuilt {
            reindex(path, false).unwrap();
        }
        assert!(check(path, path.parent().unwrap()).unwrap().is_sound());
        let local = open(path);
        let new = layer(&local, &["newer"]);
        assert!(get(&*new, "large").await.1 == large);
        assert_eq!(get(&*new, "small").await.1, b"small");
        if is_rebuilt {
            let request = CompleteUpload { parts: named.clone(), ..CompleteUpload::default() };
            new.complete_upload(&context(), &address("parts"), &upload, request).await.unwrap();
            local.run_upkeep().unwrap();
            assert!(get(&*new, "parts").await.1 == parts.concat());
        }
        local.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_replaced_during_a_rewrap_are_the_new_ones() {
    const ROUNDS: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let local = open(directory.path());
    local.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let (old, both) = (layer(&local, &["old"]), layer(&local, &["newer", "old"]));
    put(&*old, "k", b"first").await;
    let writer = tokio::spawn(async move {
        for round in 0..ROUNDS {
            // Inline and in extents, under the older key.
            let size = if round.is_multiple_of(2) { 1000 } else { 300_000 };
            put(&*old, "k", &pattern(size + round, round as u64)).await;
        }
    });
    let mut rewrapped = 0;
    while !writer.is_finished() {
        rewrapped += both.rewrap(&context(), &address("k")).await.unwrap().rewrapped;
    }
    writer.await.unwrap();
    rewrapped += both.rewrap(&context(), &address("k")).await.unwrap().rewrapped;
    assert!(rewrapped > 1, "no write was followed by a rewrap");
    let last = ROUNDS - 1;
    local.run_upkeep().unwrap();
    assert!(get(&*layer(&local, &["newer"]), "k").await.1 == pattern(300_000 + last, last as u64));
    local.close().await.unwrap();
}
