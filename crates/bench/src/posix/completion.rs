//! Completes files whose writing was stopped at the time limit, so that files of the requested size are read: the
//! read throughput of a shorter file differs. The rest is written synchronously, so that at most one call of data is
//! pending and the completion can stop at its own time limit or on request.

use std::fs::OpenOptions;
use std::time::Duration;

use super::access_form::AccessForm;
use super::buffer::AlignedBuffer;
use super::file_access::FileAccess;
use super::phase::PosixEnv;
use super::run_directory::RunFile;

/// Bytes per call.
const CALL_BYTES: u64 = 1 << 20;
/// Time limit for all files. Files that are still short are noted in the read result.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Extends each file to `size` bytes, durably, as far as possible. Returns the files with their actual sizes.
pub(super) fn complete_files(env: &PosixEnv, files: Vec<Vec<RunFile>>, size: u64) -> Vec<Vec<RunFile>> {
    let mut buffer = None;
    let deadline = env.clock.now().saturating_add(MAX_TIME);
    let mut extend = |file: RunFile| {
        if file.size >= size {
            return file;
        }
        let buffer = buffer
            .get_or_insert_with(|| AlignedBuffer::new(usize::try_from(CALL_BYTES).unwrap_or(usize::MAX)));
        let file_access = FileAccess { deadline, ..env.file_access(AccessForm::Sync, CALL_BYTES) };
        match file_access.append(RunFile { size, ..file }, file.size, buffer, &mut |_| {}) {
            Ok(added) => RunFile { size: file.size + added.bytes, ..file },
            Err(_) => {
                // Restore the old length. If that fails, reading the file fails and reports it.
                let opened = OpenOptions::new().write(true).open(env.directory.file_path(file));
                let _ = opened.and_then(|opened| opened.set_len(file.size));
                file
            }
        }
    };
    files.into_iter().map(|files| files.into_iter().map(&mut extend).collect()).collect()
}
