//! Network namespaces of the near end of a link.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::panic;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::tun_device::raise;
use crate::error::{LabError, cannot};

/// Runs `work` in a new network namespace, which exists while a process or device is in it.
pub(super) fn in_new_namespace<T: Send>(
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    let apart = || {
        // SAFETY: it affects only the calling thread, which ends with this work.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(cannot("create a network namespace")(io::Error::last_os_error()));
        }
        work()
    };
    thread::scope(|scope| scope.spawn(apart).join().unwrap_or_else(|e| panic::resume_unwind(e)))
}

/// The network namespace of the calling thread.
pub(super) const CURRENT_PATH: &str = "/proc/thread-self/ns/net";

/// Opens that namespace; the file keeps it alive.
pub(super) fn open_current() -> io::Result<File> {
    File::open(CURRENT_PATH)
}

/// Runs `work` in another network namespace; an error if it cannot be entered.
pub(super) fn in_namespace<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let there = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    thread::scope(|scope| scope.spawn(there).join().unwrap_or_else(|e| panic::resume_unwind(e)))
}

/// Raises `lo`, which is down in a new namespace.
pub(super) fn raise_loopback() -> io::Result<()> {
    raise("lo")
}
