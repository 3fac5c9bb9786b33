//! Fetching an object: in one request, or in ranges that take turns with everything else. Bytes go where they belong as
//! they come, in any order; a range that fails is asked again from where it broke off.

mod range;

use std::collections::VecDeque;
use std::future::Future;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Checksum, ChecksumScope, ObjectInfo, ObjectStore};
use tradewind_model::plan::Plan;

use super::carrier::Carrier;
use super::hedge::{Begun, Watch};
use super::origin::{Origin, expected};
use super::task::AbortOnDrop;
use super::whole::Whole;
use range::Nowhere;
use range::Range;
pub(super) use range::{buffered, chunk};

/// Where fetched bytes go.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset. Of the same offset the last ones count.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// The checksum of a chunk that is there from an earlier time, as it was said then; `None` where it has to be fetched.
    fn holds(&self, offset: u64, length: u64) -> Result<Option<Checksum>> {
        let _ = (offset, length);
        Ok(None)
    }

    /// Chunks that may be there from an earlier time, as offset and length, in order.
    fn held(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// What it holds is not fetched again.
    fn kept(&self, length: u64) {
        let _ = length;
    }

    /// A whole chunk is there.
    fn finished(&self, offset: u64, length: u64, checksum: &Checksum) {
        let _ = (offset, length, checksum);
    }
}

/// An object that is being fetched: its first chunk is on its way.
pub struct Fetch<'a> {
    carrier: &'a Arc<Carrier>,
    origin: Origin,
    info: ObjectInfo,
    first: Begun<'a>,
    /// How long the store took to answer.
    answered_in: Duration,
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
        let (mut listed, mut attempt) = (size, 1);
        loop {
            let asked = carrier.clock().now();
            let failed = match begin(&origin, carrier, listed).await {
                Ok((info, first)) if listed.is_some_and(|listed| is_cut(&info, &first, listed)) => {
                    // Nobody waits for an answer who holds a connection.
                    drop(first);
                    let there = size_of(&origin, carrier).await?;
                    if there == info.size {
                        listed = Some(there);
                        continue;
                    }
                    let why = format!("the store answered {} bytes of an object that has {there}", info.size);
                    Error::new(Reason::Io, why)
                }
                Ok((info, first)) => {
                    let answered_in = carrier.clock().now().saturating_sub(asked);
                    return Ok(Self { carrier, origin, info, first, answered_in });
                }
                Err(failed) => failed,
            };
            carrier.wait(failed, attempt).await?;
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
        let Self { carrier, origin, info, first, answered_in } = self;
        let length = first.length;
        let whole = Whole::new(carrier, origin, info, first.is_whole);
        let mut rest = carrier.plan().ranges_around(length, whole.info.size, sink.held());
        let mut chunks = tokio::task::JoinSet::new();
        let mut found = Vec::new();
        let asked = whole.ask_ahead();
        if length < whole.info.size {
            // The others' turn comes while the first is read.
            let most = carrier.plan().ranges_at_a_time();
            let Origin { store, address } = &whole.origin;
            let mut spread = carrier.spread(store.round_trip(&address.bucket), answered_in);
            for span in rest.by_ref().take(most) {
                let (turn, chunk) = (spread.next(most), chunk(whole.clone(), sink.clone(), span));
                let clock = carrier.clock().clone();
                chunks.spawn(async move {
                    clock.sleep_until(turn).await;
                    chunk.await
                });
            }
        }
        let fetched = async {
            let checksum = Range::of(&whole, &*sink).read((0, length), Some(first)).await?;
            sink.finished(0, length, &checksum);
            found.push((0, checksum, length));
            while let Some(done) = chunks.join_next().await {
                found.push(done.map_err(lost)??);
                if let Some(span) = rest.next() {
                    chunks.spawn(chunk(whole.clone(), sink.clone(), span));
                }
            }
            whole.verify(found).await
        };
        let fetched = fetched.await;
        // After a failure nothing more is written.
        chunks.shutdown().await;
        drop(asked);
        fetched?;
        Ok(whole.info.clone())
    }

    /// Fetches all of it in order: `take` gets each piece when those before it have been taken. What was taken is
    /// compared with the store's checksum at the end, when nothing can be taken back.
    pub async fn write_in_order<F>(self, mut take: impl FnMut(Bytes) -> F) -> Result<ObjectInfo>
    where
        F: Future<Output = Result<()>>,
    {
        let Self { carrier, origin, info, first, .. } = self;
        let length = first.length;
        let whole = Whole::new(carrier, origin, info, first.is_whole);
        let _asked = whole.ask_ahead();
        let rest = Plan::chunks(whole.info.size - length, carrier.plan().stream_bytes);
        let mut rest = rest.map(|(offset, size)| (offset + length, size)).peekable();
        let mut ahead = VecDeque::new();
        // As many as there is memory for, that all streams share.
        let begin = |ahead: &mut VecDeque<_>, rest: &mut Peekable<_>| {
            while ahead.len() < carrier.plan().ahead()
                && rest.peek().is_some()
                && let Ok(permit) = carrier.ahead().try_acquire_owned()
                && let Some(span) = rest.next()
            {
                ahead.push_back((AbortOnDrop(tokio::spawn(buffered(whole.clone(), span))), permit));
            }
        };
        begin(&mut ahead, &mut rest);
        let mut found = Vec::new();
        let handed_on = Range::of(&whole, &Nowhere);
        let checksum = handed_on.pass_on((0, length), Some(first), &mut take).await?;
        found.push((0, checksum, length));
        loop {
            if let Some((mut chunk, permit)) = ahead.pop_front() {
                let (bytes, part) = (&mut chunk.0).await.map_err(lost)??;
                found.push(part);
                take(bytes).await?;
                drop(permit);
            } else if let Some(span) = rest.next() {
                // Others have the memory: bytes are handed on as they come.
                let checksum = handed_on.pass_on(span, None, &mut take).await?;
                found.push((span.0, checksum, span.1));
            } else {
                break;
            }
            begin(&mut ahead, &mut rest);
        }
        whole.verify(found).await?;
        Ok(whole.info.clone())
    }
}

