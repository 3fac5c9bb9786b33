//! The sequence of steps of Postmark (Katz 1997). A pool of files is created; each transaction reads or extends a
//! file, and creates or removes one, with equal probability; the remaining files are removed. Everything follows from
//! the seed.

use crate::random::mix;

/// A step. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostmarkStep {
    /// Create a file.
    Create {
        /// Number of the file.
        number: u64,
        /// Its size.
        size: u64,
    },
    /// Read a whole file.
    Read {
        /// Number of the file.
        number: u64,
        /// Its size.
        size: u64,
    },
    /// Extend a file.
    Append {
        /// Number of the file.
        number: u64,
        /// Its size before.
        from: u64,
        /// Its size after.
        to: u64,
    },
    /// Remove a file.
    Delete {
        /// Number of the file.
        number: u64,
    },
}

/// The part of the workload that a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostmarkStage {
    /// The pool is created.
    Fill,
    /// Transactions.
    Transact,
    /// The remaining files are removed.
    Clear,
}

/// Iterator over all steps of the workload.
#[derive(Debug)]
pub struct PostmarkSteps {
    min_size: u64,
    max_size: u64,
    pool: u64,
    transactions: u64,
    random: u64,
    /// Existing files: number and size.
    existing: Vec<(u64, u64)>,
    next_number: u64,
    stage: PostmarkStage,
    /// Started transactions. With `is_second_step_due`, the second step of the last one is still to come.
    started: u64,
    is_second_step_due: bool,
}

impl PostmarkSteps {
    /// Steps for `pool` files with sizes between `min_size` and `max_size` bytes, and the given number of transactions.
    #[must_use]
    pub fn new((min_size, max_size): (u64, u64), pool: u64, transactions: u64, seed: u64) -> Self {
        let (existing, stage) = (Vec::new(), PostmarkStage::Fill);
        Self {
            min_size,
            max_size,
            pool,
            transactions,
            random: mix(seed),
            existing,
            next_number: 0,
            stage,
            started: 0,
            is_second_step_due: false,
        }
    }

    /// Draws a random number below `below`.
    fn draw(&mut self, below: u64) -> u64 {
        self.random = mix(self.random);
        u64::try_from((u128::from(self.random) * u128::from(below)) >> 64).unwrap_or(0)
    }

    fn create(&mut self) -> PostmarkStep {
        let (number, size) = (self.next_number, self.min_size + self.draw(self.max_size - self.min_size + 1));
        self.next_number += 1;
        self.existing.push((number, size));
        PostmarkStep::Create { number, size }
    }

    /// The first step of a transaction: a read or an append. Files of the maximum size are only read.
    fn read_or_append(&mut self) -> Option<PostmarkStep> {
        let is_read = self.draw(10) < 5;
        let index = usize::try_from(self.draw(self.existing.len() as u64)).unwrap_or(0);
        let &(number, size) = self.existing.get(index)?;
        if is_read || size >= self.max_size {
            return Some(PostmarkStep::Read { number, size });
        }
        let to = size + 1 + self.draw(self.max_size - size);
        self.existing[index].1 = to;
        Some(PostmarkStep::Append { number, from: size, to })
    }

    /// The second step of a transaction.
    fn create_or_delete(&mut self) -> PostmarkStep {
        if self.draw(10) < 5 || self.existing.is_empty() {
            return self.create();
        }
        let index = usize::try_from(self.draw(self.existing.len() as u64)).unwrap_or(0);
        PostmarkStep::Delete { number: self.existing.swap_remove(index).0 }
    }
}

impl Iterator for PostmarkSteps {
    type Item = (PostmarkStage, PostmarkStep);

    fn next(&mut self) -> Option<Self::Item> {
        if self.stage == PostmarkStage::Fill {
            if self.next_number < self.pool {
                return Some((PostmarkStage::Fill, self.create()));
            }
            self.stage = PostmarkStage::Transact;
        }
        if self.stage == PostmarkStage::Transact {
            if self.is_second_step_due {
                self.is_second_step_due = false;
                return Some((PostmarkStage::Transact, self.create_or_delete()));
            }
            if self.started < self.transactions {
                self.started += 1;
                self.is_second_step_due = true;
                if let Some(step) = self.read_or_append() {
                    return Some((PostmarkStage::Transact, step));
                }
                return self.next();
            }
            self.stage = PostmarkStage::Clear;
        }
        let (number, _) = self.existing.pop()?;
        Some((PostmarkStage::Clear, PostmarkStep::Delete { number }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn plan_uses_existing_files_and_leaves_none() {
        for (seed, range, pool, transactions) in
            [(1, (512, 102_400), 500, 500), (2, (1, 1), 1, 200), (3, (0, 10), 0, 50), (4, (5, 9), 3, 0)]
        {
            let mut existing: BTreeMap<u64, u64> = BTreeMap::new();
            let mut transacted = 0;
            for (stage, step) in PostmarkSteps::new(range, pool, transactions, seed) {
                transacted += u64::from(stage == PostmarkStage::Transact);
                match step {
                    PostmarkStep::Create { number, size } => {
                        assert!((range.0..=range.1).contains(&size), "{step:?}");
                        assert_eq!(existing.insert(number, size), None);
                    }
                    PostmarkStep::Read { number, size } => assert_eq!(existing[&number], size),
                    PostmarkStep::Append { number, from, to } => {
                        assert!(from < to && to <= range.1, "{step:?}");
                        assert_eq!(existing.insert(number, to), Some(from));
                    }
                    PostmarkStep::Delete { number } => assert!(existing.remove(&number).is_some()),
                }
            }
            assert!(existing.is_empty());
            // A transaction has one step if there is no file to read.
            assert!((transactions..=2 * transactions).contains(&transacted), "{seed}: {transacted}");
        }
    }

    #[test]
    fn plan_draws_kinds_evenly_and_from_the_seed() {
        let steps = |seed| PostmarkSteps::new((512, 102_400), 500, 4000, seed).collect::<Vec<_>>();
        let count_of = |kind: fn(&PostmarkStep) -> bool| {
            let transact =
                |each: &&(PostmarkStage, PostmarkStep)| each.0 == PostmarkStage::Transact && kind(&each.1);
            steps(7).iter().filter(transact).count()
        };
        for count in [
            count_of(|step| matches!(step, PostmarkStep::Read { .. })),
            count_of(|step| matches!(step, PostmarkStep::Append { .. })),
            count_of(|step| matches!(step, PostmarkStep::Create { .. })),
            count_of(|step| matches!(step, PostmarkStep::Delete { .. })),
        ] {
            assert!((1850..2150).contains(&count), "{count}");
        }
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }
}
