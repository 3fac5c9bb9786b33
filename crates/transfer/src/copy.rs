//! Actions on one name: copying it from the source to the destination, comparing it, or removing it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{CopyRequest, Deleted, ETagForm, GetRequest};
use tradewind_core::{
    Address, Checksum, ChecksumScope, Metadata, ObjectInfo, Precondition, ReadConditions, SystemHeaders,
    Timestamp,
};
use tradewind_model::plan::split_evenly;
use tradewind_parallel::buffer_pool::BUFFER_BYTES;
use tradewind_parallel::upload_checkpoint::SourceVersion;
use tradewind_parallel::{
    Fetch, OnProgress, Sink, TransferContext, UploadCheckpoint, UploadSource, copy_between_stores,
    copy_within_store, store_object,
};

use crate::Item;
use crate::checkpoint::JournalCheckpoint;
use crate::class_rules::{ClassRules, ClassifiedObject};
use crate::endpoint::Endpoint;
use crate::files::{Directory, FileOptions, FileSource, Links, NewFile, ObjectVersion, lacks_descriptors};
use crate::journal::{Journal, JournalDirectory};
use crate::merge::Action;
use crate::names::{is_folder_marker, key_to_path, marker_to_path, path_to_key};
use crate::objects::Objects;
use crate::preserve::{Attributes, has_same_time};
use crate::progress::Progress;
use crate::recheck::{CopyAttempts, FetchedVersion};
use crate::workers::ActionResult;

/// The time for which an action waits for descriptors.
const MAX_DESCRIPTOR_WAIT: Duration = Duration::from_secs(30);
/// The time between two attempts to open files.
const DESCRIPTOR_WAIT_STEP: Duration = Duration::from_millis(100);
/// Maximum time to wait before an item is copied again. More would be needed only if clocks are wrong.
const MAX_RACE_WAIT: Duration = Duration::from_secs(6);
/// A block of a file system. One of zeros can remain a hole.
const ZERO_BLOCK: [u8; 4096] = [0; 4096];

/// The number of uploads of a file that changes during each of them.
const MAX_UPLOADS_OF_A_FILE: u32 = 3;

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
    /// The classes of objects created from files.
    pub classes: ClassRules,
}

