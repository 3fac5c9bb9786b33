//! End-to-end tests of the transfer commands, run as processes against a server of their own: trees and single objects
//! in every direction, sync, watch, bundles, error messages, and atomic creation of files.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

#[path = "transfer/bundles.rs"]
mod bundles;
#[path = "transfer/classes.rs"]
mod classes;
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
#[path = "transfer/overlaps.rs"]
mod overlaps;
#[path = "transfer/preserved.rs"]
mod preserved;
#[path = "transfer/repacked.rs"]
mod repacked;
#[path = "transfer/sizes.rs"]
mod sizes;
#[path = "transfer/syncs.rs"]
mod syncs;
#[path = "transfer/terminals.rs"]
mod terminals;
#[path = "transfer/times.rs"]
mod times;
#[path = "transfer/trees.rs"]
mod trees;
#[path = "transfer/watched.rs"]
mod watched;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use support::content::content;
use support::test_store::TestStore;

/// The contents of every file below a directory, by relative path.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

/// The relative paths of the files in a tree.
fn names(root: &Path) -> Vec<String> {
    tree(root).into_keys().collect()
}
