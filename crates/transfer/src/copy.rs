//! Actions on one name: copying it from the source to the destination, comparing it, or removing it.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::SemaphorePermit;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest};
use tradewind_core::{
    Address, Checksum, ChecksumScope, Metadata, Precondition, ReadConditions, SystemHeaders,
};
use tradewind_model::plan::split_evenly;
use tradewind_parallel::buffer_pool::BUFFER_BYTES;
use tradewind_parallel::{
    Fetch, OnProgress, Sink, TransferContext, UploadCheckpoint, UploadSource, copy_between_stores,
    copy_within_store, store_object,
};

use crate::Item;
use crate::checkpoint::JournalCheckpoint;
use crate::endpoint::Endpoint;
use crate::files::{Directory, FileSource, Links, ObjectVersion};
use crate::journal::{Journal, JournalDirectory};
use crate::merge::Action;
use crate::names::key_to_path;
use crate::objects::Objects;
use crate::preserve::{Attributes, has_same_time};
use crate::progress::Progress;
use crate::workers::ActionResult;

/// Copies items from one endpoint to the other.
#[derive(Debug)]
pub struct Copier {
    /// The source.
    pub from: Endpoint,
    /// The destination.
    pub to: Endpoint,
    /// State shared with all transfers of the command.
    pub transfers: Arc<TransferContext>,
    /// Receives the progress.
    pub progress: Arc<Progress>,
    /// Saves the state of large objects in flight, so that a killed transfer resumes; `None` to disable.
    pub journals: Option<JournalDirectory>,
    /// If set, times, modes and owners of files are stored with objects and restored to files.
    pub preserves_attributes: bool,
}

impl Copier {
    /// Rejects endpoints of which one contains the other. See [`Endpoint::check_disjoint`].
    pub fn check_disjoint(&self) -> Result<()> {
        self.from.check_disjoint(&self.to)
    }

    /// Executes an action.
    pub async fn act(&self, action: &Action) -> Result<ActionResult> {
        match action {
            Action::Copy(item) => self.copy(item).await.map(ActionResult::Copied),
            Action::CompareContents(item) if self.has_same_contents(&item.name).await? => {
                Ok(ActionResult::Unchanged)
            }
            Action::CompareTimes(item) if self.has_same_time(&item.name).await? => {
                Ok(ActionResult::Unchanged)
            }
            Action::CompareContents(item) | Action::CompareTimes(item) => {
                self.copy(item).await.map(ActionResult::Copied)
            }
            Action::Remove(item) => self.remove(&item.name).await.map(|()| ActionResult::Removed),
        }
    }

    /// Copies an item under the same name; returns its size in bytes.
    pub async fn copy(&self, item: &Item) -> Result<u64> {
        self.copy_as(&item.name, Some(item.size), &item.name).await
    }

    /// Copies the item `from` to the name `to`; returns its size in bytes. `size` is the listed size, if any.
    pub async fn copy_as(&self, from: &str, size: Option<u64>, to: &str) -> Result<u64> {
        match (&self.from, &self.to) {
            (Endpoint::Files(directory, links), Endpoint::Objects(objects)) => {
                self.upload((directory, *links), from, objects, to).await
            }
            (Endpoint::Objects(objects), Endpoint::Files(directory, _)) => {
                self.download(objects, from, size, directory, to).await
            }
            (Endpoint::Objects(source), Endpoint::Objects(objects)) if source.has_same_handle(objects) => {
                self.copy_within(source, from, objects, to).await
            }
            (Endpoint::Objects(source), Endpoint::Objects(objects)) => {
                self.copy_between((source, from), (objects, to), size).await
            }
            (Endpoint::Files(source, links), Endpoint::Files(directory, _)) => {
                self.copy_file((source, *links), from, directory, to).await
            }
        }
    }

    async fn upload(
        &self,
        (from, links): (&Directory, Links),
        name: &str,
        to: &Objects,
        to_name: &str,
    ) -> Result<u64> {
        let address = to.address(to_name)?;
        let source = FileSource::open(&from.tree()?, name, links, self.progress.clone())?;
        let size = source.size();
        let is_large = self.transfers.plan().part_bytes(size).is_some();
        let _guard = self.acquire_if_large(is_large).await?;
        let journal = self.file_journal(&from.root().join(name), &address, is_large);
        let mut metadata = metadata_for_name(name);
        if self.preserves_attributes {
            source.attributes().write_to(&mut metadata.user);
        }
        let source = Arc::new(source.with_journal(journal, self.preserves_attributes));
        let stored = store_object(&self.transfers, &to.store, &address, source.clone(), size, metadata).await;
        if stored.as_ref().map_or_else(|e| !e.is_resumable(), |_| true) {
            source.remove_journal();
        }
        Ok(stored?.size)
    }

