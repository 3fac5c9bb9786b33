//! Miniature simulations: the modes that a cache may take, each simulated on a sample of the requests.
//!
//! A sample of keys sees the same pattern of reuse as all keys, so a cache that is smaller in the same proportion has
//! nearly the same miss ratio (Waldspurger, Saemundsson, Ahmad and Park: *Cache modeling and optimization using miniature
//! simulations*, USENIX ATC 2017). One such cache runs per mode, and the live cache takes the mode whose misses cost least.
//!
//! A change of the mode replaces a part of the live cache. It is therefore made only after the better mode has saved a
//! part of what the replaced entries cost, as in metrical task systems. This bounds the loss of a wrong change, and keeps
//! the start of a trace, where all reuse is short, from deciding for the rest of it. A return to the plain mode, that of
//! S3-FIFO, is free: labels that harm are obeyed for a short time only.

use super::classes::{
    CELLS, CLASSES, CellSet, ClassPolicies, ClassSet, Ranking, ReservedShare, SIZE_GROUPS, SizeUnit, Usage,
    cells_of_class, cells_of_size, class_index,
};
use super::keyed_cache::Lookup;
use super::reserve_evidence::ReserveEvidence;
use super::window_clock::{Shape, WindowClock, WindowOrder};
use super::{Capacity, Entry, KeyedCache};

/// Entries of a miniature cache, if the live cache has more. Each takes about 80 bytes.
const MAX_SAMPLE_SLOTS: u32 = 2048;
/// Like [`MAX_SAMPLE_SLOTS`], but with policies for classes: entries then differ in size and reuse, so that a few large
/// ones decide.
const MAX_CLASSED_SAMPLE_SLOTS: u32 = 8192;
/// Ghosts of a mode, relative to the size of the cache.
pub(super) const GHOST_PERCENT: u64 = 110;
/// Windows to choose from, in percent. The first is the plain one, as in S3-FIFO; the last makes the cache an LRU list.
const WINDOWS_PERCENT: [u64; 5] = [10, 1, 20, 40, 100];
/// Costs are compared each time that the cache would have been filled by this part of the requests.
const COMPARISONS_PER_CAPACITY: u64 = 4;
/// Requests, relative to the size of the cache, after which a cost counts half.
const HALF_LIFE_CAPACITIES: f64 = 32.0;
/// The part of the cost of replaced entries that a better mode must have saved.
const MIN_SAVED_SHARE: f64 = 0.5;
/// The part of all costs that a better mode must have saved.
const MIN_GAIN: f64 = 0.005;
/// The part of the cache that a change of the order of classes replaces.
const REPLACED_BY_RANKING: f64 = 0.3;
/// The rank of classes whose blocks save less than 1/1000 of those of the best one.
const MAX_OBSERVED_RANK: f64 = 10.0;
/// The part of the cache that a class must have brought in before its reuse is known.
const MIN_OBSERVED_SHARE: f64 = 1.0 / 64.0;
/// The part of the cost of its requests that hits must save, or a class counts as not reused.
pub(super) const MIN_SAVED_COST_SHARE: f64 = 1.0 / 32.0;
/// The factor by which classes must differ in reuse to differ in rank.
const MIN_REUSE_FACTOR: f64 = 2.0;
/// The index of the mode with the first window and without an order of classes.
const PLAIN: usize = 0;
/// The index of the mode that obeys the declared priorities.
const DECLARED: usize = WINDOWS_PERCENT.len();

/// The cost of a miss: a constant and a part that grows with its size, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissCost {
    /// Cost of a request, such as a seek.
    pub per_request: u32,
    /// Cost of a block, such as its transfer.
    pub per_block: u32,
}

impl Default for MissCost {
    /// Each miss costs the same.
    fn default() -> Self {
        Self { per_request: 1, per_block: 0 }
    }
}

impl MissCost {
    fn of_entry(self, entry: &Entry) -> f64 {
        f64::from(self.per_request) + f64::from(self.per_block) * f64::from(entry.blocks)
    }
}

/// The order in which classes lose their entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClassOrder {
    /// All classes are treated as one.
    None,
    /// By the priorities of the settings.
    Declared,
    /// By the reuse that was observed of classes and sizes.
    Observed,
    /// By the reuse that was observed of sizes, whatever the class.
    Sizes,
}

/// One way to run the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) window_percent: u64,
    pub(super) class_order: ClassOrder,
}

impl Mode {
    /// The part of the cache that a change of the window to that of another mode replaces.
    fn distance(self, other: Self) -> f64 {
        self.window_percent.abs_diff(other.window_percent) as f64 / 100.0
    }
}

