//! Bundles: readable by `tar`, round trips, single members, sets of several bundles, and errors of damaged ones.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use tradewind_core::checksum::crc64nvme;

use super::{TestStore, content, names, tree};
use crate::support::command_runner::CommandRunner;

const LARGE: usize = (2 << 20) + 700;

/// Writes files with a variety of sizes and names below `here`.
fn write_tree(caller: &CommandRunner) {
    let long = "d".repeat(120);
    let sizes = [0, 1, 511, 512, 513, 100_000, 1 << 20, (1 << 20) + 1, LARGE];
    for (n, size) in sizes.into_iter().enumerate() {
        caller.write(format!("here/sizes/{size}"), content(n as u64, size));
    }
    for name in ["a", "a b/c", "\u{e9}t\u{e9}/\u{1f600}", &format!("{long}/{long}/{long}"), &"n".repeat(255)]
    {
        caller.write(format!("here/{name}"), content(name.len() as u64, 300));
    }
    for n in 0..300 {
        caller.write(format!("here/many/{n:03}"), content(n, (n * 37 % 5000) as usize));
    }
    let permit = |name: &str, mode| {
        fs::set_permissions(caller.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    permit("here/a", 0o700);
    permit("here/a b/c", 0o600);
    let dated = fs::File::options().write(true).open(caller.path("here/a")).unwrap();
    dated.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567_890_123)).unwrap();
}

/// Unpacks an archive with the system's `tar`, which must not complain.
fn untar(archive: &Path, into: &Path) {
    fs::create_dir_all(into).unwrap();
    let ran = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(into).output().unwrap();
    assert!(ran.status.success() && ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn bundle_is_a_tar_archive_and_round_trips() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    write_tree(caller);
    let here = tree(&caller.path("here"));
    caller.run_ok(&["cp", "--bundle", "here", "s3://bucket/all.tar"]);
    assert_eq!(scene.names(), ["all.tar"]);

    caller.write("all.tar", scene.read("all.tar"));
    untar(&caller.path("all.tar"), &caller.path("untarred"));
    caller.run_ok(&["cp", "-r", "--bundle", "s3://bucket/all.tar", "there"]);
    for directory in ["untarred", "there"] {
        assert!(tree(&caller.path(directory)) == here, "{directory}");
        assert_eq!(mode(&caller.path(directory).join("a")), 0o700);
        assert_eq!(mode(&caller.path(directory).join("a b/c")), 0o600);
        assert_eq!(fs::metadata(caller.path(directory).join("a")).unwrap().mtime(), 1_234_567_890);
    }
    assert_eq!(fs::metadata(caller.path("there/a")).unwrap().mtime_nsec(), 123_000_000);

    let listed = caller.run_ok(&["ls", "--bundle", "s3://bucket/all.tar", "--json"]);
    let lines: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> =
        lines.iter().map(|line| (line["member"].as_str().unwrap(), line["size"].as_u64().unwrap())).collect();
    assert_eq!(
        found,
        here.iter().map(|(name, bytes)| (name.as_str(), bytes.len() as u64)).collect::<Vec<_>>()
    );
    let a = lines.iter().find(|line| line["member"] == "a").unwrap();
    assert_eq!((a["mode"].as_str(), a["bundle"].as_str()), (Some("0700"), Some("s3://bucket/all.tar")));
    assert_eq!(a["modified"], "2009-02-13T23:31:30Z");
    let plain = caller.run_ok(&["ls", "--bundle", "s3://bucket/all.tar"]);
    assert!(plain.starts_with("2009-02-13T23:31:30Z           300  a\n"), "{plain}");
}

#[test]
fn single_member_is_copied_and_printed() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    write_tree(caller);
    caller.run_ok(&["cp", "--bundle", "here", "s3://bucket/all.tar"]);
    for name in ["sizes/0", "sizes/513", &format!("sizes/{LARGE}"), "\u{e9}t\u{e9}/\u{1f600}"] {
        let bytes = fs::read(caller.path("here").join(name)).unwrap();
        caller.run_ok(&["cp", "s3://bucket/all.tar", "--member", name, "into/"]);
        let own = name.rsplit('/').next().unwrap();
        assert!(fs::read(caller.path("into").join(own)).unwrap() == bytes, "{name}");
        caller.run_ok(&["cp", "s3://bucket/all.tar", "--member", name, "renamed"]);
        assert!(fs::read(caller.path("renamed")).unwrap() == bytes, "{name}");
        for command in [
            &["cp", "s3://bucket/all.tar", "--member", name, "-"][..],
            &["cat", "s3://bucket/all.tar", "--member", name],
        ] {
            let ran = caller.run(command);
            assert!(ran.status.success() && ran.out == bytes, "{command:?}: {}", ran.err);
        }
    }
    let none = "s3://bucket/all.tar has no member \"sizes\"; ls --bundle lists them";
    caller.run_failing(&["cat", "s3://bucket/all.tar", "--member", "sizes"], &[none]);
    caller.run_failing(&["cp", "s3://bucket/all.tar", "--member", "sizes", "x"], &[none]);
    assert!(!caller.path("x").exists());
}

