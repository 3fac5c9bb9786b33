//! Fetching an object: in one request, or in ranges that take turns with everything else. Bytes go where they belong as
//! they come, in any order; a range that fails is asked again from where it broke off.

use std::collections::VecDeque;
use std::future::Future;
use std::iter::Peekable;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, Algorithm, Checksum, ObjectInfo, ObjectStore};
use tradewind_model::plan::Plan;

use super::carrier::Carrier;
use super::hedge::{Begun, Coming, Watch};
use super::origin::{Origin, expected};

/// Where fetched bytes go.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset. Of the same offset the last ones count.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// The checksum of a chunk that is there from an earlier time; `None` where it has to be fetched.
    fn holds(&self, offset: u64, length: u64, algorithm: Algorithm) -> Result<Option<Checksum>> {
        let _ = (offset, length, algorithm);
        Ok(None)
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
            match begin(&origin, carrier, size).await {
                Ok((info, first)) => return Ok(Self { carrier, origin, info, first }),
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
        let Self { carrier, origin, info, first } = self;
        let length = first.length;
        let info = Arc::new(info);
        let rest = Plan::chunks(info.size - length, carrier.plan().chunk_bytes);
        let mut rest = rest.map(|(offset, size)| (offset + length, size));
        let mut chunks = tokio::task::JoinSet::new();
        let mut found = Vec::new();
        let whole = Range { carrier, origin: &origin, info: &info, sink: &*sink };
        if length < info.size {
            // The others' turn comes while the first is read.
            for (offset, size) in rest.by_ref().take(carrier.plan().of_one_object(carrier.plan().chunk_bytes))
            {
                chunks.spawn(chunk(
                    carrier.clone(),
                    origin.clone(),
                    info.clone(),
                    sink.clone(),
                    (offset, size),
                ));
            }
        }
        let fetched = async {
            let checksum = whole.read((0, length), Some(first)).await?;
            sink.finished(0, length, &checksum);
            found.push((0, checksum, length));
            while let Some(done) = chunks.join_next().await {
                let lost = |e| Error::with_source(Reason::Defect, "a chunk's task failed", e);
                found.push(done.map_err(lost)??);
                if let Some(span) = rest.next() {
                    chunks.spawn(chunk(carrier.clone(), origin.clone(), info.clone(), sink.clone(), span));
                }
            }
            verify(&info, found)
        };
        let fetched = fetched.await;
        // After a failure nothing more is written.
        chunks.shutdown().await;
        fetched?;
        Ok(Arc::unwrap_or_clone(info))
    }

    /// Fetches all of it in order: `take` gets each piece when those before it have been taken. What was taken is
    /// compared with the store's checksum at the end, when nothing can be taken back.
    pub async fn write_in_order<F>(self, mut take: impl FnMut(Bytes) -> F) -> Result<ObjectInfo>
    where
        F: Future<Output = Result<()>>,
    {
        let Self { carrier, origin, info, first } = self;
        let length = first.length;
        let info = Arc::new(info);
        let rest = Plan::chunks(info.size - length, carrier.plan().stream_bytes);
        let mut rest = rest.map(|(offset, size)| (offset + length, size)).peekable();
        let mut ahead = VecDeque::new();
        // As many as there is memory for, that all streams share.
        let begin = |ahead: &mut VecDeque<_>, rest: &mut Peekable<_>| {
            while ahead.len() < carrier.plan().ahead()
                && rest.peek().is_some()
                && let Ok(permit) = carrier.ahead().try_acquire_owned()
                && let Some(span) = rest.next()
            {
                let chunk = buffered(carrier.clone(), origin.clone(), info.clone(), span);
                ahead.push_back((AbortOnDrop(tokio::spawn(chunk)), permit));
            }
        };
        begin(&mut ahead, &mut rest);
        let mut found = Vec::new();
        let whole = Range { carrier, origin: &origin, info: &info, sink: &Nowhere };
        let checksum = whole.pass_on((0, length), Some(first), &mut take).await?;
        found.push((0, checksum, length));
        loop {
            if let Some((mut chunk, permit)) = ahead.pop_front() {
                let lost = |e| Error::with_source(Reason::Defect, "a chunk's task failed", e);
                let (bytes, part) = (&mut chunk.0).await.map_err(lost)??;
                found.push(part);
                take(bytes).await?;
                drop(permit);
            } else if let Some(span) = rest.next() {
                // Others have the memory: bytes are handed on as they come.
                let checksum = whole.pass_on(span, None, &mut take).await?;
                found.push((span.0, checksum, span.1));
            } else {
                break;
            }
            begin(&mut ahead, &mut rest);
        }
        verify(&info, found)?;
        Ok(Arc::unwrap_or_clone(info))
    }
}

