//! Removes the objects of a workspace and reports those that cannot be removed.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::condition::Precondition;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{Address, Context};

use crate::drive::BenchEnv;
use crate::object_set::ObjectSet;
use crate::replay::objects::ReplayObjects;

/// Concurrent delete requests.
const DELETE_CONCURRENCY: usize = 64;
/// Maximum attempts to remove objects, and the pause between two attempts.
const MAX_ATTEMPTS: u32 = 4;
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum passes over the listing, for stores that keep listing removed objects.
const MAX_PASSES: u32 = 50;
/// Keys per listing page, which are removed before the next page.
const PAGE_KEYS: usize = 1000;

/// Objects with known names.
#[derive(Debug, Clone)]
pub(super) enum KnownObjects {
    ObjectSet(Arc<ObjectSet>),
    Replayed(Arc<ReplayObjects>),
    /// Names, and true for those that were certainly written.
    Named(Vec<(String, bool)>),
}

impl KnownObjects {
    fn count(&self) -> u64 {
        match self {
            Self::ObjectSet(object_set) => object_set.allocated(),
            Self::Replayed(objects) => objects.count() as u64,
            Self::Named(names) => names.len() as u64,
        }
    }

    /// The numbers of the objects that certainly exist: written, and not removed since.
    fn existing(&self) -> Vec<u64> {
        match self {
            Self::ObjectSet(object_set) => object_set.numbers(),
            Self::Replayed(_) => Vec::new(),
            Self::Named(names) => {
                (0..).zip(names).filter(|(_, (_, exists))| *exists).map(|(number, _)| number).collect()
            }
        }
    }

    /// The number of objects that certainly exist.
    fn count_existing(&self) -> usize {
        match self {
            Self::ObjectSet(object_set) => object_set.len(),
            Self::Replayed(_) => 0,
            Self::Named(names) => names.iter().filter(|(_, exists)| *exists).count(),
        }
    }

    fn name(&self, number: u64) -> String {
        match self {
            Self::ObjectSet(object_set) => object_set.key(number),
            Self::Replayed(objects) => objects.name(usize::try_from(number).unwrap_or(usize::MAX)),
            Self::Named(names) => names[usize::try_from(number).unwrap_or(usize::MAX)].0.clone(),
        }
    }
}

/// The result of one pass over the listing.
enum PassResult {
    /// No objects were listed.
    Empty,
    /// Objects were listed and removed.
    Removed,
    /// Listing is not permitted.
    ListingDenied,
}