/// Whether an answer holds less than was listed, and nothing to compare it with: an object that was replaced meanwhile
/// looks like one whose end got lost on the way.
fn is_cut(info: &ObjectInfo, first: &Begun<'_>, listed: u64) -> bool {
    let of_whole = info.scope == ChecksumScope::FullObject && !info.checksums.is_empty();
    let is_compared = expected(info).is_some() || (first.is_whole && of_whole);
    info.size < listed && !is_compared
}

/// The size that the object's head says.
async fn size_of(origin: &Origin, carrier: &Carrier) -> Result<u64> {
    let Origin { store, address } = origin;
    let looked = carrier.again(|| async {
        let slot = carrier.slot(0).await?;
        store.head(&slot.context, address, GetRequest::default()).await
    });
    Ok(looked.await?.info.size)
}

fn lost(e: tokio::task::JoinError) -> Error {
    Error::with_source(Reason::Defect, "a chunk's task failed", e)
}

/// Asks for the object's first chunk; a second time where that is late.
async fn begin<'a>(
    origin: &Origin,
    carrier: &'a Carrier,
    size: Option<u64>,
) -> Result<(ObjectInfo, Begun<'a>)> {
    let plan = carrier.plan();
    let is_whole = size.is_some_and(|size| size <= plan.chunk_bytes);
    let bytes = size.filter(|_| is_whole).unwrap_or(plan.range_bytes.0);
    if let Some(size) = size.filter(|_| !is_whole) {
        let ranges = plan.ranges(0, size).take(plan.ranges_at_a_time());
        origin.store.expect_requests(&origin.address.bucket, ranges.count());
    }
    let mut slot = carrier.slot(bytes).await?;
    slot.pass_first_of(bytes).await;
    let mut watch = Watch::begin(carrier, bytes);
    let open = |slot| origin.open(slot, bytes, is_whole);
    let (slot, info, (body, length, is_whole)) = watch.first(bytes, slot, open).await?;
    Ok((info, Begun { watch, slot, body, length, is_whole }))
}
