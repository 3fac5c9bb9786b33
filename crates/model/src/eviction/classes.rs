//! Policies of classes: the priority of a class, and how much of the cache it may fill.

use super::Entry;

/// Number of classes. Class 0 is unclassified.
pub const CLASSES: usize = 32;

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

    pub(super) fn ranking(&self) -> Ranking {
        Ranking(self.policies.map(|policy| policy.priority))
    }

    /// The classes that are ranked by their observed reuse.
    pub(super) const fn by_reuse(&self) -> ClassSet {
        self.by_reuse
    }
}

/// The order in which classes lose their entries: the one with the highest rank first. Classes of equal rank are
/// treated as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranking([u8; CLASSES]);

impl Ranking {
    /// All classes are treated as one.
    pub(super) const NONE: Self = Self([0; CLASSES]);

    pub(super) const fn new(ranks: [u8; CLASSES]) -> Self {
        Self(ranks)
    }

    pub(super) fn rank(&self, class: usize) -> u8 {
        self.0[class]
    }

    pub(super) fn set(&mut self, class: usize, rank: u8) {
        self.0[class] = rank;
    }

    /// Returns true if both put these classes into the same order.
    pub(super) fn orders_alike(&self, other: &Self, classes: ClassSet) -> bool {
        let order = |ranking: &Self, a: usize, b: usize| ranking.rank(a).cmp(&ranking.rank(b));
        classes.iter().all(|a| classes.iter().all(|b| order(self, a, b) == order(other, a, b)))
    }
}

/// A set of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClassSet(u32);

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
    pub(super) fn lowest_priority(self, ranking: &Ranking) -> Self {
        let Some(highest) = self.iter().map(|class| ranking.rank(class)).max() else { return self };
        let mut set = Self::EMPTY;
        for class in self.iter().filter(|&class| ranking.rank(class) == highest) {
            set.set(class, true);
        }
        set
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
