//! Freeing the extents of objects and parts that were superseded, deleted or given up. The record that
//! named them is still on disk: it is compacted only after this.

use tradewind_core::error::{Error, Reason, Result};

use super::Control;
use crate::local::apply::release;
use crate::local::commit::{Amendment, Batch};
use crate::local::index::entries::Place;
use crate::local::index::keys;
use crate::local::leaf::Local;
use crate::local::record::{Content, Record, Run};
use crate::local::scan::record_at;

/// Extents freed in one change.
const CHUNK: usize = 256;

/// Frees everything that waits for it.
pub(super) fn reclaim(local: &Local, control: &Control) -> Result<()> {
    loop {
        let waiting: Vec<(u64, Place)> = local
            .shared
            .index
            .view()
            .prefix(&[keys::space::RECLAIM])
            .take(CHUNK)
            .map(|entry| entry.and_then(|(key, value)| Ok((keys::number(&key)?, Place::decode(&value)?))))
            .collect::<Result<_>>()?;
        if waiting.is_empty() {
            return Ok(());
        }
        if control.stopped() {
            return Err(Error::new(Reason::ShuttingDown, "the store is closing"));
        }
        for (seq, place) in waiting {
            free(local, seq, place)?;
        }
    }
}

fn free(local: &Local, seq: u64, place: Place) -> Result<()> {
    let runs = match runs_of(local, place) {
        Err(e) if e.reason() == Reason::CorruptData => {
            tracing::error!(error = ?e, "extents stay occupied until the index is made anew");
            Vec::new()
        }
        runs => runs?,
    };
    let ids: Vec<u64> = runs.into_iter().flat_map(Run::ids).collect();
    let mut chunks = ids.chunks(CHUNK).peekable();
    loop {
        let chunk: Vec<u64> = chunks.next().unwrap_or_default().to_vec();
        let is_last = chunks.peek().is_none();
        local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
            for id in &chunk {
                let key = keys::extent(*id);
                if let Some(value) = batch.changes.get(&key)? {
                    release(&mut batch.changes, Place::decode(&value)?)?;
                    batch.changes.remove(key);
                }
            }
            if is_last {
                batch.changes.remove(keys::reclaim(seq));
            }
            Ok(())
        }))?;
        if is_last {
            return Ok(());
        }
    }
}

/// The runs that a superseded record refers to.
fn runs_of(local: &Local, place: Place) -> Result<Vec<Run>> {
    let missing = |why: &str| {
        Error::new(
            Reason::CorruptData,
            format!("the extents of the record at {} cannot be freed: {why}", place.at),
        )
    };
    let segment =
        local.shared.segments.get(place.at.segment).ok_or_else(|| missing("its segment is gone"))?;
    let scanned = record_at(&segment, local.shared.layout.salt, place.at.offset)?;
    let scanned = scanned.ok_or_else(|| missing("it is damaged"))?;
    match scanned.record()? {
        Record::Object(object) => match object.content {
            Content::Extents { runs, .. } => Ok(runs),
            Content::Inline => Ok(Vec::new()),
        },
        Record::Part(part) => Ok(part.runs),
        _ => Err(missing("it is of another kind")),
    }
}
