//! The fetch of one range of an object. An interrupted request is resumed.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tradewind_core::Checksum;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::retry::Attempts;

use super::Sink;
use crate::hedge::{OpenedRange, RangeStream};
use crate::versioned_object::{RangeChecksum, VersionedObject};

/// A sink that collects one range in memory.
struct RangeBuffer {
    offset: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Sink for RangeBuffer {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(offset - self.offset).unwrap_or(usize::MAX);
        all.truncate(at);
        all.extend_from_slice(bytes);
        Ok(())
    }
}

/// A sink that discards all bytes.
pub(crate) struct NullSink;

impl Sink for NullSink {
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Fetches a range into memory.
pub async fn fetch_into_memory(
    object: Arc<VersionedObject>,
    span: (u64, u64),
) -> Result<(Bytes, RangeChecksum)> {
    let capacity = usize::try_from(span.1).unwrap_or(0);
    let buffer = RangeBuffer { offset: span.0, bytes: Mutex::new(Vec::with_capacity(capacity)) };
    let checksum = RangeFetch::new(&object, &buffer).read_to_sink(span, None).await?;
    let bytes = buffer.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((Bytes::from(bytes), (span.0, checksum, span.1)))
}

/// Fetches a range into a sink, unless an earlier transfer wrote it there.
pub(crate) async fn fetch_range(
    object: Arc<VersionedObject>,
    sink: Arc<dyn Sink>,
    span: (u64, u64),
) -> Result<RangeChecksum> {
    let stored_checksum = {
        let sink = sink.clone();
        // The sink may have to read the range from disk.
        let verified = tokio::task::spawn_blocking(move || sink.verify_stored_range(span.0, span.1));
        verified.await.map_err(|e| {
            Error::with_source(Reason::Defect, "the task that verifies a stored range failed", e)
        })??
    };
    if let Some(checksum) = stored_checksum
        && checksum.algorithm() == object.algorithm().await?
    {
        sink.range_reused(span.1);
        return Ok((span.0, checksum, span.1));
    }
    fetch_missing_range(object, sink, span).await
}

/// Fetches a range into a sink, whether or not it is there.
pub(super) async fn fetch_missing_range(
    object: Arc<VersionedObject>,
    sink: Arc<dyn Sink>,
    span: (u64, u64),
) -> Result<RangeChecksum> {
    let checksum = RangeFetch::new(&object, &*sink).read_to_sink(span, None).await?;
    sink.range_finished(span.0, span.1, &checksum);
    Ok((span.0, checksum, span.1))
}

/// Fetches ranges of an object into a sink.
pub(super) struct RangeFetch<'a> {
    object: &'a VersionedObject,
    sink: &'a dyn Sink,
}

impl<'a> RangeFetch<'a> {
    pub const fn new(object: &'a VersionedObject, sink: &'a dyn Sink) -> Self {
        Self { object, sink }
    }

    /// The stream of a range: that of `opened`, or of a new request.
    async fn open<'b>(
        &self,
        (offset, length): (u64, u64),
        opened: Option<OpenedRange<'b>>,
    ) -> Result<RangeStream<'b>>
    where
        'a: 'b,
    {
        let VersionedObject { transfers, origin, info, .. } = self.object;
        if let Some(opened) = opened {
            return Ok(RangeStream::from_opened(origin, info, opened));
        }
        let mut permits = self.object.request_permits(length).await?;
        permits.throttle_first_piece(length).await;
        Ok(RangeStream::open(origin, info, (transfers, permits), (offset, length)))
    }

    /// Forwards a range as it arrives. An interrupted request is resumed. Corruption is an error, because
    /// forwarded bytes cannot be taken back.
    pub async fn forward<F: Future<Output = Result<()>>>(
        &self,
        (offset, length): (u64, u64),
        mut opened: Option<OpenedRange<'_>>,
        take: &mut impl FnMut(Bytes) -> F,
    ) -> Result<Checksum> {
        let mut hashers = self.object.hashers();
        let (mut done, mut attempts) = (0, Attempts::new());
        loop {
            let mut stream = self.open((offset + done, length - done), opened.take()).await?;
            let failed = loop {
                match stream.next().await {
                    Some(Ok(piece)) => {
                        let received = piece.len() as u64;
                        done += received;
                        attempts = Attempts::new();
                        hashers.update(&piece);
                        take(piece).await?;
                        stream.throttle(received).await;
                    }
                    Some(Err(failed)) => break failed,
                    None if done == length => {
                        drop(stream);
                        self.object.transfers.record_success();
                        return hashers.finish(self.object).await;
                    }
                    None => break Error::new(Reason::Io, "the store sent fewer bytes than were requested"),
                }
            };
            if failed.reason() == Reason::CorruptData {
                return Err(failed);
            }
            drop(stream);
            self.object.transfers.wait_before_retry(failed, &mut attempts).await?;
        }
    }

    /// Reads a range into the sink and returns its checksum. An interrupted request is resumed; corruption restarts the
    /// range.
    pub async fn read_to_sink(
        &self,
        (offset, length): (u64, u64),
        mut opened: Option<OpenedRange<'_>>,
    ) -> Result<Checksum> {
        let mut hashers = self.object.hashers();
        let mut done = 0;
        let mut attempts = Attempts::new();
        loop {
            let before = done;
            let read = async {
                let opened = opened.take();
                if done == length && opened.is_none() {
                    return Ok(());
                }
                let mut stream = self.open((offset + done, length - done), opened).await?;
                while let Some(piece) = stream.next().await {
                    let piece = piece?;
                    self.sink.write_at(offset + done, &piece)?;
                    hashers.update(&piece);
                    let received = piece.len() as u64;
                    done += received;
                    self.object.record_received(received);
                    drop(piece);
                    stream.throttle(received).await;
                }
                Ok(())
            };
            let read: Result<()> = read.await;
            match read {
                Ok(()) if done == length => {
                    self.object.transfers.record_success();
                    return hashers.finish(self.object).await;
                }
                Ok(()) => {
                    // The leaf checks the length, so a body that ends short without an error is a fault of a store.
                    return Err(Error::new(Reason::Io, "the store sent fewer bytes than were requested"));
                }
                Err(failed) => {
                    if failed.reason() == Reason::CorruptData {
                        // It is unknown which bytes are wrong.
                        self.sink.bytes_discarded(done);
                        done = 0;
                        hashers = self.object.hashers();
                    } else if done > before {
                        // An attempt that makes progress does not count.
                        attempts = Attempts::new();
                    }
                    self.object.transfers.wait_before_retry(failed, &mut attempts).await?;
                }
            }
        }
    }
}
