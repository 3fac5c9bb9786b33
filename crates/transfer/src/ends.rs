//! The two ends of a transfer: a directory, or the objects below a prefix.

use std::sync::Arc;

use tokio::sync::mpsc;
use tradewind_volume::Carrier;

use crate::FoundItem;
use crate::files::{self, Directory, Links};
use crate::objects::Objects;

/// One end.
#[derive(Debug)]
pub enum End {
    /// Files below a directory, and what is done about links there.
    Files(Directory, Links),
    /// Objects whose keys begin with a prefix.
    Objects(Objects),
}

impl End {
    /// Finds everything at this end, in the byte order of names.
    #[must_use]
    pub fn find(&self, carrier: &Arc<Carrier>) -> mpsc::Receiver<FoundItem> {
        match self {
            Self::Files(directory, links) => files::find(directory.root().to_owned(), *links),
            Self::Objects(objects) => objects.clone().find(carrier.clone()),
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
