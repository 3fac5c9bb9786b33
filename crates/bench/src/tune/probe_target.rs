//! The target of probes: objects that upload probes write, and ranges of existing objects that download probes read.
//! Download probes read what upload probes wrote, so that no object is written for them alone. Without write
//! permission, they read objects of other users.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tradewind_core::error::Result;
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::range::ByteRange;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{Address, Context, ObjectStore};
use tradewind_model::store_statistics::Direction;
use tradewind_pattern::ContentId;

use crate::drive::BenchEnv;
use crate::drive::request::{RequestFailure, put_object};
use crate::files::SequentialFile;
use crate::random::mix;
use crate::workspace::Workspace;

/// Keys per listing page.
const PAGE_KEYS: usize = 1000;
/// Maximum number of candidate objects for reading. The largest are kept.
const MAX_CANDIDATES: usize = 256;

/// Lists the sizes of objects below a prefix until at least `enough` are known, in whole pages. The flag is true if
/// there are more objects.
pub async fn sizes_below(env: &BenchEnv, prefix: &str, enough: usize) -> Result<(Vec<u64>, bool)> {
    let context = crate::drive::request_context(env).await?;
    let mut request = ListRequest { prefix: prefix.to_owned(), limit: PAGE_KEYS, ..ListRequest::default() };
    let mut sizes = Vec::new();
    loop {
        let page = env.store.list(&context, &env.bucket, &request).await?;
        sizes.extend(page.entries.into_iter().filter_map(|entry| match entry {
            ListEntry::Key(_, summary) => Some(summary.size),
            ListEntry::CommonPrefix(_) => None,
        }));
        if page.next.is_none() || sizes.len() >= enough {
            return Ok((sizes, page.next.is_some()));
        }
        request.after = page.next;
    }
}

/// An object that probes can read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    key: String,
    bytes: u64,
    /// Bytes read so far, from the start of the object.
    read_bytes: u64,
}

/// RTT below which packet loss is ignored.
const MAX_LOCAL_RTT: Duration = Duration::from_micros(200);

/// Minimum number of lost packets that is significant; fewer may be chance.
const MIN_LOST_PACKETS: u64 = 3;

/// Opens the store again, with its own connections.
pub type OpenStore = Box<dyn Fn() -> Result<Arc<dyn ObjectStore>> + Send + Sync>;

/// The target of probes: a store, a prefix to write below, and the objects to read.
pub struct ProbeTarget {
    env: BenchEnv,
    open: OpenStore,
    /// Prefix of the names of written objects.
    prefix: String,
    candidates: Mutex<Vec<Candidate>>,
    /// Names of objects that probes tried to write, and true for those that were written.
    written: Mutex<BTreeMap<String, bool>>,
    is_lossy: AtomicBool,
    /// A very short RTT was measured.
    is_local: AtomicBool,
}

