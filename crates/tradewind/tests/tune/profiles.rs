//! `tradewind profiles`, and the use of a profile on another client and for another store.

use serde_json::Value as Json;

use super::support::command_runner::CommandRunner;
use super::support::server::ServerSetup;
use super::support::test_store::TestStore;
use super::tune;

/// A profile of a local store, as if exported on another machine.
fn exported(store: &str, cpus: usize, measured_at: &str) -> String {
    format!(
        "store = \"{store}\"\nmeasured_at = \"{measured_at}\"\nclient = \"elsewhere\"\ncpus = {cpus}\nrtt_ms = 50.0\n\
         [[upload]]\nsize = \"16KiB\"\nconcurrency = 8\nlatency_ms = 52.0\nerror_percent = 2.0\n\
         [[upload]]\nsize = \"16KiB\"\nconcurrency = 64\nlatency_ms = 160.0\nerror_percent = 2.0\n\
         [[download]]\nsize = \"1MiB\"\nconcurrency = 16\nlatency_ms = 400.0\nerror_percent = 2.0\n"
    )
}

/// Imports a profile.
fn import(caller: &CommandRunner, text: &str) -> String {
    let ran = caller.spawn(&["profiles", "import", "-"]).with_stdin(text.as_bytes()).wait_for_output();
    assert!(ran.status.success() && ran.err.is_empty(), "{ran:?}");
    String::from_utf8(ran.out).unwrap()
}

fn shown(caller: &CommandRunner, store: &str) -> Json {
    serde_json::from_str(&caller.run_ok(&["profiles", "show", store, "--json"])).unwrap()
}

/// The name of the scene's store in profiles.
fn own_name(scene: &TestStore) -> String {
    format!("S3Store({})", scene.runner.endpoint())
}

#[test]
fn a_profile_is_listed_shown_exported_removed_and_imported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let ran = caller.run(&["profiles", "list"]);
    assert_eq!((ran.status.code(), ran.out.as_slice()), (Some(0), &b""[..]));
    assert!(ran.err.contains("no store has been tuned"), "{}", ran.err);
    caller.run_ok(&tune("s3://bucket --budget 32MiB,6s"));
    let (name, address) = (own_name(&scene), caller.endpoint().to_string());
    let listed = caller.run_ok(&["profiles", "list"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.starts_with("store ") && listed.contains(&name), "{listed}");
    let line: Json = serde_json::from_str(&caller.run_ok(&["profiles", "list", "--json"])).unwrap();
    assert_eq!(line["store"], name);
    assert!(
        line["upload_samples"].as_u64() > Some(0) && line["memory_bytes"].as_u64() > Some(1 << 20),
        "{line}"
    );
    // By its scheme, its host and a part of its name.
    for store in ["s3://", "s3://bucket", address.as_str(), "127.0.0"] {
        let output = caller.run_ok(&["profiles", "show", store]);
        for word in
            ["RTT ", "upload, measured", "best operating points (advice)\n", "upload: ", "cp and sync use"]
        {
            assert!(output.contains(word), "{store}: {word}: {output}");
        }
    }
    let own = shown(caller, "s3://");
    assert_eq!(
        (own["extrapolated"].as_bool(), own["concurrency_by_size"].as_array().unwrap().len()),
        (Some(false), 4)
    );
    let exported = caller.run_ok(&["profiles", "export", "s3://"]);
    caller.run_ok(&["profiles", "export", "s3://", "store.toml"]);
    assert_eq!(std::fs::read_to_string(caller.path("store.toml")).unwrap(), exported);
    assert_eq!(caller.run_ok(&["profiles", "forget", "s3://"]), "");
    caller.run_failing(
        &["profiles", "forget", "s3://"],
        &["there is no profile of S3Store(HOST): tradewind profiles list prints the existing ones"],
    );
    assert!(
        caller
            .run_ok(&["profiles", "import", "store.toml"])
            .starts_with(&format!("profile of {name} saved: "))
    );
    assert_eq!(shown(caller, "s3://"), own);
}

#[test]
fn a_profile_of_another_client_is_extrapolated() {
    let scene = TestStore::new();
    let (caller, name) = (&scene.runner, own_name(&scene));
    let cpus = std::thread::available_parallelism().unwrap().get();
    import(caller, &exported(&name, cpus, "2026-01-01T00:00:00Z"));
    assert_eq!(shown(caller, "s3://")["extrapolated"], false);
    import(caller, &exported(&name, cpus * 64, "2026-01-02T00:00:00Z"));
    let extrapolated = shown(caller, "s3://");
    assert_eq!(
        (&extrapolated["extrapolated"], &extrapolated["from"]),
        (&Json::from(true), &Json::from(name.as_str()))
    );
    let output = caller.run_ok(&["profiles", "show", "s3://"]);
    let from = format!(
        "best operating points (advice), from the profile of {name}, extrapolated from a client with {} CPUs and 50 ms RTT",
        cpus * 64
    );
    assert!(output.contains(&from), "{output}");
    caller.write("file", [7; 100_000]);
    assert_eq!(caller.run(&["cp", "file", "s3://bucket/there"]).err, "");
}

