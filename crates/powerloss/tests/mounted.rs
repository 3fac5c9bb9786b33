//! The file system as programs use it: through the kernel, on a real mount.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test and its helpers")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_powerloss::{CrashMode, FsyncFailure, MountHandle, PowerLossFs, mount_unavailable};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A new mount and its parent directory; `None` if the test must be skipped.
fn mounted() -> Option<(MountHandle, tempfile::TempDir)> {
    if let Some(reason) = mount_unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let handle = PowerLossFs::mount(dir.path(), None).unwrap();
    Some((handle, dir))
}

fn sync_dir(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Creates a file with a durable name and durable contents.
fn durable_file(path: &Path, data: &[u8]) -> File {
    let file = File::create_new(path).unwrap();
    file.write_all_at(data, 0).unwrap();
    file.sync_data().unwrap();
    sync_dir(path.parent().unwrap());
    file
}

fn restart(handle: &MountHandle, seed: u64, mode: CrashMode) {
    println!("{}", handle.crash(seed, mode));
    handle.revive();
}

#[test]
fn synced_data_survives_and_unsynced_data_is_lost() {
    let Some((fs, _dir)) = mounted() else { return };
    let path = fs.path().join("x");
    let file = durable_file(&path, b"old");
    file.write_all_at(b"new", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    drop(file);
    restart(&fs, 0, CrashMode::DropAll);
    assert_eq!(fs::read(&path).unwrap(), b"old");

    let file = OpenOptions::new().append(true).open(&path).unwrap();
    (&file).write_all(b" and appended").unwrap();
    file.sync_data().unwrap();
    restart(&fs, 0, CrashMode::DropAll);
    assert_eq!(fs::read(&path).unwrap(), b"old and appended");
    assert!(fs.counters().fdatasyncs >= 2);
}

#[test]
fn names_need_a_sync_of_their_directory() {
    let Some((fs, _dir)) = mounted() else { return };
    durable_file(&fs.path().join("old"), b"data");
    File::create(fs.path().join("new")).unwrap().sync_all().unwrap();
    fs::rename(fs.path().join("old"), fs.path().join("renamed")).unwrap();
    restart(&fs, 0, CrashMode::DropAll);
    assert!(!fs.path().join("new").exists());
    assert!(!fs.path().join("renamed").exists());
    assert_eq!(fs::read(fs.path().join("old")).unwrap(), b"data");

    fs::rename(fs.path().join("old"), fs.path().join("renamed")).unwrap();
    sync_dir(fs.path());
    restart(&fs, 0, CrashMode::DropAll);
    assert_eq!(fs::read(fs.path().join("renamed")).unwrap(), b"data");
    assert!(!fs.path().join("old").exists());
}

#[test]
fn random_crashes_reorder_and_tear_writes() {
    let Some((fs, _dir)) = mounted() else { return };
    let path = fs.path().join("x");
    drop(durable_file(&path, &[0; 8192]));
    let (mut reordered, mut torn) = (false, false);
    for seed in 0..200 {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 8192], 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[2; 4096], 4096).unwrap();
        drop(file);
        fs.crash(seed, CrashMode::Random);
        fs.revive();
        let bytes = fs::read(&path).unwrap();
        let sectors: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
        assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        reordered |= bytes[..4096] == [0; 4096] && bytes[4096..] == [2; 4096];
        torn |= sectors[8..].contains(&0) && sectors[8..].contains(&2);
    }
    assert!(reordered && torn);
}

