//! What is missing of files whose writing was ended. They get it before they are read, so that what is read is a file of the
//! size that was asked for: of a short one the speed of reading is another. It is written synchronously, so that no more waits
//! anywhere than a call has, and it can end when its time is over or somebody asks for it.

use std::fs::OpenOptions;
use std::time::Duration;

use super::access::Manner;
use super::buffer::Buffer;
use super::form::Form;
use super::phase::Site;
use super::place::File;

/// Bytes of a call.
const UNIT: u64 = 1 << 20;
/// What takes longer stays short: that is told of where it is read.
const MOST_TIME: Duration = Duration::from_secs(60);

/// Files with so many bytes each, durable, as far as they can be had.
pub(super) fn complete(site: &Site, files: Vec<Vec<File>>, size: u64) -> Vec<Vec<File>> {
    let mut buffer = None;
    let until = site.clock.now().saturating_add(MOST_TIME);
    let mut whole = |file: File| {
        if file.size >= size {
            return file;
        }
        let buffer = buffer.get_or_insert_with(|| Buffer::new(usize::try_from(UNIT).unwrap_or(usize::MAX)));
        let manner = Manner { until, ..site.manner(Form::Sync, UNIT) };
        match manner.append(File { size, ..file }, file.size, buffer, &mut |_| {}) {
            Ok(added) => File { size: file.size + added.bytes, ..file },
            Err(_) => {
                // It is as long as it was, or reading it fails and says so.
                let opened = OpenOptions::new().write(true).open(site.place.path(file));
                let _ = opened.and_then(|opened| opened.set_len(file.size));
                file
            }
        }
    };
    files.into_iter().map(|files| files.into_iter().map(&mut whole).collect()).collect()
}
