//! Objects that change their tier: between the looks of a reader or a listing, and by the mover.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tradewind_core::checksum::{Algorithm, ChecksumScope};
use tradewind_core::error::Reason;
use tradewind_core::layer::Method;
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, Select, StageRequest};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Operation as At, context, pattern, reason, write_all,
};
use tradewind_core::{ClassUpdate, ETag, Identity, ObjectStore, ReadConditions, Timestamp, Versioning};
use tradewind_layers::Routed;
use tradewind_layers::routed::{ClassTiers, MoveLimits, MoveReport};

use super::fixture::{DISK, Fixture, SSD, address, bucket, by_class, keys, memory, of_class, put, tier};

pub const LIMITS: MoveLimits = MoveLimits { bytes_per_second: 1 << 30, concurrency: 2 };

/// A store that stops the next call of one method until it is released.
#[derive(Debug)]
pub struct Gated {
    inner: Arc<dyn ObjectStore>,
    gate: Mutex<Option<Gate>>,
}

#[derive(Debug)]
struct Gate {
    method: Method,
    reached: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
}

impl Gated {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { inner: memory(), gate: Mutex::new(None) })
    }

    /// Stops the next call of `method`. Returns what resolves when it is reached, and what releases it.
    pub fn arm(&self, method: Method) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((reached, is_reached), (release, released)) = (oneshot::channel(), oneshot::channel());
        *self.gate.lock() = Some(Gate { method, reached, released });
        (is_reached, release)
    }

    async fn pass(&self, method: Method) {
        let gate = self.gate.lock().take_if(|gate| gate.method == method);
        if let Some(gate) = gate {
            gate.reached.send(()).unwrap();
            gate.released.await.unwrap();
        }
    }
}

#[async_trait]
impl ObjectStore for Gated {
    tradewind_core::forward_methods! {
        to: |gated| &gated.inner;
        around: |gated, call, response| {
            gated.pass(call.method).await;
            response.await
        };
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }
}

/// Two tiers that can be stopped, with one object each.
pub async fn gated() -> ([Arc<Gated>; 2], Arc<Routed>) {
    let [ssd, disk] = [Gated::new(), Gated::new()];
    let routed = Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", disk.clone()), by_class());
    routed.create_bucket(&context(), &bucket()).await.unwrap();
    for (key, class) in [("key", DISK), ("other", SSD)] {
        put(&*routed, key, "bytes", of_class(class)).await.unwrap();
    }
    ([ssd, disk], routed)
}

#[tokio::test]
async fn object_that_moves_during_a_read_is_found() {
    let ([_, disk], routed) = gated().await;
    let (reached, release) = disk.arm(Method::Get);
    let reader = {
        let routed = routed.clone();
        tokio::spawn(
            async move { routed.get(&context(), &address("key"), GetRequest::default()).await.map(drop) },
        )
    };
    // The first tier does not have the object. Now it moves there.
    reached.await.unwrap();
    put(&*routed, "key", "moved", of_class(SSD)).await.unwrap();
    release.send(()).unwrap();
    reader.await.unwrap().unwrap();
}

#[tokio::test]
async fn object_that_moves_during_a_listing_is_listed_once() {
    for (stopped, key, class) in [(1, "key", SSD), (0, "other", DISK)] {
        let (tiers, routed) = gated().await;
        let (reached, release) = tiers[stopped].arm(Method::List);
        let lister = {
            let routed = routed.clone();
            tokio::spawn(async move { keys(&*routed).await })
        };
        reached.await.unwrap();
        put(&*routed, key, "moved", of_class(class)).await.unwrap();
        release.send(()).unwrap();
        assert_eq!(lister.await.unwrap(), ["key", "other"], "tier {stopped} was listed last");
    }
}

