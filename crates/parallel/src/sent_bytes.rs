//! Writes bytes to a store and reports them as sent before the store has accepted them; a failed attempt is rolled
//! back.

use tradewind_core::Staged;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_model::plan::split_evenly;

use super::part_tracker::PartProgress;
use super::transfer_context::{RequestPermits, TransferContext};
use super::upload_source::UploadSource;

/// Bytes that an attempt has reported as sent. Dropping it rolls the report back, unless [`confirm`](Self::confirm) was
/// called.
pub(crate) struct SentBytes<F: Fn(i64)> {
    report: F,
    bytes: i64,
}

impl<F: Fn(i64)> SentBytes<F> {
    /// Starts at zero. `report` is called with changes in bytes sent; negative when they are rolled back.
    pub const fn new(report: F) -> Self {
        Self { report, bytes: 0 }
    }

    /// Reports `bytes` more.
    pub fn add(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes += bytes;
        (self.report)(bytes);
    }

    /// Confirms the bytes: the store has accepted them.
    pub fn confirm(mut self) {
        self.bytes = 0;
    }
}

impl<F: Fn(i64)> Drop for SentBytes<F> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            (self.report)(-self.bytes);
        }
    }
}

/// Writes a range of a source to a staged object and commits it.
pub(crate) async fn write_and_commit(
    transfers: &TransferContext,
    permits: &mut RequestPermits<'_>,
    staged: Box<dyn Staged>,
    source: &dyn UploadSource,
    span: (u64, u64),
) -> Result<Committed> {
    let committed = write_and_commit_tracked(transfers, permits, staged, source, span, None).await?;
    committed.ok_or_else(|| Error::new(Reason::Defect, "a part without progress tracking was aborted"))
}

/// Like [`write_and_commit`], but returns `None` if the part is declared a straggler before all of it was handed over.
/// The store discards the incomplete part.
pub(crate) async fn write_and_commit_tracked(
    transfers: &TransferContext,
    permits: &mut RequestPermits<'_>,
    mut staged: Box<dyn Staged>,
    source: &dyn UploadSource,
    span: (u64, u64),
    progress: Option<&PartProgress>,
) -> Result<Option<Committed>> {
    let straggling = async {
        match progress {
            Some(progress) => progress.until_straggling().await,
            None => std::future::pending().await,
        }
    };
    let sent = tokio::select! {
        biased;
        sent = write_pieces(transfers, permits, &mut *staged, source, span, progress) => sent?,
        () = straggling => return Ok(None),
    };
    source.check_unchanged()?;
    let (committed, _) = staged.commit(Expected::default()).await?;
    sent.confirm();
    transfers.record_first_write();
    Ok(Some(committed))
}

async fn write_pieces<'a>(
    transfers: &TransferContext,
    permits: &mut RequestPermits<'_>,
    staged: &mut dyn Staged,
    source: &'a dyn UploadSource,
    (offset, length): (u64, u64),
    progress: Option<&PartProgress>,
) -> Result<SentBytes<impl Fn(i64) + use<'a>>> {
    let mut sent = SentBytes::new(|bytes| source.report_sent(bytes));
    for (at, size) in split_evenly(length, transfers.piece_bytes()) {
        permits.throttle(size).await;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let reservation = permits.context.window.reserve_own(size).await;
        let mut piece = transfers.buffers().take(size);
        source.read_at(offset + at, piece.bytes_mut())?;
        staged.write(reservation.attach(piece)).await?;
        sent.add(size);
        if let Some(progress) = progress {
            progress.record_sent(size, transfers.clock().now());
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn unconfirmed_bytes_are_rolled_back_on_drop() {
        let reported = Cell::new(0);
        let begin = || SentBytes::new(|bytes| reported.set(reported.get() + bytes));
        let mut sent = begin();
        sent.add(3);
        sent.add(4);
        assert_eq!(reported.get(), 7);
        drop(sent);
        assert_eq!(reported.get(), 0);
        let mut sent = begin();
        sent.add(5);
        sent.confirm();
        assert_eq!(reported.get(), 5);
    }
}
