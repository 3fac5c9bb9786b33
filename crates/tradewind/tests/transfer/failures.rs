//! What is said where something cannot be done: one line that names what and why, and exit status 1; 2 where the
//! command line itself is wrong.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use super::{Scene, names};
use crate::support::caller::Caller;

/// What a listing of a bucket says that is not there.
pub const NO_BUCKET_LISTED: &str =
    "s3://nowhere/: GET s3://nowhere on HOST: The specified bucket does not exist (NoSuchBucket)";

#[test]
fn what_is_not_there() {
    let scene = Scene::new();
    let caller = &scene.caller;
    caller.write("file", "x");
    let bucket = "The specified bucket does not exist (NoSuchBucket)";
    let key = "The specified key does not exist (NoSuchKey)";
    let get = |why: &str| format!("GET s3://bucket/none on HOST: {why}");
    caller.fails(&["ls", "s3://nowhere"], &[&format!("GET s3://nowhere on HOST: {bucket}")]);
    caller.fails(&["ls", "s3://bucket/none"], &["there is nothing at s3://bucket/none"]);
    caller.fails(&["cat", "s3://bucket/none"], &[&get(key)]);
    caller.fails(&["cp", "s3://bucket/none", "x"], &[&get(key)]);
    caller.fails(&["cp", "s3://bucket/none", "-"], &[&get(key)]);
    caller.fails(
        &["stat", "s3://bucket/none"],
        &["HEAD s3://bucket/none on HOST: there is no such object (404 Not Found)"],
    );
    caller.fails(&["cat", "s3://nowhere/x"], &[&format!("GET s3://nowhere/x on HOST: {bucket}")]);
    caller
        .fails(&["cp", "file", "s3://nowhere/x"], &[&format!("file: PUT s3://nowhere/x on HOST: {bucket}")]);
    caller.fails(&["cp", "-r", "s3://nowhere", "x"], &[NO_BUCKET_LISTED]);
    caller.fails(&["rm", "-r", "s3://nowhere"], &[NO_BUCKET_LISTED]);
    caller.fails(&["rb", "s3://nowhere"], &[&format!("DELETE s3://nowhere on HOST: {bucket}")]);
    caller.fails(
        &["cp", "absent", "s3://bucket"],
        &["cannot open ./absent: No such file or directory (os error 2)"],
    );
    assert_eq!(names(caller.root()), ["file"]);
}

#[test]
fn what_is_logged_is_what_the_variable_says() {
    // Nobody is there: it is asked again.
    let (nobody, again) = (([127, 0, 0, 1], 1).into(), "a request is sent again");
    let said = |level| {
        let ran = Caller::new(nobody).with("TRADEWIND_LOG_LEVEL", level).run(&["ls", "s3://bucket"]);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        ran.err
    };
    assert!(said("debug").contains(again));
    assert!(!said("warn").contains(again));
    let wrong = said("loud");
    assert!(wrong.contains("TRADEWIND_LOG_LEVEL: ") && !wrong.contains(again), "{wrong}");
}

#[test]
fn what_is_not_meant() {
    let scene = Scene::new();
    let caller = &scene.caller;
    caller.write("dir/a", "x");
    scene.store("dir/a", b"x");
    caller.fails(&["cp", "dir", "s3://bucket"], &["dir is a directory; copy what is below it with -r"]);
    caller
        .fails(&["cp", "-r", "dir/a", "s3://bucket"], &["dir/a is not a directory; copy a file without -r"]);
    let prefix = "s3://bucket/dir/ is not one object";
    caller.fails(&["cp", "s3://bucket/dir/", "."], &[&format!("{prefix}; copy everything below it with -r")]);
    caller.fails(&["rm", "s3://bucket/dir/"], &[&format!("{prefix}; remove everything below it with -r")]);
    caller.fails(
        &["cp", "-", "s3://bucket/dir/"],
        &[&format!("{prefix}; what comes from standard input needs a whole key")],
    );
    let standard = "- is standard input or output, and the other place must be s3://BUCKET/KEY";
    caller.fails(&["cp", "-", "dir/b"], &[standard]);
    caller.fails(&["mb", "s3://bucket/x"], &["s3://bucket/x is more than a bucket; write s3://bucket"]);
    caller.fails(&["mb", "s3://bucket"], &["bucket \"bucket\" exists already"]);
    caller.fails(
        &["rb", "s3://bucket"],
        &["DELETE s3://bucket on HOST: The bucket you tried to delete is not empty (BucketNotEmpty)"],
    );
    assert_eq!(scene.names(), ["dir/a"]);
}