impl fmt::Debug for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeTarget").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl ProbeTarget {
    /// Creates a target without objects to read. No other user may write below `prefix`.
    #[must_use]
    pub const fn new(env: BenchEnv, open: OpenStore, prefix: String) -> Self {
        Self {
            env,
            open,
            prefix,
            candidates: Mutex::new(Vec::new()),
            written: Mutex::new(BTreeMap::new()),
            is_lossy: AtomicBool::new(false),
            is_local: AtomicBool::new(false),
        }
    }

    /// Removes everything below the prefix and returns the number of objects. If listing is denied, the written objects
    /// are removed by name.
    pub async fn clean(&self) -> Result<u64> {
        let names = self.written.lock().clone().into_iter().collect();
        Workspace::clean_named(&self.env, &self.prefix, names).await
    }

    /// An environment with new connections: after a probe with many connections, the congestion windows of reused ones
    /// are too small for a while.
    pub(super) fn with_new_connections(&self) -> Result<BenchEnv> {
        Ok(BenchEnv { store: (self.open)()?, ..self.env.clone() })
    }

    /// Records that the path loses packets. Later probes assume that it will lose more.
    pub(super) fn mark_lossy(&self) {
        self.is_lossy.store(true, Ordering::Relaxed);
    }

    /// Returns true if [`mark_lossy`](Self::mark_lossy) was called.
    pub(super) fn is_lossy(&self) -> bool {
        self.is_lossy.load(Ordering::Relaxed)
    }

    /// Returns true if `lost` packets indicate that congestion windows will stay smaller. Always false for a path with
    /// a very short RTT, where they recover before a probe notices.
    pub(super) fn is_loss_significant(&self, lost: u64) -> bool {
        lost >= MIN_LOST_PACKETS && !self.is_local.load(Ordering::Relaxed)
    }

    /// The environment.
    #[must_use]
    pub const fn env(&self) -> &BenchEnv {
        &self.env
    }

    /// Adds existing objects below a prefix, at most one listing page, to those that probes may read. Returns their
    /// sizes.
    pub async fn add_existing_objects(&self, prefix: &str) -> Result<Vec<u64>> {
        let context = crate::drive::request_context(&self.env).await?;
        let request = ListRequest { prefix: prefix.to_owned(), limit: PAGE_KEYS, ..ListRequest::default() };
        let page = self.env.store.list(&context, &self.env.bucket, &request).await?;
        let found: Vec<Candidate> = (page.entries.into_iter())
            .filter_map(|entry| match entry {
                ListEntry::Key(key, summary) => Some(Candidate { key, bytes: summary.size, read_bytes: 0 }),
                ListEntry::CommonPrefix(_) => None,
            })
            .collect();
        let sizes = found.iter().map(|object| object.bytes).collect();
        found.into_iter().for_each(|object| self.add_candidate(object));
        Ok(sizes)
    }

    /// The maximum request size of a download probe, in bytes.
    #[must_use]
    pub fn max_read_bytes(&self) -> u64 {
        self.candidates.lock().iter().map(|object| object.bytes).max().unwrap_or(0)
    }

    fn add_candidate(&self, object: Candidate) {
        let mut candidates = self.candidates.lock();
        if object.bytes == 0
            || candidates.iter().any(|other| other.key == object.key && other.bytes == object.bytes)
        {
            return;
        }
        candidates.push(object);
        if candidates.len() > MAX_CANDIDATES {
            candidates.sort_by_key(|object| std::cmp::Reverse(object.bytes));
            candidates.truncate(MAX_CANDIDATES);
        }
    }

    /// Measures one `HEAD` of the bucket: an RTT plus the store's processing time. A very short time marks the target
    /// as local, so that packet loss is ignored from then on.
    pub async fn measure_rtt(&self) -> Result<Duration> {
        let context = crate::drive::request_context(&self.env).await?;
        let started = self.env.clock.now();
        self.env.store.head_bucket(&context, &self.env.bucket).await?;
        let time = self.env.clock.now().saturating_sub(started);
        self.is_local.fetch_or(time < MAX_LOCAL_RTT, Ordering::Relaxed);
        Ok(time)
    }

    /// Creates a worker of a probe.
    pub(super) async fn new_worker(
        self: &Arc<Self>,
        env: &BenchEnv,
        (direction, bytes): (Direction, u64),
        number: usize,
    ) -> Result<ProbeWorker> {
        let context = crate::drive::request_context(env).await?;
        let (target, env) = (self.clone(), env.clone());
        Ok(ProbeWorker { target, env, direction, bytes, number, requests: 0, context })
    }

    /// Chooses an object and an offset for a read of `bytes`. Unread ranges are preferred: cached ones would favor
    /// later probes.
    fn choose(&self, bytes: u64, random: u64) -> Option<(Candidate, u64)> {
        let mut candidates = self.candidates.lock();
        let index = |count: usize| usize::try_from(mix(random) % count.max(1) as u64).unwrap_or(0);
        let mut unread: Vec<&mut Candidate> =
            candidates.iter_mut().filter(|object| object.bytes - object.read_bytes >= bytes).collect();
        let count = unread.len();
        if let Some(object) = unread.get_mut(index(count)) {
            let offset = object.read_bytes;
            object.read_bytes += bytes;
            return Some((object.clone(), offset));
        }
        let large_enough: Vec<&Candidate> =
            candidates.iter().filter(|object| object.bytes >= bytes).collect();
        let object = *large_enough.get(index(large_enough.len()))?;
        let ranges = object.bytes / bytes.max(1);
        Some((object.clone(), mix(!random) % ranges.max(1) * bytes))
    }
}

