//! Real commands on slower disks. The tests assert minimum durations, which load on the machine does not change.

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

use tradewind_lab::disk::{self, AppliedLimits, Disk, DiskOptions, IoLimits};

const MIB: u64 = 1 << 20;
/// The variable with the directory of the disk around [`nested_disk`].
const OUTER_DISK: &str = "TRADEWIND_TEST_OUTER_DISK";

/// A directory that is removed with its contents.
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

fn slow(rates: IoLimits) -> DiskOptions {
    DiskOptions { limits: rates, file_system_bytes: Some(64 * MIB), max_dirty_bytes: None }
}

fn writes(bytes: u64) -> IoLimits {
    IoLimits { write_bytes_per_second: Some(bytes), ..IoLimits::default() }
}

fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-ec", script].map(OsString::from).to_vec()
}

/// Returns true if disks can be created here; prints a reason otherwise.
fn may_run() -> bool {
    let directory = Directory::in_memory();
    match Disk::start(slow(writes(100 * MIB)), &directory.0, &shell("true"), &mut |_| {}) {
        Ok(disk) => {
            disk.wait().unwrap();
            true
        }
        Err(e) => {
            let why = e.to_string();
            let expected_errors =
                ["needs root", "needs a writable", "no controller", "loop device", "mkfs.ext4", "namespace"];
            assert!(expected_errors.iter().any(|expected_errors| why.contains(expected_errors)), "{why}");
            println!("skipped: {why}");
            false
        }
    }
}

/// Runs a command with the directory as `$0`; returns its duration and the limits in force.
fn run(options: DiskOptions, directory: &Path, script: &str) -> (Duration, AppliedLimits) {
    let mut in_force = None;
    let command = [shell(script), vec![directory.into()]].concat();
    let started = Instant::now();
    let disk =
        Disk::start(options, directory, &command, &mut |marker| in_force = Some(marker.clone())).unwrap();
    let status = disk.wait().unwrap();
    assert!(status.success(), "{script}: {status}");
    (started.elapsed(), in_force.unwrap())
}

#[test]
fn writes_are_throttled() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    for how in ["oflag=direct", "conv=fsync", "oflag=sync"] {
        let script = format!("dd if=/dev/zero of=$0/x bs=1M count=8 {how} 2> /dev/null");
        let (took, in_force) = run(slow(writes(8 * MIB)), &directory.0, &script);
        // The kernel may grant half of its 100 ms slice in advance.
        assert!(took > Duration::from_millis(900), "{how}: 8 MiB at 8 MiB/s took {took:?}");
        assert_eq!(in_force.file_system_bytes, Some(64 * MIB));
    }
}

#[test]
fn writeback_is_throttled_if_reported() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    // A different process and the kernel write back the cache.
    let script = "dd if=/dev/zero of=$0/x bs=1M count=8 2> /dev/null; sync -f $0";
    let (took, in_force) = run(slow(writes(8 * MIB)), &directory.0, script);
    assert!(
        !in_force.limits_writeback || took > Duration::from_millis(900),
        "8 MiB at 8 MiB/s took {took:?}"
    );
}

#[test]
fn write_behind_limit_blocks_writers() {
    if !may_run() {
        return;
    }
    let bounds = Path::new("/sys/class/bdi");
    let can =
        fs::read_dir(bounds).into_iter().flatten().flatten().any(|one| one.path().join("max_bytes").exists());
    if !can {
        println!("skipped: this kernel has no write-behind limit");
        return;
    }
    let directory = Directory::in_memory();
    // The second of two writes waits for most of the first.
    let script = "dd if=/dev/zero of=$0/x bs=1M count=16 2> /dev/null; dd if=/dev/zero of=$0/y bs=1M count=16 2> /dev/null";
    let bounded = DiskOptions { max_dirty_bytes: Some(4 * MIB), ..slow(writes(16 * MIB)) };
    let (took, in_force) = run(bounded, &directory.0, script);
    assert!(
        !in_force.limits_writeback || took > Duration::from_millis(900),
        "32 MiB at 16 MiB/s took {took:?}"
    );

    let whole = Directory::new(&std::env::current_dir().unwrap());
    let options = DiskOptions { file_system_bytes: None, ..bounded };
    if let Err(error) = Disk::start(options, &whole.0, &shell("true"), &mut |_| {}) {
        assert!(error.to_string().contains("--loop"), "{error}");
    }
}