#[test]
fn bundle_size_splits_files_into_a_set() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for n in 0..40 {
        caller.write(format!("here/{n:02}"), content(n, 9000));
    }
    // Larger than the bundle size, so it gets a bundle of its own.
    caller.write("here/20", content(20, LARGE));
    let ran = caller.run(&["cp", "--bundle", "here", "s3://bucket/all.tar", "--bundle-size", "100KiB"]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(ran.err, "packed into 5 bundles, s3://bucket/all.tar to s3://bucket/all-00005.tar\n");
    let sizes = scene.keys();
    assert_eq!(sizes.len(), 5);
    let over = sizes.iter().filter(|(_, size)| *size > (102 << 10));
    assert_eq!(over.collect::<Vec<_>>().len(), 1, "{sizes:?}");

    // Each is an archive by itself.
    for (key, _) in &sizes {
        caller.write("one.tar", scene.read(key));
        untar(&caller.path("one.tar"), &caller.path("untarred"));
    }
    caller.run_ok(&["cp", "--bundle", "s3://bucket/all.tar", "there"]);
    let here = tree(&caller.path("here"));
    assert!(tree(&caller.path("untarred")) == here && tree(&caller.path("there")) == here);
    let ran = caller.run(&["cat", "s3://bucket/all.tar", "--member", "39"]);
    assert!(ran.out == content(39, 9000), "{}", ran.err);

    // A missing bundle is reported, and those before it are unpacked.
    let third = scene.read("all-00003.tar");
    caller.run_ok(&["rm", "s3://bucket/all-00003.tar"]);
    let gone = "s3://bucket/all-00003.tar: this bundle of the set is missing: packing did not finish, or it was removed";
    caller.run_failing(&["cp", "--bundle", "s3://bucket/all.tar", "some"], &[gone]);
    assert!(names(&caller.path("some")).len() > 15);
    caller.run_failing(&["ls", "--bundle", "s3://bucket/all.tar", "--json"], &[gone]);
    caller.run_failing(&["cat", "s3://bucket/all.tar", "--member", "39"], &[gone]);

    // A bundle of another set is reported, too.
    caller.run(&["cp", "--bundle", "here", "s3://bucket/all.tar", "--bundle-size", "100KiB"]);
    scene.store("all-00003.tar", &third);
    let other = "s3://bucket/all-00003.tar: it belongs to another set than the bundle before it; pack the files again";
    caller.run_failing(&["cp", "--bundle", "s3://bucket/all.tar", "some"], &[other]);
}

#[test]
fn filters_apply_to_packing_and_unpacking() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for name in ["a.jpg", "b.tmp", "c/d.jpg", "c/e.txt"] {
        caller.write(format!("here/{name}"), name);
    }
    caller.run_ok(&["cp", "--bundle", "here", "s3://bucket/x", "--exclude", "*.tmp"]);
    caller.run_ok(&["cp", "--bundle", "s3://bucket/x", "there", "--exclude", "*", "--include", "*.jpg"]);
    assert_eq!(names(&caller.path("there")), ["a.jpg", "c/d.jpg"]);
    let listed = caller.run_ok(&["cp", "--bundle", "s3://bucket/x", "no", "--dry-run", "--exclude", "c/*"]);
    assert_eq!(listed, "unpack  a.jpg from s3://bucket/x to no/a.jpg\n");
    let listed = caller.run_ok(&["cp", "--bundle", "here", "s3://bucket/y", "--dry-run", "--exclude", "c/*"]);
    let line = |name: &str| format!("pack    here/{name} into s3://bucket/y\n");
    assert_eq!(listed, line("a.jpg") + &line("b.tmp"));
    assert!(!caller.path("no").exists() && scene.names() == ["x"]);
}

