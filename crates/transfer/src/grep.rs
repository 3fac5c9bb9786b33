//! Search in objects with informed prefetch (Hou 2017, section 6.1): the listing tells which objects will be
//! read, so they are fetched concurrently while the first is searched. The concurrency follows from their mean size.

mod output;
mod reader;
mod sink;

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::thread::Builder;

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::threads::thread_error;
use tradewind_parallel::{Fetch, TransferContext};

use self::output::OrderedOutput;
use self::reader::ChannelReader;
use self::sink::MatchFormatter;
use crate::filter::Filter;
use crate::objects::Objects;
use crate::progress::Progress;
use crate::writer::OutputWriter;
use crate::{Item, ItemFeed, ListedItem};

/// Objects up to this size are fetched completely and then searched. Larger ones are searched while they arrive, each
/// on its own thread.
const MAX_BUFFERED_BYTES: u64 = 256 << 10;
/// Maximum number of large objects searched concurrently. Each buffers a possibly long line and its matches. It is also
/// limited below the concurrency, because an object keeps its permits while it waits for its output turn.
const MAX_CONCURRENT_LARGE: usize = 4;
/// The longest line; an object with a longer one cannot be searched.
const MAX_LINE_BYTES: usize = 16 << 20;
/// Number of objects at the start of the listing whose mean size is used: one page.
const SAMPLE_OBJECTS: usize = 1000;

/// The output for an object that matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputMode {
    /// The matching lines with their numbers.
    #[default]
    Lines,
    /// The name of the object.
    Names,
    /// The number of matching lines, for every object.
    Counts,
}

/// Patterns and output options of a search.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// A line matches if any of these patterns does.
    pub patterns: Vec<String>,
    /// Patterns are fixed strings, not regular expressions.
    pub is_fixed_string: bool,
    /// Matching is case-insensitive.
    pub ignores_case: bool,
    /// Patterns match only whole words.
    pub is_word: bool,
    /// Selects the lines that do not match.
    pub inverts: bool,
    /// Treats objects that contain a zero byte as text.
    pub searches_binary: bool,
    /// The output for a matching object.
    pub output_mode: OutputMode,
    /// Uses the colours of `grep` on a terminal.
    pub is_coloured: bool,
    /// Prints objects in listing order; otherwise as they arrive.
    pub is_sorted: bool,
    /// Number of objects searched concurrently; `None` derives it from their mean size.
    pub concurrency: Option<usize>,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct SearchOutcome {
    /// At least one object matched.
    pub has_matches: bool,
    /// Objects that could not be searched, and why.
    pub failures: Vec<(String, Error)>,
}

