//! A network namespace of its own for what a command does.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::panic;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::device::raise;
use crate::failed::{Failed, failed};

/// Does something in a new network namespace, which lives as long as a process or a device is in it.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> Result<T, Failed> + Send) -> Result<T, Failed> {
    let apart = || {
        // SAFETY: it concerns the calling thread only, which ends with this work.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(failed("make a network namespace")(io::Error::last_os_error()));
        }
        work()
    };
    thread::scope(|scope| scope.spawn(apart).join().unwrap_or_else(|e| panic::resume_unwind(e)))
}

/// The network namespace of the calling thread.
pub(super) const OWN: &str = "/proc/thread-self/ns/net";

/// That, as long as it is kept open.
pub(super) fn own() -> io::Result<File> {
    File::open(OWN)
}

/// Does something in another network namespace; an error where that cannot be entered.
pub(super) fn within<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let there = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    thread::scope(|scope| scope.spawn(there).join().unwrap_or_else(|e| panic::resume_unwind(e)))
}

/// Raises `lo`, which a new namespace has but does not use.
pub(super) fn raise_loopback() -> io::Result<()> {
    raise("lo")
}
