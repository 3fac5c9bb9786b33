//! `tradewind cp`: copies files and objects.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::sync::mpsc;
use tradewind_core::VersionId;
use tradewind_core::error::{Error, Reason};
use tradewind_transfer::files::Links;
use tradewind_transfer::workers::{self, ActionResult, copy_actions};
use tradewind_transfer::{Endpoint, Item, Outcome};

use super::bundle::{BundleFlags, TreeOptions};
use super::class_flags::ClassFlags;
use super::execution::{destination, execute_actions, print_dry_run};
use super::filter::FilterFlags;
use super::standard_io::{store_stdin, write_to_stdout};
use super::summary::TransferOutputFlags;
use super::terminal::Names;
use super::transfer::{CopierOptions, LimitFlags, Session, StoreFlags, block_on, size_in_range};
use super::versions::{describe_version, parse_version};
use super::{CommandOutcome, UsageError};
use crate::locations::{Location, ObjectsLocation};
use crate::settings::ByteSize;

/// Largest expected size of standard input: more than any store has in one object.
const MAX_EXPECTED_BYTES: u64 = 1 << 50;

/// Copy files and objects
///
/// Without -r, one file or object is copied; if the destination ends with a slash or is a directory, the copy gets the
/// source's name there. With -r, everything below the source is copied directly below the destination; the source's
/// own name is not added.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind cp photo.jpg s3://photos/2026/\n  \
    tradewind cp -r ./photos s3://photos/2026/\n  \
    tradewind cp -r s3://photos/2026/ ./photos --exclude '*.tmp'\n  \
    tradewind cp -r s3://photos/2026/ swift://photos/2026/\n  \
    tradewind cp -r --preserve /etc s3://backup/etc/\n  \
    tradewind cp --class files notes.txt s3://documents/\n  \
    tradewind cp -r --class-rules rules.toml ./photos s3://photos/2026/\n  \
    tradewind cp --max-bandwidth 20MiB big.iso s3://images/\n  \
    tar c data | tradewind cp - s3://backup/data.tar\n  \
    cat /dev/vdb | tradewind cp --expected-size 500GiB - s3://backup/disk.img\n  \
    tradewind cp s3://backup/data.tar - | tar x\n  \
    tradewind cp --version-id vaaaaaaaaaaaaabcd s3://photos/2026/photo.jpg old.jpg\n  \
    tradewind cp --bundle ./photos s3://backup/photos.tar\n  \
    tradewind cp --bundle s3://backup/photos.tar ./photos --exclude '*.raw'\n  \
    tradewind cp s3://backup/photos.tar --member 2026/photo.jpg .")]
pub(super) struct Arguments {
    /// s3://BUCKET/KEY (or swift://, or NAME:// from the settings), a path, or - for standard input
    source: Location,
    /// s3://BUCKET/KEY (or swift://, or NAME:// from the settings), a path, or - for standard output
    destination: Location,
    /// Copy everything below the source
    #[arg(short, long)]
    recursive: bool,
    /// Copy the targets of symbolic links to files [default: skip links]
    #[arg(long)]
    follow_symlinks: bool,
    /// Preserve times, modes and owners of files, as metadata of objects
    #[arg(long)]
    preserve: bool,
    /// Copy this version of one object [default: the current version]
    #[arg(long, value_name = "ID", value_parser = parse_version,
        conflicts_with_all = ["recursive", "bundle", "member"])]
    version_id: Option<VersionId>,
    /// Expected size of standard input: chooses the size of parts for a stream that would need more than 10,000
    #[arg(long, value_name = "SIZE", value_parser = expected_size, conflicts_with_all = ["recursive", "bundle", "member"])]
    expected_size: Option<ByteSize>,
    /// Print what would be copied, but copy nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    class: ClassFlags,
    #[command(flatten)]
    bundles: BundleFlags,
    #[command(flatten)]
    output: TransferOutputFlags,
    #[command(flatten)]
    limit: LimitFlags,
    #[command(flatten)]
    store: StoreFlags,
}

fn expected_size(text: &str) -> Result<ByteSize, String> {
    size_in_range(text, 0, MAX_EXPECTED_BYTES)
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let version = arguments.version_id.as_ref();
        if version.is_some() && !matches!(arguments.source, Location::Objects(_)) {
            let message = format!(
                "--version-id names a version of an object, but the source {} is not in a store",
                arguments.source
            );
            return Err(UsageError(message).into());
        }
        if arguments.expected_size.is_some() && !matches!(arguments.source, Location::Standard) {
            let message = "--expected-size is the size of standard input, so the source must be -";
            return Err(UsageError(message.to_owned()).into());
        }
        let classes =
            arguments.class.read(&arguments.source, &arguments.destination, arguments.store.access())?;
        if arguments.bundles.bundle && !classes.0.is_empty() {
            let message =
                "--bundle creates one object of many files, so it accepts neither --class nor --class-rules";
            return Err(UsageError(message.to_owned()).into());
        }
        let store = arguments.store.with_rate_limit(arguments.limit);
        let session = store.open([arguments.source.scheme(), arguments.destination.scheme()])?;
        let (from, to) = (&arguments.source, &arguments.destination);
        if arguments.bundles.bundle {
            let (links, output) = (links(&arguments), arguments.output);
            let (filter, is_dry_run) = (arguments.filter.read()?, arguments.dry_run);
            let tree = TreeOptions { filter, links, is_dry_run, output };
            return arguments.bundles.copy(&session, from, to, tree).await;
        }
        match (from, to) {
            (Location::Standard, _) | (_, Location::Standard) if arguments.preserve => {
                bail!("--preserve applies to files; standard input and output have no attributes to preserve")
            }
            (from, to) if arguments.dry_run && !arguments.recursive => {
                let line = format!("copy    {from}{} to {to}", describe_version(version));
                writeln!(io::stdout(), "{}", Names::for_stdout().show(&line))?;
                Ok(CommandOutcome::Done)
            }
            locations if let Some(name) = &arguments.bundles.member => {
                BundleFlags::copy_member(&session, name, locations, arguments.output).await
            }
            (Location::Standard, Location::Objects(to)) => {
                store_stdin(&session, to, &classes, arguments.expected_size).await
            }
            (Location::Objects(from), Location::Standard) => write_to_stdout(&session, from, version).await,
            (Location::Standard, _) | (_, Location::Standard) => {
                bail!("with - (standard input or output), the other argument must be s3://BUCKET/KEY")
            }
            _ => {
                let options = CopierOptions { preserves_attributes: arguments.preserve, classes };
                match arguments.recursive {
                    true => copy_tree(&session, &arguments, options).await,
                    false => copy_one(&session, &arguments, options).await,
                }
            }
        }
    })
}

