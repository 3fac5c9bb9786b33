//! Tags: changed without a new write of the bytes, and never restoring an older write.

use crate::error::Reason;
use crate::metadata::{Metadata, Tags};
use crate::multipart::CreateUpload;
use crate::object::ObjectInfo;
use crate::store::{Feature, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, full_metadata, key_address, pattern, reason, tags};

super::theme! { "tags":
    are_set_replaced_and_cleared needs Tags,
    of_missing_keys_are_refused needs Tags,
    leave_parts_alone needs Tags,
    do_not_bring_back_old_bytes needs TagsBesideWrites,
}

async fn set(desk: &Fixture, tags: Tags) {
    desk.store.set_tags(&context(), &key_address("k"), tags).await.expect("tags are set");
}

async fn are_set_replaced_and_cleared(desk: Fixture) {
    let bytes = pattern(100_000, 1);
    let request = StageRequest { metadata: full_metadata(), ..StageRequest::default() };
    desk.put_as("k", bytes.clone(), request).await;
    let mut last = desk.head("k").await;
    for new in [tags(&[("a", "1")]), tags(&[("z", ""), ("b", "2"), ("a", "3")]), tags(&[])] {
        set(&desk, new.clone()).await;
        let now = desk.head("k").await;
        let grows = desk.capabilities().generations;
        assert!(now.generation > last.generation || !grows, "other metadata is another generation");
        let metadata = desk.stored_metadata(Metadata { tags: new, ..full_metadata() });
        let modified = if desk.supports(Feature::TagsKeepModified) { last.modified } else { now.modified };
        let expected = ObjectInfo { metadata, generation: now.generation, modified, ..last };
        assert_eq!(now, expected, "only tags and generation change");
        assert!(desk.read("k").await == bytes);
        last = now;
    }
    desk.put("k", "new").await;
    assert!(desk.head("k").await.metadata.tags.is_empty());
}

async fn of_missing_keys_are_refused(desk: Fixture) {
    let refused = desk.store.set_tags(&context(), &key_address("k"), tags(&[("a", "1")])).await;
    assert_eq!(reason(refused), Reason::NoSuchKey);
    desk.assert_absent("k").await;
    desk.put("k", "bytes").await;
    desk.delete("k").await;
    assert_eq!(
        reason(desk.store.set_tags(&context(), &key_address("k"), tags(&[])).await),
        Reason::NoSuchKey
    );
    desk.assert_absent("k").await;
}

async fn leave_parts_alone(desk: Fixture) {
    if !desk.store.capabilities().multipart {
        return;
    }
    let parts = [pattern(5 << 20, 1), pattern(10, 2)];
    desk.put_parts("k", CreateUpload::default(), &parts).await;
    let before = desk.head("k").await;
    set(&desk, tags(&[("a", "1")])).await;
    let after = desk.head("k").await;
    assert_eq!((&after.etag, after.parts, &after.checksums), (&before.etag, Some(2), &before.checksums));
    if desk.capabilities().reports_all_parts {
        let parts = desk
            .store
            .object_parts(&context(), &key_address("k"), None, 10)
            .await
            .expect("parts are listed")
            .0;
        assert_eq!(parts.len(), 2);
    }
    assert!(desk.read("k").await == parts.concat());
}

/// One task writes while others set tags: the bytes written stay until the writer writes again.
async fn do_not_bring_back_old_bytes(desk: Fixture) {
    desk.put("k", "version 0").await;
    let taggers = (0..3).map(|tagger| {
        let desk = desk.clone();
        tokio::spawn(async move {
            for n in 0..60 {
                set(&desk, tags(&[(&format!("by-{tagger}"), &n.to_string())])).await;
            }
        })
    });
    let taggers: Vec<_> = taggers.collect();
    let mut version = 0;
    while version < 50 || taggers.iter().any(|tagger| !tagger.is_finished()) {
        version += 1;
        desk.put("k", format!("version {version}")).await;
        for _ in 0..3 {
            assert_eq!(desk.read("k").await, format!("version {version}"), "tags restored an older write");
            tokio::task::yield_now().await;
        }
    }
    for tagger in taggers {
        tagger.await.expect("tags are set");
    }
    assert_eq!(desk.read("k").await, format!("version {version}"));
}