#[test]
fn reads_are_throttled_by_bytes_and_requests() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let make = "dd if=/dev/zero of=$0/x bs=1M count=4 oflag=direct 2> /dev/null; ";
    let read = format!("{make} dd if=$0/x of=/dev/null bs=1M iflag=direct 2> /dev/null");
    let rates = IoLimits { read_bytes_per_second: Some(4 * MIB), ..IoLimits::default() };
    let (took, _) = run(slow(rates), &directory.0, &read);
    assert!(took > Duration::from_millis(900), "4 MiB at 4 MiB/s took {took:?}");
    let often = format!("{make} dd if=$0/x of=/dev/null bs=4k count=100 iflag=direct 2> /dev/null");
    let rates = IoLimits { read_iops: Some(100), ..IoLimits::default() };
    let (took, _) = run(slow(rates), &directory.0, &often);
    assert!(took > Duration::from_millis(800), "100 reads at 100/s took {took:?}");
}

#[test]
fn directory_on_device_is_throttled_in_place() {
    if !may_run() {
        return;
    }
    let directory = Directory::new(&std::env::current_dir().unwrap());
    fs::write(directory.0.join("kept"), "kept").unwrap();
    let script = "test -e $0/kept; dd if=/dev/zero of=$0/x bs=1M count=8 oflag=direct 2> /dev/null";
    let options = DiskOptions { limits: writes(8 * MIB), ..DiskOptions::default() };
    let command = [shell(script), vec![directory.0.clone().into()]].concat();
    let started = Instant::now();
    let disk = match Disk::start(options, &directory.0, &command, &mut |_| {}) {
        Ok(disk) => disk,
        Err(e) => {
            // It is not on a device, and a new file system would hide its files.
            assert!(e.to_string().contains("directory is not empty"), "{e}");
            println!("skipped: {e}");
            return;
        }
    };
    assert!(disk.wait().unwrap().success());
    assert!(started.elapsed() > Duration::from_millis(900), "8 MiB at 8 MiB/s took {:?}", started.elapsed());
    assert!(directory.0.join("x").exists());
}

#[test]
fn new_file_system_is_private_to_its_command() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let (marker, path) = (directory.0.join("ready"), directory.0.clone());
    let disk_directory = directory.0.join("disk");
    fs::create_dir(&disk_directory).unwrap();
    let script = format!("echo here > $0/file; touch {}; exec sleep 1000", marker.display());
    let (sender, receiver) = std::sync::mpsc::channel();
    let running = thread::spawn(move || {
        let command = [shell(&script), vec![disk_directory.clone().into()]].concat();
        let mut device = String::new();
        let disk = Disk::start(slow(writes(8 * MIB)), &disk_directory, &command, &mut |in_force| {
            device = in_force.device.clone();
        });
        let disk = disk.unwrap();
        sender.send((device, disk.pid())).unwrap();
        assert!(!disk.wait().unwrap().success());
    });
    let (device, process) = receiver.recv().unwrap();
    wait_until("it wrote", || marker.exists());
    assert!(!path.join("disk/file").exists(), "visible to other processes");
    let bounds =
        || fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device").unwrap_or_default();
    let file = PathBuf::from(format!("/sys/block/{}/loop/backing_file", device.trim_start_matches("/dev/")));
    assert!(file.exists());
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(killed.success());
    running.join().unwrap();
    let is_ours = || fs::read_to_string(&file).is_ok_and(|file| file.contains(&path.display().to_string()));
    wait_until("the device detached its file", || !is_ours());
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
fn working_directory_moves_to_the_new_disk() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let path = directory.0.clone();
    // Only this thread changes its directory.
    thread::spawn(move || {
        // SAFETY: it affects only the calling thread, which ends with this work.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
        std::env::set_current_dir(path).unwrap();
        let script = "echo here > file; test -e \"$PWD/file\"; test $(stat -fc %T .) = ext2/ext3";
        run(slow(writes(8 * MIB)), Path::new("."), script);
    })
    .join()
    .unwrap();
    let left: Vec<_> = fs::read_dir(&directory.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?} is below the new mount");
}

