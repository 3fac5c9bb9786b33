//! One item from one place to the other.

use std::path::PathBuf;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, Metadata, ObjectStore, SystemHeaders};
use tradewind_volume::{Carrier, Fetch, Sink, store};

use crate::files::{Directory, FileSource};
use crate::names::path_of;
use crate::objects::Objects;
use crate::progress::Progress;

/// Carries items.
#[derive(Debug)]
pub struct Copier {
    /// How they are carried.
    pub carrier: Arc<Carrier>,
    /// Where it is told how far they are.
    pub progress: Arc<Progress>,
}

impl Copier {
    /// Stores a file as an object.
    pub async fn upload(&self, path: PathBuf, to: &Objects, key: &str, metadata: Metadata) -> Result<u64> {
        let address = Address::parse(to.bucket.as_str(), key)?;
        let source = Arc::new(FileSource::open(&path, self.progress.clone())?);
        let size = source.size();
        let stored = store(&self.carrier, &to.store, &address, source, size, metadata).await?;
        Ok(stored.size)
    }

    /// Fetches an object into a file.
    pub async fn download(
        &self,
        from: &Objects,
        key: &str,
        size: Option<u64>,
        (to, name): (&Directory, &str),
    ) -> Result<u64> {
        let path = path_of(name)?;
        let address = Address::parse(from.bucket.as_str(), key)?;
        let fetch = Fetch::open(&self.carrier, &from.store, &address, size).await?;
        let file = Arc::new(to.begin(&path, fetch.info().size)?);
        let info = fetch.write_to(file.clone() as Arc<dyn Sink>).await?;
        let Some(mut file) = Arc::into_inner(file) else {
            return Err(Error::new(Reason::Defect, "a file is still written after its last chunk"));
        };
        file.finish(info.modified)?;
        Ok(info.size)
    }
}

/// What an object made of a file carries: its type, where its name tells.
#[must_use]
pub fn metadata_of(name: &str) -> Metadata {
    let content_type = mime_guess::from_path(name).first_raw().map(str::to_owned);
    Metadata { headers: SystemHeaders { content_type, ..SystemHeaders::default() }, ..Metadata::default() }
}

/// A store with its buckets, as commands name it.
pub type Store = Arc<dyn ObjectStore>;
