//! Fetching an object: in one request, or in ranges that take turns with everything else. Bytes go where they belong as
//! they come, in any order; a range that fails is asked again from where it broke off.

use std::sync::Arc;

use futures::StreamExt;
use tradewind_core::checksum::Hasher;
use tradewind_core::condition::{ETagMatch, ReadConditions};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{Address, Body, ByteRange, Checksum, ChecksumScope, Context, ObjectInfo, ObjectStore};
use tradewind_model::plan::Plan;

use super::carrier::{Carrier, Slot};

/// Where fetched bytes go.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset. Of the same offset the last ones count.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// An object that is being fetched: its first chunk is on its way.
pub struct Fetch<'a> {
    carrier: &'a Arc<Carrier>,
    origin: Origin,
    info: ObjectInfo,
    slot: Slot<'a>,
    /// The first chunk, and its length.
    first: (Body, u64),
}

/// Where the object is.
#[derive(Clone)]
struct Origin {
    store: Arc<dyn ObjectStore>,
    address: Address,
}

impl<'a> Fetch<'a> {
    /// Asks for the object, or for its first chunk where it is larger than one; `size` is what a listing said of it.
    pub async fn open(
        carrier: &'a Arc<Carrier>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        size: Option<u64>,
    ) -> Result<Self> {
        let origin = Origin { store: store.clone(), address: address.clone() };
        let mut attempt = 1;
        loop {
            match origin.open(carrier, size).await {
                Ok((slot, info, first)) => return Ok(Self { carrier, origin, info, slot, first }),
                Err(failed) => carrier.wait(failed, attempt).await?,
            }
            attempt += 1;
        }
    }

    /// What the store says of it.
    #[must_use]
    pub const fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// Fetches all of it. What arrived is compared with the store's checksum of the whole, where it has one.
    pub async fn write_to(self, sink: Arc<dyn Sink>) -> Result<ObjectInfo> {
        let Self { carrier, origin, info, slot, first: (body, length) } = self;
        let info = Arc::new(info);
        let rest = Plan::chunks(info.size - length, carrier.plan().chunk_bytes);
        let mut rest = rest.map(|(offset, size)| (offset + length, size));
        let mut chunks = tokio::task::JoinSet::new();
        let mut found = Vec::new();
        let whole = Range { carrier, origin: &origin, info: &info, sink: &*sink };
        if length < info.size {
            // The others' turn comes while the first is read.
            for (offset, size) in rest.by_ref().take(carrier.plan().requests) {
                chunks.spawn(chunk(
                    carrier.clone(),
                    origin.clone(),
                    info.clone(),
                    sink.clone(),
                    (offset, size),
                ));
            }
        }
        found.push((0, whole.read((0, length), Some((slot, body))).await?, length));
        while let Some(chunk_done) = chunks.join_next().await {
            found.push(
                chunk_done.map_err(|e| Error::with_source(Reason::Defect, "a chunk's task failed", e))??,
            );
            if let Some((offset, size)) = rest.next() {
                chunks.spawn(chunk(
                    carrier.clone(),
                    origin.clone(),
                    info.clone(),
                    sink.clone(),
                    (offset, size),
                ));
            }
        }
        verify(&info, found)?;
        Ok(Arc::unwrap_or_clone(info))
    }
}

async fn chunk(
    carrier: Arc<Carrier>,
    origin: Origin,
    info: Arc<ObjectInfo>,
    sink: Arc<dyn Sink>,
    span: (u64, u64),
) -> Result<(u64, Option<Checksum>, u64)> {
    let range = Range { carrier: &carrier, origin: &origin, info: &info, sink: &*sink };
    Ok((span.0, range.read(span, None).await?, span.1))
}

/// Compares the chunks' checksums, put together, with that of the whole.
fn verify(info: &ObjectInfo, mut found: Vec<(u64, Option<Checksum>, u64)>) -> Result<()> {
    found.sort_by_key(|(offset, ..)| *offset);
    let mut found = found.into_iter().map(|(_, checksum, length)| (checksum, length));
    let Some((Some(first), _)) = found.next() else { return Ok(()) };
    let whole = found.try_fold(first, |whole, (next, length)| whole.combine(&next?, length));
    let expected = expected(info);
    match (whole, expected) {
        (Some(whole), Some(expected)) if whole != expected => Err(Error::new(
            Reason::CorruptData,
            format!("what arrived has the checksum {whole:?}, the store says {expected:?}"),
        )),
        _ => Ok(()),
    }
}

