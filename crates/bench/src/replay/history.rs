//! The versions that a read of a key may return while requests overlap (a register with concurrent writes). A
//! response is correct if its version's write started before the response, and no later write had certainly replaced
//! that version before the read started. Times are ticks of a counter shared by all keys.

/// The state of a key after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyVersion {
    /// The number that determines the contents; 0 is the initial state.
    pub number: u32,
    /// Size in bytes; `None` if the object was deleted.
    pub size: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct WriteRecord {
    version: KeyVersion,
    started: u64,
    /// When it was acknowledged. A failed write stays `None`: it may have taken effect, or may do so later.
    acknowledged: Option<u64>,
}

/// The writes of one key whose versions a read may still return.
#[derive(Debug, Clone)]
pub struct KeyHistory {
    writes: Vec<WriteRecord>,
    /// Start times of the reads in flight.
    reads: Vec<u64>,
    last_number: u32,
}

impl KeyHistory {
    /// The history of a key with an initial object of `size` bytes, or without one.
    #[must_use]
    pub fn new(size: Option<u64>) -> Self {
        let version = KeyVersion { number: 0, size };
        Self {
            writes: vec![WriteRecord { version, started: 0, acknowledged: Some(0) }],
            reads: Vec::new(),
            last_number: 0,
        }
    }

    /// Records the start of a write. Call it before anything is sent.
    pub fn begin_write(&mut self, size: Option<u64>, now: u64) -> KeyVersion {
        self.last_number += 1;
        let version = KeyVersion { number: self.last_number, size };
        self.writes.push(WriteRecord { version, started: now, acknowledged: None });
        version
    }

