//! Storing an object: in one request, or in parts that take turns with everything else.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::StageRequest;
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, Context, Metadata, ObjectStore, Precondition, Staged,
};
use tradewind_model::plan::Plan;

use super::carrier::Carrier;

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Bytes that can be read again, at any offset.
pub trait Source: Send + Sync {
    /// Reads exactly `length` bytes at `offset`. Short of blocking calls of the file system it does not wait.
    fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>>;

    /// `bytes` more have left for the store. Those of an attempt that failed are told as a negative number.
    fn sent(&self, bytes: i64) {
        let _ = bytes;
    }

    /// An error where the bytes are not those that they were when reading began.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Stores an object of `size` bytes.
pub async fn store(
    carrier: &Arc<Carrier>,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: Arc<dyn Source>,
    size: u64,
    metadata: Metadata,
) -> Result<Committed> {
    let is_multipart = store.capabilities().multipart;
    match carrier.plan().part_bytes(size).filter(|_| is_multipart) {
        None => store_whole(carrier, store, address, &*source, size, metadata).await,
        Some(part_bytes) => {
            store_in_parts(carrier, store, address, source, (size, part_bytes), metadata).await
        }
    }
}

async fn store_whole(
    carrier: &Carrier,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: &dyn Source,
    size: u64,
    metadata: Metadata,
) -> Result<Committed> {
    let request = StageRequest { metadata, size: Some(size), ..StageRequest::default() };
    let request = &request;
    carrier
        .again(|| async move {
            let slot = carrier.slot(size).await?;
            let staged = store.stage(&slot.context, address, request.clone()).await?;
            pour(&slot.context, staged, source, (0, size)).await
        })
        .await
}

async fn pour(
    context: &Context,
    mut staged: Box<dyn Staged>,
    source: &dyn Source,
    (offset, length): (u64, u64),
) -> Result<Committed> {
    let mut sent = Sent { source, bytes: 0 };
    for (at, size) in Plan::chunks(length, PIECE_BYTES) {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let reservation = context.window.reserve_own(size).await;
        let piece = source.read_at(offset + at, size)?;
        staged.write(reservation.attach(piece)).await?;
        sent.more(size);
    }
    source.check()?;
    let (committed, _) = staged.commit(Expected::default()).await?;
    sent.keep();
    Ok(committed)
}

/// What was told of as sent; dropped before the end, it is taken back.
struct Sent<'a> {
    source: &'a dyn Source,
    bytes: i64,
}

impl Sent<'_> {
    fn more(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes += bytes;
        self.source.sent(bytes);
    }

    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            self.source.sent(-self.bytes);
        }
    }
}

async fn store_in_parts(
    carrier: &Arc<Carrier>,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: Arc<dyn Source>,
    (size, part_bytes): (u64, u64),
    metadata: Metadata,
) -> Result<Committed> {
    let create = CreateUpload { metadata, checksum: Some((Algorithm::Crc64Nvme, ChecksumScope::FullObject)) };
    let upload = {
        let slot = carrier.slot(0).await?;
        store.create_upload(&slot.context, address, create).await?
    };
    let upload = Arc::new(Upload { store: store.clone(), address: address.clone(), id: upload });
    let stored = store_parts(carrier, &upload, source, (size, part_bytes)).await;
    if stored.is_err() {
        upload.give_up(carrier).await;
    }
    stored
}

/// An upload that is under way.
struct Upload {
    store: Arc<dyn ObjectStore>,
    address: Address,
    id: UploadId,
}

impl Upload {
    async fn give_up(&self, carrier: &Carrier) {
        let given_up = async {
            let slot = carrier.slot(0).await?;
            self.store.abort_upload(&slot.context, &self.address, &self.id).await
        };
        if let Err(e) = given_up.await {
            tracing::warn!(error = %e, upload = %self.id, "an upload that failed is left in the store");
        }
    }

    async fn part(
        &self,
        carrier: &Carrier,
        source: &dyn Source,
        number: PartNumber,
        span: (u64, u64),
    ) -> Result<(CompletePart, Checksum, u64)> {
        let algorithms = vec![Algorithm::Crc64Nvme];
        let request = StageRequest { size: Some(span.1), algorithms, ..StageRequest::default() };
        let request = &request;
        let committed = carrier
            .again(|| async move {
                let slot = carrier.slot(span.1).await?;
                let context = &slot.context;
                let staged =
                    self.store.stage_part(context, &self.address, &self.id, number, request.clone()).await?;
                pour(context, staged, source, span).await
            })
            .await?;
        let checksum = committed.checksums.first().copied();
        let checksum = checksum.ok_or_else(|| Error::new(Reason::Defect, "a part has no checksum"))?;
        Ok((CompletePart { number, etag: committed.etag, checksum: Some(checksum) }, checksum, span.1))
    }
}

async fn store_parts(
    carrier: &Arc<Carrier>,
    upload: &Arc<Upload>,
    source: Arc<dyn Source>,
    (size, part_bytes): (u64, u64),
) -> Result<Committed> {
    // Dropped with this future, so that no part outlives a failure.
    let mut parts = tokio::task::JoinSet::new();
    let mut waiting = Plan::chunks(size, part_bytes).zip(1..);
    let mut done = Vec::new();
    loop {
        while parts.len() < carrier.plan().requests
            && let Some((span, number)) = waiting.next()
        {
            let (carrier, upload, source) = (carrier.clone(), upload.clone(), source.clone());
            parts.spawn(async move {
                let number = PartNumber::new(number)?;
                upload.part(&carrier, &*source, number, span).await
            });
        }
        match parts.join_next().await {
            Some(part) => {
                done.push(part.map_err(|e| Error::with_source(Reason::Defect, "a part's task failed", e))??)
            }
            None => break,
        }
    }
    done.sort_by_key(|(part, ..)| part.number);
    let mut checksums = done.iter().map(|(_, checksum, length)| (*checksum, *length));
    let whole = checksums.next().and_then(|(first, _)| {
        checksums.try_fold(first, |whole, (next, length)| whole.combine(&next, length))
    });
    source.check()?;
    let order = CompleteUpload {
        parts: done.into_iter().map(|(part, ..)| part).collect(),
        precondition: Precondition::None,
        expected_size: Some(size),
        expected_checksum: whole,
    };
    let slot = carrier.slot(0).await?;
    upload.store.complete_upload(&slot.context, &upload.address, &upload.id, order).await
}
