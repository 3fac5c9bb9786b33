//! The contents of freed blocks: bytes of files that were removed, truncated or never became durable.
//!
//! A disk does not erase freed blocks. Space gained by a file shows the bytes of another until its own are written,
//! and those of a file of the same kind are most likely to be mistaken for valid data: an old log file has complete
//! records with correct checksums. A name's extension determines the kind. The latest few contents of each kind are
//! retained; their pages are shared, not copied.
//! kind. A few contents of each kind are kept, the latest ones; their pages are shared, not copied.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::content::Content;

/// Maximum retained contents per kind.
const MAX_CONTENTS_PER_KIND: usize = 8;
/// Maximum kinds; files of further ones are forgotten.
const MAX_KINDS: usize = 32;

/// The kind of a file with this name.
pub fn file_kind(name: &OsStr) -> OsString {
    Path::new(name).extension().unwrap_or_default().to_owned()
}

/// Contents that no longer belong to a file.
#[derive(Debug, Clone, Default)]
pub struct StaleContents {
    kinds: BTreeMap<OsString, Vec<Content>>,
}

impl StaleContents {
    /// Retains the content of freed blocks.
    pub fn retain(&mut self, kind: &OsStr, content: Content) {
        if content.allocated() == 0 || (self.kinds.len() == MAX_KINDS && !self.kinds.contains_key(kind)) {
            return;
        }
        let contents = self.kinds.entry(kind.to_owned()).or_default();
        if contents.len() == MAX_CONTENTS_PER_KIND {
            contents.remove(0);
        }
        contents.push(content);
    }

    /// Contents that a file of this kind may find in its new space, latest last.
    pub fn contents(&self, kind: &OsStr) -> &[Content] {
        self.kinds.get(kind).map_or(&[], Vec::as_slice)
    }
}
