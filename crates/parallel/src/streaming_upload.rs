//! Sequential upload of an object while it is being produced. Each part is sent while the next is filled. A part stays
//! in memory until the store has accepted it, so a failed part can be retried on its own.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, PartNumber};
use tradewind_core::object::Committed;
use tradewind_core::store::Feature;
use tradewind_core::{Address, Algorithm, Metadata, ObjectStore};

use super::buffer_pool::{BUFFER_BYTES, BufferPool, PooledBuffer};
use super::multipart_upload::MultipartUpload;
use super::part_sizes::{PartPosition, PartSizes};
use super::transfer_context::TransferContext;
use super::upload_checkpoint::{CheckpointedPart, StoredPart, UploadState};
use super::upload_object::store_object;
use super::upload_source::UploadSource;

/// A part in memory: pooled buffers, all full except the last.
#[derive(Default)]
struct PartBuffer {
    buffers: Vec<PooledBuffer>,
    length: usize,
}

impl PartBuffer {
    /// Appends as many bytes as fit into the last buffer, or a new one if that is full. Returns their number.
    fn add(&mut self, bytes: &[u8], free: &Arc<BufferPool>) -> usize {
        let at = self.length % BUFFER_BYTES;
        if at == 0 {
            self.buffers.push(free.take(BUFFER_BYTES));
        }
        let fits = bytes.len().min(BUFFER_BYTES - at);
        if let Some(last) = self.buffers.last_mut() {
            last.bytes_mut()[at..at + fits].copy_from_slice(&bytes[..fits]);
        }
        self.length += fits;
        fits
    }

    fn truncate(&mut self, length: usize) {
        self.length = length;
        self.buffers.truncate(length.div_ceil(BUFFER_BYTES));
    }

    /// The bytes before `end`, piece by piece.
    fn pieces(&self, end: usize) -> impl Iterator<Item = &[u8]> {
        let starts = (0..end).step_by(BUFFER_BYTES);
        self.buffers
            .iter()
            .zip(starts)
            .map(move |(buffer, at)| &buffer.as_ref()[..BUFFER_BYTES.min(end - at)])
    }
}

impl UploadSource for PartBuffer {
    fn read_at(&self, offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        let missing = || Error::new(Reason::Defect, "read beyond the end of a part");
        let mut at = usize::try_from(offset).unwrap_or(usize::MAX);
        if at.checked_add(buffer.len()).is_none_or(|end| end > self.length) {
            return Err(missing());
        }
        while !buffer.is_empty() {
            let piece = self.buffers.get(at / BUFFER_BYTES).ok_or_else(missing)?;
            let piece = &piece.as_ref()[at % BUFFER_BYTES..];
            let (now, later) = buffer.split_at_mut(piece.len().min(buffer.len()));
            now.copy_from_slice(&piece[..now.len()]);
            at += now.len();
            buffer = later;
        }
        Ok(())
    }
}

/// An object being produced. It becomes visible when it is finished. Dropping it earlier aborts the upload, unless it
/// has a checkpoint.
pub struct StreamingUpload {
    transfers: Arc<TransferContext>,
    store: Arc<dyn ObjectStore>,
    address: Address,
    metadata: Metadata,
    /// Created with the first part; a smaller object is stored in one request.
    upload: Option<Arc<MultipartUpload>>,
    current: PartBuffer,
    written: u64,
    /// Number of the part being filled.
    number: u16,
    sizes: PartSizes,
    mark: Option<Mark>,
    /// Numbers of parts that were rolled back.
    rolled_back: Vec<Range<u16>>,
    in_flight: JoinSet<(u16, Result<StoredPart>)>,
    done: Vec<StoredPart>,
    checkpoint: Option<Arc<dyn super::UploadCheckpoint>>,
    /// The upload has a checkpoint: after a resumable failure it stays in the store.
    is_checkpointed: bool,
    /// Parts of an earlier attempt that the store still has, by number.
    stored_earlier: HashMap<u16, CheckpointedPart>,
}

/// A position in the object to roll back to.
struct Mark {
    number: u16,
    written: u64,
    /// Bytes of its part before the mark.
    length: usize,
    /// The part, if it has been sent since.
    sent: Option<Arc<PartBuffer>>,
}

impl StreamingUpload {
    /// Creates an empty object. Sends nothing yet.
    #[must_use]
    pub fn new(
        transfers: &Arc<TransferContext>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        metadata: Metadata,
    ) -> Self {
        let are_equal = !store.capabilities().supports(Feature::UnequalParts);
        Self {
            sizes: PartSizes::new(transfers.plan().chunk_bytes, are_equal),
            transfers: transfers.clone(),
            store: store.clone(),
            address: address.clone(),
            metadata,
            upload: None,
            current: PartBuffer::default(),
            written: 0,
            number: 1,
            mark: None,
            rolled_back: Vec::new(),
            in_flight: JoinSet::new(),
            done: Vec::new(),
            checkpoint: None,
            is_checkpointed: false,
            stored_earlier: HashMap::new(),
        }
    }