/// The deadline of a writer ends its wait, not its change.
#[tokio::test]
async fn change_whose_caller_stops_waiting_ends() {
    let ([ssd, disk], routed) = gated().await;
    let (reached, release) = disk.arm(Method::Delete);
    let writer = {
        let routed = routed.clone();
        tokio::spawn(async move { put(&*routed, "key", "moved", of_class(SSD)).await.map(drop) })
    };
    reached.await.unwrap();
    writer.abort();
    assert!(writer.await.unwrap_err().is_cancelled());
    release.send(()).unwrap();
    // The next change of the key waits for it.
    put(&*routed, "key", "last", of_class(SSD)).await.unwrap();
    let head = |store: Arc<Gated>| async move {
        store.head(&context(), &address("key"), GetRequest::default()).await
    };
    assert!(head(ssd).await.is_ok());
    assert_eq!(reason(head(disk).await), Reason::NoSuchKey);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn listings_are_complete_while_objects_move() {
    let fixture = Fixture::new().await;
    let names: Vec<String> = (0..8).map(|number| format!("key {number}")).collect();
    for name in &names {
        fixture.put(name, "bytes", of_class(DISK)).await;
    }
    let writers: Vec<_> = names
        .iter()
        .map(|name| {
            let (routed, name) = (fixture.routed.clone(), name.clone());
            tokio::spawn(async move {
                for round in 0..200 {
                    let class = if round % 2 == 0 { SSD } else { DISK };
                    put(&*routed, &name, "bytes", of_class(class)).await.unwrap();
                }
            })
        })
        .collect();
    while writers.iter().any(|writer| !writer.is_finished()) {
        assert_eq!(fixture.keys().await, names);
        let name = &names[3];
        fixture.read(name).await.unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn objects_are_in_the_tier_of_their_class() {
    let fixture = Fixture::new().await;
    let sized = |size| StageRequest { size: Some(size), ..StageRequest::default() };
    fixture.put("mail", pattern(300_000, 1), of_class(SSD)).await;
    fixture.put("small", pattern(1000, 1), sized(1000)).await;
    fixture.put("large", pattern(300_000, 1), sized(300_000)).await;
    fixture.put("video", "small", of_class(28)).await;
    for (key, tier) in [("mail", "ssd"), ("small", "ssd"), ("large", "disk"), ("video", "disk")] {
        assert_eq!(fixture.holders(key).await, [tier], "{key}");
    }
    fixture.put("mail", "no longer mail", of_class(DISK)).await;
    assert_eq!(fixture.holders("mail").await, ["disk"]);
    assert_eq!(fixture.keys().await, ["large", "mail", "small", "video"]);
}

#[tokio::test]
async fn copy_and_upload_are_in_the_tier_of_their_class() {
    let fixture = Fixture::new().await;
    fixture.put("mail", "bytes", of_class(SSD)).await;
    let request = |metadata| CopyRequest {
        source: address("mail"),
        source_conditions: ReadConditions::default(),
        destination: address("copy"),
        metadata,
        tags: None,
        algorithm: None,
        precondition: Default::default(),
        etag: ETagForm::Md5,
    };
    fixture.routed.copy(&context(), request(None)).await.unwrap();
    assert_eq!((fixture.ssd.calls(At::Copy), fixture.holders("copy").await), (1, vec!["ssd"]));
    fixture.routed.copy(&context(), request(Some(of_class(DISK).metadata))).await.unwrap();
    assert_eq!(fixture.holders("copy").await, ["disk"]);
    assert_eq!(fixture.read("copy").await.unwrap().1, "bytes");
    upload(&fixture.routed, "parts", SSD).await;
    assert_eq!(fixture.holders("parts").await, ["ssd"]);
}

/// An object of two parts.
pub async fn upload(routed: &Routed, key: &str, class: u8) -> ETag {
    let create = CreateUpload {
        metadata: of_class(class).metadata,
        checksum: Some((Algorithm::Sha256, ChecksumScope::Composite)),
    };
    let id = routed.create_upload(&context(), &address(key), create).await.unwrap();
    let mut parts = Vec::new();
    for (number, size) in [(2, 5 << 20), (7, 77)] {
        let (context, number) = (context(), PartNumber::new(number).unwrap());
        let staged = routed.stage_part(&context, &address(key), &id, number, StageRequest::default()).await;
        let mut staged = staged.unwrap();
        write_all(&mut *staged, pattern(size, number.get().into())).await.unwrap();
        let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
        parts.push(CompletePart { number, etag, checksum: None });
    }
    let complete = CompleteUpload { parts, ..CompleteUpload::default() };
    routed.complete_upload(&context(), &address(key), &id, complete).await.unwrap().etag
}

#[tokio::test]
async fn buckets_with_versions_are_not_supported() {
    let fixture = Fixture::new().await;
    let enabled = fixture.routed.set_versioning(&context(), &bucket(), Versioning::Enabled).await;
    assert_eq!(reason(enabled), Reason::Unsupported);
    fixture.disk.set_versioning(&context(), &bucket(), Versioning::Enabled).await.unwrap();
    let mut fixture = fixture;
    fixture.restart(by_class());
    let written = put(&*fixture.routed, "key", "bytes", of_class(DISK)).await;
    assert_eq!(reason(written), Reason::Unsupported);
}

#[tokio::test]
async fn mover_applies_a_new_policy_and_keeps_what_clients_see() {
    let mut fixture = Fixture::new().await;
    let sha = StageRequest { algorithms: vec![Algorithm::Sha1], ..of_class(SSD) };
    fixture.put("mail", pattern(200_000, 1), sha).await;
    upload(&fixture.routed, "parts", SSD).await;
    fixture.put("video", "stays", of_class(28)).await;
    let (mail, parts) = (fixture.read("mail").await.unwrap(), fixture.read("parts").await.unwrap());
    fixture.restart(ClassTiers::new());
    let report = fixture.routed.mover(LIMITS).run_pass(&context(), |_| true).await.unwrap();
    let moved_bytes = 200_000 + (5 << 20) + 77;
    assert_eq!(report, MoveReport { moved: 2, moved_bytes, ..MoveReport::default() });
    for (key, before) in [("mail", mail), ("parts", parts)] {
        assert_eq!(fixture.holders(key).await, ["disk"], "{key}");
        let after = fixture.read(key).await.unwrap();
        assert!(after.1 == before.1);
        let generation = before.0.generation;
        assert_eq!(tradewind_core::ObjectInfo { generation, ..after.0 }, before.0);
    }
    let select = Select::Part(PartNumber::new(7).unwrap());
    let part =
        fixture.routed.head(&context(), &address("parts"), GetRequest { select, ..Default::default() }).await;
    assert_eq!(part.unwrap().span.length, 77);
    let again = fixture.routed.mover(LIMITS).run_pass(&context(), |_| true).await.unwrap();
    assert_eq!(again, MoveReport::default());
}

#[tokio::test]
async fn mover_moves_an_object_whose_class_was_changed() {
    let fixture = Fixture::new().await;
    fixture.put("key", "bytes", of_class(DISK)).await;
    let update = ClassUpdate::replace(of_class(SSD).metadata.classes);
    fixture.routed.set_classes(&context(), &address("key"), update).await.unwrap();
    assert_eq!(fixture.holders("key").await, ["disk"]);
    let mover = fixture.routed.mover(LIMITS);
    let queued = mover.next_object().await.unwrap();
    assert_eq!(queued, address("key"));
    let report = mover.run_object(&context(), &queued).await.unwrap();
    assert_eq!((report.moved, fixture.holders("key").await), (1, vec!["ssd"]));
}

#[tokio::test]
async fn mover_keeps_an_identity_that_the_target_would_not_create() {
    let mut fixture = Fixture::new().await;
    let identity = Identity { etag: ETag::from_tag("12-tw"), modified: Timestamp::from_millis(77_000) };
    fixture.put("key", "bytes", StageRequest { identity: Some(identity.clone()), ..of_class(SSD) }).await;
    fixture.restart(ClassTiers::new());
    fixture.routed.mover(LIMITS).run_pass(&context(), |_| true).await.unwrap();
    assert_eq!(fixture.holders("key").await, ["disk"]);
    assert_eq!(fixture.read("key").await.unwrap().0.identity(), identity);
}

/// A volume without layers may have buckets in the same base.
#[tokio::test]
async fn mover_leaves_buckets_of_other_volumes_alone() {
    let fixture = Fixture::new().await;
    put(&*fixture.disk, "key", "bytes", of_class(SSD)).await.unwrap();
    let report = fixture.routed.mover(LIMITS).run_pass(&context(), |name| *name != bucket()).await.unwrap();
    assert_eq!((report, fixture.holders("key").await), (MoveReport::default(), vec!["disk"]));
}

#[tokio::test]
async fn mover_deletes_hidden_copies() {
    let fixture = Fixture::new().await;
    put(&*fixture.routed, "key", "new", of_class(SSD)).await.unwrap();
    put(&*fixture.disk, "key", "hidden", of_class(DISK)).await.unwrap();
    assert_eq!(fixture.holders("key").await, ["ssd", "disk"]);
    let report = fixture.routed.mover(LIMITS).run_pass(&context(), |_| true).await.unwrap();
    assert_eq!((report.hidden_deleted, fixture.holders("key").await), (1, vec!["ssd"]));
    assert_eq!(fixture.read("key").await.unwrap().1, "new");
}

#[tokio::test]
async fn mover_leaves_an_object_that_is_replaced_concurrently() {
    let ([ssd, disk], _) = gated().await;
    let routed = Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", disk.clone()), ClassTiers::new());
    let (reached, release) = ssd.arm(Method::Get);
    let mover = tokio::spawn({
        let mover = routed.mover(LIMITS);
        async move { mover.run_pass(&context(), |_| true).await }
    });
    reached.await.unwrap();
    put(&*ssd, "other", "newer", of_class(SSD)).await.unwrap();
    release.send(()).unwrap();
    assert_eq!(mover.await.unwrap().unwrap().moved, 0);
    let found = routed.get(&context(), &address("other"), GetRequest::default()).await.unwrap();
    assert_eq!(found.body.collect().await.unwrap(), "newer");
}

#[tokio::test]
async fn mover_reports_damaged_objects_and_goes_on() {
    let mut fixture = Fixture::new().await;
    for key in ["a", "b"] {
        fixture.put(key, pattern(1000, 1), of_class(SSD)).await;
    }
    fixture.restart(ClassTiers::new());
    let first = fixture.ssd.calls(At::Body) + 1;
    let corrupt = FaultPlan::none().with_fault(At::Body, FaultSchedule::Nth(first), Fault::Corrupt(10));
    fixture.ssd.set_plan(corrupt);
    let report = fixture
        .routed
        .mover(MoveLimits { concurrency: 1, ..LIMITS })
        .run_pass(&context(), |_| true)
        .await
        .unwrap();
    assert_eq!((report.moved, report.failed), (1, 1));
    assert_eq!((fixture.holders("a").await, fixture.holders("b").await), (vec!["ssd"], vec!["disk"]));
}
