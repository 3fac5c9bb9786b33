//! CPU time and throughput of the second read of a working set of 1 MiB objects, which is on the SSD and larger than the
//! memory: eight concurrent readers.
//!
//! `cargo run --release -p tradewind-cache --example second_read -- DIRECTORY [OBJECTS]`

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

const OBJECT_BYTES: usize = 1 << 20;
const READERS: u64 = 8;
const ROUNDS: usize = 20;
const DEFAULT_OBJECTS: u64 = 128;

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn address(number: u64) -> Address {
    Address::parse("bucket", &format!("key-{number}")).unwrap()
}

async fn read(store: &dyn ObjectStore, number: u64) {
    let context = context();
    let mut body = store.get(&context, &address(number), GetRequest::default()).await.unwrap().body;
    let mut length = 0;
    while let Some(piece) = body.next().await {
        length += piece.unwrap().len();
    }
    assert_eq!(length, OBJECT_BYTES);
}

async fn read_all(cached: &Arc<Cached>, objects: u64) {
    let readers = (0..READERS).map(|reader| {
        let cached = cached.clone();
        tokio::spawn(async move {
            for number in (reader..objects).step_by(READERS as usize) {
                read(&*cached, number).await;
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    let root = PathBuf::from(std::env::args().nth(1).expect("an empty directory on the SSD"));
    let objects = std::env::args().nth(2).map_or(DEFAULT_OBJECTS, |count| count.parse().unwrap());
    let store = MemoryStore::new(SystemClock::shared());
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    for number in 0..objects {
        let mut staged = store.stage(&context(), &address(number), StageRequest::default()).await.unwrap();
        write_all(&mut *staged, pattern(OBJECT_BYTES, number)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }
    let options = CachedOptions {
        directory: Some(root.join("cache")),
        disk_bytes: objects * 2 * OBJECT_BYTES as u64,
        memory_bytes: usize::try_from(objects).unwrap() * OBJECT_BYTES / 4,
        validation: Validation::Owner,
        volume_id: "cost".to_owned(),
    };
    let cached = Cached::open(store, options, SystemClock::shared()).unwrap();
    for number in 0..objects {
        read(&*cached, number).await;
        cached.flush().await;
    }
    let bytes = objects * OBJECT_BYTES as u64;
    let mut results = Vec::new();
    for _ in 0..ROUNDS {
        let (started, cpu_started) = (Instant::now(), cpu());
        read_all(&cached, objects).await;
        results.push((started.elapsed(), cpu() - cpu_started));
    }
    results.sort();
    let (elapsed, _) = results[ROUNDS / 2];
    results.sort_by_key(|(_, cpu)| *cpu);
    let (_, cpu) = results[ROUNDS / 2];
    let rate = bytes as f64 / 1e6 / elapsed.as_secs_f64();
    println!("median {rate:.0} MB/s, {:.3} ms CPU per MiB", cpu.as_secs_f64() * 1e3 / objects as f64);
    println!("{:?}", cached.counters());
}
