//! The file on the SSD that holds the extents.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::aligned::{AlignedBuffer, BLOCK_BYTES};

/// A random access device. Buffers, offsets and lengths are whole, aligned blocks.
pub(crate) trait Device: Send + Sync + 'static {
    /// Fills `buffer`.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills the buffers in sequence with consecutive bytes, by one request to the device.
    fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()>;

    /// Writes all bytes. They may be lost in a crash, or torn.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all writes so far durable.
    fn sync(&self) -> io::Result<()>;
}

/// A file. With O_DIRECT if the file system allows it: the memory tier caches better than the page cache would.
pub(crate) struct FileDevice {
    file: File,
}

impl FileDevice {
    /// Opens or creates the file and allocates `bytes` for it. A failure leaves the file as large as before.
    pub fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let options = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).unwrap_or(0);
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags)
                .open(path)
        };
        let file = options(OFlags::empty())?;
        let previous_bytes = file.metadata()?.len();
        let allocated = file.set_len(bytes).and_then(|()| allocate(&file, bytes));
        if let Err(error) = allocated {
            // A failed allocation keeps the blocks that it got.
            file.set_len(previous_bytes.min(bytes))?;
            return Err(error);
        }
        // Some file systems accept the flag and reject the reads.
        let direct = options(OFlags::DIRECT).map(|file| Self { file });
        let is_usable = |device: &Self| {
            let mut buffer = AlignedBuffer::zeroed(1);
            bytes < BLOCK_BYTES as u64 || device.read(buffer.as_mut_slice(), 0).is_ok()
        };
        Ok(direct.ok().filter(is_usable).unwrap_or(Self { file }))
    }
}

fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // The file stays sparse, and a write may find the file system full.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        allocated => Ok(allocated?),
    }
}

impl Device for FileDevice {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn read_vectored(&self, mut buffers: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        while !buffers.is_empty() {
            match rustix::io::preadv(&self.file, buffers, offset) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    IoSliceMut::advance_slices(&mut buffers, count);
                    offset += count as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.file.write_all_at(bytes, offset) {
            Err(e) if e.kind() == ErrorKind::WriteZero => Err(ErrorKind::StorageFull.into()),
            result => result,
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
