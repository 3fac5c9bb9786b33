//! One change of a file's content: what `file` lists until a sync, and what `fate` decides about.

use crate::content::Content;

/// A change that is not durable yet.
#[derive(Debug, Clone)]
pub enum Change {
    Write { offset: u64, data: Box<[u8]> },
    SetLen(u64),
    Zero { offset: u64, length: u64 },
    Allocate { offset: u64, length: u64, keep_size: bool },
}

impl Change {
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
