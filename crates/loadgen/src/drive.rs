//! The closed loop: every connection has one request in flight and takes its next key from a shared order. Threads do
//! not share connections; each runs its own event loop.
//!
//! Requests in flight when the time is up are finished and counted, and the elapsed time ends with the last of them, so
//! that operations, bytes and the server's CPU time cover the same work.

mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use md5::{Digest as _, Md5};
use tokio::task::LocalSet;
use tradewind_pattern::{Content, ContentId, mix};

use crate::arguments::{EtagRule, Fill, Load, Run, Target};
use crate::drive::worker::Worker;
pub use crate::drive::worker::error_response;
use crate::keys::{Keys, Permutation};
use crate::record::{Failure, Report, Tally};
use crate::sign::{MAX_EXPIRY_SECONDS, Signer};
use crate::wire::{BUFFER_BYTES, Connection};

/// The number of failures after which a connection stops: the server is gone or always wrong.
const MAX_FAILURES: u64 = 200;
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
const BUCKET_TIMEOUT: Duration = Duration::from_secs(20);
const BUCKET_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Reads objects for a time, or each one once.
pub fn get(run: &Run) -> anyhow::Result<Report> {
    Job::new(run, Method::Get)?.run(&run.load)
}

/// Writes objects for a time, or each one once.
pub fn put(run: &Run) -> anyhow::Result<Report> {
    let job = Job::new(run, Method::Put)?;
    if run.create_bucket {
        create_bucket(&run.target)?;
    }
    job.run(&run.load)
}

/// Creates the bucket and writes every object once.
pub fn fill(fill: &Fill) -> anyhow::Result<Report> {
    put(&Run {
        target: fill.target.clone(),
        load: fill.load.clone(),
        seconds: f64::MAX,
        once: true,
        max_bytes: u64::MAX,
        seed: 1,
        create_bucket: true,
    })
}

/// An event loop for one thread.
pub fn event_loop() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("event loop")
}

/// Awaits `exchange` for at most `timeout`.
pub async fn with_timeout<T>(
    timeout: Duration,
    exchange: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, exchange).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::new("timeout", format!("no response within {} s", timeout.as_secs_f64()))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Put,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        }
    }
}

/// The state shared by all connections of a run.
struct Job {
    target: Target,
    timeout: Duration,
    method: Method,
    keys: Keys,
    signer: Signer,
    content: Content,
    etag: EtagRule,
    etags: Vec<[u8; 16]>,
    once: Option<Permutation>,
    seed: u64,
    max_requests: u64,
    duration: Duration,
    issued: AtomicU64,
}

impl Job {
    fn new(run: &Run, method: Method) -> anyhow::Result<Self> {
        let keys = Keys::new(&run.target.keys)?;
        let content = Content::new();
        ensure!(
            run.load.connections > 0 && run.load.threads > 0,
            "--connections and --threads must be greater than 0"
        );
        let needs_etags = method == Method::Put && run.load.etag == EtagRule::Md5 && !run.once;
        let etags = if needs_etags { all_etags(&content, &keys, run.target.keys.size)? } else { Vec::new() };
        let max_requests_by_bytes = run.max_bytes / run.target.keys.size.max(1);
        Ok(Self {
            timeout: Duration::try_from_secs_f64(run.target.timeout).context("timeout")?,
            method,
            signer: Signer::new(&run.target.identity, run.target.endpoint, MAX_EXPIRY_SECONDS)?,
            content,
            etag: run.load.etag,
            etags,
            once: run.once.then(|| Permutation::new(keys.count(), run.seed)),
            seed: run.seed,
            max_requests: max_requests_by_bytes.max(1).min(if run.once { keys.count() } else { u64::MAX }),
            duration: if run.once {
                Duration::MAX
            } else {
                Duration::try_from_secs_f64(run.seconds).context("seconds")?
            },
            issued: AtomicU64::new(0),
            target: run.target.clone(),
            keys,
        })
    }

    fn run(self, load: &Load) -> anyhow::Result<Report> {
        let job = Arc::new(self);
        let start = Instant::now();
        let deadline = start.checked_add(job.duration);
        let threads: Vec<_> = (0..load.threads.min(load.connections))
            .map(|thread| {
                let own_connections = (thread..load.connections).step_by(load.threads).collect();
                let job = job.clone();
                std::thread::spawn(move || drive_thread(job, own_connections, deadline))
            })
            .collect();
        let mut total = Tally::new()?;
        for thread in threads {
            total.merge(thread.join().map_err(|_| anyhow!("a generator thread panicked"))??)?;
        }
        let operation = if job.method == Method::Get { "get" } else { "put" };
        Ok(Report::new(operation, total, start.elapsed()))
    }

