//! Policies of classes that calls change while a server runs, and reloads by a call. No call changes the settings file.

use std::process::Output;

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::administered::{admin, answered, ask, post};
use super::class_policies::{CACHED, cache_status, put_of_class};
use super::support::content::content;
use super::support::leased_file::LeasedFile;
use super::support::s3::S3;
use super::support::server::{Server, ServerSetup, root_key, tradewind};
use super::support::sign::Credentials;
use super::transformed::write_key;
use super::{Scene, client, metrics, put};
use crate::support::eventually;

const MAIL: &str = "[class.25]\nname = \"mail\"\npriority = 2\noccupancy = \"60%\"\n";

fn classes(server: &Server) -> Json {
    let response = admin(server, root_key()).get("v1/classes").unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// The status of a call, and the message of its error or the whole document.
fn called(server: &Server, path: &str, body: &str) -> (u16, String) {
    let response = post(&mut admin(server, root_key()), path, body);
    let json: Json = serde_json::from_slice(&response.body).unwrap();
    let message = json["error"]["message"].as_str().map_or_else(|| json.to_string(), str::to_owned);
    (response.status, message)
}

/// Runs a command with the address and the root key of the server, and without its settings.
fn ask_by_address(server: &Server, arguments: &[&str]) -> Output {
    let root = root_key();
    let mut command = tradewind();
    command.args(arguments).args(["--admin", &server.admin.to_string()]);
    command.env("TRADEWIND_ACCESS_KEY", root.id).env("TRADEWIND_SECRET_KEY", root.secret);
    command.output().unwrap()
}

/// A cached object of class 25 in the bucket `bkt`.
fn put_mail(server: &Server) -> S3 {
    let mut s3 = client(server);
    put(&mut s3, "bkt", &[]);
    put_of_class(&mut s3, "bkt/mail", "25", &content(1, 4096));
    cache_status(&mut s3, "bkt/mail");
    s3
}

fn assert_priority(s3: &mut S3, priority: u8) {
    let status = cache_status(s3, "bkt/mail");
    let expected = format!("tradewind; hit; detail=\"ram, class 25, priority {priority}\"");
    assert_eq!(status, expected);
}

#[test]
fn changed_priority_is_in_force_until_a_reload() {
    let text = format!("{CACHED}{MAIL}");
    let scene = Scene::new(&text);
    let server = scene.start();
    let mut s3 = put_mail(&server);
    assert_priority(&mut s3, 2);

    let changed = answered(&scene, &server, &["class", "policy", "MAIL", "priority=7", "pin=true"]);
    assert_priority(&mut s3, 7);
    for line in [
        "class      25",
        "name       mail",
        "priority   7* (settings: 2)",
        "pin        yes* (not set in the settings)",
        "occupancy  60%",
        "lasts      until the next reload or restart, which read the settings file",
    ] {
        assert!(changed.lines().any(|shown| shown == line), "{line} in {changed}");
    }
    let all = answered(&scene, &server, &["class", "policy"]);
    assert_eq!(all.lines().count(), 34, "{all}");
    assert!(all.contains("7*") && all.contains("* differs from the settings"), "{all}");
    let one = answered(&scene, &server, &["class", "policy", "25", "--json"]);
    let one: Json = serde_json::from_str(&one).unwrap();
    assert_eq!(one["overridden"], json!({ "priority": 2, "pin": null }));
    assert_eq!(classes(&server)["classes"][25], one);
    assert_eq!(classes(&server)["classes"][26]["overridden"], json!({}));
    assert!(server.logged().contains("policies of a class are changed by a call"), "{}", server.logged());

    let removed = answered(&scene, &server, &["class", "policy", "25", "priority="]);
    assert!(removed.lines().any(|line| line == "priority   2"), "{removed}");
    assert_priority(&mut s3, 2);

    answered(&scene, &server, &["class", "policy", "files", "priority=9"]);
    assert_priority(&mut s3, 9);
    let reloaded = answered(&scene, &server, &["class", "reload"]);
    assert_eq!(
        reloaded,
        "reloaded   classes with a policy: 25; rules: 0\nended      changes of the classes 25\n"
    );
    assert_priority(&mut s3, 2);
    assert_eq!(classes(&server)["classes"][25]["overridden"], json!({}));
    assert_eq!(std::fs::read_to_string(scene.settings()).unwrap(), text, "no call writes the file");
}

#[test]
fn hangup_ends_changes_by_calls() {
    let scene = Scene::new(&format!("{CACHED}{MAIL}"));
    let server = scene.start();
    let mut s3 = put_mail(&server);
    answered(&scene, &server, &["class", "policy", "25", "priority=7"]);
    assert_priority(&mut s3, 7);
    server.signal(Signal::HUP);
    eventually("the priority of the file", || cache_status(&mut s3, "bkt/mail").contains("priority 2"));
    assert_eq!(classes(&server)["classes"][25]["overridden"], json!({}));
}

#[test]
fn change_without_effect_is_noted() {
    let scene = Scene::new(&CACHED.replace("memory = ", "policy = \"lru\", memory = "));
    let server = scene.start();
    let ended = ask(&scene, &server, &["class", "policy", "25", "pin=true"]);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && said.contains("ignores priority, occupancy and pin"), "{said}");
    let ended = ask(&scene, &server, &["class", "policy", "25", "write=through"]);
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "", "a note is made once");
}