/// A miniature cache and its recent misses.
#[derive(Debug)]
struct Miniature {
    mode: Mode,
    cache: KeyedCache<WindowClock>,
    cost: f64,
    missed_blocks: f64,
}

/// Reuse of one cell or class: the cost that hits saved, the cost of misses, and the blocks that these brought in.
#[derive(Debug, Clone, Copy, Default)]
struct Reuse {
    saved_cost: f64,
    missed_cost: f64,
    inserted_blocks: f64,
}

#[derive(Debug)]
pub(super) struct MiniatureSimulations {
    miniatures: Vec<Miniature>,
    current: usize,
    miss_cost: MissCost,
    live_capacity: Capacity,
    /// Keys whose hash is below this are in the sample.
    sample_below: u64,
    capacity_blocks: u64,
    capacity_slots: u64,
    requested_blocks: u64,
    reuse: [Reuse; CELLS],
    /// The reuse of each class in the cache that obeys the declared priorities.
    declared_reuse: [Reuse; CLASSES],
    /// Requests since the evidence on the declared priorities was evaluated last.
    unevaluated_blocks: u64,
    size_unit: SizeUnit,
    /// The priorities of the settings.
    priorities: [u8; CLASSES],
    /// The classes that have no priority but the rank that their reuse earns.
    by_reuse: ClassSet,
    reserved: Option<ReservedShare>,
    reserve_evidence: ReserveEvidence,
    is_reserve_earned: bool,
    declared: Ranking,
    /// Like `declared`, without the precedence of classes that are not reused.
    earned: Ranking,
    observed: Ranking,
    sizes: Ranking,
}

impl MiniatureSimulations {
    /// Simulations of all windows, and of orders of classes if the classes have `policies`. The first mode is then that of
    /// the declared priorities, since correct labels are worth most before there is any reuse to observe.
    pub(super) fn new(capacity: Capacity, miss_cost: MissCost, policies: Option<&ClassPolicies>) -> Self {
        let max_slots = if policies.is_some() { MAX_CLASSED_SAMPLE_SLOTS } else { MAX_SAMPLE_SLOTS };
        let sample = Sample::new(capacity, max_slots);
        let unordered =
            WINDOWS_PERCENT.map(|window_percent| Mode { window_percent, class_order: ClassOrder::None });
        let ordered = [ClassOrder::Declared, ClassOrder::Observed, ClassOrder::Sizes]
            .map(|class_order| Mode { window_percent: WINDOWS_PERCENT[0], class_order });
        let mut simulations = Self {
            miniatures: unordered
                .into_iter()
                .chain(ordered.into_iter().filter(|_| policies.is_some()))
                .map(|mode| Miniature::new(mode, sample.capacity))
                .collect(),
            current: if policies.is_some() { DECLARED } else { PLAIN },
            miss_cost,
            live_capacity: capacity,
            sample_below: sample.below,
            capacity_blocks: sample.capacity.blocks,
            capacity_slots: u64::from(sample.capacity.slots),
            requested_blocks: 0,
            reuse: [Reuse::default(); CELLS],
            declared_reuse: [Reuse::default(); CLASSES],
            unevaluated_blocks: 0,
            size_unit: SizeUnit(1),
            priorities: [0; CLASSES],
            by_reuse: ClassSet::EMPTY,
            reserved: None,
            reserve_evidence: ReserveEvidence::default(),
            is_reserve_earned: true,
            declared: Ranking::NONE,
            earned: Ranking::NONE,
            observed: Ranking::NONE,
            sizes: Ranking::NONE,
        };
        simulations.set_size_unit(SizeUnit(1));
        if let Some(policies) = policies {
            simulations.set_class_policies(policies);
        }
        simulations
    }

    /// The mode of the live cache.
    pub(super) fn mode(&self) -> Mode {
        self.miniatures[self.current].mode
    }

    /// The order of classes in the present mode.
    pub(super) fn ranking(&self) -> Ranking {
        match self.mode().class_order {
            ClassOrder::Declared => self.earned,
            order => self.ranking_for(order),
        }
    }

    /// Limits the number of entries of the live cache. Must precede requests and policies of classes.
    pub(super) fn set_max_entries(&mut self, max_entries: u32) {
        let max_slots = if self.is_classed() { MAX_CLASSED_SAMPLE_SLOTS } else { MAX_SAMPLE_SLOTS };
        let capacity = Capacity { slots: max_entries.min(self.live_capacity.slots), ..self.live_capacity };
        let sample = Sample::new(capacity, max_slots);
        self.sample_below = sample.below;
        self.capacity_blocks = sample.capacity.blocks;
        self.capacity_slots = u64::from(sample.capacity.slots);
        for miniature in &mut self.miniatures {
            *miniature = Miniature::new(miniature.mode, sample.capacity);
        }
        self.set_size_unit(self.size_unit);
    }

