//! A sliced store behaves like the store itself, keeps the order of a rotating disk, and loses no turn.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "sliced/model_disk.rs"]
mod model_disk;

use std::cell::Cell;
use std::future::Future;
use std::num::NonZeroU16;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, select};
use futures::{FutureExt as _, StreamExt as _};
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Reason;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, conformance, context_until, stack_layers};
use tradewind_core::{Budget, Class, Clock as _, ObjectStore, SystemClock};
use tradewind_layers::{DiskQueue, Sliced};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable};
use tradewind_model::slices::{MAX_QUEUED_REQUESTS, RequestGroup, RequestKind};

use model_disk::{DISK, Fixture, ModelDisk, key};

const MILLI: Duration = Duration::from_millis(1);
const LARGE: usize = 96 << 20;

fn sliced(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    Sliced::new(inner, DiskQueue::new(DISK, SystemClock::shared()))
}

fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_over_memory() {
    conformance::run(|| async { sliced(memory()) }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_under_and_over_other_layers() {
    conformance::run(|| async { stack_layers(sliced(stack_layers(memory(), 1)), 1) }.boxed()).await;
}

#[tokio::test]
async fn random_operations_match_the_memory_store() {
    for seed in 0..10 {
        println!("seed {seed}");
        conformance::model(|| async { sliced(memory()) }.boxed(), seed, 100).await;
    }
}

impl Fixture {
    /// Reads an object again and again, and counts the bytes.
    async fn read_endlessly(&self, name: &str, bytes: &Cell<u64>) {
        loop {
            let mut body = self.get(name).await.unwrap();
            while let Some(piece) = body.next().await {
                bytes.set(bytes.get() + piece.unwrap().len() as u64);
            }
        }
    }

    async fn sleep(&self, time: Duration) {
        self.clock.sleep_until(self.clock.now() + time).await;
    }

    /// Reads objects concurrently for some time, and returns the bytes of each reader.
    async fn read_for(&self, names: &[&str], time: Duration) -> Vec<u64> {
        let bytes: Vec<Cell<u64>> = names.iter().map(|_| Cell::new(0)).collect();
        let readers =
            join_all(names.iter().zip(&bytes).map(|(name, bytes)| self.read_endlessly(name, bytes)));
        self.advance_until(select(pin!(readers), pin!(self.sleep(time)))).await;
        bytes.iter().map(Cell::get).collect()
    }
}

#[tokio::test]
async fn streams_keep_the_disk_and_a_small_read_waits_for_one_slice() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    fixture.advance_until(fixture.put("small", 64 << 10, None)).await.0.unwrap();
    let (time, max_latency) = (Duration::from_secs(5), Cell::new(Duration::ZERO));
    let small_reads = async {
        loop {
            fixture.sleep(Duration::from_millis(977)).await;
            let begin = fixture.clock.now();
            fixture.get("small").await.unwrap().collect().await.unwrap();
            max_latency.set(max_latency.get().max(fixture.clock.now() - begin));
        }
    };
    let bytes: Vec<Cell<u64>> = (0..8).map(|_| Cell::new(0)).collect();
    let readers = join_all(bytes.iter().map(|bytes| fixture.read_endlessly("large", bytes)));
    let (readers, small_reads, end) = (pin!(readers), pin!(small_reads), pin!(fixture.sleep(time)));
    fixture.advance_until(select(readers, select(small_reads, end))).await;
    let sum: u64 = bytes.iter().map(Cell::get).sum();
    let share = sum as f64 / time.as_secs_f64() / DISK.bytes_per_second as f64;
    let max_latency = max_latency.get();
    println!("{share:.3} of the sequential rate, the slowest small read took {max_latency:?}");
    assert!(share >= 0.8, "{share}");
    let limit = DISK.slice_time() + DISK.positioning_time + 4 * MILLI;
    assert!(max_latency > DISK.positioning_time && max_latency <= limit, "{max_latency:?} of {limit:?}");
}

fn policies(class: u8, share: u16) -> Arc<ClassPolicyTable> {
    let mut table = ClassPolicyTable::default();
    let changes = ClassChanges { share: NonZeroU16::new(share), ..ClassChanges::default() };
    table.set(Class::new(class).unwrap(), changes);
    Arc::new(table)
}

#[tokio::test]
async fn classes_share_the_disk_by_weight_also_after_a_reload() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("mail", LARGE, Some(25))).await.0.unwrap();
    fixture.advance_until(fixture.put("other", LARGE, Some(28))).await.0.unwrap();
    for share in [3_u16, 1] {
        fixture.store.set_policies(policies(25, share));
        // A class has its share while one of its streams needs the disk: two of them do at any time.
        let names = ["mail", "mail", "other", "other", "other"];
        let bytes = fixture.read_for(&names, Duration::from_secs(8)).await;
        let (mail, others) = (bytes[..2].iter().sum::<u64>(), bytes[2..].iter().sum::<u64>());
        let ratio = mail as f64 / others as f64 / f64::from(share);
        assert!((0.9..=1.1).contains(&ratio), "{ratio} of a share of {share}: {bytes:?}");
    }
    fixture.store.set_policies(Arc::default());
    let bytes = fixture.read_for(&["mail", "other", "other", "other"], Duration::from_secs(8)).await;
    let ratio = bytes[0] as f64 / bytes[1] as f64;
    assert!((0.8..=1.25).contains(&ratio), "without shares, streams are equal: {bytes:?}");
}

