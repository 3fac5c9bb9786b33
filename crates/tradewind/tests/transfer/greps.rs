//! `grep`: matches, their order, flags, exit status, and termination when the output is closed.

use std::io::Read as _;

use super::{TestStore, content};

/// A scene with objects of every kind: small, without a final newline, larger than the in-memory limit, binary, empty.
fn scene() -> TestStore {
    let scene = TestStore::new();
    let lines: String = (1..=60_000).map(|n| format!("line {n} of the large one\n")).collect();
    scene.store("a.txt", b"one needle\nnothing\nTwo Needles\n");
    scene.store("a/b", b"needle without an end");
    scene.store("binary", &[&b"needle \0 "[..], &content(1, 5000)].concat());
    scene.store("empty", b"");
    scene.store("large", format!("{lines}the needle\n").as_bytes());
    scene.store("other", b"something else\n");
    scene
}

fn grep(scene: &TestStore, arguments: &[&str]) -> (Option<i32>, String) {
    let ran = scene.runner.run(&[&["grep"], arguments, &["s3://bucket/"]].concat());
    assert!(ran.err.is_empty(), "{ran:?}");
    (ran.status.code(), String::from_utf8(ran.out).unwrap())
}

#[test]
fn sorted_output_is_in_listing_order() {
    let scene = scene();
    let expected = "s3://bucket/a.txt:1:one needle\ns3://bucket/a/b:1:needle without an end\n\
        Binary file s3://bucket/binary matches\ns3://bucket/large:60001:the needle\n";
    for concurrency in ["1", "2", "32"] {
        assert_eq!(
            grep(&scene, &["--sort", "--concurrency", concurrency, "needle"]),
            (Some(0), expected.to_owned()),
            "{concurrency}"
        );
        let mut unsorted: Vec<String> = grep(&scene, &["--concurrency", concurrency, "needle"])
            .1
            .lines()
            .map(|line| format!("{line}\n"))
            .collect();
        let mut lines: Vec<String> = expected.lines().map(|line| format!("{line}\n")).collect();
        unsorted.sort();
        lines.sort();
        assert_eq!(unsorted, lines);
    }
}

#[test]
fn flags_behave_like_those_of_grep() {
    let scene = scene();
    let found = |arguments: &[&str]| {
        grep(&scene, &[&["--sort", "--include", "a*", "--exclude", "[!a]*"], arguments].concat())
    };
    assert_eq!(found(&["-i", "needles"]).1, "s3://bucket/a.txt:3:Two Needles\n");
    assert_eq!(found(&["-c", "needle"]).1, "s3://bucket/a.txt:1\ns3://bucket/a/b:1\n");
    assert_eq!(found(&["-l", "-i", "needles?"]).1, "s3://bucket/a.txt\ns3://bucket/a/b\n");
    assert_eq!(found(&["-v", "n"]).1, "s3://bucket/a.txt:3:Two Needles\n");
    assert_eq!(found(&["-w", "Needle"]).0, Some(1), "-w matches only whole words");
    assert_eq!(found(&["-F", "n.*e"]).0, Some(1), "-F matches fixed strings");
    assert_eq!(found(&["-rn", "n.*e w"]).1, "s3://bucket/a/b:1:needle without an end\n");
}

#[test]
fn exit_status_is_that_of_grep() {
    let scene = scene();
    assert_eq!(grep(&scene, &["is not there"]), (Some(1), String::new()));
    for arguments in [["grep", "a[", "s3://bucket"], ["grep", "a", "s3://nowhere"]] {
        let ran = scene.runner.run(&arguments);
        assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(2), 1), "{ran:?}");
    }
}

/// The reader closes the output while most of it is still to come.
#[test]
fn closed_output_ends_the_search() {
    let scene = scene();
    for n in 0..4 {
        let lines: String = (1..=400_000).map(|line| format!("{n} {line} needle\n")).collect();
        scene.store(&format!("much/{n}"), lines.as_bytes());
    }
    for concurrency in ["1", "32"] {
        let mut running =
            scene.runner.spawn_unread(&["grep", "--concurrency", concurrency, "needle", "s3://bucket/"]);
        let mut out = running.take_stdout();
        out.read_exact(&mut [0; 100]).unwrap();
        drop(out);
        // Fails by timeout if the command does not end.
        running.wait_for_output();
    }
}
