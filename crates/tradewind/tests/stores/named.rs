//! Store names, and the errors for names and settings that are invalid.

use super::TestStore;
use super::support::command_runner::CommandRunner;
use super::support::server::run;

#[test]
fn settings_may_redefine_s3() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    caller.write("a", "a");
    caller.run_ok(&["cp", "a", "s3://bucket/one"]);
    caller.run_ok(&["cp", "a", "other://bucket/other"]);
    let other = format!("http://{}", scene.other.endpoint);
    caller.write("settings.toml", format!("[store.s3]\ntype = \"s3\"\nendpoint = \"{other}\"\n"));
    assert_eq!(caller.keys("s3://bucket"), ["other"], "the settings override AWS_ENDPOINT_URL_S3");
    let one = format!("http://{}", scene.one.endpoint);
    let listed = caller.run_ok(&["ls", "s3://bucket", "--endpoint-url", &one]);
    assert!(listed.ends_with("one\n"), "a flag overrides the settings: {listed}");
    let path = caller.path("settings.toml");
    let caller = CommandRunner::new(scene.one.endpoint);
    assert_eq!(caller.keys("s3://bucket"), ["one"], "without settings the environment counts");
    let listed = caller.run_ok(&["ls", "s3://bucket", "--config", path.to_str().unwrap()]);
    assert!(listed.ends_with("other\n"), "{listed}");
}

#[test]
fn each_store_uses_its_own_credentials() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    caller.write("a", "a");
    caller.run_ok(&["cp", "a", "other://bucket/a"]);
    let (id, secret) = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
    let of = |name: &str| caller.environment.iter().find(|(known, _)| known == name).unwrap().1.clone();
    let credentials =
        format!("[there]\naws_access_key_id = {}\naws_secret_access_key = {}\n", of(id), of(secret));
    caller.write("home/.aws/credentials", credentials);
    let wrong = CommandRunner::new(scene.one.endpoint).with_variable(id, "unreachable");
    wrong.write("home/.aws/credentials", std::fs::read(caller.path("home/.aws/credentials")).unwrap());
    let settings = format!(
        "[store.other]\ntype = \"s3\"\nendpoint = \"http://{}\"\nprofile = \"there\"\n",
        scene.other.endpoint
    );
    let wrong = wrong.with_settings(&settings);
    assert_eq!(wrong.read("other://bucket/a"), b"a");
    let ran = wrong.run(&["cp", "other://bucket/a", "s3://bucket/a"]);
    assert!(ran.err.contains("(InvalidAccessKeyId)") && ran.err.lines().count() == 1, "{}", ran.err);
}

/// An invalid command line fails with status 2 and one line.
fn refused(caller: &CommandRunner, arguments: &[&str], said: &str) {
    let ran = caller.run(arguments);
    assert_eq!(ran.err, format!("tradewind: {said}\n"), "{arguments:?}");
    assert_eq!(ran.status.code(), Some(2), "{arguments:?}");
}

#[test]
fn unknown_names_and_unused_flags_are_rejected() {
    let unreachable = || CommandRunner::new("127.0.0.1:1".parse().unwrap());
    let plain = unreachable();
    plain.write("x", "x");
    let said = |name: &str, others: &str| {
        format!(
            "there is no store {name:?}; locations begin with {others}, or are paths; to add this store, define \
             [store.{name}] in the settings file (--config)"
        )
    };
    refused(&plain, &["ls", "gs://bucket"], &said("gs", "s3:// or swift://"));
    let two = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[store.west]\ntype = \"s3\"\n";
    let caller = unreachable().with_settings(two);
    let others = "s3://, swift://, disk:// or west://";
    for command in [
        &["cp", "settings.toml", "photos://bucket/x"][..],
        &["cp", "-r", "photos://bucket/x", "disk://bucket"],
        &["sync", "photos://bucket", "there"],
        &["ls", "photos://"],
        &["cat", "photos://bucket/x"],
        &["grep", "x", "photos://bucket"],
        &["mb", "photos://bucket"],
    ] {
        refused(&caller, command, &said("photos", others));
    }
    refused(&caller, &["ls", "wets://"], "there is no store \"wets\"; did you mean west://?");
    assert!(!caller.path("disk").exists() && !caller.path("there").exists());
    for (flag, value) in [("--endpoint-url", Some("http://127.0.0.1:1")), ("--no-sign-request", None)] {
        let command: Vec<&str> = ["ls", "disk://bucket", flag].into_iter().chain(value).collect();
        let said = format!("{flag} applies only to s3://, but the location is in disk://; remove the flag");
        refused(&caller, &command, &said);
    }
}

#[test]
fn invalid_settings_are_rejected() {
    let unreachable = || CommandRunner::new("127.0.0.1:1".parse().unwrap());
    let caller = unreachable().with_settings("[store.swift]\ntype = \"local\"\npath = \"p\"\n");
    let at = caller.path("settings.toml");
    let at = at.display();
    let said =
        "swift:// is reserved for stores of type \"swift\", but this store is of type \"local\"; rename it";
    caller.run_failing(&["ls", "swift://"], &[&format!("{at}:1: {said}")]);

    caller.write("settings.toml", "[store.west]\ntype = \"nfs\"\n");
    let ran = caller.run(&["ls", "west://"]);
    let wrong = format!(
        "tradewind: the settings are wrong:\n  {at}:2: unknown store type \"nfs\"; use \"local\", \"s3\" or \"swift\"\n"
    );
    assert_eq!((ran.err, ran.status.code()), (wrong, Some(2)));
    let ran = caller.run(&["ls", "west://", "--config", "absent.toml"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(ran.err.contains("--config: cannot read the settings file absent.toml: "), "{}", ran.err);
}

#[test]
fn serve_needs_a_choice_among_several_stores() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settings.toml");
    let two = "[store.a]\ntype = \"local\"\npath = \"a\"\n[store.b]\ntype = \"local\"\npath = \"b\"\n";
    std::fs::write(&path, two).unwrap();
    let ended = run(&["serve", "--config", path.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(said.contains(":4: several stores are configured; choose the one to serve"), "{said}");
    std::fs::write(&path, format!("{two}[server]\nstore = \"b\"\n")).unwrap();
    let start = super::ServerSetup::new(&directory.path().join("data"), &directory.path().join("log"));
    let server = start.flag("--config", path.as_os_str()).start().unwrap();
    CommandRunner::new(server.endpoint).run_ok(&["mb", "s3://bucket"]);
    assert!(directory.path().join("b").is_dir() && !directory.path().join("a").exists());
}
