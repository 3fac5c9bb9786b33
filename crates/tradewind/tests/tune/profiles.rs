//! `tradewind profiles`, and what becomes of a profile on another client and of another store.

use serde_json::Value as Json;

use super::support::caller::Caller;
use super::support::scene::Scene;
use super::support::server::Start;
use super::tune;

/// A profile of a store here, as another machine may have made it.
fn exported(store: &str, cores: usize, made: &str) -> String {
    format!(
        "store = \"{store}\"\nmade = \"{made}\"\nclient = \"elsewhere\"\ncores = {cores}\nround_trip_ms = 50.0\n\
         [[upload]]\nsize = \"16KiB\"\nparallel = 8\nlatency_ms = 52.0\nerror_percent = 2.0\n\
         [[upload]]\nsize = \"16KiB\"\nparallel = 64\nlatency_ms = 160.0\nerror_percent = 2.0\n\
         [[download]]\nsize = \"1MiB\"\nparallel = 16\nlatency_ms = 400.0\nerror_percent = 2.0\n"
    )
}

/// Imports it.
fn import(caller: &Caller, text: &str) -> String {
    let ran = caller.begin(&["profiles", "import", "-"]).feed(text.as_bytes()).end();
    assert!(ran.status.success() && ran.err.is_empty(), "{ran:?}");
    String::from_utf8(ran.out).unwrap()
}

fn shown(caller: &Caller, store: &str) -> Json {
    serde_json::from_str(&caller.done(&["profiles", "show", store, "--json"])).unwrap()
}

/// As the store that is called calls itself.
fn own_name(scene: &Scene) -> String {
    format!("S3Store({})", scene.caller.endpoint())
}

