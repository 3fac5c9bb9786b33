//! Swift as a store of the commands and behind the server. If it is not installed, the tests print that and pass.

use super::support::command_runner::CommandRunner;
use super::support::s3::{Request, S3};
use super::support::server::{ServerSetup, root_key};
use super::support::swift::SwiftServer;
use super::{all_is_done_with, assert_all_is_copied_between, content};

pub fn unconfigured() -> CommandRunner {
    CommandRunner::new("127.0.0.1:1".parse().unwrap())
}

/// Adds the variables for Swift's v1 authentication to a caller.
fn user_of(laboratory: &SwiftServer, caller: CommandRunner) -> CommandRunner {
    let said = |name: &str| laboratory.setting(name);
    caller
        .with_variable("ST_AUTH", &said("AUTH_URL"))
        .with_variable("ST_USER", &said("USER"))
        .with_variable("ST_KEY", &said("KEY"))
}

#[test]
fn swift_supports_all_commands() {
    let Some(laboratory) = SwiftServer::start("swift_supports_all_commands") else { return };
    all_is_done_with(&user_of(&laboratory, unconfigured()), "swift");
}

#[test]
fn copies_between_a_server_and_swift() {
    let Some(laboratory) = SwiftServer::start("copies_between_a_server_and_swift") else { return };
    let data = tempfile::tempdir().unwrap();
    let server = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let caller = user_of(&laboratory, CommandRunner::new(server.endpoint));
    caller.run_ok(&["mb", "s3://bucket"]);
    caller.run_ok(&["mb", "swift://bucket"]);
    assert_all_is_copied_between(&caller, "s3", "swift");
    caller.run_ok(&["rm", "-r", "s3://bucket"]);
    caller.run_ok(&["rm", "-r", "swift://bucket"]);
    assert_all_is_copied_between(&caller, "swift", "s3");

    // More metadata than fits into Swift's headers: it is a separate object, read while the object's response is held.
    let long = "x".repeat(1500);
    let headers = vec![
        ("x-amz-meta-long", long.clone()),
        ("x-amz-meta-a_b", "gr\u{fc}n".to_owned()),
        ("x-amz-tagging", format!("k=v&l={}", "y".repeat(250))),
        ("cache-control", "z".repeat(1200)),
    ];
    for size in [1000, 16 << 20] {
        let body = content(1, size);
        let (path, headers) = ("bucket/k", headers.clone());
        let put = Request { method: "PUT", path, headers, body: &body, ..Request::default() };
        let stored = S3::new(server.endpoint, root_key()).send(put).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
        let sequential = ["--concurrency", "1", "--chunk-size", "5MiB"];
        caller.run_ok(&[&["cp", "s3://bucket/k", "swift://bucket/k"], &sequential[..]].concat());
        caller.run_ok(&[&["cp", "swift://bucket/k", "s3://bucket/back"], &sequential[..]].concat());
        let (one, back) = (caller.stat("s3://bucket/k"), caller.stat("s3://bucket/back"));
        assert_eq!(back["metadata"]["long"], long);
        for field in ["metadata", "tags", "content_type", "checksums"] {
            assert_eq!(one[field], back[field], "{field}");
        }
        assert!(caller.read("s3://bucket/back") == body);
    }
}

#[test]
fn server_in_front_of_swift_supports_all_commands() {
    let Some(laboratory) = SwiftServer::start("server_in_front_of_swift_supports_all_commands") else {
        return;
    };
    let data = tempfile::tempdir().unwrap();
    let settings = data.path().join("settings.toml");
    // The key in the environment, everything else in a file.
    let openrc = format!(
        "export ST_AUTH={}\nST_USER='{}'\n",
        laboratory.setting("AUTH_URL"),
        laboratory.setting("USER")
    );
    std::fs::write(data.path().join("cloud.rc"), openrc).unwrap();
    std::fs::write(&settings, "[store.cloud]\ntype = \"swift\"\nopenrc = \"cloud.rc\"\n").unwrap();
    let mut start = ServerSetup::new(&data.path().join("data"), &data.path().join("log"));
    start.environment.push(("ST_KEY".to_owned(), laboratory.setting("KEY")));
    let mut server = start.flag("--config", settings.as_os_str()).start().unwrap();
    let caller = user_of(&laboratory, CommandRunner::new(server.endpoint));
    all_is_done_with(&caller, "s3");
    // Objects written through the server are visible directly, and vice versa.
    caller.run_ok(&["mb", "s3://bucket"]);
    caller.write("a", "through the server");
    caller.run_ok(&["cp", "a", "s3://bucket/a"]);
    assert_eq!(caller.read("swift://bucket/a"), b"through the server");
    // A copy between two names of the same service.
    caller.run_ok(&["cp", "-r", "swift://bucket", "s3://bucket/copy"]);
    assert_eq!(caller.read("swift://bucket/copy/a"), b"through the server");
    assert!(server.terminate().unwrap().success());
}

