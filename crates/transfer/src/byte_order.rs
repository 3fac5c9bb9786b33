//! Listings in byte order, for a merge.
//!
//! A service may list in an order of its own, and only its last page shows that it does not. So its listing is read to the
//! end first. What is not in byte order is sorted: in memory, and beyond a bound in an unnamed file.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::sync::mpsc;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};

use crate::files::file_error;
use crate::workers::MAX_QUEUED_ITEMS;
use crate::{Item, ItemFeed, ListedItem};

/// Memory for the items of a listing.
const MAX_MEMORY_BYTES: usize = 32 << 20;
/// Memory of an item beside its name.
const ITEM_BYTES: usize = size_of::<Item>();
/// Buffer of the reads of a sorted run.
const READ_BYTES: usize = 64 << 10;

/// The items of a listing in byte order, each name once. They follow when the listing has ended.
///
/// Failures come first: names that the failed part may hold can lie before those that were listed.
pub(crate) fn in_byte_order(listed: ItemFeed, location: String) -> ItemFeed {
    let (sender, items) = mpsc::channel(MAX_QUEUED_ITEMS);
    let name = location.clone();
    let task = tokio::spawn(async move {
        if let Err(error) = sort(listed, Sorter::new(MAX_MEMORY_BYTES), &sender).await {
            // Sending fails only if the receiver was dropped.
            let _ = sender.send(Err((name, error).into())).await;
        }
    });
    ItemFeed::new(items, location, task)
}

/// Sends the items and failures of a listing. Ends early if the receiver is dropped.
async fn sort(mut listed: ItemFeed, mut sorter: Sorter, sender: &mpsc::Sender<ListedItem>) -> Result<()> {
    let mut failures = Vec::new();
    loop {
        let item = tokio::select! {
            item = listed.recv() => item,
            () = sender.closed() => return Ok(()),
        };
        match item {
            Some(Ok(item)) => sorter.push(item),
            Some(Err(failure)) => failures.push(failure),
            None => break,
        }
        if sorter.is_full() {
            sorter = on_thread(move || sorter.spill()).await?;
        }
    }
    if !send_all(sender, failures.into_iter().map(Err)).await {
        return Ok(());
    }
    if sorter.file.is_none() {
        send_all(sender, sorter.into_sorted().into_iter().map(Ok)).await;
        return Ok(());
    }
    let mut runs = on_thread(move || sorter.spill()?.into_runs()).await?;
    while let Some(mut merged) = runs {
        // A thread that waits for the receiver could be the only one of the pool.
        let batch;
        (merged, batch) = on_thread(move || {
            let batch = merged.by_ref().take(MAX_QUEUED_ITEMS).collect::<io::Result<Vec<_>>>()?;
            Ok((merged, batch))
        })
        .await?;
        let is_last = batch.is_empty();
        runs = (send_all(sender, batch.into_iter().map(Ok)).await && !is_last).then_some(merged);
    }
    Ok(())
}

/// Returns false if the receiver was dropped.
async fn send_all(sender: &mpsc::Sender<ListedItem>, items: impl Iterator<Item = ListedItem>) -> bool {
    for item in items {
        if sender.send(item).await.is_err() {
            return false;
        }
    }
    true
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|e| Error::with_source(Reason::Defect, "the sorting of a listing failed", e))?;
    done.map_err(|e| file_error("sort a listing in a file in", &std::env::temp_dir(), e))
}

/// Sorts items by their names.
#[derive(Debug)]
struct Sorter {
    items: Vec<Item>,
    bytes: usize,
    max_bytes: usize,
    /// Every name was after the one before.
    is_ordered: bool,
    /// The last name in the file.
    last_spilled: String,
    /// Sorted runs of items, one after another, and the end of each.
    file: Option<File>,
    run_ends: Vec<u64>,
}

impl Sorter {
    const fn new(max_bytes: usize) -> Self {
        Self {
            items: Vec::new(),
            bytes: 0,
            max_bytes,
            is_ordered: true,
            last_spilled: String::new(),
            file: None,
            run_ends: Vec::new(),
        }
    }