/// Removes everything below a prefix and returns the number of objects. Passes are repeated until the listing is empty.
/// If listing is denied, `known_objects` are removed by name; without them, that is an error. If the listing showed
/// fewer objects than certainly exist, the latter are removed by name as well. `is_uncertain` means that requests were
/// cancelled and the store may still carry them out, so a second empty listing is required.
pub(super) async fn remove_all(
    env: &BenchEnv,
    prefix: &str,
    known_objects: Option<&[KnownObjects]>,
    is_uncertain: bool,
) -> Result<u64> {
    let deadline = Deadline::none(env.clock.clone());
    let window = env.budget.admit(0, &deadline).await?;
    let context = Context::new(deadline, window);
    let (mut removed, mut attempt, mut needs_recheck) = (0, 1, is_uncertain);
    for pass in 1.. {
        match remove_listed(env, &context, prefix, &mut removed).await {
            Ok(PassResult::Empty) if needs_recheck => {
                needs_recheck = false;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Ok(PassResult::Empty) => break,
            Ok(PassResult::Removed) if pass >= MAX_PASSES => {
                let message = format!(
                    "objects below {prefix} are still listed after they were removed {MAX_PASSES} times: another \
                     client writes there, or the store lists removed objects"
                );
                return Err(Error::new(Reason::Io, message));
            }
            Ok(PassResult::Removed) => {}
            Ok(PassResult::ListingDenied) => {
                let names_unknown = || {
                    let message = format!(
                        "cannot remove objects below {prefix}: listing is denied and names are unknown"
                    );
                    Error::new(Reason::AccessDenied, message)
                };
                tracing::debug!("listing is denied: objects are removed by name");
                for known_objects in known_objects.ok_or_else(names_unknown)? {
                    let names = (0..known_objects.count()).map(|number| known_objects.name(number));
                    removed += remove_by_name(env, &context, names).await?;
                }
                return Ok(removed);
            }
            // Without the bucket no object is left.
            Err(e) if e.reason() == Reason::NoSuchBucket => return Ok(removed),
            // A denied delete will not be permitted on a retry.
            Err(e) if attempt == MAX_ATTEMPTS || e.kind() == ErrorKind::Denied => return Err(e),
            Err(e) => {
                tracing::debug!(error = %e, tries = attempt, "objects could not be removed");
                attempt += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
    let existing: usize = known_objects.into_iter().flatten().map(KnownObjects::count_existing).sum();
    if removed < existing as u64 {
        for known_objects in known_objects.into_iter().flatten() {
            let names = known_objects.existing().into_iter().map(|number| known_objects.name(number));
            remove_by_name(env, &context, names).await?;
        }
    }
    Ok(removed.max(existing as u64))
}

/// Makes one pass over the listing and removes every object. Continues past failed deletes and returns one of their
/// errors. `removed` counts the successful ones.
async fn remove_listed(
    env: &BenchEnv,
    context: &Context,
    prefix: &str,
    removed: &mut u64,
) -> Result<PassResult> {
    let (mut after, mut failed, mut result) = (None, None, PassResult::Empty);
    loop {
        let request = ListRequest { prefix: prefix.to_owned(), delimiter: None, after, limit: PAGE_KEYS };
        let page = match env.store.list(context, &env.bucket, &request).await {
            Err(e) if e.kind() == ErrorKind::Denied => return Ok(PassResult::ListingDenied),
            page => page?,
        };
        let names: Vec<String> = page.entries.iter().map(|entry| entry.name().to_owned()).collect();
        if let Some(other) = names.iter().find(|name| !name.starts_with(prefix)) {
            // Such a store ignores the prefix: deleting what it lists would destroy objects of other users.
            let message = format!(
                "the store listed {other} although only names with the prefix {prefix} were requested"
            );
            return Err(Error::new(Reason::Io, message));
        }
        if !names.is_empty() {
            result = PassResult::Removed;
        }
        let (removed_here, error) = remove(env, context, names).await;
        *removed += removed_here;
        failed = error.or(failed);
        after = page.next;
        if after.is_none() {
            return failed.map_or(Ok(result), Err);
        }
    }
}

/// Removes objects by name and returns the number of names. Objects may be missing. Continues past objects that cannot
/// be removed after all attempts and returns one of their errors.
async fn remove_by_name(
    env: &BenchEnv,
    context: &Context,
    mut names: impl Iterator<Item = String>,
) -> Result<u64> {
    let (mut removed, mut failed) = (0, None);
    loop {
        let page: Vec<String> = names.by_ref().take(PAGE_KEYS).collect();
        if page.is_empty() {
            return failed.map_or(Ok(removed), Err);
        }
        let mut attempt = 1;
        loop {
            match remove(env, context, page.clone()).await {
                (more, None) => break removed += more,
                (_, Some(e)) if attempt == MAX_ATTEMPTS || e.kind() == ErrorKind::Denied => {
                    break failed = Some(e);
                }
                _ => {
                    attempt += 1;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

/// Removes objects by name. Returns the number of successful deletes and the error of a failed one, if any.
async fn remove(env: &BenchEnv, context: &Context, names: Vec<String>) -> (u64, Option<Error>) {
    let (mut removed, mut failed) = (0, None);
    let removing = names.into_iter().map(|name| async move {
        let address = Address::parse(env.bucket.as_str(), &name)?;
        env.store.delete(context, &address, Precondition::None).await
    });
    let mut removing = futures::stream::iter(removing).buffer_unordered(DELETE_CONCURRENCY);
    while let Some(done) = removing.next().await {
        match done {
            Ok(_) => removed += 1,
            Err(e) => failed = Some(e),
        }
    }
    (removed, failed)
}