    /// The index of the next key; `None` at the end of the run.
    fn next(&self, random: &mut u64, deadline: Option<Instant>) -> Option<u64> {
        let position = self.issued.fetch_add(1, Ordering::Relaxed);
        if position >= self.max_requests {
            return None;
        }
        if let Some(permutation) = &self.once {
            return Some(permutation.item(position));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return None;
        }
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let scaled = u128::from(mix(*random)) * u128::from(self.keys.count());
        Some((scaled >> 64) as u64)
    }
}

/// Runs the connections with the given numbers on this thread.
fn drive_thread(job: Arc<Job>, connections: Vec<usize>, deadline: Option<Instant>) -> anyhow::Result<Tally> {
    let tasks = LocalSet::new();
    let handles: Vec<_> = connections
        .into_iter()
        .map(|number| tasks.spawn_local(drive_connection(job.clone(), number, deadline)))
        .collect();
    tasks.block_on(&event_loop()?, async {
        let mut total = Tally::new()?;
        for handle in handles {
            total.merge(handle.await.context("a connection panicked")??)?;
        }
        Ok(total)
    })
}

async fn drive_connection(job: Arc<Job>, number: usize, deadline: Option<Instant>) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let mut worker = Worker::new(&job);
    let mut random = mix(mix(job.seed) ^ number as u64);
    let mut connection = None;
    while let Some(index) = job.next(&mut random, deadline) {
        worker.prepare(index);
        let started = Instant::now();
        let outcome = with_timeout(job.timeout, worker.exchange(&mut connection)).await;
        match outcome {
            Ok(()) => tally.record_success(started.elapsed(), job.target.keys.size),
            Err(failure) => {
                connection = None;
                tally.record_failure(&failure, &worker.path);
                if tally.failures() >= MAX_FAILURES {
                    break;
                }
                if failure.kind == "connect" {
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    }
    Ok(tally)
}

/// Creates the target's bucket; an existing one is no failure. Retries for a while, because a server may pass its
/// health check before it can create buckets (MinIO).
fn create_bucket(target: &Target) -> anyhow::Result<()> {
    let signer = Signer::new(&target.identity, target.endpoint, MAX_EXPIRY_SECONDS)?;
    let mut request = b"PUT ".to_vec();
    signer.append_target("PUT", &format!("/{}", target.keys.bucket), "", &mut request);
    request.extend_from_slice(
        format!(" HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", signer.host()).as_bytes(),
    );
    let timeout = Duration::try_from_secs_f64(target.timeout).context("timeout")?;
    let exchange = async || {
        let mut connection = Connection::open(target.endpoint).await?;
        connection.send(&request).await?;
        let head = connection.receive_head().await?;
        match head.status {
            200 | 409 => Ok(()),
            _ => Err(error_response(&mut connection, &head).await),
        }
    };
    let start = Instant::now();
    let event_loop = event_loop()?;
    loop {
        match event_loop.block_on(async { with_timeout(timeout, exchange()).await }) {
            Ok(()) => return Ok(()),
            Err(failure) if failure.kind == "status_503" && start.elapsed() < BUCKET_TIMEOUT => {
                std::thread::sleep(BUCKET_RETRY_PAUSE);
            }
            Err(failure) => return Err(anyhow!("creating the bucket: {}: {}", failure.kind, failure.detail)),
        }
    }
}

/// The MD5 of the first `size` bytes. `scratch` is a reusable buffer.
fn md5(content: &Content, id: ContentId, size: u64, scratch: &mut [u8]) -> [u8; 16] {
    let mut hash = Md5::new();
    let mut position = 0;
    while position < size {
        let length = scratch.len().min((size - position) as usize);
        content.fill(id, position, &mut scratch[..length]);
        hash.update(&scratch[..length]);
        position += length as u64;
    }
    hash.finalize().into()
}

/// The MD5 of every object, computed on all CPUs before the run starts.
fn all_etags(content: &Content, keys: &Keys, size: u64) -> anyhow::Result<Vec<[u8; 16]>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut etags = vec![[0; 16]; usize::try_from(keys.count()).context("count")?];
    let per_thread = etags.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (number, part) in etags.chunks_mut(per_thread).enumerate() {
            scope.spawn(move || {
                let (mut key, mut scratch) = (String::new(), vec![0; BUFFER_BYTES]);
                for (offset, etag) in part.iter_mut().enumerate() {
                    keys.write((number * per_thread + offset) as u64, &mut key);
                    *etag = md5(content, ContentId::new(&key, size), size, &mut scratch);
                }
            });
        }
    });
    Ok(etags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_covers_the_generated_bytes() {
        let content = Content::new();
        let id = ContentId::new("a", 10_000);
        let mut bytes = vec![0; 10_000];
        content.fill(id, 0, &mut bytes);
        let expected: [u8; 16] = Md5::digest(&bytes).into();
        assert_eq!(md5(&content, id, 10_000, &mut [0; 777]), expected);
    }
}