fn links(arguments: &Arguments) -> Links {
    if arguments.follow_symlinks { Links::Follow } else { Links::Skip }
}

/// The directory or prefix that a location names, as an endpoint of a recursive copy.
fn tree_endpoint(session: &Session, location: &Location, links: Links) -> anyhow::Result<Endpoint> {
    match location {
        Location::Path(path) => Session::directory(path, links),
        Location::Objects(location) => session.objects_below(location),
        Location::Standard => bail!("- is not a directory"),
    }
}

async fn copy_tree(
    session: &Session,
    arguments: &Arguments,
    options: CopierOptions,
) -> anyhow::Result<CommandOutcome> {
    let (from, to) = (&arguments.source, &arguments.destination);
    if let Location::Path(path) = from
        && !path.is_dir()
    {
        bail!("{} is not a directory; copy a file without -r", path.display());
    }
    let from = tree_endpoint(session, from, links(arguments))?;
    let to = tree_endpoint(session, to, Links::Skip)?;
    let copier = session.copier(from, to, options);
    copier.check_disjoint()?;
    let filter = arguments.filter.read()?;
    let items = match &copier.from {
        Endpoint::Objects(from) if !arguments.dry_run => {
            from.clone().find_and_prewarm(session.transfer_context.clone())
        }
        from => from.find(&session.transfer_context, &filter),
    };
    let if_empty = copier.from.empty_prefix_error("to copy a single object, leave out -r");
    let actions = copy_actions(items, filter, session.progress.clone(), if_empty);
    if arguments.dry_run {
        return print_dry_run(session, &copier, actions).await;
    }
    execute_actions(session, copier, actions, arguments.output).await
}

/// The endpoint of a single source, its name there, and its file name.
fn source(session: &Session, from: &Location) -> anyhow::Result<(Endpoint, String, String)> {
    match from {
        Location::Path(path) => {
            if path.is_dir() {
                bail!("{} is a directory; use -r to copy everything below it", path.display());
            }
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("{} has no name in UTF-8", path.display()))?.to_owned();
            let directory = Session::directory(path.parent().unwrap_or(Path::new("")), Links::Follow)?;
            Ok((directory, name.clone(), name))
        }
        Location::Objects(location) => {
            if location.key.is_empty() {
                return Err(no_single_object(location).into());
            }
            Ok((session.bucket(location)?, location.key.clone(), last_component(&location.key).to_owned()))
        }
        Location::Standard => bail!("- is not a file"),
    }
}

/// The last component of a key, with the slash at its end if it has one.
fn last_component(key: &str) -> &str {
    let start = key.strip_suffix('/').unwrap_or(key).rfind('/').map_or(0, |slash| slash + 1);
    &key[start..]
}

/// The error for a location that names a bucket, or a key ending in `/` without an object.
fn no_single_object(location: &ObjectsLocation) -> Error {
    let why = format!("{location} is not one object; copy everything below it with -r");
    Error::new(Reason::NoSuchKey, why)
}

async fn copy_one(
    session: &Session,
    arguments: &Arguments,
    options: CopierOptions,
) -> anyhow::Result<CommandOutcome> {
    let (from, to) = (&arguments.source, &arguments.destination);
    let folder = match from {
        Location::Objects(location) if location.key.ends_with('/') => Some(location.clone()),
        _ => None,
    };
    let (from, name, file_name) = source(session, from)?;
    let (to, to_name) = destination(session, to, &file_name)?;
    let copier = session.copier(from, to, options);
    let (sender, actions) = mpsc::channel(1);
    let version = arguments.version_id.clone();
    let item = Item {
        name,
        size: 0,
        modified: Default::default(),
        changed: None,
        nanos: Default::default(),
        version,
    };
    let display = arguments.output.start(session);
    // Cannot fail: the channel has capacity for one item.
    let _ = sender.try_send(Ok(tradewind_transfer::merge::Action::Copy(item)));
    drop(sender);
    let outcome: Outcome = workers::run_actions(1, actions, &session.progress, move |action| {
        let (copier, to_name, folder) = (copier.clone(), to_name.clone(), folder.clone());
        async move {
            let copied = copier.copy_as(action.item(), None, &to_name).await.map(ActionResult::Copied);
            copied.map_err(|e| match folder {
                Some(location) if e.reason() == Reason::NoSuchKey => no_single_object(&location),
                _ => e,
            })
        }
    })
    .await?;
    Ok(display.finish(&outcome)?)
}