    fn is_classed(&self) -> bool {
        self.miniatures.iter().any(|miniature| miniature.mode.class_order == ClassOrder::Declared)
    }

    /// Changes the blocks of a size unit. Must precede requests.
    pub(super) fn set_size_unit(&mut self, size_unit: SizeUnit) {
        self.size_unit = size_unit;
        for miniature in &mut self.miniatures {
            let is_by_size = matches!(miniature.mode.class_order, ClassOrder::Observed | ClassOrder::Sizes);
            // Other orders treat all sizes alike, and take less time without groups.
            let size_unit = if is_by_size { size_unit } else { SizeUnit::ONE_GROUP };
            miniature.cache.policy_mut().set_size_unit(size_unit);
        }
    }

    pub(super) fn set_class_policies(&mut self, policies: &ClassPolicies) {
        self.priorities = policies.priorities();
        self.by_reuse = policies.by_reuse();
        self.reserved = policies.reserved();
        self.rank_declared();
        for miniature in &mut self.miniatures {
            miniature.cache.policy_mut().set_class_policies(policies);
        }
        self.apply_rankings();
    }

    /// Returns false while the class with a reserved share has turned it over without reuse. The miniature caches have
    /// the reserve in any case, so that later reuse shows.
    pub(super) const fn is_reserve_earned(&self) -> bool {
        self.is_reserve_earned
    }

    /// Records a request of the live cache. Returns true if [`mode`](Self::mode), [`ranking`](Self::ranking) or
    /// [`is_reserve_earned`](Self::is_reserve_earned) changed.
    pub(super) fn request(&mut self, entry: &Entry) -> bool {
        if !self.is_sampled(entry.key) {
            return false;
        }
        let cost = self.miss_cost.of_entry(entry);
        let (mut is_hit_in_plain, mut is_hit_in_declared) = (false, false);
        for (number, miniature) in self.miniatures.iter_mut().enumerate() {
            let is_hit = miniature.cache.request(entry) == Lookup::Hit;
            if !is_hit {
                miniature.cost += cost;
                miniature.missed_blocks += f64::from(entry.blocks);
            }
            match number {
                PLAIN => is_hit_in_plain = is_hit,
                DECLARED => is_hit_in_declared = is_hit,
                _ => {}
            }
        }
        self.reuse[self.size_unit.cell(entry)].record(entry, is_hit_in_plain, cost);
        self.record_reserve(entry, is_hit_in_plain, cost);
        self.declared_reuse[class_index(entry)].record(entry, is_hit_in_declared, cost);
        self.requested_blocks += u64::from(entry.blocks);
        self.unevaluated_blocks += u64::from(entry.blocks);
        if self.requested_blocks * COMPARISONS_PER_CAPACITY < self.capacity_blocks {
            return self.evaluate_priorities();
        }
        self.compare()
    }

    /// Updates the order of the declared priorities, more often than costs are compared: what a class without reuse
    /// displaces shows in misses much later. Returns true if the order of the live cache changed.
    fn evaluate_priorities(&mut self) -> bool {
        if (self.unevaluated_blocks as f64) < self.capacity_blocks as f64 * MIN_OBSERVED_SHARE {
            return false;
        }
        let before = self.ranking();
        self.rank_declared();
        before != self.ranking()
    }

    /// Records that the entry of a key was removed.
    pub(super) fn remove(&mut self, key: u64) {
        if self.is_sampled(key) {
            for miniature in &mut self.miniatures {
                miniature.cache.remove(key);
            }
        }
    }

    const fn is_sampled(&self, key: u64) -> bool {
        // Another part of the product than that which ghosts use, so that samples spread over their buckets.
        key.wrapping_mul(0xC2B2_AE3D_27D4_EB4F) >> 32 < self.sample_below
    }

    fn compare(&mut self) -> bool {
        let before = (self.current, self.ranking(), self.is_reserve_earned);
        let cheapest = (0..self.miniatures.len())
            .min_by(|&a, &b| self.miniatures[a].cost.total_cmp(&self.miniatures[b].cost))
            .unwrap_or(self.current);
        if self.is_worth_a_change(cheapest, MIN_SAVED_SHARE) {
            self.current = cheapest;
        } else if self.is_worth_a_change(PLAIN, 0.0) {
            self.current = PLAIN;
        }
        self.is_reserve_earned = self.reserved.is_none() || self.reserve_evidence.is_reserve_earned();
        self.observed = observed_ranking(&self.reuse);
        self.sizes = observed_ranking(&reuse_by_size(&self.reuse));
        self.rank_declared();
        self.apply_rankings();
        self.age(self.requested_blocks as f64 / self.capacity_blocks as f64);
        self.requested_blocks = 0;
        before != (self.current, self.ranking(), self.is_reserve_earned)
    }

