use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyRequest, GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::{MemoryStore, SimulatedClock, context};
use tradewind_core::{Body, Budget, Context, ObjectStore};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::TransferContext;

use super::*;
use crate::files::{Directory, Links};
use crate::merge::Action;
use crate::workers::ActionResult;

const START: i64 = 1_700_000_000_100;

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

/// A store whose object `a` is replaced after the first response to each of some reads, 300 ms after it was written. The
/// rest of a read takes ten seconds.
#[derive(Debug)]
struct Replaced {
    below: Arc<MemoryStore>,
    clock: Arc<SimulatedClock>,
    replacements: AtomicUsize,
}

impl Replaced {
    async fn replace(&self) {
        let last = |left: usize| left.checked_sub(1);
        let Ok(left) = self.replacements.fetch_update(Ordering::Relaxed, Ordering::Relaxed, last) else {
            return;
        };
        self.clock.advance(Duration::from_millis(300));
        put(&self.below, "a", &format!("new {left}")).await;
        self.clock.advance(Duration::from_secs(10));
    }
}

#[async_trait]
impl ObjectStore for Replaced {
    tradewind_core::forward_methods! {
        to: |layer| &layer.below;
        capabilities, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head,
        stage, delete, list, list_versions, list_uploads, set_tags, set_classes, object_parts, create_upload, stage_part,
        copy_part, list_parts, complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let found = self.below.get(context, address, request).await;
        self.replace().await;
        found
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let head = GetRequest::default();
        let found = self.below.get(context, &request.source, head).await?;
        let bytes = found.body.collect().await?;
        self.replace().await;
        Ok(put(&self.below, request.destination.key.as_str(), std::str::from_utf8(&bytes).unwrap()).await)
    }
}

async fn put(store: &MemoryStore, key: &str, text: &str) -> Committed {
    let mut staged = store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    staged.write(Bytes::from(text.to_owned())).await.unwrap();
    staged.commit(Expected::default()).await.unwrap().0
}

async fn text(store: &MemoryStore, key: &str) -> String {
    let found = store.get(&context(), &address(key), GetRequest::default()).await.unwrap();
    String::from_utf8(found.body.collect().await.unwrap().to_vec()).unwrap()
}

struct Scene {
    clock: Arc<SimulatedClock>,
    source: Arc<Replaced>,
    other: Arc<MemoryStore>,
    directory: tempfile::TempDir,
}

impl Scene {
    async fn new(replacements: usize) -> Self {
        let clock = SimulatedClock::starting_at(Timestamp::from_millis(START));
        let (below, other) = (MemoryStore::new(clock.clone()), MemoryStore::new(clock.clone()));
        for store in [&below, &other] {
            store.create_bucket(&context(), &address("a").bucket).await.unwrap();
        }
        put(&below, "a", "old 0").await;
        let replacements = AtomicUsize::new(replacements);
        let source = Arc::new(Replaced { below, clock: clock.clone(), replacements });
        Self { clock, source, other, directory: tempfile::tempdir().unwrap() }
    }

    fn copier(&self, from: Endpoint, to: Endpoint) -> Copier {
        let (plan, memory) = (Plan::default(), Budget::new(64 << 20));
        let transfers = TransferContext::new(plan, memory, self.clock.clone(), RetryOptions::disabled());
        Copier {
            from,
            to,
            transfers: Arc::new(transfers),
            progress: Arc::default(),
            journals: None,
            preserves_attributes: false,
            classes: Default::default(),
        }
    }

    fn files(&self) -> Endpoint {
        Endpoint::Files(Directory::new(self.directory.path().to_owned()).unwrap(), Links::Skip)
    }
}

fn objects(store: Arc<dyn ObjectStore>, prefix: &str) -> Endpoint {
    let (bucket, prefix) = (address("a").bucket, prefix.to_owned());
    Endpoint::Objects(Objects { store, scheme: "s3".into(), bucket, prefix, directory: None })
}

fn item() -> Item {
    let (name, modified) = ("a".to_owned(), Timestamp::from_millis(START));
    Item { name, size: 5, modified, changed: None, nanos: FileNanos::default(), version: None }
}

#[tokio::test]
async fn source_replaced_during_a_copy_is_copied_again() {
    for replacements in 0..3 {
        let scene = Scene::new(replacements).await;
        let (from, to) = (objects(scene.source.clone(), ""), objects(scene.other.clone(), ""));
        let between = scene.copier(from, to).copy(&item()).await;

        let same = Scene::new(replacements).await;
        let (from, to) = (objects(same.source.clone(), ""), objects(same.source.clone(), "copy/"));
        let within = same.copier(from, to).copy(&item()).await;

        let local = Scene::new(replacements).await;
        let down = local.copier(objects(local.source.clone(), ""), local.files()).copy(&item()).await;

        let expected = text(&scene.source.below, "a").await;
        assert_eq!((between.unwrap(), text(&scene.other, "a").await), (5, expected.clone()));
        assert_eq!((within.unwrap(), text(&same.source.below, "copy/a").await), (5, expected));
        let file = std::fs::read_to_string(local.directory.path().join("a")).unwrap();
        // The last replacement is later than the file by seconds: the next comparison finds it.
        let first = if replacements == 0 { "old 0".to_owned() } else { format!("new {replacements}") };
        assert_eq!((down.unwrap(), file), (5, first));
    }
}

#[tokio::test]
async fn source_replaced_during_each_copy_is_reported() {
    let scene = Scene::new(10).await;
    let (from, to) = (objects(scene.source.clone(), ""), objects(scene.other.clone(), ""));
    let failed = scene.copier(from, to).copy(&item()).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Conflict);
    assert!(failed.to_string().contains("\"a\" was replaced during each of 3 copies"), "{failed}");
}

#[tokio::test]
async fn destination_that_changed_during_the_wait_is_compared_again() {
    let scene = Scene::new(0).await;
    put(&scene.other, "a", "dest.").await;
    let copier = scene.copier(objects(scene.source.clone(), ""), objects(scene.other.clone(), ""));
    let again = || Action::CopyAgain {
        item: item(),
        destination: Box::new(item()),
        not_before: Timestamp::from_millis(START),
    };
    assert_eq!(copier.act(&again()).await.unwrap(), ActionResult::Copied(5));
    assert_eq!(text(&scene.other, "a").await, "old 0");

    scene.clock.advance(Duration::from_secs(5));
    put(&scene.other, "a", "later").await;
    assert_eq!(copier.act(&again()).await.unwrap(), ActionResult::Unchanged);
    assert_eq!(text(&scene.other, "a").await, "later");

    put(&scene.other, "a", "another size").await;
    assert_eq!(copier.act(&again()).await.unwrap(), ActionResult::Copied(5));
}

#[tokio::test]
async fn file_that_changed_during_the_wait_is_compared_again() {
    let scene = Scene::new(0).await;
    let path = scene.directory.path().join("a");
    let copier = scene.copier(objects(scene.source.clone(), ""), scene.files());
    let again = |destination| Action::CopyAgain {
        item: item(),
        destination: Box::new(destination),
        not_before: Timestamp::from_millis(START),
    };
    // The file is of this year, long after its object.
    std::fs::write(&path, "later").unwrap();
    assert_eq!(copier.act(&again(item())).await.unwrap(), ActionResult::Unchanged);
    let listed = copier.find_at_destination("a").await.unwrap().unwrap();
    assert!(listed.changed.is_some());
    assert_eq!(copier.act(&again(listed)).await.unwrap(), ActionResult::Copied(5));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old 0");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(copier.act(&again(item())).await.unwrap(), ActionResult::Copied(5));
}