/// A worker of a probe. It sends one request after another.
pub(super) struct ProbeWorker {
    target: Arc<ProbeTarget>,
    env: BenchEnv,
    direction: Direction,
    bytes: u64,
    number: usize,
    /// Requests so far.
    requests: u64,
    context: Context,
}

impl ProbeWorker {
    /// Executes one request.
    pub async fn execute_request(&mut self) -> Result<(), RequestFailure> {
        self.requests += 1;
        match self.direction {
            Direction::Write => self.write().await,
            Direction::Read => self.read().await,
        }
    }

    fn name(&self) -> String {
        // The name is reused, so that the store never holds more objects of one size than there are workers.
        format!("{}{}-{}", self.target.prefix, self.bytes, self.number)
    }

    async fn write(&self) -> Result<(), RequestFailure> {
        let (target, key) = (&self.target, self.name());
        let (env, id) = (&self.env, ContentId::new(&key, self.bytes));
        let file = match &env.files {
            Some(files) => {
                files.create_source(&key, env.content.clone(), id, self.bytes).await?;
                Some(files.open_source(&key).await?)
            }
            None => None,
        };
        let address = Address::parse(env.bucket.as_str(), &key)?;
        target.written.lock().entry(key.clone()).or_insert(false);
        put_object(env, &self.context, &address, (id, self.bytes), file).await?;
        target.written.lock().insert(key.clone(), true);
        target.add_candidate(Candidate { key, bytes: self.bytes, read_bytes: 0 });
        Ok(())
    }

    async fn read(&self) -> Result<(), RequestFailure> {
        let env = &self.env;
        let random = mix(self.requests ^ mix(self.number as u64));
        let Some((object, offset)) = self.target.choose(self.bytes, random) else {
            return Err(RequestFailure::wrong_response(format!("no object has {} bytes", self.bytes)));
        };
        let mut file: Option<SequentialFile> = match &env.files {
            Some(files) => Some(files.create_target(&format!("read {}", self.name())).await?),
            None => None,
        };
        let address = Address::parse(env.bucket.as_str(), &object.key)?;
        let range = ByteRange::Inclusive { first: offset, last: offset + self.bytes - 1 };
        let select = if object.bytes == self.bytes { Select::Whole } else { Select::Range(range) };
        let request = GetRequest { select, ..GetRequest::default() };
        let mut response = env.store.get(&self.context, &address, request).await?;
        let mut received = 0;
        while let Some(piece) = response.body.next().await {
            let piece = piece?;
            received += piece.len() as u64;
            if let Some(file) = &mut file {
                file.write(piece).await?;
            }
        }
        if received != self.bytes {
            return Err(RequestFailure::wrong_response(format!(
                "{received} bytes were received, but {} requested",
                self.bytes
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::drive::tests::env;

    #[tokio::test]
    async fn choose_prefers_unread_ranges() {
        let env = env().await;
        let store = env.store.clone();
        let target =
            ProbeTarget::new(env, Box::new(move || Ok(store.clone() as Arc<dyn ObjectStore>)), String::new());
        for (key, bytes) in [("a", 1000), ("b", 350), ("small", 10)] {
            target.add_candidate(Candidate { key: key.to_owned(), bytes, read_bytes: 0 });
        }
        let mut ranges = BTreeSet::new();
        for random in 0..13 {
            let (object, offset) = target.choose(100, random).unwrap();
            assert!(offset + 100 <= object.bytes && ranges.insert((object.key, offset)));
        }
        let (object, offset) = target.choose(100, 14).unwrap();
        assert!(ranges.contains(&(object.key, offset)), "every range has been read");
        assert!(target.choose(2000, 1).is_none());
    }
}
