//! The latency of single commits: puts small objects one after another into a new store and prints median and p99 per
//! commit, and the requests that the device of the directory got.
//! `cargo run -p tradewind-backend --example commit_latency -- DIR [PUTS [BYTES]]`; the store is removed at the end.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "an example prints its results"
)]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, BucketName, Budget, Context, ObjectStore, SystemClock};

const DEFAULT_PUTS: usize = 1000;
const DEFAULT_OBJECT_BYTES: usize = 4 << 10;

/// Requests of a block device since its start.
#[derive(Debug, Clone, Copy)]
struct DeviceRequests {
    writes: u64,
    written_bytes: u64,
    flushes: u64,
}

impl DeviceRequests {
    /// Reads the counters of the device that holds `path`; `None` if the file system has none of its own.
    fn read(path: &Path) -> Option<Self> {
        let device = path.metadata().ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let counters = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        Some(Self {
            writes: *counters.get(4)?,
            written_bytes: counters.get(6)? * 512,
            flushes: counters.get(15).copied().unwrap_or(0),
        })
    }
}

async fn put(store: &LocalStore, context: &Context, key: &str, body: Bytes) {
    let address = Address::parse("bucket", key).unwrap();
    let request = StageRequest { size: Some(body.len() as u64), ..StageRequest::default() };
    let mut staged = store.stage(context, &address, request).await.unwrap();
    staged.write(body).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("usage: commit_latency DIR [PUTS [BYTES]]"));
    let mut number = |default| arguments.next().map_or(default, |argument| argument.parse().unwrap());
    let (puts, object_bytes) = (number(DEFAULT_PUTS), number(DEFAULT_OBJECT_BYTES));
    let root = directory.join(format!("commit-latency-{}", std::process::id()));
    let clock = SystemClock::shared();
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    let store = LocalStore::open(&root, options, clock.clone()).unwrap();
    let budget = Budget::new(64 << 20);
    let deadline = Deadline::none(clock);
    let window = budget.admit(1 << 20, &deadline).await.unwrap();
    let context = Context::new(deadline, window);
    store.create_bucket(&context, &BucketName::new("bucket").unwrap()).await.unwrap();
    put(&store, &context, "first", Bytes::from(vec![1; object_bytes])).await;
    let before = DeviceRequests::read(&root);
    let mut latencies = Vec::with_capacity(puts);
    for n in 0..puts {
        let body = Bytes::from(vec![(n % 251) as u8 + 1; object_bytes]);
        let begin = Instant::now();
        put(&store, &context, &format!("key-{n:08}"), body).await;
        latencies.push(begin.elapsed());
    }
    let after = DeviceRequests::read(&root);
    store.close().await.unwrap();
    drop(store);
    std::fs::remove_dir_all(&root).unwrap();
    print_results(&mut latencies, before, after);
}

fn print_results(latencies: &mut [Duration], before: Option<DeviceRequests>, after: Option<DeviceRequests>) {
    latencies.sort_unstable();
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    let quantile = |percent: usize| milliseconds(latencies[(latencies.len() - 1) * percent / 100]);
    let puts = latencies.len() as f64;
    let mean = milliseconds(latencies.iter().sum::<Duration>()) / puts;
    println!("{puts} commits: median {:.3} ms, p99 {:.3} ms, mean {mean:.3} ms", quantile(50), quantile(99));
    match (before, after) {
        (Some(before), Some(after)) => println!(
            "device, per commit: {:.2} writes, {:.1} KiB, {:.2} flushes",
            (after.writes - before.writes) as f64 / puts,
            (after.written_bytes - before.written_bytes) as f64 / puts / 1024.0,
            (after.flushes - before.flushes) as f64 / puts
        ),
        _ => println!("the device's requests are unknown"),
    }
}
