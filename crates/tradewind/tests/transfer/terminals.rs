//! Control characters in names and messages: exact in pipes, escaped on a terminal and in every message.

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::TestStore;
use crate::support::server::tradewind;

/// A key that would clear a terminal and set its title.
const KEY: &str = "d/\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31mkey\u{202e}\nforged line";
/// `KEY` in its escaped form.
const SHOWN: &str = "d/\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\u{9b}31mkey\\u{202e}\\nforged line";

/// The combined output of a command whose stdout and stderr are a terminal.
fn on_terminal(scene: &TestStore, arguments: &[&str]) -> String {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let path = ptsname(&controller, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
    let output = || Stdio::from(terminal.try_clone().unwrap());
    let mut command = tradewind();
    command
        .args(arguments)
        .current_dir(scene.runner.directory_path())
        .env_clear()
        .envs(scene.runner.environment.clone());
    let mut child = command.stdin(Stdio::null()).stdout(output()).stderr(output()).spawn().unwrap();
    drop((command, terminal));
    let (mut printed, mut buffer) = (Vec::new(), [0; 4096]);
    let mut controller = File::from(controller);
    // Reading fails once no process has the terminal open.
    while let Ok(read @ 1..) = controller.read(&mut buffer) {
        printed.extend_from_slice(&buffer[..read]);
    }
    child.wait().unwrap();
    String::from_utf8(printed).unwrap()
}

#[test]
fn names_are_exact_in_pipes_and_escaped_on_terminals() {
    let scene = TestStore::new();
    scene.store(KEY, b"needle");
    for arguments in [
        &["ls", "-r", "s3://bucket"][..],
        &["ls", "s3://bucket/d/"],
        &["rm", "-r", "--dry-run", "s3://bucket"],
        &["rm", "--dry-run", &format!("s3://bucket/{KEY}")],
        &["cp", "-r", "--dry-run", "s3://bucket", "there"],
        &["cp", "--dry-run", &format!("s3://bucket/{KEY}"), "there"],
        &["sync", "--dry-run", "s3://bucket", "there"],
        &["stat", &format!("s3://bucket/{KEY}")],
        &["grep", "-l", "needle", "s3://bucket"],
        &["grep", "-c", "needle", "s3://bucket"],
        &["grep", "needle", "s3://bucket"],
    ] {
        let piped = scene.runner.run_ok(arguments);
        assert!(piped.contains(KEY), "{arguments:?}: {piped:?}");
        let shown = on_terminal(&scene, arguments);
        assert!(shown.contains(SHOWN) && !shown.contains("\u{1b}[2J"), "{arguments:?}: {shown:?}");
        assert!(!shown.contains(['\u{7}', '\u{9b}', '\u{202e}']), "{arguments:?}: {shown:?}");
    }
}

#[test]
fn messages_are_escaped_in_pipes_too() {
    let scene = TestStore::new();
    let bad = format!("../{KEY}");
    scene.store(&format!("p/{bad}"), b"x");
    scene.runner.write("file", "x");
    for arguments in [
        &["cp", "-r", "s3://bucket/p/", "there"][..],
        &["cat", &format!("s3://bucket/{KEY}")],
        &["stat", &format!("s3://bucket/{KEY}")],
        &["cp", &format!("s3://bucket/{KEY}"), "there"],
        &["cp", KEY, "s3://bucket"],
        &["sync", KEY, "s3://bucket"],
        &["cp", "--bundle", &format!("s3://bucket/{KEY}"), "there"],
        &["ls", &format!("s3://bucket/{KEY}")],
        &["cp", "-r", &format!("s3://bucket/{KEY}"), "there"],
    ] {
        let ran = scene.runner.run(arguments);
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}: {ran:?}");
        let is_safe = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(ran.err.chars().all(is_safe) && ran.err.lines().count() == 1, "{arguments:?}: {ran:?}");
        assert!(ran.err.contains("\\u{1b}[2J"), "{arguments:?}: {ran:?}");
    }
}
