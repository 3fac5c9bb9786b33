//! The cost of deduplication: CPU per MiB of PUT and GET of a large object, next to the memory store alone, and the bytes
//! that copies with edits add. Without MD5, which costs the same in all of them.
//!
//! `cargo run --release -p tradewind-layers --example deduplication_cost`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use rustix::time::{ClockId, clock_gettime};
use tradewind_core::object::Expected;
use tradewind_core::store::{ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context, write_all};
use tradewind_core::{Address, BucketName, ObjectStore, SystemClock};
use tradewind_layers::Deduplicated;
use tradewind_layers::deduplicated::DeduplicationPolicy;

const OBJECT_BYTES: usize = 64 << 20;
const ROUNDS: u32 = 5;

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

async fn put(store: &dyn ObjectStore, key: &str, bytes: Bytes) {
    let size = Some(bytes.len() as u64);
    let request = StageRequest { size, etag: ETagForm::Unique, ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address(key), request).await.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

async fn read(store: &dyn ObjectStore, key: &str) -> usize {
    let context = context();
    let mut body = store.get(&context, &address(key), GetRequest::default()).await.unwrap().body;
    let mut bytes = 0;
    while let Some(piece) = body.next().await {
        bytes += piece.unwrap().len();
    }
    bytes
}

fn noise(seed: u64) -> Bytes {
    let mut state = seed;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..OBJECT_BYTES / 8).flat_map(word).collect()
}

/// The bytes with short insertions at even distances.
fn edited(bytes: &[u8], edits: usize) -> Bytes {
    let pieces = bytes.chunks(OBJECT_BYTES / edits);
    pieces.flat_map(|piece| [&b"an edit"[..], piece].concat()).collect()
}

async fn bucket(store: &dyn ObjectStore) {
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
}

async fn layer() -> Arc<Deduplicated> {
    let below = MemoryStore::new(SystemClock::shared());
    let layer = Deduplicated::open(&context(), below, DeduplicationPolicy::default()).await.unwrap();
    bucket(&*layer).await;
    layer
}

fn per_mib(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / (OBJECT_BYTES >> 20) as f64
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let bytes = noise(1);
    let [mut plain_put, mut plain_get, mut new, mut again, mut get] = [Duration::MAX; 5];
    for _ in 0..ROUNDS {
        let plain = MemoryStore::new(SystemClock::shared());
        bucket(&*plain).await;
        let layer = layer().await;
        let mut timed = [Duration::ZERO; 5];
        for (index, time) in timed.iter_mut().enumerate() {
            let started = cpu();
            match index {
                0 => put(&*plain, "a", bytes.clone()).await,
                1 => assert_eq!(read(&*plain, "a").await, OBJECT_BYTES),
                2 => put(&*layer, "a", bytes.clone()).await,
                3 => put(&*layer, "b", bytes.clone()).await,
                _ => assert_eq!(read(&*layer, "b").await, OBJECT_BYTES),
            }
            *time = cpu() - started;
        }
        for (best, time) in
            [&mut plain_put, &mut plain_get, &mut new, &mut again, &mut get].into_iter().zip(timed)
        {
            *best = time.min(*best);
        }
    }
    println!("{:<28}{:>12}", "request", "us/MiB");
    for (name, time) in [
        ("PUT, memory store alone", plain_put),
        ("GET, memory store alone", plain_get),
        ("PUT of new bytes", new),
        ("PUT of stored bytes", again),
        ("GET", get),
    ] {
        println!("{name:<28}{:>12.0}", per_mib(time));
    }
    println!("\n{:<28}{:>12}", "edits of 64 MiB", "added");
    for edits in [1, 16, 256, 1024] {
        let layer = layer().await;
        put(&*layer, "a", bytes.clone()).await;
        let before = layer.counts().stored_bytes;
        put(&*layer, "b", edited(&bytes, edits)).await;
        let added = layer.counts().stored_bytes - before;
        println!("{edits:<28}{:>10.2} %", 100.0 * added as f64 / OBJECT_BYTES as f64);
    }
}
