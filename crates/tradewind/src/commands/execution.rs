//! Execution or dry run of the actions that `cp` and `sync` decided on.

use std::io::{self, Write as _};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use tradewind_transfer::copy::Resolved;
use tradewind_transfer::files::Links;
use tradewind_transfer::merge::Action;
use tradewind_transfer::workers::{self, ActionFeed};
use tradewind_transfer::{Copier, Endpoint, Item};

use super::CommandOutcome;
use super::summary::{TransferOutputFlags, print_failure, print_kept_markers, print_not_removed};
use super::terminal::Names;
use super::transfer::Session;
use crate::locations::Location;

/// The endpoint that a single source is copied to, and its name there.
pub(super) fn destination(
    session: &Session,
    to: &Location,
    name: &str,
) -> anyhow::Result<(Endpoint, String)> {
    match to {
        Location::Path(path) => {
            if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                return Ok((Session::directory(path, Links::Skip)?, name.to_owned()));
            }
            let own_name = path.file_name().and_then(|name| name.to_str());
            let own_name = own_name.with_context(|| format!("{} has no name in UTF-8", path.display()))?;
            let directory = Session::directory(path.parent().unwrap_or(Path::new("")), Links::Skip)?;
            Ok((directory, own_name.to_owned()))
        }
        Location::Objects(location) => {
            let is_below = location.key.is_empty() || location.key.ends_with('/');
            let key = if is_below { format!("{}{name}", location.key) } else { location.key.clone() };
            Ok((session.bucket(location)?, key))
        }
        Location::Standard => bail!("- is not a file"),
    }
}

/// Executes the decided actions.
pub(super) async fn execute_actions(
    session: &Session,
    copier: Arc<Copier>,
    actions: ActionFeed,
    output: TransferOutputFlags,
) -> anyhow::Result<CommandOutcome> {
    let display = output.start(session);
    let workers = session.transfer_context.max_concurrency();
    let outcome = workers::run_actions(workers, actions, &session.progress, move |action| {
        let copier = copier.clone();
        async move { copier.act(&action).await }
    });
    Ok(display.finish(&outcome.await?)?)
}

/// Prints what the decided actions would do, in their order. The comparisons that they need are made, several at a
/// time.
pub(super) async fn print_dry_run(
    session: &Session,
    copier: &Copier,
    actions: ActionFeed,
) -> anyhow::Result<CommandOutcome> {
    let mut out = io::stdout().lock();
    let mut outcome = CommandOutcome::Done;
    let names = Names::for_stdout();
    let describe = |endpoint: &Endpoint, item: &Item| names.show(&endpoint.describe(&item.name)).into_owned();
    let (from, to) = (|item: &Item| describe(&copier.from, item), |item: &Item| describe(&copier.to, item));
    let listed = futures::stream::unfold(actions, |mut actions| async {
        let next = actions.recv().await?;
        Some((next, actions))
    });
    let compared = listed.map(|next| async {
        let action = next?;
        match copier.resolve(&action).await {
            Ok(resolved) => {
                let is_skipped_removal = matches!(action, Action::SkipRemoval(_));
                let is_kept_marker = matches!(resolved, Some(Resolved::KeepMarker(_)));
                let line = resolved.and_then(|resolved| match resolved {
                    Resolved::Copy(item) => Some(format!("copy    {} to {}", from(item), to(item))),
                    Resolved::Remove(item) => Some(format!("remove  {}", to(item))),
                    Resolved::KeepMarker(_) => None,
                });
                Ok((line, u64::from(is_skipped_removal), u64::from(is_kept_marker)))
            }
            Err(error) => Err((action.item().name.clone(), error)),
        }
    });
    let mut results = pin!(compared.buffered(session.transfer_context.max_concurrency()));
    let (mut not_removed, mut kept_markers) = (0, 0);
    while let Some(result) = results.next().await {
        match result {
            Ok((line, skipped, kept)) => {
                not_removed += skipped;
                kept_markers += kept;
                if let Some(line) = line {
                    writeln!(out, "{line}")?;
                }
            }
            Err((name, error)) => {
                print_failure(&name, &error)?;
                outcome = CommandOutcome::FoundProblems;
            }
        }
    }
    print_not_removed(not_removed)?;
    print_kept_markers(kept_markers)?;
    Ok(outcome)
}
