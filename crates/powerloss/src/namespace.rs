//! Directories in their two states, and the pending entry operations between them.
//!
//! An operation (create, unlink, link, mkdir, rmdir, rename) changes the volatile entries immediately and becomes
//! durable by a sync of the directory that owns it; a rename belongs to its destination and is atomic. Rules that
//! ensure that every durable state is one that a real disk could hold:
//! - a slot (directory, name) never skips an operation: a durable operation implies the earlier ones on its slots;
//! - removing a directory implies the earlier operations inside it;
//! - a rename across directories waits until its destination is reachable from the durable root, so that a missing
//!   sync further up leaves the old name rather than none.
//!
//! Stricter than ext4: a sync of a file, or of another directory, makes no entry durable.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};

use crate::mode::CrashMode;
use crate::rng::Rng;

/// An inode number; never reused.
pub type Ino = u64;

/// The root directory.
pub const ROOT: Ino = 1;

/// The entries of a directory.
pub type Entries = BTreeMap<OsString, Ino>;

type Slot = (Ino, OsString);

/// One entry operation that is not durable yet.
#[derive(Debug, Clone)]
struct EntryOperation {
    sequence: u64,
    /// The directory whose sync makes it durable.
    owner: Ino,
    /// Each slot with its value afterwards.
    changes: Vec<(Slot, Option<Ino>)>,
    removed_directory: Option<Ino>,
    /// True if the owner was synced, or a later operation depends on it; it waits only for its place.
    synced: bool,
}

impl EntryOperation {
    fn crosses_directories(&self) -> bool {
        self.changes.iter().any(|((dir, _), _)| *dir != self.changes[0].0.0)
    }
}

/// Counts of the fates of pending entry operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryFates {
    /// Operations on disk.
    pub kept: u64,
    /// Operations lost.
    pub dropped: u64,
}

/// All directories, volatile and durable.
#[derive(Debug, Clone)]
pub struct Namespace {
    volatile: HashMap<Ino, Entries>,
    durable: HashMap<Ino, Entries>,
    pending: Vec<EntryOperation>,
    issued: u64,
}

impl Namespace {
    /// Only a root, without entries.
    pub fn new() -> Self {
        let root = HashMap::from([(ROOT, Entries::new())]);
        Self { volatile: root.clone(), durable: root, pending: Vec::new(), issued: 0 }
    }

    /// The volatile entries of a directory; `None` if `dir` is not one.
    pub fn entries(&self, dir: Ino) -> Option<&Entries> {
        self.volatile.get(&dir)
    }

    /// The durable entries of a directory.
    pub fn durable_entries(&self, dir: Ino) -> Option<&Entries> {
        self.durable.get(&dir)
    }

    /// Number of unsynced operations.
    pub fn pending_operations(&self) -> usize {
        self.pending.len()
    }

    /// Adds a durable entry (of a loaded tree, or of the state after a crash).
    pub fn add_durable(&mut self, dir: Ino, name: &OsStr, ino: Ino, directory: bool) {
        for side in [&mut self.volatile, &mut self.durable] {
            side.entry(dir).or_default().insert(name.to_owned(), ino);
            if directory {
                side.entry(ino).or_default();
            }
        }
    }

    /// Adds a new entry: a create, link or, with `directory`, a mkdir.
    pub fn add(&mut self, dir: Ino, name: &OsStr, ino: Ino, directory: bool) {
        if directory {
            self.volatile.insert(ino, Entries::new());
            self.durable.insert(ino, Entries::new());
        }
        self.record(dir, vec![((dir, name.to_owned()), Some(ino))], None);
    }

    /// Removes an entry; `directory` is the directory removed with it, if it is one.
    pub fn remove(&mut self, dir: Ino, name: &OsStr, directory: Option<Ino>) {
        self.record(dir, vec![((dir, name.to_owned()), None)], directory);
    }

    /// Moves an entry over another; `replaced` is the empty directory that it replaces, if any.
    pub fn rename(&mut self, from: (Ino, &OsStr), to: (Ino, &OsStr), ino: Ino, replaced: Option<Ino>) {
        let changes = vec![((from.0, from.1.to_owned()), None), ((to.0, to.1.to_owned()), Some(ino))];
        self.record(to.0, changes, replaced);
    }

    /// Swaps two entries.
    pub fn exchange(&mut self, a: (Ino, &OsStr, Ino), b: (Ino, &OsStr, Ino)) {
        let changes = vec![((a.0, a.1.to_owned()), Some(b.2)), ((b.0, b.1.to_owned()), Some(a.2))];
        self.record(b.0, changes, None);
    }

    /// The number of operations that a sync starting now must cover.
    pub fn mark(&self) -> u64 {
        self.issued
    }

    /// Makes the operations of `dir` up to `mark` durable.
    pub fn sync(&mut self, dir: Ino, mark: u64) {
        for operation in &mut self.pending {
            operation.synced |= operation.owner == dir && operation.sequence < mark;
        }
        self.apply_synced_operations();
    }

