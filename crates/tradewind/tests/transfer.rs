//! The commands that move data, run as processes against a server of their own: trees and single objects up, down and
//! within the store, what a sync does and leaves alone, what is said where something cannot be done, and that nobody
//! ever sees half a file.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

#[path = "transfer/bundles.rs"]
mod bundles;
#[path = "transfer/failures.rs"]
mod failures;
#[path = "transfer/greps.rs"]
mod greps;
#[path = "transfer/interrupted.rs"]
mod interrupted;
#[path = "transfer/limits.rs"]
mod limits;
#[path = "transfer/mounted.rs"]
mod mounted;
#[path = "transfer/objects.rs"]
mod objects;
#[path = "transfer/preserved.rs"]
mod preserved;
#[path = "transfer/repacked.rs"]
mod repacked;
#[path = "transfer/sizes.rs"]
mod sizes;
#[path = "transfer/syncs.rs"]
mod syncs;
#[path = "transfer/trees.rs"]
mod trees;
#[path = "transfer/watched.rs"]
mod watched;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use support::caller::Caller;
use support::content::content;
use support::s3::S3;
use support::server::{Server, Start, root_key};

/// A server, and somebody who calls it and has made `s3://bucket`.
struct Scene {
    _server: Server,
    caller: Caller,
    _data: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let start = Start::new(&data.path().join("data"), &data.path().join("log"));
        let server = start.start().unwrap();
        let caller = Caller::new(server.endpoint);
        caller.done(&["mb", "s3://bucket"]);
        Self { _server: server, caller, _data: data }
    }

    /// The keys of everything in the bucket, in the order in which they are listed, with their sizes.
    fn keys(&self) -> Vec<(String, u64)> {
        self.caller.sizes("s3://bucket")
    }

    fn names(&self) -> Vec<String> {
        self.caller.keys("s3://bucket")
    }

    /// Stores bytes under a key, past the commands.
    fn store(&self, key: &str, bytes: &[u8]) {
        let stored =
            S3::new(self.caller.endpoint(), root_key()).put(&format!("bucket/{key}"), bytes).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
    }

    /// What a key holds.
    fn read(&self, key: &str) -> Vec<u8> {
        self.caller.read(&format!("s3://bucket/{key}"))
    }
}

/// Every file below a directory, by its path there.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

/// The names in a tree.
fn names(root: &Path) -> Vec<String> {
    tree(root).into_keys().collect()
}
