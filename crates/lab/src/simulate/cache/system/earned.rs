//! The order of cached objects: by label and size, as far as observed requests confirm the labels.
//!
//! A position on the disk is saved per request, whatever the size; so the value of a class is its number of requests
//! per block. Labels order the classes until they are observed. A class that has not earned its place above the next one
//! is merged with it, and sizes decide between the two. In the end wrong labels are no worse than none.

use super::classes::{PRIORITIES, Priority};

/// Size classes in powers of two blocks: from 4 KiB to 4 MiB.
pub(super) const SIZE_CLASSES: usize = 11;
/// Number of [`Cell`]s.
pub(super) const CELLS: usize = PRIORITIES * SIZE_CLASSES;
/// Requests per block of a class, relative to the next one, that confirm the label.
const MIN_CONFIRMED_RATIO: f64 = 1.25;
/// Requests of a class that count as observed.
const MIN_REQUESTS: u64 = 64;
/// Requests between two updates of the order.
const UPDATE_REQUESTS: u64 = 256;

/// Objects of one label and size class: a number below [`CELLS`].
pub(super) type Cell = usize;

/// The cell of an object of which `blocks` would be cached.
pub(super) fn cell(priority: Priority, blocks: u64) -> Cell {
    let size_class = blocks.max(1).ilog2() as usize;
    usize::from(priority) * SIZE_CLASSES + size_class.min(SIZE_CLASSES - 1)
}

#[derive(Debug, Clone, Copy, Default)]
struct Demand {
    requests: u64,
    blocks: u64,
}

impl Demand {
    fn requests_per_block(self) -> f64 {
        self.requests as f64 / self.blocks.max(1) as f64
    }
}

/// The order of cells.
#[derive(Debug)]
pub(super) struct EarnedOrder {
    observed: [Demand; PRIORITIES],
    /// The group of each priority; 0 is the highest.
    groups: [usize; PRIORITIES],
    requests: u64,
    /// Cells from the lowest rank to the highest.
    ascending: Vec<Cell>,
}

impl EarnedOrder {
    pub fn new() -> Self {
        let mut order = Self {
            observed: [Demand::default(); PRIORITIES],
            groups: [0; PRIORITIES],
            requests: 0,
            ascending: Vec::new(),
        };
        order.update();
        order
    }

    /// Counts a request.
    pub fn record(&mut self, priority: Priority, blocks: u64) {
        let observed = &mut self.observed[usize::from(priority)];
        observed.requests += 1;
        observed.blocks += blocks;
        self.requests += 1;
        if self.requests.is_multiple_of(UPDATE_REQUESTS) {
            self.update();
        }
    }

    /// Cells from the lowest rank to the highest.
    pub fn ascending(&self) -> &[Cell] {
        &self.ascending
    }

    /// The rank of a cell: lower is more important.
    pub fn rank(&self, cell: Cell) -> usize {
        self.groups[cell / SIZE_CLASSES] * SIZE_CLASSES + cell % SIZE_CLASSES
    }

    fn update(&mut self) {
        let mut group = 0;
        let mut of_group = Demand::default();
        for (priority, observed) in self.observed.into_iter().enumerate() {
            let is_observed = of_group.requests >= MIN_REQUESTS && observed.requests >= MIN_REQUESTS;
            let ratio = of_group.requests_per_block() / observed.requests_per_block();
            if priority > 0 && !(is_observed && ratio < MIN_CONFIRMED_RATIO) {
                group += 1;
                of_group = Demand::default();
            }
            of_group.requests += observed.requests;
            of_group.blocks += observed.blocks;
            self.groups[priority] = group;
        }
        let mut cells: Vec<Cell> = (0..CELLS).collect();
        cells.sort_by_key(|cell| std::cmp::Reverse(self.rank(*cell)));
        self.ascending = cells;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(observed: &[(Priority, u64)]) -> EarnedOrder {
        let mut order = EarnedOrder::new();
        (0..UPDATE_REQUESTS)
            .for_each(|_| observed.iter().for_each(|&(priority, blocks)| order.record(priority, blocks)));
        order
    }

    #[test]
    fn confirmed_label_ranks_above_a_smaller_size() {
        let order = order(&[(3, 10), (4, 100)]);
        assert!(order.rank(cell(3, 1024)) < order.rank(cell(4, 1)));
    }

    #[test]
    fn wrong_labels_leave_the_order_to_the_sizes() {
        for wrong in [order(&[(3, 100), (4, 10)]), order(&[(3, 50), (4, 50)])] {
            assert!(wrong.rank(cell(3, 1024)) > wrong.rank(cell(4, 1)));
            assert_eq!(wrong.rank(cell(3, 16)), wrong.rank(cell(4, 16)));
        }
    }

    #[test]
    fn labels_rule_before_anything_is_observed() {
        let order = EarnedOrder::new();
        assert!(order.rank(cell(3, 1024)) < order.rank(cell(4, 1)));
        assert_eq!(order.ascending().len(), CELLS);
        assert_eq!(order.ascending().last(), Some(&cell(0, 1)));
    }
}
