//! The lane and rank of a request.

use crate::store_statistics::{Direction, Operation, SizeClass};

/// Maximum bytes of a small request: up to this size the number of bytes hardly affects its latency (Hou 2017, section
/// 4.1.2).
pub const SMALL_BYTES: u64 = 64 << 10;

/// Priority of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Served before normal priority.
    High,
    /// The default.
    #[default]
    Normal,
}

/// Size category: small requests are dispatched whole, large ones in quanta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestSize {
    /// Up to [`SMALL_BYTES`].
    Small,
    /// More than [`SMALL_BYTES`].
    Large,
}

/// The properties of a request that determine its lane and rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKind {
    /// Its priority.
    pub priority: Priority,
    /// Its operation.
    pub operation: Operation,
    /// Its size category.
    pub size: RequestSize,
    size_class: SizeClass,
    /// Its size is not known yet. Such a request does not throttle others the way a small request does.
    pub is_size_unknown: bool,
}

impl LaneKind {
    /// Number of lanes: one for small and one for large requests in each direction.
    pub(super) const LANE_COUNT: usize = 4;
    /// Number of ranks in the order of service.
    pub(super) const RANK_COUNT: usize = 4;

    /// A request of `bytes`.
    #[must_use]
    pub const fn new(operation: Operation, priority: Priority, bytes: u64) -> Self {
        let size = if bytes <= SMALL_BYTES { RequestSize::Small } else { RequestSize::Large };
        Self { priority, operation, size, size_class: SizeClass::for_bytes(bytes), is_size_unknown: false }
    }

    /// This kind, with a size that may turn out larger.
    #[must_use]
    pub const fn with_unknown_size(self) -> Self {
        Self { is_size_unknown: true, ..self }
    }

    /// The index of its lane. `Head` and `List` count as reads, other operations without bytes as writes.
    pub(super) const fn lane(self) -> usize {
        let is_write = match self.operation {
            Operation::Head | Operation::List => false,
            other => !matches!(other.direction(), Some(Direction::Read)),
        };
        is_write as usize * 2 + self.size as usize
    }

    /// The lane of large requests in the same direction.
    pub(super) const fn large_lane(self) -> usize {
        self.lane() | 1
    }

    /// Its rank. Lower ranks are served before higher ones.
    pub(super) const fn rank(self) -> usize {
        rank(self.priority, self.size)
    }

    /// The amount that a dispatch of `bytes` uses of its lane: bytes for a large request, 1 for a small one.
    pub(super) const fn dispatch_amount(self, bytes: u64) -> u64 {
        match self.size {
            RequestSize::Small => 1,
            RequestSize::Large => bytes,
        }
    }
}

/// The rank of requests of this priority in this lane.
pub(super) const fn rank_in(lane: usize, priority: Priority) -> usize {
    rank(priority, if lane.is_multiple_of(2) { RequestSize::Small } else { RequestSize::Large })
}

const fn rank(priority: Priority, size: RequestSize) -> usize {
    priority as usize * 2 + size as usize
}
