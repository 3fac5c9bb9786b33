//! Storing bytes of which nobody knows how many there will be: gathered part by part, each stored while the next is
//! gathered.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::task::{JoinError, JoinSet};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Committed;
use tradewind_core::{Address, Algorithm, Metadata, ObjectStore};
use tradewind_model::plan::LEAST_PART;

use super::carrier::Carrier;
use super::store::{Source, store};
use super::upload::{StoredPart, Upload};

/// Parts of one size; those behind them are twice as large, so that S3's 10,000 are enough for 400 GiB and more.
const PARTS_OF_A_SIZE: i64 = 2000;

/// Bytes in memory.
struct Memory(Bytes);

impl Source for Memory {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = at.checked_add(buffer.len()).and_then(|end| self.0.get(at..end));
        let missing = || Error::new(Reason::Defect, "more of a buffer was read than it holds");
        buffer.copy_from_slice(bytes.ok_or_else(missing)?);
        Ok(())
    }
}

/// Stores what a stream yields as one object, visible when the stream has ended and all of it is there.
pub async fn store_stream(
    carrier: &Arc<Carrier>,
    to: &Arc<dyn ObjectStore>,
    address: &Address,
    mut bytes: impl Stream<Item = Result<Bytes>> + Unpin,
    metadata: Metadata,
) -> Result<Committed> {
    let mut gathering = Gathering { left: Bytes::new(), is_over: false };
    let first = gathering.next(&mut bytes, part_bytes(carrier, 1)).await?.unwrap_or_default();
    if gathering.is_over {
        let size = first.len() as u64;
        return store(carrier, to, address, Arc::new(Memory(first.into())), size, metadata).await;
    }
    let upload = Arc::new(Upload::begin(carrier, to, address, (metadata, Algorithm::Crc64Nvme)).await?);
    let stored = store_parts(carrier, &upload, first, &mut gathering, &mut bytes).await;
    if stored.is_err() {
        upload.give_up().await;
    }
    stored
}

fn part_bytes(carrier: &Carrier, number: i64) -> usize {
    let doublings = u32::try_from(number / PARTS_OF_A_SIZE).unwrap_or(0);
    usize::try_from(carrier.plan().chunk_bytes.max(LEAST_PART) << doublings).unwrap_or(usize::MAX)
}

async fn store_parts(
    carrier: &Arc<Carrier>,
    upload: &Arc<Upload>,
    first: Vec<u8>,
    gathering: &mut Gathering,
    bytes: &mut (impl Stream<Item = Result<Bytes>> + Unpin),
) -> Result<Committed> {
    let (mut parts, mut done): (JoinSet<Result<StoredPart>>, _) = (JoinSet::new(), Vec::new());
    let finished = |part: Result<Result<StoredPart>, JoinError>| {
        part.map_err(|e| Error::with_source(Reason::Defect, "a part's task failed", e))?
    };
    let (mut number, mut next) = (1, Some(first));
    while let Some(part) = next {
        let most = usize::try_from(carrier.plan().memory_bytes).unwrap_or(usize::MAX) / part.len().max(1);
        let size = part.len() as u64;
        let (upload, source) = (upload.clone(), Memory(part.into()));
        parts.spawn(async move { upload.part(&source, PartNumber::new(number)?, (0, size)).await });
        while parts.len() >= most.max(1)
            && let Some(part) = parts.join_next().await
        {
            done.push(finished(part)?);
        }
        number += 1;
        next = gathering.next(bytes, part_bytes(carrier, number)).await?;
    }
    while let Some(part) = parts.join_next().await {
        done.push(finished(part)?);
    }
    upload.complete(done).await
}

/// What came of a stream and is not in a part.
struct Gathering {
    left: Bytes,
    is_over: bool,
}

impl Gathering {
    /// The next `size` bytes, fewer at the end, `None` behind it.
    async fn next(
        &mut self,
        bytes: &mut (impl Stream<Item = Result<Bytes>> + Unpin),
        size: usize,
    ) -> Result<Option<Vec<u8>>> {
        let mut part = Vec::with_capacity(size);
        loop {
            let fits = self.left.split_to(self.left.len().min(size - part.len()));
            part.extend_from_slice(&fits);
            if part.len() == size {
                return Ok(Some(part));
            }
            match bytes.next().await {
                Some(piece) => self.left = piece?,
                None => {
                    self.is_over = true;
                    return Ok(Some(part).filter(|part| !part.is_empty()));
                }
            }
        }
    }
}
