//! A server with one bucket, and somebody who calls it.

use super::caller::Caller;
use super::s3::S3;
use super::server::{Server, Start, root_key};

/// A server, and somebody who calls it and has made `s3://bucket`.
pub struct Scene {
    _server: Server,
    pub caller: Caller,
    _data: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let start = Start::new(&data.path().join("data"), &data.path().join("log"));
        let server = start.start().unwrap();
        let caller = Caller::new(server.endpoint);
        caller.done(&["mb", "s3://bucket"]);
        Self { _server: server, caller, _data: data }
    }

    /// The keys of everything in the bucket, in the order in which they are listed, with their sizes.
    pub fn keys(&self) -> Vec<(String, u64)> {
        self.caller.sizes("s3://bucket")
    }

    pub fn names(&self) -> Vec<String> {
        self.caller.keys("s3://bucket")
    }

    /// Stores bytes under a key, past the commands.
    pub fn store(&self, key: &str, bytes: &[u8]) {
        let stored =
            S3::new(self.caller.endpoint(), root_key()).put(&format!("bucket/{key}"), bytes).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
    }

    /// Whether a key holds these bytes by now. Who reads it while it changes is told so.
    pub fn holds(&self, key: &str, bytes: &[u8]) -> bool {
        let ran = self.caller.run(&["cat", &format!("s3://bucket/{key}")]);
        ran.status.success() && ran.out == bytes
    }

    /// What a key holds.
    pub fn read(&self, key: &str) -> Vec<u8> {
        self.caller.read(&format!("s3://bucket/{key}"))
    }
}
