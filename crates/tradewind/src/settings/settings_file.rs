//! Reading of a settings file. A path that names anything but a regular file of moderate size is rejected at once: a fifo
//! would block the start or a reload until it has a writer, and a device may never end.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use tradewind_core::quantity::ByteSize;

/// The maximum size of a settings file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads a settings file. Never waits for the writer of a fifo, but for a file server that does not respond.
///
/// # Errors
/// The file cannot be read, is no regular file, is larger than [`MAX_FILE_BYTES`], or is not UTF-8.
pub(super) fn read(path: &Path) -> io::Result<String> {
    // Before the file is opened: opening a device may have an effect.
    check(&fs::metadata(path)?)?;
    let file = open(path)?;
    // The path may name another file since the first check.
    check(&file.metadata()?)?;
    let mut text = String::new();
    let read_bytes = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    check_size(read_bytes as u64)?;
    Ok(text)
}

/// Opens a file without waiting for the writer of a fifo.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    match File::options().read(true).custom_flags(nonblocking).open(path) {
        // Only a regular file can have a lease, which its holder must give up first.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => File::open(path),
        opened => opened,
    }
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if !metadata.is_file() {
        let kind = kind(metadata.file_type());
        return Err(rejected(format!("it is {kind}, not a regular file; name a regular file")));
    }
    check_size(metadata.len())
}

fn check_size(bytes: u64) -> io::Result<()> {
    if bytes > MAX_FILE_BYTES {
        let max = ByteSize(MAX_FILE_BYTES);
        return Err(rejected(format!("it is larger than {max}; is it the right file?")));
    }
    Ok(())
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a fifo"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn rejected(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_of_the_maximum_size_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("settings.toml");
        let file = File::create(&path).unwrap();
        file.set_len(MAX_FILE_BYTES).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MAX_FILE_BYTES);
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert_eq!(error, "it is larger than 16MiB; is it the right file?");
    }

    #[test]
    fn fifos_devices_and_directories_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for (path, kind) in [
            (fifo.as_path(), "a fifo"),
            (&link, "a fifo"),
            (Path::new("/dev/zero"), "a device"),
            (directory.path(), "a directory"),
        ] {
            let error = read(path).unwrap_err().to_string();
            assert_eq!(error, format!("it is {kind}, not a regular file; name a regular file"));
        }
    }
}
