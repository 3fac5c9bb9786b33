//! Commands with a deadline.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Poll interval of a process that has a deadline.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The standard output of a command; a command that takes longer is killed.
pub(crate) fn output_in_time(mut command: Command, name: &str, timeout: Duration) -> Result<Vec<u8>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::Start)?;
    let mut output =
        child.stdout.take().ok_or_else(|| Error::Start(std::io::ErrorKind::BrokenPipe.into()))?;
    let read = move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| bytes)
    };
    let reader = match std::thread::Builder::new().spawn(read) {
        Ok(reader) => reader,
        Err(e) => {
            // Killing fails only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Start(e));
        }
    };
    let deadline = Instant::now() + timeout;
    let status = loop {
        match child.try_wait().map_err(Error::Start)? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    let Some(status) = status else {
        // Killing fails only if the process ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
        return Err(Error::Timeout { command: name.to_owned(), timeout });
    };
    let bytes =
        reader.join().map_err(|_| Error::Start(std::io::ErrorKind::Other.into()))?.map_err(Error::Start)?;
    if !status.success() {
        return Err(Error::Rejected { command: name.to_owned(), message: status.to_string() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_that_hangs_is_killed_at_the_deadline() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let error = output_in_time(command, "sleep", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(matches!(
            output_in_time(Command::new("false"), "false", Duration::from_secs(20)).unwrap_err(),
            Error::Rejected { .. }
        ));
    }
}
