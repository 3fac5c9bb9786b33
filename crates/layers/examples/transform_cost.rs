//! The cost of compression and encryption: CPU per MiB of PUT and GET of a large object, and the stored size, for bytes
//! that shrink and bytes that do not, next to the memory store alone. Without MD5, which costs the same in all of them.
//!
//! `cargo run --release -p tradewind-layers --example transform_cost`

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
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{ClassSet, Keyring, MasterKey, TransformPolicy};

const OBJECT_BYTES: usize = 64 << 20;
const ROUNDS: u32 = 5;

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn address() -> Address {
    Address::parse("bucket", "key").unwrap()
}

async fn put(store: &dyn ObjectStore, bytes: Bytes) {
    let request = StageRequest { etag: ETagForm::Unique, ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address(), request).await.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

async fn read(store: &dyn ObjectStore) -> usize {
    let context = context();
    let mut body = store.get(&context, &address(), GetRequest::default()).await.unwrap().body;
    let mut length = 0;
    while let Some(piece) = body.next().await {
        length += piece.unwrap().len();
    }
    length
}

/// Lines of a log, with numbers that differ.
fn text() -> Bytes {
    let line = |number: u64| {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        format!("2026-01-01T00:00:00Z INFO request{{id={number} key=\"photos/{mixed}.jpg\"}} status=200\n")
    };
    (0..).flat_map(|number| line(number).into_bytes()).take(OBJECT_BYTES).collect()
}

fn noise() -> Bytes {
    let mut state = 1_u64;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..OBJECT_BYTES / 8).flat_map(word).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let choices = [
        ("memory store", None),
        ("compress", Some((ClassSet::ALL, ClassSet::NONE))),
        ("encrypt", Some((ClassSet::NONE, ClassSet::ALL))),
        ("both", Some((ClassSet::ALL, ClassSet::ALL))),
    ];
    println!("{:<8}{:<14}{:>14}{:>14}{:>10}", "bytes", "layer", "PUT us/MiB", "GET us/MiB", "stored");
    for (name, bytes) in [("text", text()), ("noise", noise())] {
        for (layer, policy) in choices {
            let below = MemoryStore::new(SystemClock::shared());
            below.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
            let store: Arc<dyn ObjectStore> = match policy {
                None => below.clone(),
                Some((compress, encrypt)) => {
                    let keys = [("main".to_owned(), MasterKey::new([7; 32]))].into();
                    let keys = Keyring { current: Some("main".to_owned()), keys };
                    Transformed::new(below.clone(), TransformPolicy { compress, encrypt }, keys).unwrap()
                }
            };
            let (mut put_time, mut get_time) = (Duration::MAX, Duration::MAX);
            for _ in 0..ROUNDS {
                let started = cpu();
                put(&*store, bytes.clone()).await;
                put_time = put_time.min(cpu() - started);
                let started = cpu();
                assert_eq!(read(&*store).await, OBJECT_BYTES);
                get_time = get_time.min(cpu() - started);
            }
            let head = below.head(&context(), &address(), GetRequest::default()).await.unwrap().info;
            let stored = head.stored.map_or(head.size, |stored| stored.size());
            let per_mib = |time: Duration| time.as_secs_f64() * 1e6 / (OBJECT_BYTES >> 20) as f64;
            let percent = 100.0 * stored as f64 / OBJECT_BYTES as f64;
            println!(
                "{name:<8}{layer:<14}{:>14.0}{:>14.0}{percent:>8.1} %",
                per_mib(put_time),
                per_mib(get_time)
            );
        }
    }
}