/// A task that ends with whoever waits for it.
pub(super) struct AbortOnDrop<T>(pub tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A chunk in memory.
struct Buffer {
    offset: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Sink for Buffer {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(offset - self.offset).unwrap_or(usize::MAX);
        all.truncate(at);
        all.extend_from_slice(bytes);
        Ok(())
    }
}

/// Bytes that nobody keeps.
struct Nowhere;

impl Sink for Nowhere {
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A part's offset, checksum and length.
pub(super) type Part = (u64, Checksum, u64);

/// Fetches a range into memory.
pub(super) async fn buffered(
    carrier: Arc<Carrier>,
    origin: Origin,
    info: Arc<ObjectInfo>,
    span: (u64, u64),
) -> Result<(Bytes, Part)> {
    let capacity = usize::try_from(span.1).unwrap_or(0);
    let buffer = Buffer { offset: span.0, bytes: Mutex::new(Vec::with_capacity(capacity)) };
    let range = Range { carrier: &carrier, origin: &origin, info: &info, sink: &buffer };
    let checksum = range.read(span, None).await?;
    let bytes = buffer.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((Bytes::from(bytes), (span.0, checksum, span.1)))
}

/// Fetches a range into a sink, unless it is there.
pub(super) async fn chunk(
    carrier: Arc<Carrier>,
    origin: Origin,
    info: Arc<ObjectInfo>,
    sink: Arc<dyn Sink>,
    span: (u64, u64),
) -> Result<Part> {
    let algorithm = algorithm(&info);
    let earlier = {
        let sink = sink.clone();
        // It may have to read what it holds.
        let held = tokio::task::spawn_blocking(move || sink.holds(span.0, span.1, algorithm));
        held.await.map_err(|e| Error::with_source(Reason::Defect, "a task failed", e))??
    };
    if let Some(checksum) = earlier {
        return Ok((span.0, checksum, span.1));
    }
    let range = Range { carrier: &carrier, origin: &origin, info: &info, sink: &*sink };
    let checksum = range.read(span, None).await?;
    sink.finished(span.0, span.1, &checksum);
    Ok((span.0, checksum, span.1))
}

/// Compares the chunks' checksums, put together, with that of the whole.
fn verify(info: &ObjectInfo, mut found: Vec<Part>) -> Result<()> {
    found.sort_by_key(|(offset, ..)| *offset);
    let mut found = found.into_iter().map(|(_, checksum, length)| (checksum, length));
    let Some((first, _)) = found.next() else { return Ok(()) };
    let whole = found.try_fold(first, |whole, (next, length)| whole.combine(&next, length));
    let expected = expected(info);
    match (whole, expected) {
        (Some(whole), Some(expected)) if whole != expected => Err(Error::new(
            Reason::CorruptData,
            format!("what arrived has the checksum {whole:?}, the store says {expected:?}"),
        )),
        _ => Ok(()),
    }
}

/// The checksum that is computed of what arrives.
fn algorithm(info: &ObjectInfo) -> Algorithm {
    expected(info).map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm())
}

/// Asks for the object's first chunk; a second time where that is late.
async fn begin<'a>(
    origin: &Origin,
    carrier: &'a Carrier,
    size: Option<u64>,
) -> Result<(ObjectInfo, Begun<'a>)> {
    let chunk = carrier.plan().chunk_bytes;
    let bytes = size.unwrap_or(chunk).min(chunk);
    let mut slot = carrier.slot(size.unwrap_or(u64::MAX)).await?;
    slot.pass_first_of(bytes).await;
    let mut watch = Watch::begin(carrier, bytes);
    let open = |slot| origin.open(slot, chunk, size);
    let (slot, info, (body, length)) = watch.first(bytes, slot, open).await?;
    Ok((info, Begun { watch, slot, body, length }))
}

