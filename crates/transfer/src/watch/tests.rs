//! Watching with synthetic events, over a store with injected faults.

mod ending;
mod outside;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, context};
use tradewind_core::{Address, Budget, ObjectStore, SystemClock};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::TransferContext;

use super::*;
use crate::files::{Directory, Links};
use crate::objects::Objects;

const QUIET: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_secs(3600);

struct Scene {
    directory: tempfile::TempDir,
    below: Arc<dyn ObjectStore>,
    store: Arc<dyn ObjectStore>,
    reports: Arc<Mutex<Vec<String>>>,
}

struct RunningWatch {
    events: mpsc::Sender<FsEvent>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<WatchTotals>>,
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

impl Scene {
    /// A directory with `files`, and a bucket with `objects` behind `faults`.
    async fn new(files: &[&str], objects: &[&str], faults: FaultPlan) -> Self {
        let below: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
        below.create_bucket(&context(), &address("k").bucket).await.unwrap();
        let store = Faulty::new(below.clone(), faults);
        let scene = Self { directory: tempfile::tempdir().unwrap(), below, store, reports: Arc::default() };
        fs::create_dir(scene.root()).unwrap();
        for name in files {
            scene.write(name);
            // Files of the second of their upload would be copied again by the next comparison.
            let old = fs::File::options().write(true).open(scene.root().join(name)).unwrap();
            old.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        for key in objects {
            let mut staged =
                scene.below.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
            staged.write(bytes::Bytes::from("x")).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
        scene
    }

    fn root(&self) -> std::path::PathBuf {
        self.directory.path().join("root")
    }

    fn write(&self, name: &str) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }

    /// A copier from the directory to the bucket.
    fn copier(&self, scheme: &str, links: Links) -> Arc<Copier> {
        let delay = Duration::from_millis(1);
        let retries =
            RetryOptions { max_attempts: 1, first_delay: delay, max_delay: delay, ..RetryOptions::default() };
        let transfers =
            TransferContext::new(Plan::default(), Budget::new(64 << 20), SystemClock::shared(), retries);
        let to = Objects {
            directory: None,
            store: self.store.clone(),
            scheme: scheme.into(),
            bucket: address("k").bucket,
            prefix: String::new(),
        };
        Arc::new(Copier {
            from: Endpoint::Files(Directory::new(self.root()).unwrap(), links),
            to: Endpoint::Objects(to),
            transfers: Arc::new(transfers),
            progress: Arc::default(),
            journals: None,
            preserves_attributes: false,
            classes: Default::default(),
        })
    }

    fn worker(&self, links: Links) -> Worker {
        let root = WatchedRoot::open(&self.root()).unwrap();
        let mounts = Some(Mounts::below(&self.root()).unwrap());
        Worker { copier: self.copier("s3", links), root, links, mounts }
    }

    fn start(&self, every: Duration) -> RunningWatch {
        self.start_with(every, self.copier("s3", Links::Skip))
    }

    fn start_with(&self, every: Duration, copier: Arc<Copier>) -> RunningWatch {
        let watch = Watch {
            copier,
            comparison: Comparison::SizeAndTime,
            filter: Filter::accept_all(),
            removes: true,
            if_empty: None,
            debounce: DebounceOptions {
                quiet_period: QUIET,
                full_comparison_interval: every,
                first_retry_delay: QUIET,
                max_retry_delay: 8 * QUIET,
            },
            grace: Duration::from_millis(500),
        };
        let (events, heard) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let reports = self.reports.clone();
        let report = move |news: &WatchReport<'_>| {
            let line = match news {
                WatchReport::InSync => "in step".to_owned(),
                WatchReport::Copied(name, _) => format!("copied {name}"),
                WatchReport::Removed(name) => format!("removed {name}"),
                WatchReport::Failed(name, error) => format!("failed {name}: {:?}", error.kind()),
            };
            reports.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        };
        let stopped = async {
            let _ = stopped.await;
        };
        let ended = tokio::spawn(watch.run(heard, stopped, report));
        RunningWatch { events, stop, ended }
    }

    fn reports(&self) -> Vec<String> {
        self.reports.lock().unwrap().clone()
    }

    async fn has(&self, key: &str) -> bool {
        self.below.head(&context(), &address(key), Default::default()).await.is_ok()
    }

    async fn wait_for(&self, line: &str) {
        self.wait_for_match(|report| report == line, line).await;
    }