/// The checksum to compare with: one of the whole that can be put together from chunks.
fn expected(info: &ObjectInfo) -> Option<Checksum> {
    let is_usable = |checksum: &&Checksum| checksum.algorithm().is_crc();
    info.checksums.iter().find(is_usable).copied().filter(|_| info.scope == ChecksumScope::FullObject)
}

impl Origin {
    async fn open<'a>(
        &self,
        carrier: &'a Carrier,
        size: Option<u64>,
    ) -> Result<(Slot<'a>, ObjectInfo, (Body, u64))> {
        let chunk = carrier.plan().chunk_bytes;
        let slot = carrier.slot(size.unwrap_or(u64::MAX)).await?;
        let first = Select::Range(ByteRange::Inclusive { first: 0, last: chunk - 1 });
        let select = if size.is_some_and(|size| size <= chunk) { Select::Whole } else { first };
        let get = async |select| {
            let request = GetRequest { select, conditions: ReadConditions::default() };
            self.store.get(&slot.context, &self.address, request).await
        };
        let found = match get(select).await {
            // There is no first byte of nothing.
            Err(e) if e.reason() == Reason::InvalidRange => get(Select::Whole).await?,
            found => found?,
        };
        Ok((slot, found.info, (found.body, found.span.length)))
    }

    async fn get(&self, context: &Context, info: &ObjectInfo, (first, length): (u64, u64)) -> Result<Body> {
        let range = ByteRange::Inclusive { first, last: first + length - 1 };
        let if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
        let conditions = ReadConditions { if_match, ..ReadConditions::default() };
        let request = GetRequest { select: Select::Range(range), conditions };
        let found = self.store.get(context, &self.address, request).await.map_err(|e| {
            if e.reason() == Reason::PreconditionFailed {
                let key = self.address.key.as_str();
                return Error::with_source(Reason::Conflict, format!("{key:?} changed while it was read"), e);
            }
            e
        })?;
        Ok(found.body)
    }
}

/// A range of an object on its way to a sink.
struct Range<'a> {
    carrier: &'a Carrier,
    origin: &'a Origin,
    info: &'a ObjectInfo,
    sink: &'a dyn Sink,
}

impl Range<'_> {
    /// Reads it, and again from where it broke off; answers the checksum of what came.
    async fn read(
        &self,
        (offset, length): (u64, u64),
        mut begun: Option<(Slot<'_>, Body)>,
    ) -> Result<Option<Checksum>> {
        let mut hasher = expected(self.info).map(|checksum| Hasher::new(checksum.algorithm()));
        let mut done = 0;
        let mut attempt = 1;
        loop {
            let before = done;
            let read = async {
                let (_slot, mut body) = match begun.take() {
                    Some(begun) => begun,
                    None if done == length => return Ok(()),
                    None => {
                        let slot = self.carrier.slot(length - done).await?;
                        let span = (offset + done, length - done);
                        let body = self.origin.get(&slot.context, self.info, span).await?;
                        (slot, body)
                    }
                };
                while let Some(piece) = body.next().await {
                    let piece = piece?;
                    self.sink.write_at(offset + done, &piece)?;
                    if let Some(hasher) = &mut hasher {
                        hasher.update(&piece);
                    }
                    done += piece.len() as u64;
                }
                Ok(())
            };
            let read: Result<()> = read.await;
            match read {
                Ok(()) if done == length => return Ok(hasher.map(Hasher::finish)),
                Ok(()) => {
                    return Err(Error::new(Reason::Io, "the store sent fewer bytes than it announced"));
                }
                Err(failed) => {
                    // Who gets on is not failing.
                    attempt = if done > before { 1 } else { attempt };
                    if failed.reason() == Reason::CorruptData {
                        // Which of its bytes are wrong nobody knows.
                        done = 0;
                        hasher = hasher.map(|hasher| Hasher::new(hasher.algorithm()));
                    }
                    self.carrier.wait(failed, attempt).await?;
                }
            }
            attempt += 1;
        }
    }
}