    /// Records that a write was acknowledged. `needed` is the earliest start time that another check may still ask
    /// about.
    pub fn end_write(&mut self, version: KeyVersion, now: u64, needed: u64) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.version == version) {
            write.acknowledged = Some(now);
        }
        self.prune(needed);
    }

    /// Records the start of a read. Call it before anything is sent.
    pub fn begin_read(&mut self, now: u64) {
        self.reads.push(now);
    }

    /// Ends a read that started at `read_start`, after its response was checked.
    pub fn end_read(&mut self, read_start: u64, needed: u64) {
        if let Some(index) = self.reads.iter().position(|read| *read == read_start) {
            self.reads.swap_remove(index);
        }
        self.prune(needed);
    }

    /// Marks the initial object as created after a failed attempt, which may still take effect later.
    pub fn mark_creation_ambiguous(&mut self) {
        self.writes
            .iter_mut()
            .filter(|write| write.version.number == 0)
            .for_each(|write| write.acknowledged = None);
    }

    /// The versions that a read from `read_start` to `read_end` may return.
    pub fn possible_versions(&self, read_start: u64, read_end: u64) -> impl Iterator<Item = KeyVersion> + '_ {
        let replaced = self.replacement_start(read_start);
        let is_possible = move |write: &&WriteRecord| {
            write.started < read_end && write.acknowledged.is_none_or(|ended| ended >= replaced)
        };
        self.writes.iter().filter(is_possible).map(|write| write.version)
    }

    /// The latest start of a write that was acknowledged before `time`. Writes acknowledged before that start had
    /// been replaced by `time`.
    fn replacement_start(&self, time: u64) -> u64 {
        let before = self.writes.iter().filter(|write| write.acknowledged.is_some_and(|ended| ended < time));
        before.map(|write| write.started).max().unwrap_or(0)
    }

    fn prune(&mut self, needed: u64) {
        let needed = self.reads.iter().copied().min().unwrap_or(u64::MAX).min(needed);
        let replaced = self.replacement_start(needed);
        self.writes.retain(|write| write.acknowledged.is_none_or(|ended| ended >= replaced));
        // There may be millions of keys, few of which are in use at once.
        if self.reads.is_empty() {
            self.reads.shrink_to_fit();
            self.writes.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(history: &KeyHistory, read_start: u64) -> Vec<Option<u64>> {
        history.possible_versions(read_start, u64::MAX).map(|version| version.size).collect()
    }

    #[test]
    fn possible_excludes_versions_replaced_before_the_read() {
        let mut history = KeyHistory::new(None);
        history.begin_read(1);
        let first = history.begin_write(Some(10), 2);
        assert_eq!(sizes(&history, 1), [None, Some(10)], "the write is in flight");
        history.end_write(first, 3, 4);
        assert_eq!(sizes(&history, 1), [None, Some(10)], "the read started before it");
        assert_eq!(sizes(&history, 4), [Some(10)]);
        history.end_read(1, 5);
        let removed = history.begin_write(None, 6);
        let failed = history.begin_write(Some(7), 7);
        history.end_write(removed, 8, 9);
        assert_eq!(sizes(&history, 9), [None, Some(7)], "the failed write may have taken effect");
        let last = history.begin_write(Some(8), 10);
        history.end_write(last, 11, 12);
        assert_eq!(sizes(&history, 12), [Some(7), Some(8)], "or may take effect later");
        assert_eq!((failed.number, history.writes.len()), (3, 2), "others are forgotten");
    }

    #[test]
    fn possible_excludes_writes_started_after_the_response() {
        let mut history = KeyHistory::new(Some(1));
        history.begin_read(1);
        history.begin_write(None, 3);
        let sizes = |read_end| -> Vec<Option<u64>> {
            history.possible_versions(1, read_end).map(|version| version.size).collect()
        };
        assert_eq!((sizes(2), sizes(4)), (vec![Some(1)], vec![Some(1), None]));
    }

    #[test]
    fn failed_creation_may_take_effect_after_a_delete() {
        let mut history = KeyHistory::new(Some(1));
        history.mark_creation_ambiguous();
        assert_eq!(sizes(&history, 1), [Some(1)], "one of the attempts succeeded");
        let removed = history.begin_write(None, 2);
        history.end_write(removed, 3, 4);
        assert_eq!(sizes(&history, 4), [Some(1), None]);
    }

    #[test]
    fn either_of_two_concurrent_writes_may_be_the_last() {
        let mut history = KeyHistory::new(Some(1));
        let (a, b) = (history.begin_write(Some(2), 1), history.begin_write(Some(3), 2));
        history.end_write(b, 3, 4);
        history.end_write(a, 4, 5);
        assert_eq!(sizes(&history, 5), [Some(2), Some(3)]);
    }

    proptest! {
        /// The possible versions match the definition, although old writes are forgotten.
        #[test]
        fn possible_matches_the_definition(steps in proptest::collection::vec((0_u8..4, 0_usize..8), 1..60)) {
            let mut history = KeyHistory::new(Some(0));
            let mut all = vec![WriteRecord { version: KeyVersion { number: 0, size: Some(0) }, started: 0, acknowledged: Some(0) }];
            let (mut writing, mut reading, mut now): (Vec<KeyVersion>, Vec<u64>, u64) = (vec![], vec![], 0);
            for (step, which) in steps {
                now += 1;
                match step {
                    0 => {
                        let version = history.begin_write((which > 2).then_some(now), now);
                        all.push(WriteRecord { version, started: now, acknowledged: None });
                        writing.push(version);
                    }
                    1 if !writing.is_empty() => {
                        let version = writing.remove(which % writing.len());
                        history.end_write(version, now, now + 1);
                        all.iter_mut().find(|write| write.version == version).unwrap().acknowledged = Some(now);
                    }
                    2 => {
                        history.begin_read(now);
                        reading.push(now);
                    }
                    3 if !reading.is_empty() => {
                        let read_start = reading.remove(which % reading.len());
                        let mut found: Vec<u32> = history.possible_versions(read_start, now).map(|version| version.number).collect();
                        found.sort_unstable();
                        let is_replaced = |write: &WriteRecord| all.iter().any(|later| {
                            write.acknowledged.is_some_and(|ended| ended < later.started)
                                && later.acknowledged.is_some_and(|ended| ended < read_start)
                        });
                        let expected: Vec<u32> = all.iter()
                            .filter(|write| !is_replaced(write)).map(|write| write.version.number).collect();
                        prop_assert_eq!(found, expected);
                        history.end_read(read_start, now);
                    }
                    _ => {}
                }
            }
        }
    }
}
