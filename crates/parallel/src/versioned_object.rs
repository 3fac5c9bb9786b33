//! One version of an object that is read in ranges, and its full-object checksum. Some stores omit that from responses
//! to ranges; a HEAD request then fetches it while the bytes arrive. It is awaited only without holding a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OnceCell;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum, Context, ObjectInfo};

use super::origin::{Origin, expected_crc};
use super::task::AbortOnDrop;
use super::transfer_context::{RequestPermits, TransferContext};

/// Algorithms whose checksums of parts can be combined.
const COMBINABLE_ALGORITHMS: [Algorithm; 3] = [Algorithm::Crc64Nvme, Algorithm::Crc32, Algorithm::Crc32c];

/// A range's offset, checksum and length.
pub type RangeChecksum = (u64, Checksum, u64);

/// A version of an object being read. See the module documentation.
pub struct VersionedObject {
    /// The context of its transfers.
    pub transfers: Arc<TransferContext>,
    /// The store and the address of the object.
    pub origin: Origin,
    /// The version.
    pub info: ObjectInfo,
    /// The admitted request that the ranges are read for, whose context they use.
    admitted: Option<Context>,
    /// The full-object checksum; an inner `None` if the store has none to verify by.
    checksum: OnceCell<Option<Checksum>>,
    /// Bytes that have arrived, including those that are fetched again.
    received_bytes: AtomicU64,
}

impl VersionedObject {
    /// The version of `info`. `requested_whole` is true if `info` is from a response to a request for the whole object,
    /// which has every checksum that the store has. Otherwise a missing full-object checksum is requested by HEAD.
    pub fn new(
        transfers: &Arc<TransferContext>,
        origin: Origin,
        info: ObjectInfo,
        requested_whole: bool,
    ) -> Arc<Self> {
        let found = expected_crc(&info);
        let checksum = OnceCell::new_with((requested_whole || found.is_some()).then_some(found));
        Arc::new(Self {
            transfers: transfers.clone(),
            origin,
            info,
            admitted: None,
            checksum,
            received_bytes: AtomicU64::new(0),
        })
    }

    /// Like [`new`](Self::new), but without verification.
    pub fn unverified(transfers: &Arc<TransferContext>, origin: Origin, info: ObjectInfo) -> Arc<Self> {
        let checksum = OnceCell::new_with(Some(None));
        Arc::new(Self {
            transfers: transfers.clone(),
            origin,
            info,
            admitted: None,
            checksum,
            received_bytes: AtomicU64::new(0),
        })
    }

    /// Like [`unverified`](Self::unverified), read on behalf of a request that has already been admitted.
    pub fn for_admitted_request(
        transfers: &Arc<TransferContext>,
        origin: Origin,
        info: ObjectInfo,
        request: Context,
    ) -> Arc<Self> {
        let checksum = OnceCell::new_with(Some(None));
        Arc::new(Self {
            transfers: transfers.clone(),
            origin,
            info,
            admitted: Some(request),
            checksum,
            received_bytes: AtomicU64::new(0),
        })
    }

    /// Counts bytes of a range that have arrived.
    pub fn record_received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of all ranges that have arrived, including those that are fetched again.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Waits for the permits and memory of a request for a range of `bytes` bytes.
    pub async fn request_permits(&self, bytes: u64) -> Result<RequestPermits<'_>> {
        match &self.admitted {
            Some(request) => self.transfers.acquire_nested_permits(request, bytes).await,
            None => self.transfers.acquire_request_permits(bytes).await,
        }
    }

    /// Like [`request_permits`](Self::request_permits), but returns `None` instead of waiting.
    pub fn spare_request_permits(&self, bytes: u64) -> Option<RequestPermits<'_>> {
        match &self.admitted {
            Some(request) => self.transfers.try_acquire_nested_permits(request, bytes),
            None => self.transfers.try_acquire_request_permits(bytes),
        }
    }

    /// Fetches the checksum in the background, unless it is known. Dropping the task cancels that. If it fails,
    /// [`checksum`](Self::checksum) tries again.
    pub fn prefetch_checksum(self: &Arc<Self>) -> Option<AbortOnDrop<()>> {
        let object = self.clone();
        let request_checksum = async move { drop(object.checksum().await) };
        (!self.checksum.initialized()).then(|| AbortOnDrop(tokio::spawn(request_checksum)))
    }

    /// The full-object checksum, fetched if unknown. The caller must not hold the permits of a request.
    pub async fn checksum(&self) -> Result<Option<Checksum>> {
        self.checksum.get_or_try_init(|| self.request_checksum()).await.copied()
    }

    async fn request_checksum(&self) -> Result<Option<Checksum>> {
        let head = self.transfers.retry(|| async {
            let permits = self.transfers.acquire_request_permits(0).await?;
            self.origin.head(&permits.context, &self.info).await
        });
        let found = head.await?;
        if (&found.etag, found.size) != (&self.info.etag, self.info.size) {
            // The store ignores conditions on HEAD.
            return Err(self.origin.changed_error());
        }
        Ok(expected_crc(&found))
    }

    /// The algorithm of the ranges' checksums. The caller must not hold the permits of a request.
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
        let combined = found.try_fold(first, |combined, (next, length)| combined.combine(&next, length));
        match (combined, self.checksum().await?) {
            (Some(combined), Some(expected)) if combined != expected => Err(Error::new(
                Reason::CorruptData,
                format!("checksum mismatch: received {combined:?}, the store has {expected:?}"),
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

    /// The checksum of the algorithm that is needed. The caller must not hold the permits of a request.
    pub async fn finish(self, object: &VersionedObject) -> Result<Checksum> {
        let algorithm = object.algorithm().await?;
        let hasher = self.0.into_iter().find(|hasher| hasher.algorithm() == algorithm);
        hasher
            .map(Hasher::finish)
            .ok_or_else(|| Error::new(Reason::Defect, "the checksum of a range was not computed"))
    }
}
