//! Policies of classes: the priority of a class, and how much of the cache it may fill.

use super::Entry;

/// Number of classes. Class 0 is unclassified.
pub const CLASSES: usize = 32;

/// Groups of sizes in each class.
pub(super) const SIZE_GROUPS: usize = 4;

/// The largest size of each group but the last, in size units.
const MAX_GROUP_UNITS: [u32; SIZE_GROUPS - 1] = [2, 6, 9];

/// Number of cells: a class and a group of sizes.
pub(super) const CELLS: usize = CLASSES * SIZE_GROUPS;

/// The policy of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassPolicy {
    /// 0 is highest. Entries of the lowest priority leave first.
    pub priority: u8,
    /// The most of the cache that the class may fill, up to 100: of its blocks, and of its slots.
    pub max_occupancy_percent: u8,
}

impl Default for ClassPolicy {
    /// The highest priority, without a limit.
    fn default() -> Self {
        Self { priority: 0, max_occupancy_percent: 100 }
    }
}

/// The occupancy of a cache by one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassOccupancy {
    /// Blocks of its entries.
    pub blocks: u64,
    /// Number of its entries.
    pub entries: u32,
}

/// Blocks and slots of a cache that entries use. Many small entries fill its slots before its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    pub(super) blocks: u64,
    pub(super) slots: u64,
}

impl Usage {
    pub(super) const NONE: Self = Self { blocks: 0, slots: 0 };
    pub(super) const UNLIMITED: Self = Self { blocks: u64::MAX, slots: u64::MAX };

    /// The usage by one entry.
    pub(super) const fn of_entry(entry: &Entry) -> Self {
        Self { blocks: entry.blocks as u64, slots: 1 }
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self { blocks: self.blocks + other.blocks, slots: self.slots + other.slots }
    }

    pub(super) const fn saturating_minus(self, other: Self) -> Self {
        let blocks = self.blocks.saturating_sub(other.blocks);
        Self { blocks, slots: self.slots.saturating_sub(other.slots) }
    }

    /// Returns true if neither blocks nor slots are more than the limit.
    pub(super) const fn is_within(self, limit: Self) -> bool {
        self.blocks <= limit.blocks && self.slots <= limit.slots
    }

    pub(super) const fn percent(self, percent: u64) -> Self {
        Self { blocks: share(self.blocks, percent), slots: share(self.slots, percent) }
    }
}

/// The given part of an amount. Unlike a plain product, it does not overflow.
const fn share(amount: u64, percent: u64) -> u64 {
    amount / 100 * percent + amount % 100 * percent / 100
}

/// The policies of all classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassPolicies {
    policies: [ClassPolicy; CLASSES],
    by_reuse: ClassSet,
    reserved: Option<ReservedShare>,
}

/// The share of the cache from which a class is not evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReservedShare {
    pub(super) class: usize,
    percent: u64,
}

impl ReservedShare {
    /// The reserved part of a cache.
    pub(super) const fn of_capacity(self, capacity: Usage) -> Usage {
        capacity.percent(self.percent)
    }
}

impl ClassPolicies {
    /// Changes the policy of a class.
    ///
    /// # Panics
    ///
    /// If the class is not below [`CLASSES`].
    pub fn set(&mut self, class: u8, policy: ClassPolicy) {
        self.policies[usize::from(class)] = policy;
    }

    /// Lets a class take the rank that its observed reuse earns among the other classes, whatever its priority.
    ///
    /// # Panics
    ///
    /// If the class is not below [`CLASSES`].
    pub fn rank_by_reuse(&mut self, class: u8) {
        assert!(usize::from(class) < CLASSES, "class {class} is not below {CLASSES}");
        self.by_reuse.set(usize::from(class), true);
    }

    /// Reserves a share of the cache, up to 100 %, for one class: others do not displace it from there, and any of them
    /// makes way for it. The share is free for others while the class does not fill it. It ends while the class has
    /// turned over a multiple of it without reuse.
    ///
    /// # Panics
    ///
    /// If the class is not below [`CLASSES`].
    pub fn reserve(&mut self, class: u8, percent: u8) {
        assert!(usize::from(class) < CLASSES, "class {class} is not below {CLASSES}");
        let percent = u64::from(percent.min(100));
        self.reserved = Some(ReservedShare { class: usize::from(class), percent });
    }

    /// The policy of a class.
    ///
    /// # Panics
    ///
    /// If the class is not below [`CLASSES`].
    #[must_use]
    pub const fn get(&self, class: u8) -> ClassPolicy {
        self.policies[class as usize]
    }