    fn push(&mut self, item: Item) {
        let previous = self.items.last().map_or(&self.last_spilled, |last| &last.name);
        let is_first = self.items.is_empty() && self.file.is_none();
        self.is_ordered &= is_first || item.name > *previous;
        self.bytes += ITEM_BYTES + item.name.capacity();
        self.items.push(item);
    }

    const fn is_full(&self) -> bool {
        self.bytes >= self.max_bytes
    }

    /// The items that are in memory, in order. Of several with the same name, the first one that was listed.
    fn into_sorted(mut self) -> Vec<Item> {
        self.sort();
        self.items
    }

    fn sort(&mut self) {
        if !self.is_ordered {
            self.items.sort_by(|a, b| a.name.cmp(&b.name));
            self.items.dedup_by(|later, earlier| later.name == earlier.name);
        }
    }

    /// Writes the items in memory to the file, as another run.
    fn spill(mut self) -> io::Result<Self> {
        if let Some(last) = self.items.last() {
            self.last_spilled.clone_from(&last.name);
        }
        self.sort();
        let file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile()?,
        };
        let mut writer = BufWriter::new(&file);
        let mut written = 0;
        for item in &self.items {
            written += write_item(&mut writer, item)?;
        }
        writer.flush()?;
        drop(writer);
        self.run_ends.push(self.run_ends.last().unwrap_or(&0) + written);
        (self.items, self.bytes, self.file) = (Vec::new(), 0, Some(file));
        Ok(self)
    }

    /// The items of all runs in order; `None` if nothing was spilled.
    fn into_runs(self) -> io::Result<Option<MergedRuns>> {
        self.file.map(|file| MergedRuns::open(Arc::new(file), &self.run_ends)).transpose()
    }
}

/// Writes an object of a listing, which names no version. Returns its length in the file.
fn write_item(file: &mut impl Write, item: &Item) -> io::Result<u64> {
    let name = item.name.as_bytes();
    let length = u32::try_from(name.len()).map_err(io::Error::other)?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&item.size.to_le_bytes())?;
    file.write_all(&item.modified.millis().to_le_bytes())?;
    file.write_all(name)?;
    Ok(20 + u64::from(length))
}

/// Reads an item; `None` at the end of the run.
fn read_item(run: &mut BufReader<Run>) -> io::Result<Option<Item>> {
    if run.buffer().is_empty() && run.get_ref().is_at_end() {
        return Ok(None);
    }
    let mut length = [0; 4];
    run.read_exact(&mut length)?;
    let mut numbers = [[0; 8]; 2];
    for number in &mut numbers {
        run.read_exact(number)?;
    }
    let mut name = vec![0; u32::from_le_bytes(length) as usize];
    run.read_exact(&mut name)?;
    let [size, modified] = numbers;
    Ok(Some(Item {
        name: String::from_utf8(name).map_err(io::Error::other)?,
        size: u64::from_le_bytes(size),
        modified: Timestamp::from_millis(i64::from_le_bytes(modified)),
        changed: None,
        nanos: Default::default(),
        version: None,
    }))
}