#[test]
#[ignore = "the command of another test, inside its disk"]
fn nested_disk() {
    let outer = PathBuf::from(std::env::var_os(OUTER_DISK).unwrap());
    let inner = Directory::in_memory();
    let direct = |path: &Path, mebibytes: u64| {
        format!("dd if=/dev/zero of={}/x bs=1M count={mebibytes} oflag=direct", path.display())
    };
    let begin = Instant::now();
    run(slow(writes(8 * MIB)), &inner.0, &direct(&inner.0, 8));
    let inner_time = begin.elapsed();
    assert!(inner_time > Duration::from_millis(900), "8 MiB at 8 MiB/s took {inner_time:?}");
    let begin = Instant::now();
    run(slow(writes(64 * MIB)), &inner.0, &direct(&outer, 4));
    let outer_time = begin.elapsed();
    assert!(outer_time > Duration::from_millis(900), "4 MiB at 4 MiB/s took {outer_time:?}");
}

#[test]
fn a_disk_within_a_disk_leaves_both_throttled() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let this = std::env::current_exe().unwrap();
    let script = format!("{OUTER_DISK}=$0 exec {} nested_disk --exact --ignored", this.display());
    run(slow(writes(4 * MIB)), &directory.0, &script);
}

#[test]
#[ignore = "helper process that another test kills"]
fn hold() {
    let directory = Directory::in_memory();
    // The shell is killed with this process, but not its child.
    let command = shell(&format!("sleep 1000 & echo $! > {}.ready; wait", directory.0.display()));
    let disk = Disk::start(slow(writes(7 * MIB)), &directory.0, &command, &mut |_| {}).unwrap();
    let _ = disk.wait();
}

#[test]
fn leftovers_of_killed_command_are_removed() {
    if !may_run() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut holder = Command::new(this).args(["hold", "--exact", "--ignored"]).spawn().unwrap();
    let directory = format!("/dev/shm/tradewind-lab-disk-test-{}-0", holder.id());
    let marker = PathBuf::from(format!("{directory}.ready"));
    wait_until("it was started", || fs::read_to_string(&marker).is_ok_and(|marker| marker.ends_with('\n')));
    let left = fs::read_to_string(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
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
    wait_until("its leftover process ended", || !Path::new(&format!("/proc/{}", left.trim())).exists());
    wait_until("its device detached the file", || devices() == 0);
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
fn disk_up_persists_until_down() {
    if !may_run() {
        return;
    }
    // The mounts are visible only in this thread's namespace, so that a failing test leaves nothing behind.
    thread::spawn(|| {
        let directory = Directory::in_memory();
        let probe = Disk::start(slow(writes(100 * MIB)), &directory.0, &shell("true"), &mut |_| {}).unwrap();
        probe.wait().unwrap();
        match disk::up(slow(writes(8 * MIB)), &directory.0) {
            Ok(in_force) => assert_eq!(in_force.limits, writes(8 * MIB)),
            Err(e) if e.to_string().contains("cgroup v2") => {
                println!("skipped: {e}");
                return;
            }
            Err(e) => panic!("{e}"),
        }
        let started = Instant::now();
        let file = directory.0.join("x");
        let wrote = fs::write(&file, vec![1; 8 << 20]);
        let synced = fs::File::open(&file).and_then(|file| file.sync_all());
        let took = started.elapsed();
        assert!(
            disk::up(slow(writes(1)), &directory.0)
                .unwrap_err()
                .to_string()
                .contains("directory is not empty")
        );
        let user = fs::File::open(&file);
        let in_use = disk::down(&directory.0).unwrap_err().to_string();
        assert!(in_use.contains("busy"), "{in_use}");
        let started = Instant::now();
        let wrote_again = fs::File::create(directory.0.join("y")).and_then(|mut file| {
            file.write_all(&vec![1; 8 << 20])?;
            file.sync_all()
        });
        let took_again = started.elapsed();
        drop(user);
        disk::down(&directory.0).unwrap();
        wrote.and(synced).and(wrote_again).unwrap();
        assert!(took_again > Duration::from_millis(900), "while in use it took {took_again:?} after `down`");
        assert!(took > Duration::from_millis(900), "8 MiB at 8 MiB/s took {took:?}");
        assert!(!file.exists());
        let error = disk::down(&directory.0).unwrap_err().to_string();
        assert!(error.contains("created none there"), "{error}");
    })
    .join()
    .unwrap();
}

#[test]
fn nonexistent_command_leaves_nothing_behind() {
    if !may_run() {
        return;
    }
    let directory = Directory::in_memory();
    let error =
        Disk::start(slow(writes(8 * MIB)), &directory.0, &["/nonexistent/command".into()], &mut |_| {});
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot run /nonexistent/command: No such file"), "{error}");
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}
