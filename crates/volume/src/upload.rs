//! A multipart upload whose parts take turns with other requests.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, Metadata, ObjectStore, Precondition};

use super::carrier::Carrier;
use super::store::{Source, pour};

/// An upload that is under way.
pub(crate) struct Upload {
    store: Arc<dyn ObjectStore>,
    address: Address,
    id: UploadId,
}

/// A part that is stored: what completes the upload, its checksum and its length.
pub(crate) type StoredPart = (CompletePart, Checksum, u64);

impl Upload {
    /// Begins one.
    pub async fn begin(
        carrier: &Carrier,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        metadata: Metadata,
    ) -> Result<Self> {
        let checksum = Some((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
        let slot = carrier.slot(0).await?;
        let id = store.create_upload(&slot.context, address, CreateUpload { metadata, checksum }).await?;
        Ok(Self { store: store.clone(), address: address.clone(), id })
    }

    /// Frees what was stored of one that failed.
    pub async fn give_up(&self, carrier: &Carrier) {
        let given_up = async {
            let slot = carrier.slot(0).await?;
            self.store.abort_upload(&slot.context, &self.address, &self.id).await
        };
        if let Err(e) = given_up.await {
            tracing::warn!(error = %e, upload = %self.id, "an upload that failed is left in the store");
        }
    }

    /// Stores a part; again where that may help.
    pub async fn part(
        &self,
        carrier: &Carrier,
        source: &dyn Source,
        number: PartNumber,
        span: (u64, u64),
    ) -> Result<StoredPart> {
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
        Self::stored(number, &committed)
    }

    /// What a part became, for the completion.
    pub fn stored(number: PartNumber, part: &Committed) -> Result<StoredPart> {
        let checksum = part.checksums.first().copied();
        let checksum = checksum.ok_or_else(|| Error::new(Reason::Defect, "a part has no checksum"))?;
        Ok((CompletePart { number, etag: part.etag.clone(), checksum: Some(checksum) }, checksum, part.size))
    }

    /// Its name in the store.
    pub const fn id(&self) -> &UploadId {
        &self.id
    }

    /// Makes the object of its parts, which may come in any order.
    pub async fn complete(&self, carrier: &Carrier, mut done: Vec<StoredPart>) -> Result<Committed> {
        done.sort_by_key(|(part, ..)| part.number);
        let mut checksums = done.iter().map(|(_, checksum, length)| (*checksum, *length));
        let whole = checksums.next().and_then(|(first, _)| {
            checksums.try_fold(first, |whole, (next, length)| whole.combine(&next, length))
        });
        let order = CompleteUpload {
            expected_size: Some(done.iter().map(|(.., length)| length).sum()),
            parts: done.into_iter().map(|(part, ..)| part).collect(),
            precondition: Precondition::None,
            expected_checksum: whole,
        };
        let slot = carrier.slot(0).await?;
        self.store.complete_upload(&slot.context, &self.address, &self.id, order).await
    }
}
