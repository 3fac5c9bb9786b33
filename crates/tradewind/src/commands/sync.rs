//! `tradewind sync`: makes a destination tree match a source tree.

use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason};
use tradewind_transfer::files::Links;
use tradewind_transfer::freshness::StoreClock;
use tradewind_transfer::merge::{Comparison, Merge};
use tradewind_transfer::watch::Watch;
use tradewind_transfer::workers::sync_actions;
use tradewind_transfer::{Copier, Endpoint, ItemFeed, NamedError};

use super::CommandOutcome;
use super::class_flags::ClassFlags;
use super::execution::{execute_actions, print_dry_run};
use super::filter::FilterFlags;
use super::signals::CaughtSignal;
use super::summary::TransferOutputFlags;
use super::transfer::{CopierOptions, LimitFlags, Session, StoreFlags, block_on, block_until_signal};
use super::watch::{self, WatchFlags};
use crate::locations::Location;

/// Make a destination tree match a source tree
///
/// Copies what is missing at the destination, has another size there, or is newer at the source. Both trees are
/// compared while files are transferred. What was copied in the second of its last change may be copied once more.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind sync ./photos s3://photos/2026/\n  \
    tradewind sync s3://photos/2026/ ./photos --delete --dry-run\n  \
    tradewind sync --preserve s3://backup/etc/ ./etc\n  \
    tradewind sync --watch --delete ./photos s3://photos/2026/\n  \
    tradewind sync --class-rules rules.toml ./photos s3://photos/2026/\n  \
    tradewind sync s3://photos/ s3://photos-copy/ --checksum\n  \
    tradewind sync west://photos/ disk://photos/ --config stores.toml")]
pub(super) struct Arguments {
    /// s3://BUCKET/PREFIX (or swift://, or NAME:// from the settings), or a directory
    source: Location,
    /// s3://BUCKET/PREFIX (or swift://, or NAME:// from the settings), or a directory
    destination: Location,
    /// Delete what exists only at the destination
    #[arg(long)]
    delete: bool,
    /// Proceed if the source is empty; with --delete, everything at the destination is then deleted
    #[arg(long)]
    allow_empty_source: bool,
    /// Compare full checksums instead of times where sizes are equal
    #[arg(long, conflicts_with = "size_only")]
    checksum: bool,
    /// Compare sizes only
    #[arg(long)]
    size_only: bool,
    /// Copy the targets of symbolic links to files [default: skip links]
    #[arg(long)]
    follow_symlinks: bool,
    /// Preserve times, modes and owners of files, as metadata of objects, and compare by the preserved times
    #[arg(long)]
    preserve: bool,
    /// Print what would be done, but change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    watching: WatchFlags,
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    class: ClassFlags,
    #[command(flatten)]
    output: TransferOutputFlags,
    #[command(flatten)]
    limit: LimitFlags,
    #[command(flatten)]
    store: StoreFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    if arguments.watching.watch {
        return block_until_signal(watch::SHUTDOWN_GRACE, |stopped| follow(arguments, stopped));
    }
    block_on(async move {
        let session = open(&arguments)?;
        let destination_exists = destination_exists(&arguments.destination);
        let (copier, comparison) = copier(&session, &arguments)?;
        let filter = arguments.filter.read()?;
        let source = copier.from.find(&session.transfer_context, &filter);
        // A destination directory that does not exist yet is empty.
        let destination = if destination_exists {
            copier.to.find(&session.transfer_context, &filter)
        } else {
            ItemFeed::empty()
        };
        let clock = StoreClock::new(&copier.from, &copier.to);
        let mut merge = Merge::new(source, destination, comparison).with_clock(clock);
        if !arguments.allow_empty_source
            && let Some(error) = empty_source_error(&copier, arguments.delete)
        {
            merge = merge.with_empty_source_error(error, arguments.delete);
        }
        let actions = sync_actions(merge, filter, arguments.delete, session.progress.clone());
        if arguments.dry_run {
            return print_dry_run(&session, &copier, actions).await;
        }
        execute_actions(&session, copier, actions, arguments.output).await
    })
}

