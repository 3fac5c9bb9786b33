//! The power cut: the disk's state becomes the only one.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use rustix::io::Errno;

use super::inode::{Inode, InodeBody};
use super::report::{CrashReport, FileReport};
use super::{Model, Result};
use crate::file::FileState;
use crate::mode::CrashMode;
use crate::namespace::{Ino, Namespace, ROOT};
use crate::rng::Rng;
use crate::stale_contents::{self, StaleContents};

impl Model {
    /// Cuts the power: by `seed` and `mode`, some pending changes reach the disk and the rest is lost. The disk's
    /// state becomes both states, under new inode numbers; every call returns EIO until [`revive`](Self::revive).
    pub fn crash(&mut self, seed: u64, mode: CrashMode) -> CrashReport {
        let mut rng = Rng::new(seed);
        // Blocks of permanently removed files may belong to others.
        self.sweep();
        let mut report = CrashReport { entries: self.names.crash(mode, &mut rng), ..CrashReport::default() };
        let before = std::mem::take(self);
        self.next_ino = before.next_ino;
        self.now = before.now;
        self.limit = before.limit;
        self.counters = before.counters;
        self.graveyard = before.graveyard.clone();
        self.down = true;
        self.epoch = before.epoch + 1;
        let seen: Vec<Ino> = before.seen_files();
        let mut rebuild = CrashRebuild {
            model: self,
            names: before.names,
            inodes: before.inodes,
            graveyard: before.graveyard,
            moved: HashMap::new(),
            mode,
            rng,
        };
        rebuild.root();
        rebuild.directory(ROOT, ROOT, Path::new(""), &mut report);
        rebuild.retain_unnamed();
        let moved = rebuild.moved;
        report.vanished_files = seen.iter().filter(|ino| !moved.contains_key(ino)).count() as u64;
        report
    }

    /// EIO after a crash.
    pub fn check_power(&self) -> Result<()> {
        if self.down { Err(Errno::IO) } else { Ok(()) }
    }

    /// Restores the power: requests are served again.
    pub fn revive(&mut self) {
        self.down = false;
    }

    /// Files that have a volatile name.
    fn seen_files(&self) -> Vec<Ino> {
        let files = self
            .inodes
            .iter()
            .filter(|(_, inode)| matches!(inode.body, InodeBody::File(_)) && inode.links > 0);
        files.map(|(&ino, _)| ino).collect()
    }
}

/// Builds the state after a crash from the one before, in the order of names, so that a seed always gives the same
/// result.
struct CrashRebuild<'a> {
    model: &'a mut Model,
    names: Namespace,
    inodes: HashMap<Ino, Inode>,
    /// Contents of blocks that were free before the crash; those that the crash frees do not count yet.
    graveyard: StaleContents,
    /// Old inode numbers of files and links, with the new ones.
    moved: HashMap<Ino, Ino>,
    mode: CrashMode,
    rng: Rng,
}

impl CrashRebuild<'_> {
    fn root(&mut self) {
        if let Some(mut root) = self.inodes.remove(&ROOT) {
            root.opens = 0;
            self.model.inodes.insert(ROOT, root);
        }
    }

    fn directory(&mut self, old: Ino, new: Ino, path: &Path, report: &mut CrashReport) {
        let entries = self.names.durable_entries(old).cloned().unwrap_or_default();
        for (name, ino) in entries {
            if let Some(&new_ino) = self.moved.get(&ino) {
                self.model.names.add_durable(new, &name, new_ino, false);
                if let Some(inode) = self.model.inodes.get_mut(&new_ino) {
                    inode.links += 1;
                }
                continue;
            }
            // Only files can have several names, so each remaining inode is visited once.
            if let Some(inode) = self.inodes.remove(&ino) {
                self.entry(new, &name, ino, inode, &path.join(&name), report);
            }
        }
    }

    fn entry(
        &mut self,
        dir: Ino,
        name: &OsStr,
        old: Ino,
        mut inode: Inode,
        path: &Path,
        report: &mut CrashReport,
    ) {
        let new = self.model.next_ino;
        self.model.next_ino += 1;
        inode.links = 1;
        inode.opens = 0;
        inode.file_kind = stale_contents::file_kind(name);
        let directory = matches!(inode.body, InodeBody::Directory { .. });
        inode.body = match inode.body {
            InodeBody::File(file) => InodeBody::File(self.file(file, &inode.file_kind, path, report)),
            InodeBody::Directory { .. } => InodeBody::Directory { parent: dir },
            InodeBody::Symlink(target) => InodeBody::Symlink(target),
        };
        self.model.names.add_durable(dir, name, new, directory);
        self.model.inodes.insert(new, inode);
        if directory {
            self.directory(old, new, path, report);
        } else {
            self.moved.insert(old, new);
        }
    }

    fn file(&mut self, file: FileState, kind: &OsStr, path: &Path, report: &mut CrashReport) -> FileState {
        let seen_bytes = file.content().len();
        let changed = !file.is_durable();
        if changed && self.mode != CrashMode::KeepAll {
            // Bytes may be written to blocks that no file owns in the end.
            self.model.graveyard.retain(kind, file.latest());
        }
        let (content, fates) = file.crash(self.mode, self.graveyard.contents(kind), &mut self.rng);
        self.model.allocated += content.allocated();
        if changed {
            report.writes.add(&fates);
            let left_bytes = content.len();
            report.files.push(FileReport {
                path: path.to_owned(),
                fates,
                volatile_bytes: seen_bytes,
                remaining_bytes: left_bytes,
            });
        }
        FileState::durable(content)
    }

    /// Retains the contents of files that the crash left without a name.
    fn retain_unnamed(&mut self) {
        let mut rest: Vec<(Ino, Inode)> = self.inodes.drain().collect();
        rest.sort_unstable_by_key(|(ino, _)| *ino);
        for (_, inode) in rest {
            if let InodeBody::File(file) = inode.body {
                self.model.graveyard.retain(&inode.file_kind, file.latest());
            }
        }
    }
}

#[cfg(test)]
mod tests;
