//! Ranges of one version of an object. They are not compared with the checksum of the whole, which says nothing about
//! them: whoever asks for ranges knows checksums of their own.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{Found, GetRequest, Select};
use tradewind_core::{Address, ByteRange, Checksum, ObjectStore, ReadConditions, Span};
use tradewind_model::plan::Plan;

use super::carrier::Carrier;
use super::fetch::{Sink, buffered, chunk};
use super::origin::{Origin, check_place};
use super::task::AbortOnDrop;
use super::whole::{Part, Whole};

/// An object that ranges are fetched of.
pub struct Ranges {
    whole: Arc<Whole>,
}

impl Ranges {
    /// Finds the object, and fetches its last bytes: `tail` of them, or all where it has no more. Its size and version
    /// come with the answer.
    pub async fn open(
        carrier: &Arc<Carrier>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        tail: u64,
    ) -> Result<(Self, Bytes)> {
        let origin = Origin { store: store.clone(), address: address.clone() };
        let origin = &origin;
        let (info, bytes) = carrier
            .again(|| async move {
                let mut slot = carrier.slot(tail).await?;
                slot.pass_first_of(tail).await;
                let get = async |select| {
                    let request = GetRequest { select, conditions: ReadConditions::default() };
                    origin.store.get(&slot.context, &origin.address, request).await
                };
                let found = match get(Select::Range(ByteRange::Suffix(tail))).await {
                    // Nothing has no last byte.
                    Err(e) if e.reason() == Reason::InvalidRange => get(Select::Whole).await?,
                    found => found?,
                };
                let Found { info, span, mut body, .. } = found;
                let length = tail.min(info.size);
                check_place(span, Span { offset: info.size - length, length })?;
                let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
                while let Some(piece) = body.next().await {
                    let piece = piece?;
                    bytes.extend_from_slice(&piece);
                    let came = piece.len() as u64;
                    drop(piece);
                    slot.pass(came).await;
                }
                if bytes.len() as u64 != length {
                    return Err(Error::new(Reason::Io, "the store sent fewer bytes than it announced"));
                }
                Ok((info, Bytes::from(bytes)))
            })
            .await?;
        // Of ranges a CRC-64/NVME is computed, whatever the store has of the whole.
        let whole = Whole::unverified(carrier, origin.clone(), info);
        Ok((Self { whole }, bytes))
    }

    /// Bytes of the object.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.whole.info.size
    }

    /// Fetches a range into memory, in one request where nothing fails.
    pub async fn bytes(&self, span: (u64, u64)) -> Result<(Bytes, Checksum)> {
        if span.1 == 0 {
            return Ok((Bytes::new(), nothing()));
        }
        let (bytes, (_, checksum, _)) = buffered(self.whole.clone(), span).await?;
        Ok((bytes, checksum))
    }

    /// Fetches a range in chunks of the plan, several at a time. The sink's offsets are the object's.
    pub async fn write_to(&self, (offset, length): (u64, u64), sink: &Arc<dyn Sink>) -> Result<Checksum> {
        let plan = self.whole.carrier.plan();
        // What is no larger than an object that comes in one request does so too.
        let at_once = if length <= plan.chunk_bytes { length } else { 0 };
        let rest = plan.ranges(offset + at_once, offset + length);
        let mut waiting = (at_once > 0).then_some((offset, at_once)).into_iter().chain(rest);
        let most = plan.ranges_at_a_time();
        let (mut chunks, mut found) = (JoinSet::new(), Vec::new());
        loop {
            while chunks.len() < most
                && let Some(span) = waiting.next()
            {
                chunks.spawn(chunk(self.whole.clone(), sink.clone(), span));
            }
            let Some(ended) = chunks.join_next().await else { return whole(found) };
            match ended.map_err(lost).flatten() {
                Ok(part) => found.push(part),
                Err(e) => {
                    // After a failure nothing more is written.
                    chunks.shutdown().await;
                    return Err(e);
                }
            }
        }
    }

    /// Fetches a range in order: `take` gets each piece when those before it have been taken. Some of what follows is
    /// fetched meanwhile.
    pub async fn write_in_order(
        &self,
        (offset, length): (u64, u64),
        mut take: impl AsyncFnMut(Bytes) -> Result<()>,
    ) -> Result<Checksum> {
        let plan = self.whole.carrier.plan();
        let chunks = Plan::chunks(length, plan.stream_bytes).map(|(at, size)| {
            let span = (offset + at, size);
            let whole = self.whole.clone();
            async move {
                let mut fetched = AbortOnDrop(tokio::spawn(buffered(whole, span)));
                (&mut fetched.0).await.map_err(lost)?
            }
        });
        let mut chunks = futures::stream::iter(chunks).buffered(plan.ahead());
        let mut found = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let (bytes, part) = chunk?;
            take(bytes).await?;
            found.push(part);
        }
        whole(found)
    }
}

/// The checksum of parts that make a whole.
fn whole(mut found: Vec<Part>) -> Result<Checksum> {
    found.sort_by_key(|(offset, ..)| *offset);
    let mut found = found.into_iter().map(|(_, checksum, length)| (checksum, length));
    let Some((first, _)) = found.next() else { return Ok(nothing()) };
    let whole = found.try_fold(first, |whole, (next, length)| whole.combine(&next, length));
    whole.ok_or_else(|| Error::new(Reason::Defect, "checksums of chunks cannot be put together"))
}

fn nothing() -> Checksum {
    Checksum::crc64nvme(0)
}

fn lost(e: tokio::task::JoinError) -> Error {
    Error::with_source(Reason::Defect, "a chunk's task failed", e)
}
