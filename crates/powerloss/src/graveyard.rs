//! What freed blocks still hold: the bytes of files that were removed, cut short or never came to be.
//!
//! A disk wipes nothing that is freed. Space that a file gains shows the bytes of another until its own
//! are written, and those of a file of the same kind are the ones that a reader may take for its own:
//! an older file of a log has whole records with right checksums. The extension of a name tells the
//! kind. A few contents of each kind are kept, the latest ones; their pages are shared, not copied.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::content::Content;

/// Contents remembered of each kind.
const CONTENTS: usize = 8;
/// Kinds remembered; files of further ones are forgotten.
const KINDS: usize = 32;

/// The kind of a file with this name.
pub fn kind(name: &OsStr) -> OsString {
    Path::new(name).extension().unwrap_or_default().to_owned()
}

/// Contents that are no file's any more.
#[derive(Debug, Clone, Default)]
pub struct Graveyard {
    kinds: BTreeMap<OsString, Vec<Content>>,
}

impl Graveyard {
    /// Remembers what blocks that were freed held.
    pub fn bury(&mut self, kind: &OsStr, content: Content) {
        if content.allocated() == 0 || (self.kinds.len() == KINDS && !self.kinds.contains_key(kind)) {
            return;
        }
        let contents = self.kinds.entry(kind.to_owned()).or_default();
        if contents.len() == CONTENTS {
            contents.remove(0);
        }
        contents.push(content);
    }

    /// What a file of this kind may find in its new space, latest last.
    pub fn contents(&self, kind: &OsStr) -> &[Content] {
        self.kinds.get(kind).map_or(&[], Vec::as_slice)
    }
}
