//! A multipart upload whose parts take turns with other requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartInfo, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{
    Address, Algorithm, ChecksumScope, Context, Metadata, ObjectStore, Precondition, Staged,
};

use tradewind_model::plan::Plan;

use super::buffers::BUFFER_BYTES;
use super::carrier::Carrier;
use super::late::Progress;
use super::memory::{Begun, CopiedPart, StoredPart};
use super::sent::pour_watched;
use super::source::Source;

/// An upload that is under way. Dropped before its end, it is given up, unless it is kept.
pub(crate) struct Upload {
    carrier: Arc<Carrier>,
    store: Arc<dyn ObjectStore>,
    address: Address,
    id: UploadId,
    is_over: AtomicBool,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if *self.is_over.get_mut() {
            return;
        }
        // Without a runtime the process is at its end.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let dropped = Self {
            carrier: self.carrier.clone(),
            store: self.store.clone(),
            address: self.address.clone(),
            id: self.id.clone(),
            is_over: AtomicBool::new(true),
        };
        runtime.spawn(async move { dropped.give_up().await });
    }
}

/// S3 gives no more on a page.
const PAGE: usize = 1000;

/// The part, where the source still holds its bytes: by the checksum that the store keeps, else by an MD5.
fn is_same(source: &dyn Source, offset: u64, part: PartInfo) -> Result<Option<StoredPart>> {
    let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
    let kept = part.checksums.iter().find(|kept| kept.algorithm() == Algorithm::Crc64Nvme);
    let mut md5 = part.etag.md5().filter(|_| kept.is_none()).map(|expected| (Md5::new(), expected));
    if kept.is_none() && md5.is_none() {
        return Ok(None);
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    for (at, length) in Plan::chunks(part.size, BUFFER_BYTES as u64) {
        let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
        source.read_at(offset + at, piece)?;
        hasher.update(piece);
        if let Some((md5, _)) = &mut md5 {
            md5.update(piece);
        }
    }
    let checksum = hasher.finish();
    let is_same = match (kept, md5) {
        (Some(kept), _) => *kept == checksum,
        (None, Some((md5, expected))) => <[u8; 16]>::from(md5.finalize()) == expected,
        (None, None) => false,
    };
    let named = CompletePart { number: part.number, etag: part.etag, checksum: Some(checksum) };
    Ok(is_same.then_some((named, part.size)))
}

impl Upload {
    /// Begins one whose whole gets a checksum of this algorithm, which is a CRC.
    pub async fn begin(
        carrier: &Arc<Carrier>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        (metadata, algorithm): (Metadata, Algorithm),
    ) -> Result<Self> {
        let checksum = Some((algorithm, ChecksumScope::FullObject));
        let slot = carrier.slot(0).await?;
        let id = store.create_upload(&slot.context, address, CreateUpload { metadata, checksum }).await?;
        let (store, address) = (store.clone(), address.clone());
        Ok(Self { carrier: carrier.clone(), store, address, id, is_over: AtomicBool::new(false) })
    }

    /// One that was begun before, and is kept.
    pub fn of(carrier: &Arc<Carrier>, store: &Arc<dyn ObjectStore>, address: &Address, id: UploadId) -> Self {
        let (store, address) = (store.clone(), address.clone());
        Self { carrier: carrier.clone(), store, address, id, is_over: AtomicBool::new(true) }
    }

    /// One that was remembered, and those of its remembered parts that the store has; `None` where it cannot go on, and
    /// is given up.
    pub async fn remembered(
        carrier: &Arc<Carrier>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        begun: &Begun,
    ) -> Result<Option<(Self, Vec<CopiedPart>)>> {
        let upload = Self::of(carrier, store, address, begun.upload.clone());
        let there = match upload.listed().await {
            Ok(Some(there)) => there,
            Ok(None) => return Ok(None),
            Err(e) if e.says_nothing() => return Err(e),
            Err(e) => {
                tracing::debug!(error = %e, "an upload cannot go on");
                upload.give_up().await;
                return Ok(None);
            }
        };
        // Of a part that was stored again the last one counts.
        let last_of = |there: &PartInfo| begun.parts.iter().rfind(|part| part.number == there.number);
        let parts = there.iter().filter_map(|there| last_of(there).filter(|part| part.is(there)));
        let parts = parts.cloned().collect();
        Ok(Some((upload, parts)))
    }

    /// It stays in the store where it is dropped: somebody remembers it.
    pub fn keep(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The parts that the store has of a source, as far as they are the same bytes; `None` where the upload is gone.
    pub async fn parts_of(
        &self,
        source: &Arc<dyn Source>,
        (size, part_bytes): (u64, u64),
    ) -> Result<Option<Vec<StoredPart>>> {
        let Some(parts) = self.listed().await? else { return Ok(None) };
        let mut same = Vec::new();
        for part in parts {
            let offset = u64::from(part.number.get() - 1) * part_bytes;
            if part.size == part_bytes.min(size.saturating_sub(offset)) {
                let source = source.clone();
                let compared = tokio::task::spawn_blocking(move || is_same(&*source, offset, part));
                let lost = |e| Error::with_source(Reason::Defect, "a task failed", e);
                same.extend(compared.await.map_err(lost)??);
            }
        }
        Ok(Some(same))
    }

    /// The parts that the store has; `None` where the upload is gone.
    pub async fn listed(&self) -> Result<Option<Vec<PartInfo>>> {
        let (mut parts, mut after) = (Vec::new(), None);
        loop {
            let carrier = &self.carrier;
            let listed = carrier.again(|| async move {
                let slot = carrier.slot(0).await?;
                self.store.list_parts(&slot.context, &self.address, &self.id, after, PAGE).await
            });
            let page = match listed.await {
                Err(e) if e.reason() == Reason::NoSuchUpload => return Ok(None),
                page => page?,
            };
            parts.extend(page.parts);
            after = page.next;
            if after.is_none() {
                return Ok(Some(parts));
            }
        }
    }

    /// Frees what was stored of one that failed; false where it is left in the store.
    pub async fn give_up(&self) -> bool {
        self.is_over.store(true, Ordering::Relaxed);
        let given_up = async {
            let slot = self.carrier.slot(0).await?;
            self.store.abort_upload(&slot.context, &self.address, &self.id).await
        };
        match given_up.await {
            Err(e) if e.reason() != Reason::NoSuchUpload => {
                tracing::warn!(error = %e, upload = %self.id, "an upload that failed is left in the store");
                false
            }
            _ => true,
        }
    }

    /// Stores a part; again where that may help, and where whoever watches its progress finds it late.
    pub async fn part(
        &self,
        source: &dyn Source,
        number: PartNumber,
        span: (u64, u64),
        progress: Option<&Progress>,
    ) -> Result<StoredPart> {
        let algorithms = vec![Algorithm::Crc64Nvme];
        let request = StageRequest { size: Some(span.1), algorithms, ..StageRequest::default() };
        let request = &request;
        let carrier = &self.carrier;
        loop {
            let poured = carrier.again(|| async move {
                let mut slot = carrier.slot(span.1).await?;
                let checksum = carrier.checksum_beforehand(source, span)?;
                if let Some(progress) = progress {
                    progress.begin(carrier.clock().now());
                }
                let request = StageRequest { checksum, ..request.clone() };
                let poured = async {
                    let staged = self.stage(&slot.context, number, request).await?;
                    pour_watched(carrier, &mut slot, staged, source, span, progress).await
                };
                let poured = poured.await;
                if let (Err(_), Some(progress)) = (&poured, progress) {
                    progress.end();
                }
                poured
            });
            if let Some(committed) = poured.await? {
                return Ok(Self::stored(number, &committed));
            }
        }
    }

    /// Begins to write a part.
    pub async fn stage(
        &self,
        context: &Context,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.store.stage_part(context, &self.address, &self.id, number, request).await
    }

    /// What a part became, for the completion.
    pub fn stored(number: PartNumber, part: &Committed) -> StoredPart {
        let checksum = part.checksums.first().copied();
        (CompletePart { number, etag: part.etag.clone(), checksum }, part.size)
    }

    /// Its name in the store.
    pub const fn id(&self) -> &UploadId {
        &self.id
    }

    /// Makes the object of its parts, which may come in any order.
    pub async fn complete(&self, mut done: Vec<StoredPart>) -> Result<Committed> {
        done.sort_by_key(|(part, _)| part.number);
        let mut checksums = done.iter().map(|(part, length)| (part.checksum, *length));
        let whole = checksums.next().and_then(|(first, _)| {
            checksums.try_fold(first?, |whole, (next, length)| whole.combine(&next?, length))
        });
        let order = CompleteUpload {
            expected_size: Some(done.iter().map(|(_, length)| length).sum()),
            parts: done.into_iter().map(|(part, _)| part).collect(),
            precondition: Precondition::None,
            expected_checksum: whole,
        };
        let slot = self.carrier.slot(0).await?;
        let completed = self.store.complete_upload(&slot.context, &self.address, &self.id, order).await?;
        self.is_over.store(true, Ordering::Relaxed);
        Ok(completed)
    }
}