    async fn download(
        &self,
        from: &Objects,
        name: &str,
        size: Option<u64>,
        to: &Directory,
        to_name: &str,
    ) -> Result<u64> {
        let path = key_to_path(to_name)?;
        let address = from.address(name)?;
        let is_large = size.is_some_and(|size| size > self.transfers.plan().chunk_bytes);
        let _guard = self.acquire_if_large(is_large).await?;
        let fetch = Fetch::open(&self.transfers, &from.store, &address, size).await?;
        let size = fetch.info().size;
        let is_large = size > self.transfers.plan().chunk_bytes;
        let journal = self.file_journal(&to.root().join(&path), &address, is_large);
        let version = ObjectVersion { size, etag: fetch.info().etag.as_str() };
        let file = Arc::new(to.resume_file(
            &path,
            &version,
            self.progress.clone(),
            journal,
            self.preserves_attributes,
        )?);
        let fetched = fetch.write_to(file.clone() as Arc<dyn Sink>).await;
        let Some(mut file) = Arc::into_inner(file) else {
            // The check of a stored range (`verify_stored_range`, a blocking read) may still run. Nothing is written any
            // more; the next transfer resumes or restarts the file.
            return Err(fetched.err().unwrap_or_else(|| {
                Error::new(Reason::Defect, "the file is still in use after its last range")
            }));
        };
        match fetched {
            Ok(info) => {
                let mut attributes = Attributes::with_modified(info.modified);
                if self.preserves_attributes {
                    let preserved = Attributes::from_user_metadata(&info.metadata.user);
                    attributes =
                        Attributes { modified: preserved.modified.or(attributes.modified), ..preserved };
                }
                file.finish(&attributes)?;
                Ok(info.size)
            }
            Err(e) => {
                if !e.is_resumable() {
                    file.remove_journal();
                }
                Err(e)
            }
        }
    }

    /// Waits for the slot of a large object, which takes several requests. The returned guard holds the slot; `None` if
    /// `is_large` is false.
    async fn acquire_if_large(&self, is_large: bool) -> Result<Option<SemaphorePermit<'_>>> {
        if is_large { self.transfers.acquire_large_object().await.map(Some) } else { Ok(None) }
    }

    /// The journal of a transfer between a file and an object. With `None` the transfer works, but cannot resume.
    ///
    /// A small item has a journal only if an earlier, larger version left one, whose unfinished file or
    /// upload must be removed.
    fn file_journal(&self, path: &Path, address: &Address, is_large: bool) -> Option<Journal> {
        let journals = self.journals.as_ref()?;
        journals.open_for_transfer(is_large, || {
            let path = std::path::absolute(path).ok()?;
            Some((path.display().to_string(), journal_key(address)))
        })
    }

    /// Copies within one store by a server-side copy.
    async fn copy_within(&self, from: &Objects, name: &str, to: &Objects, to_name: &str) -> Result<u64> {
        let request = CopyRequest {
            source: from.address(name)?,
            source_conditions: ReadConditions::default(),
            destination: to.address(to_name)?,
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::default(),
        };
        let copied = copy_within_store(&self.transfers, &to.store, request).await?;
        self.progress.add_bytes(i64::try_from(copied.size).unwrap_or(i64::MAX));
        Ok(copied.size)
    }

    /// Copies from one store to another through this process.
    async fn copy_between(
        &self,
        (from, name): (&Objects, &str),
        (to, to_name): (&Objects, &str),
        size: Option<u64>,
    ) -> Result<u64> {
        let (source, destination) = (from.address(name)?, to.address(to_name)?);
        let is_large = size.is_none_or(|size| self.transfers.plan().part_bytes(size).is_some());
        let _guard = self.acquire_if_large(is_large).await?;
        let endpoints = || Some((journal_key(&source), journal_key(&destination)));
        let journal =
            self.journals.as_ref().and_then(|journals| journals.open_for_transfer(is_large, endpoints));
        let checkpoint =
            journal.map(|journal| Arc::new(JournalCheckpoint::new(journal)) as Arc<dyn UploadCheckpoint>);
        let progress = self.progress.clone();
        let on_progress: OnProgress = Arc::new(move |bytes| progress.add_bytes(bytes));
        let (from, to) = ((&from.store, &source), (&to.store, &destination));
        Ok(copy_between_stores(&self.transfers, from, to, size, on_progress, checkpoint).await?.size)
    }

    async fn copy_file(
        &self,
        (from, links): (&Directory, Links),
        name: &str,
        to: &Directory,
        to_name: &str,
    ) -> Result<u64> {
        let source = FileSource::open(&from.tree()?, name, links, Arc::default())?;
        let path = key_to_path(to_name)?;
        let mut file =
            to.create_file(&path, source.size(), self.progress.clone(), self.preserves_attributes)?;
        let attributes = if self.preserves_attributes {
            source.attributes()
        } else {
            Attributes::with_modified(source.modified())
        };
        run_blocking(move || {
            read_through(&source, |offset, piece| file.write_at(offset, piece))?;
            file.finish(&attributes)?;
            Ok(source.size())
        })
        .await
    }

    /// Returns true if both endpoints hold the same bytes under a name, by a full-object checksum. Without a common
    /// checksum the items count as different.
    pub async fn has_same_contents(&self, name: &str) -> Result<bool> {
        let (source_checksums, destination) = (checksums(&self.transfers, &self.from, name).await?, &self.to);
        match (source_checksums, destination) {
            (Some(found), Endpoint::Objects(_)) => {
                let destination = checksums(&self.transfers, destination, name).await?.unwrap_or_default();
                let counterpart = |a: &Checksum| destination.iter().find(|b| b.algorithm() == a.algorithm());
                Ok(found.iter().find_map(|a| counterpart(a).map(|b| a == b)).unwrap_or(false))
            }
            (Some(found), Endpoint::Files(directory, links)) => match found.first() {
                Some(expected) => file_has_checksum((directory, *links), name, expected).await,
                None => Ok(false),
            },
            (None, Endpoint::Files(other, other_links)) => {
                let Endpoint::Files(directory, links) = &self.from else { return Ok(false) };
                let own = (directory, *links);
                let found = file_checksum(own, name, tradewind_core::Algorithm::Crc64Nvme).await?;
                file_has_checksum((other, *other_links), name, &found).await
            }
            (None, destination) => {
                let Endpoint::Files(directory, links) = &self.from else { return Ok(false) };
                let destination = checksums(&self.transfers, destination, name).await?.unwrap_or_default();
                match destination.first() {
                    Some(expected) => file_has_checksum((directory, *links), name, expected).await,
                    None => Ok(false),
                }
            }
        }
    }

    /// Returns true if the file at one endpoint has the time stored with the object at the other. Sends one request.
    pub async fn has_same_time(&self, name: &str) -> Result<bool> {
        has_same_time(&self.transfers, &self.from, &self.to, name).await
    }

    /// Removes a name at the destination.
    pub async fn remove(&self, name: &str) -> Result<()> {
        match &self.to {
            Endpoint::Files(directory, _) => directory.remove(&key_to_path(name)?),
            Endpoint::Objects(objects) => objects.remove(&self.transfers, name).await,
        }
    }
}

