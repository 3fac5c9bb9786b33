//! Heads in memory and on the SSD, and the stamps of their comparisons.

use tradewind_core::{Classes, Metadata, ObjectInfo, Retention, Timestamp};

use super::*;
use crate::changes::{Scope, UNCERTAIN_WINDOW};
use crate::fingerprint::ExtentName;
use crate::head::{Head, Stamp};

const AGE: Duration = Duration::from_secs(60);
const MEMORY_BYTES: usize = 1 << 20;
const LARGE_OBJECTS: u64 = 48;
/// Four extents, and a head on its own. No extent is one block.
const LARGE_BYTES: usize = 4 * EXTENT_BYTES - BLOCK_BYTES;

fn large(number: u64) -> Address {
    Address::parse("bucket", &format!("large-{number}")).unwrap()
}

impl Desk {
    async fn put_large(&self, number: u64, seed: u64) {
        let mut staged = self.store.stage(&context(), &large(number), StageRequest::default()).await.unwrap();
        write_all(&mut *staged, pattern(LARGE_BYTES, seed)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn read_large(&self, number: u64, seed: u64) {
        let found = self.cached.get(&context(), &large(number), GetRequest::default()).await.unwrap();
        assert!(drain(found.body).await.unwrap() == pattern(LARGE_BYTES, seed), "object {number}");
        self.cached.flush().await;
    }

    /// Reads all large objects, and returns the number of HEADs that reached the store.
    async fn read_all_large(&self) -> u64 {
        let before = self.store.calls(Operation::Head);
        for number in 0..LARGE_OBJECTS {
            self.read_large(number, number).await;
        }
        self.store.calls(Operation::Head) - before
    }

    /// Reads a large object, and returns the number of HEADs that reached the store.
    async fn read_large_counted(&self, number: u64, seed: u64) -> u64 {
        let before = self.store.calls(Operation::Head);
        self.read_large(number, seed).await;
        self.store.calls(Operation::Head) - before
    }

    fn head_reads(&self) -> u64 {
        self.head_reads.load(Ordering::SeqCst)
    }
}

/// The data is twelve times the memory.
#[tokio::test(flavor = "multi_thread")]
async fn heads_of_large_objects_stay_in_memory_while_their_data_passes() {
    for (memory_bytes, expected) in [(MEMORY_BYTES, 0), (0, LARGE_OBJECTS)] {
        let desk = Desk::open(memory_bytes, 64 << 20).await;
        for number in 0..LARGE_OBJECTS {
            desk.put_large(number, number).await;
        }
        desk.read_all_large().await;
        let (reads, gets) = (desk.head_reads(), desk.store.calls(Operation::Get));
        desk.read_all_large().await;
        assert_eq!(desk.head_reads() - reads, expected, "memory {memory_bytes}");
        assert_eq!(desk.store.calls(Operation::Get), gets);
        assert!(desk.cached.counters().ssd_bytes > 0);
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_that_returns_from_the_ssd_keeps_its_comparison() {
    for memory_bytes in [0, MEMORY_BYTES] {
        let desk = Desk::open_validating(memory_bytes, 64 << 20, Validation::MaxAge(AGE)).await;
        for number in 0..LARGE_OBJECTS {
            desk.put_large(number, number).await;
        }
        assert_eq!(desk.read_all_large().await, 0);
        desk.clock.advance(AGE);
        assert_eq!(desk.read_all_large().await, LARGE_OBJECTS, "memory {memory_bytes}");
        desk.clock.advance(AGE - Duration::from_secs(1));
        assert_eq!(desk.read_all_large().await, 0, "memory {memory_bytes}");
        desk.clock.advance(Duration::from_secs(1));
        assert_eq!(desk.read_all_large().await, LARGE_OBJECTS, "memory {memory_bytes}");
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_object_is_seen_after_the_age_also_from_the_ssd() {
    let desk = Desk::open_validating(0, 64 << 20, Validation::MaxAge(AGE)).await;
    desk.put_large(0, 1).await;
    desk.read_large(0, 1).await;
    desk.clock.advance(AGE);
    desk.read_large(0, 1).await;
    desk.put_large(0, 2).await;
    desk.clock.advance(AGE - Duration::from_secs(1));
    desk.read_large(0, 1).await;
    desk.clock.advance(Duration::from_secs(1));
    desk.read_large(0, 2).await;
    let calls = desk.store.calls(Operation::Head) + desk.store.calls(Operation::Get);
    desk.read_large(0, 2).await;
    assert_eq!(desk.store.calls(Operation::Head) + desk.store.calls(Operation::Get), calls);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stamp_of_a_head_is_not_used_for_the_next_one_of_its_key() {
    let desk = Desk::open_validating(0, 64 << 20, Validation::MaxAge(AGE)).await;
    desk.put_large(0, 1).await;
    let tiers = &desk.cached.tiers;
    let found = desk.store.head(&context(), &large(0), GetRequest::default()).await.unwrap();
    let hash = tiers.fingerprints.key(&large(0));
    let token = tiers.changes.token(hash).unwrap();
    let stamp = |seconds: u64| Stamp {
        session: desk.cached.session,
        sequence: token.sequence,
        time: Duration::from_secs(seconds),
    };
    let new_head = |info: &ObjectInfo| {
        let content = desk.cached.new_content();
        Head::new(large(0), info.clone(), content, None, stamp(1))
    };
    let (old, new) = (new_head(&found.info), new_head(&found.info));
    tiers.renew_head(&old, stamp(100));
    tiers.store_head(&new, &token, tiers.try_head_permit().unwrap(), None);
    desk.cached.flush().await;
    let (read, _) = tiers.head(&large(0), &token).await.unwrap();
    assert_eq!((read.content, read.stamp()), (new.content, stamp(1)));
    tiers.renew_head(&new, stamp(50));
    let (read, _) = tiers.head(&large(0), &token).await.unwrap();
    assert_eq!((read.content, read.stamp()), (new.content, stamp(50)));
    desk.cached.close().await.unwrap();
}

/// A change of the bucket asks for another comparison of each object. Its result is on the SSD of no head.
#[tokio::test(flavor = "multi_thread")]
async fn comparison_after_a_change_of_the_bucket_is_kept() {
    for (validation, is_final) in [(Validation::Owner, true), (Validation::MaxAge(AGE), false)] {
        let desk = Desk::open_validating(0, 64 << 20, validation).await;
        desk.put_large(0, 0).await;
        desk.read_large(0, 0).await;
        desk.clock.advance(Duration::from_secs(1));
        let (gets, changes) = (desk.store.calls(Operation::Get), &desk.cached.tiers.changes);
        changes
            .begin(Scope::Bucket(desk.cached.tiers.fingerprints.key(&large(0)).bucket))
            .set_bucket_changed();
        assert_eq!(desk.read_large_counted(0, 0).await, 1, "{validation:?}");
        desk.clock.advance(AGE - Duration::from_secs(1));
        assert_eq!(desk.read_large_counted(0, 0).await, 0, "{validation:?}");
        desk.clock.advance(Duration::from_secs(1));
        assert_eq!(desk.read_large_counted(0, 0).await, u64::from(!is_final), "{validation:?}");
        assert_eq!(desk.store.calls(Operation::Get), gets, "the object is the same");
        desk.cached.close().await.unwrap();
    }
}

/// For a time, each read compares. Only a comparison after it is worth a write.
#[tokio::test(flavor = "multi_thread")]
async fn uncertain_change_costs_one_write_of_the_head() {
    for memory_bytes in [0, MEMORY_BYTES] {
        let desk = Desk::open(memory_bytes, 64 << 20).await;
        desk.put_large(0, 0).await;
        desk.read_large(0, 0).await;
        let tiers = &desk.cached.tiers;
        let change = tiers.changes.begin(Scope::Key(tiers.fingerprints.key(&large(0))));
        change.set_uncertain(desk.clock.now());
        drop(change);
        let written = || desk.cached.counters().ssd_written_bytes;
        let before = written();
        for _ in 0..8 {
            assert_eq!(desk.read_large_counted(0, 0).await, 1);
        }
        assert_eq!(written(), before, "memory {memory_bytes}");
        desk.clock.advance(UNCERTAIN_WINDOW);
        assert_eq!(desk.read_large_counted(0, 0).await, 1);
        for _ in 0..8 {
            assert_eq!(desk.read_large_counted(0, 0).await, 0);
        }
        assert_eq!(written(), before + BLOCK_BYTES as u64, "memory {memory_bytes}");
        desk.cached.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_head_replaces_no_newer_one_and_no_absent_one() {
    let desk = Desk::open(MEMORY_BYTES, 64 << 20).await;
    desk.put_large(0, 0).await;
    desk.read_large(0, 0).await;
    let tiers = &desk.cached.tiers;
    let hash = tiers.fingerprints.key(&large(0));
    let token = tiers.changes.token(hash).unwrap();
    let (newer, _) = tiers.head(&large(0), &token).await.unwrap();
    let older = Head::new(large(0), newer.info.clone(), desk.cached.new_content(), None, newer.stamp());
    tiers.store_renewed_head(&older, &token);
    desk.cached.flush().await;
    tiers.ram.remove(hash.key);
    let (read, tier) = tiers.head(&large(0), &token).await.unwrap();
    assert_eq!((read.content, tier), (newer.content, crate::tiers::Tier::Ssd));
    tiers.ram.remove(hash.key);
    tiers.disk.as_ref().unwrap().remove(ExtentName::of_head(hash.key)).unwrap();
    tiers.store_renewed_head(&older, &token);
    desk.cached.flush().await;
    assert!(tiers.head(&large(0), &token).await.is_none());
    desk.cached.close().await.unwrap();
}

/// More heads than the share of heads holds.
#[tokio::test(flavor = "multi_thread")]
async fn heads_of_many_small_objects_displace_none_of_large_ones() {
    const SMALL_OBJECTS: u64 = 400;
    let desk = Desk::open(MEMORY_BYTES, 64 << 20).await;
    for number in 0..LARGE_OBJECTS {
        desk.put_large(number, number).await;
    }
    for number in 0..SMALL_OBJECTS {
        desk.write(number, 100).await;
    }
    let objects = || (0..LARGE_OBJECTS).map(large).chain((0..SMALL_OBJECTS).map(address));
    for expected in [LARGE_OBJECTS + SMALL_OBJECTS, 0] {
        let before = desk.store.calls(Operation::Head);
        for address in objects() {
            desk.cached.head(&context(), &address, GetRequest::default()).await.unwrap();
        }
        assert_eq!(desk.store.calls(Operation::Head) - before, expected);
    }
    desk.cached.close().await.unwrap();
}

/// Memory loses the head while the backing store answers.
#[tokio::test(flavor = "multi_thread")]
async fn head_request_keeps_the_cached_data() {
    let desk = Desk::open_validating(MEMORY_BYTES, 64 << 20, Validation::MaxAge(AGE)).await;
    desk.put_large(0, 0).await;
    desk.read_large(0, 0).await;
    desk.clock.advance(AGE);
    let delay = Fault::Delay(Duration::from_secs(1));
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Head, FaultSchedule::Always, delay));
    let heads = desk.store.calls(Operation::Head);
    let (cached, clock) = (desk.cached.clone(), desk.clock.clone());
    let request = tokio::spawn(async move {
        let deadline = tradewind_core::context::Deadline::none(clock);
        let context = context_until(&Budget::new(1 << 20), deadline);
        cached.head(&context, &large(0), GetRequest::default()).await.map(drop)
    });
    while desk.store.calls(Operation::Head) == heads {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let hash = desk.cached.tiers.fingerprints.key(&large(0));
    assert!(desk.cached.tiers.ram.remove(hash.key).is_some());
    while !request.is_finished() {
        desk.clock.advance(Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    request.await.unwrap().unwrap();
    desk.store.set_plan(FaultPlan::none());
    let calls = || desk.store.calls(Operation::Head) + desk.store.calls(Operation::Get);
    let before = calls();
    desk.read_large(0, 0).await;
    assert_eq!(calls(), before);
    desk.cached.close().await.unwrap();
}

/// It is in memory only until its first comparison.
#[tokio::test(flavor = "multi_thread")]
async fn small_object_that_was_written_comes_to_the_ssd_with_its_first_read() {
    let desk = Desk::open(MEMORY_BYTES, 64 << 20).await;
    let mut staged = desk
        .cached
        .stage(&context(), &address(90), StageRequest { size: Some(100), ..StageRequest::default() })
        .await
        .unwrap();
    write_all(&mut *staged, vec![9; 100].into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let key = desk.cached.tiers.fingerprints.key(&address(90)).key;
    let is_on_ssd = || desk.cached.tiers.disk.as_ref().unwrap().contains_head(key);
    desk.cached.flush().await;
    assert!(!is_on_ssd(), "only what is read is worth a write");
    let found = desk.cached.get(&context(), &address(90), GetRequest::default()).await.unwrap();
    drain(found.body).await.unwrap();
    desk.cached.flush().await;
    assert!(is_on_ssd());
    desk.cached.close().await.unwrap();
}

/// Its change has removed its retention.
#[tokio::test(flavor = "multi_thread")]
async fn read_from_before_a_change_tracks_no_retention() {
    let desk = Desk::open(MEMORY_BYTES, 64 << 20).await;
    let retention = Retention::new(2_000_000_000, 1600).ok();
    let classes = Classes { retention, ..Classes::default() };
    let metadata = Metadata { classes, ..Metadata::default() };
    let request = StageRequest { metadata, ..StageRequest::default() };
    let mut staged = desk.store.stage(&context(), &large(0), request).await.unwrap();
    write_all(&mut *staged, pattern(LARGE_BYTES, 0)).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    desk.read_large(0, 0).await;
    let tiers = &desk.cached.tiers;
    let retained = tiers.policies.retained();
    let end = Timestamp::from_millis(i64::MAX);
    assert_eq!(retained.take_due(end).len(), 1);
    let hash = tiers.fingerprints.key(&large(0));
    for is_in_memory in [true, false] {
        let token = tiers.changes.token(hash).unwrap();
        drop(tiers.changes.begin(Scope::Key(hash)));
        retained.remove(hash.key);
        if !is_in_memory {
            tiers.ram.release(hash.key);
        }
        assert!(tiers.head(&large(0), &token).await.is_some());
        assert!(retained.take_due(end).is_empty(), "in memory: {is_in_memory}");
    }
    desk.cached.close().await.unwrap();
}
