//! The objects that a run made and may read, ask about and remove: numbers, from which names, sizes and contents follow.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tradewind_pattern::ContentId;

use crate::random::mix;
use crate::samples::Names;
use crate::sizes::Sizes;

/// Objects of one distribution of sizes.
#[derive(Debug)]
pub struct Stock {
    /// All of their names begin with this.
    prefix: String,
    sizes: Sizes,
    next: AtomicU64,
    /// Files that objects come from; none: from memory.
    files: AtomicU64,
    live: Mutex<Vec<Held>>,
    /// Those that were dealt last, in order.
    dealt: Mutex<Arc<[u64]>>,
    /// A request that would have changed something failed.
    is_doubtful: AtomicBool,
}

impl Stock {
    /// None yet.
    #[must_use]
    pub fn new(prefix: String, sizes: Sizes) -> Self {
        Self {
            prefix,
            sizes,
            next: AtomicU64::new(0),
            files: AtomicU64::new(0),
            live: Mutex::default(),
            dealt: Mutex::default(),
            is_doubtful: AtomicBool::new(false),
        }
    }

    /// The name of an object. Listings have them in the order of their numbers.
    #[must_use]
    pub fn key(&self, number: u64) -> String {
        format!("{}{number:010}", self.prefix)
    }

    /// The number of the object that has a name.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        key.strip_prefix(&*self.prefix)?.parse().ok()
    }

    /// The size of an object, in bytes.
    #[must_use]
    pub fn size(&self, number: u64) -> u64 {
        self.sizes.of(self.source(number))
    }

    /// The number of the object whose content an object has: its own, unless it comes from one of so many files.
    fn source(&self, number: u64) -> u64 {
        number.checked_rem(self.files.load(Ordering::Relaxed)).unwrap_or(number)
    }

    /// The name of what an object holds: its own, or that of a file for objects of such sizes, whatever stock they are in.
    #[must_use]
    pub fn source_key(&self, number: u64) -> String {
        if self.has_files() {
            let mut hasher = DefaultHasher::new();
            self.sizes.to_string().hash(&mut hasher);
            return format!("source {:016x} {:010}", hasher.finish(), self.source(number));
        }
        self.key(number)
    }

    /// What an object holds: it follows from a name that no object with another content has.
    #[must_use]
    pub fn content(&self, number: u64) -> ContentId {
        ContentId::of(&self.source_key(number), self.size(number))
    }

    /// Whether objects come from files.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.files.load(Ordering::Relaxed) > 0
    }

    /// From now on objects come from so many files.
    pub fn take_from_files(&self, count: u64) {
        self.files.store(count, Ordering::Relaxed);
    }

    /// A request to change something failed: what is there is not known any more.
    pub fn doubt(&self) {
        self.is_doubtful.store(true, Ordering::Relaxed);
    }

    /// Whether it is known what is there.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !self.is_doubtful.load(Ordering::Relaxed)
    }

    /// What all names begin with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A number that no object had.
    pub fn new_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many numbers were given out: no object has a higher one.
    #[must_use]
    pub fn given_out(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// How many are there, apart from those that are dealt.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.lock().len()
    }

    /// Those.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.live.lock().iter().map(|held| held.number).collect()
    }

    /// Whether none is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives each of so many workers its own, in an order that nobody foresees; those that have not been read come first.
    pub fn deal(&self, workers: usize, seed: u64) -> Vec<Hand> {
        let mut live = std::mem::take(&mut *self.live.lock());
        live.sort_unstable_by_key(|held| held.number);
        *self.dealt.lock() = live.iter().map(|held| held.number).collect();
        // Others draw from the same seed.
        let seed = mix(seed ^ 0x6465_616c);
        for last in (1..live.len()).rev() {
            let other = mix(seed ^ mix(last as u64)) % (last as u64 + 1);
            live.swap(last, usize::try_from(other).unwrap_or(0));
        }
        live.sort_by_key(|held| held.was_read);
        let mut hands = vec![Hand::default(); workers.max(1)];
        let count = hands.len();
        for (n, held) in live.into_iter().enumerate() {
            hands[n % count].held.push(held);
        }
        hands
    }

    /// Gives so many workers one heap to take from, so that none of them is done long before the others.
    pub fn heap(&self, workers: usize, seed: u64) -> Vec<Hand> {
        let all = self.deal(1, seed).into_iter().flat_map(|hand| hand.held).collect();
        vec![Hand { heap: Arc::new(Mutex::new(all)), ..Hand::default() }; workers.max(1)]
    }

    /// What was dealt last, in the order of listings.
    #[must_use]
    pub fn dealt(&self) -> Arc<[u64]> {
        self.dealt.lock().clone()
    }

    /// Takes back what was dealt.
    pub fn give_back(&self, hand: Hand) {
        let mut live = self.live.lock();
        live.extend(hand.held);
        live.append(&mut hand.heap.lock());
    }
}

