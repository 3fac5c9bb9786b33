//! Lifetime of inodes: while a name, an open file, or a name that a crash may restore refers to them.

use super::inode::{Inode, InodeBody};
use super::{Model, Result};
use crate::namespace::Ino;

/// Unlinks between two sweeps for unreferenced inodes.
pub(super) const SWEEP_INTERVAL_UNLINKS: u64 = 512;
/// Pending bytes of an unnamed file that count as one further unlink.
const BYTES_PER_UNLINK: u64 = 64 << 10;

impl Model {
    /// Keeps an inode alive until [`close`](Self::close), even without a name.
    pub fn open(&mut self, ino: Ino) -> Result<()> {
        self.get_mut(ino)?.opens += 1;
        Ok(())
    }

    /// Ends one [`open`](Self::open). An inode from before a crash no longer exists.
    pub fn close(&mut self, ino: Ino) -> Result<()> {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens = inode.opens.saturating_sub(1);
            self.release_if_unreferenced(ino);
        }
        Ok(())
    }

    /// Inodes in memory.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    /// Removes one name from an inode.
    pub(super) fn drop_link(&mut self, ino: Ino) -> Result<()> {
        self.get_mut(ino)?.links -= 1;
        self.release_if_unreferenced(ino);
        self.unlinks_since_sweep += 1;
        if self.unlinks_since_sweep >= SWEEP_INTERVAL_UNLINKS {
            self.sweep();
        }
        Ok(())
    }

    /// Frees the volatile bytes of a file that has no name and is not open. Those of its pending changes stay until a
    /// sweep finds that its name cannot return.
    fn release_if_unreferenced(&mut self, ino: Ino) {
        if let Some(Inode { body: InodeBody::File(file), links: 0, opens: 0, .. }) = self.inodes.get_mut(&ino)
        {
            self.allocated -= file.content().allocated();
            file.release_volatile();
            self.unlinks_since_sweep += file.pending_bytes() / BYTES_PER_UNLINK;
        }
    }

    /// Removes inodes that no name, pending operation or open file refers to; their blocks are freed with their
    /// contents.
    pub(super) fn sweep(&mut self) {
        self.unlinks_since_sweep = 0;
        let mut live = self.names.referenced_inodes();
        live.extend(self.inodes.iter().filter(|(_, inode)| inode.opens > 0).map(|(&ino, _)| ino));
        let mut unreferenced: Vec<Ino> =
            self.inodes.keys().filter(|ino| !live.contains(ino)).copied().collect();
        // A fixed order, so that a seed gives the same crash in every run.
        unreferenced.sort_unstable();
        for ino in unreferenced {
            if let Some(Inode { body: InodeBody::File(file), file_kind: named_as, .. }) =
                self.inodes.remove(&ino)
            {
                self.graveyard.retain(&named_as, file.latest());
            }
        }
        self.names.retain(&live);
    }
}
