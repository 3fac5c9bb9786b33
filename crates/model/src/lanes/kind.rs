//! Which lane a request takes, and before whom it goes.

use crate::store_model::{Direction, Operation, SizeClass};

/// A small request has no more bytes: up to here it hardly matters how many there are (Hou 2017, section 4.1.2).
pub const SMALL_BYTES: u64 = 64 << 10;

/// How much somebody minds waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Goes before the others.
    High,
    /// As all do that nothing was said of.
    #[default]
    Normal,
}

/// Whether a request is sent whole, or in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Size {
    /// Up to [`SMALL_BYTES`].
    Small,
    /// More.
    Large,
}

/// What lanes have to know of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// Its priority.
    pub priority: Priority,
    /// What is asked.
    pub operation: Operation,
    /// Its size.
    pub size: Size,
    class: SizeClass,
    /// Nobody knows its size yet: nobody waits for it as for one that is known to be small.
    pub is_guessed: bool,
}

impl Kind {
    /// Lanes: each direction has one for small requests and one for large ones.
    pub(super) const LANES: usize = 4;
    /// Who may go before whom.
    pub(super) const RANKS: usize = 4;

    /// A request that carries so many bytes.
    #[must_use]
    pub const fn new(operation: Operation, priority: Priority, bytes: u64) -> Self {
        let size = if bytes <= SMALL_BYTES { Size::Small } else { Size::Large };
        Self { priority, operation, size, class: SizeClass::of(bytes), is_guessed: false }
    }

    /// The same where it may carry more than that.
    #[must_use]
    pub const fn guessed(self) -> Self {
        Self { is_guessed: true, ..self }
    }

    /// Which of the lanes it takes. What carries no bytes asks or changes something.
    pub(super) const fn lane(self) -> usize {
        let is_write = match self.operation {
            Operation::Head | Operation::List => false,
            other => !matches!(other.direction(), Some(Direction::Read)),
        };
        is_write as usize * 2 + self.size as usize
    }

    /// That of the large ones of its direction.
    pub(super) const fn large_lane(self) -> usize {
        self.lane() | 1
    }

    /// The lower goes before the higher.
    pub(super) const fn rank(self) -> usize {
        rank(self.priority, self.size)
    }

    /// What a turn of so many bytes takes of its lane: large requests are counted by their bytes, small ones by the request.
    pub(super) const fn amount(self, bytes: u64) -> u64 {
        match self.size {
            Size::Small => 1,
            Size::Large => bytes,
        }
    }
}

/// The rank of what has this priority in this lane.
pub(super) const fn rank_in(lane: usize, priority: Priority) -> usize {
    rank(priority, if lane.is_multiple_of(2) { Size::Small } else { Size::Large })
}

const fn rank(priority: Priority, size: Size) -> usize {
    priority as usize * 2 + size as usize
}
