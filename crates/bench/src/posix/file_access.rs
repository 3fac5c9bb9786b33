//! Writes or reads one file with blocking calls and times each call. Contents are generated before a call and compared
//! after it, so that only what an application would wait for is timed.

use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tradewind_core::Clock;
use tradewind_pattern::Content;

use super::access_form::AccessForm;
use super::access_stats::{CallTimes, FileFailure};
use super::buffer::AlignedBuffer;
use super::run_directory::{RunDirectory, RunFile};
use crate::drive::StopSignal;

/// Parameters of file access: directory, contents, flags and limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileAccess<'a> {
    pub directory: &'a RunDirectory,
    pub content: &'a Content,
    pub clock: &'a dyn Clock,
    pub stop: &'a StopSignal,
    pub form: AccessForm,
    /// Maximum bytes per call.
    pub call_bytes: u64,
    /// A written file is synced before it is closed.
    pub fsync: bool,
    /// No call but the first starts after this time of the clock.
    pub deadline: Duration,
}

/// The outcome of accessing one file: the call times and the number of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessOutcome {
    pub times: CallTimes,
    pub bytes: u64,
    /// The access ended early: it was stopped, or the time limit had passed.
    pub is_truncated: bool,
}

/// Called with the duration of each read or write call.
type OnCall<'a> = &'a mut dyn FnMut(Duration);

