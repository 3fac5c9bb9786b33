//! How long an inode lives: while a name, an opener, or a name that a crash may bring back leads to it.

use super::inode::{Body, Inode};
use super::{Model, Result};
use crate::namespace::Ino;

/// Unlinks between two sweeps for inodes that nothing refers to.
pub(super) const SWEEP_EVERY: u64 = 512;
/// Bytes that a file without a name may hold to count as one more unlink.
const HELD_BYTES: u64 = 64 << 10;

impl Model {
    /// Keeps an inode alive until [`close`](Self::close), also without a name.
    pub fn open(&mut self, ino: Ino) -> Result<()> {
        self.get_mut(ino)?.opens += 1;
        Ok(())
    }

    /// Ends one [`open`](Self::open); an inode from before a crash is gone already.
    pub fn close(&mut self, ino: Ino) -> Result<()> {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens = inode.opens.saturating_sub(1);
            self.release_if_unseen(ino);
        }
        Ok(())
    }

    /// Inodes in memory.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    /// Takes one name from an inode.
    pub(super) fn drop_link(&mut self, ino: Ino) -> Result<()> {
        self.get_mut(ino)?.links -= 1;
        self.release_if_unseen(ino);
        self.unlinks_since_sweep += 1;
        if self.unlinks_since_sweep >= SWEEP_EVERY {
            self.sweep();
        }
        Ok(())
    }

    /// Frees the volatile bytes of a file without name and opener. Those of its pending changes stay
    /// until a sweep finds that its name cannot come back.
    fn release_if_unseen(&mut self, ino: Ino) {
        if let Some(Inode { body: Body::File(file), links: 0, opens: 0, .. }) = self.inodes.get_mut(&ino) {
            self.allocated -= file.content().allocated();
            file.release_volatile();
            self.unlinks_since_sweep += file.pending_bytes() / HELD_BYTES;
        }
    }

    /// Forgets inodes that no name, pending operation or opener refers to; the disk takes their blocks
    /// back as they are.
    pub(super) fn sweep(&mut self) {
        self.unlinks_since_sweep = 0;
        let mut live = self.names.named();
        live.extend(self.inodes.iter().filter(|(_, inode)| inode.opens > 0).map(|(&ino, _)| ino));
        let mut gone: Vec<Ino> = self.inodes.keys().filter(|ino| !live.contains(ino)).copied().collect();
        // The same order in every run, so that a seed gives the same crash.
        gone.sort_unstable();
        for ino in gone {
            if let Some(Inode { body: Body::File(file), named_as, .. }) = self.inodes.remove(&ino) {
                self.graveyard.bury(&named_as, file.latest());
            }
        }
        self.names.retain(&live);
    }
}
