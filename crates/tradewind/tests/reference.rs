//! The reference pages in `docs/reference` are what the program prints: the help of every command, the settings, and the
//! metrics of a server and of a balancer.
//!
//! `REFERENCE_UPDATE=1 cargo test -p tradewind --test reference` writes them again.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use support::command_runner::CommandRunner;
use support::s3::S3;
use support::server::{ServerSetup, root_key};

const COMMANDS_HEAD: &str =
    "# Command reference\n\nThe help of every command, as `tradewind COMMAND --help` prints it.\n";
const METRICS_HEAD: &str = "# Metrics reference\n\nThe metrics of `tradewind serve`, at `/metrics` of the admin listener, and those of \
     `tradewind balance\nceph --metrics`, which begin with `tradewind_balance_`. All are in the Prometheus text format.\n\n\
     | metric | type | meaning |\n|---|---|---|\n";

/// Compares a reference page with what the program prints.
fn assert_reference(name: &str, text: &str) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = manifest.ancestors().nth(2).unwrap().join("docs/reference").join(name);
    let text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n";
    if std::env::var_os("REFERENCE_UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let saved = fs::read_to_string(&path).unwrap_or_default();
    let differs = saved.lines().zip(text.lines()).position(|(saved, now)| saved != now);
    let line = differs.unwrap_or_else(|| saved.lines().count().min(text.lines().count()));
    assert!(
        saved == text,
        "{} differs at line {}; review the change, then run this test with REFERENCE_UPDATE=1",
        path.display(),
        line + 1
    );
}

/// Standard output of a command without any environment.
fn output(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tradewind")).args(arguments).env_clear().output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Names under "Commands:" of a help text.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    names.filter(|name| name != "help").collect()
}

/// Appends a command's help and that of its subcommands.
fn describe(command: &[String], out: &mut String) {
    let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
    let help = output(&arguments);
    let title = format!("tradewind {}", command.join(" "));
    let level = "#".repeat((command.len() + 2).min(4));
    writeln!(out, "\n{level} {}\n\n```text\n{}\n```", title.trim_end(), help.trim_end()).unwrap();
    for name in subcommands(&help) {
        let command: Vec<String> = command.iter().cloned().chain([name]).collect();
        describe(&command, out);
    }
}

#[test]
fn command_reference_is_the_help_of_every_command() {
    let mut text = COMMANDS_HEAD.to_owned();
    describe(&[], &mut text);
    assert_reference("commands.md", &text);
}

#[test]
fn settings_reference_is_what_the_command_prints() {
    assert_reference("settings.md", &output(&["settings", "reference"]));
}

/// Adds name, type and meaning of the metrics of a server.
fn add_metrics(text: &str, families: &mut BTreeMap<String, (String, String)>) {
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (mark, what, name, rest) = (words.next(), words.next(), words.next(), words.next());
        if let (Some("#"), Some(what), Some(name), Some(rest)) = (mark, what, name, rest) {
            let (kind, help) = families.entry(name.to_owned()).or_default();
            *if what == "TYPE" { kind } else { help } = rest.to_owned();
        }
    }
}

/// The metrics of a balancer that waits for its cluster.
fn balancer_metrics(directory: &Path) -> String {
    let ceph = directory.join("ceph");
    fs::write(&ceph, "#!/bin/sh\nexec sleep 60\n").unwrap();
    fs::set_permissions(&ceph, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let runner = CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_variable("PATH", &path);
    let mut running = runner.spawn_unread(&["balance", "ceph", "--dry-run", "--metrics", "127.0.0.1:0"]);
    let mut line = String::new();
    BufReader::new(running.take_stdout()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics are served at http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().parse().unwrap();
    S3::anonymous(address).get("metrics").unwrap().text()
}

#[test]
fn metrics_reference_has_the_metrics_of_a_server_and_a_balancer() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let local = ServerSetup::new(&at("data"), &at("log")).start().unwrap();
    let settings = format!(
        "default_volume = \"v\"\n[store.remote]\ntype = \"s3\"\nendpoint = \"http://{}\"\nregion = \"us-east-1\"\n\
         [store.disk]\ntype = \"local\"\npath = \"disk\"\nslices = {{}}\n\
         [volume.chunks]\nstack = [{{ deduplicated = {{ classes = true }} }}, \"disk\"]\n\
         [volume.v]\nstack = [{{ cached = {{ disk = \"ssd\", size = \"64MiB\", write = \"back\" }} }}, \"remote\"]\n",
        local.endpoint
    );
    fs::write(at("settings.toml"), settings).unwrap();
    let mut setup = ServerSetup::new(&at("front"), &at("front-log")).flag("--config", at("settings.toml"));
    let root = root_key();
    setup.environment.extend([
        ("AWS_ACCESS_KEY_ID".to_owned(), root.id),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), root.secret),
        ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
        ("XDG_DATA_HOME".to_owned(), at("share").display().to_string()),
    ]);
    let front = setup.start().unwrap();
    let mut families = BTreeMap::new();
    for server in [&local, &front] {
        let metrics = S3::anonymous(server.admin).get("metrics").unwrap();
        assert_eq!(metrics.status, 200);
        add_metrics(&metrics.text(), &mut families);
    }
    add_metrics(&balancer_metrics(directory.path()), &mut families);
    let mut text = METRICS_HEAD.to_owned();
    for (name, (kind, help)) in &families {
        writeln!(text, "| `{name}` | {kind} | {help} |").unwrap();
    }
    assert_reference("metrics.md", &text);
}
