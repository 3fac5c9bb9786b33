//! Doubly linked lists over dense numbers, in the order of use.

/// Items below a fixed number, each in at most one of several lists.
#[derive(Debug)]
pub(super) struct RecencyLists {
    ends: Vec<ListEnds>,
    links: Vec<Links>,
}

/// The ends of a list.
#[derive(Debug, Clone, Copy)]
struct ListEnds {
    oldest: u32,
    newest: u32,
}

#[derive(Debug, Clone, Copy)]
struct Links {
    older: u32,
    newer: u32,
}

const NONE: u32 = u32::MAX;

impl RecencyLists {
    pub fn new(lists: usize, items: usize) -> Self {
        Self {
            ends: vec![ListEnds { oldest: NONE, newest: NONE }; lists],
            links: vec![Links { older: NONE, newer: NONE }; items],
        }
    }

    /// The least recently pushed item.
    pub fn oldest(&self, list: usize) -> Option<usize> {
        let oldest = self.ends[list].oldest;
        (oldest != NONE).then_some(oldest as usize)
    }

    /// Adds an item that is in no list.
    pub fn push(&mut self, list: usize, item: usize) {
        let newest = std::mem::replace(&mut self.ends[list].newest, item as u32);
        self.links[item] = Links { older: newest, newer: NONE };
        match newest {
            NONE => self.ends[list].oldest = item as u32,
            newest => self.links[newest as usize].newer = item as u32,
        }
    }

    /// Removes an item from its list.
    pub fn remove(&mut self, list: usize, item: usize) {
        let Links { older, newer } = self.links[item];
        match older {
            NONE => self.ends[list].oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.ends[list].newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_in_order_unless_removed() {
        let mut lists = RecencyLists::new(2, 5);
        (0..5).for_each(|item| lists.push(item % 2, item));
        lists.remove(0, 2);
        lists.push(1, 2);
        let drain = |lists: &mut RecencyLists, list| {
            let mut order = Vec::new();
            while let Some(item) = lists.oldest(list) {
                lists.remove(list, item);
                order.push(item);
            }
            order
        };
        assert_eq!((drain(&mut lists, 0), drain(&mut lists, 1)), (vec![0, 4], vec![1, 3, 2]));
    }
}
