//! The state shared by the FUSE threads and the test's handle: the model, and the sync delay.
//!
//! One lock guards the model; no request holds it while it waits or copies to the kernel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::model::{Model, SyncMark};
use crate::namespace::Ino;

/// The model behind its lock.
pub struct SharedModel {
    model: Mutex<Model>,
    sync_delay_nanos: AtomicU64,
}

impl SharedModel {
    pub fn new(model: Model) -> Self {
        Self { model: Mutex::new(model), sync_delay_nanos: AtomicU64::new(0) }
    }

    /// The model, even while the power is off.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock()
    }

    pub fn set_sync_delay(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.sync_delay_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Runs `stats` on the model at the current time; EIO while the power is off.
    pub fn with<T>(&self, work: impl FnOnce(&mut Model) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut model = self.model.lock();
        model.check_power()?;
        model.set_time(SystemTime::now());
        work(&mut model)
    }

    /// Runs a sync, which covers everything written before it started and ends after the delay. It fails if the power
    /// was cut in between, even if it is back.
    pub fn sync(
        &self,
        ino: Ino,
        commit: impl FnOnce(&mut Model, SyncMark) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mark = self.with(|model| model.mark(ino))?;
        let delay = self.sync_delay_nanos.load(Ordering::Relaxed);
        if delay > 0 {
            std::thread::sleep(Duration::from_nanos(delay));
        }
        self.with(|model| commit(model, mark))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::mode::CrashMode;
    use crate::model::Owner;
    use crate::namespace::ROOT;

    #[test]
    fn sync_spanning_a_power_cut_fails() {
        let shared = SharedModel::new(Model::new());
        let name = OsStr::new("new");
        let ended = shared.sync(ROOT, |model, mark| {
            // Changes during the delay.
            model.crash(0, CrashMode::DropAll);
            model.revive();
            model.create(ROOT, name, Owner::default())?;
            model.sync_directory(ROOT, mark)
        });
        assert_eq!(ended, Err(Errno::IO));
        shared.model().crash(0, CrashMode::DropAll);
        assert_eq!(shared.model().lookup(ROOT, name), Err(Errno::NOENT));
    }
}
