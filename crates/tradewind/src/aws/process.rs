//! `credential_process`: a program that prints credentials as JSON. It is run without a shell and has nothing to read.
//! Its outputs are looked at now and then and never waited for: a program may leave a child behind that keeps them open.

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

use super::{moment, words};
use tradewind_backend::s3::Issued;

/// How long the program may take.
const MOST_TIME: Duration = Duration::from_secs(30);
/// What it may print, in bytes, on either output.
const MOST_OUTPUT: usize = 1 << 20;
/// How often it is looked after.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// What is shown of its complaints, in characters.
const MOST_SHOWN: usize = 200;

/// A program that issues credentials, with its arguments.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialProcess {
    program: String,
    arguments: Vec<String>,
}

impl fmt::Debug for CredentialProcess {
    /// Without the arguments, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialProcess({:?}, <redacted>)", self.program)
    }
}

impl CredentialProcess {
    /// The command's words are those that a shell would find, quotes and backslashes included; nothing is expanded.
    pub(super) fn parse(command: &str) -> Result<Self, String> {
        let mut words =
            words::split(command).map_err(|why| format!("credential_process: {why}"))?.into_iter();
        match words.next() {
            Some(program) if !program.is_empty() => Ok(Self { program, arguments: words.collect() }),
            _ => Err("credential_process names no program; write its path".to_owned()),
        }
    }

    /// Runs the program and reads what it printed.
    pub(super) fn run(&self) -> Result<Issued, String> {
        self.run_within(MOST_TIME)
    }

    fn run_within(&self, most_time: Duration) -> Result<Issued, String> {
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
        let (mut output, mut complaints) = (Pipe::new(child.stdout.take()), Pipe::new(child.stderr.take()));
        let status = match wait(&mut child, most_time, &mut output, &mut complaints) {
            Ok(status) => status,
            Err(why) => {
                // One that has just ended by itself need not be killed.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} {why}"));
            }
        };
        if !status.success() {
            let said = said(&complaints.bytes);
            let said = if said.is_empty() { "said nothing".to_owned() } else { format!("said: {said}") };
            return Err(format!("{name} failed ({status}) and {said}"));
        }
        read(&output.bytes).map_err(|why| format!("{name} {why}"))
    }

    /// The program without its directories, for messages.
    fn name(&self) -> String {
        let path = Path::new(&self.program);
        format!("{:?}", path.file_name().unwrap_or(OsStr::new(&self.program)))
    }
}

/// One of the program's outputs, and what came out of it so far.
struct Pipe<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> Pipe<R> {
    const fn new(pipe: Option<R>) -> Self {
        Self { pipe, bytes: Vec::new() }
    }

    /// Takes what is there, without waiting for more.
    fn drain(&mut self) -> Result<(), String> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let cannot = |error: io::Error| format!("cannot be listened to: {error}");
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
            if self.bytes.len() > MOST_OUTPUT {
                return Err("prints without end; it must print one JSON object".to_owned());
            }
        }
    }
}

