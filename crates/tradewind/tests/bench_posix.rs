//! `tradewind bench posix`, run as a process: what it keeps and prints, what it leaves behind, and what becomes of it on a
//! file system that is full, is read-only, refuses direct access, or where somebody stops it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value as Json;

use support::caller::{Caller, Ran};
use support::disk::Disk;

/// Somebody who measures directories and needs no server.
fn caller() -> Caller {
    Caller::new("127.0.0.1:9".parse().unwrap())
}

/// `tradewind bench posix` with flags as they stand in a line. The machine's caches are others' too.
fn flags(line: &str) -> Vec<&str> {
    ["bench", "posix", "--leave-caches"].into_iter().chain(line.split_whitespace()).collect()
}

/// The lines of a result about a file system that are of a kind.
fn lines(text: &str, what: &str) -> Vec<Json> {
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.filter(|line| line["line"] == "posix" && line["what"] == what).collect()
}

fn kept(caller: &Caller, name: &str) -> String {
    fs::read_to_string(caller.path(name)).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "lost+found");
    names.sort();
    names
}

#[test]
fn a_directory_is_measured_and_left_as_it_was() {
    let caller = caller();
    caller.write("place/mine", b"not to be touched");
    caller.write("place/tradewind-bench-00000000/mine", b"nor this");
    let line = "place --form sync,default --unit 64KiB,16MiB --size 4KiB,100KiB --threads 1,3 --files 6 --pool 20 \
                --transactions 30 --range 512B-100KiB --repeat 2 -o result.jsonl";
    let table = caller.done(&flags(line));
    let kept = kept(&caller, "result.jsonl");
    // Twice, written and read, by two forms: two units, two sizes alone, two sizes by one thread and by three.
    let accesses = lines(&kept, "access");
    assert_eq!(accesses.len(), 2 * 2 * 2 * (2 + 2 + 2 * 2), "{table}");
    let whole = |access: &Json| {
        let files = if access["scope"] == "batch" { 6 } else { 1 };
        access["files"] == files && access["failures"] == serde_json::json!({})
    };
    assert!(accesses.iter().all(whole), "{kept}");
    assert_eq!(lines(&kept, "postmark").len(), 2);
    assert_eq!(lines(&kept, "policy").len(), 2);
    let conditions = &lines(&kept, "conditions")[0];
    assert!(conditions["caches"] == "advised" && conditions["mount"]["kind"] != "", "{conditions}");
    for row in ["unit write    sync", "batch read    default", "policy        sync", "files created:"] {
        assert!(table.contains(row), "{row}: {table}");
    }
    assert_eq!(names(&caller.path("place")), ["mine", "tradewind-bench-00000000"]);
    assert_eq!(fs::read(caller.path("place/tradewind-bench-00000000/mine")).unwrap(), b"nor this");
    let words = caller.done(&["report", "result.jsonl", "-o", "page.html"]);
    assert!(
        words.contains("Writing whole files reaches") && words.contains("Postmark with files of"),
        "{words}"
    );
    let page = caller.done(&["report", "result.jsonl", "result.jsonl", "-o", "-"]);
    assert!(page.contains("No difference: chance explains all that is seen."), "{page}");
}

#[test]
fn what_an_interface_carries_is_counted() {
    let caller = caller();
    caller.write("place/mine", b"");
    let said =
        caller.done(&flags("place --only single --form default --size 64KiB --interface lo --json --no-out"));
    let conditions = &lines(&said, "conditions")[0];
    assert!(conditions["interface"] == "lo" && conditions["idle"].is_array(), "{conditions}");
    let accesses = lines(&said, "access");
    assert_eq!(accesses.len(), 2);
    for access in accesses {
        let wire = |what: &str| access["wire"][what].as_u64().unwrap();
        // Of loopback each byte is counted once; others use it too.
        assert!(wire("sent") == wire("received") && wire("total") == wire("sent"), "{access}");
        assert!(wire("settled") >= wire("total"), "{access}");
    }
}

#[test]
fn files_are_kept_for_whoever_asks() {
    let caller = caller();
    caller.write("place/mine", b"");
    let ran = caller
        .run(&flags("place --only batch --form default --size 4KiB --threads 2 --files 4 --keep --no-out"));
    assert!(ran.status.success() && ran.err.contains("files are kept in place/tradewind-bench-"), "{ran:?}");
    let own = names(&caller.path("place")).pop().unwrap();
    let own = caller.path("place").join(own);
    assert_eq!(names(&own), ["00", "01"]);
    // Two of the batch for each thread; the first has that of the policy too.
    assert_eq!((names(&own.join("00")).len(), names(&own.join("01")).len()), (3, 2));
}

