//! Unpacking: members become files, many at a time. Neighbours are fetched with one request; what does not come whole that
//! way is asked for by itself.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::bundle::{Run, runs};
use tradewind_volume::{Carrier, Sink};

use super::crew::Crew;
use super::index::Member;
use super::open::{Bundle, WHOLE_BYTES};
use crate::files::{Directory, NewFile};
use crate::filter::Filter;
use crate::moves::{Done, Outcome};
use crate::names::path_of;
use crate::preserve::Attributes;
use crate::progress::Progress;

/// Threads that write files.
const WRITERS: usize = 4;
/// Requests at a time, of up to [`WHOLE_BYTES`] each: their bytes wait in memory for a thread.
const RUNS: usize = 16;

/// Makes files of members.
#[derive(Debug)]
pub struct Unpacker {
    to: Directory,
    carrier: Arc<Carrier>,
    progress: Arc<Progress>,
    crew: Crew,
}

/// What became of members, by their names.
type Ended = Vec<(String, Result<Done>)>;

impl Unpacker {
    /// Into a directory; `progress` is told how far it is.
    #[must_use]
    pub fn new(to: Directory, carrier: Arc<Carrier>, progress: Arc<Progress>) -> Self {
        Self { to, carrier, progress, crew: Crew::new(WRITERS) }
    }

    /// Makes files of the members of a bundle, and of all that follow it, as far as the filter takes them. What fails is
    /// told of; everything else is done, unless it would fail in the same way.
    pub async fn unpack(self: &Arc<Self>, first: Bundle, filter: &Filter) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut next = Some(first);
        while let Some(bundle) = next {
            let bundle = Arc::new(bundle);
            self.unpack_one(&bundle, filter, &mut outcome).await?;
            if outcome.gave_up {
                break;
            }
            next = match bundle.next().await {
                Ok(next) => next,
                Err(e) => {
                    outcome.add(bundle.next_place(), Err(e), &self.progress);
                    None
                }
            };
        }
        self.progress.found_all();
        Ok(outcome)
    }

    async fn unpack_one(
        self: &Arc<Self>,
        bundle: &Arc<Bundle>,
        filter: &Filter,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let chosen: Vec<&Member> =
            bundle.members().iter().filter(|member| filter.takes(&member.name)).collect();
        chosen.iter().for_each(|member| self.progress.found(member.size));
        let most = RUNS.min(self.carrier.plan().requests.max(1));
        let mut tasks: JoinSet<Ended> = JoinSet::new();
        let (mut tried, mut is_over) = (0, false);
        let mut waiting =
            runs(chosen.iter().map(|member| (member.offset, member.size)), WHOLE_BYTES).into_iter();
        loop {
            while !is_over
                && tasks.len() < most
                && let Some(run) = waiting.next()
            {
                let members = chosen[run.members.clone()].iter().map(|&member| member.clone()).collect();
                let (unpacker, bundle) = (self.clone(), bundle.clone());
                tasks.spawn(async move { unpacker.run(&bundle, run, members).await });
            }
            let Some(ended) = tasks.join_next().await else {
                outcome.gave_up = is_over && tried < chosen.len();
                return Ok(());
            };
            for (name, ended) in ended.map_err(lost)? {
                tried += 1;
                let is_for_all = ended.as_ref().is_err_and(Error::is_for_all);
                if is_for_all && is_over {
                    // It was told of already.
                    continue;
                }
                is_over |= is_for_all;
                outcome.add(name, ended, &self.progress);
            }
        }
    }

    async fn run(self: Arc<Self>, bundle: &Bundle, run: Run, members: Vec<Member>) -> Ended {
        let (mut ended, mut left) = (Vec::new(), members);
        if left.len() > 1
            && let Ok((bytes, _)) = bundle.ranges().bytes((run.offset, run.length)).await
        {
            let unpacker = self.clone();
            let written = self.crew.begin(move || unpacker.write_all(run.offset, &bytes, left));
            match written.await {
                Ok((written, damaged)) => (ended, left) = (written, damaged),
                Err(e) => return vec![(bundle.place(), Err(e))],
            }
        }
        for member in left {
            let done = self.member(bundle, &member, &member.name).await;
            let is_for_all = done.as_ref().is_err_and(Error::is_for_all);
            ended.push((member.name, done.map(Done::Copied)));
            if is_for_all {
                break;
            }
        }
        ended
    }

    /// Makes files of what came with one request; answers what became of them, and those that came damaged.
    fn write_all(&self, offset: u64, bytes: &Bytes, members: Vec<Member>) -> (Ended, Vec<Member>) {
        let (mut ended, mut damaged) = (Vec::with_capacity(members.len()), Vec::new());
        for member in members {
            let place = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            match bytes.get(place(member.offset)..place(member.end())) {
                Some(own) if crc64nvme(own) == member.checksum => {
                    let written = self.write(&member, &member.name, own).map(Done::Copied);
                    ended.push((member.name, written));
                }
                _ => damaged.push(member),
            }
        }
        (ended, damaged)
    }

    fn write(&self, member: &Member, name: &str, bytes: &[u8]) -> Result<u64> {
        let (mut file, attributes) = self.begin(member, name)?;
        file.write_at(0, bytes)?;
        file.finish(&attributes)?;
        Ok(member.size)
    }

    /// Begins a member's file; answers what it is to have in the end.
    fn begin(&self, member: &Member, name: &str) -> Result<(NewFile, Attributes)> {
        let file = self.to.begin(&path_of(name)?, member.size, self.progress.clone(), true)?;
        let mode = Some(file.permitted(member.mode)?);
        Ok((file, Attributes { mode, ..Attributes::dated(member.modified) }))
    }

    /// Makes a file of one member, below the destination under a name; answers its bytes.
    pub async fn member(&self, bundle: &Bundle, member: &Member, name: &str) -> Result<u64> {
        if member.size <= WHOLE_BYTES {
            return self.write(member, name, &bundle.fetch(member).await?);
        }
        let (file, attributes) = self.begin(member, name)?;
        let file = Arc::new(file);
        let sink: Arc<dyn Sink> = Arc::new(Shifted { file: file.clone(), by: member.offset });
        let fetch = || async {
            let checksum = bundle.ranges().write_to((member.offset, member.size), &sink).await?;
            Ok(((), checksum))
        };
        bundle.verified(member, fetch).await?;
        drop(sink);
        let still = || Error::new(Reason::Defect, "a file is still written after its last chunk");
        let mut file = Arc::into_inner(file).ok_or_else(still)?;
        file.finish(&attributes)?;
        Ok(member.size)
    }
}

/// A sink whose bytes begin elsewhere.
struct Shifted<S> {
    file: Arc<S>,
    by: u64,
}

impl<S: Sink> Sink for Shifted<S> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_at(offset - self.by, bytes)
    }
}

fn lost(e: tokio::task::JoinError) -> Error {
    Error::with_source(Reason::Defect, "a task failed", e)
}
