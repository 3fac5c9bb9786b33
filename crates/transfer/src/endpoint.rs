//! The endpoints of a transfer: a directory, or the objects below a prefix.

use std::path::Path;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_parallel::TransferContext;

use crate::files::{self, Directory, Links, Overlap, Tree};
use crate::filter::Filter;
use crate::objects::Objects;
use crate::{ItemFeed, NamedError};

/// The source or the destination of a transfer.
#[derive(Debug)]
pub enum Endpoint {
    /// Files below a directory, and the treatment of symbolic links there.
    Files(Directory, Links),
    /// Objects whose keys begin with a prefix.
    Objects(Objects),
}

/// The directory of an endpoint, for messages.
struct DirectoryLabel {
    name: String,
    exists: bool,
}

impl Endpoint {
    /// Lists all items of this endpoint, in byte order of their names. Excluded directories are not entered; other
    /// excluded items are listed. Objects of a service that may have another order follow when all are listed.
    #[must_use]
    pub fn find(&self, transfers: &Arc<TransferContext>, filter: &Filter) -> ItemFeed {
        match self {
            Self::Files(directory, links) => match directory.tree() {
                Ok(tree) => files::find(tree, *links, filter),
                Err(e) => ItemFeed::with_error(directory.root().display().to_string(), e),
            },
            Self::Objects(objects) => objects.clone().find_in_byte_order("", transfers.clone()),
        }
    }

    /// Rejects two trees of which one contains the other. A copy would list and copy its own output, and a removal at
    /// one endpoint could delete data of the other.
    ///
    /// Directories are compared by device and inode, not by name. A local store counts as the directory that holds it.
    pub fn check_disjoint(&self, to: &Self) -> Result<()> {
        if let (Self::Objects(from), Self::Objects(to)) = (self, to) {
            let is_within = to.prefix.starts_with(&from.prefix) || from.prefix.starts_with(&to.prefix);
            if from.bucket == to.bucket && is_within && from.shares_store(to) {
                let why = "the source and destination prefixes overlap; choose disjoint prefixes";
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
            Overlap::Disjoint => return Ok(()),
            // The destination does not exist yet, and its nearest existing parent was compared: it will be next to the
            // source.
            Overlap::Within if !to.exists => return Ok(()),
            Overlap::Same if to.exists => format!("{} and {} are the same directory", from.name, to.name),
            Overlap::Within => format!("{} lies within {}", from.name, to.name),
            Overlap::Same | Overlap::Contains => format!("{} lies within {}", to.name, from.name),
        };
        Err(Error::new(Reason::InvalidArgument, format!("{why}: choose disjoint source and destination")))
    }

    /// The failure to report if a prefix has no objects: it is mistyped, or names a single object. `None` for a bucket
    /// or a directory, which exist and may be empty.
    #[must_use]
    pub fn empty_prefix_error(&self, advice: &str) -> Option<NamedError> {
        match self {
            Self::Objects(objects) if !objects.prefix.is_empty() => {
                let location = self.describe("");
                let why = format!("nothing at {location}: {advice}");
                Some((location, Error::new(Reason::NoSuchKey, why)))
            }
            Self::Files(..) | Self::Objects(_) => None,
        }
    }

    /// The directory of this endpoint, or its nearest existing ancestor; `None` if its objects are in no directory of
    /// this machine.
    fn nearest_tree(&self) -> Result<Option<Tree>> {
        match self {
            Self::Files(directory, _) => directory.nearest_tree().map(Some),
            Self::Objects(Objects { directory: None, .. }) => Ok(None),
            Self::Objects(Objects { directory: Some(path), .. }) => {
                Tree::open(path).map(Some).map_err(|e| files::file_error("open the directory", path, e))
            }
        }
    }

    fn describe_directory(&self) -> DirectoryLabel {
        match self {
            Self::Files(directory, _) => DirectoryLabel {
                name: directory.root().display().to_string(),
                exists: directory.tree().is_ok(),
            },
            Self::Objects(Objects { scheme, directory, .. }) => {
                let shown = directory.as_deref().unwrap_or(Path::new("")).display();
                DirectoryLabel { name: format!("{shown} (directory of the store {scheme}://)"), exists: true }
            }
        }
    }

    /// The full path or URL of a name at this endpoint, for display.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        match self {
            Self::Files(directory, _) => directory.root().join(name).display().to_string(),
            Self::Objects(objects) => objects.describe(name),
        }
    }
}
