//! Classes of data: returned unchanged, changed without a new write of the bytes, and never restoring an older write.

use crate::class::{Class, ClassRange, ClassUpdate, Classes, Retention};
use crate::error::{Reason, Result};
use crate::metadata::Metadata;
use crate::multipart::CreateUpload;
use crate::object::ObjectInfo;
use crate::store::{CopyRequest, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, copy_request, full_metadata, key_address, pattern, reason};

super::theme! { "classes":
    of_object_and_ranges_come_back needs Classes,
    of_many_ranges_come_back needs ManyClassRanges,
    with_a_retention_come_back needs Classes,
    are_copied needs Classes,
    are_changed_and_removed needs ClassChanges,
    of_missing_keys_are_refused needs ClassChanges,
    after_the_end_of_the_object_are_refused needs ClassChanges,
    of_an_upload_are_within_the_object needs ClassChanges,
    of_a_version_are_its_own needs ClassesOfVersions,
    do_not_bring_back_old_bytes needs ClassChanges,
}

fn class(value: u8) -> Class {
    Class::new(value).expect("a legal class")
}

fn ranges(header: &str) -> Vec<ClassRange> {
    Classes::parse_ranges(header).expect("legal ranges")
}

fn with(classes: Classes) -> StageRequest {
    StageRequest { metadata: Metadata { classes, ..Metadata::default() }, ..StageRequest::default() }
}

/// A retention that has ended, on simulated clocks, too.
fn retention(period_seconds: u32) -> Option<Retention> {
    Some(Retention::new(5000, period_seconds).expect("a legal retention"))
}

async fn set(desk: &Fixture, update: ClassUpdate) -> Result<()> {
    desk.store.set_classes(&context(), &key_address("k"), update).await
}

async fn of_object_and_ranges_come_back(desk: Fixture) {
    for classes in [
        Classes { object: Some(class(0)), ..Classes::default() },
        Classes { object: Some(class(31)), ranges: ranges("9-1-31"), retention: None },
        Classes { ranges: ranges("0-1-0,1-1-0,3-6-25"), ..Classes::default() },
    ] {
        desk.put_as("k", pattern(5000, 1), with(classes.clone())).await;
        assert_eq!(desk.head("k").await.metadata, Metadata { classes, ..Metadata::default() });
    }
}

/// A retention is the same absolute time in every store, with a class and without one.
async fn with_a_retention_come_back(desk: Fixture) {
    for object in [None, Some(class(31))] {
        let classes = Classes { object, ranges: vec![], retention: retention(7200) };
        desk.put_as("k", pattern(5000, 1), with(classes.clone())).await;
        assert_eq!(desk.head("k").await.metadata, Metadata { classes, ..Metadata::default() });
    }
    let request = copy_request(key_address("k"), key_address("copy"));
    desk.store.copy(&context(), request).await.expect("a copy succeeds");
    assert_eq!(desk.head("copy").await.metadata.classes.retention, retention(7200), "the end stays");
}

async fn of_many_ranges_come_back(desk: Fixture) {
    let ranges = (0..Classes::MAX_RANGES).map(|n| ClassRange {
        first_sector: u32::try_from(n).expect("a small number"),
        sectors: 1,
        class: class(u8::try_from(n % 32).expect("under 32")),
    });
    let classes = Classes { ranges: ranges.collect(), ..Classes::default() };
    desk.put_as("k", pattern(Classes::MAX_RANGES * 512, 1), with(classes.clone())).await;
    assert_eq!(desk.head("k").await.metadata.classes, classes);
}

async fn are_copied(desk: Fixture) {
    let classes =
        Classes { object: Some(class(25)), ranges: ranges("0-64-25,100-32-26"), retention: retention(1) };
    desk.put_as("k", pattern(100_000, 1), with(classes.clone())).await;
    let request = copy_request(key_address("k"), key_address("copy"));
    desk.store.copy(&context(), request).await.expect("a copy succeeds");
    assert_eq!(desk.head("copy").await.metadata.classes, classes);
    let only_ranges = Metadata { classes: Classes { object: None, ..classes }, ..Metadata::default() };
    let request = CopyRequest {
        metadata: Some(only_ranges.clone()),
        ..copy_request(key_address("k"), key_address("copy"))
    };
    desk.store.copy(&context(), request).await.expect("a copy succeeds");
    assert_eq!(desk.head("copy").await.metadata.classes, only_ranges.classes);
}