#[test]
fn crashed_mount_fails_until_revived() {
    let Some((fs, _dir)) = mounted() else { return };
    let path = fs.path().join("x");
    let file = durable_file(&path, b"data");
    fs.crash(0, CrashMode::KeepAll);
    let errno = |error: std::io::Error| error.raw_os_error();
    assert_eq!(File::open(&path).map(|_| ()).map_err(errno), Err(Some(EIO)));
    assert_eq!(fs::read_dir(fs.path()).map(|_| ()).map_err(errno), Err(Some(EIO)));
    assert_eq!(file.write_all_at(b"late", 0).map_err(errno), Err(Some(EIO)));
    assert_eq!(file.sync_data().map_err(errno), Err(Some(EIO)));
    assert_eq!(File::create(fs.path().join("y")).map(|_| ()).map_err(errno), Err(Some(EIO)));
    fs.revive();
    assert!(file.write_all_at(b"late", 0).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

#[test]
fn injected_sync_failure_and_space_limit_work() {
    let Some((fs, _dir)) = mounted() else { return };
    let path = fs.path().join("x");
    let file = durable_file(&path, b"one");
    fs.fail_fsync_after(1, FsyncFailure::DropPending);
    file.sync_data().unwrap();
    file.write_all_at(b"two", 0).unwrap();
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(EIO));
    file.sync_data().unwrap();
    assert_eq!(fs.counters().failed_syncs, 1);

    fs.limit_bytes(Some(1 << 20));
    let hog = File::create(fs.path().join("hog")).unwrap();
    let error = (0..).find_map(|i| hog.write_all_at(&[7; 65536], i * 65536).err()).unwrap();
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
    assert_eq!(
        rustix::fs::statvfs(fs.path()).unwrap().f_bavail,
        15,
        "the remaining space is less than a write"
    );
    fs::remove_file(fs.path().join("hog")).unwrap();
    drop(hog);
    let deadline = Instant::now() + Duration::from_secs(5);
    while fs::write(fs.path().join("fits"), [1; 65536]).is_err() {
        assert!(Instant::now() < deadline, "space is freed when the last handle is closed");
        thread::sleep(Duration::from_millis(5));
    }
    drop(file);
    restart(&fs, 0, CrashMode::DropAll);
    assert_eq!(fs::read(&path).unwrap(), b"one");
}

#[test]
fn storage_engine_calls_work() {
    let Some((fs, _dir)) = mounted() else { return };
    let path = fs.path().join("x");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.try_lock().unwrap();
    assert!(File::open(&path).unwrap().try_lock().is_err(), "the kernel keeps locks");
    file.unlock().unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    file.write_all_at(&[1; 10_000], 4096).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 4096);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)).unwrap(), 12_288);
    let mut back = vec![9; 10_000];
    file.read_exact_at(&mut back, 4096).unwrap();
    assert_eq!(back, [vec![0; 8192], vec![1; 1808]].concat());
    file.set_len(5000).unwrap();
    let mut file = file;
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 5000);

    let direct = OpenOptions::new().write(true).custom_flags(0o40000).open(&path).unwrap();
    direct.write_all_at(&[3; 4096], 0).unwrap();
    let synchronous = rustix::fs::OFlags::DSYNC.bits() as i32;
    drop(durable_file(&fs.path().join("dsync"), b""));
    let dsync =
        OpenOptions::new().write(true).custom_flags(synchronous).open(fs.path().join("dsync")).unwrap();
    dsync.write_all_at(b"at once", 0).unwrap();

    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::hard_link(&path, fs.path().join("link")).unwrap();
    std::os::unix::fs::symlink("x", fs.path().join("symlink")).unwrap();
    assert_eq!(fs::read(fs.path().join("symlink")).unwrap()[..4096], [3; 4096]);
    assert_eq!(fs::copy(&path, fs.path().join("copy")).unwrap(), 5000);
    restart(&fs, 0, CrashMode::DropAll);
    assert_eq!(fs::read(fs.path().join("dsync")).unwrap(), b"at once");
}

