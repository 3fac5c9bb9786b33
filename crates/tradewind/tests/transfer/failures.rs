//! Error messages and exit status: one line with the subject and the reason and status 1, or 2 for an invalid command
//! line.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use super::{TestStore, names};
use crate::support::command_runner::CommandRunner;

/// The error of listing a missing bucket.
pub const NO_BUCKET_LISTED: &str =
    "s3://nowhere/: GET s3://nowhere on HOST: The specified bucket does not exist (NoSuchBucket)";

#[test]
fn missing_objects_buckets_and_files_are_reported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("file", "x");
    let bucket = "The specified bucket does not exist (NoSuchBucket)";
    let key = "The specified key does not exist (NoSuchKey)";
    let get = |why: &str| format!("GET s3://bucket/none on HOST: {why}");
    caller.run_failing(&["ls", "s3://nowhere"], &[&format!("GET s3://nowhere on HOST: {bucket}")]);
    caller.run_failing(&["ls", "s3://bucket/none"], &["there is nothing at s3://bucket/none"]);
    caller.run_failing(&["cat", "s3://bucket/none"], &[&get(key)]);
    caller.run_failing(&["cp", "s3://bucket/none", "x"], &[&get(key)]);
    caller.run_failing(&["cp", "s3://bucket/none", "-"], &[&get(key)]);
    caller.run_failing(
        &["stat", "s3://bucket/none"],
        &["HEAD s3://bucket/none on HOST: there is no such object (404 Not Found)"],
    );
    caller.run_failing(&["cat", "s3://nowhere/x"], &[&format!("GET s3://nowhere/x on HOST: {bucket}")]);
    caller.run_failing(
        &["cp", "file", "s3://nowhere/x"],
        &[&format!("file: PUT s3://nowhere/x on HOST: {bucket}")],
    );
    caller.run_failing(&["cp", "-r", "s3://nowhere", "x"], &[NO_BUCKET_LISTED]);
    caller.run_failing(&["rm", "-r", "s3://nowhere"], &[NO_BUCKET_LISTED]);
    caller.run_failing(&["rb", "s3://nowhere"], &[&format!("DELETE s3://nowhere on HOST: {bucket}")]);
    caller.run_failing(
        &["cp", "absent", "s3://bucket"],
        &["cannot open ./absent: No such file or directory (os error 2)"],
    );
    assert_eq!(names(caller.directory_path()), ["file"]);
}

#[test]
fn log_level_follows_the_environment_variable() {
    // Connections to this port are refused, so the request is retried.
    let (closed_port, retry) = (([127, 0, 0, 1], 1).into(), "retrying a request");
    let log = |level| {
        let ran = CommandRunner::new(closed_port)
            .with_variable("TRADEWIND_LOG_LEVEL", level)
            .run(&["ls", "s3://bucket"]);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        ran.err
    };
    assert!(log("debug").contains(retry));
    assert!(!log("warn").contains(retry));
    let wrong = log("loud");
    assert!(wrong.contains("TRADEWIND_LOG_LEVEL: ") && !wrong.contains(retry), "{wrong}");
}

#[test]
fn wrong_kind_of_argument_is_reported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("dir/a", "x");
    scene.store("dir/a", b"x");
    caller.run_failing(
        &["cp", "dir", "s3://bucket"],
        &["dir is a directory; use -r to copy everything below it"],
    );
    caller.run_failing(
        &["cp", "-r", "dir/a", "s3://bucket"],
        &["dir/a is not a directory; copy a file without -r"],
    );
    let prefix = "s3://bucket/dir/ is not one object";
    caller.run_failing(
        &["cp", "s3://bucket/dir/", "."],
        &[&format!("{prefix}; copy everything below it with -r")],
    );
    caller.run_failing(
        &["rm", "s3://bucket/dir/"],
        &[&format!("{prefix}; remove everything below it with -r")],
    );
    caller.run_failing(
        &["cp", "-", "s3://bucket/dir/"],
        &[&format!("{prefix}; to store standard input, give a complete key")],
    );
    let bucket = "s3://bucket is a bucket, not an object; list it with ls";
    for command in [&["stat", "s3://bucket"][..], &["cat", "s3://bucket/"], &["cp", "s3://bucket", "-"]] {
        caller.run_failing(command, &[bucket]);
    }
    let standard = "with - (standard input or output), the other argument must be s3://BUCKET/KEY";
    caller.run_failing(&["cp", "-", "dir/b"], &[standard]);
    caller.run_failing(&["mb", "s3://bucket/x"], &["s3://bucket/x is more than a bucket; write s3://bucket"]);
    caller.run_failing(&["mb", "s3://bucket"], &["bucket \"bucket\" already exists"]);
    caller.run_failing(
        &["rb", "s3://bucket"],
        &["DELETE s3://bucket on HOST: The bucket you tried to delete is not empty (BucketNotEmpty)"],
    );
    assert_eq!(scene.names(), ["dir/a"]);
}