#[test]
fn restart_reads_the_file_and_ends_changes_by_calls() {
    let scene = Scene::new(&format!("{CACHED}{MAIL}"));
    let mut server = scene.start();
    let before = classes(&server);
    let (status, said) = called(&server, "v1/classes/25", r#"{"priority": 7, "occupancy": "5%"}"#);
    assert_eq!(status, 200, "{said}");
    assert_ne!(classes(&server), before);
    assert!(server.terminate().unwrap().success());
    let server = scene.start();
    assert_eq!(classes(&server), before);
    assert_priority(&mut put_mail(&server), 2);
}

#[test]
fn changed_write_policy_bypasses_the_journal() {
    let scene = Scene::new(
        "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[volume.v]\n\
         stack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\", write = \"back\" } }, \"disk\"]\n",
    );
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let written = |place: &str| -> u64 {
        let name = format!("tradewind_write_back_writes_total{{volume=\"v\",place=\"{place}\"}} ");
        let text = metrics(&server);
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    };
    let backing = written("backing");
    put_of_class(&mut s3, "bkt/a", "25", b"text");
    assert_eq!(written("backing"), backing, "the journal takes it");
    answered(&scene, &server, &["class", "policy", "25", "write=through"]);
    put_of_class(&mut s3, "bkt/b", "25", b"text");
    assert_eq!(written("backing"), backing + 1);
    answered(&scene, &server, &["class", "policy", "25", "write="]);
    put_of_class(&mut s3, "bkt/c", "25", b"text");
    assert_eq!(written("backing"), backing + 1);
}

#[test]
fn changed_occupancy_evicts_what_is_too_much() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    for number in 0..5 {
        let path = format!("bkt/{number}");
        put_of_class(&mut s3, &path, "26", &content(number, 1 << 20));
        cache_status(&mut s3, &path);
    }
    let cached = || -> u64 {
        let name = "tradewind_cache_class_bytes{volume=\"v\",class=\"26\",tier=\"ram\"} ";
        let text = metrics(&server);
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
    };
    let limit = (8 << 20) / 10;
    assert!(cached() > limit, "{}", cached());
    answered(&scene, &server, &["class", "policy", "26", "occupancy=10%"]);
    // An insertion evicts a bounded number of entries.
    let mut number = 5;
    eventually("the limit holds", || {
        let path = format!("bkt/{number}");
        put_of_class(&mut s3, &path, "26", &content(number, 1 << 16));
        cache_status(&mut s3, &path);
        number += 1;
        cached() <= limit
    });
}

