//! A running command in an emulated environment.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{LabError, cannot};

/// A running command. Dropping it kills the command.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    child: Child,
    /// The command's pidfd, which stays valid after the PID is reused.
    pidfd: OwnedFd,
}

impl RunningCommand {
    /// Starts a program with its arguments, after `prepare` has adjusted the command.
    pub fn start(command: &[OsString], prepare: impl FnOnce(&mut Command)) -> Result<Self, LabError> {
        let (program, arguments) = command.split_first().unwrap_or((const { &OsString::new() }, &[]));
        let mut command = Command::new(program);
        command.args(arguments);
        prepare(&mut command);
        let mut child = command.spawn().map_err(cannot(format!("run {}", program.display())))?;
        match descriptor(&child) {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(e) => {
                // It may have exited already.
                let _ = child.kill();
                let _ = child.wait();
                Err(cannot("watch the command")(e))
            }
        }
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn process(&self) -> Result<OwnedFd, LabError> {
        self.pidfd.try_clone().map_err(cannot("watch the command"))
    }

    /// The pidfd itself, borrowed, to poll for exit.
    pub fn as_pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The command's PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the command to exit.
    pub fn wait(&mut self) -> Result<ExitStatus, LabError> {
        self.child.wait().map_err(cannot("wait for the command"))
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // Killing an exited process fails, which is harmless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pidfd of a child that was not waited for yet, so that its PID cannot have been reused.
fn descriptor(child: &Child) -> io::Result<OwnedFd> {
    let number = Pid::from_raw(child.id().cast_signed());
    let number = number.ok_or_else(|| io::Error::other("the process has no PID"))?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}
