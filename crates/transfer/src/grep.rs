//! Searching objects, with informed prefetch (Hou 2017, section 6.1): the listing says what will be read, so that many
//! objects are on their way while the first is searched. How many follows from their mean size.

mod output;
mod reader;
mod sink;

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_volume::{Carrier, Fetch};

use self::output::Output;
use self::reader::Reader;
use self::sink::Matches;
use crate::filter::Filter;
use crate::objects::Objects;
use crate::progress::Progress;
use crate::writer::Writer;
use crate::{Found, FoundItem, Item};

/// Objects up to this size are searched when all of them is here; larger ones while they arrive, on a thread of their
/// own.
const SMALL: u64 = 256 << 10;
/// Large objects at a time, and fewer than there are requests: those that wait for their turn hold one. Each holds a line that may be long, and what was found in it.
const LARGE_AT_A_TIME: usize = 4;
/// The longest line, in bytes; an object with a longer one cannot be searched.
const LONGEST_LINE: usize = 16 << 20;
/// Objects at the beginning of the listing that the mean is taken of: a page.
const SAMPLE: usize = 1000;

/// What is shown of an object that matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Show {
    /// Its lines, with their numbers.
    #[default]
    Lines,
    /// Its name.
    Names,
    /// The number of its lines that match; of every object.
    Counts,
}

/// What to search for, and how it is shown.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Patterns, of which any may match.
    pub patterns: Vec<String>,
    /// They are text, not regular expressions.
    pub is_fixed: bool,
    /// Capitals match small letters.
    pub ignores_case: bool,
    /// Only whole words match.
    pub is_word: bool,
    /// Lines that do not match are looked for.
    pub inverts: bool,
    /// Objects that hold a zero byte are text too.
    pub takes_binary: bool,
    /// What is shown.
    pub show: Show,
    /// In the colours that `grep` has on a terminal.
    pub is_coloured: bool,
    /// In the order of the listing; otherwise as objects arrive.
    pub is_sorted: bool,
    /// Objects at a time; `None` follows their mean size.
    pub parallel: Option<usize>,
}

/// How a search ended.
#[derive(Debug, Default)]
pub struct Searched {
    /// Something matched.
    pub has_matches: bool,
    /// Objects that could not be searched, and why.
    pub failures: Vec<(String, Error)>,
}

/// A search that is ready to run.
pub struct Search {
    matcher: RegexMatcher,
    query: Query,
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Search({:?})", self.query)
    }
}

impl Search {
    /// Compiles the patterns.
    pub fn new(query: Query) -> Result<Self> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(query.ignores_case)
            .fixed_strings(query.is_fixed)
            .word(query.is_word)
            .line_terminator(Some(b'\n'))
            .build_many(&query.patterns);
        let cannot = |e: &dyn fmt::Display| {
            let why = e.to_string();
            // Before it, it draws where.
            let why = why.lines().next_back().unwrap_or_default().trim_start_matches("error: ");
            Error::new(Reason::InvalidArgument, format!("the pattern cannot be searched for: {why}"))
        };
        let matcher = matcher.map_err(|e| cannot(&e))?;
        matcher.is_match(b"").map_err(|e| cannot(&e))?;
        Ok(Self { matcher, query })
    }

    /// Searches everything below a prefix; what is found is written to `out`, an object's lines together.
    pub async fn run(
        self: Arc<Self>,
        carrier: &Arc<Carrier>,
        objects: Objects,
        filter: &Filter,
        out: impl Write + Send + 'static,
        progress: &Arc<Progress>,
    ) -> Result<Searched> {
        let mut found = objects.clone().find_to_fetch(carrier.clone());
        let mut listing = Listing::default();
        listing.look_ahead(&mut found, filter).await;
        let parallel = self.query.parallel.unwrap_or_else(|| carrier.plan().readers(listing.mean_bytes()));
        let output = Arc::new(Output::new(Writer::new(out), self.query.is_sorted));
        let objects = Arc::new(objects);
        // Those that wait for their turn to be told leave room for the one whose turn it is, whatever their size.
        let most = carrier.plan().parallel(u64::MAX).saturating_sub(1);
        let large = Arc::new(Semaphore::new(LARGE_AT_A_TIME.min(most).max(1)));
        let (mut searched, mut tasks, mut turn) = (Searched::default(), JoinSet::new(), 0);
        loop {
            while tasks.len() < parallel.max(1)
                && let Some(next) = listing.next(&mut found, filter).await
            {
                match next {
                    Ok(item) => {
                        progress.found(item.size);
                        // Taken here, in order: those that wait for their turn never wait for one behind them.
                        let large =
                            if item.size > SMALL { large.clone().acquire_owned().await.ok() } else { None };
                        let task = One {
                            _large: large,
                            search: self.clone(),
                            carrier: carrier.clone(),
                            objects: objects.clone(),
                            output: output.clone(),
                            progress: progress.clone(),
                        };
                        tasks.spawn(task.search(item, turn));
                        turn += 1;
                    }
                    Err(failed) => searched.failures.push(failed),
                }
            }
            let Some(done) = tasks.join_next().await else { break };
            let lost = |e| Error::with_source(Reason::Defect, "a search failed", e);
            match done.map_err(lost)? {
                Ok(has_matches) => searched.has_matches |= has_matches,
                // Whoever reads has had enough.
                Err((_, e)) if e.reason() == Reason::Cancelled => return Ok(searched),
                Err(failed) => searched.failures.push(failed),
            }
        }
        drop((tasks, objects));
        if let Some(output) = Arc::into_inner(output) {
            output.finish().await?;
        }
        Ok(searched)
    }

    fn searcher(&self) -> Searcher {
        let binary =
            if self.query.takes_binary { BinaryDetection::none() } else { BinaryDetection::convert(0) };
        SearcherBuilder::new()
            .line_number(true)
            .invert_match(self.query.inverts)
            .binary_detection(binary)
            .heap_limit(Some(LONGEST_LINE))
            .build()
    }
}

