//! Files of the client that uploads come from and downloads go to: the full path with the client's storage, as whoever syncs
//! has it (Hou 2017, section 3.3). They lie in a directory of their own, which goes with them. What uploads come from is on
//! the disk and not in the page cache when it is read for the first time.

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

/// Bytes that a file is made of at a time.
const PIECE: usize = 1 << 20;
/// What is written to find out how fast that is, at the most, in bytes and in time before it is waited for.
const MOST_WRITTEN: usize = 32 << 20;
const LONGEST_WRITE: Duration = Duration::from_secs(1);

/// The directory. Dropping it removes it with everything in it.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
}

impl Files {
    /// Makes the directory, which must not be there yet.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir(&directory).map_err(|e| named("make", &directory, &e))?;
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name.replace('/', "-"))
    }

    /// Makes a file that holds some content, on the disk, if it is not there.
    pub(crate) async fn make(
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
            let made = (|| {
                let mut file = File::create(&path)?;
                let (mut at, mut piece) = (0, vec![0; PIECE]);
                while at < size {
                    let length = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
                    content.fill(id, at, &mut piece[..length]);
                    file.write_all(&piece[..length])?;
                    at += length as u64;
                }
                file.sync_all()?;
                // What is dirty would stay.
                fadvise(&file, 0, None, Advice::DontNeed).map_err(io::Error::from)
            })();
            made.map_err(|e| named("make", &path, &e))
        })
        .await
    }

    /// Opens one to be read: from the disk, also where it was read before.
    pub(crate) async fn open(&self, name: &str) -> io::Result<Opened> {
        let path = self.path(name);
        let file = blocking(move || {
            let opened = File::open(&path).and_then(|file| {
                fadvise(&file, 0, None, Advice::DontNeed)?;
                Ok(file)
            });
            opened.map_err(|e| named("open", &path, &e))
        })
        .await?;
        Ok(Opened { file: Arc::new(file), at: 0 })
    }

    /// Makes an empty one to be written, or empties one that is there.
    pub(crate) async fn create(&self, name: &str) -> io::Result<Opened> {
        let path = self.path(name);
        let file = blocking(move || File::create(&path).map_err(|e| named("make", &path, &e))).await?;
        Ok(Opened { file: Arc::new(file), at: 0 })
    }
}

impl Files {
    /// Bytes a second that the disk takes, measured with a file of its own until that is there. Blocks for as long.
    pub fn write_speed(&self) -> io::Result<f64> {
        let path = self.path("write-speed");
        let (piece, begun) = (vec![0x5a; PIECE], Instant::now());
        let written = (|| {
            let mut file = File::create(&path)?;
            let mut bytes = 0;
            while bytes < MOST_WRITTEN && begun.elapsed() < LONGEST_WRITE {
                file.write_all(&piece)?;
                bytes += PIECE;
            }
            file.sync_all()?;
            Ok(bytes as f64 / begun.elapsed().as_secs_f64())
        })();
        let removed = fs::remove_file(&path);
        let rate = written.map_err(|e| named("write", &path, &e))?;
        removed.map_err(|e| named("remove", &path, &e))?;
        Ok(rate)
    }

    /// Removes all of them, before it is dropped.
    pub fn remove(&self) {
        match fs::remove_dir_all(&self.directory) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                tracing::warn!(directory = %self.directory.display(), error = %e, "files cannot be removed");
            }
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A file that is read or written from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Opened {
    file: Arc<File>,
    at: u64,
}

impl Opened {
    /// So many bytes of it.
    pub async fn read(&mut self, length: usize) -> io::Result<Bytes> {
        let (file, at) = (self.file.clone(), self.at);
        self.at += length as u64;
        blocking(move || {
            let mut piece = BytesMut::zeroed(length);
            file.read_exact_at(&mut piece, at)?;
            Ok(piece.freeze())
        })
        .await
    }

    /// Writes what follows.
    pub async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        let (file, at) = (self.file.clone(), self.at);
        self.at += piece.len() as u64;
        blocking(move || file.write_all_at(&piece, at)).await
    }
}

/// Files make whoever waits for them wait: not a thread that others need.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

fn named(what: &str, path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot {what} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_fast_the_disk_is_leaves_nothing() {
        let above = tempfile::tempdir().unwrap();
        let files = Files::new(above.path().join("own")).unwrap();
        assert!(files.write_speed().unwrap() > 0.0);
        assert_eq!(fs::read_dir(above.path().join("own")).unwrap().count(), 0);
    }
}
