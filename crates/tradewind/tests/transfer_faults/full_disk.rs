//! A disk that gets full while objects come down: what fits is there, what does not is told and leaves nothing behind, and
//! nothing is asked for twice.

use std::fs;
use std::path::Path;

use super::{content, files, scene};
use crate::support::caller::Caller;
use crate::support::disk::Disk;
use crate::support::scripted::{Reply, Scripted};

fn stage(mebibytes: u32) -> Option<(Scripted, Caller, Disk)> {
    let (server, caller) = scene(|_, answer| Reply::Answer(answer));
    let disk = Disk::tmpfs(&caller, mebibytes)?;
    Some((server, caller, disk))
}

fn of_disk(caller: &Caller) -> Vec<String> {
    files(caller).into_iter().filter(|name| name.starts_with("disk/")).collect()
}

#[test]
fn what_fits_is_there_and_what_does_not_is_asked_for_once() {
    let Some((server, caller, _disk)) = stage(8) else { return };
    for n in 0..20 {
        server.lay(&format!("dir/{n:02}"), content(n, 1 << 20));
    }
    let ran = caller.run(&["cp", "-r", "--jobs", "2", "s3://bucket/dir/", "disk"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let there = of_disk(&caller);
    assert!(there.len() > 4 && there.len() < 9, "{there:?}");
    for name in &there {
        let number = Path::new(name).file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(fs::read(caller.path(name)).unwrap() == content(number, 1 << 20), "{name}");
    }
    let told: Vec<&str> = ran.err.lines().filter(|line| line.contains("No space left on device")).collect();
    assert_eq!(told.len() + there.len(), 20, "{}", ran.err);
    assert_eq!(server.of("GetObject").len(), 20, "{:?}", server.counts());
    // What did not fit takes no room.
    let free = rustix::fs::statvfs(caller.path("disk")).unwrap();
    assert_eq!(there.len() as u64 + ((free.f_bavail * free.f_frsize) >> 20), 8);
}

/// Of some file systems room is taken beforehand, of others it is only looked for.
#[test]
fn a_large_one_that_does_not_fit_is_refused_before_it_comes() {
    type Mount = fn(&Caller) -> Option<Disk>;
    let disks: [Mount; 2] = [|caller| Disk::tmpfs(caller, 12), |caller| Disk::ext4(caller, 16)];
    for mount in disks {
        let (server, caller) = scene(|_, answer| Reply::Answer(answer));
        let Some(_disk) = mount(&caller) else { continue };
        server.lay("large", content(1, 16 << 20));
        let ran = caller.run(&["cp", "s3://bucket/large", "disk/large"]);
        let why = "tradewind: disk/large needs 16777216 bytes, and its disk has ";
        assert!(ran.status.code() == Some(1) && ran.err.starts_with(why), "{ran:?}");
        assert_eq!(server.of("GetObject").len(), 1, "{:?}", server.counts());
        let left = fs::read_dir(caller.path("disk")).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != "lost+found").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_bundle_is_unpacked_as_far_as_there_is_room() {
    let Some((server, caller, _disk)) = stage(4) else { return };
    for n in 0..10 {
        caller.write(format!("tree/{n:02}"), content(n, 1 << 20));
    }
    caller.done(&["cp", "--bundle", "tree", "s3://bucket/tree.tar"]);
    let ran = caller.run(&["cp", "--bundle", "s3://bucket/tree.tar", "disk"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.contains("No space left on device"), "{}", ran.err);
    let there = of_disk(&caller);
    assert!(!there.is_empty() && there.len() < 5, "{there:?}");
    for name in there {
        let number = Path::new(&name).file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(fs::read(caller.path(&name)).unwrap() == content(number, 1 << 20), "{name}");
    }
    assert!(server.object("tree.tar").is_some());
}
