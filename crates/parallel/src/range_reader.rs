//! Random-access reads of one version of an object. Ranges cannot be verified by the full-object checksum; their
//! checksums are returned for the caller to compare.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{Address, ByteRange, Checksum, ObjectStore, Span};
use tradewind_model::plan::split_evenly;

use super::fetch::{Sink, fetch_into_memory, fetch_range};
use super::origin::{Origin, check_span};
use super::task::AbortOnDrop;
use super::transfer_context::TransferContext;
use super::versioned_object::{RangeChecksum, VersionedObject};

/// An object whose ranges are fetched.
pub struct RangeReader {
    object: Arc<VersionedObject>,
}

impl RangeReader {
    /// Opens the object by fetching its last `tail` bytes, or all of a smaller one. The response also has its size and
    /// version.
    pub async fn open(
        transfers: &Arc<TransferContext>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        tail: u64,
    ) -> Result<(Self, Bytes)> {
        let origin = Origin { store: store.clone(), address: address.clone() };
        let origin = &origin;
        let (info, bytes) = transfers
            .retry(|| async move {
                let mut permits = transfers.acquire_request_permits(tail).await?;
                permits.throttle_first_piece(tail).await;
                let get = async |select| {
                    let request = GetRequest { select, ..GetRequest::default() };
                    origin.store.get(&permits.context, &origin.address, request).await
                };
                let found = match get(Select::Range(ByteRange::Suffix(tail))).await {
                    // An empty object has no last byte.
                    Err(e) if e.reason() == Reason::InvalidRange => get(Select::Whole).await?,
                    found => found?,
                };
                let GetResponse { info, span, mut body, .. } = found;
                let length = tail.min(info.size);
                check_span(span, Span { offset: info.size - length, length })?;
                let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
                while let Some(piece) = body.next().await {
                    let piece = piece?;
                    bytes.extend_from_slice(&piece);
                    let received = piece.len() as u64;
                    drop(piece);
                    permits.throttle(received).await;
                }
                if bytes.len() as u64 != length {
                    return Err(Error::new(Reason::Io, "the store sent fewer bytes than were requested"));
                }
                Ok((info, Bytes::from(bytes)))
            })
            .await?;
        // Ranges always get a CRC-64/NVME, whichever checksum the store has of the whole object.
        let object = VersionedObject::unverified(transfers, origin.clone(), info);
        Ok((Self { object }, bytes))
    }

    /// Size of the object in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.object.info.size
    }

    /// Fetches a range into memory with its CRC-64/NVME, in one request unless it must be retried.
    pub async fn fetch(&self, span: (u64, u64)) -> Result<(Bytes, Checksum)> {
        if span.1 == 0 {
            return Ok((Bytes::new(), empty_checksum()));
        }
        let (bytes, (_, checksum, _)) = fetch_into_memory(self.object.clone(), span).await?;
        Ok((bytes, checksum))
    }

    /// Fetches a span of the object in concurrent ranges of the plan and returns its CRC-64/NVME. Offsets passed to the
    /// sink are those in the object.
    pub async fn write_to(&self, (offset, length): (u64, u64), sink: &Arc<dyn Sink>) -> Result<Checksum> {
        let plan = self.object.transfers.plan();
        // A span no larger than one range is fetched in one request.
        let single_bytes = if length <= plan.chunk_bytes { length } else { 0 };
        let rest = plan.ranges(offset + single_bytes, offset + length);
        let mut waiting = (single_bytes > 0).then_some((offset, single_bytes)).into_iter().chain(rest);
        let max_ranges = plan.range_concurrency();
        let (mut ranges, mut found) = (JoinSet::new(), Vec::new());
        loop {
            while ranges.len() < max_ranges
                && let Some(span) = waiting.next()
            {
                ranges.spawn(fetch_range(self.object.clone(), sink.clone(), span));
            }
            let Some(ended) = ranges.join_next().await else { return combine(found) };
            match ended.map_err(task_failed).flatten() {
                Ok(part) => found.push(part),
                Err(e) => {
                    // Nothing may be written after a failure is returned.
                    ranges.shutdown().await;
                    return Err(e);
                }
            }
        }
    }

    /// Fetches a range in order, with read-ahead: `take` gets each piece once it has accepted the previous one. Returns
    /// the CRC-64/NVME of the range.
    pub async fn write_in_order(
        &self,
        (offset, length): (u64, u64),
        mut take: impl AsyncFnMut(Bytes) -> Result<()>,
    ) -> Result<Checksum> {
        let plan = self.object.transfers.plan();
        let ranges = split_evenly(length, plan.stream_bytes).map(|(at, size)| {
            let span = (offset + at, size);
            let object = self.object.clone();
            async move {
                let mut fetched = AbortOnDrop(tokio::spawn(fetch_into_memory(object, span)));
                (&mut fetched.0).await.map_err(task_failed)?
            }
        });
        let mut ranges = futures::stream::iter(ranges).buffered(plan.read_ahead_ranges());
        let mut found = Vec::new();
        while let Some(range) = ranges.next().await {
            let (bytes, part) = range?;
            take(bytes).await?;
            found.push(part);
        }
        combine(found)
    }
}

/// Combines the checksums of consecutive parts.
fn combine(mut found: Vec<RangeChecksum>) -> Result<Checksum> {
    found.sort_by_key(|(offset, ..)| *offset);
    let mut found = found.into_iter().map(|(_, checksum, length)| (checksum, length));
    let Some((first, _)) = found.next() else { return Ok(empty_checksum()) };
    let combined = found.try_fold(first, |combined, (next, length)| combined.combine(&next, length));
    combined.ok_or_else(|| Error::new(Reason::Defect, "the checksums of ranges cannot be combined"))
}

fn empty_checksum() -> Checksum {
    Checksum::crc64nvme(0)
}

fn task_failed(e: tokio::task::JoinError) -> Error {
    Error::with_source(Reason::Defect, "a range's task failed", e)
}
