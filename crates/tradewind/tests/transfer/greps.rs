//! What `grep` finds, in which order, how it ends, and that it ends.

use std::io::Read as _;

use super::{Scene, content};

/// A scene with objects of every kind: small, of many lines, larger than what is searched in one piece, binary, empty.
fn scene() -> Scene {
    let scene = Scene::new();
    let lines: String = (1..=60_000).map(|n| format!("line {n} of the large one\n")).collect();
    scene.store("a.txt", b"one needle\nnothing\nTwo Needles\n");
    scene.store("a/b", b"needle without an end");
    scene.store("binary", &[&b"needle \0 "[..], &content(1, 5000)].concat());
    scene.store("empty", b"");
    scene.store("large", format!("{lines}the needle\n").as_bytes());
    scene.store("other", b"something else\n");
    scene
}

fn grep(scene: &Scene, arguments: &[&str]) -> (Option<i32>, String) {
    let ran = scene.caller.run(&[&["grep"], arguments, &["s3://bucket/"]].concat());
    assert!(ran.err.is_empty(), "{ran:?}");
    (ran.status.code(), String::from_utf8(ran.out).unwrap())
}

#[test]
fn lines_come_in_the_order_of_the_listing() {
    let scene = scene();
    let expected = "s3://bucket/a.txt:1:one needle\ns3://bucket/a/b:1:needle without an end\n\
        Binary file s3://bucket/binary matches\ns3://bucket/large:60001:the needle\n";
    for jobs in ["1", "2", "32"] {
        assert_eq!(
            grep(&scene, &["--sort", "--jobs", jobs, "needle"]),
            (Some(0), expected.to_owned()),
            "{jobs}"
        );
        let mut unsorted: Vec<String> =
            grep(&scene, &["--jobs", jobs, "needle"]).1.lines().map(|line| format!("{line}\n")).collect();
        let mut lines: Vec<String> = expected.lines().map(|line| format!("{line}\n")).collect();
        unsorted.sort();
        lines.sort();
        assert_eq!(unsorted, lines);
    }
}

#[test]
fn flags_mean_what_they_mean_to_grep() {
    let scene = scene();
    let found = |arguments: &[&str]| {
        grep(&scene, &[&["--sort", "--include", "a*", "--exclude", "[!a]*"], arguments].concat())
    };
    assert_eq!(found(&["-i", "needles"]).1, "s3://bucket/a.txt:3:Two Needles\n");
    assert_eq!(found(&["-c", "needle"]).1, "s3://bucket/a.txt:1\ns3://bucket/a/b:1\n");
    assert_eq!(found(&["-l", "-i", "needles?"]).1, "s3://bucket/a.txt\ns3://bucket/a/b\n");
    assert_eq!(found(&["-v", "n"]).1, "s3://bucket/a.txt:3:Two Needles\n");
    assert_eq!(found(&["-w", "Needle"]).0, Some(1), "no whole word");
    assert_eq!(found(&["-F", "n.*e"]).0, Some(1), "text, not a pattern");
    assert_eq!(found(&["-rn", "n.*e w"]).1, "s3://bucket/a/b:1:needle without an end\n");
}

#[test]
fn the_status_is_that_of_grep() {
    let scene = scene();
    assert_eq!(grep(&scene, &["is not there"]), (Some(1), String::new()));
    for arguments in [["grep", "a[", "s3://bucket"], ["grep", "a", "s3://nowhere"]] {
        let ran = scene.caller.run(&arguments);
        assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(2), 1), "{ran:?}");
    }
}

/// Whoever reads has had enough, while most of it is still on its way.
#[test]
fn a_pipe_that_is_closed_ends_it() {
    let scene = scene();
    for n in 0..4 {
        let lines: String = (1..=400_000).map(|line| format!("{n} {line} needle\n")).collect();
        scene.store(&format!("much/{n}"), lines.as_bytes());
    }
    for jobs in ["1", "32"] {
        let mut running = scene.caller.begin_unread(&["grep", "--jobs", jobs, "needle", "s3://bucket/"]);
        let mut out = running.take_out();
        out.read_exact(&mut [0; 100]).unwrap();
        drop(out);
        // It ends, or the test's patience does.
        running.end();
    }
}
