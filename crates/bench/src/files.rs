//! Local files that uploads read and downloads write: the complete data path including the client's storage, as in a
//! sync (Hou 2017, section 3.3). They are in their own directory, which is removed with them. Source files are on disk
//! and evicted from the page cache before they are read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rustix::fs::{Advice, fadvise};
use tokio::task::spawn_blocking;
use tradewind_pattern::{Content, ContentId};

/// Buffer size for writing files, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Limits of the write speed test: bytes, and time before the final sync.
const MAX_SPEED_TEST_BYTES: usize = 32 << 20;
const MAX_SPEED_TEST_TIME: Duration = Duration::from_secs(1);

/// The directory of the files. Dropping it removes the directory and its contents.
#[derive(Debug)]
pub struct LocalFiles {
    directory: PathBuf,
}

impl LocalFiles {
    /// Creates the directory. Fails if it exists.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir(&directory).map_err(|e| with_path("create", &directory, &e))?;
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name.replace('/', "-"))
    }

    /// Creates a file with the given content, synced to disk and evicted from the page cache, unless it exists.
    pub(crate) async fn create_source(
        &self,
        name: &str,
        content: Arc<Content>,
        id: ContentId,
        size: u64,
    ) -> io::Result<()> {
        let path = self.path(name);
        blocking(move || {
            if path.exists() {
                return Ok(());
            }
            let created = (|| {
                let mut file = File::create(&path)?;
                let (mut offset, mut buffer) = (0, vec![0; BUFFER_BYTES]);
                while offset < size {
                    let length = usize::try_from(size - offset).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
                    content.fill(id, offset, &mut buffer[..length]);
                    file.write_all(&buffer[..length])?;
                    offset += length as u64;
                }
                // Dirty pages cannot be evicted.
                file.sync_all()?;
                fadvise(&file, 0, None, Advice::DontNeed).map_err(io::Error::from)
            })();
            created.map_err(|e| with_path("create", &path, &e))
        })
        .await
    }

    /// Opens a file for reading and evicts it from the page cache, so that it is read from disk every time.
    pub(crate) async fn open_source(&self, name: &str) -> io::Result<SequentialFile> {
        let path = self.path(name);
        let file = blocking(move || {
            let opened = File::open(&path).and_then(|file| {
                fadvise(&file, 0, None, Advice::DontNeed)?;
                Ok(file)
            });
            opened.map_err(|e| with_path("open", &path, &e))
        })
        .await?;
        Ok(SequentialFile { file: Arc::new(file), offset: 0 })
    }

    /// Creates a file for writing, or truncates an existing one.
    pub(crate) async fn create_target(&self, name: &str) -> io::Result<SequentialFile> {
        let path = self.path(name);
        let file = blocking(move || File::create(&path).map_err(|e| with_path("create", &path, &e))).await?;
        Ok(SequentialFile { file: Arc::new(file), offset: 0 })
    }
}

impl LocalFiles {
    /// Measures the disk's write speed including the sync, in bytes per second, with a temporary file. Blocks.
    pub fn write_speed(&self) -> io::Result<f64> {
        let path = self.path("write-speed");
        let (buffer, started) = (vec![0x5a; BUFFER_BYTES], Instant::now());
        let written = (|| {
            let mut file = File::create(&path)?;
            let mut bytes = 0;
            while bytes < MAX_SPEED_TEST_BYTES && started.elapsed() < MAX_SPEED_TEST_TIME {
                file.write_all(&buffer)?;
                bytes += BUFFER_BYTES;
            }
            file.sync_all()?;
            Ok(bytes as f64 / started.elapsed().as_secs_f64())
        })();
        let removed = fs::remove_file(&path);
        let rate = written.map_err(|e| with_path("write", &path, &e))?;
        removed.map_err(|e| with_path("remove", &path, &e))?;
        Ok(rate)
    }

    /// Removes the directory and its contents.
    pub fn remove(&self) {
        match fs::remove_dir_all(&self.directory) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                tracing::warn!(directory = %self.directory.display(), error = %e, "cannot remove the files");
            }
        }
    }
}

impl Drop for LocalFiles {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A file that is read or written sequentially.
#[derive(Debug)]
pub(crate) struct SequentialFile {
    file: Arc<File>,
    offset: u64,
}

impl SequentialFile {
    /// Reads the next `length` bytes. Fails if the file ends before.
    pub async fn read(&mut self, length: usize) -> io::Result<Bytes> {
        let (file, offset) = (self.file.clone(), self.offset);
        self.offset += length as u64;
        blocking(move || {
            let mut buffer = BytesMut::zeroed(length);
            file.read_exact_at(&mut buffer, offset)?;
            Ok(buffer.freeze())
        })
        .await
    }

    /// Writes the next bytes.
    pub async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        let (file, offset) = (self.file.clone(), self.offset);
        self.offset += piece.len() as u64;
        blocking(move || file.write_all_at(&piece, offset)).await
    }
}

/// Runs blocking file I/O on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

fn with_path(action: &str, path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot {action} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_speed_leaves_no_file() {
        let parent = tempfile::tempdir().unwrap();
        let files = LocalFiles::new(parent.path().join("own")).unwrap();
        assert!(files.write_speed().unwrap() > 0.0);
        assert_eq!(fs::read_dir(parent.path().join("own")).unwrap().count(), 0);
    }
}