    /// Returns true if a mode has saved the given share of what a change to it replaces.
    fn is_worth_a_change(&self, mode: usize, min_saved_share: f64) -> bool {
        let (current, better) = (&self.miniatures[self.current], &self.miniatures[mode]);
        let block_cost = current.cost / current.missed_blocks.max(1.0);
        let (order, other) =
            (self.ranking_for(current.mode.class_order), self.ranking_for(better.mode.class_order));
        let is_reordered = !order.orders_alike(&other, self.requested_cells());
        let by_ranking = if is_reordered { REPLACED_BY_RANKING } else { 0.0 };
        let replaced_share = current.mode.distance(better.mode) + by_ranking;
        let replaced_blocks = replaced_share * self.capacity_blocks as f64;
        let min_saved = min_saved_share * replaced_blocks * block_cost + MIN_GAIN * current.cost;
        better.cost + min_saved < current.cost
    }

    fn record_reserve(&mut self, entry: &Entry, is_hit: bool, cost: f64) {
        let Some(reserved) = self.reserved.filter(|reserved| reserved.class == class_index(entry)) else {
            return;
        };
        let capacity = Usage { blocks: self.capacity_blocks, slots: self.capacity_slots };
        self.reserve_evidence.record(entry, is_hit, cost, reserved.of_capacity(capacity));
    }

    /// Reduces the weight of the past.
    fn age(&mut self, capacities: f64) {
        let weight = 0.5_f64.powf(capacities / HALF_LIFE_CAPACITIES);
        for miniature in &mut self.miniatures {
            miniature.cost *= weight;
            miniature.missed_blocks *= weight;
        }
        for reuse in self.reuse.iter_mut().chain(&mut self.declared_reuse) {
            reuse.saved_cost *= weight;
            reuse.missed_cost *= weight;
            reuse.inserted_blocks *= weight;
        }
    }

    fn requested_cells(&self) -> CellSet {
        let mut requested = CellSet::EMPTY;
        for (cell, reuse) in self.reuse.iter().enumerate() {
            requested.set(cell, reuse.inserted_blocks > 0.0);
        }
        requested
    }

    fn reuse_of_class(&self, class: usize) -> Reuse {
        cells_of_class(class).map(|cell| self.reuse[cell]).fold(Reuse::default(), Reuse::plus)
    }

    fn rank_declared(&mut self) {
        self.unevaluated_blocks = 0;
        self.declared = self.declared_ranking(&self.priorities);
        self.earned = self.declared_ranking(&self.earned_priorities());
    }

    /// The declared priorities of classes that are reused. A class that has brought in a part of the cache and is not
    /// reused has no precedence over the labelled classes that are: it takes the lowest of their priorities, unless its own
    /// is lower.
    fn earned_priorities(&self) -> [u8; CLASSES] {
        let min_blocks = self.capacity_blocks as f64 * MIN_OBSERVED_SHARE;
        let is_reused = |class: usize| {
            let reuse = &self.declared_reuse[class];
            reuse.is_reused() && !self.by_reuse.contains(class)
        };
        let lowest = (0..CLASSES).filter(|class| is_reused(*class)).map(|class| self.priorities[class]).max();
        std::array::from_fn(|class| {
            let is_known = self.declared_reuse[class].inserted_blocks >= min_blocks;
            let is_unused = is_known && !is_reused(class) && !self.by_reuse.contains(class);
            let priority = self.priorities[class];
            lowest.filter(|_| is_unused).map_or(priority, |lowest| lowest.max(priority))
        })
    }

