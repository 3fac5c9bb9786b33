//! A change of a file's content: listed by `file` until a sync, and decided by `fate`.

use crate::content::{Content, PAGE_BYTES};

/// A change that is not durable yet.
#[derive(Debug, Clone)]
pub enum FileChange {
    Write { offset: u64, data: Box<[u8]> },
    SetLen(u64),
    Zero { offset: u64, length: u64 },
    Allocate { offset: u64, length: u64, keep_size: bool },
}

impl FileChange {
    /// Returns true if it frees blocks of a file with this content.
    fn frees(&self, content: &Content) -> bool {
        match self {
            Self::SetLen(len) => *len < content.len(),
            Self::Zero { length, .. } => *length >= PAGE_BYTES,
            Self::Write { .. } | Self::Allocate { .. } => false,
        }
    }

    /// The number of bytes written; `None` if it is not a write.
    pub fn written(&self) -> Option<u64> {
        match self {
            Self::Write { data, .. } => Some(data.len() as u64),
            _ => None,
        }
    }

    /// The affected byte range; `None` if it only sets the length.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Write { offset, data } => Some((*offset, data.len() as u64)),
            Self::Zero { offset, length } | Self::Allocate { offset, length, .. } => Some((*offset, *length)),
            Self::SetLen(_) => None,
        }
    }

    /// Applies the change to a content.
    pub fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, data } => content.write(*offset, data),
            Self::SetLen(len) => content.set_len(*len),
            Self::Zero { offset, length } => content.zero(*offset, *length),
            Self::Allocate { offset, length, keep_size } => {
                content.allocate(*offset, *length);
                if !keep_size && offset + length > content.len() {
                    content.set_len(offset + length);
                }
            }
        }
    }
}

/// The volatile content before each change that frees blocks. The flag of a change is false if it is not on disk: it
/// then frees none.
pub fn contents_before_frees<'a>(
    content: &Content,
    changes: impl Iterator<Item = (&'a FileChange, bool)> + Clone,
) -> Vec<Content> {
    let may_free = |(change, on_disk): (&FileChange, bool)| {
        on_disk && matches!(change, FileChange::SetLen(_) | FileChange::Zero { .. })
    };
    let mut freed = Vec::new();
    // Avoids the copy for most syncs and crashes.
    if changes.clone().any(may_free) {
        let mut seen = content.clone();
        for (change, on_disk) in changes {
            if on_disk && change.frees(&seen) {
                freed.push(seen.clone());
            }
            change.apply(&mut seen);
        }
    }
    freed
}
