//! A Swift of its own for a test, where Swift is installed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Swift that ends with the test.
#[derive(Debug)]
pub struct Laboratory {
    directory: tempfile::TempDir,
    said: HashMap<String, String>,
}

impl Laboratory {
    /// `None` where Swift is not installed.
    pub fn open(test: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let output = script("up", directory.path());
        if output.status.code() == Some(77) {
            super::skip(test, String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let said = text.lines().filter_map(|line| line.split_once('='));
        let said = said.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { directory, said })
    }

    /// What it said when it began: `AUTH_URL`, `ACCOUNT_URL`, `USER`, `KEY`.
    pub fn said(&self, name: &str) -> String {
        self.said[name].clone()
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        script("down", self.directory.path());
    }
}

fn script(command: &str, directory: &Path) -> std::process::Output {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned();
    Command::new(root.join("tests/labs/swift.sh")).arg(command).arg(directory).output().unwrap()
}
