//! One change of a file's content: what `file` lists until a sync, and what `fate` decides about.

use crate::content::{Content, PAGE};

/// A change that is not durable yet.
#[derive(Debug, Clone)]
pub enum Change {
    Write { offset: u64, data: Box<[u8]> },
    SetLen(u64),
    Zero { offset: u64, length: u64 },
    Allocate { offset: u64, length: u64, keep_size: bool },
}

impl Change {
    /// Whether it gives blocks of a file with this content back to the disk.
    fn frees(&self, content: &Content) -> bool {
        match self {
            Self::SetLen(len) => *len < content.len(),
            Self::Zero { length, .. } => *length >= PAGE,
            Self::Write { .. } | Self::Allocate { .. } => false,
        }
    }

    /// The bytes that a write brings.
    pub fn written(&self) -> Option<u64> {
        match self {
            Self::Write { data, .. } => Some(data.len() as u64),
            _ => None,
        }
    }

    /// The range of bytes that it touches; none where it only sets the length.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Write { offset, data } => Some((*offset, data.len() as u64)),
            Self::Zero { offset, length } | Self::Allocate { offset, length, .. } => Some((*offset, *length)),
            Self::SetLen(_) => None,
        }
    }

    /// Makes the change in one of the two contents.
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

/// What a file held, as programs saw it, before each of the changes that free blocks; those that are
/// not on disk, as the flag beside each says, free none.
pub fn freed<'a>(
    content: &Content,
    changes: impl Iterator<Item = (&'a Change, bool)> + Clone,
) -> Vec<Content> {
    let may_free =
        |(change, kept): (&Change, bool)| kept && matches!(change, Change::SetLen(_) | Change::Zero { .. });
    let mut freed = Vec::new();
    // Most syncs and crashes are spared the copy.
    if changes.clone().any(may_free) {
        let mut seen = content.clone();
        for (change, kept) in changes {
            if kept && change.frees(&seen) {
                freed.push(seen.clone());
            }
            change.apply(&mut seen);
        }
    }
    freed
}
