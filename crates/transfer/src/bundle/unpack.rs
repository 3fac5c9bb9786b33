//! Unpacking of bundles: many members are written to files concurrently. Adjacent members are fetched with one
//! request; a member that arrives damaged is fetched again on its own.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::bundle::{MemberRange, member_ranges};
use tradewind_parallel::{Sink, TransferContext};

use super::index::Member;
use super::reader::{Bundle, MAX_BUFFERED_MEMBER_BYTES};
use super::thread_pool::ThreadPool;
use crate::files::{Directory, NewFile};
use crate::filter::Filter;
use crate::names::key_to_path;
use crate::preserve::Attributes;
use crate::progress::Progress;
use crate::workers::{ActionResult, Outcome};

/// Number of threads that write files.
const WRITER_THREADS: usize = 4;
/// Maximum number of concurrent requests of up to [`MAX_BUFFERED_MEMBER_BYTES`] each. Their bytes wait in memory for a
/// thread.
const MAX_CONCURRENT_RANGES: usize = 16;

/// Writes the members of bundles to files.
#[derive(Debug)]
pub struct Unpacker {
    to: Directory,
    transfers: Arc<TransferContext>,
    progress: Arc<Progress>,
    threads: ThreadPool,
}

/// The results of members, by name.
type MemberResults = Vec<(String, Result<ActionResult>)>;

impl Unpacker {
    /// An unpacker into the directory `to` that reports to `progress`.
    #[must_use]
    pub fn new(to: Directory, transfers: Arc<TransferContext>, progress: Arc<Progress>) -> Self {
        Self { to, transfers, progress, threads: ThreadPool::new(WRITER_THREADS) }
    }

