//! Classes of data from the command line to a server: `cp --class`, `--class-rules` and `tradewind class`.

use std::fs;

use crate::support::s3::{Request, S3};
use crate::support::server::root_key;
use crate::support::test_store::TestStore;

const RULES: &str = r#"
[[rule]]
class = "large"
min_size = "9MiB"

[[rule]]
class = "pictures"
bucket = "bucket"
prefix = "tree/"
content_type = "image/*"

[[rule]]
class = 7
glob = "*.tmp"
"#;

fn class_of(scene: &TestStore, key: &str) -> Option<u64> {
    scene.runner.stat(&format!("s3://bucket/{key}"))["class"].as_u64()
}

/// Runs a command that must fail for its usage. Returns its error.
fn usage_error(scene: &TestStore, arguments: &[&str]) -> String {
    let ran = scene.runner.run(arguments);
    assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {ran:?}");
    ran.err
}

#[test]
fn uploads_have_the_class_of_the_flag() {
    let scene = TestStore::new();
    let runner = &scene.runner;
    runner.write("notes.txt", "notes");
    runner.write("dir/a", "a");
    runner.run_ok(&["cp", "--class", "files", "notes.txt", "s3://bucket/notes"]);
    runner.run_ok(&["cp", "-r", "--class", "31", "dir", "s3://bucket/dir/"]);
    runner.run_ok(&["sync", "--class", "user0", "dir", "s3://bucket/synced/"]);
    let stdin = runner.spawn(&["cp", "--class", "music", "-", "s3://bucket/stdin"]).with_stdin(b"bytes");
    assert!(stdin.wait_for_output().status.success());
    runner.run_ok(&["cp", "notes.txt", "s3://bucket/none"]);
    let keys = ["notes", "dir/a", "synced/a", "stdin", "none"];
    let classes = keys.map(|key| class_of(&scene, key));
    assert_eq!(classes, [Some(25), Some(31), Some(24), Some(27), None]);
    runner.run_ok(&["cp", "s3://bucket/notes", "s3://bucket/copy"]);
    assert_eq!(class_of(&scene, "copy"), Some(25), "copies keep it");
}

/// A large file is uploaded in parts; its class follows the size of the whole.
#[test]
fn uploads_have_the_classes_of_the_rules() {
    let scene = TestStore::new();
    let runner = &scene.runner;
    runner.write("rules.toml", RULES);
    runner.write("tree/large.jpg", vec![1; 16 << 20]);
    runner.write("tree/small.jpg", "small");
    runner.write("tree/old.tmp", "old");
    runner.write("tree/other", "other");
    for command in [&["cp", "-r"][..], &["sync"]] {
        let arguments =
            [command, &["--class-rules", "rules.toml", "--chunk-size", "5MiB", "tree", "s3://bucket/tree/"]];
        runner.run_ok(&arguments.concat());
        let classes = ["large.jpg", "small.jpg", "old.tmp", "other"]
            .map(|key| class_of(&scene, &format!("tree/{key}")));
        assert_eq!(classes, [Some(31), Some(26), Some(7), None], "{command:?}");
        assert!(runner.stat("s3://bucket/tree/large.jpg")["parts"].as_u64() > Some(1));
        runner.run_ok(&["rm", "-r", "s3://bucket/tree/"]);
    }
}

#[test]
fn flags_for_classes_without_an_upload_are_usage_errors() {
    let scene = TestStore::new();
    scene.runner.write("file", "bytes");
    scene.runner.write("bad.toml", "[[rule]]\nclass = 32\n");
    for arguments in [
        &["cp", "--class", "files", "s3://bucket/a", "s3://bucket/b"][..],
        &["cp", "--class", "files", "s3://bucket/a", "b"],
        &["cp", "--class", "files", "file", "copy"],
        &["sync", "--class", "files", "s3://bucket/a/", "b"],
    ] {
        assert!(usage_error(&scene, arguments).contains("tradewind class set"), "{arguments:?}");
    }
    let bundle = usage_error(&scene, &["cp", "--bundle", "--class", "1", ".", "s3://bucket/a.tar"]);
    assert!(bundle.contains("--bundle"), "{bundle}");
    let unknown = usage_error(&scene, &["cp", "--class", "file", "file", "s3://bucket/"]);
    assert!(unknown.contains("did you mean \"files\"?"), "{unknown}");
    let both = usage_error(&scene, &["cp", "--class", "1", "--class-rules", "r", "file", "s3://bucket/"]);
    assert!(both.contains("cannot be used with"), "{both}");
    let bad = usage_error(&scene, &["cp", "--class-rules", "bad.toml", "file", "s3://bucket/"]);
    assert!(bad.contains("bad.toml:2"), "{bad}");
    let missing = usage_error(&scene, &["cp", "--class-rules", "none.toml", "file", "s3://bucket/"]);
    assert!(missing.contains("cannot read the class rules none.toml"), "{missing}");
    assert_eq!(scene.names(), [""; 0]);
}