impl FileAccess<'_> {
    fn timed<T>(&self, duration: &mut Duration, call: impl FnOnce() -> T) -> T {
        let started = self.clock.now();
        let result = call();
        *duration = self.clock.now().saturating_sub(started);
        result
    }

    fn is_past_deadline(&self, offset: u64) -> bool {
        self.stop.is_triggered() || (offset > 0 && self.clock.now() >= self.deadline)
    }

    /// Creates a file and writes its contents. A file that fails is removed, so that it takes no disk space.
    pub fn write(
        &self,
        file: RunFile,
        buffer: &mut AlignedBuffer,
        on_call: OnCall<'_>,
    ) -> Result<AccessOutcome, FileFailure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | self.form.open_flags();
        let result = self.write_from(file, flags, 0, buffer, on_call);
        if result.is_err() {
            // The file may not exist.
            let _ = std::fs::remove_file(self.directory.file_path(file));
        }
        result
    }

    /// Extends a file of `from` bytes to `file.size` bytes.
    pub fn append(
        &self,
        file: RunFile,
        from: u64,
        buffer: &mut AlignedBuffer,
        on_call: OnCall<'_>,
    ) -> Result<AccessOutcome, FileFailure> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | self.form.open_flags();
        self.write_from(file, flags, from, buffer, on_call)
    }

    fn write_from(
        &self,
        file: RunFile,
        flags: OFlags,
        from: u64,
        buffer: &mut AlignedBuffer,
        on_call: OnCall<'_>,
    ) -> Result<AccessOutcome, FileFailure> {
        let path = self.directory.file_path(file);
        let failed = |action: &str, e: io::Error| self.directory.file_error(file, action, &e);
        let (content, mut times, mut offset, mut is_truncated) =
            (self.directory.content(file), CallTimes::default(), from, false);
        let mut piece = self.chunk_len(buffer, file.size - offset);
        self.content.fill(content, offset, buffer.first(piece));
        let opened =
            self.timed(&mut times.open, || rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)));
        let opened = opened.map_err(|e| failed("cannot open", e.into()))?;
        times.first = times.open;
        'pieces: loop {
            for call in buffer.first(piece).chunks(self.call_len()) {
                if self.is_past_deadline(offset - from) {
                    is_truncated = true;
                    break 'pieces;
                }
                let mut call_time = Duration::ZERO;
                let result = self.timed(&mut call_time, || write_all(&opened, call, offset));
                result.map_err(|e| failed(&format!("cannot write at {offset} of"), e))?;
                on_call(call_time);
                times.accesses += call_time;
                if offset == from {
                    times.first += call_time;
                }
                offset += call.len() as u64;
            }
            if offset >= file.size {
                break;
            }
            piece = self.chunk_len(buffer, file.size - offset);
            self.content.fill(content, offset, buffer.first(piece));
        }
        if self.fsync {
            let mut call_time = Duration::ZERO;
            let result = self.timed(&mut call_time, || rustix::fs::fsync(&opened));
            result.map_err(|e| failed("cannot make durable", e.into()))?;
            times.fsync = Some(call_time);
        }
        self.timed(&mut times.close, || close(opened)).map_err(|e| failed("cannot close", e))?;
        Ok(AccessOutcome { times, bytes: offset - from, is_truncated })
    }

    /// Reads a whole file and compares it with what was written.
    pub fn read(
        &self,
        file: RunFile,
        buffer: &mut AlignedBuffer,
        on_call: OnCall<'_>,
    ) -> Result<AccessOutcome, FileFailure> {
        self.read_part(file, file.size, buffer, on_call)
    }

    /// Like [`read`](Self::read), but reads at most `max_bytes` from the beginning.
    pub fn read_part(
        &self,
        file: RunFile,
        max_bytes: u64,
        buffer: &mut AlignedBuffer,
        on_call: OnCall<'_>,
    ) -> Result<AccessOutcome, FileFailure> {
        let path = self.directory.file_path(file);
        let failed = |action: &str, e: io::Error| self.directory.file_error(file, action, &e);
        let wrong = |problem: String| {
            let name = path.strip_prefix(self.directory.path()).unwrap_or(&path).display();
            FileFailure {
                kind: "WrongBytes".to_owned(),
                message: format!("{name} {problem}"),
                is_fatal: false,
            }
        };
        let (content, mut times, mut offset, mut is_truncated) =
            (self.directory.content(file), CallTimes::default(), 0, false);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | self.form.open_flags();
        let opened = self.timed(&mut times.open, || rustix::fs::open(&path, flags, Mode::empty()));
        let opened = opened.map_err(|e| failed("cannot open", e.into()))?;
        times.first = times.open;
        let end = max_bytes.min(file.size);
        while offset < end && !is_truncated {
            let (piece, from) = (self.chunk_len(buffer, end - offset), offset);
            for call in buffer.first(piece).chunks_mut(self.call_len()) {
                if self.is_past_deadline(offset) {
                    is_truncated = true;
                    break;
                }
                let (mut call_time, length) = (Duration::ZERO, call.len() as u64);
                let result = self.timed(&mut call_time, || read_all(&opened, call, offset));
                let found = result.map_err(|e| failed(&format!("cannot read at {offset} of"), e))? as u64;
                on_call(call_time);
                times.accesses += call_time;
                if offset == 0 {
                    times.first += call_time;
                }
                offset += found;
                if found < length {
                    return Err(wrong(format!("ends after {offset} bytes, {} were written", file.size)));
                }
            }
            let read = usize::try_from(offset - from).unwrap_or(usize::MAX);
            if let Some(position) = self.content.first_difference(content, from, buffer.first(read)) {
                return Err(wrong(format!("differs from what was written at byte {position}")));
            }
        }
        let length = rustix::fs::fstat(&opened).map_err(|e| failed("cannot stat", e.into()))?.st_size as u64;
        if length != file.size {
            return Err(wrong(format!("has a size of {length} bytes, {} were written", file.size)));
        }
        self.timed(&mut times.close, || close(opened)).map_err(|e| failed("cannot close", e))?;
        Ok(AccessOutcome { times, bytes: offset, is_truncated })
    }

    /// Removes a file.
    pub fn remove(&self, file: RunFile) -> Result<AccessOutcome, FileFailure> {
        let mut times = CallTimes::default();
        let removed = self.timed(&mut times.close, || std::fs::remove_file(self.directory.file_path(file)));
        removed.map_err(|e| self.directory.file_error(file, "cannot remove", &e))?;
        Ok(AccessOutcome { times, bytes: 0, is_truncated: false })
    }

    /// Bytes that are generated or compared at once: as many whole calls as fit into the buffer.
    fn chunk_len(&self, buffer: &AlignedBuffer, left: u64) -> usize {
        let calls = (buffer.len() / self.call_len()).max(1);
        usize::try_from(left).unwrap_or(usize::MAX).min(calls * self.call_len()).min(buffer.len())
    }

    fn call_len(&self) -> usize {
        usize::try_from(self.call_bytes).unwrap_or(usize::MAX).max(1)
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Returns the number of bytes read; fewer than requested only at the end of the file.
fn read_all(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match rustix::io::pread(file, &mut bytes[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(count)
}

/// Closes the descriptor and returns the error of `close`, by which some file systems first report a failed write.
fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor was owned by `file` and `into_raw_fd` released that ownership, so nothing else closes it.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }.map_err(io::Error::from)
}
