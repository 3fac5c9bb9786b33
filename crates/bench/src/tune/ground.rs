//! What probes ask for: objects that they write, and ranges of objects that are there. Downloads read what uploads have left, so
//! that nothing is written for them alone; where nothing may be written they read what is there already.

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
use tradewind_model::store_model::Direction;
use tradewind_pattern::ContentId;

use crate::drive::Bed;
use crate::drive::request::{Failed, put};
use crate::files::Opened;
use crate::random::mix;
use crate::site::Site;

/// Objects that a listing finds, at the most.
const PAGE: usize = 1000;
/// Objects that are remembered for reading: the largest.
const MOST_KEPT: usize = 256;

/// The sizes of the objects below a prefix of a bed's bucket: of so many, and perhaps of the rest of a page; and whether there are more.
pub async fn sizes_below(bed: &Bed, prefix: &str, most: usize) -> Result<(Vec<u64>, bool)> {
    let context = crate::drive::context(bed).await?;
    let mut request = ListRequest { prefix: prefix.to_owned(), limit: PAGE, ..ListRequest::default() };
    let mut sizes = Vec::new();
    loop {
        let page = bed.store.list(&context, &bed.bucket, &request).await?;
        sizes.extend(page.entries.into_iter().filter_map(|entry| match entry {
            ListEntry::Key(_, summary) => Some(summary.size),
            ListEntry::CommonPrefix(_) => None,
        }));
        if page.next.is_none() || sizes.len() >= most {
            return Ok((sizes, page.next.is_some()));
        }
        request.after = page.next;
    }
}

/// An object that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct There {
    key: String,
    bytes: u64,
    /// How much of it was read.
    read: u64,
}

/// Behind such a round trip a window that lost packets is whole again before a probe notices: what is lost there slows nobody.
const AT_HAND: Duration = Duration::from_micros(200);

/// So many lost packets are no chance.
const FEWEST_LOST: u64 = 3;

/// Opens the store anew, with connections of its own.
pub type Open = Box<dyn Fn() -> Result<Arc<dyn ObjectStore>> + Send + Sync>;

/// See the module.
pub struct Ground {
    bed: Bed,
    open: Open,
    /// What the names of objects that are written begin with.
    prefix: String,
    there: Mutex<Vec<There>>,
    /// Names of objects that were to be written, and whether one was.
    written: Mutex<BTreeMap<String, bool>>,
    loses: AtomicBool,
    is_at_hand: AtomicBool,
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ground").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Ground {
    /// Nothing is there yet that could be read. `prefix` is nobody else's.
    #[must_use]
    pub const fn new(bed: Bed, open: Open, prefix: String) -> Self {
        Self {
            bed,
            open,
            prefix,
            there: Mutex::new(Vec::new()),
            written: Mutex::new(BTreeMap::new()),
            loses: AtomicBool::new(false),
            is_at_hand: AtomicBool::new(false),
        }
    }

    /// Removes what probes wrote, and whatever else lies below its prefix; how many objects there were. Where nobody may list them, they
    /// are removed by their names.
    pub async fn clean(&self) -> Result<u64> {
        let names = self.written.lock().clone().into_iter().collect();
        Site::clean_named(&self.bed, &self.prefix, names).await
    }

    /// A bed whose connections have no past: what many shared is slow for a while for the few that come behind them.
    pub(super) fn fresh(&self) -> Result<Bed> {
        Ok(Bed { store: (self.open)()?, ..self.bed.clone() })
    }

    /// Packets were lost on the way here: they will be again.
    pub(super) fn found_losses(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }

    pub(super) fn loses(&self) -> bool {
        self.loses.load(Ordering::Relaxed)
    }

    /// Whether so many lost packets say that windows will stay smaller: not where no line is between here and there, or a very short one.
    pub(super) fn is_slowed_by(&self, lost: u64) -> bool {
        lost >= FEWEST_LOST && !self.is_at_hand.load(Ordering::Relaxed)
    }

    /// Where it is.
    #[must_use]
    pub const fn bed(&self) -> &Bed {
        &self.bed
    }

    /// Looks for objects below a prefix: their sizes, those of a page at the most.
    pub async fn look(&self, prefix: &str) -> Result<Vec<u64>> {
        let context = crate::drive::context(&self.bed).await?;
        let request = ListRequest { prefix: prefix.to_owned(), limit: PAGE, ..ListRequest::default() };
        let page = self.bed.store.list(&context, &self.bed.bucket, &request).await?;
        let found: Vec<There> = (page.entries.into_iter())
            .filter_map(|entry| match entry {
                ListEntry::Key(key, summary) => Some(There { key, bytes: summary.size, read: 0 }),
                ListEntry::CommonPrefix(_) => None,
            })
            .collect();
        let sizes = found.iter().map(|object| object.bytes).collect();
        found.into_iter().for_each(|object| self.keep(object));
        Ok(sizes)
    }

