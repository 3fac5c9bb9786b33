//! The sequence of steps of Postmark (Katz 1997). A pool of files is created; each transaction reads or extends a
//! file, and creates or removes one, with equal probability; the remaining files are removed. Everything follows from
//! the seed.

use crate::random::mix;

/// A step. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
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
pub enum Stage {
    /// The pool is created.
    Fill,
    /// Transactions.
    Transact,
    /// The remaining files are removed.
    Clear,
}

/// Iterator over all steps of the workload.
#[derive(Debug)]
pub struct Plan {
    least: u64,
    most: u64,
    pool: u64,
    transactions: u64,
    chance: u64,
    /// Existing files: number and size.
    there: Vec<(u64, u64)>,
    next: u64,
    stage: Stage,
    /// Started transactions. With `is_half`, the second step of the last one is still to come.
    begun: u64,
    is_half: bool,
}

impl Plan {
    /// Steps for `pool` files with sizes between `least` and `most` bytes, and the given number of transactions.
    #[must_use]
    pub fn new((least, most): (u64, u64), pool: u64, transactions: u64, seed: u64) -> Self {
        let (there, stage) = (Vec::new(), Stage::Fill);
        Self {
            least,
            most,
            pool,
            transactions,
            chance: mix(seed),
            there,
            next: 0,
            stage,
            begun: 0,
            is_half: false,
        }
    }

    /// Draws a random number below `below`.
    fn draw(&mut self, below: u64) -> u64 {
        self.chance = mix(self.chance);
        u64::try_from((u128::from(self.chance) * u128::from(below)) >> 64).unwrap_or(0)
    }

    fn create(&mut self) -> Step {
        let (number, size) = (self.next, self.least + self.draw(self.most - self.least + 1));
        self.next += 1;
        self.there.push((number, size));
        Step::Create { number, size }
    }

    /// The first step of a transaction: a read or an append. Files of the maximum size are only read.
    fn read_or_append(&mut self) -> Option<Step> {
        let is_read = self.draw(10) < 5;
        let index = usize::try_from(self.draw(self.there.len() as u64)).unwrap_or(0);
        let &(number, size) = self.there.get(index)?;
        if is_read || size >= self.most {
            return Some(Step::Read { number, size });
        }
        let to = size + 1 + self.draw(self.most - size);
        self.there[index].1 = to;
        Some(Step::Append { number, from: size, to })
    }

    /// The second step of a transaction.
    fn create_or_delete(&mut self) -> Step {
        if self.draw(10) < 5 || self.there.is_empty() {
            return self.create();
        }
        let index = usize::try_from(self.draw(self.there.len() as u64)).unwrap_or(0);
        Step::Delete { number: self.there.swap_remove(index).0 }
    }
}

impl Iterator for Plan {
    type Item = (Stage, Step);

    fn next(&mut self) -> Option<Self::Item> {
        if self.stage == Stage::Fill {
            if self.next < self.pool {
                return Some((Stage::Fill, self.create()));
            }
            self.stage = Stage::Transact;
        }
        if self.stage == Stage::Transact {
            if self.is_half {
                self.is_half = false;
                return Some((Stage::Transact, self.create_or_delete()));
            }
            if self.begun < self.transactions {
                self.begun += 1;
                self.is_half = true;
                if let Some(step) = self.read_or_append() {
                    return Some((Stage::Transact, step));
                }
                return self.next();
            }
            self.stage = Stage::Clear;
        }
        let (number, _) = self.there.pop()?;
        Some((Stage::Clear, Step::Delete { number }))
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
            let mut there: BTreeMap<u64, u64> = BTreeMap::new();
            let mut transacted = 0;
            for (stage, step) in Plan::new(range, pool, transactions, seed) {
                transacted += u64::from(stage == Stage::Transact);
                match step {
                    Step::Create { number, size } => {
                        assert!((range.0..=range.1).contains(&size), "{step:?}");
                        assert_eq!(there.insert(number, size), None);
                    }
                    Step::Read { number, size } => assert_eq!(there[&number], size),
                    Step::Append { number, from, to } => {
                        assert!(from < to && to <= range.1, "{step:?}");
                        assert_eq!(there.insert(number, to), Some(from));
                    }
                    Step::Delete { number } => assert!(there.remove(&number).is_some()),
                }
            }
            assert!(there.is_empty());
            // A transaction has one step if there is no file to read.
            assert!((transactions..=2 * transactions).contains(&transacted), "{seed}: {transacted}");
        }
    }

    #[test]
    fn plan_draws_kinds_evenly_and_from_the_seed() {
        let steps = |seed| Plan::new((512, 102_400), 500, 4000, seed).collect::<Vec<_>>();
        let count_of = |kind: fn(&Step) -> bool| {
            let transact = |each: &&(Stage, Step)| each.0 == Stage::Transact && kind(&each.1);
            steps(7).iter().filter(transact).count()
        };
        for count in [
            count_of(|step| matches!(step, Step::Read { .. })),
            count_of(|step| matches!(step, Step::Append { .. })),
            count_of(|step| matches!(step, Step::Create { .. })),
            count_of(|step| matches!(step, Step::Delete { .. })),
        ] {
            assert!((1850..2150).contains(&count), "{count}");
        }
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }
}
