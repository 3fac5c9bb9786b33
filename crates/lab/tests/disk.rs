//! Real commands on slower disks. What is asserted is the least time that bytes take, which a busy machine does not change.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, print how it skips"
)]

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_lab::disk::{self, Disk, DiskOptions, InForce, Rates};

const MIB: u64 = 1 << 20;

/// A directory that is removed with what is in it.
struct Directory(PathBuf);

impl Directory {
    fn new(below: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = below.join(format!("tradewind-lab-disk-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn in_memory() -> Self {
        Self::new(Path::new("/dev/shm"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn slow(rates: Rates) -> DiskOptions {
    DiskOptions { rates, file_system: Some(64 * MIB), write_behind: None }
}

fn writes(bytes: u64) -> Rates {
    Rates { write_bandwidth: Some(bytes), ..Rates::default() }
}

fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-ec", script].map(OsString::from).to_vec()
}

/// Whether a disk may be made here; prints a reason if not.
fn may_run() -> bool {
    let directory = Directory::in_memory();
    match Disk::start(slow(writes(100 * MIB)), &directory.0, &shell("true"), &mut |_| {}) {
        Ok(disk) => {
            disk.wait().unwrap();
            true
        }
        Err(e) => {
            let why = e.to_string();
            let known =
                ["needs root", "can be written", "no controller", "loop device", "mkfs.ext4", "namespace"];
            assert!(known.iter().any(|known| why.contains(known)), "{why}");
            println!("skipped: {why}");
            false
        }
    }
}

/// Runs a command with the directory as `$0`; answers how long it took and what was in force.
fn run(options: DiskOptions, directory: &Path, script: &str) -> (Duration, InForce) {
    let mut in_force = None;
    let command = [shell(script), vec![directory.into()]].concat();
    let begun = Instant::now();
    let disk = Disk::start(options, directory, &command, &mut |told| in_force = Some(told.clone())).unwrap();
    let status = disk.wait().unwrap();
    assert!(status.success(), "{script}: {status}");
    (begun.elapsed(), in_force.unwrap())
}

#[test]
fn what_is_written_takes_its_time() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    for how in ["oflag=direct", "conv=fsync", "oflag=sync"] {
        let script = format!("dd if=/dev/zero of=$0/x bs=1M count=8 {how} 2> /dev/null");
        let (took, in_force) = run(slow(writes(8 * MIB)), &directory.0, &script);
        // Half a slice of the kernel's, of 100 ms, may be taken in advance.
        assert!(took > Duration::from_millis(900), "{how}: 8 MiB at 8 MiB/s took {took:?}");
        assert_eq!(in_force.file_system, Some(64 * MIB));
    }
}

#[test]
fn what_is_written_back_later_takes_its_time_where_that_is_said() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    // Another process than the one that wrote, and the kernel's own, empty the cache.
    let script = "dd if=/dev/zero of=$0/x bs=1M count=8 2> /dev/null; sync -f $0";
    let (took, in_force) = run(slow(writes(8 * MIB)), &directory.0, script);
    assert!(!in_force.later_writes || took > Duration::from_millis(900), "8 MiB at 8 MiB/s took {took:?}");
}

#[test]
fn who_writes_waits_for_what_may_not_wait_in_memory() {
    if !may_run() {
        return;
    }
    let bounds = Path::new("/sys/class/bdi");
    let can =
        fs::read_dir(bounds).into_iter().flatten().flatten().any(|one| one.path().join("max_bytes").exists());
    if !can {
        println!("skipped: this kernel has no bound on what waits to be written");
        return;
    }
    let directory = Directory::in_memory();
    // The second of two writes waits for most of the first.
    let script = "dd if=/dev/zero of=$0/x bs=1M count=16 2> /dev/null; dd if=/dev/zero of=$0/y bs=1M count=16 2> /dev/null";
    let bounded = DiskOptions { write_behind: Some(4 * MIB), ..slow(writes(16 * MIB)) };
    let (took, in_force) = run(bounded, &directory.0, script);
    assert!(!in_force.later_writes || took > Duration::from_millis(900), "32 MiB at 16 MiB/s took {took:?}");

    let whole = Directory::new(&std::env::current_dir().unwrap());
    let options = DiskOptions { file_system: None, ..bounded };
    if let Err(refused) = Disk::start(options, &whole.0, &shell("true"), &mut |_| {}) {
        assert!(refused.to_string().contains("--loop"), "{refused}");
    }
}

#[test]
fn what_is_read_and_how_often_takes_its_time() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let make = "dd if=/dev/zero of=$0/x bs=1M count=4 oflag=direct 2> /dev/null; ";
    let read = format!("{make} dd if=$0/x of=/dev/null bs=1M iflag=direct 2> /dev/null");
    let rates = Rates { read_bandwidth: Some(4 * MIB), ..Rates::default() };
    let (took, _) = run(slow(rates), &directory.0, &read);
    assert!(took > Duration::from_millis(900), "4 MiB at 4 MiB/s took {took:?}");
    let often = format!("{make} dd if=$0/x of=/dev/null bs=4k count=100 iflag=direct 2> /dev/null");
    let rates = Rates { read_requests: Some(100), ..Rates::default() };
    let (took, _) = run(slow(rates), &directory.0, &often);
    assert!(took > Duration::from_millis(800), "100 reads at 100 a second took {took:?}");
}

#[test]
fn a_directory_on_a_device_is_slowed_where_it_is() {
    if !may_run() {
        return;
    }
    let directory = Directory::new(&std::env::current_dir().unwrap());
    fs::write(directory.0.join("kept"), "kept").unwrap();
    let script = "test -e $0/kept; dd if=/dev/zero of=$0/x bs=1M count=8 oflag=direct 2> /dev/null";
    let options = DiskOptions { rates: writes(8 * MIB), ..DiskOptions::default() };
    let command = [shell(script), vec![directory.0.clone().into()]].concat();
    let begun = Instant::now();
    let disk = match Disk::start(options, &directory.0, &command, &mut |_| {}) {
        Ok(disk) => disk,
        Err(e) => {
            // It lies on no device, and a new file system would hide what it holds.
            assert!(e.to_string().contains("it holds files"), "{e}");
            println!("skipped: {e}");
            return;
        }
    };
    assert!(disk.wait().unwrap().success());
    assert!(begun.elapsed() > Duration::from_millis(900), "8 MiB at 8 MiB/s took {:?}", begun.elapsed());
    assert!(directory.0.join("x").exists());
}

#[test]
fn a_new_file_system_is_seen_by_the_command_only_and_goes_with_it() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let (told, path) = (directory.0.join("told"), directory.0.clone());
    let disk_directory = directory.0.join("disk");
    fs::create_dir(&disk_directory).unwrap();
    let script = format!("echo here > $0/file; touch {}; exec sleep 1000", told.display());
    let (sender, receiver) = std::sync::mpsc::channel();
    let running = thread::spawn(move || {
        let command = [shell(&script), vec![disk_directory.clone().into()]].concat();
        let mut device = String::new();
        let disk = Disk::start(slow(writes(8 * MIB)), &disk_directory, &command, &mut |in_force| {
            device = in_force.device.clone();
        });
        let disk = disk.unwrap();
        sender.send((device, disk.process_number())).unwrap();
        assert!(!disk.wait().unwrap().success());
    });
    let (device, process) = receiver.recv().unwrap();
    wait_until("it wrote", || told.exists());
    assert!(!path.join("disk/file").exists(), "others see it");
    let bounds =
        || fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device").unwrap_or_default();
    let file = PathBuf::from(format!("/sys/block/{}/loop/backing_file", device.trim_start_matches("/dev/")));
    assert!(file.exists());
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(killed.success());
    running.join().unwrap();
    let is_ours = || fs::read_to_string(&file).is_ok_and(|file| file.contains(&path.display().to_string()));
    wait_until("the device let go of its file", || !is_ours());
    let is_bounded = |line: &str| line.ends_with(&format!(" {}", 8 * MIB)) && line.starts_with("7:");
    let number = device.trim_start_matches("/dev/loop");
    assert!(
        !bounds().lines().any(|line| is_bounded(line) && line.contains(&format!(":{number} "))),
        "{}",
        bounds()
    );
    assert_eq!(fs::read_dir(path.join("disk")).unwrap().count(), 0);
}

#[test]
fn who_is_in_the_directory_is_on_the_new_disk() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let path = directory.0.clone();
    // This thread alone goes there.
    thread::spawn(move || {
        // SAFETY: it concerns the calling thread only, which ends with this work.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
        std::env::set_current_dir(path).unwrap();
        let script = "echo here > file; test -e \"$PWD/file\"; test $(stat -fc %T .) = ext2/ext3";
        run(slow(writes(8 * MIB)), Path::new("."), script);
    })
    .join()
    .unwrap();
    let left: Vec<_> = fs::read_dir(&directory.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?} lies below the new disk");
}