/// A sorted run of items in the file.
#[derive(Debug)]
struct Run {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Run {
    const fn is_at_end(&self) -> bool {
        self.at == self.end
    }
}

impl Read for Run {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(rest);
        let read = self.file.read_at(&mut buffer[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The items of all runs, in order.
#[derive(Debug)]
struct MergedRuns {
    runs: Vec<BufReader<Run>>,
    heads: BinaryHeap<Head>,
}

/// The next item of a run. The greatest item of the heap is the first in byte order; of equal names, the item of the
/// first run.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    item: Item,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.item.name.cmp(&self.item.name).then(other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl MergedRuns {
    fn open(file: Arc<File>, run_ends: &[u64]) -> io::Result<Self> {
        let starts = std::iter::once(0).chain(run_ends.iter().copied());
        let run = |(at, end): (u64, &u64)| {
            BufReader::with_capacity(READ_BYTES, Run { file: file.clone(), at, end: *end })
        };
        let runs: Vec<_> = starts.zip(run_ends).map(run).collect();
        let mut merged = Self { heads: BinaryHeap::new(), runs };
        (0..merged.runs.len()).try_for_each(|run| merged.fill(run))?;
        Ok(merged)
    }

    /// Reads the next item of a run.
    fn fill(&mut self, run: usize) -> io::Result<()> {
        if let Some(item) = read_item(&mut self.runs[run])? {
            self.heads.push(Head { item, run });
        }
        Ok(())
    }

    fn read_next(&mut self) -> io::Result<Option<Item>> {
        let Some(Head { item, run }) = self.heads.pop() else { return Ok(None) };
        self.fill(run)?;
        while let Some(same) = self.heads.peek().filter(|head| head.item.name == item.name) {
            let run = same.run;
            self.heads.pop();
            self.fill(run)?;
        }
        Ok(Some(item))
    }
}

impl Iterator for MergedRuns {
    type Item = io::Result<Item>;

    fn next(&mut self) -> Option<io::Result<Item>> {
        self.read_next().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Unlisted};

    fn item(name: &str, size: u64) -> Item {
        Item {
            name: name.to_owned(),
            size,
            modified: Timestamp::from_millis(size as i64),
            changed: None,
            nanos: Default::default(),
            version: None,
        }
    }

    fn failure() -> Unlisted {
        ("there".to_owned(), Error::new(Reason::Io, "failed")).into()
    }

    /// The items and failures that follow from a listing, with this memory.
    async fn sorted(listed: Vec<ListedItem>, max_bytes: usize) -> Vec<Result<Item, Extent>> {
        let (sender, receiver) = mpsc::channel(listed.len().max(1));
        listed.into_iter().for_each(|item| sender.try_send(item).unwrap());
        drop(sender);
        let (sender, mut items) = mpsc::channel(8);
        let task = tokio::spawn(async move { sort(receiver.into(), Sorter::new(max_bytes), &sender).await });
        let mut all = Vec::new();
        while let Some(item) = items.recv().await {
            all.push(item.map_err(|failure| failure.extent));
        }
        task.await.unwrap().unwrap();
        all
    }

    #[tokio::test]
    async fn ordered_listing_stays_as_it_is() {
        for max_bytes in [1, 1000] {
            let listed = || vec![Ok(item("a", 1)), Ok(item("a-", 2)), Ok(item("a/", 3))];
            let expected = [Ok(item("a", 1)), Ok(item("a-", 2)), Ok(item("a/", 3))];
            assert_eq!(sorted(listed(), max_bytes).await, expected);
            assert_eq!(sorted(vec![], max_bytes).await, []);
            assert_eq!(
                sorted(vec![Ok(item("", 1))], max_bytes).await,
                [Ok(item("", 1))],
                "the marker of a folder"
            );
        }
    }

    /// The failed part may hold names before those that were listed, also if those are in order.
    #[tokio::test]
    async fn failure_comes_before_the_items() {
        for max_bytes in [1, 1000] {
            for listed in [["a/b", "a-b"], ["a-b", "a/b"]] {
                let [first, second] = listed.map(|name| Ok(item(name, 1)));
                let expected = [Err(Extent::Rest), Ok(item("a-b", 1)), Ok(item("a/b", 1))];
                assert_eq!(sorted(vec![first, second, Err(failure())], max_bytes).await, expected);
            }
        }
    }

    /// A second item of one name would count as one that the other side does not have.
    #[tokio::test]
    async fn name_that_is_listed_again_counts_once() {
        for max_bytes in [1, 200, 1000] {
            let listed = ["b", "a", "b", "c", "c"].map(|name| Ok(item(name, 1)));
            let expected = ["a", "b", "c"].map(|name| Ok(item(name, 1)));
            assert_eq!(sorted(listed.into(), max_bytes).await, expected);
        }
    }

    #[tokio::test]
    async fn large_listing_in_the_order_of_hashes_is_sorted_in_a_file() {
        const ITEMS: u64 = 50_000;
        let name = |number: u64| format!("{:08x}/é", number.wrapping_mul(0x9e37_79b9) as u32);
        let listed: Vec<_> = (0..ITEMS).map(|number| Ok(item(&name(number), number))).collect();
        let mut expected: Vec<_> = (0..ITEMS).map(|number| Ok(item(&name(number), number))).collect();
        expected.sort_by(|a, b| a.as_ref().unwrap().name.cmp(&b.as_ref().unwrap().name));
        assert!(sorted(listed, 100 << 10).await == expected);
    }
}
