//! The cost of a GET through the cache: CPU per 4 KiB GET as a RAM hit and as an SSD hit, next to the memory store, and
//! the throughput of a sequential cold read next to the plain store.
//!
//! `cargo run --release -p tradewind-cache --example cache_cost -- DIRECTORY`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use rustix::time::{ClockId, clock_gettime};
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context, pattern, write_all};
use tradewind_core::{Address, BucketName, ObjectStore, SystemClock};

const OBJECTS: u64 = 2000;
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 256 << 20;

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn address(number: u64) -> Address {
    Address::parse("bucket", &format!("key-{number}")).unwrap()
}

async fn put(store: &dyn ObjectStore, number: u64, bytes: usize) {
    let mut staged = store.stage(&context(), &address(number), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, pattern(bytes, number)).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

/// Reads an object and returns its length.
async fn read(store: &dyn ObjectStore, number: u64) -> usize {
    let context = context();
    let mut body = store.get(&context, &address(number), GetRequest::default()).await.unwrap().body;
    let mut length = 0;
    while let Some(piece) = body.next().await {
        length += piece.unwrap().len();
    }
    length
}

async fn measure_small(name: &str, store: &dyn ObjectStore, rounds: u64) {
    let (started, cpu_started) = (Instant::now(), cpu());
    for _ in 0..rounds {
        for number in 0..OBJECTS {
            assert_eq!(read(store, number).await, SMALL_BYTES);
        }
    }
    let requests = u32::try_from(rounds * OBJECTS).unwrap();
    println!(
        "{name}: {:?} CPU, {:?} per GET",
        (cpu() - cpu_started) / requests,
        started.elapsed() / requests
    );
}

async fn measure_large(name: &str, store: &dyn ObjectStore) {
    let (started, cpu_started) = (Instant::now(), cpu());
    assert_eq!(read(store, OBJECTS).await, LARGE_BYTES);
    let seconds = started.elapsed().as_secs_f64();
    let rate = LARGE_BYTES as f64 / 1e6 / seconds;
    println!("{name}: {rate:.0} MB/s, {:?} CPU", cpu() - cpu_started);
}

fn open(store: Arc<MemoryStore>, directory: Option<PathBuf>, memory_bytes: usize) -> Arc<Cached> {
    let options = CachedOptions {
        directory,
        disk_bytes: 1 << 30,
        memory_bytes,
        validation: Validation::Owner,
        volume_id: "cost".to_owned(),
    };
    Cached::open(store, options, SystemClock::shared()).unwrap()
}

#[tokio::main]
async fn main() {
    let root = PathBuf::from(std::env::args().nth(1).expect("an empty directory on the SSD"));
    let store = MemoryStore::new(SystemClock::shared());
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    for number in 0..OBJECTS {
        put(&*store, number, SMALL_BYTES).await;
    }
    put(&*store, OBJECTS, LARGE_BYTES).await;
    let ram = open(store.clone(), None, 64 << 20);
    let ssd = open(store.clone(), Some(root.join("ssd")), 0);
    for cached in [&ram, &ssd] {
        for number in 0..OBJECTS {
            read(&**cached, number).await;
            cached.flush().await;
        }
    }
    for _ in 0..3 {
        measure_small("memory store, 4 KiB", &*store, 20).await;
        measure_small("RAM hit, 4 KiB", &*ram, 20).await;
        measure_small("SSD hit, 4 KiB", &*ssd, 2).await;
    }
    for round in 0..3 {
        measure_large("memory store, sequential", &*store).await;
        let cold = open(store.clone(), Some(root.join(format!("cold-{round}"))), 64 << 20);
        measure_large("cold read through the cache", &*cold).await;
        let counters = cold.counters();
        println!("  {} extents filled, {} skipped", counters.fills, counters.fills_skipped);
        measure_large("second read", &*cold).await;
    }
    println!("{:?}", ssd.counters());
}