#[tokio::test]
async fn slow_reader_loses_its_turn() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    fixture.advance_until(fixture.put("small", 64 << 10, None)).await.0.unwrap();
    let mut slow = fixture.advance_until(fixture.get("large")).await.0.unwrap();
    for _ in 0..3 {
        fixture.advance_until(slow.next()).await.0.unwrap().unwrap();
    }
    assert_eq!(fixture.disk.turn_count(), 1, "it keeps its turn while no other request is queued");
    let (read, took) = fixture.advance_until(fixture.get("small")).await;
    read.unwrap();
    assert!(took <= 2 * DISK.positioning_time + 2 * MILLI, "{took:?}");
    // It was slow before, so that the disk does not wait for it again.
    fixture.advance_until(slow.next()).await.0.unwrap().unwrap();
    fixture.clock.advance(50 * MILLI);
    fixture.advance_until(slow.next()).await.0.unwrap().unwrap();
    let mut piece = pin!(slow.next());
    assert!(piece.as_mut().now_or_never().is_none());
    fixture.advance_until(piece).await.0.unwrap().unwrap();
    drop(slow);
    fixture.assert_idle();
}

#[tokio::test]
async fn queued_reader_that_is_not_polled_delays_no_other() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let bytes = Cell::new(0);
    let mut holder = pin!(fixture.read_endlessly("large", &bytes));
    for _ in 0..40 {
        assert!(holder.as_mut().now_or_never().is_none());
        fixture.clock.advance(MILLI);
    }
    let mut stuck = Box::pin(fixture.get("large"));
    assert!(stuck.as_mut().now_or_never().is_none());
    assert_eq!(fixture.disk.queued(), 1);
    let before = bytes.get();
    let sleep = fixture.sleep(Duration::from_secs(1));
    fixture.advance_until(select(holder, pin!(sleep))).await;
    assert!(bytes.get() - before > 100_000_000, "{}", bytes.get() - before);
    drop(stuck);
}

#[tokio::test]
async fn dropped_requests_leave_the_queue() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let bytes = Cell::new(0);
    let mut holder = Box::pin(fixture.read_endlessly("large", &bytes));
    for _ in 0..40 {
        assert!(holder.as_mut().now_or_never().is_none());
        fixture.clock.advance(MILLI);
    }
    let mut queued: Vec<_> = (0..3).map(|_| Box::pin(fixture.get("large"))).collect();
    let mut put = Box::pin(fixture.put("large", LARGE, None));
    assert!(
        queued.iter_mut().all(|get| get.now_or_never().is_none()) && put.as_mut().now_or_never().is_none()
    );
    assert_eq!((fixture.disk.queued(), fixture.disk.turn_count()), (4, 1));
    queued.drain(..2).for_each(drop);
    drop(put);
    assert_eq!((fixture.disk.queued(), fixture.disk.turn_count()), (1, 1));
    drop(holder);
    let body = fixture.advance_until(queued.remove(0)).await.0.unwrap();
    drop((body, queued));
    fixture.assert_idle();
}

#[tokio::test]
async fn deadline_applies_while_a_request_is_queued() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let bytes = Cell::new(0);
    let mut holder = pin!(fixture.read_endlessly("large", &bytes));
    for _ in 0..40 {
        assert!(holder.as_mut().now_or_never().is_none());
        fixture.clock.advance(MILLI);
    }
    let deadline = Deadline::after(fixture.clock.clone(), 5 * MILLI);
    let budget = Budget::new(1 << 20);
    let context = context_until(&budget, deadline);
    let address = key("large");
    let late = fixture.store.get(&context, &address, GetRequest::default());
    let (late, took) = fixture.advance_until(late).await;
    assert_eq!(late.unwrap_err().reason(), Reason::DeadlineExceeded);
    assert!(took <= 6 * MILLI, "{took:?}");
    assert_eq!(fixture.disk.queued(), 0);
}