    /// The most that each class may fill of a cache of the given size.
    pub(super) fn max_usages(&self, capacity: Usage) -> [Usage; CLASSES] {
        self.policies.map(|policy| {
            let percent = u64::from(policy.max_occupancy_percent.min(100));
            if percent == 100 { Usage::UNLIMITED } else { capacity.percent(percent) }
        })
    }

    pub(super) const fn reserved(&self) -> Option<ReservedShare> {
        self.reserved
    }

    pub(super) fn priorities(&self) -> [u8; CLASSES] {
        self.policies.map(|policy| policy.priority)
    }

    pub(super) fn ranking(&self) -> Ranking<CLASSES> {
        Ranking(self.priorities())
    }

    /// The classes that are ranked by their observed reuse.
    pub(super) const fn by_reuse(&self) -> ClassSet {
        self.by_reuse
    }
}

/// The order in which cells, or classes, lose their entries: the one with the highest rank first. Those of equal rank are
/// treated as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranking<const N: usize = CELLS>([u8; N]);

impl Ranking {
    /// One rank for all sizes of a class.
    pub(super) fn of_classes(ranks: [u8; CLASSES]) -> Self {
        Self(std::array::from_fn(|cell| ranks[class_of_cell(cell)]))
    }
}

impl<const N: usize> Ranking<N> {
    /// All cells are treated as one.
    pub(super) const NONE: Self = Self([0; N]);

    pub(super) const fn new(ranks: [u8; N]) -> Self {
        Self(ranks)
    }

    pub(super) const fn rank(&self, cell: usize) -> u8 {
        self.0[cell]
    }

    /// Returns true if both put these cells into the same order.
    pub(super) fn orders_alike(&self, other: &Self, cells: CellSet) -> bool {
        let order = |ranking: &Self, a: usize, b: usize| ranking.rank(a).cmp(&ranking.rank(b));
        cells.iter().all(|a| cells.iter().all(|b| order(self, a, b) == order(other, a, b)))
    }
}

/// A set of cells.
pub(super) type CellSet = ClassSet;

/// A set of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClassSet(u128);

impl ClassSet {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) const fn set(&mut self, class: usize, is_member: bool) {
        if is_member {
            self.0 |= 1 << class;
        } else {
            self.0 &= !(1 << class);
        }
    }

    pub(super) const fn contains(self, class: usize) -> bool {
        self.0 & 1 << class != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members that are not in another set.
    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let class = rest.trailing_zeros() as usize;
            let is_member = rest != 0;
            rest &= rest.wrapping_sub(1);
            is_member.then_some(class)
        })
    }

    /// The members with the highest rank.
    pub(super) fn lowest_priority<const N: usize>(self, ranking: &Ranking<N>) -> Self {
        let Some(highest) = self.iter().map(|class| ranking.rank(class)).max() else { return self };
        let mut set = Self::EMPTY;
        for class in self.iter().filter(|&class| ranking.rank(class) == highest) {
            set.set(class, true);
        }
        set
    }
}

/// The cells of a class.
pub(super) const fn cells_of_class(class: usize) -> std::ops::Range<usize> {
    class * SIZE_GROUPS..(class + 1) * SIZE_GROUPS
}

/// The cells of all classes with the size of this one.
pub(super) fn cells_of_size(cell: usize) -> impl Iterator<Item = usize> {
    (cell % SIZE_GROUPS..CELLS).step_by(SIZE_GROUPS)
}

pub(super) const fn class_of_cell(cell: usize) -> usize {
    cell / SIZE_GROUPS
}

/// Blocks of a size unit, by which sizes are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeUnit(pub(super) u32);

impl SizeUnit {
    /// All sizes are in one group.
    pub(super) const ONE_GROUP: Self = Self(1 << 31);

    /// The cell of an entry.
    ///
    /// # Panics
    ///
    /// If its class is not below [`CLASSES`].
    pub(super) fn cell(self, entry: &Entry) -> usize {
        let is_above = |max_units: &&u32| entry.blocks > max_units.saturating_mul(self.0);
        class_index(entry) * SIZE_GROUPS + MAX_GROUP_UNITS.iter().filter(is_above).count()
    }
}

/// The class of an entry as an index.
///
/// # Panics
///
/// If it is not below [`CLASSES`].
pub(super) fn class_index(entry: &Entry) -> usize {
    let class = usize::from(entry.class);
    assert!(class < CLASSES, "class {class} is not below {CLASSES}");
    class
}
