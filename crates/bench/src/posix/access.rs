//! Writes or reads one file with blocking calls, and times each of them. Contents are made before a call and compared after
//! it: what is timed is what an application would wait for.

use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tradewind_core::Clock;
use tradewind_pattern::Content;

use super::buffer::Buffer;
use super::form::Form;
use super::place::{File, Place};
use super::tally::{Failed, Took};
use crate::drive::Stop;

/// How files are accessed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner<'a> {
    pub place: &'a Place,
    pub content: &'a Content,
    pub clock: &'a dyn Clock,
    pub stop: &'a Stop,
    pub form: Form,
    /// Bytes of a call, at the most.
    pub unit: u64,
    /// Whether a file is made durable before it is closed.
    pub fsync: bool,
    /// No access is begun after this moment, but the first.
    pub until: Duration,
}

/// One that was accessed: how long that took, and how many bytes there were.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accessed {
    pub took: Took,
    pub bytes: u64,
    /// It ended early, since it was stopped or its time was over.
    pub is_cut: bool,
}

/// Told of each access: how long it took.
type Each<'a> = &'a mut dyn FnMut(Duration);

impl Manner<'_> {
    fn timed<T>(&self, took: &mut Duration, call: impl FnOnce() -> T) -> T {
        let begun = self.clock.now();
        let done = call();
        *took = self.clock.now().saturating_sub(begun);
        done
    }

    fn is_over(&self, at: u64) -> bool {
        self.stop.is_asked() || (at > 0 && self.clock.now() >= self.until)
    }

    /// Makes a file. One that fails is removed, so that it takes no room.
    pub fn write(&self, file: File, buffer: &mut Buffer, each: Each<'_>) -> Result<Accessed, Failed> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | self.form.flags();
        let done = self.write_from(file, flags, 0, buffer, each);
        if done.is_err() {
            // It may never have been made.
            let _ = std::fs::remove_file(self.place.path(file));
        }
        done
    }

    /// Adds to a file that has `from` bytes until it has those it is to have.
    pub fn append(
        &self,
        file: File,
        from: u64,
        buffer: &mut Buffer,
        each: Each<'_>,
    ) -> Result<Accessed, Failed> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | self.form.flags();
        self.write_from(file, flags, from, buffer, each)
    }

    fn write_from(
        &self,
        file: File,
        flags: OFlags,
        from: u64,
        buffer: &mut Buffer,
        each: Each<'_>,
    ) -> Result<Accessed, Failed> {
        let path = self.place.path(file);
        let failed = |what: &str, e: io::Error| self.place.failed(file, what, &e);
        let (content, mut took, mut at, mut is_cut) =
            (self.place.content(file), Took::default(), from, false);
        let mut piece = self.piece(buffer, file.size - at);
        self.content.fill(content, at, buffer.first(piece));
        let opened =
            self.timed(&mut took.open, || rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)));
        let opened = opened.map_err(|e| failed("cannot open", e.into()))?;
        took.first = took.open;
        'pieces: loop {
            for call in buffer.first(piece).chunks(self.call_bytes()) {
                if self.is_over(at - from) {
                    is_cut = true;
                    break 'pieces;
                }
                let mut one = Duration::ZERO;
                let done = self.timed(&mut one, || write_all(&opened, call, at));
                done.map_err(|e| failed(&format!("cannot write at {at} of"), e))?;
                each(one);
                took.accesses += one;
                if at == from {
                    took.first += one;
                }
                at += call.len() as u64;
            }
            if at >= file.size {
                break;
            }
            piece = self.piece(buffer, file.size - at);
            self.content.fill(content, at, buffer.first(piece));
        }
        if self.fsync {
            let mut one = Duration::ZERO;
            let done = self.timed(&mut one, || rustix::fs::fsync(&opened));
            done.map_err(|e| failed("cannot make durable", e.into()))?;
            took.fsync = Some(one);
        }
        self.timed(&mut took.close, || close(opened)).map_err(|e| failed("cannot close", e))?;
        Ok(Accessed { took, bytes: at - from, is_cut })
    }

    /// Reads a file from its beginning to its end, and compares it with what was written.
    pub fn read(&self, file: File, buffer: &mut Buffer, each: Each<'_>) -> Result<Accessed, Failed> {
        self.read_part(file, file.size, buffer, each)
    }

    /// The same of no more than so many bytes.
    pub fn read_part(
        &self,
        file: File,
        most: u64,
        buffer: &mut Buffer,
        each: Each<'_>,
    ) -> Result<Accessed, Failed> {
        let path = self.place.path(file);
        let failed = |what: &str, e: io::Error| self.place.failed(file, what, &e);
        let wrong = |what: String| {
            let name = path.strip_prefix(self.place.directory()).unwrap_or(&path).display();
            Failed { kind: "WrongBytes".to_owned(), what: format!("{name} {what}"), is_for_all: false }
        };
        let (content, mut took, mut at, mut is_cut) = (self.place.content(file), Took::default(), 0, false);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | self.form.flags();
        let opened = self.timed(&mut took.open, || rustix::fs::open(&path, flags, Mode::empty()));
        let opened = opened.map_err(|e| failed("cannot open", e.into()))?;
        took.first = took.open;
        let end = most.min(file.size);
        while at < end && !is_cut {
            let (piece, from) = (self.piece(buffer, end - at), at);
            for call in buffer.first(piece).chunks_mut(self.call_bytes()) {
                if self.is_over(at) {
                    is_cut = true;
                    break;
                }
                let (mut one, length) = (Duration::ZERO, call.len() as u64);
                let done = self.timed(&mut one, || read_all(&opened, call, at));
                let found = done.map_err(|e| failed(&format!("cannot read at {at} of"), e))? as u64;
                each(one);
                took.accesses += one;
                if at == 0 {
                    took.first += one;
                }
                at += found;
                if found < length {
                    return Err(wrong(format!("has {at} bytes, {} were written", file.size)));
                }
            }
            let read = usize::try_from(at - from).unwrap_or(usize::MAX);
            if let Some(place) = self.content.first_difference(content, from, buffer.first(read)) {
                return Err(wrong(format!("has another byte at {place} than was written")));
            }
        }
        let length =
            rustix::fs::fstat(&opened).map_err(|e| failed("cannot look at", e.into()))?.st_size as u64;
        if length != file.size {
            return Err(wrong(format!("is said to have {length} bytes, {} were written", file.size)));
        }
        self.timed(&mut took.close, || close(opened)).map_err(|e| failed("cannot close", e))?;
        Ok(Accessed { took, bytes: at, is_cut })
    }

    /// Removes a file.
    pub fn remove(&self, file: File) -> Result<Accessed, Failed> {
        let mut took = Took::default();
        let removed = self.timed(&mut took.close, || std::fs::remove_file(self.place.path(file)));
        removed.map_err(|e| self.place.failed(file, "cannot remove", &e))?;
        Ok(Accessed { took, bytes: 0, is_cut: false })
    }

    /// Bytes that are made or compared at once: whole calls, as many as the buffer takes.
    fn piece(&self, buffer: &Buffer, left: u64) -> usize {
        let calls = (buffer.len() / self.call_bytes()).max(1);
        usize::try_from(left).unwrap_or(usize::MAX).min(calls * self.call_bytes()).min(buffer.len())
    }

    fn call_bytes(&self) -> usize {
        usize::try_from(self.unit).unwrap_or(usize::MAX).max(1)
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                at += count as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// How many bytes there were, fewer than were asked for only at the end of the file.
fn read_all(file: &OwnedFd, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match rustix::io::pread(file, &mut bytes[count..], at + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(count)
}

/// Closes it, with the error that closing tells: of some file systems it is the first that says that writing failed.
fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor was owned, and nobody has it any more.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }.map_err(io::Error::from)
}