    /// Cuts the power: the durable entries become the disk's state.
    pub fn crash(&mut self, mode: CrashMode, rng: &mut Rng) -> EntryFates {
        let total = self.pending.len() as u64;
        match mode {
            CrashMode::DropAll => {}
            CrashMode::KeepAll => self.pending.iter_mut().for_each(|operation| operation.synced = true),
            CrashMode::Random if rng.chance(50) => {
                let stop = rng.below(total + 1) as usize;
                self.pending[..stop].iter_mut().for_each(|operation| operation.synced = true);
            }
            CrashMode::Random => {
                let keep = rng.below(101);
                self.pending.iter_mut().for_each(|operation| operation.synced |= rng.chance(keep));
            }
        }
        self.apply_synced_operations();
        let dropped = self.pending.len() as u64;
        self.pending.clear();
        EntryFates { kept: total - dropped, dropped }
    }

    /// Every inode that has a name on either side or in a pending operation.
    pub fn referenced_inodes(&self) -> HashSet<Ino> {
        let mut named = HashSet::from([ROOT]);
        let mut open: Vec<Ino> = vec![ROOT];
        let waiting = self.pending.iter().flat_map(|operation| {
            let slots = operation.changes.iter().flat_map(|((dir, _), target)| [Some(*dir), *target]);
            slots.chain([operation.removed_directory]).flatten()
        });
        for ino in waiting {
            if named.insert(ino) {
                open.push(ino);
            }
        }
        while let Some(dir) = open.pop() {
            for entries in [self.volatile.get(&dir), self.durable.get(&dir)].into_iter().flatten() {
                open.extend(entries.values().filter(|&&ino| named.insert(ino)));
            }
        }
        named
    }

    /// Forgets directories that are not in `live`.
    pub fn retain(&mut self, live: &HashSet<Ino>) {
        self.volatile.retain(|dir, _| live.contains(dir));
        self.durable.retain(|dir, _| live.contains(dir));
    }

    fn record(&mut self, owner: Ino, changes: Vec<(Slot, Option<Ino>)>, removed_directory: Option<Ino>) {
        write_changes(&mut self.volatile, &changes);
        if let Some(dir) = removed_directory {
            self.volatile.remove(&dir);
        }
        let operation =
            EntryOperation { sequence: self.issued, owner, changes, removed_directory, synced: false };
        self.issued += 1;
        self.pending.push(operation);
    }

    /// Applies the synced operations, with those that they depend on, to the durable side.
    fn apply_synced_operations(&mut self) {
        self.mark_dependencies();
        while self.apply_synced() {}
    }

    /// Marks the earlier operations that synced ones depend on.
    fn mark_dependencies(&mut self) {
        let mut slots: BTreeSet<&Slot> = BTreeSet::new();
        let mut directories: HashSet<Ino> = HashSet::new();
        for operation in self.pending.iter_mut().rev() {
            let needed =
                |(slot, _): &(Slot, Option<Ino>)| slots.contains(slot) || directories.contains(&slot.0);
            if operation.synced || operation.changes.iter().any(needed) {
                operation.synced = true;
                slots.extend(operation.changes.iter().map(|(slot, _)| slot));
                directories.extend(operation.removed_directory);
            }
        }
    }

    /// One pass in order; returns true if another pass may make progress.
    fn apply_synced(&mut self) -> bool {
        let mut blocked_slots: HashSet<Slot> = HashSet::new();
        let mut blocked_directories: HashSet<Ino> = HashSet::new();
        let mut progress = false;
        let mut waiting = false;
        for operation in std::mem::take(&mut self.pending) {
            let free = operation.synced
                && !operation.changes.iter().any(|(slot, _)| blocked_slots.contains(slot))
                && !operation.removed_directory.is_some_and(|dir| blocked_directories.contains(&dir))
                && (!operation.crosses_directories() || self.reaches_root(&operation));
            if free {
                write_changes(&mut self.durable, &operation.changes);
                progress = true;
            } else {
                waiting |= operation.synced;
                for ((dir, name), _) in &operation.changes {
                    blocked_slots.insert((*dir, name.clone()));
                    blocked_directories.insert(*dir);
                }
                self.pending.push(operation);
            }
        }
        progress && waiting
    }

    /// Returns true if a rename across directories leaves everything that it moves reachable from the durable root.
    fn reaches_root(&self, operation: &EntryOperation) -> bool {
        let moved: HashSet<Ino> = operation.changes.iter().filter_map(|(_, target)| *target).collect();
        let mut seen = HashSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(dir) = open.pop() {
            for &ino in self.durable[&dir].values() {
                if self.durable.contains_key(&ino) && !moved.contains(&ino) && seen.insert(ino) {
                    open.push(ino);
                }
            }
        }
        operation.changes.iter().all(|((dir, _), target)| target.is_none() || seen.contains(dir))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

fn write_changes(side: &mut HashMap<Ino, Entries>, changes: &[(Slot, Option<Ino>)]) {
    for ((dir, name), target) in changes {
        let entries = side.entry(*dir).or_default();
        match target {
            Some(ino) => entries.insert(name.clone(), *ino),
            None => entries.remove(name),
        };
    }
}

#[cfg(test)]
mod tests;