#[test]
fn bad_changes_get_a_reason_and_change_nothing() {
    let scene = Scene::new(&format!("{CACHED}{MAIL}"));
    let server = scene.start();
    let (status, said) = called(&server, "v1/classes/24", r#"{"priority": 4}"#);
    assert_eq!(status, 200, "{said}");
    let before = classes(&server);
    for (path, body, status, message) in [
        ("v1/classes/32", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/256", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/-1", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/+25", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/025", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/mail", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/", r#"{"pin": true}"#, 404, "with N from 0 to 31"),
        ("v1/classes/25", "", 400, "must be a JSON object"),
        ("v1/classes/25", "[]", 400, "must be a JSON object"),
        ("v1/classes/25", "null", 400, "must be a JSON object"),
        ("v1/classes/25", "pin = true", 400, "must be a JSON object"),
        ("v1/classes/25", r#"{"pin": true"#, 400, "must be a JSON object"),
        ("v1/classes/25", r#"{"pin": true} {}"#, 400, "trailing characters"),
        ("v1/classes/25", r#"{"pin": true, "pin": false}"#, 400, "\"pin\" occurs twice"),
        ("v1/classes/25", "{}", 400, "the body changes nothing"),
        ("v1/classes/25", r#"{"priorty": 2}"#, 400, "did you mean \"priority\"?"),
        ("v1/classes/25", r#"{"priorty": null}"#, 400, "did you mean \"priority\"?"),
        ("v1/classes/25", r#"{"zzzzzzzz": []}"#, 400, "unknown key \"class.25.zzzzzzzz\""),
        ("v1/classes/25", r#"{"tier": "disk"}"#, 400, "class.25.tier is read at the start"),
        ("v1/classes/25", r#"{"tier": null}"#, 400, "class.25.tier is read at the start"),
        ("v1/classes/25", r#"{"replicas": 2}"#, 400, "planned but not built yet"),
        ("v1/classes/25", r#"{"name": 25}"#, 400, "class.25.name must be text, not a number"),
        ("v1/classes/25", r#"{"name": ""}"#, 400, "class.25.name must be text, not empty"),
        ("v1/classes/25", r#"{"name": "a b"}"#, 400, "must have letters"),
        ("v1/classes/25", r#"{"name": "pictures"}"#, 400, "is the name of class 26"),
        ("v1/classes/26", r#"{"name": "Mail"}"#, 400, "is already the name of class 25"),
        ("v1/classes/25", r#"{"priority": 12}"#, 400, "class.25.priority: \"12\" is not a priority"),
        ("v1/classes/25", r#"{"priority": -1}"#, 400, "is not a priority"),
        ("v1/classes/25", r#"{"priority": 1.5}"#, 400, "class.25.priority: 1.5 is not a whole number"),
        ("v1/classes/25", r#"{"priority": 9999999999999999999}"#, 400, "is too large"),
        ("v1/classes/25", r#"{"priority": true}"#, 400, "must be a number, not true or false"),
        ("v1/classes/25", r#"{"priority": "2"}"#, 400, "class.25.priority must be a number, not text"),
        ("v1/classes/25", r#"{"priority": [1]}"#, 400, "must be a number, not a list"),
        ("v1/classes/25", r#"{"priority": {"a": 1}}"#, 400, "must be a number, not an object"),
        ("v1/classes/5", r#"{"priority": 1}"#, 400, "treated like class 0"),
        ("v1/classes/5", r#"{"pin": true}"#, 400, "treated like class 0"),
        ("v1/classes/25", r#"{"occupancy": 20}"#, 400, "class.25.occupancy must be text, not a number"),
        ("v1/classes/25", r#"{"occupancy": "101%"}"#, 400, "is not a percentage"),
        ("v1/classes/26", r#"{"occupancy": "41%"}"#, 400, "are 101% in sum; they must be at most 100%"),
        ("v1/classes/25", r#"{"write": "around"}"#, 400, "neither \"through\" nor \"back\""),
        ("v1/classes/25", r#"{"pin": "yes"}"#, 400, "class.25.pin must be true or false"),
        ("v1/classes/25", r#"{"pin": 1}"#, 400, "class.25.pin must be true or false, not a number"),
        ("v1/classes/25", r#"{"share": 0}"#, 400, "is not a whole number above 0"),
        ("v1/classes/25", r#"{"share": 1001}"#, 400, "class.25.share must be 1 to 1000"),
        ("v1/classes/25", r#"{"compress": true}"#, 400, "no volume has the layer transformed"),
        ("v1/classes/25", r#"{"encrypt": false}"#, 400, "class.25.encrypt has no effect"),
        ("v1/classes/25", r#"{"priority": 1, "occupancy": "1%", "pin": "yes"}"#, 400, "class.25.pin"),
    ] {
        let (found, said) = called(&server, path, body);
        assert_eq!(found, status, "{path} {body}: {said}");
        assert!(said.contains(message), "{path} {body}: {said}");
    }
    let (status, said) = called(&server, "v1/classes/25", r#"{"priority": 99, "share": 0}"#);
    assert_eq!((status, said.lines().count()), (400, 2), "all problems at once: {said}");
    let (status, said) = called(&server, "v1/classes/25", &json!({ "name": "x".repeat(60_000) }).to_string());
    assert!(status == 400 && said.contains("it may have at most 128"), "{status} {said}");
    let (status, said) =
        called(&server, "v1/classes/25", &json!({ "write": "x".repeat(50_000) }).to_string());
    assert!(status == 400 && said.len() < 2_000, "{status} {}", said.len());
    let invalid = admin(&server, root_key())
        .send(super::Request {
            method: "POST",
            path: "v1/classes/25",
            body: b"{\"name\": \"\xff\xfe\"}",
            ..super::Request::default()
        })
        .unwrap();
    assert_eq!(invalid.status, 400, "{}", invalid.text());
    assert_eq!(classes(&server), before);
    assert_priority(&mut put_mail(&server), 2);
}

#[test]
fn encryption_without_a_key_is_rejected_and_changes_nothing() {
    let stack = |transformed: &str| {
        format!(
            "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
             [volume.v]\nstack = [{{ transformed = {{ {transformed} }} }}, \"disk\"]\n"
        )
    };
    let scene = Scene::new(&stack("compress = true"));
    write_key(&scene.path("main.key"), 0o600);
    let server = scene.start();
    let before = classes(&server);
    let change = r#"{"priority": 1, "compress": false, "encrypt": true}"#;
    let (status, said) = called(&server, "v1/classes/25", change);
    assert!(status == 400 && said.contains("volume.v.transformed has no key"), "{status} {said}");
    // The file has a key now, and the running layer has none.
    let keyed = stack("compress = true, key = \"main\", keys = { main = \"main.key\" }");
    std::fs::write(scene.settings(), &keyed).unwrap();
    let reloaded = answered(&scene, &server, &["class", "reload"]);
    assert!(reloaded.contains("take effect at a restart"), "{reloaded}");
    let (status, said) = called(&server, "v1/classes/25", change);
    assert!(status == 400 && said.contains("there is no key"), "{status} {said}");
    assert_eq!(classes(&server), before);
    let (status, said) = called(&server, "v1/classes/25", r#"{"compress": false}"#);
    assert_eq!(status, 200, "{said}");
    drop(server);
    let server = scene.start();
    let (status, said) = called(&server, "v1/classes/25", change);
    assert_eq!(status, 200, "{said}");
    assert_eq!(classes(&server)["classes"][25]["encrypt"], true);
}

#[test]
fn only_the_root_key_changes_classes_and_reloads() {
    let second = "[[access_key]]\nid = \"second\"\nsecret = \"secret-of-second\"\n";
    let scene = Scene::new(&format!("{CACHED}{MAIL}{second}"));
    let server = scene.start();
    let before = classes(&server);
    std::fs::write(scene.settings(), format!("{CACHED}[class.25]\npriority = 3\n{second}")).unwrap();
    let second = Credentials { id: "second".to_owned(), secret: "secret-of-second".to_owned() };
    let guess = Credentials { secret: "guess".to_owned(), ..root_key() };
    for (path, body) in [("v1/classes/25", r#"{"priority": 7}"#), ("v1/reload", "{}"), ("v1/reload", "")] {
        // A rejection closes the connection.
        for (what, mut client) in [
            ("unsigned", S3::anonymous(server.admin)),
            ("signed for S3", S3::new(server.admin, root_key())),
            ("S3 key, signed for S3", S3::new(server.admin, second.clone())),
            ("S3 key", admin(&server, second.clone())),
            ("wrong secret", admin(&server, guess.clone())),
        ] {
            let response = post(&mut client, path, body);
            assert_eq!(response.status, 403, "{what} {path}: {}", response.text());
        }
    }
    assert_eq!(classes(&server), before);
}

#[test]
fn reload_by_a_call_applies_the_file_or_says_why_not() {
    let scene = Scene::new(&format!("{CACHED}{MAIL}"));
    let server = scene.start();
    let mut s3 = put_mail(&server);
    let rule = "[[class_rule]]\nclass = 30\nprefix = \"a/\"\n";
    let rewrite = |text: &str| std::fs::write(scene.settings(), format!("{CACHED}{text}")).unwrap();
    rewrite(&format!("[class.25]\npriority = 5\n{rule}"));
    let (status, said) = called(&server, "v1/reload", "");
    assert_eq!(status, 200, "{said}");
    let expected =
        json!({ "classes": [25], "class_rules": 1, "ended_overrides": [], "restart_needed": false });
    assert_eq!(serde_json::from_str::<Json>(&said).unwrap(), expected);
    assert_priority(&mut s3, 5);
    put(&mut s3, "bkt/a/b", b"text");
    let labelled = s3.get("bkt/a/b").unwrap();
    assert_eq!(labelled.header("x-dss-object-class"), Some("30"), "the rule applies");

    answered(&scene, &server, &["class", "policy", "25", "priority=6"]);
    for (text, reason) in [
        ("[class.25]\npriority = 99\n", "class.25.priority: \"99\" is not a priority"),
        ("[class.25]\npriority = \n", "this is not TOML"),
        ("[class.25]\noccupancy = \"60%\"\n[class.26]\noccupancy = \"60%\"\n", "120% in sum"),
        ("[clas.25]\npriority = 1\n", "did you mean \"class\"?"),
        ("[class.25]\npriority = 1\nencrypt = true\n", "no volume has the layer transformed"),
    ] {
        rewrite(text);
        // With --config, the command itself finds the problem.
        let ended = ask(&scene, &server, &["class", "reload"]);
        assert_eq!(ended.status.code(), Some(2), "{text}");
        let ended = ask_by_address(&server, &["class", "reload"]);
        assert_eq!(ended.status.code(), Some(1), "{text}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("the settings are not reloaded: the old ones stay: "), "{text}: {said}");
        assert!(said.contains("settings.toml:") && said.contains(reason), "{text}: {said}");
        assert!(server.logged().contains(&reason.replace('"', "\\\"")), "{text}: {}", server.logged());
        assert_priority(&mut s3, 6);
    }
    std::fs::remove_file(scene.settings()).unwrap();
    let (status, said) = called(&server, "v1/reload", "{}");
    assert!(status == 400 && said.contains("cannot read the settings file"), "{status} {said}");
    rewrite("[class.25]\npriority = 1\n");
    let (status, said) = called(&server, "v1/reload", r#"{"file": "other.toml"}"#);
    assert!(status == 400 && said.contains("the body must be empty or {}"), "{status} {said}");
    assert_priority(&mut s3, 6);
    rewrite("[class.25]\npriority = 4\n[uploads]\nexpire_after = \"1d\"\n");
    let reloaded = answered(&scene, &server, &["class", "reload"]);
    assert!(reloaded.contains("restart    other settings have changed"), "{reloaded}");
    assert_priority(&mut s3, 4);
}

#[test]
fn concurrent_reloads_and_changes_leave_one_of_their_policies() {
    let scene = Scene::new(&format!("{CACHED}{MAIL}"));
    let server = scene.start();
    let mut s3 = put_mail(&server);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..5 {
                    let (path, body) = match number % 2 {
                        0 => ("v1/reload", ""),
                        _ => ("v1/classes/25", r#"{"priority": 7}"#),
                    };
                    let (status, said) = called(server, path, body);
                    assert_eq!(status, 200, "{path}: {said}");
                }
            });
        }
    });
    let shown = classes(&server)["classes"][25]["priority"].as_u64().unwrap();
    assert!([2, 7].contains(&shown), "{shown}");
    assert_priority(&mut s3, u8::try_from(shown).unwrap());
    assert_eq!(called(&server, "v1/reload", "").0, 200);
    assert_priority(&mut s3, 2);
}

#[test]
fn reload_of_a_file_that_hangs_does_not_delay_a_shutdown() {
    let scene = Scene::new(CACHED);
    let mut server = scene.start();
    let _lease = LeasedFile::new(&scene.settings()).unwrap();
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let mut client = admin(&server, root_key());
            std::thread::spawn(move || post(&mut client, "v1/reload", "").status)
        })
        .collect();
    let admin_calls = || server.logged().matches("admin call").count();
    eventually("both calls are in progress", || admin_calls() >= 2);
    let (status, said) = called(&server, "v1/classes/25", r#"{"priority": 7}"#);
    assert_eq!(status, 200, "other calls go on: {said}");
    let stopped = std::time::Instant::now();
    assert!(server.terminate().unwrap().success());
    assert!(stopped.elapsed().as_secs() < 20, "{:?}", stopped.elapsed());
    for call in calls {
        assert_eq!(call.join().unwrap(), 503);
    }
}

#[test]
fn reload_without_a_settings_file_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let setup = ServerSetup::new(&directory.path().join("data"), &directory.path().join("log"));
    let mut server = setup.start().unwrap();
    let (status, said) = called(&server, "v1/reload", "");
    assert!(status == 409 && said.contains("has no settings file to read again"), "{status} {said}");
    let (status, said) = called(&server, "v1/classes/25", r#"{"priority": 7}"#);
    assert_eq!(status, 200, "{said}");
    let entry: Json = serde_json::from_str(&said).unwrap();
    assert_eq!((&entry["priority"], &entry["lasts"]), (&7.into(), &"until the next restart".into()));
    assert_eq!(classes(&server)["classes"][25]["overridden"], json!({ "priority": null }));
    assert!(server.terminate().unwrap().success(), "the rejected reload stopped nothing");
}

#[test]
fn class_policy_explains_wrong_arguments() {
    let scene = Scene::new(&format!("{CACHED}{MAIL}"));
    let server = scene.start();
    let before = classes(&server);
    for (arguments, status, message) in [
        (&["priority=7"][..], 2, "tradewind class policy 25 priority=7"),
        (&["25", "priority"], 2, "is not KEY=VALUE"),
        (&["25", "=7"], 2, "is not KEY=VALUE"),
        (&["25", "pin=true", "pin=false"], 2, "pin is given twice"),
        (&["32"], 2, "there is no class \"32\"; classes are 0 to 31"),
        (&["mial", "pin=true"], 2, "did you mean \"mail\"?"),
        (&["25", "priority=12"], 1, "class.25.priority: \"12\" is not a priority from 0 (highest) to 11"),
        (&["25", "tier=disk"], 1, "change it in the settings file and restart"),
        (&["25", "priorty=1", "pin=true"], 1, "did you mean \"priority\"?"),
    ] {
        let ended = ask(&scene, &server, &[&["class", "policy"], arguments].concat());
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
    assert_eq!(classes(&server), before);
}
