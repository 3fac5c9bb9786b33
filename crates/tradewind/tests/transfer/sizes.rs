//! Round trips of objects of every size: empty, at the boundaries of parts and chunks, and beyond the memory limit.

use std::fs;

use super::{TestStore, content};
use crate::support::scripted_server::checksum;

const CHUNK: usize = 5 << 20;
/// Flags for parts and chunks of 5 MiB.
const TUNED: [&str; 2] = ["--chunk-size", "5MiB"];

#[test]
fn sizes_at_chunk_boundaries_round_trip() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let sizes =
        [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK - 1, 3 * CHUNK, 3 * CHUNK + 1, 16 << 20];
    let objects = sizes.map(|size| (format!("{size:08}"), content(size as u64, size)));
    for (name, bytes) in &objects {
        caller.write(format!("here/{name}"), bytes);
    }
    caller.run_ok(&[&["cp", "-r", "here", "s3://bucket"], &TUNED[..]].concat());
    for (name, bytes) in &objects {
        let metadata = caller.stat(&format!("s3://bucket/{name}"));
        let parts = (bytes.len() >= 3 * CHUNK).then(|| bytes.len().div_ceil(CHUNK) as u64);
        assert_eq!(
            (metadata["size"].as_u64(), metadata["parts"].as_u64()),
            (Some(bytes.len() as u64), parts)
        );
        assert_eq!(metadata["checksum_type"], "FULL_OBJECT", "{name}");
        assert_eq!(metadata["checksums"]["CRC64NVME"], checksum(bytes), "{name}");
    }
    caller.run_ok(&[&["cp", "-r", "s3://bucket", "there"], &TUNED[..]].concat());
    // With another chunk size, and several concurrent chunks per object.
    caller.run_ok(&["cp", "-r", "s3://bucket", "small", "--chunk-size", "1MB", "--concurrency", "4"]);
    for (name, bytes) in &objects {
        for directory in ["there", "small"] {
            assert!(fs::read(caller.path(directory).join(name)).unwrap() == *bytes, "{name} in {directory}");
        }
    }
}

#[test]
fn sizes_round_trip_through_standard_input_and_output() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1, 16 << 20] {
        let bytes = content(size as u64, size);
        let up = caller
            .spawn(&[&["cp", "-", "s3://bucket/x"], &TUNED[..]].concat())
            .with_stdin(&bytes)
            .wait_for_output();
        assert!(up.status.success() && up.out.is_empty() && up.err.is_empty(), "{:?}", up.err);
        let down = caller.run(&[&["cp", "s3://bucket/x", "-"], &TUNED[..]].concat());
        assert!(down.status.success() && down.out == bytes, "{size} bytes: {}", down.err);
    }
    scene.store("y", b"behind it");
    let both = caller.run(&["cat", "s3://bucket/x", "s3://bucket/y"]);
    assert_eq!(both.out.len(), (16 << 20) + 9);
    assert!(both.out.ends_with(b"behind it"));
}

#[test]
fn large_object_round_trips_with_4_mib_and_one_request() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let bytes = content(1, 16 << 20);
    caller.write("here", &bytes);
    let little = ["--max-memory", "4M", "--concurrency", "1", "--chunk-size", "5m"];
    caller.run_ok(&[&["cp", "here", "s3://bucket/x"], &little[..]].concat());
    caller.run_ok(&[&["cp", "s3://bucket/x", "there"], &little[..]].concat());
    assert!(fs::read(caller.path("there")).unwrap() == bytes);
    let out = caller.run(&[&["cat", "s3://bucket/x"], &little[..]].concat());
    assert!(out.out == bytes, "{}", out.err);
}
