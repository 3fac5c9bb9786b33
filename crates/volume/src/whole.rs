//! One version of an object that is read in ranges, and the checksum of its whole. Of a range some stores do not say that one:
//! they are asked for it while the bytes come, and nobody waits for their answer who holds a connection.

use std::sync::Arc;

use tokio::sync::OnceCell;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum, Context, ObjectInfo};

use super::carrier::{Carrier, Slot};
use super::origin::{Origin, expected};
use super::task::AbortOnDrop;

/// What the checksum of a whole may be that is put together from those of its parts.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Crc64Nvme, Algorithm::Crc32, Algorithm::Crc32c];

/// A range's offset, checksum and length.
pub(super) type Part = (u64, Checksum, u64);

/// See the module's head.
pub(super) struct Whole {
    pub carrier: Arc<Carrier>,
    pub origin: Origin,
    pub info: ObjectInfo,
    /// The request that its ranges are read for, where that has memory and an end of its own.
    within: Option<Context>,
    /// The checksum; `None` within where the store has none to compare with.
    checksum: OnceCell<Option<Checksum>>,
}

impl Whole {
    /// The version that `info` is of. Whoever asked for all of it was told all.
    pub fn new(carrier: &Arc<Carrier>, origin: Origin, info: ObjectInfo, is_all: bool) -> Arc<Self> {
        let found = expected(&info);
        let checksum = OnceCell::new_with((is_all || found.is_some()).then_some(found));
        Arc::new(Self { carrier: carrier.clone(), origin, info, within: None, checksum })
    }

    /// One that is compared with nothing.
    pub fn unverified(carrier: &Arc<Carrier>, origin: Origin, info: ObjectInfo) -> Arc<Self> {
        let checksum = OnceCell::new_with(Some(None));
        Arc::new(Self { carrier: carrier.clone(), origin, info, within: None, checksum })
    }

    /// The same, read for a request that was admitted elsewhere.
    pub fn within(carrier: &Arc<Carrier>, origin: Origin, info: ObjectInfo, request: Context) -> Arc<Self> {
        let checksum = OnceCell::new_with(Some(None));
        Arc::new(Self { carrier: carrier.clone(), origin, info, within: Some(request), checksum })
    }

    /// A slot for a range of it.
    pub async fn slot(&self, bytes: u64) -> Result<Slot<'_>> {
        match &self.within {
            Some(request) => self.carrier.slot_within(request, bytes).await,
            None => self.carrier.slot(bytes).await,
        }
    }

    /// The same where nobody has to wait for it.
    pub fn spare_slot(&self, bytes: u64) -> Option<Slot<'_>> {
        match &self.within {
            Some(request) => self.carrier.spare_slot_within(request, bytes),
            None => self.carrier.spare_slot(bytes),
        }
    }

    /// Asks for its checksum, unless it is known, until what is answered is dropped. Whoever needs it asks again where that failed.
    pub fn ask_ahead(self: &Arc<Self>) -> Option<AbortOnDrop<()>> {
        let whole = self.clone();
        let ask = async move { drop(whole.checksum().await) };
        (!self.checksum.initialized()).then(|| AbortOnDrop(tokio::spawn(ask)))
    }

    /// Its checksum, asked for where nobody has. Whoever waits for it must hold no slot.
    pub async fn checksum(&self) -> Result<Option<Checksum>> {
        self.checksum.get_or_try_init(|| self.ask()).await.copied()
    }

    async fn ask(&self) -> Result<Option<Checksum>> {
        let asked = self.carrier.again(|| async {
            let slot = self.carrier.slot(0).await?;
            self.origin.head(&slot.context, &self.info).await
        });
        let found = asked.await?;
        if (&found.etag, found.size) != (&self.info.etag, self.info.size) {
            // A store that does not heed conditions on HEAD.
            return Err(self.origin.has_changed());
        }
        Ok(expected(&found))
    }

    /// The algorithm of its ranges' checksums.
    pub async fn algorithm(&self) -> Result<Algorithm> {
        Ok(algorithm(self.checksum().await?))
    }

    /// For a range of it.
    pub fn hashers(&self) -> Hashers {
        match self.checksum.get() {
            Some(known) => Hashers(vec![Hasher::new(algorithm(*known))]),
            None => Hashers(ALGORITHMS.map(Hasher::new).into()),
        }
    }

    /// Compares the ranges' checksums, put together, with that of the whole.
    pub async fn verify(&self, mut found: Vec<Part>) -> Result<()> {
        found.sort_by_key(|(offset, ..)| *offset);
        let mut found = found.into_iter().map(|(_, checksum, length)| (checksum, length));
        let Some((first, _)) = found.next() else { return Ok(()) };
        let whole = found.try_fold(first, |whole, (next, length)| whole.combine(&next, length));
        match (whole, self.checksum().await?) {
            (Some(whole), Some(expected)) if whole != expected => Err(Error::new(
                Reason::CorruptData,
                format!("what arrived has the checksum {whole:?}, the store says {expected:?}"),
            )),
            _ => Ok(()),
        }
    }
}

fn algorithm(of_whole: Option<Checksum>) -> Algorithm {
    of_whole.map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm())
}

/// The checksum of a range, or all that it may have to be as long as that is not known.
pub(super) struct Hashers(Vec<Hasher>);

impl Hashers {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|hasher| hasher.update(bytes));
    }

    /// The one that is needed. Whoever waits for it must hold no slot.
    pub async fn finish(self, whole: &Whole) -> Result<Checksum> {
        let algorithm = whole.algorithm().await?;
        let hasher = self.0.into_iter().find(|hasher| hasher.algorithm() == algorithm);
        hasher
            .map(Hasher::finish)
            .ok_or_else(|| Error::new(Reason::Defect, "nobody computed the checksum of a range"))
    }
}