/// The listing, the beginning of which was looked at before its turn.
#[derive(Default)]
struct Listing {
    ahead: std::collections::VecDeque<FoundItem>,
}

impl Listing {
    async fn look_ahead(&mut self, found: &mut Found, filter: &Filter) {
        while self.ahead.len() < SAMPLE
            && let Some(next) = found.recv().await
        {
            if is_meant(&next, filter) {
                self.ahead.push_back(next);
            }
        }
    }

    fn mean_bytes(&self) -> u64 {
        let sizes = self.ahead.iter().filter_map(|next| next.as_ref().ok()).map(|item| item.size);
        let (number, bytes) = sizes.fold((0_u64, 0_u64), |(n, sum), size| (n + 1, sum.saturating_add(size)));
        bytes.checked_div(number).unwrap_or(0)
    }

    async fn next(&mut self, found: &mut Found, filter: &Filter) -> Option<FoundItem> {
        if let Some(next) = self.ahead.pop_front() {
            return Some(next);
        }
        loop {
            let next = found.recv().await?;
            if is_meant(&next, filter) {
                return Some(next);
            }
        }
    }
}

fn is_meant(next: &FoundItem, filter: &Filter) -> bool {
    next.as_ref().map_or(true, |item| filter.takes(&item.name))
}

/// The search of one object.
struct One {
    search: Arc<Search>,
    carrier: Arc<Carrier>,
    objects: Arc<Objects>,
    output: Arc<Output>,
    progress: Arc<Progress>,
    _large: Option<OwnedSemaphorePermit>,
}

impl One {
    async fn search(self, item: Item, turn: u64) -> Result<bool, (String, Error)> {
        let name = self.objects.describe(&item.name);
        // In order, those behind wait for this one, however it ends.
        let mut turn = self.output.turn(turn);
        let searched = if item.size <= SMALL {
            self.search_small(&item, &name).await
        } else {
            self.search_large(&item, &name, &mut turn).await
        };
        match searched {
            Ok((has_matches, lines)) => {
                turn.write(lines).await.map_err(|e| (name, e))?;
                self.progress.done();
                Ok(has_matches)
            }
            Err(e) => {
                self.progress.failed();
                Err((name, e))
            }
        }
    }

    async fn search_small(&self, item: &Item, name: &str) -> Result<(bool, Vec<u8>)> {
        let address = self.objects.address(&item.name)?;
        let fetch = Fetch::open(&self.carrier, &self.objects.store, &address, Some(item.size)).await?;
        let mut bytes = Vec::with_capacity(usize::try_from(item.size).unwrap_or(0));
        let gather = |piece: bytes::Bytes| {
            bytes.extend_from_slice(&piece);
            std::future::ready(Ok(()))
        };
        fetch.write_in_order(gather).await?;
        self.progress.carried(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        let mut matches = Matches::new(&self.search.matcher, &self.search.query, name, None);
        let searched = self.search.searcher().search_slice(&self.search.matcher, &bytes, &mut matches);
        searched
            .map_err(|e| Error::with_source(Reason::Defect, format!("searching {name} failed: {e}"), e))?;
        Ok(matches.finish())
    }

    /// While it arrives: a thread searches what a channel brings, and hands on what it finds when that becomes much.
    async fn search_large(
        &self,
        item: &Item,
        name: &str,
        turn: &mut output::Turn,
    ) -> Result<(bool, Vec<u8>)> {
        let address = self.objects.address(&item.name)?;
        let (pieces, received) = mpsc::channel(2);
        let (lines, found) = mpsc::channel(1);
        let (search, owned) = (self.search.clone(), name.to_owned());
        let searching = tokio::task::spawn_blocking(move || {
            let mut matches = Matches::new(&search.matcher, &search.query, &owned, Some(lines));
            let searched =
                search.searcher().search_reader(&search.matcher, Reader::new(received), &mut matches);
            searched.map(|()| matches.finish())
        });
        let fetching = async {
            let fetch = Fetch::open(&self.carrier, &self.objects.store, &address, Some(item.size)).await?;
            let pass = |piece: bytes::Bytes| {
                self.progress.carried(i64::try_from(piece.len()).unwrap_or(i64::MAX));
                let pieces = pieces.clone();
                async move {
                    let enough = |_| Error::new(Reason::Conflict, "the search has seen enough");
                    pieces.send(Ok(piece)).await.map_err(enough)
                }
            };
            let fetched = fetch.write_in_order(pass).await;
            if let Err(e) = &fetched {
                // The search must not take half of an object for a whole one.
                let _ = pieces.send(Err(std::io::Error::other(e.to_string()))).await;
            }
            drop(pieces);
            fetched.map(drop)
        };
        // Where writing fails the thread must not wait for room.
        let writing = async {
            let mut found = found;
            while let Some(lines) = found.recv().await {
                turn.write(lines).await?;
            }
            Ok::<(), Error>(())
        };
        let (fetched, written, searched) = tokio::join!(fetching, writing, searching);
        written?;
        let searched = searched.map_err(|e| Error::with_source(Reason::Defect, "a search failed", e))?;
        match (fetched, searched) {
            // Of one that it need not read to its end, the rest is not wanted.
            (Err(e), Ok(found)) if e.reason() == Reason::Conflict => Ok(found),
            (Err(e), _) => Err(e),
            (Ok(()), Err(e)) => {
                Err(Error::with_source(Reason::Defect, format!("searching {name} failed: {e}"), e))
            }
            (Ok(()), Ok(found)) => Ok(found),
        }
    }
}