#[tokio::test]
async fn full_queue_rejects_requests_before_the_store_gets_them() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let bytes = Cell::new(0);
    let mut holder = Box::pin(fixture.read_endlessly("large", &bytes));
    for _ in 0..40 {
        assert!(holder.as_mut().now_or_never().is_none());
        fixture.clock.advance(MILLI);
    }
    let mut queued: Vec<_> = (0..MAX_QUEUED_REQUESTS).map(|_| Box::pin(fixture.get("large"))).collect();
    assert!(queued.iter_mut().all(|get| get.now_or_never().is_none()));
    let get = fixture.get("large").now_or_never().unwrap().unwrap_err();
    let put = fixture.put("new", 1 << 10, None).now_or_never().unwrap().unwrap_err();
    for error in [get, put] {
        assert!(error.reason() == Reason::Overloaded && error.kind().is_retryable(), "{error:?}");
    }
    let (admitted, large) = (fixture.context().admitted(), key("large"));
    let mut rest = Box::pin(fixture.store.get(&admitted, &large, GetRequest::default()));
    assert!(rest.as_mut().now_or_never().is_none(), "the rest of an admitted request waits");
    drop(queued);
    drop(holder);
    drop(fixture.advance_until(rest).await.0.unwrap());
    let missing = fixture.advance_until(fixture.get("new")).await.0.unwrap_err();
    assert_eq!(missing.reason(), Reason::NoSuchKey);
    fixture.assert_idle();
}

#[tokio::test]
async fn large_write_waits_for_slices_of_readers() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let (bytes, size) = (Cell::new(0), 32 << 20);
    let reader = fixture.read_endlessly("large", &bytes);
    let write = async {
        fixture.sleep(100 * MILLI).await;
        let begin = fixture.clock.now();
        let request = StageRequest { size: Some(size), ..StageRequest::default() };
        let mut staged = fixture.store.stage(&fixture.context(), &key("new"), request).await.unwrap();
        for _ in 0..size / (1 << 20) {
            staged.write(vec![1; 1 << 20].into()).await.unwrap();
        }
        staged.commit(Default::default()).await.unwrap();
        fixture.clock.now() - begin
    };
    let (reader, write) = (pin!(reader), pin!(write));
    let (done, _) = fixture.advance_until(select(reader, write)).await;
    let futures::future::Either::Right((took, _)) = done else { panic!("the reader ended") };
    // The write has five turns and a commit, and the reader a slice before each.
    assert!((3 * DISK.slice_time()..=7 * DISK.slice_time()).contains(&took), "{took:?}");
}

#[tokio::test]
async fn stores_on_one_disk_share_its_scheduler() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let other = Sliced::new(Arc::new(ModelDisk::new(&fixture.clock)), fixture.disk.clone());
    let (context, address) = (fixture.context(), key("k"));
    other.create_bucket(&context, &address.bucket).await.unwrap();
    let staged = other.stage(&context, &address, StageRequest::default()).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    let bytes = Cell::new(0);
    let mut holder = Box::pin(fixture.read_endlessly("large", &bytes));
    for _ in 0..40 {
        assert!(holder.as_mut().now_or_never().is_none());
        fixture.clock.advance(MILLI);
    }
    let mut get = Box::pin(other.get(&context, &address, GetRequest::default()));
    assert!(get.as_mut().now_or_never().is_none(), "the other store waits for the slice");
    drop(holder);
    assert!(fixture.advance_until(get).await.0.is_ok());
    fixture.assert_idle();
}

/// A stream that has the disk: its slice lasts for 30 ms more at least.
async fn hold_the_disk<'a>(fixture: &'a Fixture, bytes: &'a Cell<u64>) -> impl Future<Output = ()> + 'a {
    let mut holder = Box::pin(fixture.read_endlessly("large", bytes));
    for _ in 0..25 {
        assert!(holder.as_mut().now_or_never().is_none());
        fixture.clock.advance(MILLI);
    }
    holder
}

#[tokio::test]
async fn short_cached_reads_do_not_wait_while_a_stream_has_the_disk() {
    let fixture = Fixture::new().await;
    for (name, size) in [("large", LARGE), ("small", 64 << 10), ("range", 256 << 10)] {
        fixture.advance_until(fixture.put(name, size, None)).await.0.unwrap();
    }
    let bytes = Cell::new(0);
    let holder = hold_the_disk(&fixture, &bytes).await;
    for (name, size) in [("small", 64 << 10), ("range", 256 << 10)] {
        let mut uncached = Box::pin(fixture.get(name));
        assert!(uncached.as_mut().now_or_never().is_none(), "{name} needs the disk");
        drop(uncached);
        let before = fixture.disk.report();
        fixture.cache(name, size);
        let body = fixture.get(name).now_or_never().expect("the page cache has it").unwrap();
        assert_eq!(body.collect().now_or_never().unwrap().unwrap().len(), size);
        let after = fixture.disk.report();
        assert_eq!(after.page_cache_bytes - before.page_cache_bytes, size as u64);
        assert_eq!(after.statistics, before.statistics, "{name} has no turn");
    }
    drop(holder);
    fixture.assert_idle();
}

