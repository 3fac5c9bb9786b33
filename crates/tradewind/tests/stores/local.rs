//! A local directory, not opened by a server, as a store of the commands.

use super::support::command_runner::CommandRunner;
use super::support::server::ServerSetup;
use super::{all_is_done_with, assert_all_is_copied_between, content};

const TWO: &str =
    "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[store.spare]\ntype = \"local\"\npath = \"spare\"\n";

/// A caller with two local stores and no S3 server.
fn caller() -> CommandRunner {
    CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_settings(TWO)
}

#[test]
fn directory_supports_all_commands() {
    let caller = caller();
    all_is_done_with(&caller, "disk");
    let checked = caller.run_ok(&["store", "check", "disk"]);
    assert!(checked.ends_with("all sound\n"), "{checked}");
}

/// Both stores keep references to the bytes in transit.
#[test]
fn copies_between_two_directories() {
    let caller = caller();
    caller.run_ok(&["mb", "disk://bucket"]);
    caller.run_ok(&["mb", "spare://bucket"]);
    assert_all_is_copied_between(&caller, "disk", "spare");
    // Sizes around those of buffers and extents, concurrently.
    for size in [127, 128, 129, 255, 256, 257, 640, 1023, 1024, 1025, 1400, 2048, 2500, 5000, 9000] {
        caller.write(format!("sizes/{size}"), content(size, usize::try_from(size).unwrap() * 1024 + 13));
    }
    caller.run_ok(&["cp", "-r", "sizes", "disk://bucket/sizes"]);
    caller.run_ok(&["cp", "-r", "disk://bucket/sizes", "spare://bucket/sizes", "--max-memory", "4MiB"]);
    caller.run_ok(&["cp", "-r", "spare://bucket/sizes", "back"]);
    // Parts that begin in the middle of a buffer, so that a buffer of one store spans two of the other.
    let large = content(1, 17_000_000);
    caller.write("large", &large);
    caller.run_ok(&["cp", "large", "disk://bucket/large", "--chunk-size", "5300003B"]);
    caller.run_ok(&["cp", "disk://bucket/large", "spare://bucket/large", "--chunk-size", "5500001B"]);
    assert!(caller.read("spare://bucket/large") == large);
    for size in [127, 256, 1025, 1400, 9000] {
        let bytes = content(size, usize::try_from(size).unwrap() * 1024 + 13);
        assert!(std::fs::read(caller.path(format!("back/{size}"))).unwrap() == bytes, "{size}");
    }
}

#[test]
fn copies_between_a_directory_and_a_server() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let caller = CommandRunner::new(server.endpoint).with_settings(TWO);
    caller.run_ok(&["mb", "s3://bucket"]);
    caller.run_ok(&["mb", "disk://bucket"]);
    assert_all_is_copied_between(&caller, "disk", "s3");
    caller.run_ok(&["rm", "-r", "s3://bucket"]);
    caller.run_ok(&["rm", "-r", "disk://bucket"]);
    assert_all_is_copied_between(&caller, "s3", "disk");
}

#[test]
fn missing_or_locked_directory_fails() {
    let data = tempfile::tempdir().unwrap();
    let caller = caller();
    let missing = format!(
        "there is no store in {}; create one with tradewind mb disk://BUCKET",
        caller.path("disk").display()
    );
    for command in
        [&["ls", "disk://bucket"][..], &["cp", "settings.toml", "disk://bucket"], &["rb", "disk://bucket"]]
    {
        caller.run_failing(command, &[&missing]);
    }
    assert!(!caller.path("disk").exists());
    caller.run_ok(&["mb", "disk://bucket"]);
    caller.run_ok(&["cp", "settings.toml", "disk://bucket"]);

    let mut server = ServerSetup::new(&caller.path("disk"), &data.path().join("log")).start().unwrap();
    let ran = caller.run(&["ls", "disk://bucket"]);
    let begin = format!("tradewind: cannot open the store in {}: ", caller.path("disk").display());
    assert!(ran.err.starts_with(&begin) && ran.err.lines().count() == 1, "{}", ran.err);
    assert_eq!(ran.status.code(), Some(1));
    assert!(server.terminate().unwrap().success());
    assert_eq!(caller.keys("disk://bucket"), ["settings.toml"]);
    assert_eq!(caller.read("disk://bucket/settings.toml"), TWO.as_bytes());
}

/// No command opens a store whose index proves a loss.
#[test]
fn commands_refuse_a_store_that_lost_the_end_of_its_log() {
    let caller = caller();
    caller.run_ok(&["mb", "disk://bucket"]);
    caller.write("file", "content");
    caller.run_ok(&["cp", "file", "disk://bucket/file"]);
    let segments = std::fs::read_dir(caller.path("disk/segments")).unwrap();
    let last = segments.map(|entry| entry.unwrap().path()).max().unwrap();
    std::fs::remove_file(last).unwrap();
    let expected =
        ["acknowledged changes are lost", "bucket/file", "tradewind store check", "serve --accept-loss"];
    for command in [
        &["ls", "disk://bucket"] as &[&str],
        &["cp", "file", "disk://bucket/other"],
        &["cp", "disk://bucket/file", "back"],
        &["bench", "object", "disk://bucket", "--time", "1s"],
        &["store", "reindex", "disk"],
    ] {
        let refused = caller.run(command);
        assert_eq!(refused.status.code(), Some(1), "{command:?}: {}", refused.err);
        assert!(expected.iter().all(|words| refused.err.contains(words)), "{command:?}: {}", refused.err);
    }
    caller.run_ok(&["store", "reindex", "disk", "--accept-loss"]);
    assert_eq!(caller.keys("disk://bucket"), Vec::<String>::new());
}