impl Names for Stock {
    fn name(&self, number: u64) -> String {
        self.key(number)
    }
}

/// An object that is there.
#[derive(Debug, Clone, Copy)]
struct Held {
    number: u64,
    was_read: bool,
}

/// The objects of one worker, of which nobody else takes any; or a heap that all of them take from.
#[derive(Debug, Clone, Default)]
pub struct Hand {
    held: Vec<Held>,
    at: usize,
    /// Objects that were read a second time, and more.
    pub repeats: u64,
    heap: Arc<Mutex<Vec<Held>>>,
}

impl Hand {
    /// The next to be read; each once before any is read again.
    pub fn draw(&mut self) -> Option<u64> {
        if self.at >= self.held.len() {
            self.at = 0;
        }
        let held = self.held.get_mut(self.at)?;
        self.at += 1;
        self.repeats += u64::from(held.was_read);
        held.was_read = true;
        Some(held.number)
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.heap.lock().is_empty()
    }

    /// One to be removed.
    pub fn take(&mut self) -> Option<u64> {
        let held = self.held.pop().or_else(|| self.heap.lock().pop())?;
        Some(held.number)
    }

    /// One that is there now.
    pub fn put(&mut self, number: u64) {
        self.held.push(Held { number, was_read: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_a_share_and_reads_all_of_it_before_any_again() {
        let stock = Stock::new("p/".to_owned(), Sizes::Fixed(1));
        let mut all = Hand::default();
        (0..10).for_each(|_| all.put(stock.new_number()));
        stock.give_back(all);
        let mut hands = stock.deal(3, 1);
        assert!(stock.is_empty());
        let mut seen: Vec<u64> = hands
            .iter_mut()
            .flat_map(|hand| (0..3).map(|_| hand.draw().unwrap()).collect::<Vec<_>>())
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
        let hand = &mut hands[2];
        assert_eq!(hand.repeats, 0);
        hand.draw();
        assert_eq!(hand.repeats, 1);
        assert!(hand.take().is_some());
        hands.into_iter().for_each(|hand| stock.give_back(hand));
        assert_eq!((stock.len(), stock.given_out()), (9, 10));
        let mut later = stock.deal(1, 1).remove(0);
        assert!(later.draw().is_some());
        assert_eq!(later.repeats, 0, "one is left that nobody has read");
        assert!(later.draw().is_some());
        assert_eq!(later.repeats, 1, "another measurement read it");
        later.put(stock.new_number());
        stock.give_back(later);
        let mut last = stock.deal(1, 2).remove(0);
        assert!(last.draw().is_some());
        assert_eq!(last.repeats, 0, "what nobody has read comes first");
        stock.give_back(last);
        let mut heap = stock.heap(2, 1);
        assert!(
            (0..10).all(|_| heap[0].take().is_some()) && heap.iter().all(Hand::is_empty),
            "one takes all"
        );
        assert_eq!(stock.key(7), "p/0000000007");
        assert_eq!((stock.number("p/0000000007"), stock.number("q/0000000007")), (Some(7), None));
    }
}