    /// The largest request that a download can be sampled with.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.there.lock().iter().map(|object| object.bytes).max().unwrap_or(0)
    }

    fn keep(&self, object: There) {
        let mut there = self.there.lock();
        if object.bytes == 0
            || there.iter().any(|other| other.key == object.key && other.bytes == object.bytes)
        {
            return;
        }
        there.push(object);
        if there.len() > MOST_KEPT {
            there.sort_by_key(|object| std::cmp::Reverse(object.bytes));
            there.truncate(MOST_KEPT);
        }
    }

    /// One round trip, and what the store needs to say that a bucket is there.
    pub async fn touch(&self) -> Result<Duration> {
        let context = crate::drive::context(&self.bed).await?;
        let begun = self.bed.clock.now();
        self.bed.store.head_bucket(&context, &self.bed.bucket).await?;
        let time = self.bed.clock.now().saturating_sub(begun);
        self.is_at_hand.fetch_or(time < AT_HAND, Ordering::Relaxed);
        Ok(time)
    }

    /// What one of those that ask works with.
    pub(super) async fn hand(
        self: &Arc<Self>,
        bed: &Bed,
        (direction, bytes): (Direction, u64),
        number: usize,
    ) -> Result<Hand> {
        let context = crate::drive::context(bed).await?;
        let (ground, bed) = (self.clone(), bed.clone());
        Ok(Hand { ground, bed, direction, bytes, number, turn: 0, context })
    }

    /// An object that has so many bytes, and a place in it: one that was not read before, as long as there is one. What a cache has
    /// kept since would flatter whichever probe comes second.
    fn choose(&self, bytes: u64, chance: u64) -> Option<(There, u64)> {
        let mut there = self.there.lock();
        let at = |count: usize| usize::try_from(mix(chance) % count.max(1) as u64).unwrap_or(0);
        let mut unread: Vec<&mut There> =
            there.iter_mut().filter(|object| object.bytes - object.read >= bytes).collect();
        let count = unread.len();
        if let Some(object) = unread.get_mut(at(count)) {
            let place = object.read;
            object.read += bytes;
            return Some((object.clone(), place));
        }
        let fits: Vec<&There> = there.iter().filter(|object| object.bytes >= bytes).collect();
        let object = *fits.get(at(fits.len()))?;
        let places = object.bytes / bytes.max(1);
        Some((object.clone(), mix(!chance) % places.max(1) * bytes))
    }
}

/// One that asks, again and again.
pub(super) struct Hand {
    ground: Arc<Ground>,
    bed: Bed,
    direction: Direction,
    bytes: u64,
    number: usize,
    turn: u64,
    context: Context,
}

impl Hand {
    /// One request.
    pub async fn ask(&mut self) -> Result<(), Failed> {
        self.turn += 1;
        match self.direction {
            Direction::Write => self.write().await,
            Direction::Read => self.read().await,
        }
    }

    fn name(&self) -> String {
        // Of one name each time: the store has no more to keep than requests at a time.
        format!("{}{}-{}", self.ground.prefix, self.bytes, self.number)
    }

    async fn write(&self) -> Result<(), Failed> {
        let (ground, key) = (&self.ground, self.name());
        let (bed, id) = (&self.bed, ContentId::of(&key, self.bytes));
        let file = match &bed.files {
            Some(files) => {
                files.make(&key, bed.content.clone(), id, self.bytes).await?;
                Some(files.open(&key).await?)
            }
            None => None,
        };
        let address = Address::parse(bed.bucket.as_str(), &key)?;
        ground.written.lock().entry(key.clone()).or_insert(false);
        put(bed, &self.context, &address, (id, self.bytes), file).await?;
        ground.written.lock().insert(key.clone(), true);
        ground.keep(There { key, bytes: self.bytes, read: 0 });
        Ok(())
    }

    async fn read(&self) -> Result<(), Failed> {
        let bed = &self.bed;
        let chance = mix(self.turn ^ mix(self.number as u64));
        let Some((object, offset)) = self.ground.choose(self.bytes, chance) else {
            return Err(Failed::wrong(format!("no object has {} bytes", self.bytes)));
        };
        let mut file: Option<Opened> = match &bed.files {
            Some(files) => Some(files.create(&format!("read {}", self.name())).await?),
            None => None,
        };
        let address = Address::parse(bed.bucket.as_str(), &object.key)?;
        let range = ByteRange::Inclusive { first: offset, last: offset + self.bytes - 1 };
        let select = if object.bytes == self.bytes { Select::Whole } else { Select::Range(range) };
        let request = GetRequest { select, ..GetRequest::default() };
        let mut found = bed.store.get(&self.context, &address, request).await?;
        let mut came = 0;
        while let Some(piece) = found.body.next().await {
            let piece = piece?;
            came += piece.len() as u64;
            if let Some(file) = &mut file {
                file.write(piece).await?;
            }
        }
        if came != self.bytes {
            return Err(Failed::wrong(format!("{came} bytes came, {} were asked for", self.bytes)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::drive::tests::bed;

    #[tokio::test]
    async fn what_was_read_is_not_read_again_while_something_else_is_there() {
        let bed = bed().await;
        let store = bed.store.clone();
        let ground =
            Ground::new(bed, Box::new(move || Ok(store.clone() as Arc<dyn ObjectStore>)), String::new());
        for (key, bytes) in [("a", 1000), ("b", 350), ("small", 10)] {
            ground.keep(There { key: key.to_owned(), bytes, read: 0 });
        }
        let mut places = BTreeSet::new();
        for turn in 0..13 {
            let (object, place) = ground.choose(100, turn).unwrap();
            assert!(place + 100 <= object.bytes && places.insert((object.key, place)));
        }
        let (object, place) = ground.choose(100, 14).unwrap();
        assert!(places.contains(&(object.key, place)), "all of it was read by now");
        assert!(ground.choose(2000, 1).is_none());
    }
}
