use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::lifetime::SWEEP_INTERVAL_UNLINKS;
use super::*;
use crate::mode::CrashMode;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn file(model: &mut Model, dir: Ino, text: &str, data: &[u8]) -> Ino {
    let ino = model.create(dir, name(text), Owner::default()).unwrap().ino;
    model.write(ino, 0, data).unwrap();
    ino
}

fn sync(model: &mut Model, ino: Ino) -> Result<()> {
    let mark = model.mark(ino)?;
    match model.attributes(ino)?.kind {
        InodeKind::Directory => model.sync_directory(ino, mark),
        _ => model.sync_file(ino, mark, true),
    }
}

/// Every file by path, with its bytes; directories end in a slash.
fn files(model: &Model) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(model: &Model, dir: Ino, path: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for (name, ino, kind) in model.list(dir).unwrap() {
            let path = path.join(name);
            if kind == InodeKind::Directory {
                found.insert(path.join(""), Vec::new());
                walk(model, ino, &path, found);
            } else {
                found.insert(path, model.peek(ino, 0, 1 << 20).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(model, ROOT, Path::new(""), &mut found);
    found
}

fn after(model: &Model, seed: u64, mode: CrashMode) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut model = model.clone();
    model.crash(seed, mode);
    model.revive();
    files(&model)
}

#[test]
fn a_synced_file_in_an_unsynced_directory_vanishes() {
    let mut model = Model::new();
    let ino = file(&mut model, ROOT, "x", b"data");
    sync(&mut model, ino).unwrap();
    assert!(after(&model, 0, CrashMode::DropAll).is_empty());
    sync(&mut model, ROOT).unwrap();
    assert_eq!(after(&model, 0, CrashMode::DropAll)[Path::new("x")], b"data");
}

#[test]
fn an_unsynced_file_in_a_synced_directory_is_empty() {
    let mut model = Model::new();
    file(&mut model, ROOT, "x", b"data");
    sync(&mut model, ROOT).unwrap();
    assert_eq!(after(&model, 0, CrashMode::DropAll)[Path::new("x")], b"");
}

#[test]
fn crashed_model_fails_until_revived_and_old_inodes_stay_stale() {
    let mut model = Model::new();
    let ino = file(&mut model, ROOT, "x", b"data");
    sync(&mut model, ROOT).unwrap();
    let report = model.crash(1, CrashMode::KeepAll);
    assert_eq!(report.writes.kept, 1);
    assert_eq!(report.vanished_files, 0);
    assert_eq!(model.check_power(), Err(Errno::IO));
    model.revive();
    assert_eq!(model.check_power(), Ok(()));
    assert_eq!(model.write(ino, 0, b"late"), Err(Errno::STALE));
    assert_eq!(files(&model)[Path::new("x")], b"data");
}

#[test]
fn failed_sync_drops_or_keeps_pending_changes() {
    for (failure, survives) in [(FsyncFailure::DropPending, false), (FsyncFailure::KeepPending, true)] {
        let mut model = Model::new();
        let ino = file(&mut model, ROOT, "x", b"one");
        sync(&mut model, ROOT).unwrap();
        model.fail_fsync_after(1, failure);
        sync(&mut model, ino).unwrap();
        model.write(ino, 0, b"two").unwrap();
        assert_eq!(sync(&mut model, ino), Err(Errno::IO));
        assert_eq!(model.peek(ino, 0, 3).unwrap(), b"two");
        sync(&mut model, ino).unwrap();
        let left = &after(&model, 0, CrashMode::DropAll)[Path::new("x")];
        assert_eq!(left == b"two", survives);
    }
}

#[test]
fn full_disk_rejects_writes_until_space_is_freed() {
    let mut model = Model::new();
    let first = file(&mut model, ROOT, "x", &[1; 8192]);
    model.limit_bytes(Some(12_288));
    model.write(first, 0, &[2; 8192]).unwrap();
    let second = file(&mut model, ROOT, "y", &[1; 4096]);
    assert_eq!(model.write(second, 4096, &[1; 4096]), Err(Errno::NOSPC));
    assert_eq!(model.allocate(second, 0, 8192, true), Err(Errno::NOSPC));
    assert_eq!(model.attributes(second).unwrap().size, 4096);
    model.open(first).unwrap();
    model.unlink(ROOT, name("x")).unwrap();
    assert_eq!(model.write(second, 4096, &[1; 4096]), Err(Errno::NOSPC), "still open");
    model.close(first).unwrap();
    model.write(second, 4096, &[1; 8192]).unwrap();
    assert_eq!(model.space(), (12_288, Some(12_288)));
}

#[test]
fn unreachable_unlinked_inodes_are_forgotten() {
    let mut model = Model::new();
    for _ in 0..4 * SWEEP_INTERVAL_UNLINKS {
        file(&mut model, ROOT, "x", &[1; 100]);
        model.unlink(ROOT, name("x")).unwrap();
        sync(&mut model, ROOT).unwrap();
    }
    assert!(model.inode_count() <= SWEEP_INTERVAL_UNLINKS as usize + 1, "{}", model.inode_count());
    assert_eq!(model.space().0, 0);
}

#[test]
fn unsynced_unlink_is_undone_by_a_crash() {
    let mut model = Model::new();
    let ino = file(&mut model, ROOT, "x", b"data");
    sync(&mut model, ino).unwrap();
    sync(&mut model, ROOT).unwrap();
    model.unlink(ROOT, name("x")).unwrap();
    model.sweep();
    assert_eq!(after(&model, 0, CrashMode::DropAll)[Path::new("x")], b"data");
    assert!(after(&model, 0, CrashMode::KeepAll).is_empty());
}

#[test]
fn hard_links_share_their_bytes_across_a_crash() {
    let mut model = Model::new();
    let ino = file(&mut model, ROOT, "x", b"data");
    model.link(ino, ROOT, name("y")).unwrap();
    model.crash(0, CrashMode::KeepAll);
    model.revive();
    let (x, y) = (model.lookup(ROOT, name("x")).unwrap(), model.lookup(ROOT, name("y")).unwrap());
    assert_eq!((x.ino, x.links), (y.ino, 2));
}

#[test]
fn invalid_names_are_rejected_with_the_right_errno() {
    let mut model = Model::new();
    let dir = model.make_directory(ROOT, name("d"), Owner::default()).unwrap().ino;
    let sub = model.make_directory(dir, name("s"), Owner::default()).unwrap().ino;
    file(&mut model, ROOT, "x", b"");
    let vacant = |model: &mut Model, text: &str| model.create(ROOT, name(text), Owner::default()).map(|_| ());
    assert_eq!(vacant(&mut model, "x"), Err(Errno::EXIST));
    assert_eq!(vacant(&mut model, &"n".repeat(256)), Err(Errno::NAMETOOLONG));
    assert_eq!(model.remove_directory(ROOT, name("d")), Err(Errno::NOTEMPTY));
    assert_eq!(model.remove_directory(ROOT, name("x")), Err(Errno::NOTDIR));
    assert_eq!(model.unlink(ROOT, name("d")), Err(Errno::ISDIR));
    assert_eq!(model.rename((ROOT, name("d")), (sub, name("d")), false), Err(Errno::INVAL));
    assert_eq!(model.rename((ROOT, name("x")), (ROOT, name("d")), false), Err(Errno::ISDIR));
    assert_eq!(model.rename((ROOT, name("d")), (ROOT, name("x")), false), Err(Errno::NOTDIR));
    assert_eq!(model.rename((ROOT, name("x")), (ROOT, name("d")), true), Err(Errno::EXIST));
}

#[derive(Debug, Clone)]
enum Step {
    Mkdir(usize, u8),
    Create(usize, u8),
    Rename(usize, u8, usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Sync(usize),
}

fn step(removing: bool) -> impl Strategy<Value = Step> {
    let dir = 0..6_usize;
    let text = b'a'..b'e';
    let removals = if removing { 3 } else { 0 };
    prop_oneof![
        3 => (dir.clone(), text.clone()).prop_map(|(d, n)| Step::Mkdir(d, n)),
        4 => (dir.clone(), text.clone()).prop_map(|(d, n)| Step::Create(d, n)),
        6 => (dir.clone(), text.clone(), dir.clone(), text.clone()).prop_map(|(d, n, e, m)| Step::Rename(d, n, e, m)),
        removals => (dir.clone(), text.clone()).prop_map(|(d, n)| Step::Unlink(d, n)),
        removals => (dir.clone(), text).prop_map(|(d, n)| Step::Rmdir(d, n)),
        4 => dir.prop_map(Step::Sync),
    ]
}

/// Runs steps, ignoring those that the file system rejects. Without `removing`, renames replace nothing. Files hold a
/// unique number and are synced when created.
struct Runner {
    model: Model,
    directories: Vec<Ino>,
    made: u32,
    removing: bool,
}

impl Runner {
    fn new(removing: bool) -> Self {
        Self { model: Model::new(), directories: vec![ROOT], made: 0, removing }
    }

    fn dir(&self, index: usize) -> Ino {
        self.directories[index % self.directories.len()]
    }

    fn step(&mut self, step: &Step) {
        let text = |byte: u8| OsString::from(char::from(byte).to_string());
        let model = &mut self.model;
        let dir = |index: usize| self.directories[index % self.directories.len()];
        match *step {
            Step::Mkdir(d, n) => {
                if let Ok(made) = model.make_directory(dir(d), &text(n), Owner::default()) {
                    self.directories.push(made.ino);
                }
            }
            Step::Create(d, n) => {
                if let Ok(made) = model.create(dir(d), &text(n), Owner::default()) {
                    self.made += 1;
                    model.write(made.ino, 0, &self.made.to_be_bytes()).unwrap();
                    sync(model, made.ino).unwrap();
                }
            }
            Step::Rename(d, n, e, m) => {
                let _ = model.rename((dir(d), &text(n)), (dir(e), &text(m)), !self.removing);
            }
            Step::Unlink(d, n) => {
                let _ = model.unlink(dir(d), &text(n));
            }
            Step::Rmdir(d, n) => {
                let _ = model.remove_directory(dir(d), &text(n));
            }
            Step::Sync(d) => {
                let ino = self.dir(d);
                let _ = sync(&mut self.model, ino);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn keep_all_equals_the_volatile_state(steps in prop::collection::vec(step(true), 0..60)) {
        let mut runner = Runner::new(true);
        for step in &steps {
            runner.step(step);
        }
        runner.model.sweep();
        prop_assert_eq!(after(&runner.model, 0, CrashMode::KeepAll), files(&runner.model));
    }

    #[test]
    fn syncing_every_directory_makes_everything_durable(steps in prop::collection::vec(step(true), 0..60)) {
        let mut runner = Runner::new(true);
        for step in &steps {
            runner.step(step);
        }
        for dir in runner.directories.clone() {
            let _ = sync(&mut runner.model, dir);
        }
        prop_assert_eq!(after(&runner.model, 0, CrashMode::DropAll), files(&runner.model));
    }

    /// Nothing is removed or replaced here, so anything once on disk is there after every crash, whatever renames
    /// were in progress.
    #[test]
    fn renames_never_lose_a_file(steps in prop::collection::vec(step(false), 0..60), seed: u64) {
        let mut runner = Runner::new(false);
        for step in &steps {
            let durable: Vec<Vec<u8>> = after(&runner.model, 0, CrashMode::DropAll).into_values().collect();
            runner.step(step);
            for (seed, mode) in [(0, CrashMode::DropAll), (seed, CrashMode::Random), (!seed, CrashMode::Random)] {
                let left: Vec<Vec<u8>> = after(&runner.model, seed, mode).into_values().collect();
                for file in durable.iter().filter(|file| !file.is_empty()) {
                    prop_assert!(left.contains(file), "{:?} lost {:?} at {:?}", mode, file, step);
                }
                let mut once: Vec<_> = left.iter().filter(|file| !file.is_empty()).collect();
                once.sort();
                let count = once.len();
                once.dedup();
                prop_assert_eq!(count, once.len(), "a file exists twice");
            }
        }
    }
}
