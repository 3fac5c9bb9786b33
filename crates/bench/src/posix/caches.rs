//! Drops caches, so that what is read comes from where it lies. The kernel drops those of the whole machine for whoever may
//! ask it to. Anybody may advise it of the pages of single files, which it need not heed; that is done only where it must
//! be, since some file systems fetch a file when it is opened.

use std::fs;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};

use super::result::Caches;

/// Pages, names and attributes.
const ALL: &[u8] = b"3\n";
const ASK: &str = "/proc/sys/vm/drop_caches";

/// Drops what it may of files whose writes have been made durable. Where the kernel does not drop all, why.
pub(super) fn drop_caches<'a>(
    files: impl Iterator<Item = impl AsRef<Path> + 'a>,
    asks_kernel: bool,
) -> (Caches, Option<String>) {
    let why = if asks_kernel {
        match fs::write(ASK, ALL) {
            Ok(()) => return (Caches::Dropped, None),
            Err(e) => format!("{ASK} cannot be written: {e}; it takes root"),
        }
    } else {
        "the machine's caches were to be left alone".to_owned()
    };
    let mut is_advised = true;
    for path in files {
        let file = open(path.as_ref(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        is_advised &= file.and_then(|file| fadvise(file, 0, None, Advice::DontNeed)).is_ok();
    }
    (if is_advised { Caches::Advised } else { Caches::Kept }, Some(why))
}
