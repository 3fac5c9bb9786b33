//! Who may begin, where requests are made as fast as possible: those of one key do not overtake each other. Reads between
//! two changes run beside each other; a change waits for all before it, and all behind it wait for it. Listings wait for
//! nobody.

use std::collections::{HashMap, VecDeque};

/// What waits and what is under way at each key, of requests that are called `T`.
#[derive(Debug)]
pub struct Order<T> {
    keys: HashMap<usize, Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    /// Under way; a change is alone.
    reads: usize,
    is_changing: bool,
    waiting: VecDeque<(bool, T)>,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { keys: HashMap::new() }
    }
}

impl<T> Line<T> {
    const fn has_room(&self, changes: bool) -> bool {
        !self.is_changing && (self.reads == 0 || !changes)
    }

    const fn begin(&mut self, changes: bool) {
        if changes {
            self.is_changing = true;
        } else {
            self.reads += 1;
        }
    }
}

impl<T> Order<T> {
    /// The next request is about this object, and may change it. It comes back where it may begin at once.
    pub fn come(&mut self, object: usize, changes: bool, request: T) -> Option<T> {
        let line = self.keys.entry(object).or_insert_with(|| Line {
            reads: 0,
            is_changing: false,
            waiting: VecDeque::new(),
        });
        if line.waiting.is_empty() && line.has_room(changes) {
            line.begin(changes);
            return Some(request);
        }
        line.waiting.push_back((changes, request));
        None
    }

    /// One about this object has ended. Those that may begin now.
    pub fn end(&mut self, object: usize, changed: bool) -> Vec<T> {
        let Some(line) = self.keys.get_mut(&object) else { return Vec::new() };
        if changed {
            line.is_changing = false;
        } else {
            line.reads = line.reads.saturating_sub(1);
        }
        let mut begin = Vec::new();
        while let Some((changes, request)) = line
            .waiting
            .front()
            .map(|(changes, _)| *changes)
            .filter(|changes| line.has_room(*changes))
            .and_then(|_| line.waiting.pop_front())
        {
            line.begin(changes);
            begin.push(request);
        }
        if line.reads == 0 && !line.is_changing && line.waiting.is_empty() {
            self.keys.remove(&object);
        }
        begin
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_run_beside_each_other_and_changes_alone() {
        let mut order = Order::default();
        assert_eq!(order.come(1, false, "a"), Some("a"));
        assert_eq!(order.come(1, false, "b"), Some("b"));
        assert_eq!(order.come(1, true, "c"), None);
        assert_eq!(order.come(1, false, "d"), None, "it does not overtake");
        assert_eq!(order.come(2, true, "other"), Some("other"));
        assert_eq!(order.end(1, false), [""; 0]);
        assert_eq!(order.end(1, false), ["c"]);
        assert_eq!(order.come(1, false, "e"), None);
        assert_eq!(order.end(1, true), ["d", "e"]);
        assert_eq!(
            (order.end(1, false).len(), order.end(1, false).len(), order.end(2, true).len()),
            (0, 0, 0)
        );
        assert!(order.keys.is_empty());
    }

    proptest! {
        /// Everyone begins once, in the order of their key.
        #[test]
        fn nobody_overtakes_and_nobody_is_forgotten(
            requests in proptest::collection::vec((0_usize..3, any::<bool>()), 0..40),
            picks in proptest::collection::vec(any::<usize>(), 0..80),
        ) {
            let (mut order, mut running, mut begun) = (Order::default(), Vec::new(), Vec::new());
            let (mut coming, mut picks) = (requests.iter().enumerate(), picks.into_iter());
            loop {
                let pick = picks.next().unwrap_or(0);
                if pick % 2 == 1 && !running.is_empty() {
                    let number: usize = running.remove(pick % running.len());
                    let (object, changes) = requests[number];
                    let next = order.end(object, changes);
                    running.extend(&next);
                    begun.extend(next);
                } else if let Some((number, (object, changes))) = coming.next() {
                    let next = order.come(*object, *changes, number);
                    running.extend(next);
                    begun.extend(next);
                } else if let Some(number) = running.pop() {
                    let (object, changes) = requests[number];
                    let next = order.end(object, changes);
                    running.extend(&next);
                    begun.extend(next);
                } else {
                    break;
                }
                for number in &running {
                    let (object, changes) = requests[*number];
                    let beside = running.iter().filter(|other| requests[**other].0 == object).count();
                    prop_assert!(!changes || beside == 1);
                }
            }
            prop_assert_eq!(begun.len(), requests.len());
            for object in 0..3 {
                prop_assert!(begun.iter().filter(|number| requests[**number].0 == object).is_sorted());
            }
            prop_assert!(order.keys.is_empty());
        }
    }
}