fn open(arguments: &Arguments) -> anyhow::Result<Session> {
    let store = arguments.store.with_rate_limit(arguments.limit);
    store.open([arguments.source.scheme(), arguments.destination.scheme()])
}

/// Makes the destination match the source, and then follows changes.
async fn follow(
    arguments: Arguments,
    stopped: oneshot::Receiver<CaughtSignal>,
) -> anyhow::Result<CommandOutcome> {
    let session = open(&arguments)?;
    let (copier, comparison) = copier(&session, &arguments)?;
    watch::check(&copier.from, &copier.to)?;
    let (filter, removes, debounce) =
        (arguments.filter.read()?, arguments.delete, arguments.watching.options());
    let if_empty =
        if removes && !arguments.allow_empty_source { empty_source_error(&copier, true) } else { None };
    let watching =
        Watch { copier, comparison, filter, removes, if_empty, debounce, grace: watch::SHUTDOWN_GRACE };
    watch::run(watching, arguments.output, stopped).await
}

/// The copier between the two locations, and the comparison to use.
fn copier(session: &Session, arguments: &Arguments) -> anyhow::Result<(Arc<Copier>, Comparison)> {
    let links = if arguments.follow_symlinks { Links::Follow } else { Links::Skip };
    let mut from = endpoint(session, &arguments.source, links, true)?;
    if arguments.watching.watch
        && let Endpoint::Files(directory, links) = from
    {
        from = Endpoint::Files(directory.reopening(), links);
    }
    let to = endpoint(session, &arguments.destination, links, false)?;
    let comparison = match (arguments.checksum, arguments.size_only) {
        (true, _) => Comparison::Checksum,
        (_, true) => Comparison::Size,
        _ if arguments.preserve => preserved(&from, &to),
        _ => Comparison::SizeAndTime,
    };
    let classes =
        arguments.class.read(&arguments.source, &arguments.destination, arguments.store.access())?;
    let options = CopierOptions { preserves_attributes: arguments.preserve, classes };
    let copier = session.copier(from, to, options);
    copier.check_disjoint()?;
    Ok((copier, comparison))
}

/// The failure to report if the source is empty; `None` if an empty source is acceptable.
fn empty_source_error(copier: &Copier, removes: bool) -> Option<NamedError> {
    if !removes {
        return copier.from.empty_prefix_error("check its spelling");
    }
    let (from, to) = (copier.from.describe(""), copier.to.describe(""));
    let why = format!(
        "nothing at {from}: --delete would remove everything at {to}; if that is meant, add --allow-empty-source"
    );
    Some((from, Error::new(Reason::NoSuchKey, why)))
}

/// The comparison for `--preserve`. Times between files, or between objects, are comparable as they are.
const fn preserved(from: &Endpoint, to: &Endpoint) -> Comparison {
    match (from, to) {
        (Endpoint::Files(..), Endpoint::Objects(_)) | (Endpoint::Objects(_), Endpoint::Files(..)) => {
            Comparison::PreservedTime
        }
        (Endpoint::Files(..), Endpoint::Files(..)) | (Endpoint::Objects(_), Endpoint::Objects(_)) => {
            Comparison::SizeAndTime
        }
    }
}

/// Returns true if the location can be listed. A missing directory is created with its first file.
fn destination_exists(location: &Location) -> bool {
    !matches!(location, Location::Path(path) if !path.exists())
}

fn endpoint(
    session: &Session,
    location: &Location,
    links: Links,
    must_exist: bool,
) -> anyhow::Result<Endpoint> {
    match location {
        Location::Path(path) if !path.is_dir() && (must_exist || path.exists()) => {
            bail!("{} is not a directory", path.display())
        }
        Location::Path(path) => Session::directory(path, links),
        Location::Objects(location) => session.objects_below(location),
        Location::Standard => bail!("- is not a directory"),
    }
}