#[test]
fn missing_variables_are_named() {
    let nothing = "Swift is not configured; set ST_AUTH, ST_USER and ST_KEY, or for Keystone OS_AUTH_URL, \
                   OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME";
    unconfigured().run_failing(&["ls", "swift://"], &[&format!("swift://: {nothing}")]);
    unconfigured().run_failing(&["cp", "x", "swift://bucket/x"], &[&format!("swift://: {nothing}")]);
    let half = unconfigured()
        .with_variable("ST_AUTH", "http://127.0.0.1:1/auth/v1.0")
        .with_variable("ST_USER", "a:u");
    half.run_failing(
        &["ls", "swift://"],
        &["swift://: ST_KEY is not set, and Swift's own authentication needs it"],
    );
    let keystone = unconfigured()
        .with_variable("OS_AUTH_URL", "http://127.0.0.1:1/v3")
        .with_variable("OS_USERNAME", "u");
    keystone.run_failing(
        &["ls", "swift://bucket"],
        &["swift://: OS_PASSWORD and OS_PROJECT_NAME are not set, and Keystone needs them"],
    );
    let cloud = unconfigured().with_settings("[store.cloud]\ntype = \"swift\"\nopenrc = \"cloud.rc\"\n");
    let (settings, file) = (cloud.path("settings.toml"), cloud.path("cloud.rc"));
    let (settings, shown) = (settings.display(), file.display());
    let absent = "No such file or directory (os error 2)";
    cloud.run_failing(
        &["ls", "cloud://"],
        &[&format!("cloud://: {settings}:3: cannot read {shown}: {absent}")],
    );
    cloud
        .write("cloud.rc", "export OS_AUTH_URL=http://k/v3\nOS_USERNAME=u\nOS_PASSWORD=$OS_PASSWORD_INPUT\n");
    cloud.run_failing(
        &["ls", "cloud://"],
        &[&format!(
            "cloud://: {shown}: OS_PASSWORD and OS_PROJECT_NAME are not set, and Keystone needs them"
        )],
    );
}

#[test]
fn rejected_credentials_and_missing_buckets_fail() {
    let Some(laboratory) = SwiftServer::start("rejected_credentials_and_missing_buckets_fail") else {
        return;
    };
    let wrong = user_of(&laboratory, unconfigured()).with_variable("ST_KEY", "guessed");
    let ran = wrong.run(&["ls", "swift://"]);
    let host = laboratory.setting("AUTH_URL").split('/').nth(2).unwrap().to_owned();
    let err = ran.err.replace(&host, "SWIFT");
    assert!(err.contains("SWIFT") && err.contains("401 Unauthorized"), "{err}");
    assert!(err.ends_with("check the user, the key and the account\n") && !err.contains("guessed"), "{err}");
    assert_eq!((err.lines().count(), ran.status.code()), (1, Some(1)), "{err}");
    let caller = user_of(&laboratory, unconfigured());
    caller.write("x", "x");
    for command in
        [&["cat", "swift://nowhere/x"][..], &["cp", "x", "swift://nowhere/x"], &["ls", "swift://nowhere"]]
    {
        let ran = caller.run(command);
        assert_eq!((ran.err.lines().count(), ran.status.code()), (1, Some(1)), "{}", ran.err);
    }
}
