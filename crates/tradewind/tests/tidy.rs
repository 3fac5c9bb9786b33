//! Keeps the house in order: who may use whom, how long a file may be, and what may not stand in one.
//!
//! Everything is read from the checkout; nothing is built. A failure names the file, the line and the rule.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;

#[path = "tidy/vocabulary.rs"]
mod vocabulary;

/// The map: each crate and the crates of ours that it may use, in tests and benches too. A crate may
/// always use itself (its own test features), and every crate's tests the instruments.
const ALLOWED_EDGES: &[(&str, &[&str])] = &[
    ("tradewind-core", &[]),
    ("tradewind-digest", &[]),
    ("tradewind-model", &["tradewind-core"]),
    ("tradewind-wire", &["tradewind-core"]),
    ("tradewind-backend", &["tradewind-core", "tradewind-digest", "tradewind-model", "tradewind-wire"]),
    ("tradewind-parallel", &["tradewind-core", "tradewind-model"]),
    ("tradewind-layers", &["tradewind-core", "tradewind-digest", "tradewind-model", "tradewind-parallel"]),
    ("tradewind-cache", &["tradewind-core", "tradewind-model"]),
    ("tradewind-transfer", &["tradewind-core", "tradewind-model", "tradewind-parallel"]),
    ("tradewind-gateway", &["tradewind-core", "tradewind-wire"]),
    ("tradewind-balance", &["tradewind-model"]),
    ("tradewind-lab", &["tradewind-core", "tradewind-model"]),
    ("tradewind-powerloss", &[]),
    ("tradewind-loadgen", &["tradewind-pattern"]),
    ("tradewind-pattern", &[]),
    ("tradewind-bench", &["tradewind-core", "tradewind-model", "tradewind-pattern"]),
    (
        "tradewind",
        &[
            "tradewind-core",
            "tradewind-digest",
            "tradewind-model",
            "tradewind-wire",
            "tradewind-backend",
            "tradewind-balance",
            "tradewind-bench",
            "tradewind-gateway",
            "tradewind-parallel",
            "tradewind-layers",
            "tradewind-cache",
            "tradewind-transfer",
            "tradewind-lab",
        ],
    ),
];

/// What only tests may use.
const INSTRUMENTS: &[&str] = &["tradewind-powerloss"];

/// The most lines of a source file, its test modules apart.
const MAX_PRODUCTION_LINES: usize = 800;

/// Paths of somebody's machine. Written in two pieces, so that this file does not hold them.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("the crate lies in crates/").to_owned()
}

/// Every file below `directory` that is part of the checkout.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == ".git" {
            // A directory, or where this is a work tree a file: no part of the checkout.
            continue;
        }
        let is_ignored = name.starts_with("target")
            || [".cache", ".venv", "results", "data", "__pycache__", ".pytest_cache"]
                .contains(&name.as_str());
        if path.is_dir() && !path.is_symlink() {
            if !is_ignored {
                files(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// Rust files of the crates, with their text.
fn rust_files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let read = |path: PathBuf| fs::read_to_string(&path).map(|text| (path.clone(), text));
    found.into_iter().filter(is_rust).map(|path| read(path).unwrap()).collect()
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Whether a file holds tests only.
fn is_test_file(path: &Path) -> bool {
    let name = relative(path);
    name.contains("/tests/") || name.contains("/benches/") || name.ends_with("/tests.rs")
}

fn assert_none(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

#[test]
fn crates_use_only_the_floors_below_them() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Json = serde_json::from_slice(&output.stdout).unwrap();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED_EDGES.iter().copied().collect();
    let mut offences = Vec::new();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let Some(may_use) = allowed.get(name) else {
            offences.push(format!("{name} is not on the map; add it to ALLOWED_EDGES and say why"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            let is_instrument = dependency["kind"] == "dev" && INSTRUMENTS.contains(&used);
            if ours.contains(used) && used != name && !may_use.contains(&used) && !is_instrument {
                offences.push(format!("{name} uses {used}"));
            }
        }
        let manifest = fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        if !manifest.contains("[lints]\nworkspace = true") {
            offences.push(format!("{name} does not take the workspace's lints"));
        }
    }
    assert_none("an edge between crates is not allowed", &offences);
}

#[test]
fn no_file_is_too_long() {
    let mut offences = Vec::new();
    for (path, text) in rust_files().into_iter().filter(|(path, _)| !is_test_file(path)) {
        let lines = production_lines(&text);
        if lines > MAX_PRODUCTION_LINES {
            offences.push(format!("{} has {lines} production lines", relative(&path)));
        }
    }
    assert_none("a file passes 800 lines; cut it where a reader would", &offences);
}

/// Lines outside inline `#[cfg(test)]` modules. Relies on rustfmt's indentation.
fn production_lines(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let opens_module = |next: &&str| next.trim_start().starts_with("mod ") && next.ends_with('{');
        if line.trim() == "#[cfg(test)]" && lines.peek().is_some_and(opens_module) {
            let end = format!("{indent}}}");
            for skipped in lines.by_ref() {
                if skipped == end {
                    break;
                }
            }
        } else {
            count += 1;
        }
    }
    count
}

#[test]
fn modules_say_what_they_are() {
    let mut offences = Vec::new();
    for (path, text) in rust_files() {
        if path.file_name().unwrap() == "mod.rs" {
            offences.push(format!("{}: a module is foo.rs beside foo/, not mod.rs", relative(&path)));
        }
        if !is_test_file(&path) && !text.starts_with("//!") {
            offences.push(format!("{} does not open with //! and what it is", relative(&path)));
        }
    }
    assert_none("a module is not as the others are", &offences);
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    let mut offences = Vec::new();
    for (path, text) in rust_files() {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let needs_reason = code.contains("unsafe {") || code.contains("unsafe impl ");
            // The comment stands above the statement, which rustfmt may have broken over some lines.
            let said = lines[index.saturating_sub(8)..=index].iter().any(|line| line.contains("SAFETY:"));
            if needs_reason && !code.contains('"') && !said {
                offences.push(format!("{}:{}", relative(&path), index + 1));
            }
        }
    }
    assert_none("unsafe without a SAFETY comment", &offences);
}

#[test]
fn no_machine_is_named() {
    let mut found = Vec::new();
    files(&root(), &mut found);
    let mut offences = Vec::new();
    for path in found {
        // What is not text is looked at by people.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (index, line) in text.lines().enumerate() {
            if let Some(named) = MACHINE_PATHS.iter().find(|named| line.contains(*named)) {
                offences.push(format!("{}:{} holds {named}", relative(&path), index + 1));
            }
        }
    }
    assert_none("a path of one machine stands in the checkout", &offences);
}

#[test]
fn test_modules_do_not_count() {
    let text = "//! A.\nfn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n";
    assert_eq!(production_lines(text), 4);
    assert_eq!(production_lines("#[cfg(test)]\nmod tests;\nfn a() {}\n"), 3);
}
