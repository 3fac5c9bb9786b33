//! Removes objects that were made, and tells of those that cannot be.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::condition::Precondition;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{Address, Context};

use crate::drive::Bed;
use crate::replay::objects::Objects;
use crate::stock::Stock;

/// Requests at a time.
const HANDS: usize = 64;
/// How often it is tried to remove what cannot be removed, and how long is waited between two times.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
/// A store that shows for ever what was removed is not looked at for ever.
const MOST_LOOKS: u32 = 50;
/// Keys that are removed before the next are listed.
const PAGE: usize = 1000;

/// Objects whose names are known.
#[derive(Debug, Clone)]
pub(super) enum Made {
    Stock(Arc<Stock>),
    Replayed(Arc<Objects>),
}

impl Made {
    fn count(&self) -> u64 {
        match self {
            Self::Stock(stock) => stock.given_out(),
            Self::Replayed(objects) => objects.count() as u64,
        }
    }

    /// What is there for certain: it was written, and not removed since.
    fn there(&self) -> Vec<String> {
        match self {
            Self::Stock(stock) => stock.numbers().into_iter().map(|number| stock.key(number)).collect(),
            Self::Replayed(_) => Vec::new(),
        }
    }

    fn name(&self, number: u64) -> String {
        match self {
            Self::Stock(stock) => stock.key(number),
            Self::Replayed(objects) => objects.name(usize::try_from(number).unwrap_or(usize::MAX)),
        }
    }
}

/// What one look came to.
enum Looked {
    /// So many objects were there, and are removed.
    Removed(u64),
    /// Who asks may not list.
    NotAllowed,
}

/// Removes everything below a prefix; how many objects there were. Where listing is denied, what has one of the names, and
/// where nobody knows those it fails. It is looked until nothing is there; `is_doubtful`: requests were given up, which may be
/// carried out a moment later. Where a listing has shown fewer than are there, they are removed by their names.
pub(super) async fn clean(bed: &Bed, prefix: &str, made: Option<&[Made]>, is_doubtful: bool) -> Result<u64> {
    let deadline = Deadline::none(bed.clock.clone());
    let window = bed.budget.admit(0, &deadline).await?;
    let context = Context::new(deadline, window);
    let (mut removed, mut tries, mut doubt) = (0, 1, is_doubtful);
    for looks in 1.. {
        match look(bed, &context, prefix).await {
            Ok(Looked::Removed(0)) if doubt => {
                doubt = false;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            Ok(Looked::Removed(0)) => break,
            Ok(Looked::Removed(_)) if looks >= MOST_LOOKS => {
                let what = format!(
                    "objects lie below {prefix} however often they are removed: somebody writes there, or the store shows \
                     what is not there any more"
                );
                return Err(Error::new(Reason::Io, what));
            }
            Ok(Looked::Removed(more)) => removed += more,
            Ok(Looked::NotAllowed) => {
                let unknown = || {
                    let what =
                        format!("what lies below {prefix} may not be listed, and is not known by name");
                    Error::new(Reason::AccessDenied, what)
                };
                for made in made.ok_or_else(unknown)? {
                    removed += remove_known(bed, &context, made).await?;
                }
                return Ok(removed);
            }
            // Who may not remove an object will not be allowed to a moment later.
            Err(e) if tries == TRIES || e.kind() == ErrorKind::Denied => return Err(e),
            Err(e) => {
                tracing::debug!(error = %e, tries, "objects could not be removed");
                tries += 1;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
        }
    }
    let there: Vec<String> = made.into_iter().flatten().flat_map(Made::there).collect();
    let are_missing = removed < there.len() as u64;
    for names in there.chunks(PAGE).filter(|_| are_missing) {
        remove(bed, &context, names.to_vec()).await?;
    }
    Ok(removed.max(there.len() as u64))
}

/// Goes through all objects once, past those that cannot be removed; the error says why one could not.
async fn look(bed: &Bed, context: &Context, prefix: &str) -> Result<Looked> {
    let (mut after, mut removed, mut failed) = (None, 0, None);
    loop {
        let request = ListRequest { prefix: prefix.to_owned(), delimiter: None, after, limit: PAGE };
        let page = match bed.store.list(context, &bed.bucket, &request).await {
            Err(e) if e.kind() == ErrorKind::Denied => return Ok(Looked::NotAllowed),
            page => page?,
        };
        let names: Vec<String> = page.entries.iter().map(|entry| entry.name().to_owned()).collect();
        if let Some(other) = names.iter().find(|name| !name.starts_with(prefix)) {
            // Whatever such a store has is not ours to remove.
            let what = format!("asked for names that begin with {prefix}, the store lists {other}");
            return Err(Error::new(Reason::Io, what));
        }
        match remove(bed, context, names).await {
            Ok(more) => removed += more,
            Err(e) => failed = Some(e),
        }
        after = page.next;
        if after.is_none() {
            return failed.map_or(Ok(Looked::Removed(removed)), Err);
        }
    }
}

/// Removes whatever may have been made; how many names there were.
async fn remove_known(bed: &Bed, context: &Context, made: &Made) -> Result<u64> {
    tracing::debug!("objects cannot be listed: they are removed by their names");
    let (mut removed, mut failed, mut from) = (0, None, 0);
    while from < made.count() {
        let to = made.count().min(from + PAGE as u64);
        let mut tries = 1;
        loop {
            match remove(bed, context, (from..to).map(|number| made.name(number)).collect()).await {
                Ok(more) => break removed += more,
                Err(e) if tries == TRIES || e.kind() == ErrorKind::Denied => break failed = Some(e),
                Err(_) => {
                    tries += 1;
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
            }
        }
        from = to;
    }
    failed.map_or(Ok(removed), Err)
}

/// Removes what has one of the names; how many they are, or why one of them could not be removed.
async fn remove(bed: &Bed, context: &Context, names: Vec<String>) -> Result<u64> {
    let (mut removed, mut failed) = (0, None);
    let removing = names.into_iter().map(|name| async move {
        let address = Address::parse(bed.bucket.as_str(), &name)?;
        bed.store.delete(context, &address, Precondition::None).await
    });
    let mut removing = futures::stream::iter(removing).buffer_unordered(HANDS);
    while let Some(done) = removing.next().await {
        match done {
            Ok(_) => removed += 1,
            Err(e) => failed = Some(e),
        }
    }
    failed.map_or(Ok(removed), Err)
}