#[test]
#[ignore = "it is what another test kills"]
fn hold() {
    let directory = Directory::in_memory();
    // The shell is killed with this process, what it started is not.
    let command = shell(&format!("sleep 1000 & echo $! > {}.told; wait", directory.0.display()));
    let disk = Disk::start(slow(writes(7 * MIB)), &directory.0, &command, &mut |_| {}).unwrap();
    let _ = disk.wait();
}

#[test]
fn what_a_killed_one_left_is_removed_by_the_next() {
    if !may_run() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut holder = Command::new(this).args(["hold", "--exact", "--ignored"]).spawn().unwrap();
    let directory = format!("/dev/shm/tradewind-lab-disk-test-{}-0", holder.id());
    let told = PathBuf::from(format!("{directory}.told"));
    wait_until("it was started", || fs::read_to_string(&told).is_ok_and(|told| told.ends_with('\n')));
    let left = fs::read_to_string(&told).unwrap();
    fs::remove_file(&told).unwrap();
    let devices = || {
        let files = (0..256).map(|number| format!("/sys/block/loop{number}/loop/backing_file"));
        files.filter(|file| fs::read_to_string(file).is_ok_and(|file| file.contains(&directory))).count()
    };
    let bounds =
        || fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device").unwrap_or_default();
    assert_eq!(devices(), 1);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(may_run());
    wait_until("what it left running ended", || !Path::new(&format!("/proc/{}", left.trim())).exists());
    wait_until("its device let go of the file", || devices() == 0);
    assert!(may_run());
    assert!(!bounds().contains(&format!(" {}\n", 7 * MIB)), "{}", bounds());
    fs::remove_dir(&directory).unwrap();
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_disk_for_everybody_is_there_until_it_is_taken_down() {
    if !may_run() {
        return;
    }
    // Mounts for everybody are for everybody in this thread's namespace only: nothing is left if the test fails.
    thread::spawn(|| {
        let directory = Directory::in_memory();
        let probe = Disk::start(slow(writes(100 * MIB)), &directory.0, &shell("true"), &mut |_| {}).unwrap();
        probe.wait().unwrap();
        match disk::up(slow(writes(8 * MIB)), &directory.0) {
            Ok(in_force) => assert_eq!(in_force.rates, writes(8 * MIB)),
            Err(e) if e.to_string().contains("version 2") => {
                println!("skipped: {e}");
                return;
            }
            Err(e) => panic!("{e}"),
        }
        let begun = Instant::now();
        let file = directory.0.join("x");
        let wrote = fs::write(&file, vec![1; 8 << 20]);
        let synced = fs::File::open(&file).and_then(|file| file.sync_all());
        let took = begun.elapsed();
        assert!(disk::up(slow(writes(1)), &directory.0).unwrap_err().to_string().contains("it holds files"));
        let user = fs::File::open(&file);
        let in_use = disk::down(&directory.0).unwrap_err().to_string();
        assert!(in_use.contains("busy"), "{in_use}");
        let begun = Instant::now();
        let wrote_again = fs::File::create(directory.0.join("y")).and_then(|mut file| {
            file.write_all(&vec![1; 8 << 20])?;
            file.sync_all()
        });
        let took_again = begun.elapsed();
        drop(user);
        disk::down(&directory.0).unwrap();
        wrote.and(synced).and(wrote_again).unwrap();
        assert!(took_again > Duration::from_millis(900), "in use, it took {took_again:?} behind `down`");
        assert!(took > Duration::from_millis(900), "8 MiB at 8 MiB/s took {took:?}");
        assert!(!file.exists());
        let refused = disk::down(&directory.0).unwrap_err().to_string();
        assert!(refused.contains("none was made there"), "{refused}");
    })
    .join()
    .unwrap();
}

#[test]
fn a_command_that_does_not_exist_leaves_nothing() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let refused =
        Disk::start(slow(writes(8 * MIB)), &directory.0, &["/nonexistent/command".into()], &mut |_| {});
    let refused = refused.map(|_| ()).unwrap_err().to_string();
    assert!(refused.starts_with("cannot run /nonexistent/command: No such file"), "{refused}");
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}