#[test]
fn a_wrong_command_line_ends_with_two() {
    let caller = Caller::new("127.0.0.1:1".parse().unwrap());
    for (arguments, words) in [
        (
            &["cp", "x", "gs://bucket/x"][..],
            "tradewind: there is no store \"gs\"; places begin with s3:// or swift://, or are paths, and a [store.gs] in \
             the settings file (--config) would be one\n",
        ),
        (&["ls", "bucket"], "\"bucket\" is not in a store; write s3://BUCKET/KEY"),
        (&["ls", "s3:///x"], "s3:///x names no bucket; write s3://BUCKET/KEY"),
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
fn who_may_not() {
    let scene = Scene::new();
    scene.store("x", b"x");
    let caller = &scene.caller;
    let wrong = Caller::new(caller.endpoint()).with("AWS_SECRET_ACCESS_KEY", "wrong");
    wrong.write("file", "x");
    let signature = "The request signature we calculated does not match the signature you provided. Check your key and \
                     signing method (SignatureDoesNotMatch); check the secret key";
    wrong.fails(&["ls"], &[&format!("GET s3:// on HOST: {signature}")]);
    wrong.fails(&["cat", "s3://bucket/x"], &[&format!("GET s3://bucket/x on HOST: {signature}")]);
    wrong
        .fails(&["cp", "file", "s3://bucket/y"], &[&format!("file: PUT s3://bucket/y on HOST: {signature}")]);
    let unknown = Caller::new(caller.endpoint()).with("AWS_ACCESS_KEY_ID", "nobody");
    unknown.fails(
        &["cat", "s3://bucket/x"],
        &["GET s3://bucket/x on HOST: The AWS Access Key Id you provided does not exist in our records \
         (InvalidAccessKeyId); check the access key and that it belongs to this store"],
    );
    caller.fails(
        &["cat", "--no-sign-request", "s3://bucket/x"],
        &["GET s3://bucket/x on HOST: Access Denied (AccessDenied)"],
    );
    assert_eq!(scene.names(), ["x"]);
}

#[test]
fn nobody_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let caller = Caller::new(address).with("AWS_MAX_ATTEMPTS", "2");
    caller.write("file", "x");
    let refused = "connecting to HOST failed: Connection refused (os error 111)";
    caller.fails(&["ls"], &[refused]);
    caller.fails(&["ls", "s3://bucket"], &[refused]);
    caller.fails(&["cp", "file", "s3://bucket"], &[&format!("file: {refused}")]);
    caller.fails(&["cp", "-r", "s3://bucket", "there"], &[&format!("s3://bucket/: {refused}")]);
    caller.fails(&["cat", "s3://bucket/x"], &[refused]);
}

#[test]
fn what_this_machine_does_not_let_be_done() {
    let scene = Scene::new();
    let caller = &scene.caller;
    if rustix::process::geteuid().is_root() {
        return crate::support::skip("what_this_machine_does_not_let_be_done", "root may do everything");
    }
    caller.write("here/a", "a");
    caller.write("here/closed/b", "b");
    scene.store("a", b"a");
    scene.store("closed/b", b"b");
    let allow =
        |mode| fs::set_permissions(caller.path("here/closed"), fs::Permissions::from_mode(mode)).unwrap();
    allow(0);
    let denied = "Permission denied (os error 13)";
    caller.fails(
        &["sync", "here", "s3://bucket", "--delete"],
        &[&format!("cannot list here/closed: {denied}")],
    );
    assert_eq!(scene.names(), ["a", "closed/b"]);
    allow(0o500);
    let ran = caller.run(&["cp", "-r", "s3://bucket", "here"]);
    assert!(
        ran.err.starts_with("tradewind: closed/b: cannot make here/closed/.b.") && ran.err.contains(denied)
    );
    assert_eq!(ran.status.code(), Some(1));
    allow(0o700);
}