/// Waits for the program, unless it takes too long or prints too much.
fn wait(
    child: &mut Child,
    most_time: Duration,
    output: &mut Pipe<impl Read + AsFd>,
    complaints: &mut Pipe<impl Read + AsFd>,
) -> Result<ExitStatus, String> {
    let begun = Instant::now();
    loop {
        // Looked at before the pipes: what it printed before its end is then in them.
        let ended = child.try_wait().map_err(|error| format!("cannot be waited for: {error}"))?;
        output.drain()?;
        complaints.drain()?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if begun.elapsed() >= most_time {
            let seconds = most_time.as_secs();
            return Err(format!("has not ended within {seconds} s; run it by hand to see what it waits for"));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The last line of the complaints that says anything. AWS's guide forbids programs to write secrets there, because
/// every tool shows it.
fn said(complaints: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaints);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MOST_SHOWN).collect()
}

/// Reads the JSON. The message says what is wrong with it after the program's name, and repeats nothing of it.
fn read(text: &[u8]) -> Result<Issued, String> {
    let json: Json = serde_json::from_slice(text).map_err(|why| format!("printed no JSON object ({why})"))?;
    if json.get("Version").and_then(Json::as_u64) != Some(1) {
        return Err("printed no \"Version\": 1, the only one that is known".to_owned());
    }
    let word = |key: &str| json.get(key).and_then(Json::as_str).filter(|word| !word.is_empty());
    let needed = |key: &str| word(key).map(str::to_owned).ok_or_else(|| format!("printed no {key:?}"));
    let expires = match json.get("Expiration") {
        None | Some(Json::Null) => None,
        Some(given) => {
            let wrong =
                || format!("printed an \"Expiration\" that is no time; it is to be as {}", moment::EXAMPLE);
            Some(given.as_str().and_then(moment::parse).ok_or_else(wrong)?)
        }
    };
    let credentials = Credentials {
        id: needed("AccessKeyId")?,
        secret: needed("SecretAccessKey")?,
        token: word("SessionToken").map(str::to_owned),
    };
    Ok(Issued { credentials, expires })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Runs a script. It is handed to a shell by name: a file that was just written may still be held open by a process
    /// that another test starts, and is then not run itself.
    fn run_script(script: &str, arguments: &str, most_time: Duration) -> Result<Issued, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("issue keys.sh");
        fs::write(&path, script).unwrap();
        let command = format!("sh \"{}\" {arguments}", path.display());
        CredentialProcess::parse(&command).unwrap().run_within(most_time)
    }

    fn run(script: &str) -> Result<Issued, String> {
        run_script(script, "", MOST_TIME)
    }

    #[test]
    fn what_is_printed_is_read() {
        let script = r#"echo hello >&2
            printf '{"Version": 1, "AccessKeyId": "%s", "SecretAccessKey": "%s",' "$1" "$2"
            echo '"SessionToken": "token", "Expiration": "2026-01-02T03:04:05Z", "AccountId": "1"}'"#;
        let issued = run_script(script, "id 'a $HOME b'", MOST_TIME).unwrap();
        let (id, secret, token) = ("id".to_owned(), "a $HOME b".to_owned(), Some("token".to_owned()));
        assert_eq!(issued.credentials, Credentials { id, secret, token });
        assert_eq!(issued.expires, moment::parse("2026-01-02T03:04:05Z"));
    }

    #[test]
    fn a_child_left_behind_is_not_waited_for() {
        let script = r#"sleep 20 & echo '{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "s"}'"#;
        let begun = Instant::now();
        let issued = run(script).unwrap();
        assert_eq!((issued.credentials.token, issued.expires), (None, None));
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn what_goes_wrong() {
        for (script, expected) in [
            ("exit 3", "\"sh\" failed (exit status: 3) and said nothing"),
            (
                "printf 'one\\ntwo\\033[0m \\n\\n' >&2; exit 1",
                "\"sh\" failed (exit status: 1) and said: two[0m",
            ),
            ("echo hush", "\"sh\" printed no JSON object (expected value at line 1 column 1)"),
            ("true", "\"sh\" printed no JSON object (EOF while parsing a value at line 1 column 0)"),
            ("echo '[]'", "\"sh\" printed no \"Version\": 1, the only one that is known"),
            ("echo '{\"Version\": 2}'", "\"sh\" printed no \"Version\": 1, the only one that is known"),
            ("echo '{\"Version\": 1}'", "\"sh\" printed no \"AccessKeyId\""),
            (
                "echo '{\"Version\": 1, \"AccessKeyId\": \"hush\", \"SecretAccessKey\": 7}'",
                "\"sh\" printed no \"SecretAccessKey\"",
            ),
            (
                "echo '{\"Version\": 1, \"Expiration\": \"hush\"}'",
                "\"sh\" printed an \"Expiration\" that is no time; it is to be as 2026-01-02T03:04:05Z",
            ),
            (
                "head -c 300000 /dev/zero; echo hush >/dev/stderr; exit 1",
                "\"sh\" failed (exit status: 1) and said: hush",
            ),
            ("yes", "\"sh\" prints without end; it must print one JSON object"),
        ] {
            assert_eq!(run(script).unwrap_err(), expected, "{script}");
        }
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        let error = run_script("exec sleep 60", "", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "\"sh\" has not ended within 0 s; run it by hand to see what it waits for");
    }

    #[test]
    fn commands() {
        let parse = CredentialProcess::parse;
        assert_eq!(parse(" ").unwrap_err(), "credential_process names no program; write its path");
        assert_eq!(parse("\"\" a").unwrap_err(), "credential_process names no program; write its path");
        assert_eq!(parse("a 'b").unwrap_err(), "credential_process: a ' has no other that closes it");
        let process = parse("~/no/such --password hush").unwrap();
        assert_eq!(format!("{process:?}"), "CredentialProcess(\"~/no/such\", <redacted>)");
        assert_eq!(
            process.run().unwrap_err(),
            "cannot run \"such\": No such file or directory (os error 2); write the whole path, without ~ and $"
        );
    }
}