#[test]
fn an_ext4_of_its_own_is_told_from_memory() {
    let caller = caller();
    let Some(_disk) = Disk::ext4(&caller, 160) else { return };
    // This one drops the caches of the machine, as it does by default.
    let said =
        caller.done(&["bench", "posix", "disk", "--only", "unit", "--unit", "64KiB", "--json", "--no-out"]);
    let conditions = &lines(&said, "conditions")[0];
    assert_eq!(
        (&conditions["mount"]["kind"], &conditions["skipped"]),
        (&"ext4".into(), &serde_json::json!([]))
    );
    assert_eq!(lines(&said, "access").len(), 6);
    let policies = lines(&said, "policy");
    assert_eq!(
        policies.iter().map(|each| each["form"].as_str().unwrap()).collect::<Vec<_>>(),
        ["direct", "sync", "default"]
    );
    assert_eq!(names(&caller.path("disk")), [""; 0]);
}

#[test]
fn what_does_not_support_direct_access_is_measured_without() {
    let caller = caller();
    let Some(_disk) = Disk::mount(&caller, &["-t", "ramfs", "ramfs"]) else { return };
    let line = "disk --only unit --form direct,default --unit 1MiB --json --no-out";
    let said = caller.done(&flags(line));
    let skipped = &lines(&said, "conditions")[0]["skipped"];
    assert_eq!(skipped[0][0], "direct", "{said}");
    assert!(skipped[0][1].as_str().unwrap().contains("does not support direct access"), "{skipped}");
    let forms: Vec<Json> = lines(&said, "access").iter().map(|access| access["form"].clone()).collect();
    assert_eq!(forms, ["default", "default"]);
}

#[test]
fn a_disk_that_gets_full_is_told_of_and_emptied() {
    let caller = caller();
    let Some(_disk) = Disk::mount(&caller, &["-t", "tmpfs", "-o", "size=24m", "tmpfs"]) else { return };
    let line = "disk --only batch --form default --size 1MiB,4KiB --threads 2 --files 40 -o result.jsonl";
    let ran = caller.run(&flags(line));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let kept = kept(&caller, "result.jsonl");
    let accesses = lines(&kept, "access");
    let (full, rest) = accesses.split_first().unwrap();
    let failed = full["failures"]["StorageFull"].as_u64().unwrap();
    assert!((1..=2).contains(&failed) && full["files"].as_u64().unwrap() > 15, "{full}");
    let sample = full["samples"][0].as_str().unwrap();
    assert!(
        sample.contains("No space left on device") && sample.contains("of the 24MiB of its file system"),
        "{sample}"
    );
    // What fits afterwards is measured: room was made.
    assert!(
        rest.len() == 3 && rest.iter().all(|access| access["failures"] == serde_json::json!({})),
        "{kept}"
    );
    assert_eq!(rest[2]["files"], 40);
    assert_eq!(names(&caller.path("disk")), [""; 0]);
}

