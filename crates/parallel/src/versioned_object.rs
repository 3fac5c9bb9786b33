//! One version of an object that is read in ranges, and its full-object checksum. Some stores omit that from responses
//! to ranges; a HEAD request then fetches it while the bytes arrive. It is awaited only without holding a connection.

use std::sync::Arc;

use tokio::sync::OnceCell;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum, Context, ObjectInfo};

use super::origin::{Origin, expected_crc};
use super::task::AbortOnDrop;
use super::transfer_context::{Slot, TransferContext};

/// Algorithms whose checksums of parts can be combined.
const COMBINABLE_ALGORITHMS: [Algorithm; 3] = [Algorithm::Crc64Nvme, Algorithm::Crc32, Algorithm::Crc32c];

/// A range's offset, checksum and length.
pub type RangeChecksum = (u64, Checksum, u64);

/// A version of an object being read. See the module documentation.
pub struct VersionedObject {
    /// The context of its transfers.
    pub transfers: Arc<TransferContext>,
    /// Where it is.
    pub origin: Origin,
    /// The version.
    pub info: ObjectInfo,
    /// The admitted request that its ranges are read for, whose memory and deadline they use.
    admitted: Option<Context>,
    /// The full-object checksum; an inner `None` if the store has none to verify by.
    checksum: OnceCell<Option<Checksum>>,
}

impl VersionedObject {
    /// The version of `info`. If `is_all`, the response to a request for the whole object, it lists all checksums.
    pub fn new(
        transfers: &Arc<TransferContext>,
        origin: Origin,
        info: ObjectInfo,
        is_all: bool,
    ) -> Arc<Self> {
        let found = expected_crc(&info);
        let checksum = OnceCell::new_with((is_all || found.is_some()).then_some(found));
        Arc::new(Self { transfers: transfers.clone(), origin, info, admitted: None, checksum })
    }

    /// Like [`new`](Self::new), but without verification.
    pub fn unverified(transfers: &Arc<TransferContext>, origin: Origin, info: ObjectInfo) -> Arc<Self> {
        let checksum = OnceCell::new_with(Some(None));
        Arc::new(Self { transfers: transfers.clone(), origin, info, admitted: None, checksum })
    }

    /// Like [`unverified`](Self::unverified), read on behalf of a request that has already been admitted.
    pub fn for_admitted_request(
        transfers: &Arc<TransferContext>,
        origin: Origin,
        info: ObjectInfo,
        request: Context,
    ) -> Arc<Self> {
        let checksum = OnceCell::new_with(Some(None));
        Arc::new(Self { transfers: transfers.clone(), origin, info, admitted: Some(request), checksum })
    }

    /// Waits for a slot for a range.
    pub async fn slot(&self, bytes: u64) -> Result<Slot<'_>> {
        match &self.admitted {
            Some(request) => self.transfers.acquire_nested_slot(request, bytes).await,
            None => self.transfers.acquire_slot(bytes).await,
        }
    }

    /// Like [`slot`](Self::slot), but returns `None` instead of waiting.
    pub fn spare_slot(&self, bytes: u64) -> Option<Slot<'_>> {
        match &self.admitted {
            Some(request) => self.transfers.try_acquire_nested_slot(request, bytes),
            None => self.transfers.try_acquire_slot(bytes),
        }
    }

    /// Fetches the checksum in the background, unless it is known. Dropping the task cancels that. If it fails,
    /// [`checksum`](Self::checksum) tries again.
    pub fn prefetch_checksum(self: &Arc<Self>) -> Option<AbortOnDrop<()>> {
        let whole = self.clone();
        let request_checksum = async move { drop(whole.checksum().await) };
        (!self.checksum.initialized()).then(|| AbortOnDrop(tokio::spawn(request_checksum)))
    }

    /// The full-object checksum, fetched if unknown. The caller must not hold a slot.
    pub async fn checksum(&self) -> Result<Option<Checksum>> {
        self.checksum.get_or_try_init(|| self.request_checksum()).await.copied()
    }

    async fn request_checksum(&self) -> Result<Option<Checksum>> {
        let head = self.transfers.retry(|| async {
            let slot = self.transfers.acquire_slot(0).await?;
            self.origin.head(&slot.context, &self.info).await
        });
        let found = head.await?;
        if (&found.etag, found.size) != (&self.info.etag, self.info.size) {
            // The store ignores conditions on HEAD.
            return Err(self.origin.changed_error());
        }
        Ok(expected_crc(&found))
    }

    /// The algorithm of its ranges' checksums. The caller must not hold a slot.
    pub async fn algorithm(&self) -> Result<Algorithm> {
        Ok(algorithm(self.checksum().await?))
    }

    /// The hashers for a range.
    pub fn hashers(&self) -> RangeHashers {
        match self.checksum.get() {
            Some(known) => RangeHashers(vec![Hasher::new(algorithm(*known))]),
            None => RangeHashers(COMBINABLE_ALGORITHMS.map(Hasher::new).into()),
        }
    }

    /// Combines the checksums of all ranges and compares them with the full-object checksum, if there is one.
    pub async fn verify(&self, mut found: Vec<RangeChecksum>) -> Result<()> {
        found.sort_by_key(|(offset, ..)| *offset);
        let mut found = found.into_iter().map(|(_, checksum, length)| (checksum, length));
        let Some((first, _)) = found.next() else { return Ok(()) };
        let whole = found.try_fold(first, |whole, (next, length)| whole.combine(&next, length));
        match (whole, self.checksum().await?) {
            (Some(whole), Some(expected)) if whole != expected => Err(Error::new(
                Reason::CorruptData,
                format!("checksum mismatch: received {whole:?}, the store has {expected:?}"),
            )),
            _ => Ok(()),
        }
    }
}

fn algorithm(full_object: Option<Checksum>) -> Algorithm {
    full_object.map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm())
}

/// The running checksum of a range: of one algorithm, or of all candidates until it is known which is needed.
pub struct RangeHashers(Vec<Hasher>);

impl RangeHashers {
    /// Adds the next bytes of the range.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|hasher| hasher.update(bytes));
    }

    /// The checksum of the algorithm that is needed. The caller must not hold a slot.
    pub async fn finish(self, whole: &VersionedObject) -> Result<Checksum> {
        let algorithm = whole.algorithm().await?;
        let hasher = self.0.into_iter().find(|hasher| hasher.algorithm() == algorithm);
        hasher
            .map(Hasher::finish)
            .ok_or_else(|| Error::new(Reason::Defect, "the checksum of a range was not computed"))
    }
}
