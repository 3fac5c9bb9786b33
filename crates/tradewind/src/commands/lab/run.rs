//! Common parts of commands that run another command: signals and the exit status are passed on.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use anyhow::Context as _;
use rustix::process::{Signal, getpgrp, pidfd_send_signal};
use rustix::termios::tcgetpgrp;
use tokio::runtime::Builder;

use super::super::CommandOutcome;
use super::super::signals::{CaughtSignal, Signals};

/// Starts a command, waits for it on a separate thread and forwards signals to it. `start` runs on this thread, after
/// the signal handlers are installed.
pub(super) fn run_with_signals<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    start: impl FnOnce() -> anyhow::Result<(OwnedFd, W)>,
) -> anyhow::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot wait for signals")?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (process, wait) = start()?;
        let mut running = tokio::task::spawn_blocking(wait);
        loop {
            let signal = tokio::select! {
                ended = &mut running => return ended.context("the waiting thread failed"),
                caught = signals.next() => match caught {
                    // The terminal sends it to the command as well.
                    CaughtSignal::Interrupt if receives_terminal_keys() => continue,
                    CaughtSignal::Interrupt => Signal::INT,
                    CaughtSignal::Terminate => Signal::TERM,
                    CaughtSignal::Hangup => Signal::HUP,
                },
            };
            // The command may have just ended.
            let _ = pidfd_send_signal(&process, signal);
        }
    })
}

/// Returns true if signals from the terminal's keys reach this process and its children, wherever standard input comes
/// from.
fn receives_terminal_keys() -> bool {
    // The controlling terminal of the process that opens it.
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// The exit status of a command, as shells report it: 128 plus the number of the signal that ended it.
pub(super) fn outcome_from_status(status: ExitStatus) -> CommandOutcome {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1) {
        0 => CommandOutcome::Done,
        code => CommandOutcome::Status(code),
    }
}

pub(super) fn print_note(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "tradewind: {text}")
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test prints that it is skipped")]
mod tests {
    use std::env;
    use std::io::IsTerminal as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[ignore = "run by another test in a terminal"]
    fn in_a_terminal() {
        assert!(!io::stdin().is_terminal());
        assert!(receives_terminal_keys());
    }

    #[test]
    fn terminal_keys_reach_a_process_with_piped_input() {
        let this = env::current_exe().unwrap();
        let test = "commands::lab::run::tests::in_a_terminal --exact --ignored";
        let line = format!("true | {} {test}", this.display());
        // Runs the line in the foreground of a new terminal.
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
        match script.output() {
            Ok(ended) => {
                let output = String::from_utf8_lossy(&ended.stdout);
                assert!(ended.status.success() && output.contains("1 passed"), "{output}");
            }
            Err(e) => println!("skipped: no script (Debian: bsdutils): {e}"),
        }
    }
}