#[test]
fn files_that_cannot_be_packed_are_reported_and_skipped() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/file", "x");
    symlink("file", caller.path("here/link")).unwrap();
    let _socket = UnixListener::bind(caller.path("here/socket")).unwrap();
    let why = "here/socket is neither a file nor a directory: skipped";
    caller.run_failing(&["cp", "--bundle", "here", "s3://bucket/x.tar"], &[why]);
    assert!(caller.run_ok(&["ls", "--bundle", "s3://bucket/x.tar"]).ends_with(" file\n"));
    caller.run_failing(&["cp", "--bundle", "--follow-symlinks", "here", "s3://bucket/x.tar"], &[why]);
    assert_eq!(caller.run_ok(&["ls", "--bundle", "s3://bucket/x.tar"]).lines().count(), 2);

    // An existing bundle is not replaced if no file could be packed.
    fs::remove_file(caller.path("here/file")).unwrap();
    caller.run_failing(&["cp", "--bundle", "here", "s3://bucket/x.tar"], &[why]);
    assert_eq!(caller.run_ok(&["ls", "--bundle", "s3://bucket/x.tar"]).lines().count(), 2);

    // An empty directory becomes an empty archive.
    fs::create_dir(caller.path("empty")).unwrap();
    caller.run_ok(&["cp", "--bundle", "empty", "s3://bucket/empty.tar"]);
    caller.write("empty.tar", scene.read("empty.tar"));
    untar(&caller.path("empty.tar"), &caller.path("untarred"));
    assert_eq!(caller.run_ok(&["ls", "--bundle", "s3://bucket/empty.tar"]), "");
    caller.run_ok(&["cp", "--bundle", "s3://bucket/empty.tar", "there"]);
}

#[test]
fn invalid_bundle_arguments_are_reported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/file", "x");
    scene.store("plain", b"some text");
    scene.store("nothing", b"");
    let usage = "--bundle packs a directory into an object or unpacks one: write cp --bundle DIR s3://BUCKET/NAME.tar, or \
                 vice versa";
    for (command, why) in [
        (&["cp", "--bundle", "here", "there"][..], usage),
        (&["cp", "--bundle", "s3://bucket/plain", "s3://bucket/y"], usage),
        (&["cp", "--bundle", "-", "s3://bucket/y"], usage),
        (
            &["cp", "--bundle", "here/file", "s3://bucket/y"],
            "here/file is not a directory; copy a file without --bundle",
        ),
        (
            &["cp", "--bundle", "here", "s3://bucket/y/"],
            "s3://bucket/y/ is not one object; name the bundle, as in s3://bucket/photos.tar",
        ),
        (
            &["ls", "--bundle", "s3://bucket"],
            "s3://bucket/ is not one object; name the bundle, as in s3://bucket/photos.tar",
        ),
        (&["ls", "--bundle", "s3://bucket/none"], "there is nothing at s3://bucket/none"),
        (
            &["cp", "here", "--member", "a", "there"],
            "--member extracts a file from a bundle in a store; write cp s3://BUCKET/NAME.tar --member NAME TO",
        ),
        (
            &["cp", "s3://bucket/plain", "--member", "a", "s3://bucket/y"],
            "s3://bucket/y is in a store; --member copies to a file, or to - for standard output",
        ),
    ] {
        caller.run_failing(command, &[why]);
    }
    for key in ["plain", "nothing"] {
        let why = format!(
            "s3://bucket/{key}: not a bundle, or truncated: it does not end with an index as `cp --bundle` writes it"
        );
        caller.run_failing(&["ls", "--bundle", &format!("s3://bucket/{key}")], &[&why]);
        caller.run_failing(&["cp", "--bundle", &format!("s3://bucket/{key}"), "there"], &[&why]);
        caller.run_failing(&["cat", &format!("s3://bucket/{key}"), "--member", "a"], &[&why]);
    }
    for usage in [
        &["cp", "here", "s3://bucket/x", "--bundle-size", "1MiB"][..],
        &["cp", "--bundle", "--member", "a", "s3://bucket/x", "y"],
        &["cp", "--bundle", "--bundle-size", "1KiB", "here", "s3://bucket/x"],
        &["cp", "--bundle", "--preserve", "here", "s3://bucket/x"],
        &["cp", "--preserve", "--member", "a", "s3://bucket/x", "y"],
    ] {
        assert_eq!(caller.run(usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn damaged_members_are_reported_and_the_rest_unpacked() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    // Adjacent members fetched with one request, and one that has its own.
    for (name, size) in [("a", 1000), ("b", 1000), ("c", 1000), ("large", LARGE)] {
        caller.write(format!("here/{name}"), content(size as u64, size));
    }
    caller.run_ok(&["cp", "--bundle", "here", "s3://bucket/x.tar"]);
    let whole = scene.read("x.tar");
    let store = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        scene.store("bad.tar", &bytes);
    };
    store(&|bytes| bytes[512 + 1024 + 512 + 10] ^= 1);
    let why = |name: &str| {
        format!("\"{name}\" is damaged in s3://bucket/bad.tar: its checksum does not match the index")
    };
    caller.run_failing(&["cp", "--bundle", "s3://bucket/bad.tar", "there"], &[&why("b")]);
    assert_eq!(names(&caller.path("there")), ["a", "c", "large"]);
    caller.run_failing(&["cp", "s3://bucket/bad.tar", "--member", "b", "one"], &[&why("b")]);
    let ran = caller.run(&["cat", "s3://bucket/bad.tar", "--member", "b"]);
    assert!(ran.out.is_empty() && ran.err.contains(&why("b")), "{}", ran.err);

    let large = whole.len() - 3000;
    store(&|bytes| bytes[large] ^= 1);
    caller.run_failing(&["cp", "--bundle", "s3://bucket/bad.tar", "more"], &[&why("large")]);
    assert_eq!(names(&caller.path("more")), ["a", "b", "c"]);
    assert!(caller.run(&["cat", "s3://bucket/bad.tar", "--member", "large"]).err.contains(&why("large")));

    let fails = |why: &str| {
        let why = format!("s3://bucket/bad.tar: {why}");
        caller.run_failing(&["cp", "--bundle", "s3://bucket/bad.tar", "none"], &[&why]);
        assert!(!caller.path("none").exists());
    };
    store(&|bytes| bytes.truncate(bytes.len() - 1));
    fails("not a bundle, or truncated: it does not end with an index as `cp --bundle` writes it");
    store(&|bytes| *bytes.last_mut().unwrap() ^= 1);
    fails("the bundle is damaged: the checksum of its footer does not match");
    let index = whole.len() - 70;
    store(&|bytes| bytes[index] ^= 1);
    fails("the bundle is damaged: the checksum of its index does not match");
    store(&|bytes| drop(bytes.drain(..whole.len() - 200)));
    fails("the bundle is damaged: its index is longer than possible");
}

/// A bundle built by hand according to `docs/bundles.md`, with arbitrary member names.
fn forged(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut object, mut index) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        object.resize(object.len() + 512, b'h');
        index.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        index.extend(name.as_bytes());
        index.extend((object.len() as u64).to_le_bytes());
        index.extend((bytes.len() as u64).to_le_bytes());
        index.extend(1000_i64.to_le_bytes());
        index.extend(0o6777_u32.to_le_bytes());
        index.extend(crc64nvme(bytes).to_le_bytes());
        object.extend(*bytes);
        object.resize(object.len().next_multiple_of(512), 0);
    }
    object.resize(object.len() + 1024, 0);
    let mut footer = b"tradewind bundle".to_vec();
    for number in [1, 1, 0, u32::try_from(members.len()).unwrap()] {
        footer.extend(number.to_le_bytes());
    }
    for number in [9, index.len() as u64, crc64nvme(&index)] {
        footer.extend(number.to_le_bytes());
    }
    footer.extend(crc64nvme(&footer).to_le_bytes());
    object.extend(index);
    object.extend(footer);
    object
}