#[test]
fn a_profile_is_listed_shown_exported_forgotten_and_imported() {
    let scene = Scene::new();
    let caller = &scene.caller;
    let ran = caller.run(&["profiles", "list"]);
    assert_eq!((ran.status.code(), ran.out.as_slice()), (Some(0), &b""[..]));
    assert!(ran.err.contains("no store has been tuned"), "{}", ran.err);
    caller.done(&tune("s3://bucket --budget 32MiB,6s"));
    let (name, address) = (own_name(&scene), caller.endpoint().to_string());
    let listed = caller.done(&["profiles", "list"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.starts_with("store ") && listed.contains(&name), "{listed}");
    let line: Json = serde_json::from_str(&caller.done(&["profiles", "list", "--json"])).unwrap();
    assert_eq!(line["store"], name);
    assert!(line["upload_samples"].as_u64() > Some(0) && line["memory"].as_u64() > Some(1 << 20), "{line}");
    // By its scheme, by its host and by a part of its name.
    for store in ["s3://", "s3://bucket", address.as_str(), "127.0.0"] {
        let said = caller.done(&["profiles", "show", store]);
        for word in [
            "round trip ",
            "upload, as measured",
            "what follows for commands here\n",
            "upload: ",
            "cp, sync and the others",
        ] {
            assert!(said.contains(word), "{store}: {word}: {said}");
        }
    }
    let own = shown(caller, "s3://");
    assert_eq!((own["scaled"].as_bool(), own["at_a_time"].as_array().unwrap().len()), (Some(false), 4));
    let exported = caller.done(&["profiles", "export", "s3://"]);
    caller.done(&["profiles", "export", "s3://", "store.toml"]);
    assert_eq!(std::fs::read_to_string(caller.path("store.toml")).unwrap(), exported);
    assert_eq!(caller.done(&["profiles", "forget", "s3://"]), "");
    caller.fails(
        &["profiles", "forget", "s3://"],
        &["there is no profile of S3Store(HOST): tradewind profiles list says of which stores there are"],
    );
    assert!(
        caller
            .done(&["profiles", "import", "store.toml"])
            .starts_with(&format!("the profile of {name} is kept"))
    );
    assert_eq!(shown(caller, "s3://"), own);
}

#[test]
fn what_was_made_on_another_client_is_scaled() {
    let scene = Scene::new();
    let (caller, name) = (&scene.caller, own_name(&scene));
    let cores = std::thread::available_parallelism().unwrap().get();
    import(caller, &exported(&name, cores, "2026-01-01T00:00:00Z"));
    assert_eq!(shown(caller, "s3://")["scaled"], false);
    import(caller, &exported(&name, cores * 64, "2026-01-02T00:00:00Z"));
    let scaled = shown(caller, "s3://");
    assert_eq!((&scaled["scaled"], &scaled["from"]), (&Json::from(true), &Json::from(name.as_str())));
    let said = caller.done(&["profiles", "show", "s3://"]);
    let from =
        format!("what follows for commands here from {name}, scaled from {} cores and 50 ms", cores * 64);
    assert!(said.contains(&from), "{said}");
    caller.write("file", [7; 100_000]);
    assert_eq!(caller.run(&["cp", "file", "s3://bucket/there"]).err, "");
}

#[test]
fn a_size_that_is_given_is_exact_where_a_store_is_known() {
    let scene = Scene::new();
    let caller = &scene.caller;
    // Behind a slow line, where requests of large objects are small unless somebody says otherwise.
    let slow = "[[upload]]\nsize = \"1MiB\"\nparallel = 16\nlatency_ms = 2000.0\nerror_percent = 2.0\n";
    let known = exported(&own_name(&scene), 2, "2026-01-01T00:00:00Z").replace("400.0", "2000.0");
    import(caller, &(known + slow));
    caller.write("large", vec![7; 32 << 20]);
    caller.done(&["cp", "--chunk-size", "7MiB", "large", "s3://bucket/large"]);
    let etag = caller.known("s3://bucket/large")["etag"].as_str().unwrap().to_owned();
    assert!(etag.trim_matches('"').ends_with("-5"), "{etag}");
}

#[test]
fn another_store_of_the_same_host_begins_with_what_is_known() {
    let scene = Scene::new();
    let data = tempfile::tempdir().unwrap();
    let other = Start::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let name = own_name(&scene);
    let caller = &scene.caller;
    import(caller, &exported(&name, 2, "2026-01-01T00:00:00Z"));
    let url = format!("http://{}", other.endpoint);
    let at = ["--endpoint-url", url.as_str()];
    let with = |line: &[&'static str]| [line, &at[..]].concat();
    let said = caller.done(&with(&["profiles", "show", "s3://"]));
    let none = format!(
        "there is no profile of S3Store({})\n\nwhat follows for commands here from {name}, scaled",
        other.endpoint
    );
    assert!(said.starts_with(&none), "{said}");
    caller.done(&with(&["mb", "s3://bucket"]));
    caller.write("file", [7; 100_000]);
    assert_eq!(caller.run(&with(&["cp", "file", "s3://bucket/there"])).err, "");
    let said = caller.done(&with(&["tune", "s3://bucket", "--budget", "16MiB,5s"]));
    let begins = "begins with what is known of 127.0.0.1, scaled from 2 cores and 50 ms\n";
    assert!(said.contains(begins), "{said}");
    // What it found out is its own, and says nothing of where it began.
    assert_eq!(caller.done(&["profiles", "list"]).lines().count(), 3);
    assert!(!caller.done(&with(&["profiles", "export", "s3://"])).contains("elsewhere"));
    let ran = caller.run(&["profiles", "show", "127.0.0.1"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    assert!(ran.err.contains("\"127.0.0.1\" may be ") && ran.err.contains("write more of it"), "{}", ran.err);
}

#[test]
fn a_newer_one_is_replaced_only_where_that_is_asked_for() {
    let scene = Scene::new();
    let (caller, name) = (&scene.caller, own_name(&scene));
    import(caller, &exported(&name, 2, "2026-02-01T00:00:00Z"));
    caller.write("older.toml", exported(&name, 3, "2026-01-01T00:00:00Z"));
    caller.fails(
        &["profiles", "import", "older.toml"],
        &["the profile of S3Store(HOST) was made at 2026-02-01T00:00:00Z, and this one was made at \
           2026-01-01T00:00:00Z; --replace takes it all the same"],
    );
    caller.write("timeless.toml", exported(&name, 3, ""));
    assert_eq!(caller.run(&["profiles", "import", "timeless.toml"]).status.code(), Some(1));
    caller.done(&["profiles", "import", "older.toml", "--replace"]);
    assert_eq!(shown(caller, "s3://")["profile"]["cores"], 3);
    // It is the same.
    caller.done(&["profiles", "import", "older.toml"]);
}

#[test]
fn what_is_no_profile_is_refused_and_what_is_wrong_in_one_is_named() {
    let scene = Scene::new();
    let (caller, name) = (&scene.caller, own_name(&scene));
    caller.write("nonsense", "\nstore = [");
    let ran = caller.run(&["profiles", "import", "nonsense"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.err.starts_with("tradewind: nonsense: line 2: this is not TOML"), "{}", ran.err);
    assert!(ran.err.ends_with("nonsense is no profile: it names no store\n"), "{}", ran.err);
    caller.write("empty", "store = \"S3Store(there)\"\n");
    caller.fails(&["profiles", "import", "empty"], &["empty is no profile: it has no samples"]);
    let broken = exported(&name, 2, "2026-01-01T00:00:00Z").replacen("parallel = 8", "parallel = 0", 1);
    caller.write("broken", broken);
    let ran = caller.run(&["profiles", "import", "broken"]);
    assert_eq!(ran.status.code(), Some(1), "it is kept but for that");
    assert!(
        ran.err.contains("broken: line 6: upload: parallel is to be a number from 1 to 4096"),
        "{}",
        ran.err
    );
    assert_eq!(shown(caller, "s3://")["profile"]["upload_samples"], 1);
    assert_eq!(caller.run(&["profiles", "show", "nowhere"]).status.code(), Some(1));
    assert_eq!(caller.run(&["profiles", "show", "nowhere://"]).status.code(), Some(2));
    assert_eq!(caller.run(&["profiles", "export"]).status.code(), Some(2));
}
