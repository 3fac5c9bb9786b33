//! A Ceph cluster with radosgw on loopback, started by `tests/labs/ceph.sh` for one test.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use super::sign::Credentials;
use super::skip;

/// The domain for virtual-hosted buckets.
pub const DOMAIN: &str = "localhost";

/// A running cluster; dropping it stops it.
#[derive(Debug)]
pub struct Ceph {
    directory: tempfile::TempDir,
    pub address: SocketAddr,
    pub key: Credentials,
}

impl Ceph {
    /// Starts a cluster; `None`, with the reason reported, if Ceph is not installed.
    pub fn start(test: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let output = script("up", directory.path());
        if output.status.code() == Some(77) {
            skip(test, String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let settings: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
        let address = settings["ENDPOINT"].strip_prefix("http://").unwrap().parse().unwrap();
        let key =
            Credentials { id: settings["ACCESS_KEY"].to_owned(), secret: settings["SECRET_KEY"].to_owned() };
        Some(Self { directory, address, key })
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        script("down", self.directory.path());
    }
}

fn script(command: &str, directory: &Path) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut script = Command::new(root.join("tests/labs/ceph.sh"));
    script.arg(command).arg(directory).env("DOMAIN", DOMAIN).output().unwrap()
}
