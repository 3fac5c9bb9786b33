//! The `swift` leaf against a real OpenStack Swift on loopback: the promises of the port survive the way through it.
//! Where Swift is not installed the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use tradewind_backend::swift::{Auth, SwiftOptions, SwiftStore};
use tradewind_core::testing::conformance;
use tradewind_core::{ObjectStore, SystemClock};

/// A Swift that ends with the test.
struct Laboratory {
    directory: tempfile::TempDir,
    said: HashMap<String, String>,
    accounts: AtomicUsize,
}

impl Laboratory {
    /// `None` where Swift is not installed.
    fn open(test: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let output = script("up", directory.path());
        if output.status.code() == Some(77) {
            support::skip(test, String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let said = text.lines().filter_map(|line| line.split_once('='));
        let said = said.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { directory, said, accounts: AtomicUsize::new(0) })
    }

    /// What a store over an account needs.
    fn options(&self, account: &str) -> SwiftOptions {
        let said = |name: &str| self.said[name].clone();
        let auth = Auth::V1 { url: said("AUTH_URL"), user: said("USER"), key: said("KEY") };
        let account_url = Some(format!("{}/AUTH_{account}", said("ACCOUNT_URL")));
        SwiftOptions { account_url, ..SwiftOptions::new(auth) }
    }

    /// A store over an account of its own. Its segments are small, so that large objects have many.
    fn store(&self) -> Arc<SwiftStore> {
        let account = self.accounts.fetch_add(1, Ordering::Relaxed);
        let options = SwiftOptions { segment_bytes: 1 << 20, ..self.options(&format!("case{account}")) };
        SwiftStore::new(options, SystemClock::shared()).unwrap()
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

#[tokio::test(flavor = "multi_thread")]
async fn debug_all() {
    let Some(laboratory) = Laboratory::open("debug_all") else { return };
    let only = std::env::var("TWCASE").unwrap_or_default();
    for case in conformance::cases() {
        if !case.name.contains(&only) {
            continue;
        }
        let store = laboratory.store();
        if !case.suits(store.capabilities()) {
            println!("left out {}", case.name);
            continue;
        }
        let begun = std::time::Instant::now();
        let task = tokio::spawn(async move { case.run(store as Arc<dyn ObjectStore>).await });
        let outcome = task.await;
        println!(
            "CASE {} {} {:?}",
            case.name,
            if outcome.is_ok() { "ok" } else { "FAILED" },
            begun.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let Some(laboratory) = Laboratory::open("conforms") else { return };
    conformance::run(move || {
        let store: Arc<dyn ObjectStore> = laboratory.store();
        async move { store }.boxed()
    })
    .await;
}