#[test]
fn classes_are_set_shown_and_removed() {
    let scene = TestStore::new();
    let runner = &scene.runner;
    scene.store("k", &[7; 5000]);
    let before = runner.stat("s3://bucket/k");
    runner.run_ok(&["class", "set", "--class", "music", "--ranges", "0-2-25,9-1-0", "s3://bucket/k"]);
    let shown = runner.run_ok(&["class", "show", "s3://bucket/k"]);
    assert_eq!(
        shown,
        "object    27 (music), priority 5\nsectors   0-2: 25 (files), priority 3\n\
         sectors   9-1: 0 (unclassified), priority 11\n"
    );
    runner.run_ok(&["class", "set", "--ranges", "", "s3://bucket/k"]);
    let json: serde_json::Value =
        serde_json::from_str(&runner.run_ok(&["class", "show", "--json", "s3://bucket/k"])).unwrap();
    let expected = serde_json::json!({
        "object": { "class": 27, "name": "music", "priority": 5 }, "ranges": [], "class_by_size": 12,
        "retention_seconds": 0,
    });
    assert_eq!(json, expected);
    runner.run_ok(&["class", "set", "--retention", "3600", "s3://bucket/k"]);
    let retained = runner.run_ok(&["class", "show", "s3://bucket/k"]);
    let remaining = retained.strip_prefix("object    27 (music), priority 5\nretention ").unwrap();
    let seconds: u32 = remaining.strip_suffix(" s remain\n").unwrap().parse().unwrap();
    assert!((3000..=3600).contains(&seconds), "{retained}");
    runner.run_ok(&["class", "set", "--remove", "s3://bucket/k"]);
    let shown = runner.run_ok(&["class", "show", "s3://bucket/k"]);
    assert_eq!(shown, "object    no label; by size: 12 (size-16k), priority 1\n");
    assert_eq!(runner.stat("s3://bucket/k"), before, "nothing else has changed");
    runner.run_ok(&["class", "set", "--rewrite", "--class", "3", "s3://bucket/k"]);
    assert_eq!((class_of(&scene, "k"), scene.read("k")), (Some(3), vec![7; 5000]));
    let error = usage_error(&scene, &["class", "set", "s3://bucket/k"]);
    assert!(error.contains("--class, --ranges, --retention, --file or --remove"), "{error}");
    let beyond = runner.run(&["class", "set", "--ranges", "10-1-1", "s3://bucket/k"]);
    assert!(beyond.status.code() == Some(1) && beyond.err.contains("within the object"), "{beyond:?}");
}

