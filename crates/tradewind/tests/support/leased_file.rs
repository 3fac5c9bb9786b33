//! A file that another process cannot open for a while, like a file of a server that does not respond.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// The command of `fcntl` that selects the signal of a lease.
const F_SETSIG: libc::c_int = 10;

/// A lease on a file: an open by another process blocks until this value is dropped, or for 45 s.
#[derive(Debug)]
pub struct LeasedFile(File);

impl LeasedFile {
    /// Takes a lease on a file of this user that no process has open.
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        // The kernel reports an open by a signal. SIGURG is ignored.
        for (command, value) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)] {
            // SAFETY: The descriptor is open, and both commands take a number.
            if unsafe { libc::fcntl(file.as_raw_fd(), command, value) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self(file))
    }
}