async fn are_changed_and_removed(desk: Fixture) {
    for size in [5000, 300_000] {
        let bytes = pattern(size, 1);
        let request = StageRequest { metadata: full_metadata(), ..StageRequest::default() };
        desk.put_as("k", bytes.clone(), request).await;
        let mut last = desk.head("k").await;
        let mut classes = last.metadata.classes.clone();
        for update in [
            ClassUpdate { object: Some(Some(class(31))), ..ClassUpdate::default() },
            ClassUpdate { ranges: Some(ranges("0-3-1,5-4-2")), ..ClassUpdate::default() },
            ClassUpdate { ranges: Some(Vec::new()), ..ClassUpdate::default() },
            ClassUpdate::replace(Classes {
                object: Some(class(0)),
                ranges: ranges("8-1-7"),
                retention: None,
            }),
            ClassUpdate { object: Some(None), ..ClassUpdate::default() },
            ClassUpdate { retention: Some(retention(60)), ..ClassUpdate::default() },
            ClassUpdate::replace(Classes::default()),
            ClassUpdate { retention: Some(None), ..ClassUpdate::default() },
        ] {
            classes = update.apply(&classes, size as u64).expect("a legal change");
            set(&desk, update).await.expect("classes are changed");
            let now = desk.head("k").await;
            assert!(now.generation > last.generation || !desk.capabilities().generations);
            let metadata = Metadata { classes: classes.clone(), ..last.metadata.clone() };
            let expected = ObjectInfo { metadata, generation: now.generation, ..last };
            assert_eq!(now, expected, "only classes and generation change");
            assert!(desk.read("k").await == bytes);
            last = now;
        }
    }
}

async fn of_missing_keys_are_refused(desk: Fixture) {
    let update = || ClassUpdate { object: Some(Some(class(1))), ..ClassUpdate::default() };
    assert_eq!(reason(set(&desk, update()).await), Reason::NoSuchKey);
    desk.assert_absent("k").await;
    desk.put("k", "bytes").await;
    desk.delete("k").await;
    assert_eq!(reason(set(&desk, update()).await), Reason::NoSuchKey);
    desk.assert_absent("k").await;
}

async fn after_the_end_of_the_object_are_refused(desk: Fixture) {
    desk.put_as("k", pattern(513, 1), with(Classes { object: Some(class(3)), ..Classes::default() })).await;
    let before = desk.head("k").await;
    let update =
        ClassUpdate { object: Some(None), ranges: Some(ranges("0-1-1,2-1-1")), ..ClassUpdate::default() };
    assert_eq!(reason(set(&desk, update).await), Reason::InvalidArgument);
    assert_eq!(desk.head("k").await, before, "nothing changes");
    set(&desk, ClassUpdate { ranges: Some(ranges("1-1-1")), ..ClassUpdate::default() })
        .await
        .expect("a partial sector");
}

async fn of_an_upload_are_within_the_object(desk: Fixture) {
    if !desk.capabilities().multipart {
        return;
    }
    let parts = [pattern(5 << 20, 1), pattern(10, 2)];
    for (header, is_legal) in [("10240-2-5", false), ("0-1-4,10240-1-5", true)] {
        let classes = Classes { object: Some(class(9)), ranges: ranges(header), retention: None };
        let metadata = Metadata { classes: classes.clone(), ..Metadata::default() };
        let created =
            desk.try_put_parts("k", CreateUpload { metadata, ..CreateUpload::default() }, &parts).await;
        if is_legal {
            created.expect("the ranges are within the object");
            assert_eq!(desk.head("k").await.metadata.classes, classes);
        } else {
            assert_eq!(reason(created), Reason::InvalidArgument);
            desk.assert_absent("k").await;
        }
    }
}

async fn of_a_version_are_its_own(desk: Fixture) {
    desk.enable_versioning().await;
    let old = desk.put("k", "old").await.version;
    let new = desk.put("k", "new").await.version;
    let address = |version: &Option<_>| key_address("k").with_version(version.clone());
    let update = ClassUpdate { object: Some(Some(class(5))), ..ClassUpdate::default() };
    desk.store.set_classes(&context(), &address(&old), update).await.expect("classes are changed");
    for (version, expected) in [(&old, Some(class(5))), (&new, None)] {
        let found = desk.store.head(&context(), &address(version), Default::default()).await;
        let info = found.expect("the version exists").info;
        assert_eq!((info.metadata.classes.object, &info.version), (expected, version));
    }
}

/// One task writes while others change classes: the bytes written stay until the writer writes again.
async fn do_not_bring_back_old_bytes(desk: Fixture) {
    desk.put("k", "version 0").await;
    let changes = (0..3).map(|n| {
        let desk = desk.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let update = ClassUpdate { object: Some(Some(class(n))), ..ClassUpdate::default() };
                set(&desk, update).await.expect("classes are changed");
            }
        })
    });
    let changes: Vec<_> = changes.collect();
    let mut version = 0;
    while version < 20 || changes.iter().any(|change| !change.is_finished()) {
        version += 1;
        desk.put("k", format!("version {version}")).await;
        for _ in 0..3 {
            assert_eq!(desk.read("k").await, format!("version {version}"), "an older write was restored");
            tokio::task::yield_now().await;
        }
    }
    for change in changes {
        change.await.expect("classes are changed");
    }
}
