//! A command while it runs in one of the worlds.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::failed::{Failed, failed};

/// See the module. Dropped, the command is killed.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// The command, whoever has its number once it has ended.
    process: OwnedFd,
}

impl Running {
    /// Starts a program with its arguments, as `prepared` changes it.
    pub fn start(command: &[OsString], prepared: impl FnOnce(&mut Command)) -> Result<Self, Failed> {
        let (program, arguments) = command.split_first().unwrap_or((const { &OsString::new() }, &[]));
        let mut command = Command::new(program);
        command.args(arguments);
        prepared(&mut command);
        let mut child = command.spawn().map_err(failed(format!("run {}", program.display())))?;
        match descriptor(&child) {
            Ok(process) => Ok(Self { child, process }),
            Err(e) => {
                // It may have ended already.
                let _ = child.kill();
                let _ = child.wait();
                Err(failed("watch the command")(e))
            }
        }
    }

    /// The command's process, to send signals to. It never means another process that was given the same number.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.process.try_clone().map_err(failed("watch the command"))
    }

    /// The same, as long as it is not waited for.
    pub fn watched(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// The number of the command's process.
    pub fn number(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> Result<ExitStatus, Failed> {
        self.child.wait().map_err(failed("wait for the command"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and need not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child that was not waited for yet, so that its number is its own.
fn descriptor(child: &Child) -> io::Result<OwnedFd> {
    let number = Pid::from_raw(child.id().cast_signed());
    let number = number.ok_or_else(|| io::Error::other("a process without a number"))?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}