/// A range of an object on its way to a sink.
struct Range<'a> {
    carrier: &'a Carrier,
    origin: &'a Origin,
    info: &'a ObjectInfo,
    sink: &'a dyn Sink,
}

impl<'a> Range<'a> {
    /// A range, on its way already or asked for.
    async fn coming<'b>(&self, (offset, length): (u64, u64), begun: Option<Begun<'b>>) -> Result<Coming<'b>>
    where
        'a: 'b,
    {
        if let Some(begun) = begun {
            return Ok(Coming::begun(self.origin, self.info, begun));
        }
        let mut slot = self.carrier.slot(length).await?;
        slot.pass_first_of(length).await;
        Ok(Coming::ask(self.origin, self.info, (self.carrier, slot), (offset, length)))
    }

    /// Hands a range on as it comes. What was handed on cannot be asked for again: what breaks off is asked for
    /// from there on.
    async fn pass_on<F: Future<Output = Result<()>>>(
        &self,
        (offset, length): (u64, u64),
        mut begun: Option<Begun<'_>>,
        take: &mut impl FnMut(Bytes) -> F,
    ) -> Result<Checksum> {
        let mut hasher = Hasher::new(algorithm(self.info));
        let (mut done, mut attempt) = (0, 1);
        loop {
            let mut coming = self.coming((offset + done, length - done), begun.take()).await?;
            let failed = loop {
                match coming.next().await {
                    Some(Ok(piece)) => {
                        let came = piece.len() as u64;
                        done += came;
                        attempt = 1;
                        hasher.update(&piece);
                        take(piece).await?;
                        coming.pass(came).await;
                    }
                    Some(Err(failed)) => break failed,
                    None if done == length => {
                        self.carrier.earn();
                        return Ok(hasher.finish());
                    }
                    None => break Error::new(Reason::Io, "the store sent fewer bytes than it announced"),
                }
            };
            if failed.reason() == Reason::CorruptData {
                return Err(failed);
            }
            drop(coming);
            self.carrier.wait(failed, attempt).await?;
            attempt += 1;
        }
    }

    /// Reads it, and again from where it broke off; answers the checksum of what came.
    async fn read(&self, (offset, length): (u64, u64), mut begun: Option<Begun<'_>>) -> Result<Checksum> {
        let mut hasher = Hasher::new(algorithm(self.info));
        let mut done = 0;
        let mut attempt = 1;
        loop {
            let before = done;
            let read = async {
                let begun = begun.take();
                if done == length && begun.is_none() {
                    return Ok(());
                }
                let mut coming = self.coming((offset + done, length - done), begun).await?;
                while let Some(piece) = coming.next().await {
                    let piece = piece?;
                    self.sink.write_at(offset + done, &piece)?;
                    hasher.update(&piece);
                    let came = piece.len() as u64;
                    done += came;
                    drop(piece);
                    coming.pass(came).await;
                }
                Ok(())
            };
            let read: Result<()> = read.await;
            match read {
                Ok(()) if done == length => {
                    self.carrier.earn();
                    return Ok(hasher.finish());
                }
                Ok(()) => {
                    return Err(Error::new(Reason::Io, "the store sent fewer bytes than it announced"));
                }
                Err(failed) => {
                    if failed.reason() == Reason::CorruptData {
                        // Which of its bytes are wrong nobody knows.
                        done = 0;
                        hasher = Hasher::new(hasher.algorithm());
                    } else if done > before {
                        // Who gets on is not failing.
                        attempt = 1;
                    }
                    self.carrier.wait(failed, attempt).await?;
                }
            }
            attempt += 1;
        }
    }
}
