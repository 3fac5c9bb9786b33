//! `credential_process`: a program that prints credentials as JSON. It runs without a shell and with an empty stdin.
//! Its outputs are polled and never waited for, because a child process of the program may keep them open.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde_json::Value as Json;
use tradewind_wire::sigv4::Credentials;

use super::{expiration, shell_words};
use tradewind_backend::s3::ExpiringCredentials;

/// Maximum run time of the program.
const MAX_RUN_TIME: Duration = Duration::from_secs(30);
/// Maximum output of the program, separately for stdout and stderr.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of characters of its stderr in a message.
const MAX_QUOTED_CHARS: usize = 200;

/// A program that issues credentials, with its arguments.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialProcess {
    program: String,
    arguments: Vec<String>,
}

impl fmt::Debug for CredentialProcess {
    /// Omits the arguments, which may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialProcess({:?}, <redacted>)", self.program)
    }
}

impl CredentialProcess {
    /// Splits the command into words like a shell, with quotes and backslashes, but expands nothing.
    pub(super) fn parse(command: &str) -> Result<Self, String> {
        let mut words =
            shell_words::split(command).map_err(|why| format!("credential_process: {why}"))?.into_iter();
        match words.next() {
            Some(program) if !program.is_empty() => Ok(Self { program, arguments: words.collect() }),
            _ => Err("credential_process has no program; write its path".to_owned()),
        }
    }

    /// Runs the program and parses its output.
    pub(super) fn run(&self) -> Result<ExpiringCredentials, String> {
        self.run_with_timeout(MAX_RUN_TIME)
    }

    fn run_with_timeout(&self, max_time: Duration) -> Result<ExpiringCredentials, String> {
        let name = self.name();
        let cannot =
            |error: io::Error| format!("cannot run {name}: {error}; write the whole path, without ~ and $");
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let (mut output, mut errors) = (Pipe::new(child.stdout.take()), Pipe::new(child.stderr.take()));
        let status = match wait_with_timeout(&mut child, max_time, &mut output, &mut errors) {
            Ok(status) => status,
            Err(why) => {
                // Fails if it has just ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} {why}"));
            }
        };
        if !status.success() {
            let text = last_line(&errors.bytes);
            let text =
                if text.is_empty() { "printed no error".to_owned() } else { format!("printed: {text}") };
            return Err(format!("{name} failed ({status}) and {text}"));
        }
        parse_output(&output.bytes).map_err(|why| format!("{name} {why}"))
    }

    /// The program without its directories, for messages.
    fn name(&self) -> String {
        let path = Path::new(&self.program);
        format!("{:?}", path.file_name().unwrap_or(OsStr::new(&self.program)))
    }
}

/// One of the program's outputs, and the bytes read from it so far.
struct Pipe<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> Pipe<R> {
    const fn new(pipe: Option<R>) -> Self {
        Self { pipe, bytes: Vec::new() }
    }

    /// Reads the available bytes without blocking.
    fn drain(&mut self) -> Result<(), String> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let cannot = |error: io::Error| format!("has an unreadable output: {error}");
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK).map_err(|error| cannot(error.into()))?;
        let mut buffer = [0; 8 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => self.bytes.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(cannot(error)),
            }
            if self.bytes.len() > MAX_OUTPUT_BYTES {
                return Err("printed too much; it must print one JSON object".to_owned());
            }
        }
    }
}