    async fn wait_for_match(&self, matches: impl Fn(&str) -> bool, line: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.reports().iter().any(|report| matches(report)) {
            assert!(Instant::now() < deadline, "{line} of {:?}", self.reports());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl RunningWatch {
    async fn stop(self) -> WatchTotals {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap()
    }

    async fn send(&self, event: FsEvent) {
        self.events.send(event).await.unwrap();
    }
}

fn item(name: &str) -> crate::Item {
    crate::Item {
        name: name.to_owned(),
        size: 1,
        modified: Default::default(),
        changed: None,
        nanos: Default::default(),
        version: None,
    }
}

fn touched(name: &str) -> FsEvent {
    FsEvent::Touched(name.to_owned())
}

#[tokio::test]
async fn tree_event_compares_everything() {
    let scene = Scene::new(&["a", "b"], &["stray"], FaultPlan::none()).await;
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    assert_eq!(scene.reports(), ["copied a", "copied b", "removed stray", "in step"]);
    fs::remove_file(scene.root().join("a")).unwrap();
    scene.write("dir/c");
    tokio::time::sleep(3 * QUIET).await;
    assert!(scene.has("a").await && !scene.has("dir/c").await, "no event was sent");
    running.send(FsEvent::TreeTouched(String::new())).await;
    scene.wait_for("removed a").await;
    scene.wait_for("copied dir/c").await;
    let totals = running.stop().await;
    assert_eq!((totals.copied, totals.removed, totals.failing), (3, 2, 0));
}

#[tokio::test]
async fn everything_is_compared_periodically() {
    let scene = Scene::new(&["a"], &[], FaultPlan::none()).await;
    let running = scene.start(4 * QUIET);
    scene.wait_for("in step").await;
    scene.write("missed");
    scene.wait_for("copied missed").await;
    running.stop().await;
    assert_eq!(scene.reports().iter().filter(|line| *line == "in step").count(), 1);
}

#[tokio::test]
async fn event_without_a_change_removes_nothing() {
    let scene = Scene::new(&["a", "dir/b"], &[], FaultPlan::none()).await;
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    // Both files exist, and a file that never existed is not removed.
    running.send(FsEvent::TreeTouched("dir/".to_owned())).await;
    running.send(touched("never")).await;
    running.send(touched("a")).await;
    scene.wait_for("copied a").await;
    tokio::time::sleep(3 * QUIET).await;
    let totals = running.stop().await;
    assert_eq!((totals.copied, totals.removed), (3, 0), "{:?}", scene.reports());
    assert!(scene.has("a").await && scene.has("dir/b").await);
}

#[tokio::test]
async fn repeated_failure_is_reported_once_and_resolved() {
    let denied = FaultPlan::none().with_fault(
        Operation::Stage,
        FaultSchedule::Nth(1),
        Fault::FailBefore(Reason::AccessDenied),
    );
    let denied =
        denied.with_fault(Operation::Stage, FaultSchedule::Nth(2), Fault::FailBefore(Reason::AccessDenied));
    let scene = Scene::new(&["a"], &[], denied).await;
    let running = scene.start(LONG);
    scene.wait_for("copied a").await;
    assert_eq!(running.stop().await.failing, 0);
    let failed = scene.reports().iter().filter(|line| line.starts_with("failed a")).count();
    assert_eq!(failed, 1, "{:?}", scene.reports());
    assert!(scene.has("a").await);
}

#[tokio::test]
async fn pending_failure_is_counted_at_the_end() {
    let denied = FaultPlan::none().with_fault(
        Operation::Stage,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let scene = Scene::new(&["a"], &[], denied).await;
    let running = scene.start(LONG);
    scene.wait_for_match(|line| line.starts_with("failed a"), "a failure").await;
    let totals = running.stop().await;
    assert_eq!((totals.failing, totals.copied), (1, 0));
    assert!(!scene.reports().contains(&"in step".to_owned()), "the file was not uploaded");
}

#[tokio::test]
async fn failed_listing_is_retried_unless_it_is_permanent() {
    let down =
        FaultPlan::none().with_fault(Operation::List, FaultSchedule::Nth(1), Fault::FailBefore(Reason::Io));
    let scene = Scene::new(&["a"], &["stray"], down).await;
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    assert!(scene.reports()[0].starts_with("failed s3://bucket/"), "{:?}", scene.reports());
    assert!(scene.has("a").await && !scene.has("stray").await);
    assert_eq!(running.stop().await.failing, 0, "the failure is resolved");
    let denied = FaultPlan::none().with_fault(
        Operation::List,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let scene = Scene::new(&["a"], &["stray"], denied).await;
    let failed = scene.start(LONG).ended.await.unwrap().unwrap_err();
    assert_eq!(failed.reason(), Reason::AccessDenied, "a permanent error ends the watch");
    assert!(scene.has("stray").await);
}

#[tokio::test]
async fn replaced_root_ends_the_watch_without_removals() {
    let scene = Scene::new(&["a", "b"], &[], FaultPlan::none()).await;
    let running = scene.start(LONG);
    scene.wait_for("in step").await;
    fs::rename(scene.root(), scene.directory.path().join("away")).unwrap();
    fs::create_dir(scene.root()).unwrap();
    // Any event wakes the watch.
    running.send(touched("a")).await;
    let failed = running.ended.await.unwrap().unwrap_err();
    assert!(failed.to_string().contains("no longer the directory"), "{failed}");
    assert!(scene.has("a").await && scene.has("b").await);
}

/// The root is checked last, because it may be moved away while a comparison runs.
#[tokio::test]
async fn root_is_checked_before_each_removal() {
    let scene = Scene::new(&["a"], &["b"], FaultPlan::none()).await;
    let worker = scene.worker(Links::Skip);
    let still_there = worker.act(&Action::Remove(item("a"))).await.unwrap();
    assert_eq!(still_there, NameOutcome::ChangedMeanwhile, "the file exists again");
    fs::rename(scene.root(), scene.directory.path().join("away")).unwrap();
    for failed in [worker.act(&Action::Remove(item("b"))).await, worker.sync_name("b").await] {
        assert!(failed.unwrap_err().to_string().contains("no longer the directory"));
    }
    assert!(scene.has("b").await);
}

#[tokio::test]
async fn marker_of_an_existing_directory_is_not_removed() {
    let scene = Scene::new(&["dir/a"], &["dir/", "gone/", "full/"], FaultPlan::none()).await;
    let worker = scene.worker(Links::Skip);
    let marker = |name: &str, size| Action::Remove(crate::Item { size, ..item(name) });
    let act = async |name, size| worker.act(&marker(name, size)).await.unwrap();
    assert_eq!(act("dir/", 0).await, NameOutcome::Unchanged);
    assert_eq!(act("full/", 1).await, NameOutcome::Unchanged);
    assert_eq!(act("gone/", 0).await, NameOutcome::Removed);
    assert!(scene.has("dir/").await && scene.has("full/").await && !scene.has("gone/").await);
}

#[tokio::test]
async fn transfers_in_flight_get_the_grace_period() {
    let slow =
        |time| FaultPlan::none().with_fault(Operation::Stage, FaultSchedule::Always, Fault::Delay(time));
    let scene = Scene::new(&["a"], &[], slow(Duration::from_millis(200))).await;
    let running = scene.start(LONG);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(running.stop().await.copied, 1);
    let scene = Scene::new(&["a"], &[], slow(LONG)).await;
    let running = scene.start(LONG);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stop_requested = Instant::now();
    let totals = running.stop().await;
    assert_eq!((totals.copied, totals.failing), (0, 1), "the upload was cancelled");
    assert!((400..2000).contains(&stop_requested.elapsed().as_millis()), "{:?}", stop_requested.elapsed());
}

/// Real inotify events of a directory.
#[tokio::test(flavor = "multi_thread")]
async fn inotify_events_name_the_changed_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    fs::create_dir_all(root.join("old/deep")).unwrap();
    let mut events = watch(&root, false, Filter::accept_all()).unwrap();
    let mut next =
        async || tokio::time::timeout(Duration::from_secs(10), events.recv()).await.unwrap().unwrap();
    let write = |name: &str| fs::write(root.join(name), "x").unwrap();
    write("old/deep/.x.tradewind-part");
    write("old/deep/a");
    assert!(
        matches!(next().await, FsEvent::Touched(name) if name == "old/deep/a"),
        "unfinished files are not reported"
    );
    fs::rename(root.join("old"), root.join("new")).unwrap();
    let mut heard = Vec::new();
    while !heard.contains(&"touched new/deep/a".to_owned()) {
        heard.push(match next().await {
            FsEvent::Touched(name) => format!("touched {name}"),
            FsEvent::TreeTouched(name) => format!("tree {name}"),
            other => format!("{other:?}"),
        });
    }
    assert!(heard.contains(&"tree old/".to_owned()), "{heard:?}");
    write("new/deep/b");
    while !matches!(next().await, FsEvent::Touched(name) if name == "new/deep/b") {}
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"new/caf\xe9"));
    fs::write(root.join(odd), "x").unwrap();
    while !matches!(next().await, FsEvent::Failed(name, _) if name.ends_with("new/caf\u{fffd}")) {}
    drop(directory);
    while !matches!(next().await, FsEvent::RootGone(_)) {}
    assert!(watch(&root, false, Filter::accept_all()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn excluded_names_cause_no_failure_and_excluded_directories_no_event() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    fs::create_dir_all(root.join("cache/old")).unwrap();
    let mut filter = Filter::accept_all();
    filter.add("cache/*", false).unwrap();
    filter.add("caf*", false).unwrap();
    let mut events = watch(&root, false, filter).unwrap();
    fs::create_dir_all(root.join("cache/new")).unwrap();
    for name in [&b"cache/old/a"[..], b"cache/new/b", b"caf\xe9", b"z"] {
        fs::write(root.join(Path::new(std::ffi::OsStr::from_bytes(name))), "x").unwrap();
    }
    let next = tokio::time::timeout(Duration::from_secs(10), events.recv()).await.unwrap().unwrap();
    assert!(matches!(&next, FsEvent::Touched(name) if name == "z"), "{next:?}");
}
