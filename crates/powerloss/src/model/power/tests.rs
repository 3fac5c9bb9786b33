use super::*;
use crate::content::PAGE_BYTES;
use crate::model::{Attributes, Owner};

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Creates a durable file with a durable name.
fn durable(model: &mut Model, text: &str, data: &[u8]) -> Ino {
    let ino = model.create(ROOT, name(text), Owner::default()).unwrap().ino;
    model.write(ino, 0, data).unwrap();
    sync_file(model, ino).unwrap();
    sync_root(model).unwrap();
    ino
}

fn sync_file(model: &mut Model, ino: Ino) -> Result<()> {
    let mark = model.mark(ino)?;
    model.sync_file(ino, mark, true)
}

fn sync_root(model: &mut Model) -> Result<()> {
    let mark = model.mark(ROOT)?;
    model.sync_directory(ROOT, mark)
}

/// The content under a name after a power cut; `None` if it is gone.
fn after(model: &Model, seed: u64, text: &str) -> Option<Vec<u8>> {
    let mut model = model.clone();
    model.crash(seed, CrashMode::Random);
    model.revive();
    let Attributes { ino, size, .. } = model.lookup(ROOT, name(text)).ok()?;
    Some(model.peek(ino, 0, size as usize).unwrap())
}

/// The number of crashes, of 1,000, that leave lost pages of a file full of `byte`.
fn pages_of(model: &Model, text: &str, byte: u8) -> usize {
    let is_full = |page: &[u8]| page.len() == PAGE_BYTES as usize && page.iter().all(|&found| found == byte);
    (0..1000)
        .filter(|&seed| after(model, seed, text).unwrap_or_default().chunks(PAGE_BYTES as usize).any(is_full))
        .count()
}

#[test]
fn new_space_may_show_a_removed_file_of_the_same_kind() {
    let mut model = Model::new();
    durable(&mut model, "old.log", &[5; 64 << 10]);
    durable(&mut model, "old.txt", &[6; 64 << 10]);
    let new = durable(&mut model, "new.log", &[1; 4096]);
    model.write(new, 4096, &[2; 32 << 10]).unwrap();
    assert_eq!(pages_of(&model, "new.log", 5), 0, "the old file is still there");
    model.unlink(ROOT, name("old.log")).unwrap();
    model.unlink(ROOT, name("old.txt")).unwrap();
    assert_eq!(pages_of(&model, "new.log", 5), 0, "its name may still return");
    sync_root(&mut model).unwrap();
    assert!(pages_of(&model, "new.log", 5) > 50, "{}", pages_of(&model, "new.log", 5));
    assert_eq!(pages_of(&model, "new.log", 6), 0);
}

#[test]
fn new_space_may_show_truncated_and_crash_lost_bytes() {
    let mut model = Model::new();
    let old = durable(&mut model, "a.log", &[5; 64 << 10]);
    model.set_len(old, 0).unwrap();
    sync_file(&mut model, old).unwrap();
    let lost = durable(&mut model, "b.log", &[1; 4096]);
    model.write(lost, 4096, &[7; 32 << 10]).unwrap();
    model.crash(0, CrashMode::DropAll);
    model.revive();
    let new = durable(&mut model, "c.log", &[1; 4096]);
    model.write(new, 4096, &[2; 32 << 10]).unwrap();
    assert!(pages_of(&model, "c.log", 5) > 20, "{}", pages_of(&model, "c.log", 5));
    assert!(pages_of(&model, "c.log", 7) > 20, "{}", pages_of(&model, "c.log", 7));
}

#[test]
fn same_seed_gives_the_same_garbage() {
    let mut model = Model::new();
    for i in 0..20 {
        durable(&mut model, &format!("{i}.log"), &[i; 8192]);
        model.unlink(ROOT, name(&format!("{i}.log"))).unwrap();
    }
    let new = durable(&mut model, "new.log", &[1; 4096]);
    model.write(new, 4096, &[2; 32 << 10]).unwrap();
    for seed in 0..50 {
        assert_eq!(after(&model, seed, "new.log"), after(&model, seed, "new.log"), "seed {seed}");
    }
}

#[test]
fn file_with_undone_removal_may_be_whole_torn_or_empty() {
    for is_replaced in [false, true] {
        let mut model = Model::new();
        let old = durable(&mut model, "x", b"");
        durable(&mut model, "y", &[4; 100]);
        model.write(old, 0, &[3; 8192]).unwrap();
        if is_replaced {
            model.rename((ROOT, name("y")), (ROOT, name("x")), false).unwrap();
        } else {
            model.unlink(ROOT, name("x")).unwrap();
        }
        model.sweep();
        let (mut whole, mut torn, mut empty) = (0, 0, 0);
        for bytes in (0..1000).filter_map(|seed| after(&model, seed, "x")) {
            match bytes.as_slice() {
                [] => empty += 1,
                [4, ..] if bytes.len() == 100 => {}
                bytes if bytes == [3; 8192] => whole += 1,
                _ => torn += 1,
            }
        }
        assert!(whole > 100 && torn > 50 && empty > 50, "whole {whole}, torn {torn}, empty {empty}");
        let mut dropped = model.clone();
        dropped.crash(0, CrashMode::DropAll);
        assert_eq!(dropped.lookup(ROOT, name("x")).unwrap().size, 0);
        sync_root(&mut model).unwrap();
        assert!((0..100).all(|seed| after(&model, seed, "x").is_none_or(|bytes| bytes == [4; 100])));
    }
}

#[test]
fn memory_of_removed_files_is_released() {
    let mut model = Model::new();
    for _ in 0..64 {
        let ino = model.create(ROOT, name("x"), Owner::default()).unwrap().ino;
        model.write(ino, 0, &vec![1; 4 << 20]).unwrap();
        model.unlink(ROOT, name("x")).unwrap();
        sync_root(&mut model).unwrap();
    }
    let held = model.inodes.values().filter(|inode| matches!(inode.body, InodeBody::File(_))).count();
    assert!(held <= 9, "{held} files of 4 MiB");
}

#[test]
fn sync_started_before_a_power_cut_fails_after_it() {
    let mut model = Model::new();
    for i in 0..10 {
        durable(&mut model, &i.to_string(), b"");
    }
    let mark = model.mark(ROOT).unwrap();
    model.crash(0, CrashMode::DropAll);
    model.revive();
    model.create(ROOT, name("new"), Owner::default()).unwrap();
    assert_eq!(model.sync_directory(ROOT, mark), Err(Errno::IO));
    model.crash(0, CrashMode::DropAll);
    assert_eq!(model.lookup(ROOT, name("new")), Err(Errno::NOENT));
}