/// Waits for the program. Fails if it takes too long or prints too much.
fn wait_with_timeout(
    child: &mut Child,
    max_time: Duration,
    output: &mut Pipe<impl Read + AsFd>,
    errors: &mut Pipe<impl Read + AsFd>,
) -> Result<ExitStatus, String> {
    let started = Instant::now();
    loop {
        // Checked before the pipes are read, so that they contain everything printed before the end.
        let ended = child.try_wait().map_err(|error| format!("cannot be waited for: {error}"))?;
        output.drain()?;
        errors.drain()?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if started.elapsed() >= max_time {
            let seconds = max_time.as_secs();
            return Err(format!("has not ended within {seconds} s; run it by hand to see what it waits for"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The last non-empty line of stderr. AWS's guide forbids programs to write secrets there, because every tool shows it.
fn last_line(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MAX_QUOTED_CHARS).collect()
}

/// Parses the JSON. An error continues a sentence that begins with the program's name, and quotes none of the output.
fn parse_output(text: &[u8]) -> Result<ExpiringCredentials, String> {
    let json: Json = serde_json::from_slice(text).map_err(|why| format!("printed no JSON object ({why})"))?;
    if json.get("Version").and_then(Json::as_u64) != Some(1) {
        return Err("printed no \"Version\": 1, the only supported version".to_owned());
    }
    let word = |key: &str| json.get(key).and_then(Json::as_str).filter(|word| !word.is_empty());
    let needed = |key: &str| word(key).map(str::to_owned).ok_or_else(|| format!("printed no {key:?}"));
    let expires = match json.get("Expiration") {
        None | Some(Json::Null) => None,
        Some(given) => {
            let wrong = || format!("printed an invalid \"Expiration\"; write it as {}", expiration::EXAMPLE);
            Some(given.as_str().and_then(expiration::parse).ok_or_else(wrong)?)
        }
    };
    let credentials = Credentials {
        id: needed("AccessKeyId")?,
        secret: needed("SecretAccessKey")?,
        token: word("SessionToken").map(str::to_owned),
    };
    Ok(ExpiringCredentials { credentials, expires })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Runs a script by passing its name to a shell. Executing a file that was just written may fail, because a process
    /// forked by another test may still have it open.
    fn run_script(script: &str, arguments: &str, max_time: Duration) -> Result<ExpiringCredentials, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("issue keys.sh");
        fs::write(&path, script).unwrap();
        let command = format!("sh \"{}\" {arguments}", path.display());
        CredentialProcess::parse(&command).unwrap().run_with_timeout(max_time)
    }

    fn run(script: &str) -> Result<ExpiringCredentials, String> {
        run_script(script, "", MAX_RUN_TIME)
    }

    #[test]
    fn run_parses_the_printed_credentials() {
        let script = r#"echo hello >&2
            printf '{"Version": 1, "AccessKeyId": "%s", "SecretAccessKey": "%s",' "$1" "$2"
            echo '"SessionToken": "token", "Expiration": "2026-01-02T03:04:05Z", "AccountId": "1"}'"#;
        let issued = run_script(script, "id 'a $HOME b'", MAX_RUN_TIME).unwrap();
        let (id, secret, token) = ("id".to_owned(), "a $HOME b".to_owned(), Some("token".to_owned()));
        assert_eq!(issued.credentials, Credentials { id, secret, token });
        assert_eq!(issued.expires, expiration::parse("2026-01-02T03:04:05Z"));
    }

    #[test]
    fn run_does_not_wait_for_an_orphaned_child() {
        let script = r#"sleep 20 & echo '{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "s"}'"#;
        let started = Instant::now();
        let issued = run(script).unwrap();
        assert_eq!((issued.credentials.token, issued.expires), (None, None));
        assert!(started.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn run_fails_on_bad_status_or_output() {
        for (script, expected) in [
            ("exit 3", "\"sh\" failed (exit status: 3) and printed no error"),
            (
                "printf 'one\\ntwo\\033[0m \\n\\n' >&2; exit 1",
                "\"sh\" failed (exit status: 1) and printed: two[0m",
            ),
            ("echo hush", "\"sh\" printed no JSON object (expected value at line 1 column 1)"),
            ("true", "\"sh\" printed no JSON object (EOF while parsing a value at line 1 column 0)"),
            ("echo '[]'", "\"sh\" printed no \"Version\": 1, the only supported version"),
            ("echo '{\"Version\": 2}'", "\"sh\" printed no \"Version\": 1, the only supported version"),
            ("echo '{\"Version\": 1}'", "\"sh\" printed no \"AccessKeyId\""),
            (
                "echo '{\"Version\": 1, \"AccessKeyId\": \"hush\", \"SecretAccessKey\": 7}'",
                "\"sh\" printed no \"SecretAccessKey\"",
            ),
            (
                "echo '{\"Version\": 1, \"Expiration\": \"hush\"}'",
                "\"sh\" printed an invalid \"Expiration\"; write it as 2026-01-02T03:04:05Z",
            ),
            (
                "head -c 300000 /dev/zero; echo hush >/dev/stderr; exit 1",
                "\"sh\" failed (exit status: 1) and printed: hush",
            ),
            ("yes", "\"sh\" printed too much; it must print one JSON object"),
        ] {
            assert_eq!(run(script).unwrap_err(), expected, "{script}");
        }
    }

    #[test]
    fn run_kills_the_program_after_the_timeout() {
        let error = run_script("exec sleep 60", "", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "\"sh\" has not ended within 0 s; run it by hand to see what it waits for");
    }

    #[test]
    fn parse_splits_the_command() {
        let parse = CredentialProcess::parse;
        assert_eq!(parse(" ").unwrap_err(), "credential_process has no program; write its path");
        assert_eq!(parse("\"\" a").unwrap_err(), "credential_process has no program; write its path");
        assert_eq!(parse("a 'b").unwrap_err(), "credential_process: a ' is not closed");
        let process = parse("~/no/such --password hush").unwrap();
        assert_eq!(format!("{process:?}"), "CredentialProcess(\"~/no/such\", <redacted>)");
        assert_eq!(
            process.run().unwrap_err(),
            "cannot run \"such\": No such file or directory (os error 2); write the whole path, without ~ and $"
        );
    }
}