#[test]
fn member_names_that_leave_the_directory_are_rejected() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let members: [(&str, &[u8]); 6] =
        [("../up", b"1"), ("/root", b"2"), ("a", b"3"), ("a/b", b"4"), ("c//d", b"5"), ("link/x", b"6")];
    scene.store("forged", &forged(&members));
    fs::create_dir_all(caller.path("deep/there")).unwrap();
    fs::create_dir_all(caller.path("elsewhere")).unwrap();
    symlink("../../elsewhere", caller.path("deep/there/link")).unwrap();
    let ran = caller.run(&["cp", "--bundle", "s3://bucket/forged", "deep/there"]);
    assert_eq!(ran.status.code(), Some(1));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 5, "{}", ran.err);
    assert_eq!(fs::read(caller.path("deep/there/a")).unwrap(), b"3");
    // Permissions beyond the umask and set-id bits are not taken from a bundle.
    let default_mode = fs::File::create(caller.path("usual")).unwrap().metadata().unwrap().mode() & 0o777;
    let allowed = default_mode | (default_mode & 0o444) >> 2;
    assert_eq!(fs::metadata(caller.path("deep/there/a")).unwrap().mode() & 0o7777, allowed);
    assert!(fs::read_dir(caller.path("elsewhere")).unwrap().next().is_none());
    assert_eq!(fs::read_dir(caller.path("deep")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(caller.path("deep/there")).unwrap().count(), 2);
    // The member can still be read under a name given by the user.
    let ran = caller.run(&["cat", "s3://bucket/forged", "--member", "../up"]);
    assert_eq!(ran.out, b"1");
}
