//! A Swift of its own for a test, alone or with a Keystone that it asks, where they are installed.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};

/// A Swift that ends with the test.
#[derive(Debug)]
pub struct Laboratory {
    /// What began it, and ends it.
    script: &'static str,
    directory: tempfile::TempDir,
    said: HashMap<String, String>,
}

impl Laboratory {
    /// `None` where Swift is not installed.
    pub fn open(test: &str) -> Option<Self> {
        Self::begun_by("swift.sh", test, &[])
    }

    /// One that asks a Keystone, with `EXPIRATION` and `TOKEN_CACHE` as the script knows them; `None` where one of the
    /// two is not installed.
    pub fn with_keystone(test: &str, settings: &[(&str, &str)]) -> Option<Self> {
        Self::begun_by("keystone.sh", test, settings)
    }

    fn begun_by(script: &'static str, test: &str, settings: &[(&str, &str)]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut laboratory = Self { script, directory, said: HashMap::new() };
        let output = laboratory.run("up", &[], settings);
        if output.status.code() == Some(77) {
            super::skip(test, String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let said = text.lines().filter_map(|line| line.split_once('='));
        laboratory.said = said.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(laboratory)
    }

    /// What it said when it began: `AUTH_URL`, `ACCOUNT_URL`, `USER`, `KEY`; of one with a Keystone `OS_AUTH_URL` and
    /// `ACCOUNT_URL`.
    pub fn said(&self, name: &str) -> String {
        self.said[name].clone()
    }

    /// Makes Keystone revoke every token that a user has got.
    pub fn revoke(&self, user: &str) {
        let output = self.run("revoke", &[user], &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, command: &str, words: &[&str], settings: &[(&str, &str)]) -> Output {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let mut script = Command::new(root.join("tests/labs").join(self.script));
        script.arg(command).arg(self.directory.path()).args(words).envs(settings.iter().copied());
        script.output().unwrap()
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        self.run("down", &[], &[]);
    }
}
