//! Requests of an open loop whose moment has come and that no worker has begun. There are no more than so many: a store that
//! stands still, asked a million times a second, would fill the memory of the machine that asks. One more is given up, and
//! so are all behind it: what was asked for is not what was measured then, and the load ends.

use std::collections::VecDeque;
use std::time::Duration;

/// See the module. `T` is what is known of a request before its moment comes.
#[derive(Debug)]
pub(super) struct Due<T> {
    waiting: VecDeque<(Duration, T)>,
    most: usize,
    refused: u64,
}

impl<T> Due<T> {
    /// For so many at the most.
    pub const fn new(most: usize) -> Self {
        Self { waiting: VecDeque::new(), most, refused: 0 }
    }

    /// Another one, behind all others. Whether it waits now: it does not where there were too many, be it a while ago.
    pub fn push(&mut self, intended: Duration, request: T) -> bool {
        let is_kept = self.refused == 0 && self.waiting.len() < self.most;
        if is_kept {
            self.waiting.push_back((intended, request));
        } else {
            self.refused += 1;
        }
        is_kept
    }

    /// The one that waited longest.
    pub fn pop(&mut self) -> Option<(Duration, T)> {
        self.waiting.pop_front()
    }

    /// All that wait.
    pub fn take(&mut self) -> VecDeque<(Duration, T)> {
        std::mem::take(&mut self.waiting)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many were given up.
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However they come and go, those that wait are bounded and in their order, and each is waiting, begun or given up.
        #[test]
        fn no_more_wait_than_may_and_none_is_forgotten(
            most in 0_usize..20,
            comes in proptest::collection::vec(any::<bool>(), 0..200),
        ) {
            let mut due = Due::new(most);
            let (mut released, mut begun, mut has_refused) = (0_u32, Vec::new(), false);
            for comes in comes {
                if comes {
                    let is_kept = due.push(Duration::from_secs(released.into()), released);
                    has_refused |= !is_kept;
                    prop_assert_eq!(due.refused() > 0, has_refused, "it is the end of it");
                    released += 1;
                } else {
                    begun.extend(due.pop().map(|(_, request)| request));
                }
                prop_assert!(due.len() <= most);
                let all = begun.len() + due.len() + usize::try_from(due.refused()).unwrap();
                prop_assert_eq!(all, released as usize);
            }
            begun.extend(due.take().into_iter().map(|(_, request)| request));
            let first: Vec<u32> = (0..u32::try_from(begun.len()).unwrap()).collect();
            prop_assert_eq!(begun, first, "those that were given up came last");
        }
    }
}