    /// Unpacks the members that the filter accepts from a bundle and all later ones of its set.
    ///
    /// Failures of single members are part of the outcome. A failure that would affect all others ends the unpacking.
    pub async fn unpack(self: &Arc<Self>, first: Bundle, filter: &Filter) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut next = Some(first);
        while let Some(bundle) = next {
            let bundle = Arc::new(bundle);
            self.unpack_one(&bundle, filter, &mut outcome).await?;
            if outcome.stopped_early {
                break;
            }
            next = match bundle.next().await {
                Ok(next) => next,
                Err(e) => {
                    outcome.record(bundle.next_url(), Err(e), &self.progress);
                    None
                }
            };
        }
        self.progress.complete_listing();
        Ok(outcome)
    }

    async fn unpack_one(
        self: &Arc<Self>,
        bundle: &Arc<Bundle>,
        filter: &Filter,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let selected: Vec<&Member> =
            bundle.members().iter().filter(|member| filter.accepts(&member.name)).collect();
        selected.iter().for_each(|member| self.progress.add_found(member.size));
        let max_tasks = MAX_CONCURRENT_RANGES.min(self.transfers.plan().initial_concurrency.max(1));
        let mut tasks: JoinSet<MemberResults> = JoinSet::new();
        let (mut tried, mut is_stopped) = (0, false);
        let mut pending = member_ranges(
            selected.iter().map(|member| (member.offset, member.size)),
            MAX_BUFFERED_MEMBER_BYTES,
        )
        .into_iter();
        loop {
            while !is_stopped
                && tasks.len() < max_tasks
                && let Some(range) = pending.next()
            {
                let members = selected[range.members.clone()].iter().map(|&member| member.clone()).collect();
                let (unpacker, bundle) = (self.clone(), bundle.clone());
                tasks.spawn(async move { unpacker.unpack_range(&bundle, range, members).await });
            }
            let Some(results) = tasks.join_next().await else {
                outcome.stopped_early = is_stopped && tried < selected.len();
                return Ok(());
            };
            for (name, result) in results.map_err(task_failed)? {
                tried += 1;
                let is_for_all = result.as_ref().is_err_and(Error::affects_whole_bucket);
                if is_for_all && is_stopped {
                    // This cause was reported already.
                    continue;
                }
                is_stopped |= is_for_all;
                outcome.record(name, result, &self.progress);
            }
        }
    }

    async fn unpack_range(
        self: Arc<Self>,
        bundle: &Bundle,
        range: MemberRange,
        members: Vec<Member>,
    ) -> MemberResults {
        let (mut results, mut remaining) = (Vec::new(), members);
        if remaining.len() > 1
            && let Ok((bytes, _)) = bundle.ranges().fetch((range.offset, range.length)).await
        {
            let unpacker = self.clone();
            let written = self.threads.spawn(move || unpacker.write_all(range.offset, &bytes, remaining));
            match written.await {
                Ok((written, damaged)) => (results, remaining) = (written, damaged),
                Err(e) => return vec![(bundle.url(), Err(e))],
            }
        }
        for member in remaining {
            let done = self.unpack_member(bundle, &member, &member.name).await;
            let is_for_all = done.as_ref().is_err_and(Error::affects_whole_bucket);
            results.push((member.name, done.map(ActionResult::Copied)));
            if is_for_all {
                break;
            }
        }
        results
    }

    /// Writes the members fetched with one request. Returns their results, and the members that arrived damaged.
    fn write_all(&self, offset: u64, bytes: &Bytes, members: Vec<Member>) -> (MemberResults, Vec<Member>) {
        let (mut results, mut damaged) = (Vec::with_capacity(members.len()), Vec::new());
        for member in members {
            let position = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            match bytes.get(position(member.offset)..position(member.end())) {
                Some(own) if crc64nvme(own) == member.checksum => {
                    let written = self.write(&member, &member.name, own).map(ActionResult::Copied);
                    results.push((member.name, written));
                }
                _ => damaged.push(member),
            }
        }
        (results, damaged)
    }

    fn write(&self, member: &Member, name: &str, bytes: &[u8]) -> Result<u64> {
        let (mut file, attributes) = self.begin(member, name)?;
        file.write_at(0, bytes)?;
        file.finish(&attributes)?;
        Ok(member.size)
    }

    /// Starts the file of a member. Returns it with the attributes to set at the end.
    fn begin(&self, member: &Member, name: &str) -> Result<(NewFile, Attributes)> {
        let file = self.to.create_file(&key_to_path(name)?, member.size, self.progress.clone(), true)?;
        let mode = Some(file.restrict_mode(member.mode)?);
        Ok((file, Attributes { mode, ..Attributes::with_modified(member.modified) }))
    }

    /// Writes one member to the file `name` below the destination; returns its size in bytes.
    pub async fn unpack_member(&self, bundle: &Bundle, member: &Member, name: &str) -> Result<u64> {
        if member.size <= MAX_BUFFERED_MEMBER_BYTES {
            return self.write(member, name, &bundle.fetch(member).await?);
        }
        let (file, attributes) = self.begin(member, name)?;
        let file = Arc::new(file);
        let sink: Arc<dyn Sink> = Arc::new(OffsetSink { file: file.clone(), base: member.offset });
        let fetch = || async {
            let checksum = bundle.ranges().write_to((member.offset, member.size), &sink).await?;
            Ok(((), checksum))
        };
        bundle.fetch_verified(member, fetch).await?;
        drop(sink);
        let why = "the file is still in use after its last range";
        let mut file = Arc::into_inner(file).ok_or_else(|| Error::new(Reason::Defect, why))?;
        file.finish(&attributes)?;
        Ok(member.size)
    }
}

/// A sink that maps offsets in the bundle to offsets in the member's file.
struct OffsetSink<S> {
    file: Arc<S>,
    base: u64,
}

impl<S: Sink> Sink for OffsetSink<S> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_at(offset - self.base, bytes)
    }
}

fn task_failed(e: tokio::task::JoinError) -> Error {
    Error::with_source(Reason::Defect, "a task failed", e)
}