    /// Adds a checkpoint. An interrupted upload then resumes: stored parts whose bytes are the same are not sent again.
    #[must_use]
    pub fn with_checkpoint(mut self, checkpoint: Option<Arc<dyn super::UploadCheckpoint>>) -> Self {
        self.checkpoint = checkpoint;
        self
    }

    /// Chooses the size of parts for an object of about `bytes`.
    #[must_use]
    pub fn with_expected_bytes(mut self, bytes: u64) -> Self {
        self.sizes = self.sizes.with_expected_bytes(bytes);
        self
    }

    /// The size of the first part, in bytes. Two parts are in memory: one is filled while another is sent.
    #[must_use]
    pub fn first_part_bytes(&self) -> u64 {
        self.sizes.part_bytes(PartPosition { number: 1, offset: 0 })
    }

    /// Bytes written so far.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Appends bytes. Waits while the parts in flight fill the plan's memory.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let size = self.part_bytes();
            if self.current.length >= size {
                // Send a full part only when more follows: the last part must not be empty, and an object of at most
                // one part is a single request.
                self.send_part().await?;
            }
            let (fits, _) = bytes.split_at(bytes.len().min(size - self.current.length));
            let added = self.current.add(fits, self.transfers.buffers());
            self.written += added as u64;
            bytes = &bytes[added..];
        }
        Ok(())
    }

    /// Marks the current position. A mark holds up to one more part in memory.
    pub fn mark(&mut self) {
        let (number, written, length) = (self.number, self.written, self.current.length);
        self.mark = Some(Mark { number, written, length, sent: None });
    }

    /// Removes the mark and keeps all bytes written.
    pub fn clear_mark(&mut self) {
        self.mark = None;
    }

    /// Discards what was written since the mark. Parts already sent are omitted from the completion, and their numbers
    /// are not reused, because one of them may still be in flight.
    pub fn roll_back(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        self.written = mark.written;
        let Some(sent) = mark.sent else {
            self.current.truncate(mark.length);
            return;
        };
        self.rolled_back.push(mark.number..self.number);
        self.done.retain(|(part, _)| part.number.get() < mark.number);
        self.current.truncate(0);
        for mut piece in sent.pieces(mark.length) {
            while !piece.is_empty() {
                piece = &piece[self.current.add(piece, self.transfers.buffers())..];
            }
        }
    }

    /// Sends the rest and completes the object.
    pub async fn finish(mut self) -> Result<Committed> {
        let has_parts = (1..self.number).any(|number| !self.is_rolled_back(number));
        let upload = self.upload.clone().filter(|_| has_parts);
        let Some(upload) = upload else {
            let (size, source) = (self.written, std::mem::take(&mut self.current));
            let (transfers, to, address) = (self.transfers.clone(), self.store.clone(), self.address.clone());
            let metadata = std::mem::take(&mut self.metadata);
            // All parts of the upload, if there is one, were rolled back.
            self.discard().await;
            return store_object(&transfers, &to, &address, Arc::new(source), size, metadata).await;
        };
        let stored = async {
            if self.current.length > 0 {
                self.send_part().await?;
            }
            self.wait_for_parts(1).await?;
            upload.complete(std::mem::take(&mut self.done), tradewind_core::Precondition::None).await
        };
        let stored = stored.await;
        match &stored {
            Ok(_) => {
                if let Some(checkpoint) = &self.checkpoint {
                    checkpoint.clear();
                }
            }
            Err(e) => self.fail(e).await,
        }
        stored
    }

    /// Ends the upload after a failure. An upload with a checkpoint stays in the store if a later attempt may succeed;
    /// any other is aborted.
    pub async fn fail(mut self, error: &Error) {
        self.in_flight.shutdown().await;
        let stays = self.is_checkpointed || self.upload.is_none();
        if !(stays && error.is_resumable()) {
            self.discard().await;
        }
    }

    /// Aborts the upload of this or an earlier attempt, and removes the checkpoint.
    pub async fn discard(mut self) {
        self.in_flight.shutdown().await;
        let earlier = self
            .checkpoint
            .as_ref()
            .filter(|_| self.upload.is_none())
            .and_then(|checkpoint| checkpoint.load());
        let earlier_upload = |state: UploadState| {
            MultipartUpload::from_id(&self.transfers, &self.store, &self.address, state.upload)
        };
        let is_freed = match (&self.upload, earlier.map(earlier_upload)) {
            (Some(upload), _) => upload.abort().await,
            (None, Some(upload)) => upload.abort().await,
            (None, None) => true,
        };
        // If the abort failed, the checkpoint stays so that a later attempt can abort it.
        if let Some(checkpoint) = self.checkpoint.as_ref().filter(|_| is_freed) {
            checkpoint.clear();
        }
    }

    /// Resumes the upload of the checkpoint, or creates one.
    async fn open_upload(&mut self) -> Result<MultipartUpload> {
        let to = (&self.transfers, &self.store, &self.address);
        let earlier = self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.load());
        if let Some(state) = earlier
            && let Some((upload, parts)) = MultipartUpload::resume(to.0, to.1, to.2, &state).await?
        {
            self.stored_earlier = parts.into_iter().map(|part| (part.number.get(), part)).collect();
            self.is_checkpointed = true;
            return Ok(upload);
        }
        let options = (self.metadata.clone(), Algorithm::Crc64Nvme);
        let upload = MultipartUpload::create(to.0, to.1, to.2, options).await?;
        if let Some(checkpoint) = &self.checkpoint {
            let part_bytes = self.sizes.first_bytes();
            let state =
                UploadState { version: None, upload: upload.id().clone(), part_bytes, parts: Vec::new() };
            self.is_checkpointed = checkpoint.start(&state);
        }
        if self.is_checkpointed {
            upload.detach();
        }
        Ok(upload)
    }

    fn part_bytes(&self) -> usize {
        let offset = self.written - self.current.length as u64;
        let part = PartPosition { number: self.number, offset };
        usize::try_from(self.sizes.part_bytes(part)).unwrap_or(usize::MAX)
    }

    async fn send_part(&mut self) -> Result<()> {
        if self.sizes.is_beyond_end(self.number) {
            return Err(self.too_long_error());
        }
        let number = PartNumber::new(i64::from(self.number))?;
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let upload = self.open_upload().await?;
                self.upload.insert(Arc::new(upload)).clone()
            }
        };
        let source = Arc::new(std::mem::take(&mut self.current));
        let size = source.length as u64;
        if let Some(mark) = self.mark.as_mut().filter(|mark| mark.number == self.number) {
            mark.sent = Some(source.clone());
        }
        self.number += 1;
        if let Some(part) =
            self.stored_earlier.remove(&number.get()).filter(|part| part.matches_source(&*source, size))
        {
            self.done.push(part.to_stored());
            return Ok(());
        }
        let checkpoint = self.checkpoint.clone().filter(|_| self.is_checkpointed);
        self.in_flight.spawn(async move {
            let part = upload.store_part(&*source, number, (0, size), None).await;
            if let (Some(checkpoint), Ok(part)) = (checkpoint, &part) {
                checkpoint_part(&*checkpoint, part);
            }
            (number.get(), part)
        });
        let fit = self.transfers.plan().max_buffered_bytes / size.max(1);
        self.wait_for_parts(usize::try_from(fit).unwrap_or(usize::MAX).max(1)).await
    }

    /// Waits until fewer than `fewer_than` parts are in flight.
    async fn wait_for_parts(&mut self, fewer_than: usize) -> Result<()> {
        while self.in_flight.len() >= fewer_than
            && let Some(ended) = self.in_flight.join_next().await
        {
            let task_failed = |e: JoinError| Error::with_source(Reason::Defect, "a part's task failed", e);
            let (number, part) = ended.map_err(task_failed)?;
            // The result of a rolled-back part does not matter.
            if !self.is_rolled_back(number) {
                self.done.push(part?);
            }
        }
        Ok(())
    }

    fn too_long_error(&self) -> Error {
        let why = format!(
            "{:?} has more than {} bytes, which is the store's limit of {} parts: set a larger --chunk-size, or \
             --expected-size",
            self.address.key.as_str(),
            self.written - self.current.length as u64,
            self.number - 1
        );
        Error::new(Reason::EntityTooLarge, why)
    }

    fn is_rolled_back(&self, number: u16) -> bool {
        self.rolled_back.iter().any(|numbers| numbers.contains(&number))
    }
}

fn checkpoint_part(checkpoint: &dyn super::UploadCheckpoint, (part, length): &StoredPart) {
    let &CompletePart { number, ref etag, checksum } = part;
    if let Some(checksum) = checksum {
        checkpoint.part_stored(&CheckpointedPart { number, length: *length, etag: etag.clone(), checksum });
    }
}

#[cfg(test)]
mod tests;
