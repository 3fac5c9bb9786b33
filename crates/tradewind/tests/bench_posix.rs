//! `tradewind bench posix` as a process: results, cleanup, signals, and file systems that are full, read-only or
//! without direct I/O.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value as Json;

use support::command_runner::{CommandOutput, CommandRunner};
use support::disk::Disk;

/// A runner of commands that need no server.
fn caller() -> CommandRunner {
    CommandRunner::new("127.0.0.1:9".parse().unwrap())
}

/// The arguments of `tradewind bench posix` with the flags in `line`. Caches are not dropped, because the whole machine
/// uses them.
fn flags(line: &str) -> Vec<&str> {
    ["bench", "posix", "--leave-caches"].into_iter().chain(line.split_whitespace()).collect()
}

/// The lines of a file system's result with the given kind.
fn lines(text: &str, record: &str) -> Vec<Json> {
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.filter(|line| line["line"] == "posix" && line["record"] == record).collect()
}

fn saved(caller: &CommandRunner, name: &str) -> String {
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
fn measuring_a_directory_leaves_it_unchanged() {
    let caller = caller();
    caller.write("place/mine", b"not to be touched");
    caller.write("place/tradewind-bench-00000000/mine", b"nor this");
    let line = "place --form sync,default --unit 64KiB,16MiB --size 4KiB,100KiB --threads 1,3 --files 6 --pool 20 \
                --transactions 30 --range 512B-100KiB --repeat 2 -o result.jsonl";
    let table = caller.run_ok(&flags(line));
    let saved = saved(&caller, "result.jsonl");
    // Two rounds of writes and reads in two forms: two units, two single sizes, two sizes with one thread and with
    // three.
    let accesses = lines(&saved, "access");
    assert_eq!(accesses.len(), 2 * 2 * 2 * (2 + 2 + 2 * 2), "{table}");
    let whole = |access: &Json| {
        let files = if access["scope"] == "batch" { 6 } else { 1 };
        access["files"] == files && access["failures"] == serde_json::json!({})
    };
    assert!(accesses.iter().all(whole), "{saved}");
    assert_eq!(lines(&saved, "postmark").len(), 2);
    assert_eq!(lines(&saved, "policy").len(), 2);
    let conditions = &lines(&saved, "conditions")[0];
    assert!(conditions["caches"] == "advised" && conditions["mount"]["fs_type"] != "", "{conditions}");
    for row in ["unit write    sync", "batch read    default", "policy        sync", "files created:"] {
        assert!(table.contains(row), "{row}: {table}");
    }
    assert_eq!(names(&caller.path("place")), ["mine", "tradewind-bench-00000000"]);
    assert_eq!(fs::read(caller.path("place/tradewind-bench-00000000/mine")).unwrap(), b"nor this");
    let words = caller.run_ok(&["report", "result.jsonl", "-o", "page.html"]);
    assert!(
        words.contains("Write throughput of whole files: ") && words.contains("Postmark with files of"),
        "{words}"
    );
    let page = caller.run_ok(&["report", "result.jsonl", "result.jsonl", "-o", "-"]);
    assert!(page.contains("No significant difference."), "{page}");
}

#[test]
fn bytes_on_the_interface_are_counted() {
    let caller = caller();
    caller.write("place/mine", b"");
    let output = caller
        .run_ok(&flags("place --only single --form default --size 64KiB --interface lo --json --no-out"));
    let conditions = &lines(&output, "conditions")[0];
    assert!(
        conditions["interface"] == "lo" && conditions["idle_bytes_per_second"].is_object(),
        "{conditions}"
    );
    let accesses = lines(&output, "access");
    assert_eq!(accesses.len(), 2);
    for access in accesses {
        let wire = |what: &str| access["wire"][what].as_u64().unwrap();
        // On loopback, sent and received bytes are equal. Other processes use it, too.
        assert!(wire("sent") == wire("received") && wire("total") == wire("sent"), "{access}");
        assert!(wire("total_until_durable") >= wire("total"), "{access}");
    }
}

#[test]
fn files_are_kept_with_keep() {
    let caller = caller();
    caller.write("place/mine", b"");
    let ran = caller
        .run(&flags("place --only batch --form default --size 4KiB --threads 2 --files 4 --keep --no-out"));
    assert!(ran.status.success() && ran.err.contains("files are kept in place/tradewind-bench-"), "{ran:?}");
    let own = names(&caller.path("place")).pop().unwrap();
    let own = caller.path("place").join(own);
    assert_eq!(names(&own), ["00", "01"]);
    // Two files of the batch per thread, and the file of the policy in the first directory.
    assert_eq!((names(&own.join("00")).len(), names(&own.join("01")).len()), (3, 2));
}

#[test]
fn an_ext4_is_recognised_and_measured_in_all_forms() {
    let caller = caller();
    let Some(_disk) = Disk::ext4(&caller, 160) else { return };
    // Drops the caches of the machine, which is the default.
    let output =
        caller.run_ok(&["bench", "posix", "disk", "--only", "unit", "--unit", "64KiB", "--json", "--no-out"]);
    let conditions = &lines(&output, "conditions")[0];
    assert_eq!(
        (&conditions["mount"]["fs_type"], &conditions["skipped"]),
        (&"ext4".into(), &serde_json::json!([]))
    );
    assert_eq!(lines(&output, "access").len(), 6);
    let policies = lines(&output, "policy");
    assert_eq!(
        policies.iter().map(|each| each["form"].as_str().unwrap()).collect::<Vec<_>>(),
        ["direct", "sync", "default"]
    );
    assert_eq!(names(&caller.path("disk")), [""; 0]);
}

#[test]
fn a_file_system_without_direct_access_is_measured_without_it() {
    let caller = caller();
    let Some(_disk) = Disk::mount(&caller, &["-t", "ramfs", "ramfs"]) else { return };
    let line = "disk --only unit --form direct,default --unit 1MiB --json --no-out";
    let output = caller.run_ok(&flags(line));
    let skipped = &lines(&output, "conditions")[0]["skipped"];
    assert_eq!(skipped[0]["form"], "direct", "{output}");
    assert!(skipped[0]["reason"].as_str().unwrap().contains("does not support direct access"), "{skipped}");
    let forms: Vec<Json> = lines(&output, "access").iter().map(|access| access["form"].clone()).collect();
    assert_eq!(forms, ["default", "default"]);
}

#[test]
fn a_full_disk_is_reported_and_emptied() {
    let caller = caller();
    let Some(_disk) = Disk::mount(&caller, &["-t", "tmpfs", "-o", "size=24m", "tmpfs"]) else { return };
    let line = "disk --only batch --form default --size 1MiB,4KiB --threads 2 --files 40 -o result.jsonl";
    let ran = caller.run(&flags(line));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let saved = saved(&caller, "result.jsonl");
    let accesses = lines(&saved, "access");
    let (full, rest) = accesses.split_first().unwrap();
    let failed = full["failures"]["StorageFull"].as_u64().unwrap();
    assert!((1..=2).contains(&failed) && full["files"].as_u64().unwrap() > 15, "{full}");
    let sample = full["failure_samples"][0].as_str().unwrap();
    assert!(
        sample.contains("No space left on device") && sample.contains("of 24MiB of the file system"),
        "{sample}"
    );
    // Later measurements that fit succeed, because the files were removed.
    assert!(
        rest.len() == 3 && rest.iter().all(|access| access["failures"] == serde_json::json!({})),
        "{saved}"
    );
    assert_eq!(rest[2]["files"], 40);
    assert_eq!(names(&caller.path("disk")), [""; 0]);
}

/// A file system of 64 MiB on a device of 8 MiB, where writing back from the page cache fails.
fn disk_that_loses_what_is_written(caller: &CommandRunner, below: &CommandRunner) -> Option<(Disk, Disk)> {
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
fn data_lost_after_close_is_a_failure() {
    let (caller, below) = (caller(), caller());
    let Some(_disks) = disk_that_loses_what_is_written(&caller, &below) else { return };
    let ran = caller.run(&flags("disk --only single --form default --size 24MiB -o result.jsonl"));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let saved = saved(&caller, "result.jsonl");
    let written = &lines(&saved, "access")[0];
    assert!(written["phase"] == "write" && written["files"] == 1, "{written}");
    assert!(written["failures"] == serde_json::json!({"NotDurable": 1}), "{written}");
    assert_eq!(written["sync_seconds"], Json::Null, "{written}");
    let sample = written["failure_samples"][0].as_str().unwrap();
    assert!(sample.starts_with("cannot make durable what was written: "), "{sample}");
}

#[test]
fn postmark_syncs_its_files_with_fsync() {
    let (caller, below) = (caller(), caller());
    let Some(_disks) = disk_that_loses_what_is_written(&caller, &below) else { return };
    // Without --fsync, files removed before they are written back cause no failure.
    let line = "disk --only postmark --range 2MiB --pool 8 --transactions 1 --json --no-out";
    let ran = caller.run(&flags(&format!("{line} --fsync")));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let postmark = &lines(&String::from_utf8(ran.out).unwrap(), "postmark")[0];
    let sample = postmark["failure_samples"][0].as_str().unwrap();
    assert!(sample.starts_with("cannot make durable 00/"), "{postmark}");
}

#[test]
fn a_run_without_any_measurement_fails() {
    let caller = caller();
    caller.write("place/mine", b"");
    // No file system supports direct access with this size.
    let line = "place --only batch --form direct --size 1000B --threads 1 --files 2";
    let ran = caller.run(&flags(&format!("{line} -o result.jsonl")));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let saved = saved(&caller, "result.jsonl");
    assert!(String::from_utf8(ran.out).unwrap().contains("direct access skipped: "));
    assert!(lines(&saved, "access").is_empty() && saved.ends_with("\"partial\":false}\n"), "{saved}");
    // One successful form is enough.
    caller.run_ok(&flags(&format!("{line} --form default --json --no-out")));
}

#[test]
fn a_postmark_that_fills_the_disk_reports_its_early_end() {
    let caller = caller();
    let Some(_disk) = Disk::tmpfs(&caller, 4) else { return };
    let line = "disk --only postmark --range 1MiB --pool 8 --transactions 8 -o result.jsonl";
    let ran = caller.run(&flags(line));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let table = String::from_utf8(ran.out).unwrap();
    assert!(table.contains("  note: ended early"), "{table}");
    let words = caller.run_ok(&["report", "result.jsonl", "-o", "page.html"]);
    assert!(words.contains("Postmark with files of 1MiB-1MiB ended early"), "{words}");
}

#[test]
fn an_interrupted_run_saves_results_and_removes_files() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let caller = caller();
        caller.write("place/mine", b"");
        let line = "place --only batch --form sync --size 4KiB --threads 2 --files 1000000 -o result.jsonl";
        let running = caller.spawn(&flags(line));
        let own =
            || names(&caller.path("place")).into_iter().find(|name| name.starts_with("tradewind-bench-"));
        support::eventually("files are made", || {
            own().is_some_and(|own| caller.path("place").join(own).join("01").is_dir())
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        running.signal(signal);
        let CommandOutput { status: ended, err, .. } = running.wait_for_output();
        assert_eq!(ended.code(), Some(status), "{err}");
        let saved = saved(&caller, "result.jsonl");
        let access = &lines(&saved, "access")[0];
        assert!(access["partial"] == true && access["files"].as_u64().unwrap() > 0, "{saved}");
        assert!(saved.ends_with("{\"line\":\"end\",\"partial\":true}\n"), "{saved}");
        assert_eq!(names(&caller.path("place")), ["mine"]);
        let page = caller.run_ok(&["report", "result.jsonl", "-o", "-"]);
        assert!(page.contains("The run was stopped before all measurements were done."), "{page}");
    }
}

#[test]
fn flags_override_the_settings_of_a_workload() {
    let caller = caller();
    caller.write("place/mine", b"");
    let text = "about = \"x\"\n\
                [[load]]\npart = \"batch\"\nform = [\"sync\", \"default\"]\nsize = \"4KiB\"\nthreads = 1\nfiles = 5\n\
                [[load]]\npart = \"batch\"\nform = \"sync\"\nsize = \"4KiB\"\nthreads = [1, 2]\nfiles = 5\n\
                [[load]]\npart = \"postmark\"\nrange = \"1KiB-2KiB\"\npool = 7\ntransactions = 9\n";
    caller.write("mine.toml", text.as_bytes());
    // Two loads with the same name but different settings are ambiguous.
    caller.write("other.toml", text.replacen("files = 5", "files = 8", 1).as_bytes());
    let refused = caller.run(&flags("place --workload other.toml --json --no-out"));
    assert!(
        refused.status.code() == Some(2) && refused.err.contains("is requested twice"),
        "{}",
        refused.err
    );
    let measured = |line: &str| {
        let output = caller.run_ok(&flags(&format!("place --workload mine.toml {line} --json --no-out")));
        let accesses = lines(&output, "access").into_iter().map(|access| {
            let text = |key: &str| access[key].as_str().unwrap().to_owned();
            let number = |key: &str| access[key].as_u64().unwrap();
            (text("phase"), text("form"), number("threads"), number("files"))
        });
        (accesses.collect::<Vec<_>>(), lines(&output, "postmark"))
    };
    let (accesses, postmarks) = measured("");
    let measured_cells: Vec<(&str, &str, u64, u64)> =
        accesses.iter().map(|(phase, form, threads, files)| (&**phase, &**form, *threads, *files)).collect();
    assert_eq!(
        measured_cells,
        [
            ("write", "sync", 1, 5),
            ("read", "sync", 1, 5),
            ("write", "default", 1, 5),
            ("read", "default", 1, 5),
            // The measurement of the first load is not repeated. All threads have the same number of files.
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
    // A predefined workload with the shortest possible time.
    let output = caller.run_ok(&flags(
        "place --workload ou --time 1ms --unit 16MiB --size 4KiB --threads 1,2 --form sync --json --no-out",
    ));
    assert_eq!(lines(&output, "access").len(), 2 * (1 + 1 + 2), "{output}");
    let table = caller.run_ok(&["bench", "workloads"]);
    assert!(table.contains("ou-large   bench posix   Files of 16 MiB"), "{table}");
}

#[test]
fn a_comparison_reports_different_conditions() {
    let caller = caller();
    caller.write("place/mine", b"");
    let line = "place --only batch --form default --size 4KiB --threads 1 --files 3";
    caller.run_ok(&flags(&format!("{line} -o before.jsonl")));
    caller.run_ok(&flags(&format!("{line} --fsync -o after.jsonl")));
    let output = caller.run_ok(&["report", "before.jsonl", "after.jsonl", "-o", "page.html"]);
    assert!(
        output.contains(
            "time of a written file: open, writes, close before, open, writes, fsync, close after."
        ),
        "{output}"
    );
    let same = caller.run_ok(&["report", "before.jsonl", "before.jsonl", "-o", "page.html"]);
    assert!(!same.contains("not measured under the same conditions"), "{same}");
    let table = caller.run_ok(&["report", "before.jsonl", "--csv", "-"]);
    assert!(table.contains("before,write default 4KiB x 1,,4KiB,1,,,1,write,"), "{table}");
    assert!(table.contains(",file,") && table.contains(",policy,"), "{table}");
}

#[test]
fn impossible_measurements_are_rejected_with_a_reason() {
    let caller = caller();
    caller.write("file", b"");
    let refused = |line: &str, status: i32, why: &str| {
        let ran = caller.run(&flags(&format!("{line} --no-out")));
        assert_eq!(ran.status.code(), Some(status), "{line}: {}", ran.err);
        assert!(ran.err.contains(why), "{line}: {}", ran.err);
    };
    refused("nowhere", 1, "cannot measure nowhere: there is no such directory");
    refused("file", 1, "cannot measure file: it is not a directory");
    refused(". --interface no-such", 2, "there is no interface no-such; available: lo");
    refused(". --unit 32MiB", 2, "the size of the file");
    refused(". --size 0B", 2, "empty files cannot be measured");
    refused(". --form odirect", 2, "must be direct, sync or default");
    refused(". --only reading", 2, "unit, single, batch or postmark");
    refused(". --workload nothing", 1, "nor a built-in workload: ou, ou-unit");
    refused(". --workload hou", 2, "hou is a workload of tradewind bench object");
    refused(". --workload postmark --only unit", 2, "none of the parts given by --only");
    caller.write("bad.toml", b"about = \"x\"\n\n[[load]]\npart = \"batch\"\nunit = \"4KiB\"\n");
    refused(". --workload bad.toml", 2, "bad.toml: line 5: unit does not apply to batch");
    assert_eq!(names(caller.directory_path()), ["bad.toml", "file"]);
    let Some(_disk) = Disk::mount(&caller, &["-t", "tmpfs", "-o", "ro", "tmpfs"]) else { return };
    refused("disk", 1, "cannot create a directory in it: Read-only file system");
}
