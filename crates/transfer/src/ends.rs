//! The two ends of a transfer: a directory, or the objects below a prefix.

use std::path::Path;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_volume::Carrier;

use crate::files::{self, Directory, Links, Overlap, Tree};
use crate::objects::Objects;
use crate::{Found, FoundFailure};

/// One end.
#[derive(Debug)]
pub enum End {
    /// Files below a directory, and what is done about links there.
    Files(Directory, Links),
    /// Objects whose keys begin with a prefix.
    Objects(Objects),
}

/// A directory of an end, for messages.
struct Described {
    name: String,
    exists: bool,
}

impl End {
    /// Finds everything at this end, in the byte order of names.
    #[must_use]
    pub fn find(&self, carrier: &Arc<Carrier>) -> Found {
        match self {
            Self::Files(directory, links) => match directory.tree() {
                Ok(tree) => files::find(tree, *links),
                Err(e) => Found::failed(directory.root().display().to_string(), e),
            },
            Self::Objects(objects) => objects.clone().find(carrier.clone()),
        }
    }

    /// Refuses two trees of which one contains the other: what is copied would be found and copied again, and a removal at one end
    /// could take what the other still needs. Directories are compared by device and inode, whatever their names; a local
    /// store counts as the directory that it is in.
    pub fn check_apart(&self, to: &Self) -> Result<()> {
        if let (Self::Objects(from), Self::Objects(to)) = (self, to) {
            let is_within = to.prefix.starts_with(&from.prefix) || from.prefix.starts_with(&to.prefix);
            if from.bucket == to.bucket && is_within && from.shares_store(to) {
                let why = "the destination and the source are within each other; choose prefixes apart";
                return Err(Error::new(Reason::InvalidArgument, why));
            }
            return Ok(());
        }
        let (Some(own), Some(other)) = (self.nearest_tree()?, to.nearest_tree()?) else { return Ok(()) };
        let overlap = own.overlap(&other).map_err(|e| {
            Error::with_source(Reason::Defect, format!("cannot compare the directories: {e}"), e)
        })?;
        let (from, to) = (self.describe_directory(), to.describe_directory());
        let why = match overlap {
            Overlap::Apart => return Ok(()),
            // The destination is still to be made, in the parent that was compared: beside the source.
            Overlap::Within if !to.exists => return Ok(()),
            Overlap::Same if to.exists => format!("{} and {} are the same directory", from.name, to.name),
            Overlap::Within => format!("{} lies within {}", from.name, to.name),
            Overlap::Same | Overlap::Around => format!("{} lies within {}", to.name, from.name),
        };
        Err(Error::new(Reason::InvalidArgument, format!("{why}: choose a source and a destination apart")))
    }

    /// What is reported where nothing is found below a prefix: it is mistyped, or names a single object. `None` for a bucket and a
    /// directory, which exist and may be empty.
    #[must_use]
    pub fn nothing(&self, advice: &str) -> Option<FoundFailure> {
        match self {
            Self::Objects(objects) if !objects.prefix.is_empty() => {
                let place = self.describe("");
                let why = format!("nothing at {place}: {advice}");
                Some((place, Error::new(Reason::NoSuchKey, why)))
            }
            Self::Files(..) | Self::Objects(_) => None,
        }
    }

    /// The directory of this end, or the nearest one above it that exists; `None` where its objects are in no directory of
    /// this machine.
    fn nearest_tree(&self) -> Result<Option<Tree>> {
        match self {
            Self::Files(directory, _) => directory.nearest_tree().map(Some),
            Self::Objects(Objects { directory: None, .. }) => Ok(None),
            Self::Objects(Objects { directory: Some(path), .. }) => {
                Tree::open(path).map(Some).map_err(|e| files::failed("open the directory", path, e))
            }
        }
    }

    fn describe_directory(&self) -> Described {
        match self {
            Self::Files(directory, _) => {
                Described { name: directory.root().display().to_string(), exists: directory.tree().is_ok() }
            }
            Self::Objects(Objects { scheme, directory, .. }) => {
                let shown = directory.as_deref().unwrap_or(Path::new("")).display();
                Described { name: format!("{shown}, where the store {scheme}:// is,"), exists: true }
            }
        }
    }

    /// A name at this end, as people write it.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        match self {
            Self::Files(directory, _) => directory.root().join(name).display().to_string(),
            Self::Objects(objects) => objects.describe(name),
        }
    }
}
