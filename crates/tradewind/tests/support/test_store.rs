//! A server with one bucket, and a runner of commands on it.

use super::command_runner::CommandRunner;
use super::s3::S3;
use super::server::{Server, ServerSetup, root_key};

/// A server with `s3://bucket`, and a runner of commands on it.
pub struct TestStore {
    _server: Server,
    pub runner: CommandRunner,
    _data: tempfile::TempDir,
}

impl TestStore {
    pub fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let start = ServerSetup::new(&data.path().join("data"), &data.path().join("log"));
        let server = start.start().unwrap();
        let caller = CommandRunner::new(server.endpoint);
        caller.run_ok(&["mb", "s3://bucket"]);
        Self { _server: server, runner: caller, _data: data }
    }

    /// The keys and sizes of all objects in the bucket, in listing order.
    pub fn keys(&self) -> Vec<(String, u64)> {
        self.runner.sizes("s3://bucket")
    }

    pub fn names(&self) -> Vec<String> {
        self.runner.keys("s3://bucket")
    }

    /// Stores an object directly, without the commands.
    pub fn store(&self, key: &str, bytes: &[u8]) {
        let stored =
            S3::new(self.runner.endpoint(), root_key()).put(&format!("bucket/{key}"), bytes).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
    }

    /// Returns true if a key has these bytes. A read during a change fails and returns false.
    pub fn holds(&self, key: &str, bytes: &[u8]) -> bool {
        let ran = self.runner.run(&["cat", &format!("s3://bucket/{key}")]);
        ran.status.success() && ran.out == bytes
    }

    /// The bytes of a key.
    pub fn read(&self, key: &str) -> Vec<u8> {
        self.runner.read(&format!("s3://bucket/{key}"))
    }
}