    /// The declared priorities, with a rank among them for each class that is ranked by reuse: that of the highest
    /// priority whose reuse it equals, or the lowest one without reuse. Before its reuse is known, it is the highest one
    /// that is in use.
    fn declared_ranking(&self, priorities: &[u8; CLASSES]) -> Ranking {
        let reuse: [Reuse; CLASSES] = std::array::from_fn(|class| self.reuse_of_class(class));
        let mut ranks = *priorities;
        let min_blocks = self.capacity_blocks as f64 * MIN_OBSERVED_SHARE;
        let is_known = |class: usize| reuse[class].inserted_blocks >= min_blocks;
        let is_labelled =
            |class: &usize| reuse[*class].inserted_blocks > 0.0 && !self.by_reuse.contains(*class);
        let labelled = || (0..CLASSES).filter(is_labelled);
        let rank = |class: usize| priorities[class];
        let highest = labelled().map(rank).min().unwrap_or(0);
        let lowest = labelled().map(rank).max().unwrap_or(0);
        for class in self.by_reuse.iter() {
            let value = reuse[class].value();
            let is_reused = reuse[class].is_reused();
            let equals = |other: usize| is_reused && value * MIN_REUSE_FACTOR >= reuse[other].value();
            let earned = labelled().filter(|other| is_known(*other) && equals(*other)).map(rank).min();
            let is_compared = is_known(class) && labelled().any(is_known);
            ranks[class] = if is_compared { earned.unwrap_or(lowest + 1) } else { highest };
        }
        Ranking::of_classes(ranks)
    }

    const fn ranking_for(&self, order: ClassOrder) -> Ranking {
        match order {
            ClassOrder::None => Ranking::NONE,
            ClassOrder::Declared => self.declared,
            ClassOrder::Observed => self.observed,
            ClassOrder::Sizes => self.sizes,
        }
    }

    fn apply_rankings(&mut self) {
        for number in 0..self.miniatures.len() {
            let ranking = self.ranking_for(self.miniatures[number].mode.class_order);
            self.miniatures[number].cache.policy_mut().set_ranking(ranking);
        }
    }
}

impl Miniature {
    fn new(mode: Mode, capacity: Capacity) -> Self {
        let shape = Shape {
            window_percent: mode.window_percent,
            ghost_percent: GHOST_PERCENT,
            order: WindowOrder::Lru,
        };
        let cache = KeyedCache::new(capacity, WindowClock::new(capacity, shape));
        Self { mode, cache, cost: 0.0, missed_blocks: 0.0 }
    }
}

impl Reuse {
    fn plus(self, other: Self) -> Self {
        Self {
            saved_cost: self.saved_cost + other.saved_cost,
            missed_cost: self.missed_cost + other.missed_cost,
            inserted_blocks: self.inserted_blocks + other.inserted_blocks,
        }
    }

    /// The cost that a block saves before it leaves.
    fn value(&self) -> f64 {
        self.saved_cost / self.inserted_blocks.max(1.0)
    }

    fn is_reused(&self) -> bool {
        self.saved_cost > (self.saved_cost + self.missed_cost) * MIN_SAVED_COST_SHARE
    }

    fn record(&mut self, entry: &Entry, is_hit: bool, cost: f64) {
        if is_hit {
            self.saved_cost += cost;
        } else {
            self.missed_cost += cost;
            self.inserted_blocks += f64::from(entry.blocks);
        }
    }
}

/// Ranks cells by the cost that a block saves before it leaves. One rank is a factor of 2, so that cells of similar
/// reuse are treated as one. Sizes count apart: labels that predict nothing do not hide what sizes predict.
fn observed_ranking(reuse: &[Reuse; CELLS]) -> Ranking {
    let highest = reuse.iter().map(Reuse::value).fold(0.0, f64::max);
    Ranking::new(std::array::from_fn(|cell| {
        let ratio = reuse[cell].value() / highest;
        if ratio > 0.0 {
            (-ratio.log2()).round().min(MAX_OBSERVED_RANK) as u8
        } else {
            MAX_OBSERVED_RANK as u8
        }
    }))
}

/// The reuse of each cell as that of its size in all classes.
fn reuse_by_size(reuse: &[Reuse; CELLS]) -> [Reuse; CELLS] {
    let by_size: [Reuse; SIZE_GROUPS] = std::array::from_fn(|size| {
        cells_of_size(size).map(|cell| reuse[cell]).fold(Reuse::default(), Reuse::plus)
    });
    std::array::from_fn(|cell| by_size[cell % SIZE_GROUPS])
}

/// The size of miniature caches, and the keys which they see.
struct Sample {
    capacity: Capacity,
    below: u64,
}

impl Sample {
    fn new(capacity: Capacity, max_slots: u32) -> Self {
        let all = 1_u64 << 32;
        let slots = capacity.slots.min(max_slots);
        if slots == capacity.slots {
            return Self { capacity, below: all };
        }
        let below = all * u64::from(slots) / u64::from(capacity.slots);
        let blocks = u128::from(capacity.blocks) * u128::from(below) / u128::from(all);
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX).max(1);
        Self { capacity: Capacity { blocks, slots }, below }
    }
}
