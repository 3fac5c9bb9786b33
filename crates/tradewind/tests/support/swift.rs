//! A Swift server for one test, alone or with a Keystone for authentication, if they are installed.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};

/// A running Swift server; dropping it stops it.
#[derive(Debug)]
pub struct SwiftServer {
    /// The script that starts and stops it.
    script: &'static str,
    directory: tempfile::TempDir,
    /// Settings printed by the script at the start.
    settings: HashMap<String, String>,
}

impl SwiftServer {
    /// Starts a server; `None` if Swift is not installed.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_with_script("swift.sh", test, &[])
    }

    /// Starts a server with Keystone, with the script's variables `EXPIRATION` and `TOKEN_CACHE`; `None` if one of the
    /// two is not installed.
    pub fn with_keystone(test: &str, settings: &[(&str, &str)]) -> Option<Self> {
        Self::start_with_script("keystone.sh", test, settings)
    }

    fn start_with_script(script: &'static str, test: &str, settings: &[(&str, &str)]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut laboratory = Self { script, directory, settings: HashMap::new() };
        let output = laboratory.run("up", &[], settings);
        if output.status.code() == Some(77) {
            super::skip(test, String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        laboratory.settings = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(laboratory)
    }

    /// A setting of the server: `AUTH_URL`, `ACCOUNT_URL`, `USER` or `KEY`; with Keystone, `OS_AUTH_URL` or
    /// `ACCOUNT_URL`.
    pub fn setting(&self, name: &str) -> String {
        self.settings[name].clone()
    }

    /// Makes Keystone revoke all tokens of a user.
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

impl Drop for SwiftServer {
    fn drop(&mut self) {
        self.run("down", &[], &[]);
    }
}