/// A file system of 64 MiB on a device that holds 8, which is found out when what was written leaves memory.
fn disk_that_loses_what_is_written(caller: &Caller, below: &Caller) -> Option<(Disk, Disk)> {
    let memory = Disk::tmpfs(below, 8)?;
    let image = below.path("disk/image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image).output();
    if !made.is_ok_and(|made| made.status.success()) {
        support::skip("disk", "no ext4 can be made");
        return None;
    }
    let disk = Disk::mount(caller, &["-o", "loop", image.to_str().unwrap()])?;
    Some((disk, memory))
}

#[test]
fn what_is_lost_after_it_was_closed_is_a_failure() {
    let (caller, below) = (caller(), caller());
    let Some(_disks) = disk_that_loses_what_is_written(&caller, &below) else { return };
    let ran = caller.run(&flags("disk --only single --form default --size 24MiB -o result.jsonl"));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let kept = kept(&caller, "result.jsonl");
    let written = &lines(&kept, "access")[0];
    assert!(written["phase"] == "write" && written["files"] == 1, "{written}");
    assert!(written["failures"] == serde_json::json!({"NotDurable": 1}), "{written}");
    assert_eq!(written["sync_seconds"], Json::Null, "{written}");
    let sample = written["samples"][0].as_str().unwrap();
    assert!(sample.starts_with("cannot make durable what was written: "), "{sample}");
}

#[test]
fn postmark_makes_its_files_durable_where_that_is_asked_for() {
    let (caller, below) = (caller(), caller());
    let Some(_disks) = disk_that_loses_what_is_written(&caller, &below) else { return };
    // What is removed before it leaves memory is missed by nobody.
    let line = "disk --only postmark --range 2MiB --pool 8 --transactions 1 --json --no-out";
    let ran = caller.run(&flags(&format!("{line} --fsync")));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let postmark = &lines(&String::from_utf8(ran.out).unwrap(), "postmark")[0];
    let sample = postmark["samples"][0].as_str().unwrap();
    assert!(sample.starts_with("cannot make durable 00/"), "{postmark}");
}

#[test]
fn what_measures_nothing_has_failed() {
    let caller = caller();
    caller.write("place/mine", b"");
    // Wherever that is, direct access takes no such size.
    let line = "place --only batch --form direct --size 1000B --threads 1 --files 2";
    let ran = caller.run(&flags(&format!("{line} -o result.jsonl")));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let kept = kept(&caller, "result.jsonl");
    assert!(String::from_utf8(ran.out).unwrap().contains("direct access is left out: "));
    assert!(lines(&kept, "access").is_empty() && kept.ends_with("\"partial\":false}\n"), "{kept}");
    // Of several something is enough.
    caller.done(&flags(&format!("{line} --form default --json --no-out")));
}

#[test]
fn a_postmark_that_fills_the_disk_ends_early_and_says_so() {
    let caller = caller();
    let Some(_disk) = Disk::tmpfs(&caller, 4) else { return };
    let line = "disk --only postmark --range 1MiB --pool 8 --transactions 8 -o result.jsonl";
    let ran = caller.run(&flags(line));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let table = String::from_utf8(ran.out).unwrap();
    assert!(table.contains("  note: it ended early"), "{table}");
    let words = caller.done(&["report", "result.jsonl", "-o", "page.html"]);
    assert!(words.contains("Postmark with files of 1MiB-1MiB ended early"), "{words}");
}

#[test]
fn who_is_stopped_keeps_what_was_measured_and_removes_what_was_made() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let caller = caller();
        caller.write("place/mine", b"");
        let line = "place --only batch --form sync --size 4KiB --threads 2 --files 1000000 -o result.jsonl";
        let running = caller.begin(&flags(line));
        let own =
            || names(&caller.path("place")).into_iter().find(|name| name.starts_with("tradewind-bench-"));
        support::eventually("files are made", || {
            own().is_some_and(|own| caller.path("place").join(own).join("01").is_dir())
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        running.signal(signal);
        let Ran { status: ended, err, .. } = running.end();
        assert_eq!(ended.code(), Some(status), "{err}");
        let kept = kept(&caller, "result.jsonl");
        let access = &lines(&kept, "access")[0];
        assert!(access["partial"] == true && access["files"].as_u64().unwrap() > 0, "{kept}");
        assert!(kept.ends_with("{\"line\":\"end\",\"partial\":true}\n"), "{kept}");
        assert_eq!(names(&caller.path("place")), ["mine"]);
        let page = caller.done(&["report", "result.jsonl", "-o", "-"]);
        assert!(page.contains("It was stopped before all was measured."), "{page}");
    }
}

#[test]
fn a_workload_is_measured_and_flags_count_before_it() {
    let caller = caller();
    caller.write("place/mine", b"");
    let text = "about = \"x\"\n\
                [[load]]\npart = \"batch\"\nform = [\"sync\", \"default\"]\nsize = \"4KiB\"\nthreads = 1\nfiles = 5\n\
                [[load]]\npart = \"batch\"\nform = \"sync\"\nsize = \"4KiB\"\nthreads = [1, 2]\nfiles = 5\n\
                [[load]]\npart = \"postmark\"\nrange = \"1KiB-2KiB\"\npool = 7\ntransactions = 9\n";
    caller.write("mine.toml", text.as_bytes());
    // Otherwise one of the two would be left out, and nobody could tell which.
    caller.write("other.toml", text.replacen("files = 5", "files = 8", 1).as_bytes());
    let refused = caller.run(&flags("place --workload other.toml --json --no-out"));
    assert!(
        refused.status.code() == Some(2) && refused.err.contains("is asked for twice"),
        "{}",
        refused.err
    );
    let measured = |line: &str| {
        let said = caller.done(&flags(&format!("place --workload mine.toml {line} --json --no-out")));
        let accesses = lines(&said, "access").into_iter().map(|access| {
            let text = |key: &str| access[key].as_str().unwrap().to_owned();
            let number = |key: &str| access[key].as_u64().unwrap();
            (text("phase"), text("form"), number("threads"), number("files"))
        });
        (accesses.collect::<Vec<_>>(), lines(&said, "postmark"))
    };
    let (accesses, postmarks) = measured("");
    let told: Vec<(&str, &str, u64, u64)> =
        accesses.iter().map(|(phase, form, threads, files)| (&**phase, &**form, *threads, *files)).collect();
    assert_eq!(
        told,
        [
            ("write", "sync", 1, 5),
            ("read", "sync", 1, 5),
            ("write", "default", 1, 5),
            ("read", "default", 1, 5),
            // What the first load had already is not measured again. Threads have as many files each.
            ("write", "sync", 2, 6),
            ("read", "sync", 2, 6),
        ]
    );
    assert!(postmarks.len() == 1 && postmarks[0]["pool"] == 7, "{postmarks:?}");
    let (accesses, postmarks) = measured("--only postmark --pool 3");
    assert!(accesses.is_empty() && postmarks[0]["pool"] == 3 && postmarks[0]["transactions"] == 9);
    let (accesses, postmarks) = measured("--only batch --files 2 --threads 2");
    assert!(accesses.len() == 4 && accesses.iter().all(|access| access.3 == 2), "{accesses:?}");
    assert_eq!(postmarks.len(), 0);
    // A ready one, as short as it can be.
    let said = caller.done(&flags(
        "place --workload ou --time 1ms --unit 16MiB --size 4KiB --threads 1,2 --form sync --json --no-out",
    ));
    assert_eq!(lines(&said, "access").len(), 2 * (1 + 1 + 2), "{said}");
    let table = caller.done(&["bench", "workloads"]);
    assert!(table.contains("ou-large   bench posix   Files of 16 MiB"), "{table}");
}

#[test]
fn results_under_different_conditions_are_told_apart() {
    let caller = caller();
    caller.write("place/mine", b"");
    let line = "place --only batch --form default --size 4KiB --threads 1 --files 3";
    caller.done(&flags(&format!("{line} -o before.jsonl")));
    caller.done(&flags(&format!("{line} --fsync -o after.jsonl")));
    let said = caller.done(&["report", "before.jsonl", "after.jsonl", "-o", "page.html"]);
    assert!(
        said.contains("the time of a file that is written: open, writes, close before, open, writes, fsync, close after."),
        "{said}"
    );
    let same = caller.done(&["report", "before.jsonl", "before.jsonl", "-o", "page.html"]);
    assert!(!same.contains("not measured under the same conditions"), "{same}");
    let table = caller.done(&["report", "before.jsonl", "--csv", "-"]);
    assert!(table.contains("before,write default 4KiB x 1,,4KiB,1,,,1,write,"), "{table}");
    assert!(table.contains(",file,") && table.contains(",policy,"), "{table}");
}

#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let caller = caller();
    caller.write("file", b"");
    let refused = |line: &str, status: i32, why: &str| {
        let ran = caller.run(&flags(&format!("{line} --no-out")));
        assert_eq!(ran.status.code(), Some(status), "{line}: {}", ran.err);
        assert!(ran.err.contains(why), "{line}: {}", ran.err);
    };
    refused("nowhere", 1, "nowhere cannot be measured: there is no such directory");
    refused("file", 1, "file cannot be measured: it is no directory");
    refused(". --interface no-such", 2, "there is no interface no-such; there are lo");
    refused(". --unit 32MiB", 2, "the size of the file");
    refused(". --size 0B", 2, "hold nothing");
    refused(". --form odirect", 2, "none of direct, sync and default");
    refused(". --only reading", 2, "unit, single, batch or postmark");
    refused(". --workload nothing", 1, "nor a workload that is ready: ou, ou-unit");
    refused(". --workload hou", 2, "hou is a workload of tradewind bench object");
    refused(". --workload postmark --only unit", 2, "nothing of what --only names");
    caller.write("bad.toml", b"about = \"x\"\n\n[[load]]\npart = \"batch\"\nunit = \"4KiB\"\n");
    refused(". --workload bad.toml", 2, "bad.toml: line 5: unit is of no use in batch");
    assert_eq!(names(caller.root()), ["bad.toml", "file"]);
    let Some(_disk) = Disk::mount(&caller, &["-t", "tmpfs", "-o", "ro", "tmpfs"]) else { return };
    refused("disk", 1, "nothing can be made in it: Read-only file system");
}