#[test]
fn chunk_size_overrides_the_profile_exactly() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    // A slow link, for which the profile would choose small requests.
    let slow = "[[upload]]\nsize = \"1MiB\"\nconcurrency = 16\nlatency_ms = 2000.0\nerror_percent = 2.0\n";
    let known = exported(&own_name(&scene), 2, "2026-01-01T00:00:00Z").replace("400.0", "2000.0");
    import(caller, &(known + slow));
    caller.write("large", vec![7; 32 << 20]);
    caller.run_ok(&["cp", "--chunk-size", "7MiB", "large", "s3://bucket/large"]);
    let etag = caller.stat("s3://bucket/large")["etag"].as_str().unwrap().to_owned();
    assert!(etag.trim_matches('"').ends_with("-5"), "{etag}");
}

#[test]
fn tuning_another_store_starts_from_the_profile_of_its_host() {
    let scene = TestStore::new();
    let data = tempfile::tempdir().unwrap();
    let other = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let name = own_name(&scene);
    let caller = &scene.runner;
    import(caller, &exported(&name, 2, "2026-01-01T00:00:00Z"));
    let url = format!("http://{}", other.endpoint);
    let at = ["--endpoint-url", url.as_str()];
    let with = |line: &[&'static str]| [line, &at[..]].concat();
    let output = caller.run_ok(&with(&["profiles", "show", "s3://"]));
    let none = format!(
        "there is no profile of S3Store({})\n\nbest operating points (advice), from the profile of {name}, extrapolated",
        other.endpoint
    );
    assert!(output.starts_with(&none), "{output}");
    caller.run_ok(&with(&["mb", "s3://bucket"]));
    caller.write("file", [7; 100_000]);
    assert_eq!(caller.run(&with(&["cp", "file", "s3://bucket/there"])).err, "");
    let output = caller.run_ok(&with(&["tune", "s3://bucket", "--budget", "16MiB,5s"]));
    let begins =
        "starting from the profile of 127.0.0.1, extrapolated from a client with 2 CPUs and 50 ms RTT\n";
    assert!(output.contains(begins), "{output}");
    // The new profile has only its own measurements.
    assert_eq!(caller.run_ok(&["profiles", "list"]).lines().count(), 3);
    assert!(!caller.run_ok(&with(&["profiles", "export", "s3://"])).contains("elsewhere"));
    let ran = caller.run(&["profiles", "show", "127.0.0.1"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    assert!(
        ran.err.contains("\"127.0.0.1\" may be ") && ran.err.contains("write a longer part of the name"),
        "{}",
        ran.err
    );
}

#[test]
fn a_newer_profile_is_replaced_only_on_request() {
    let scene = TestStore::new();
    let (caller, name) = (&scene.runner, own_name(&scene));
    import(caller, &exported(&name, 2, "2026-02-01T00:00:00Z"));
    caller.write("older.toml", exported(&name, 3, "2026-01-01T00:00:00Z"));
    caller.run_failing(
        &["profiles", "import", "older.toml"],
        &["the profile of S3Store(HOST) was measured at 2026-02-01T00:00:00Z, and this one was measured at \
           2026-01-01T00:00:00Z; use --replace to import it anyway"],
    );
    caller.write("timeless.toml", exported(&name, 3, ""));
    assert_eq!(caller.run(&["profiles", "import", "timeless.toml"]).status.code(), Some(1));
    caller.run_ok(&["profiles", "import", "older.toml", "--replace"]);
    assert_eq!(shown(caller, "s3://")["profile"]["cpus"], 3);
    // An identical profile is accepted.
    caller.run_ok(&["profiles", "import", "older.toml"]);
}

#[test]
fn invalid_profiles_are_rejected_and_broken_entries_reported() {
    let scene = TestStore::new();
    let (caller, name) = (&scene.runner, own_name(&scene));
    caller.write("nonsense", "\nstore = [");
    let ran = caller.run(&["profiles", "import", "nonsense"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.err.starts_with("tradewind: nonsense: line 2: this is not TOML"), "{}", ran.err);
    assert!(ran.err.ends_with("nonsense is not a profile: it names no store\n"), "{}", ran.err);
    caller.write("empty", "store = \"S3Store(there)\"\n");
    caller.run_failing(&["profiles", "import", "empty"], &["empty is not a profile: it has no samples"]);
    let broken = exported(&name, 2, "2026-01-01T00:00:00Z").replacen("concurrency = 8", "concurrency = 0", 1);
    caller.write("broken", broken);
    let ran = caller.run(&["profiles", "import", "broken"]);
    assert_eq!(ran.status.code(), Some(1), "the rest of the profile is saved");
    assert!(
        ran.err.contains("broken: line 6: upload: concurrency must be a number from 1 to 4096"),
        "{}",
        ran.err
    );
    assert_eq!(shown(caller, "s3://")["profile"]["upload_samples"], 1);
    assert_eq!(caller.run(&["profiles", "show", "nowhere"]).status.code(), Some(1));
    assert_eq!(caller.run(&["profiles", "show", "nowhere://"]).status.code(), Some(2));
    assert_eq!(caller.run(&["profiles", "export"]).status.code(), Some(2));
}