#[test]
fn large_directories_and_files_survive_a_crash() {
    let Some((fs, _dir)) = mounted() else { return };
    let dir = fs.path().join("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..3000 {
        File::create(dir.join(format!("file-with-a-rather-long-name-{i:05}"))).unwrap();
    }
    let mut names: Vec<PathBuf> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3000);

    let data: Vec<u8> = (0..5_000_011_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = durable_file(&fs.path().join("large"), &data);
    drop(file);
    sync_dir(&dir);
    restart(&fs, 0, CrashMode::DropAll);
    let mut back = Vec::new();
    File::open(fs.path().join("large")).unwrap().read_to_end(&mut back).unwrap();
    assert!(back == data);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3000);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn exported_tree_can_be_imported() {
    let Some((fs, _dir)) = mounted() else { return };
    fs::create_dir_all(fs.path().join("a/b")).unwrap();
    let file = File::create(fs.path().join("a/b/sparse")).unwrap();
    file.write_all_at(b"tail", 1 << 20).unwrap();
    drop(file);
    std::os::unix::fs::symlink("b/sparse", fs.path().join("a/link")).unwrap();
    fs.crash(0, CrashMode::KeepAll);
    let out = tempfile::tempdir().unwrap();
    fs.export(out.path()).unwrap();
    assert!(fs.export(out.path()).is_err(), "only into an empty directory");
    fs.unmount().unwrap();
    let exported = fs::read(out.path().join("a/link")).unwrap();
    assert_eq!((exported.len(), &exported[1 << 20..]), ((1 << 20) + 4, &b"tail"[..]));

    let dir = tempfile::tempdir().unwrap();
    let fs = PowerLossFs::mount(dir.path(), Some(out.path())).unwrap();
    restart(&fs, 0, CrashMode::DropAll);
    assert!(fs::read(fs.path().join("a/b/sparse")).unwrap() == exported);
    assert_eq!(fs::read_link(fs.path().join("a/link")).unwrap(), Path::new("b/sparse"));
}

#[test]
fn delayed_sync_covers_only_earlier_writes() {
    let Some((fs, _dir)) = mounted() else { return };
    let path = fs.path().join("x");
    let file = durable_file(&path, b"");
    fs.set_sync_delay(Duration::from_millis(300));
    file.write_all_at(b"before", 0).unwrap();
    thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync_data());
        thread::sleep(Duration::from_millis(100));
        file.write_all_at(b"during", 6).unwrap();
        sync.join().unwrap().unwrap();
    });
    file.write_all_at(b"after", 12).unwrap();
    let during = thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync_data());
        thread::sleep(Duration::from_millis(100));
        fs.crash(0, CrashMode::DropAll);
        sync.join().unwrap()
    });
    assert_eq!(during.unwrap_err().raw_os_error(), Some(EIO), "the power failed before the sync was done");
    fs.revive();
    assert_eq!(fs::read(&path).unwrap(), b"before");
}

/// Eight threads append 4 KiB records and sync each; a crash during the run preserves every acknowledged record.
#[test]
fn acknowledged_appends_of_eight_threads_survive() {
    let Some((fs, _dir)) = mounted() else { return };
    let files: Vec<File> = (0..8).map(|i| durable_file(&fs.path().join(i.to_string()), b"")).collect();
    let started = Instant::now();
    let promised: Vec<u64> = thread::scope(|scope| {
        let workers: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(move || {
                    (0_u64..)
                        .take_while(|i| {
                            let record = [(*i % 251) as u8 + 1; 4096];
                            file.write_all_at(&record, i * 4096).and_then(|()| file.sync_data()).is_ok()
                        })
                        .count() as u64
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        println!("{}", fs.crash(7, CrashMode::Random));
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let rate = promised.iter().sum::<u64>() as f64 / started.elapsed().as_secs_f64();
    println!("{rate:.0} writes of 4 KiB with fdatasync a second, 8 threads");
    drop(files);
    fs.revive();
    for (i, count) in promised.iter().enumerate() {
        let bytes = fs::read(fs.path().join(i.to_string())).unwrap();
        assert!(bytes.len() as u64 >= count * 4096);
        for (at, record) in bytes.chunks(4096).take(*count as usize).enumerate() {
            assert!(record.iter().all(|&byte| byte == (at % 251) as u8 + 1), "file {i}, record {at}");
        }
        assert!(*count > 10, "thread {i} made only {count} writes");
    }
}

#[test]
fn mount_in_use_is_detached() {
    let Some((fs, dir)) = mounted() else { return };
    let file = durable_file(&fs.path().join("x"), b"data");
    fs.unmount().unwrap();
    assert!(file.metadata().is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
