//! The cost of the local store itself, without HTTP: durable puts and random gets of small objects, and streams of
//! LARGE objects of 1 MiB. Prints operations per second and CPU time per operation (this process, all threads).
//! `cargo bench -p tradewind-backend -- DIR [OBJECTS [LARGE]]`; DIR defaults to a temporary directory.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its results"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::{ETagForm, GetRequest, StageRequest};
use tradewind_core::{Address, BucketName, Budget, Clock, Context, ObjectStore, SystemClock};

const WORKERS: u64 = 32;

#[derive(Clone)]
struct Bench {
    store: Arc<LocalStore>,
    budget: Budget,
    clock: Arc<dyn Clock>,
}

impl Bench {
    async fn context(&self, window: usize) -> Context {
        let deadline = Deadline::none(self.clock.clone());
        let window = self.budget.admit(window, &deadline).await.unwrap();
        Context::new(deadline, window)
    }

    async fn put(&self, key: u64, body: &Bytes, pieces: usize, etag: ETagForm) {
        let context = self.context(64 << 10).await;
        let request =
            StageRequest { size: Some((body.len() * pieces) as u64), etag, ..StageRequest::default() };
        let mut staged = self.store.stage(&context, &address(key), request).await.unwrap();
        for _ in 0..pieces {
            staged.write(body.clone()).await.unwrap();
        }
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn get(&self, key: u64) -> u64 {
        let context = self.context(512 << 10).await;
        let found = self.store.get(&context, &address(key), GetRequest::default()).await.unwrap();
        let mut body = found.body;
        let mut seen = 0;
        while let Some(piece) = futures::StreamExt::next(&mut body).await {
            seen += piece.unwrap().len() as u64;
        }
        assert_eq!(seen, found.info.size);
        seen
    }

    /// Runs `work(n)` for n in `0..count` on all workers.
    async fn run<F, W>(&self, name: &str, count: u64, bytes: u64, work: W)
    where
        F: Future<Output = ()> + Send,
        W: Fn(Bench, u64) -> F + Send + Sync + Clone + 'static,
    {
        let next = Arc::new(AtomicU64::new(0));
        let (started, cpu) = (Instant::now(), cpu_time());
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..WORKERS {
            let (bench, next, work) = (self.clone(), next.clone(), work.clone());
            workers.spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    work(bench.clone(), n).await;
                }
            });
        }
        workers.join_all().await;
        let (wall, cpu) = (started.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
        let (ops, gigabytes) = (count as f64, (count * bytes) as f64 / 1e9);
        println!(
            "{name:<28} {:>9.0} op/s {:>7.2} CPU ms/1,000 {:>7.2} GB/s {:>7.3} CPU s/GB",
            ops / wall,
            cpu * 1e6 / ops,
            gigabytes / wall,
            cpu / gigabytes
        );
    }
}

fn address(key: u64) -> Address {
    Address::parse("bench", &format!("some/prefix/object-{key:08}")).unwrap()
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// A cheap permutation, so that gets come in random order.
fn shuffled(n: u64, count: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9) % count
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let temporary = tempfile::tempdir().unwrap();
    let directory = arguments.first().map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let objects: u64 = arguments.get(1).map_or(100_000, |n| n.parse().unwrap());
    let large: u64 = arguments.get(2).map_or(1500, |n| n.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = SystemClock::shared();
        let store =
            LocalStore::open(&directory.join("store"), LocalOptions::default(), clock.clone()).unwrap();
        let bench = Bench { store, budget: Budget::new(128 << 20), clock };
        let context = bench.context(4096).await;
        bench.store.create_bucket(&context, &BucketName::new("bench").unwrap()).await.unwrap();
        let body = |size: usize| Bytes::from((0..size).map(|n| (n * 31 % 251) as u8).collect::<Vec<_>>());
        let (small, piece) = (body(4 << 10), body(64 << 10));
        bench
            .run("put 4 KiB", objects, 4 << 10, {
                move |b, n| {
                    let small = small.clone();
                    async move { b.put(n, &small, 1, ETagForm::Md5).await }
                }
            })
            .await;
        bench
            .run("get 4 KiB", objects * 3, 4 << 10, move |b, n| async move {
                b.get(shuffled(n, objects)).await;
            })
            .await;
        for (name, megabytes, count) in [("1 MiB", 1_u64, large), ("16 MiB", 16, large / 15)] {
            for (form, etag) in [("md5", ETagForm::Md5), ("unique", ETagForm::Unique)] {
                let piece = piece.clone();
                bench
                    .run(&format!("put {name} {form}"), count, megabytes << 20, move |b, n| {
                        let piece = piece.clone();
                        async move {
                            b.put(1_000_000_000 * megabytes + n, &piece, (megabytes * 16) as usize, etag)
                                .await
                        }
                    })
                    .await;
            }
            bench
                .run(&format!("get {name}"), count * 3, megabytes << 20, move |b, n| async move {
                    b.get(1_000_000_000 * megabytes + n % count).await;
                })
                .await;
        }
        bench.store.close().await.unwrap();
    });
}