/// The name of an object in a journal. The journal's directory and identity already distinguish the store.
pub(crate) fn journal_key(address: &Address) -> String {
    format!("s3://{}/{}", address.bucket, address.key)
}

/// The full-object checksums that a store has of an object. `None` for a file: its checksum is computed later, once the
/// algorithm is known.
async fn checksums(
    transfers: &Arc<TransferContext>,
    endpoint: &Endpoint,
    name: &str,
) -> Result<Option<Vec<Checksum>>> {
    let Endpoint::Objects(objects) = endpoint else { return Ok(None) };
    let address = &objects.address(name)?;
    let found = transfers.retry(|| async move {
        let permits = transfers.acquire_request_permits(0).await?;
        objects.store.head(&permits.context, address, GetRequest::default()).await
    });
    let info = found.await?.info;
    Ok(Some(if info.scope == ChecksumScope::FullObject { info.checksums } else { Vec::new() }))
}

async fn file_has_checksum(files: (&Directory, Links), name: &str, expected: &Checksum) -> Result<bool> {
    Ok(file_checksum(files, name, expected.algorithm()).await? == *expected)
}

async fn file_checksum(
    (directory, links): (&Directory, Links),
    name: &str,
    algorithm: tradewind_core::Algorithm,
) -> Result<Checksum> {
    let source = FileSource::open(&directory.tree()?, name, links, Arc::default())?;
    run_blocking(move || {
        let mut hasher = Hasher::new(algorithm);
        read_through(&source, |_, piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finish())
    })
    .await
}

/// Runs long blocking work on a thread of the blocking pool.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let lost = |e| Error::with_source(Reason::Defect, "a task failed", e);
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}

/// Reads a file sequentially and checks at the end that it did not change.
fn read_through(source: &FileSource, mut take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for (offset, length) in split_evenly(source.size(), BUFFER_BYTES as u64) {
        let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
        source.read_at(offset, piece)?;
        take(offset, piece)?;
    }
    source.check_unchanged()
}

/// The metadata of an object created from a file: its content type, if the name's extension implies one.
#[must_use]
pub fn metadata_for_name(name: &str) -> Metadata {
    let content_type = mime_guess::from_path(name).first_raw().map(str::to_owned);
    Metadata { headers: SystemHeaders { content_type, ..SystemHeaders::default() }, ..Metadata::default() }
}

impl Objects {
    /// The address of a name below the prefix.
    pub fn address(&self, name: &str) -> Result<Address> {
        Address::parse(self.bucket.as_str(), &format!("{}{name}", self.prefix))
    }

    /// Deletes the object with a name below the prefix.
    pub async fn remove(&self, transfers: &TransferContext, name: &str) -> Result<()> {
        let address = &self.address(name)?;
        let deleted = transfers.retry(|| async move {
            let permits = transfers.acquire_request_permits(0).await?;
            self.store.delete(&permits.context, address, Precondition::None).await
        });
        deleted.await.map(drop)
    }
}
