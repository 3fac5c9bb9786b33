//! One range of an object: it is asked for, and again from where it broke off.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tradewind_core::Checksum;
use tradewind_core::error::{Error, Reason, Result};

use super::Sink;
use crate::hedge::{Begun, Coming};
use crate::whole::{Part, Whole};

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
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Fetches a range into memory.
pub(crate) async fn buffered(whole: Arc<Whole>, span: (u64, u64)) -> Result<(Bytes, Part)> {
    let capacity = usize::try_from(span.1).unwrap_or(0);
    let buffer = Buffer { offset: span.0, bytes: Mutex::new(Vec::with_capacity(capacity)) };
    let checksum = Range::of(&whole, &buffer).read(span, None).await?;
    let bytes = buffer.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((Bytes::from(bytes), (span.0, checksum, span.1)))
}

/// Fetches a range into a sink, unless it is there.
pub(crate) async fn chunk(whole: Arc<Whole>, sink: Arc<dyn Sink>, span: (u64, u64)) -> Result<Part> {
    let earlier = {
        let sink = sink.clone();
        // It may have to read what it holds.
        let held = tokio::task::spawn_blocking(move || sink.holds(span.0, span.1));
        held.await.map_err(|e| Error::with_source(Reason::Defect, "a task failed", e))??
    };
    if let Some(checksum) = earlier
        && checksum.algorithm() == whole.algorithm().await?
    {
        sink.kept(span.1);
        return Ok((span.0, checksum, span.1));
    }
    let checksum = Range::of(&whole, &*sink).read(span, None).await?;
    sink.finished(span.0, span.1, &checksum);
    Ok((span.0, checksum, span.1))
}

/// A range of an object on its way to a sink.
pub(super) struct Range<'a> {
    whole: &'a Whole,
    sink: &'a dyn Sink,
}

impl<'a> Range<'a> {
    pub const fn of(whole: &'a Whole, sink: &'a dyn Sink) -> Self {
        Self { whole, sink }
    }

    /// A range, on its way already or asked for.
    async fn coming<'b>(&self, (offset, length): (u64, u64), begun: Option<Begun<'b>>) -> Result<Coming<'b>>
    where
        'a: 'b,
    {
        let Whole { carrier, origin, info, .. } = self.whole;
        if let Some(begun) = begun {
            return Ok(Coming::begun(origin, info, begun));
        }
        let mut slot = self.whole.slot(length).await?;
        slot.pass_first_of(length).await;
        Ok(Coming::ask(origin, info, (carrier, slot), (offset, length)))
    }

    /// Hands a range on as it comes. What was handed on cannot be asked for again: what breaks off is asked for
    /// from there on.
    pub async fn pass_on<F: Future<Output = Result<()>>>(
        &self,
        (offset, length): (u64, u64),
        mut begun: Option<Begun<'_>>,
        take: &mut impl FnMut(Bytes) -> F,
    ) -> Result<Checksum> {
        let mut hashers = self.whole.hashers();
        let (mut done, mut attempt) = (0, 1);
        loop {
            let mut coming = self.coming((offset + done, length - done), begun.take()).await?;
            let failed = loop {
                match coming.next().await {
                    Some(Ok(piece)) => {
                        let came = piece.len() as u64;
                        done += came;
                        attempt = 1;
                        hashers.update(&piece);
                        take(piece).await?;
                        coming.pass(came).await;
                    }
                    Some(Err(failed)) => break failed,
                    None if done == length => {
                        drop(coming);
                        self.whole.carrier.earn();
                        return hashers.finish(self.whole).await;
                    }
                    None => break Error::new(Reason::Io, "the store sent fewer bytes than it announced"),
                }
            };
            if failed.reason() == Reason::CorruptData {
                return Err(failed);
            }
            drop(coming);
            self.whole.carrier.wait(failed, attempt).await?;
            attempt += 1;
        }
    }

    /// Reads it, and again from where it broke off; answers the checksum of what came.
    pub async fn read(&self, (offset, length): (u64, u64), mut begun: Option<Begun<'_>>) -> Result<Checksum> {
        let mut hashers = self.whole.hashers();
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
                    hashers.update(&piece);
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
                    self.whole.carrier.earn();
                    return hashers.finish(self.whole).await;
                }
                Ok(()) => {
                    return Err(Error::new(Reason::Io, "the store sent fewer bytes than it announced"));
                }
                Err(failed) => {
                    if failed.reason() == Reason::CorruptData {
                        // Which of its bytes are wrong nobody knows.
                        done = 0;
                        hashers = self.whole.hashers();
                    } else if done > before {
                        // Who gets on is not failing.
                        attempt = 1;
                    }
                    self.whole.carrier.wait(failed, attempt).await?;
                }
            }
            attempt += 1;
        }
    }
}
