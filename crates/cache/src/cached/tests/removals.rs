//! Removals of objects that are being read or filled, of large ones, and of many. Extents that stayed behind could be
//! pinned, and eviction would never free them.

use futures::StreamExt;
use tradewind_core::store::Select;
use tradewind_core::{ByteRange, Retention, Timestamp};

use super::*;
use crate::changes::{Scope, Token};
use crate::extent::ExtentBuffer;
use crate::fill::ExtentFill;
use crate::head::{Head, Stamp};
use crate::tiers::ContentUse;

const NUMBER: u64 = 100;
/// More extents than a read gathers before its body begins.
const LARGE_BYTES: usize = 3 << 20;

impl Desk {
    async fn with_large_object(memory_bytes: usize) -> Self {
        let desk = Self::open(memory_bytes, 64 << 20).await;
        desk.write(NUMBER, LARGE_BYTES).await;
        desk
    }

    async fn get(&self, select: Select) -> Body {
        let request = GetRequest { select, ..GetRequest::default() };
        self.cached.get(&context(), &address(NUMBER), request).await.unwrap().body
    }

    async fn delete(&self) {
        self.cached.delete(&context(), &address(NUMBER), Precondition::default()).await.unwrap();
    }

    async fn assert_empty(&self, case: impl fmt::Debug) {
        self.cached.flush().await;
        self.cached.finish_evictions().await;
        let occupied = self.cached.occupancy();
        assert!(self.cached.ssd_extents() == 0 && occupied.is_empty(), "{case:?}: {occupied:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn object_deleted_while_it_is_read_leaves_no_extent() {
    for memory_bytes in [0, 4 << 20] {
        let desk = Desk::with_large_object(memory_bytes).await;
        desk.read(NUMBER, LARGE_BYTES).await;
        desk.cached.flush().await;
        let mut body = desk.get(Select::Whole).await;
        let mut bytes = body.next().await.unwrap().unwrap().to_vec();
        desk.delete().await;
        bytes.extend_from_slice(&drain(body).await.unwrap());
        assert!(bytes == pattern(LARGE_BYTES, NUMBER), "the read ends with its content");
        desk.assert_empty(memory_bytes).await;
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn object_deleted_while_a_range_fills_leaves_no_extent() {
    for memory_bytes in [0, 4 << 20] {
        let desk = Desk::with_large_object(memory_bytes).await;
        let select = || Select::Range(ByteRange::Inclusive { first: 0, last: (2 << 20) - 1 });
        let body = desk.get(select()).await;
        desk.delete().await;
        drain(body).await.unwrap();
        desk.assert_empty(("a miss", memory_bytes)).await;
        desk.write(NUMBER, LARGE_BYTES).await;
        drain(desk.get(Select::Range(ByteRange::Inclusive { first: 0, last: 0 })).await).await.unwrap();
        let body = desk.get(select()).await;
        desk.delete().await;
        drain(body).await.unwrap();
        desk.assert_empty(("a known head", memory_bytes)).await;
        desk.cached.close().await.unwrap();
    }
}

/// Some of its writes are in the queue of the SSD.
#[tokio::test(flavor = "multi_thread")]
async fn fill_that_is_abandoned_leaves_no_extent() {
    let desk = Desk::with_large_object(0).await;
    for round in 0..20 {
        let mut body = desk.get(Select::Whole).await;
        let first = body.next().await.unwrap().unwrap();
        assert!(first.len() < LARGE_BYTES, "the body has several pieces");
        drop(body);
        desk.assert_empty(round).await;
    }
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn content_in_use_is_removed_after_its_last_use() {
    let desk = Desk::with_large_object(0).await;
    desk.read(NUMBER, LARGE_BYTES).await;
    desk.cached.flush().await;
    let tiers = &desk.cached.tiers;
    let hash = tiers.fingerprints.key(&address(NUMBER));
    let (head, token) =
        (tiers.peek_head(&address(NUMBER), hash).await.unwrap(), tiers.changes.token(hash).unwrap());
    let uses = [tiers.use_content(&head, &token), tiers.use_content(&head, &token)];
    desk.delete().await;
    desk.cached.finish_evictions().await;
    let extents = LARGE_BYTES.div_ceil(EXTENT_BYTES);
    for one in uses {
        assert_eq!(desk.cached.ssd_extents(), extents);
        drop(one);
        desk.cached.finish_evictions().await;
    }
    desk.assert_empty("no use").await;
    desk.cached.close().await.unwrap();
}

impl Desk {
    /// A head of an object of this size, which is not cached, with a token.
    async fn new_head(&self, size: u64) -> (Arc<Head>, Token) {
        let found = self.store.head(&context(), &address(0), GetRequest::default()).await.unwrap();
        let info = tradewind_core::ObjectInfo { size, ..found.info };
        let head = Head::new(address(0), info, self.cached.new_content(), None, Stamp::NEVER);
        let tiers = &self.cached.tiers;
        (Arc::new(head), tiers.changes.token(tiers.fingerprints.key(&address(0))).unwrap())
    }

    /// Fills extents of a content that no head refers to. It is discarded when the result is dropped.
    async fn fill_discarded(&self, size: u64, numbers: &[u32]) -> Arc<ContentUse> {
        let (head, token) = self.new_head(size).await;
        let tiers = &self.cached.tiers;
        let content_use = tiers.use_content(&head, &token);
        content_use.discard();
        for number in numbers {
            let mut buffer = ExtentBuffer::new(EXTENT_BYTES);
            buffer.append(&pattern(EXTENT_BYTES, 1));
            let permit = tiers.try_fill_bytes(EXTENT_BYTES).unwrap();
            let content_use = content_use.clone();
            let fill = ExtentFill { buffer, permit, claim: None, run: None, content_use };
            tiers.put_data(&head, *number, fill);
        }
        self.cached.flush().await;
        assert_eq!(self.cached.occupancy().is_empty(), numbers.is_empty());
        content_use
    }

    async fn wait_until_empty(&self, case: impl fmt::Debug) {
        for _ in 0..2000 {
            if self.cached.occupancy().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.assert_empty(case).await;
    }
}

/// Its removal is in several steps.
#[tokio::test(flavor = "multi_thread")]
async fn last_extents_of_a_huge_object_are_removed() {
    const EXTENTS: u32 = 200_000;
    for disk_bytes in [64 << 20, 0] {
        let desk = Desk::open(4 << 20, disk_bytes).await;
        let numbers = [0, EXTENTS / 2, EXTENTS - 1];
        drop(desk.fill_discarded(u64::from(EXTENTS) * EXTENT_BYTES as u64, &numbers).await);
        desk.wait_until_empty(disk_bytes).await;
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_of_an_aborted_fill_visits_what_was_filled() {
    let desk = Desk::open(4 << 20, 64 << 20).await;
    let content_use = desk.fill_discarded(1 << 40, &[0, 1, 2, 3]).await;
    let disk = desk.cached.tiers.disk.clone().unwrap();
    let jobs = disk.finished_jobs();
    drop(content_use);
    desk.wait_until_empty("what was filled").await;
    let jobs = disk.finished_jobs() - jobs;
    // Writes may be among them.
    assert!(jobs <= 16, "{jobs} jobs for one batch");
    drop(desk.fill_discarded(1 << 40, &[]).await);
    assert_eq!(disk.queued_jobs(), 0);
    desk.cached.close().await.unwrap();
}

/// Also for a huge one: nothing else of it is in the cache.
#[tokio::test(flavor = "multi_thread")]
async fn removal_of_a_head_without_data_visits_nothing() {
    let desk = Desk::open(4 << 20, 64 << 20).await;
    desk.write(NUMBER, LARGE_BYTES).await;
    let disk = desk.cached.tiers.disk.clone().unwrap();
    desk.cached.head(&context(), &address(NUMBER), GetRequest::default()).await.unwrap();
    let jobs = disk.finished_jobs();
    desk.delete().await;
    desk.cached.finish_evictions().await;
    assert_eq!(disk.finished_jobs(), jobs);
    desk.cached.close().await.unwrap();
}

/// A removal that reads its head from the SSD late may read that of a newer object, which is stored in its place.
#[tokio::test(flavor = "multi_thread")]
async fn content_of_the_present_head_is_live() {
    for memory_bytes in [0, 4 << 20] {
        let desk = Desk::with_large_object(memory_bytes).await;
        desk.read(NUMBER, LARGE_BYTES).await;
        desk.cached.flush().await;
        let tiers = &desk.cached.tiers;
        let hash = tiers.fingerprints.key(&address(NUMBER));
        let head = tiers.peek_head(&address(NUMBER), hash).await.unwrap();
        let content = desk.cached.new_content();
        let older = Head::new(address(NUMBER), head.info.clone(), content, None, Stamp::NEVER);
        assert_eq!([&*head, &older].map(|head| tiers.may_be_live(head, hash)), [true, false]);
        desk.delete().await;
        assert!(!tiers.may_be_live(&head, hash));
        desk.cached.close().await.unwrap();
    }
}

/// I/O threads are without a runtime, too.
#[tokio::test(flavor = "multi_thread")]
async fn removal_beyond_the_bound_ends_without_a_runtime() {
    let desk = Desk::open(4 << 20, 64 << 20).await;
    let content_use = desk.fill_discarded(10_000 * EXTENT_BYTES as u64, &[0, 9999]).await;
    let disk = desk.cached.tiers.disk.clone().unwrap();
    let removals: Vec<_> = std::iter::from_fn(|| disk.begin_removal()).collect();
    std::thread::spawn(move || drop(content_use)).join().unwrap();
    for _ in 0..2000 {
        if desk.cached.occupancy().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(desk.cached.ssd_extents(), 0);
    drop(removals);
    desk.cached.close().await.unwrap();
}

/// The retention of a newer object stays, whatever is read later with an older token.
#[tokio::test(flavor = "multi_thread")]
async fn outdated_read_keeps_the_retention_of_a_newer_object() {
    let desk = Desk::open(4 << 20, 64 << 20).await;
    let tiers = &desk.cached.tiers;
    let retained_head = async || {
        let (head, token) = desk.new_head(1 << 20).await;
        let mut info = head.info.clone();
        let end_seconds = tiers.policies.now().seconds() + 1000;
        info.metadata.classes.retention = Retention::new(end_seconds.unsigned_abs(), 1000).ok();
        (Arc::new(Head::new(address(0), info, head.content, None, Stamp::NEVER)), token)
    };
    let (old, outdated) = retained_head().await;
    tiers.track(&old, &outdated);
    drop(tiers.changes.begin(Scope::Key(outdated.hash())));
    tiers.remove_head(outdated.hash());
    let (new, token) = retained_head().await;
    tiers.put_head(new.clone(), &token, None, None);
    let content_at = |seconds: i64| {
        let now = Timestamp::from_millis((tiers.policies.now().seconds() + seconds) * 1000);
        tiers.policies.retained().take_due(now).first().map(|(_, object)| object.content)
    };
    assert_eq!(content_at(1_000), Some(new.content));
    tiers.track(&old, &outdated);
    assert_eq!(content_at(10_000), Some(new.content));
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_beyond_the_bound_of_removals_frees_a_known_content() {
    let desk = Desk::with_large_object(4 << 20).await;
    desk.read(NUMBER, LARGE_BYTES).await;
    desk.cached.flush().await;
    let disk = desk.cached.tiers.disk.clone().unwrap();
    let removals: Vec<_> = std::iter::from_fn(|| disk.begin_removal()).collect();
    desk.delete().await;
    assert_eq!(desk.cached.ssd_extents(), 0);
    drop(removals);
    desk.assert_empty("known").await;
    desk.cached.close().await.unwrap();
}