/// A compiled search.
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
            .fixed_strings(query.is_fixed_string)
            .word(query.is_word)
            .line_terminator(Some(b'\n'))
            .build_many(&query.patterns);
        let cannot = |e: &dyn fmt::Display| {
            let why = e.to_string();
            // The last line is the message; the lines before it point at the position in the pattern.
            let why = why.lines().next_back().unwrap_or_default().trim_start_matches("error: ");
            Error::new(Reason::InvalidArgument, format!("invalid pattern: {why}"))
        };
        let matcher = matcher.map_err(|e| cannot(&e))?;
        matcher.is_match(b"").map_err(|e| cannot(&e))?;
        Ok(Self { matcher, query })
    }

    /// Searches all objects below a prefix and writes the matches to `out`, the lines of an object contiguously.
    /// Returns early if `out` is closed.
    pub async fn run(
        self: Arc<Self>,
        transfers: &Arc<TransferContext>,
        objects: Objects,
        filter: &Filter,
        out: impl Write + Send + 'static,
        progress: &Arc<Progress>,
    ) -> Result<SearchOutcome> {
        let mut items = objects.clone().find_and_prewarm(transfers.clone());
        let mut listing = Listing::default();
        listing.read_sample(&mut items, filter).await;
        let concurrency = self
            .query
            .concurrency
            .unwrap_or_else(|| transfers.plan().reader_concurrency(listing.mean_bytes()));
        let output = Arc::new(OrderedOutput::new(OutputWriter::new(out)?, self.query.is_sorted));
        let objects = Arc::new(objects);
        // The exception to the permit rule of `transfer_context`: an object keeps the permits of its read while it
        // waits for its output turn. Those of one request must remain for the object whose turn it is, whatever its
        // size.
        let max_large = transfers.plan().concurrency_for(u64::MAX).saturating_sub(1);
        let large_limit = Arc::new(Semaphore::new(MAX_CONCURRENT_LARGE.min(max_large).max(1)));
        let (mut searched, mut tasks, mut turn) = (SearchOutcome::default(), JoinSet::new(), 0);
        loop {
            while tasks.len() < concurrency.max(1)
                && let Some(next) = listing.next(&mut items, filter).await
            {
                match next {
                    Ok(item) => {
                        progress.add_found(item.size);
                        // Acquired here, in listing order, so that no object waits for one that is listed later.
                        let large_guard = if item.size > MAX_BUFFERED_BYTES {
                            large_limit.clone().acquire_owned().await.ok()
                        } else {
                            None
                        };
                        let task = ObjectSearch {
                            _large_guard: large_guard,
                            search: self.clone(),
                            transfers: transfers.clone(),
                            objects: objects.clone(),
                            output: output.clone(),
                            progress: progress.clone(),
                        };
                        tasks.spawn(task.search(item, turn));
                        turn += 1;
                    }
                    Err(part) => searched.failures.push(part.into_named_error()),
                }
            }
            let Some(done) = tasks.join_next().await else { break };
            let failed = |e| Error::with_source(Reason::Defect, "a search failed", e);
            match done.map_err(failed)? {
                Ok(has_matches) => searched.has_matches |= has_matches,
                // The reader of the output has closed it.
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
            if self.query.searches_binary { BinaryDetection::none() } else { BinaryDetection::convert(0) };
        SearcherBuilder::new()
            .line_number(true)
            .invert_match(self.query.inverts)
            .binary_detection(binary)
            .heap_limit(Some(MAX_LINE_BYTES))
            .build()
    }
}

/// The listing, with its first items read in advance.
#[derive(Default)]
struct Listing {
    sample: std::collections::VecDeque<ListedItem>,
}

impl Listing {
    async fn read_sample(&mut self, items: &mut ItemFeed, filter: &Filter) {
        while self.sample.len() < SAMPLE_OBJECTS
            && let Some(next) = items.recv().await
        {
            if is_selected(&next, filter) {
                self.sample.push_back(next);
            }
        }
    }

    fn mean_bytes(&self) -> u64 {
        let sizes = self.sample.iter().filter_map(|next| next.as_ref().ok()).map(|item| item.size);
        let (number, bytes) = sizes.fold((0_u64, 0_u64), |(n, sum), size| (n + 1, sum.saturating_add(size)));
        bytes.checked_div(number).unwrap_or(0)
    }

    async fn next(&mut self, items: &mut ItemFeed, filter: &Filter) -> Option<ListedItem> {
        if let Some(next) = self.sample.pop_front() {
            return Some(next);
        }
        loop {
            let next = items.recv().await?;
            if is_selected(&next, filter) {
                return Some(next);
            }
        }
    }
}

fn is_selected(next: &ListedItem, filter: &Filter) -> bool {
    next.as_ref().map_or(true, |item| filter.accepts(&item.name))
}

/// The search of one object.
struct ObjectSearch {
    search: Arc<Search>,
    transfers: Arc<TransferContext>,
    objects: Arc<Objects>,
    output: Arc<OrderedOutput>,
    progress: Arc<Progress>,
    _large_guard: Option<OwnedSemaphorePermit>,
}

impl ObjectSearch {
    async fn search(self, item: Item, turn: u64) -> Result<bool, (String, Error)> {
        let name = self.objects.describe(&item.name);
        // Created first: dropping it lets later objects proceed, however this search ends.
        let mut turn = self.output.turn(turn);
        let searched = if item.size <= MAX_BUFFERED_BYTES {
            self.search_small(&item, &name).await
        } else {
            self.search_large(&item, &name, &mut turn).await
        };
        match searched {
            Ok((has_matches, lines)) => {
                turn.write(lines).await.map_err(|e| (name, e))?;
                self.progress.add_done();
                Ok(has_matches)
            }
            Err(e) => {
                self.progress.add_failed();
                Err((name, e))
            }
        }
    }

    async fn search_small(&self, item: &Item, name: &str) -> Result<(bool, Vec<u8>)> {
        let address = self.objects.address(&item.name)?;
        let fetch = Fetch::open(&self.transfers, &self.objects.store, &address, Some(item.size)).await?;
        let mut bytes = Vec::with_capacity(usize::try_from(item.size).unwrap_or(0));
        let gather = |buffer: bytes::Bytes| {
            bytes.extend_from_slice(&buffer);
            std::future::ready(Ok(()))
        };
        fetch.write_in_order(gather).await?;
        self.progress.add_bytes(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        let mut matches = MatchFormatter::new(&self.search.matcher, &self.search.query, name, None);
        let searched = self.search.searcher().search_slice(&self.search.matcher, &bytes, &mut matches);
        searched
            .map_err(|e| Error::with_source(Reason::Defect, format!("searching {name} failed: {e}"), e))?;
        Ok(matches.finish())
    }

    /// Searches an object while it arrives: a thread reads it from a channel and sends its output in batches.
    async fn search_large(
        &self,
        item: &Item,
        name: &str,
        turn: &mut output::Turn,
    ) -> Result<(bool, Vec<u8>)> {
        let address = self.objects.address(&item.name)?;
        let (buffers, received) = mpsc::channel(2);
        let (sender, batches) = mpsc::channel(1);
        let (search, owned) = (self.search.clone(), name.to_owned());
        let (end, ended) = oneshot::channel();
        let run = move || {
            let mut matches = MatchFormatter::new(&search.matcher, &search.query, &owned, Some(sender));
            let searched =
                search.searcher().search_reader(&search.matcher, ChannelReader::new(received), &mut matches);
            // Sending fails only if the receiver was dropped.
            let _ = end.send(searched.map(|()| matches.finish()));
        };
        // Not a thread of the blocking pool, which may have one: connecting needs it while the search waits for data.
        Builder::new().name("search".to_owned()).spawn(run).map_err(thread_error)?;
        let fetching = async {
            let fetch = Fetch::open(&self.transfers, &self.objects.store, &address, Some(item.size)).await?;
            let pass = |buffer: bytes::Bytes| {
                self.progress.add_bytes(i64::try_from(buffer.len()).unwrap_or(i64::MAX));
                let buffers = buffers.clone();
                async move {
                    let enough = |_| Error::new(Reason::Conflict, "the search ended early");
                    buffers.send(Ok(buffer)).await.map_err(enough)
                }
            };
            let fetched = fetch.write_in_order(pass).await;
            if let Err(e) = &fetched {
                // The search must fail instead of taking a partial object for a complete one.
                let _ = buffers.send(Err(std::io::Error::other(e.to_string()))).await;
            }
            drop(buffers);
            fetched.map(drop)
        };
        // If writing fails, `batches` is dropped, so that the thread does not block on a full channel.
        let writing = async {
            let mut batches = batches;
            while let Some(lines) = batches.recv().await {
                turn.write(lines).await?;
            }
            Ok::<(), Error>(())
        };
        let (fetched, written, searched) = tokio::join!(fetching, writing, ended);
        written?;
        let searched = searched.map_err(|e| Error::with_source(Reason::Defect, "a search failed", e))?;
        match (fetched, searched) {
            // The search needed only a part of the object and closed the channel.
            (Err(e), Ok(matches)) if e.reason() == Reason::Conflict => Ok(matches),
            (Err(e), _) => Err(e),
            (Ok(()), Err(e)) => {
                Err(Error::with_source(Reason::Defect, format!("searching {name} failed: {e}"), e))
            }
            (Ok(()), Ok(matches)) => Ok(matches),
        }
    }
}
