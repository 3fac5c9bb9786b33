//! Bytes on their way to a store, which are told of as sent while nobody knows yet whether it takes them.

use tradewind_core::Staged;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_model::plan::Plan;

use super::carrier::{Carrier, Slot};
use super::late::Progress;
use super::source::Source;

/// What an attempt told of as sent; dropped before it is kept, it is taken back.
pub(crate) struct Sent<F: Fn(i64)> {
    tell: F,
    bytes: i64,
}

impl<F: Fn(i64)> Sent<F> {
    /// Nothing yet. `tell` gets numbers of bytes, negative ones where they are taken back.
    pub const fn new(tell: F) -> Self {
        Self { tell, bytes: 0 }
    }

    /// So many more have left.
    pub fn more(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes += bytes;
        (self.tell)(bytes);
    }

    /// The store has them.
    pub fn keep(mut self) {
        self.bytes = 0;
    }
}

impl<F: Fn(i64)> Drop for Sent<F> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            (self.tell)(-self.bytes);
        }
    }
}

/// Stages what a source holds at an offset, and commits it.
pub(crate) async fn pour(
    carrier: &Carrier,
    slot: &mut Slot<'_>,
    staged: Box<dyn Staged>,
    source: &dyn Source,
    span: (u64, u64),
) -> Result<Committed> {
    let poured = pour_watched(carrier, slot, staged, source, span, None).await?;
    poured.ok_or_else(|| Error::new(Reason::Defect, "what nobody watches was broken off"))
}

/// The same; `None` where whoever watches its progress finds it late before all of it was handed over. Nothing of it is stored then.
pub(crate) async fn pour_watched(
    carrier: &Carrier,
    slot: &mut Slot<'_>,
    mut staged: Box<dyn Staged>,
    source: &dyn Source,
    span: (u64, u64),
    progress: Option<&Progress>,
) -> Result<Option<Committed>> {
    let late = async {
        match progress {
            Some(progress) => progress.late().await,
            None => std::future::pending().await,
        }
    };
    let sent = tokio::select! {
        biased;
        sent = hand_over(carrier, slot, &mut *staged, source, span, progress) => sent?,
        () = late => return Ok(None),
    };
    source.check()?;
    let (committed, _) = staged.commit(Expected::default()).await?;
    sent.keep();
    carrier.stored();
    Ok(Some(committed))
}

async fn hand_over<'a>(
    carrier: &Carrier,
    slot: &mut Slot<'_>,
    staged: &mut dyn Staged,
    source: &'a dyn Source,
    (offset, length): (u64, u64),
    progress: Option<&Progress>,
) -> Result<Sent<impl Fn(i64) + use<'a>>> {
    let mut sent = Sent::new(|bytes| source.sent(bytes));
    for (at, size) in Plan::chunks(length, carrier.piece_bytes()) {
        slot.pass(size).await;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let reservation = slot.context.window.reserve_own(size).await;
        let mut piece = carrier.buffers().take(size);
        source.read_at(offset + at, piece.bytes_mut())?;
        staged.write(reservation.attach(piece)).await?;
        sent.more(size);
        if let Some(progress) = progress {
            progress.more(size, carrier.clock().now());
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_is_not_kept_is_taken_back() {
        let told = Cell::new(0);
        let begin = || Sent::new(|bytes| told.set(told.get() + bytes));
        let mut sent = begin();
        sent.more(3);
        sent.more(4);
        assert_eq!(told.get(), 7);
        drop(sent);
        assert_eq!(told.get(), 0);
        let mut sent = begin();
        sent.more(5);
        sent.keep();
        assert_eq!(told.get(), 5);
    }
}
