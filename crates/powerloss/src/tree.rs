//! Import of an ordinary directory tree into the model, and export of the model.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::content::PAGE_BYTES;
use crate::mode::CrashMode;
use crate::model::{InodeKind, Model, Owner};
use crate::namespace::{Ino, ROOT};

/// Bytes per read or write of a real file.
const IO_CHUNK_BYTES: usize = 1 << 20;

/// Loads `from` as a durable tree of files, directories and symbolic links; an error for anything else.
pub fn load(from: &Path) -> io::Result<Model> {
    let mut model = Model::new();
    load_directory(&mut model, ROOT, from)?;
    model.crash(0, CrashMode::KeepAll);
    model.revive();
    model.reset_counters();
    Ok(model)
}

fn load_directory(model: &mut Model, dir: Ino, from: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let owner =
            Owner { uid: metadata.uid(), gid: metadata.gid(), mode: metadata.permissions().mode() & 0o7777 };
        let name = entry.file_name();
        if metadata.is_dir() {
            let made = model.make_directory(dir, &name, owner)?;
            load_directory(model, made.ino, &entry.path())?;
        } else if metadata.is_symlink() {
            model.symlink(dir, &name, &fs::read_link(entry.path())?, owner)?;
        } else if metadata.is_file() {
            let made = model.create(dir, &name, owner)?;
            load_file(model, made.ino, &entry.path(), metadata.len())?;
        } else {
            let path = entry.path();
            return Err(io::Error::other(format!("{}: not a file, directory or link", path.display())));
        }
    }
    Ok(())
}

fn load_file(model: &mut Model, ino: Ino, from: &Path, len: u64) -> io::Result<()> {
    let file = fs::File::open(from)?;
    let mut buffer = vec![0; IO_CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            break;
        }
        for (i, page) in buffer[..read].chunks(PAGE_BYTES as usize).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                model.write(ino, offset + i as u64 * PAGE_BYTES, page)?;
            }
        }
        offset += read as u64;
    }
    Ok(model.set_len(ino, len.max(offset))?)
}

/// Writes the visible tree (after a crash: the disk's) to `to`, which is created if missing and must otherwise be
/// empty.
pub fn export(model: &Model, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    if fs::read_dir(to)?.next().is_some() {
        return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, format!("{}: not empty", to.display())));
    }
    export_directory(model, ROOT, to, &mut HashMap::new())
}

fn export_directory(
    model: &Model,
    dir: Ino,
    to: &Path,
    written: &mut HashMap<Ino, PathBuf>,
) -> io::Result<()> {
    for (name, ino, kind) in model.list(dir)? {
        let path = to.join(name);
        let mode = fs::Permissions::from_mode(model.attributes(ino)?.mode & 0o7777);
        match kind {
            InodeKind::Directory => {
                fs::create_dir(&path)?;
                export_directory(model, ino, &path, written)?;
                fs::set_permissions(&path, mode)?;
            }
            InodeKind::Symlink => symlink(model.read_link(ino)?, &path)?,
            InodeKind::File => {
                if let Some(first) = written.get(&ino) {
                    fs::hard_link(first, &path)?;
                    continue;
                }
                export_file(model, ino, &path)?;
                fs::set_permissions(&path, mode)?;
                written.insert(ino, path);
            }
        }
    }
    Ok(())
}

fn export_file(model: &Model, ino: Ino, to: &Path) -> io::Result<()> {
    let file = fs::File::create_new(to)?;
    file.set_len(model.attributes(ino)?.size)?;
    let mut offset = 0;
    loop {
        let start = match model.seek(ino, offset, false) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = model.seek(ino, start, true)?;
        let bytes = model.peek(ino, start, IO_CHUNK_BYTES.min((end - start) as usize))?;
        file.write_all_at(&bytes, start)?;
        offset = start + bytes.len() as u64;
    }
}