#[test]
fn class_files_are_encoded_decoded_and_applied() {
    let scene = TestStore::new();
    let runner = &scene.runner;
    runner.write("classes.txt", "25 0\n26");
    scene.store("k", &[7; 10_000]);
    let blocks = ["class", "encode", "--blocks", "classes.txt", "--block-size", "4KiB", "blocks.cls"];
    runner.run_ok(&blocks);
    let hexadecimal = hex::encode(fs::read(runner.path("blocks.cls")).unwrap());
    assert_eq!(hexadecimal, "d55c0201000000030000000800000000".to_owned() + "19001a");
    let decoded = runner.run_ok(&["class", "decode", "blocks.cls"]);
    assert_eq!(
        decoded,
        "section   block of 8 sectors, 3 entries, class bytes 1, 19 bytes\ndata      0 bytes\n\
         sectors   0-8: 25 (files), priority 3\nsectors   16-8: 26 (pictures), priority 4\n"
    );
    runner.run_ok(&["class", "set", "--file", "blocks.cls", "s3://bucket/k"]);
    assert_eq!(runner.stat("s3://bucket/k")["class_ranges"], "0-8-25,16-4-26", "the last block is partial");
    scene.store("small", b"1");
    let wrong = runner.run(&["class", "set", "--file", "blocks.cls", "s3://bucket/small"]);
    assert!(wrong.status.code() == Some(1) && wrong.err.contains("3 blocks"), "{wrong:?}");
    runner.write("not.cls", "not a class file");
    let wrong = runner.run(&["class", "decode", "not.cls"]);
    assert!(wrong.status.code() == Some(1) && wrong.err.contains("not.cls"), "{wrong:?}");
    for arguments in [
        &["class", "encode", "x.cls"][..],
        &["class", "encode", "--class", "1", "--ranges", "0-1-1"],
        &["class", "encode", "--blocks", "classes.txt"],
        &["class", "encode", "--blocks", "classes.txt", "--block-size", "1000B"],
        &["class", "encode", "--class", "1", "--class-bytes", "3"],
    ] {
        usage_error(&scene, arguments);
    }
}

/// Through the whole server, with signatures.
#[test]
fn an_object_file_is_stored_without_its_section() {
    let scene = TestStore::new();
    let runner = &scene.runner;
    let data = vec![7; 300_000];
    runner.write("data", &data);
    let ranges = ["--ranges", "0-64-25,100-8-26"];
    runner.run_ok(
        &[&["class", "encode"], &ranges[..], &["--class-bytes", "4", "--data", "data", "data.obj"]].concat(),
    );
    let decoded = runner.run_ok(&["class", "decode", "--json", "data.obj"]);
    let decoded: serde_json::Value = serde_json::from_str(&decoded).unwrap();
    assert_eq!((&decoded["data_bytes"], &decoded["section_bytes"]), (&300_000.into(), &40.into()));
    let body = fs::read(runner.path("data.obj")).unwrap();
    let mut client = S3::new(runner.endpoint(), root_key());
    let mut send = |method: &str, name: &str, value: &str, body: &[u8]| {
        let headers = vec![(name, value.to_owned())];
        let request = Request { method, path: "bucket/k", headers, body, ..Request::default() };
        client.send(request).unwrap().status
    };
    assert_eq!(send("PUT", "x-dss-object-file", "True", &body), 200);
    let stat = runner.stat("s3://bucket/k");
    assert_eq!((&stat["class_ranges"], &stat["size"]), (&"0-64-25,100-8-26".into(), &300_000.into()));
    assert_eq!(scene.read("k"), data);
    assert_eq!(send("POST", "x-dss-object-class", "26", b""), 200);
    assert_eq!(send("GET", "x-dss-range-class", "", b""), 200);
    let stat = runner.stat("s3://bucket/k");
    assert_eq!((&stat["class"], &stat["class_ranges"]), (&26.into(), &serde_json::Value::Null));
    assert_eq!(send("PUT", "x-dss-object-file", "True", &body[1..]), 400);
    assert_eq!(scene.read("k"), data);
}

/// The object is within one record of the log, and its range needs less memory than the record.
#[test]
fn get_of_a_range_changes_classes_while_others_read() {
    let scene = TestStore::new();
    scene.runner.write("record", "0123456789".repeat(10_000));
    scene.runner.run_ok(&["cp", "record", "s3://bucket/record"]);
    let endpoint = scene.runner.endpoint();
    let readers = (1..=4).map(|class: u32| {
        std::thread::spawn(move || {
            let mut s3 = S3::new(endpoint, root_key());
            let headers =
                vec![("range", "bytes=10-19".to_owned()), ("x-dss-object-class", class.to_string())];
            let request = Request { method: "GET", path: "bucket/record", headers, ..Request::default() };
            let response = s3.send(request).unwrap();
            assert_eq!((response.status, response.text()), (206, "0123456789".to_owned()));
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.join().unwrap();
    }
    assert!((1..=4).contains(&class_of(&scene, "record").unwrap()));
}
