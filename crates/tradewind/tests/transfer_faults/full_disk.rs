//! Downloads to a disk that becomes full: objects that fit are complete, others are reported and leave nothing behind,
//! and no object is requested twice.

use std::fs;
use std::path::Path;

use super::{content, files, scene};
use crate::support::command_runner::CommandRunner;
use crate::support::disk::Disk;
use crate::support::scripted_server::{Reply, ScriptedServer};

fn stage(mebibytes: u32) -> Option<(ScriptedServer, CommandRunner, Disk)> {
    let (server, caller) = scene(|_, answer| Reply::Respond(answer));
    let disk = Disk::tmpfs(&caller, mebibytes)?;
    Some((server, caller, disk))
}

fn disk_files(caller: &CommandRunner) -> Vec<String> {
    files(caller).into_iter().filter(|name| name.starts_with("disk/")).collect()
}

#[test]
fn full_disk_keeps_complete_files_and_requests_each_once() {
    let Some((server, caller, _disk)) = stage(8) else { return };
    for n in 0..20 {
        server.put_object(&format!("dir/{n:02}"), content(n, 1 << 20));
    }
    let ran = caller.run(&["cp", "-r", "--concurrency", "2", "s3://bucket/dir/", "disk"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let complete = disk_files(&caller);
    assert!(complete.len() > 4 && complete.len() < 9, "{complete:?}");
    for name in &complete {
        let number = Path::new(name).file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(fs::read(caller.path(name)).unwrap() == content(number, 1 << 20), "{name}");
    }
    let failures: Vec<&str> =
        ran.err.lines().filter(|line| line.contains("No space left on device")).collect();
    assert_eq!(failures.len() + complete.len(), 20, "{}", ran.err);
    assert_eq!(server.requests_of("GetObject").len(), 20, "{:?}", server.request_counts());
    // Objects that did not fit occupy no space.
    let free = rustix::fs::statvfs(caller.path("disk")).unwrap();
    assert_eq!(complete.len() as u64 + ((free.f_bavail * free.f_frsize) >> 20), 8);
}

/// Space is reserved on file systems that support preallocation, and only checked on others.
#[test]
fn large_object_that_does_not_fit_is_rejected_early() {
    type Mount = fn(&CommandRunner) -> Option<Disk>;
    let disks: [Mount; 2] = [|caller| Disk::tmpfs(caller, 12), |caller| Disk::ext4(caller, 16)];
    for mount in disks {
        let (server, caller) = scene(|_, answer| Reply::Respond(answer));
        let Some(_disk) = mount(&caller) else { continue };
        server.put_object("large", content(1, 16 << 20));
        let ran = caller.run(&["cp", "s3://bucket/large", "disk/large"]);
        let why = "tradewind: disk/large needs 16777216 bytes, but its disk has ";
        assert!(ran.status.code() == Some(1) && ran.err.starts_with(why), "{ran:?}");
        assert_eq!(server.requests_of("GetObject").len(), 1, "{:?}", server.request_counts());
        let left = fs::read_dir(caller.path("disk")).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != "lost+found").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn bundle_is_unpacked_until_the_disk_is_full() {
    let Some((server, caller, _disk)) = stage(4) else { return };
    for n in 0..10 {
        caller.write(format!("tree/{n:02}"), content(n, 1 << 20));
    }
    caller.run_ok(&["cp", "--bundle", "tree", "s3://bucket/tree.tar"]);
    let ran = caller.run(&["cp", "--bundle", "s3://bucket/tree.tar", "disk"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.contains("No space left on device"), "{}", ran.err);
    let complete = disk_files(&caller);
    assert!(!complete.is_empty() && complete.len() < 5, "{complete:?}");
    for name in complete {
        let number = Path::new(&name).file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(fs::read(caller.path(&name)).unwrap() == content(number, 1 << 20), "{name}");
    }
    assert!(server.object("tree.tar").is_some());
}
