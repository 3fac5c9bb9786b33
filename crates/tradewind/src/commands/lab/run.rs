//! What commands that run another one share: its signals and its exit status are passed on.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use anyhow::Context as _;
use rustix::process::{Signal, getpgrp, pidfd_send_signal};
use rustix::termios::tcgetpgrp;
use tokio::runtime::Builder;

use super::super::Ended;
use super::super::signals::{Caught, Signals};

/// Waits for a command on a thread of its own, and passes on the signals that come meanwhile. The function that waits
/// is made on this thread, after signals are caught.
pub(super) fn carry<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    start: impl FnOnce() -> anyhow::Result<(OwnedFd, W)>,
) -> anyhow::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot wait for signals")?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (process, wait) = start()?;
        let mut running = tokio::task::spawn_blocking(wait);
        loop {
            let signal = tokio::select! {
                ended = &mut running => return ended.context("the thread that waits failed"),
                caught = signals.next() => match caught {
                    // A terminal's goes to the command too.
                    Caught::Interrupt if is_before_a_terminal() => continue,
                    Caught::Interrupt => Signal::INT,
                    Caught::Terminate => Signal::TERM,
                    Caught::Hangup => Signal::HUP,
                },
            };
            // It may have ended just now.
            let _ = pidfd_send_signal(&process, signal);
        }
    })
}

/// Whether a terminal's keys reach this process and what it started, wherever its standard input comes from.
fn is_before_a_terminal() -> bool {
    // It stands for the terminal of whoever opens it.
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// The exit status of a command, as shells tell it: 128 and the number of the signal that ended it.
pub(super) fn ended(status: ExitStatus) -> Ended {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1) {
        0 => Ended::Done,
        code => Ended::Status(code),
    }
}

pub(super) fn note(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "tradewind: {text}")
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test says that it is skipped")]
mod tests {
    use std::env;
    use std::io::IsTerminal as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[ignore = "it is what another test runs before a terminal"]
    fn before_a_terminal() {
        assert!(!io::stdin().is_terminal());
        assert!(is_before_a_terminal());
    }

    #[test]
    fn a_terminal_s_keys_reach_those_whose_input_is_a_pipe() {
        let this = env::current_exe().unwrap();
        let test = "commands::lab::run::tests::before_a_terminal --exact --ignored";
        let line = format!("true | {} {test}", this.display());
        // A terminal of its own, of which the line is in the foreground.
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
        match script.output() {
            Ok(ended) => {
                let told = String::from_utf8_lossy(&ended.stdout);
                assert!(ended.status.success() && told.contains("1 passed"), "{told}");
            }
            Err(e) => println!("skipped: no script (Debian: bsdutils): {e}"),
        }
    }
}