/// A hit of the page cache may start a read-ahead of the kernel, outside of all turns.
#[tokio::test]
async fn stream_takes_a_turn_for_each_slice_although_the_page_cache_has_it() {
    for cached in [0, 512 << 10, 16 << 20] {
        let fixture = Fixture::new().await;
        fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
        fixture.advance_until(fixture.put("stream", 16 << 20, Some(25))).await.0.unwrap();
        fixture.store.set_policies(policies(25, 1));
        fixture.cache("stream", cached);
        let bytes = Cell::new(0);
        let holder = hold_the_disk(&fixture, &bytes).await;
        if cached > 0 {
            let mut body = fixture.get("stream").now_or_never().unwrap().unwrap();
            assert!(body.next().now_or_never().is_none(), "it does not wait with {cached} cached bytes");
            assert_eq!(fixture.disk.queued(), 1);
        }
        drop(holder);
        let before = fixture.disk.report();
        let mut body = fixture.advance_until(fixture.get("stream")).await.0.unwrap();
        while let Some(piece) = fixture.advance_until(body.next()).await.0 {
            piece.unwrap();
            fixture.clock.advance(3 * MILLI);
        }
        let after = fixture.disk.report();
        assert_eq!(after.page_cache_bytes, before.page_cache_bytes, "{cached}");
        let group = |kind| after.statistics.groups.get(&RequestGroup { kind, class: Some(25) }).copied();
        let (head, slices) = (group(RequestKind::StreamHead).unwrap(), group(RequestKind::Stream).unwrap());
        assert_eq!(head.read_bytes + slices.read_bytes, 16 << 20, "{cached}: {:?}", after.statistics);
        assert!(slices.turns >= 2, "{cached}: {slices:?}");
        fixture.assert_idle();
    }
}

#[tokio::test]
async fn bytes_of_a_turn_that_was_lost_are_counted() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", LARGE, None)).await.0.unwrap();
    let sum = |fixture: &Fixture| -> u64 {
        fixture.disk.report().statistics.groups.values().map(|counts| counts.read_bytes).sum()
    };
    let mut body = fixture.advance_until(fixture.get("large")).await.0.unwrap();
    fixture.advance_until(body.next()).await.0.unwrap().unwrap();
    // The read of the piece takes so long that another request gets the turn.
    assert!(body.next().now_or_never().is_none());
    let bytes = Cell::new(0);
    let mut other = Box::pin(fixture.read_endlessly("large", &bytes));
    assert!(other.as_mut().now_or_never().is_none());
    fixture.clock.advance(Duration::from_secs(3));
    assert!(other.as_mut().now_or_never().is_none());
    let before = sum(&fixture);
    body.next().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(sum(&fixture) - before, 256 << 10);
}

#[tokio::test]
async fn hits_are_not_charged_to_the_share_of_their_class() {
    let fixture = Fixture::new().await;
    let short = 256 << 10;
    for (name, size, class) in [("mail", LARGE, 25), ("cached", short, 25), ("other", LARGE, 28)] {
        fixture.advance_until(fixture.put(name, size, Some(class))).await.0.unwrap();
    }
    fixture.cache("cached", short);
    fixture.store.set_policies(policies(25, 1));
    let (bytes, hits) = ([Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0)], Cell::new(0_u64));
    let cached_reads = async {
        loop {
            let mut body = fixture.get("cached").await.unwrap();
            while let Some(piece) = body.next().await {
                hits.set(hits.get() + piece.unwrap().len() as u64);
                fixture.sleep(MILLI).await;
            }
        }
    };
    let names = ["mail", "mail", "other", "other"];
    let readers = join_all(names.iter().zip(&bytes).map(|(name, bytes)| fixture.read_endlessly(name, bytes)));
    let (readers, cached_reads, end) =
        (pin!(readers), pin!(cached_reads), pin!(fixture.sleep(Duration::from_secs(8))));
    fixture.advance_until(select(readers, select(cached_reads, end))).await;
    let (mail, other) = (bytes[0].get() + bytes[1].get(), bytes[2].get() + bytes[3].get());
    let ratio = mail as f64 / other as f64;
    assert!(hits.get() > mail && (0.9..=1.1).contains(&ratio), "{ratio} with {} bytes of hits", hits.get());
}
