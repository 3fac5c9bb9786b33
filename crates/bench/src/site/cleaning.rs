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
    /// Names, and whether something was written by each for certain.
    Named(Vec<(String, bool)>),
}

impl Made {
    fn count(&self) -> u64 {
        match self {
            Self::Stock(stock) => stock.given_out(),
            Self::Replayed(objects) => objects.count() as u64,
            Self::Named(names) => names.len() as u64,
        }
    }

    /// The numbers of those that are there for certain: they were written, and not removed since.
    fn there(&self) -> Vec<u64> {
        match self {
            Self::Stock(stock) => stock.numbers(),
            Self::Replayed(_) => Vec::new(),
            Self::Named(names) => {
                (0..).zip(names).filter(|(_, (_, is_there))| *is_there).map(|(number, _)| number).collect()
            }
        }
    }

    /// How many those are.
    fn count_there(&self) -> usize {
        match self {
            Self::Stock(stock) => stock.len(),
            Self::Replayed(_) => 0,
            Self::Named(names) => names.iter().filter(|(_, is_there)| *is_there).count(),
        }
    }

    fn name(&self, number: u64) -> String {
        match self {
            Self::Stock(stock) => stock.key(number),
            Self::Replayed(objects) => objects.name(usize::try_from(number).unwrap_or(usize::MAX)),
            Self::Named(names) => names[usize::try_from(number).unwrap_or(usize::MAX)].0.clone(),
        }
    }
}

/// What one look came to.
enum Looked {
    /// Nothing was there.
    Nothing,
    /// Objects were there, and are removed.
    Something,
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
        match look(bed, &context, prefix, &mut removed).await {
            Ok(Looked::Nothing) if doubt => {
                doubt = false;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            Ok(Looked::Nothing) => break,
            Ok(Looked::Something) if looks >= MOST_LOOKS => {
                let what = format!(
                    "objects lie below {prefix} however often they are removed: somebody writes there, or the store shows \
                     what is not there any more"
                );
                return Err(Error::new(Reason::Io, what));
            }
            Ok(Looked::Something) => {}
            Ok(Looked::NotAllowed) => {
                let unknown = || {
                    let what =
                        format!("what lies below {prefix} may not be listed, and is not known by name");
                    Error::new(Reason::AccessDenied, what)
                };
                tracing::debug!("objects cannot be listed: they are removed by their names");
                for made in made.ok_or_else(unknown)? {
                    let names = (0..made.count()).map(|number| made.name(number));
                    removed += remove_by_name(bed, &context, names).await?;
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
    let there: usize = made.into_iter().flatten().map(Made::count_there).sum();
    if removed < there as u64 {
        for made in made.into_iter().flatten() {
            let names = made.there().into_iter().map(|number| made.name(number));
            remove_by_name(bed, &context, names).await?;
        }
    }
    Ok(removed.max(there as u64))
}

/// Goes through all objects once, past those that cannot be removed; the error says why one could not. `removed` counts the others.
async fn look(bed: &Bed, context: &Context, prefix: &str, removed: &mut u64) -> Result<Looked> {
    let (mut after, mut failed, mut looked) = (None, None, Looked::Nothing);
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
        if !names.is_empty() {
            looked = Looked::Something;
        }
        let (more, why) = remove(bed, context, names).await;
        *removed += more;
        failed = why.or(failed);
        after = page.next;
        if after.is_none() {
            return failed.map_or(Ok(looked), Err);
        }
    }
}

/// Removes what has one of the names, some of which nothing may have; how many names they were. It goes past what cannot be removed
/// however often it is tried.
async fn remove_by_name(
    bed: &Bed,
    context: &Context,
    mut names: impl Iterator<Item = String>,
) -> Result<u64> {
    let (mut removed, mut failed) = (0, None);
    loop {
        let page: Vec<String> = names.by_ref().take(PAGE).collect();
        if page.is_empty() {
            return failed.map_or(Ok(removed), Err);
        }
        let mut tries = 1;
        loop {
            match remove(bed, context, page.clone()).await {
                (more, None) => break removed += more,
                (_, Some(e)) if tries == TRIES || e.kind() == ErrorKind::Denied => break failed = Some(e),
                _ => {
                    tries += 1;
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
            }
        }
    }
}

/// Removes what has one of the names; how many of them, and why one of the others could not be removed.
async fn remove(bed: &Bed, context: &Context, names: Vec<String>) -> (u64, Option<Error>) {
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
    (removed, failed)
}