/// An action whose comparisons were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved<'a> {
    /// Copy the item.
    Copy(&'a Item),
    /// Remove the item from the destination.
    Remove(&'a Item),
    /// Leave the folder marker with bytes at the destination, and report it.
    KeepMarker(&'a Item),
}

impl Copier {
    /// Rejects endpoints of which one contains the other. See [`Endpoint::check_disjoint`].
    pub fn check_disjoint(&self) -> Result<()> {
        self.from.check_disjoint(&self.to)
    }

    /// Executes an action. An item that is copied again is copied when its new time will differ. While no file can be opened for
    /// lack of descriptors, the action waits until other work ends, for at most [`MAX_DESCRIPTOR_WAIT`].
    pub async fn act(&self, action: &Action) -> Result<ActionResult> {
        if let Action::CopyAgain { not_before, .. } = action {
            self.wait_for_race(*not_before).await;
        }
        let clock = self.transfers.clock();
        let end = clock.now() + MAX_DESCRIPTOR_WAIT;
        loop {
            match self.try_to_act(action).await {
                Err(error) if lacks_descriptors(&error) && clock.now() < end => {
                    clock.sleep_until(clock.now() + DESCRIPTOR_WAIT_STEP).await;
                }
                result => return result,
            }
        }
    }

    async fn try_to_act(&self, action: &Action) -> Result<ActionResult> {
        // Another program may have written a newer destination during the wait.
        if let Action::CopyAgain { item, destination, .. } = action
            && !self.is_due(item, destination).await?
        {
            return Ok(ActionResult::Unchanged);
        }
        match self.resolve(action).await? {
            None => Ok(ActionResult::Unchanged),
            Some(Resolved::Copy(item)) => self.copy(item).await.map(ActionResult::Copied),
            Some(Resolved::Remove(item)) => self.remove(&item.name).await.map(|()| ActionResult::Removed),
            Some(Resolved::KeepMarker(_)) => Ok(ActionResult::KeptMarker),
        }
    }

    /// Waits until `end`, by this machine's clock. A time too far ahead is of a clock that is wrong, and not waited for.
    async fn wait_for_race(&self, end: Timestamp) {
        let clock = self.transfers.clock();
        let wait = end.millis().saturating_sub(clock.wall().millis());
        let wait = Duration::from_millis(u64::try_from(wait).unwrap_or(0));
        if wait <= MAX_RACE_WAIT {
            clock.sleep_until(clock.now() + wait).await;
        }
    }

    /// Makes the comparisons that an action needs, and returns what is then to do; `None` if nothing. Changes nothing.
    pub async fn resolve<'a>(&self, action: &'a Action) -> Result<Option<Resolved<'a>>> {
        Ok(match action {
            Action::Copy(item) if self.has_directory_of(item) => None,
            Action::CompareContents(item) if self.has_same_contents(&item.name).await? => None,
            Action::CompareTimes(item) if self.has_same_time(&item.name).await? => None,
            Action::Copy(item)
            | Action::CopyAgain { item, .. }
            | Action::CompareContents(item)
            | Action::CompareTimes(item) => Some(Resolved::Copy(item)),
            Action::Remove(item) => self.resolve_removal(item)?,
            Action::SkipRemoval(_) => None,
        })
    }

    /// Decides about an item that the source does not list. A directory of files lists no folder markers: one whose
    /// directory exists is left, and one with bytes is not removed, because no file could bring it back.
    pub(crate) fn resolve_removal<'a>(&self, item: &'a Item) -> Result<Option<Resolved<'a>>> {
        let (Endpoint::Files(directory, _), Endpoint::Objects(_)) = (&self.from, &self.to) else {
            return Ok(Some(Resolved::Remove(item)));
        };
        if !is_folder_marker(&item.name) {
            return Ok(Some(Resolved::Remove(item)));
        }
        if item.size > 0 {
            return Ok(Some(Resolved::KeepMarker(item)));
        }
        // A name that no directory can have is of no directory.
        let exists = marker_to_path(&item.name).map_or(Ok(false), |path| directory.find_directory(&path))?;
        Ok((!exists).then_some(Resolved::Remove(item)))
    }

    /// Returns true for an empty folder marker whose directory exists at the destination.
    fn has_directory_of(&self, item: &Item) -> bool {
        let (Endpoint::Objects(_), Endpoint::Files(directory, _)) = (&self.from, &self.to) else {
            return false;
        };
        item.size == 0
            && is_folder_marker(&item.name)
            && marker_to_path(&item.name).is_ok_and(|path| directory.has_directory(&path))
    }

    /// Copies an item under the same name; returns its size in bytes.
    pub async fn copy(&self, item: &Item) -> Result<u64> {
        self.copy_as(item, Some(item.size), &item.name).await
    }

    /// Copies the item `from`, or its version, to the name `to`; returns its size in bytes. `size` is the listed size,
    /// if any.
    pub async fn copy_as(&self, from: &Item, size: Option<u64>, to: &str) -> Result<u64> {
        match (&self.from, &self.to) {
            (Endpoint::Files(directory, links), Endpoint::Objects(objects)) => {
                self.upload((directory, *links), &from.name, objects, to).await
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
                self.copy_file((source, *links), &from.name, directory, to).await
            }
        }
    }

    /// Uploads a file. One that changes after its last byte was read, and before the store has it, is older than its object: it is
    /// uploaded again.
    async fn upload(
        &self,
        (from, links): (&Directory, Links),
        name: &str,
        to: &Objects,
        to_name: &str,
    ) -> Result<u64> {
        let mut attempts = 0..MAX_UPLOADS_OF_A_FILE;
        loop {
            attempts.next();
            let (size, source) = self.upload_once((from, links), name, to, to_name).await?;
            match source.check_unchanged() {
                Err(_) if !attempts.is_empty() => {
                    self.progress.add_bytes(-i64::try_from(size).unwrap_or(i64::MAX));
                }
                unchanged => return unchanged.map(|()| size),
            }
        }
    }

    /// Returns the size of the object, and the opened file.
    async fn upload_once(
        &self,
        (from, links): (&Directory, Links),
        name: &str,
        to: &Objects,
        to_name: &str,
    ) -> Result<(u64, Arc<FileSource>)> {
        let address = to.address(to_name)?;
        let source = FileSource::open(&from.tree()?, name, links, self.progress.clone())?;
        let size = source.size();
        let is_large = self.transfers.plan().part_bytes(size).is_some();
        let _guard = self.acquire_if_large(is_large).await?;
        let journal = self.file_journal(&from.root().join(name), &address, is_large);
        let mut metadata = metadata_for_name(name);
        metadata.classes.object = self.classes.class_of(&ClassifiedObject {
            bucket: address.bucket.as_str(),
            key: address.key.as_str(),
            size: Some(size),
            content_type: metadata.headers.content_type.as_deref(),
            ..ClassifiedObject::default()
        });
        if self.preserves_attributes {
            source.attributes().write_to(&mut metadata.user);
        }
        let source = Arc::new(source.with_journal(journal, self.preserves_attributes));
        let stored = store_object(&self.transfers, &to.store, &address, source.clone(), size, metadata).await;
        if stored.as_ref().map_or_else(|e| !e.is_resumable(), |_| true) {
            source.remove_journal();
        }
        Ok((stored?.size, source))
    }

    /// Downloads an object. The file has the time of its object, so the object is fetched again if it was replaced within
    /// the second of its time.
    async fn download(
        &self,
        from: &Objects,
        item: &Item,
        size: Option<u64>,
        to: &Directory,
        to_name: &str,
    ) -> Result<u64> {
        let (address, mut attempts, mut size) = (from.address_of(item)?, CopyAttempts::default(), size);
        loop {
            let Some(fetched) = self.download_once(from, &address, size, to, to_name).await? else {
                return Ok(0);
            };
            if self.is_download_current(from, &address, &fetched).await? {
                return Ok(fetched.version.size);
            }
            attempts.count_replaced(&address)?;
            size = None;
        }
    }

    /// Returns the version of the file; `None` for a folder marker.
    async fn download_once(
        &self,
        from: &Objects,
        address: &Address,
        size: Option<u64>,
        to: &Directory,
        to_name: &str,
    ) -> Result<Option<FetchedVersion>> {
        let opened = self.transfers.clock().wall();
        if is_folder_marker(to_name) && self.object_size(from, address, size).await? == 0 {
            to.create_directory(&marker_to_path(to_name)?)?;
            return Ok(None);
        }
        let path = key_to_path(to_name)?;
        let is_large = size.is_some_and(|size| size > self.transfers.plan().chunk_bytes);
        let _guard = self.acquire_if_large(is_large).await?;
        let fetch = Fetch::open(&self.transfers, &from.store, address, size).await?;
        let size = fetch.info().size;
        let is_large = size > self.transfers.plan().chunk_bytes;
        let journal = self.file_journal(&to.root().join(&path), address, is_large);
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
                Ok(Some(FetchedVersion { version: SourceVersion::from_info(&info), opened }))
            }
            Err(e) => {
                if !e.is_resumable() {
                    file.remove_journal();
                }
                Err(e)
            }
        }
    }

    /// The size of an object: the listed one, otherwise requested from the store.
    async fn object_size(&self, from: &Objects, address: &Address, listed: Option<u64>) -> Result<u64> {
        match listed {
            Some(size) => Ok(size),
            None => Ok(head(&self.transfers, from, address).await?.size),
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
    async fn copy_within(&self, from: &Objects, item: &Item, to: &Objects, to_name: &str) -> Result<u64> {
        let source = from.address_of(item)?;
        let request = CopyRequest {
            source: source.clone(),
            source_conditions: ReadConditions::default(),
            destination: to.address(to_name)?,
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::default(),
        };
        let mut attempts = CopyAttempts::default();
        loop {
            let copied = copy_within_store(&self.transfers, &to.store, request.clone()).await?;
            if self.is_source_current(from, &source, &copied.source).await? {
                let size = copied.committed.size;
                self.progress.add_bytes(i64::try_from(size).unwrap_or(i64::MAX));
                return Ok(size);
            }
            attempts.count_replaced(&source)?;
        }
    }

    /// Copies from one store to another through this process.
    async fn copy_between(
        &self,
        (from, item): (&Objects, &Item),
        (to, to_name): (&Objects, &str),
        size: Option<u64>,
    ) -> Result<u64> {
        let (source, destination) = (from.address_of(item)?, to.address(to_name)?);
        let is_large = size.is_none_or(|size| self.transfers.plan().part_bytes(size).is_some());
        let _guard = self.acquire_if_large(is_large).await?;
        let endpoints = || Some((journal_key(&source), journal_key(&destination)));
        let (mut attempts, mut size) = (CopyAttempts::default(), size);
        loop {
            let journal =
                self.journals.as_ref().and_then(|journals| journals.open_for_transfer(is_large, endpoints));
            let checkpoint =
                journal.map(|journal| Arc::new(JournalCheckpoint::new(journal)) as Arc<dyn UploadCheckpoint>);
            let progress = self.progress.clone();
            let on_progress: OnProgress = Arc::new(move |bytes| progress.add_bytes(bytes));
            let (origin, to) = ((&from.store, &source), (&to.store, &destination));
            let copied =
                copy_between_stores(&self.transfers, origin, to, size, on_progress, checkpoint).await?;
            if self.is_source_current(from, &source, &copied.source).await? {
                return Ok(copied.committed.size);
            }
            self.progress.add_bytes(-i64::try_from(copied.committed.size).unwrap_or(i64::MAX));
            attempts.count_replaced(&source)?;
            size = None;
        }
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
        let options = FileOptions {
            size: source.size(),
            is_private: self.preserves_attributes,
            needs_name: false,
            has_holes: source.has_holes(),
        };
        let mut file = to.create_with(&path, self.progress.clone(), &options)?;
        let attributes = if self.preserves_attributes {
            source.attributes()
        } else {
            Attributes { modified: source.attributes().modified, ..Attributes::default() }
        };
        run_blocking(move || {
            if source.has_holes() {
                copy_data(&source, &file)?;
            } else {
                read_through(&source, |offset, piece| file.write_at(offset, piece))?;
            }
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

    /// Removes a name at the destination, and the directories of a file that become empty, unless the source has folder
    /// markers for them.
    pub async fn remove(&self, name: &str) -> Result<()> {
        match &self.to {
            Endpoint::Files(directory, _) => {
                let path = key_to_path(name)?;
                match &self.from {
                    Endpoint::Files(..) => directory.remove(&path),
                    Endpoint::Objects(from) => {
                        directory.remove_file(&path)?;
                        self.remove_emptied(directory, &path, from).await;
                        Ok(())
                    }
                }
            }
            Endpoint::Objects(objects) => {
                objects.remove(&self.transfers, &objects.address(name)?).await.map(drop)
            }
        }
    }
}

impl Copier {
    /// Removes the parent directories of a removed file that are empty and for which the source has no folder marker.
    async fn remove_emptied(&self, directory: &Directory, removed: &Path, from: &Objects) {
        for parent in removed.ancestors().skip(1) {
            if parent.as_os_str().is_empty() || !directory.is_empty(parent) {
                return;
            }
            let marker = path_to_key(parent).and_then(|key| from.address(&format!("{key}/")));
            let has_marker = match marker {
                Ok(marker) => from.exists(&self.transfers, &marker).await,
                Err(e) => Err(e),
            };
            match has_marker {
                Ok(false) if directory.remove_empty(parent) => {}
                Ok(_) => return,
                Err(e) => {
                    let path = directory.root().join(parent);
                    tracing::debug!(error = %e, path = %path.display(), "an empty directory stays");
                    return;
                }
            }
        }
    }
}

/// The name of an object, or of one of its versions, in a journal. The journal's directory and identity already
/// distinguish the store.
pub(crate) fn journal_key(address: &Address) -> String {
    let current = format!("s3://{}/{}", address.bucket, address.key);
    match &address.version {
        None => current,
        // The quotes keep an id from running into the URL.
        Some(version) => format!("version {version:?} of {current}"),
    }
}

/// The full-object checksums that a store has of an object. `None` for a file: its checksum is computed later, once the
/// algorithm is known.
async fn checksums(
    transfers: &Arc<TransferContext>,
    endpoint: &Endpoint,
    name: &str,
) -> Result<Option<Vec<Checksum>>> {
    let Endpoint::Objects(objects) = endpoint else { return Ok(None) };
    let info = head(transfers, objects, &objects.address(name)?).await?;
    Ok(Some(if info.scope == ChecksumScope::FullObject { info.checksums } else { Vec::new() }))
}

/// The properties of an object, or of a version of it.
pub(crate) async fn head(
    transfers: &TransferContext,
    objects: &Objects,
    address: &Address,
) -> Result<ObjectInfo> {
    let found = transfers.retry(|| async move {
        let permits = transfers.acquire_request_permits(0).await?;
        objects.store.head(&permits.context, address, GetRequest::default()).await
    });
    Ok(found.await?.info)
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

/// Copies the data of a file to the same offsets of another, and writes no blocks of zeros. Checks at the end that the file did
/// not change.
fn copy_data(source: &FileSource, to: &NewFile) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    while let Some(data) = source.next_data(at) {
        to.skip_hole(data.start - at);
        let mut offset = data.start;
        while offset < data.end {
            // Later pieces start at a multiple of their size.
            let end = (offset - offset % BUFFER_BYTES as u64 + BUFFER_BYTES as u64).min(data.end);
            let piece = &mut buffer[..usize::try_from(end - offset).unwrap_or(BUFFER_BYTES)];
            source.read_at(offset, piece)?;
            write_nonzero_blocks(to, offset, piece)?;
            offset = end;
        }
        at = data.end;
    }
    to.skip_hole(source.size().saturating_sub(at));
    to.set_size()?;
    source.check_unchanged()
}

/// Writes a piece of a file except for whole blocks of zeros.
fn write_nonzero_blocks(to: &NewFile, offset: u64, piece: &[u8]) -> Result<()> {
    let first = usize::try_from(
        (ZERO_BLOCK.len() as u64 - offset % ZERO_BLOCK.len() as u64) % ZERO_BLOCK.len() as u64,
    );
    let (head, blocks) = piece.split_at(first.unwrap_or(0).min(piece.len()));
    let mut pending = 0..head.len();
    for (number, block) in blocks.chunks(ZERO_BLOCK.len()).enumerate() {
        let start = head.len() + number * ZERO_BLOCK.len();
        if block == ZERO_BLOCK {
            write_range(to, offset, piece, pending)?;
            to.skip_hole(block.len() as u64);
            pending = start + block.len()..start + block.len();
        } else {
            pending.end = start + block.len();
        }
    }
    write_range(to, offset, piece, pending)
}

/// Writes a range of a piece that starts at `offset`.
fn write_range(to: &NewFile, offset: u64, piece: &[u8], range: Range<usize>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    to.write_at(offset + range.start as u64, &piece[range])
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

    /// The address of the version that an item names; of the current one, if it names none.
    pub fn address_of(&self, item: &Item) -> Result<Address> {
        Ok(self.address(&item.name)?.with_version(item.version.clone()))
    }

    /// Returns true if an object, or a version of it, exists. A delete marker that is named exists, too.
    pub async fn exists(&self, transfers: &TransferContext, address: &Address) -> Result<bool> {
        match head(transfers, self, address).await {
            Ok(_) => Ok(true),
            Err(e) if e.reason() == Reason::DeleteMarker => Ok(true),
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Deletes the version that an item names, or the object. One that does not exist is not counted as removed.
    pub async fn remove_item(&self, transfers: &TransferContext, item: &Item) -> Result<ActionResult> {
        let deleted = self.remove(transfers, &self.address_of(item)?).await?;
        Ok(if deleted.existed { ActionResult::Removed } else { ActionResult::Unchanged })
    }

    /// Deletes an object or a version of it. See [`ObjectStore::delete`](tradewind_core::ObjectStore::delete).
    pub async fn remove(&self, transfers: &TransferContext, address: &Address) -> Result<Deleted> {
        transfers
            .retry(|| async move {
                let permits = transfers.acquire_request_permits(0).await?;
                self.store.delete(&permits.context, address, Precondition::None).await
            })
            .await
    }
}

#[cfg(test)]
mod tests;
