//! Open directories: a listing is read once and returned in pieces, so that concurrent changes neither repeat an
//! entry nor hide one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::model::{InodeKind, Model};
use crate::namespace::Ino;

/// The entries of a directory, including `.` and `..`.
pub type Listing = Arc<Vec<(OsString, Ino, InodeKind)>>;

/// The listing of each open directory, by handle.
pub struct Listings {
    by_handle: Mutex<HashMap<u64, Listing>>,
    next_handle: AtomicU64,
}

impl Listings {
    pub fn new() -> Self {
        Self { by_handle: Mutex::default(), next_handle: AtomicU64::new(1) }
    }

    /// A handle for a newly opened directory.
    pub fn open(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// The listing to continue at `offset`; read again at offset 0.
    pub fn read(&self, model: &Model, dir: Ino, handle: u64, offset: u64) -> Result<Listing, Errno> {
        if offset > 0
            && let Some(listing) = self.by_handle.lock().get(&handle)
        {
            return Ok(listing.clone());
        }
        let mut entries =
            vec![(".".into(), dir, InodeKind::Directory), ("..".into(), dir, InodeKind::Directory)];
        entries.extend(model.list(dir)?);
        let listing = Arc::new(entries);
        self.by_handle.lock().insert(handle, listing.clone());
        Ok(listing)
    }

    /// Forgets a listing.
    pub fn close(&self, handle: u64) {
        self.by_handle.lock().remove(&handle);
    }
}