#[test]
fn invalid_command_line_exits_with_status_2() {
    let caller = CommandRunner::new("127.0.0.1:1".parse().unwrap());
    for (arguments, words) in [
        (
            &["cp", "x", "gs://bucket/x"][..],
            "tradewind: there is no store \"gs\"; locations begin with s3:// or swift://, or are paths; to add this \
             store, define [store.gs] in the settings file (--config)\n",
        ),
        (&["ls", "bucket"], "\"bucket\" is not in a store; write s3://BUCKET/KEY"),
        (&["ls", "s3:///x"], "s3:///x has no bucket; write s3://BUCKET/KEY"),
        (&["cp", "x", "S3://bucket/x"], "there is no store \"S3\"; did you mean s3://?\n"),
        (&["cp", "x", "swfit://bucket/x"], "there is no store \"swfit\"; did you mean swift://?\n"),
        (
            &["cp", "x", "s3:/bucket/key"],
            "\"s3:/bucket/key\" lacks a slash of s3://; write s3://bucket/key, or ./s3:/bucket/key for a path\n",
        ),
        (
            &["sync", "west:/bucket/x", "y"],
            "\"west:/bucket/x\" lacks a slash of west://; write west://bucket/x, or ./west:/bucket/x for a path\n",
        ),
        (&["cp", "x"], "<DESTINATION>"),
        (&["cp", "x", "s3://bucket", "--chunk-size", "big"], "--chunk-size"),
        (&["sync", "x", "y", "--size-only", "--checksum"], "--checksum"),
    ] {
        let ran = caller.run(arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(words), "{words:?} was expected: {}", ran.err);
    }
}

#[test]
fn wrong_flags_and_settings_are_named() {
    let caller = CommandRunner::new("127.0.0.1:1".parse().unwrap());
    let region = "\"no region\" is not a region; write it like us-east-1";
    caller.run_failing(&["ls", "--region", "no region"], &[&format!("--region: {region}")]);
    let ran = caller.run(&["ls", "--endpoint-url", "no url"]);
    assert!(ran.err.starts_with("tradewind: --endpoint-url: "), "{ran:?}");
    let set = "[store.west]\ntype = \"s3\"\nregion = \"no region\"\n";
    let configured = CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_settings(set);
    let ran = configured.run(&["ls", "west://bucket"]);
    assert!(ran.err.contains(&format!("settings.toml:3: {region}")), "{ran:?}");
    let variable =
        CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_variable("AWS_REGION", "no region");
    variable.run_failing(&["ls"], &[&format!("AWS_REGION: {region}")]);
}

#[test]
fn rejected_credentials_are_reported() {
    let scene = TestStore::new();
    scene.store("x", b"x");
    let caller = &scene.runner;
    let wrong = CommandRunner::new(caller.endpoint()).with_variable("AWS_SECRET_ACCESS_KEY", "wrong");
    wrong.write("file", "x");
    let signature = "The request signature we calculated does not match the signature you provided. Check your key and \
                     signing method (SignatureDoesNotMatch); check the secret key";
    wrong.run_failing(&["ls"], &[&format!("GET s3:// on HOST: {signature}")]);
    wrong.run_failing(&["cat", "s3://bucket/x"], &[&format!("GET s3://bucket/x on HOST: {signature}")]);
    wrong.run_failing(
        &["cp", "file", "s3://bucket/y"],
        &[&format!("file: PUT s3://bucket/y on HOST: {signature}")],
    );
    let unknown = CommandRunner::new(caller.endpoint()).with_variable("AWS_ACCESS_KEY_ID", "nobody");
    unknown.run_failing(
        &["cat", "s3://bucket/x"],
        &["GET s3://bucket/x on HOST: The AWS Access Key Id you provided does not exist in our records \
         (InvalidAccessKeyId); check the access key and that it belongs to this store"],
    );
    caller.run_failing(
        &["cat", "--no-sign-request", "s3://bucket/x"],
        &["GET s3://bucket/x on HOST: Access Denied (AccessDenied); the request was not signed as --no-sign-request \
           asks"],
    );
    assert_eq!(scene.names(), ["x"]);
}

#[test]
fn refused_connection_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let caller = CommandRunner::new(address).with_variable("AWS_MAX_ATTEMPTS", "2");
    caller.write("file", "x");
    let refused = "connecting to HOST failed: Connection refused (os error 111)";
    caller.run_failing(&["ls"], &[refused]);
    caller.run_failing(&["ls", "s3://bucket"], &[refused]);
    caller.run_failing(&["cp", "file", "s3://bucket"], &[&format!("file: {refused}")]);
    caller.run_failing(&["cp", "-r", "s3://bucket", "there"], &[&format!("s3://bucket/: {refused}")]);
    caller.run_failing(&["cat", "s3://bucket/x"], &[refused]);
}

#[test]
fn local_permission_errors_are_reported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    if rustix::process::geteuid().is_root() {
        return crate::support::skip("local_permission_errors_are_reported", "root may do everything");
    }
    caller.write("here/a", "a");
    caller.write("here/closed/b", "b");
    scene.store("a", b"a");
    scene.store("closed/b", b"b");
    let allow =
        |mode| fs::set_permissions(caller.path("here/closed"), fs::Permissions::from_mode(mode)).unwrap();
    allow(0);
    let denied = "Permission denied (os error 13)";
    caller.run_failing(
        &["sync", "here", "s3://bucket", "--delete"],
        &[
            &format!("cannot list here/closed: {denied}"),
            "1 item was not removed: the source may have what could not be listed",
        ],
    );
    assert_eq!(scene.names(), ["a", "closed/b"]);
    caller.write("here/z", "z");
    caller.run_ok(&["sync", "here", "s3://bucket", "--delete", "--exclude", "closed/*"]);
    assert_eq!(scene.names(), ["a", "closed/b", "z"]);
    // At the destination, only names in the directory are in doubt.
    scene.store("new", b"new");
    caller.run_failing(&["sync", "s3://bucket", "here"], &[&format!("cannot list here/closed: {denied}")]);
    assert_eq!(fs::read(caller.path("here/new")).unwrap(), b"new");
    allow(0o500);
    let ran = caller.run(&["cp", "-r", "s3://bucket", "here"]);
    assert!(
        ran.err.starts_with("tradewind: cannot create here/closed/b: ") && ran.err.contains(denied),
        "{ran:?}"
    );
    assert_eq!(ran.status.code(), Some(1));
    allow(0o700);
}
