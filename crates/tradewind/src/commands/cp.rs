//! `tradewind cp`: files and objects from one place to another.

use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use tokio::sync::mpsc;
use tradewind_core::Address;
use tradewind_core::error::{Error, Reason};
use tradewind_transfer::copy::metadata_of;
use tradewind_transfer::files::Links;
use tradewind_transfer::moves::{self, Done, copy_all};
use tradewind_transfer::writer::Writer;
use tradewind_transfer::{End, Item, Outcome};
use tradewind_volume::{Fetch, store_stream};

use super::Ended;
use super::bundle::{BundleFlags, Tree};
use super::filter::FilterFlags;
use super::report::{ReportFlags, is_named};
use super::transfer::{LimitFlags, Session, StoreFlags, block_on, rehearse};
use crate::places::{ObjectsPlace, Place};

/// Bytes that are read from standard input at once.
const PIECE_BYTES: usize = 256 << 10;

/// Copy files and objects
///
/// A directory, or a prefix, is copied with -r: what is below it goes below the destination. A destination that ends
/// with a slash, or is a directory, is one to copy into.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind cp photo.jpg s3://photos/2026/\n  \
    tradewind cp -r ./photos s3://photos/2026/\n  \
    tradewind cp -r s3://photos/2026/ ./photos --exclude '*.tmp'\n  \
    tradewind cp -r s3://photos/2026/ swift://photos/2026/\n  \
    tradewind cp -r --preserve /etc s3://backup/etc/\n  \
    tradewind cp --max-bandwidth 20MiB big.iso s3://images/\n  \
    tar c data | tradewind cp - s3://backup/data.tar\n  \
    tradewind cp s3://backup/data.tar - | tar x\n  \
    tradewind cp --bundle ./photos s3://backup/photos.tar\n  \
    tradewind cp --bundle s3://backup/photos.tar ./photos --exclude '*.raw'\n  \
    tradewind cp s3://backup/photos.tar --member 2026/photo.jpg .")]
pub(super) struct Arguments {
    /// s3://BUCKET/KEY (or swift://, or NAME:// of the settings), a path, or - for standard input
    source: Place,
    /// s3://BUCKET/KEY (or swift://, or NAME:// of the settings), a path, or - for standard output
    destination: Place,
    /// Copy everything below the source
    #[arg(short, long)]
    recursive: bool,
    /// Copy what symbolic links to files lead to (they are passed over otherwise)
    #[arg(long)]
    follow_symlinks: bool,
    /// Keep times, modes and owners of files, as metadata of objects
    #[arg(long)]
    preserve: bool,
    /// Say what would be copied, and copy nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    bundles: BundleFlags,
    #[command(flatten)]
    report: ReportFlags,
    #[command(flatten)]
    limit: LimitFlags,
    #[command(flatten)]
    store: StoreFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    block_on(async move {
        let store = arguments.store.limited(arguments.limit);
        let session = store.open([arguments.source.scheme(), arguments.destination.scheme()])?;
        let (from, to) = (&arguments.source, &arguments.destination);
        if arguments.bundles.bundle {
            let (links, report) = (links(&arguments), arguments.report);
            let (filter, is_rehearsal) = (arguments.filter.read()?, arguments.dry_run);
            let tree = Tree { filter, links, is_rehearsal, report };
            return arguments.bundles.copy(&session, from, to, tree).await;
        }
        match (from, to) {
            (Place::Standard, _) | (_, Place::Standard) if arguments.preserve => {
                bail!("--preserve keeps what a file has; standard input and output have nothing to keep")
            }
            (from, to) if arguments.dry_run && !arguments.recursive => {
                writeln!(io::stdout(), "copy    {from} to {to}")?;
                Ok(Ended::Done)
            }
            places if let Some(name) = &arguments.bundles.member => {
                BundleFlags::copy_member(&session, name, places, arguments.report).await
            }
            (Place::Standard, Place::Objects(to)) => from_standard(&session, to).await,
            (Place::Objects(from), Place::Standard) => to_standard(&session, from).await,
            (Place::Standard, _) | (_, Place::Standard) => {
                bail!("- is standard input or output, and the other place must be s3://BUCKET/KEY")
            }
            (from, to) if arguments.recursive => trees(&session, &arguments, from, to).await,
            (from, to) => one(&session, &arguments, from, to).await,
        }
    })
}

fn links(arguments: &Arguments) -> Links {
    if arguments.follow_symlinks { Links::Follow } else { Links::Skip }
}

fn end(session: &Session, place: &Place, links: Links) -> anyhow::Result<End> {
    match place {
        Place::Path(path) => Session::directory(path, links),
        Place::Objects(place) => session.below(place),
        Place::Standard => bail!("- is no directory"),
    }
}

async fn trees(session: &Session, arguments: &Arguments, from: &Place, to: &Place) -> anyhow::Result<Ended> {
    if let Place::Path(path) = from
        && !path.is_dir()
    {
        bail!("{} is not a directory; copy a file without -r", path.display());
    }
    let (here, there) = (end(session, from, links(arguments))?, end(session, to, Links::Skip)?);
    let copier = session.copier(here, there, arguments.preserve);
    copier.check_apart()?;
    let found = copier.from.find(&session.carrier);
    let decided = copy_all(found, arguments.filter.read()?, session.progress.clone());
    if arguments.dry_run {
        return rehearse(&copier, decided).await;
    }
    session.carry_out(copier, decided, arguments.report).await
}

/// The end that a single source is at, its name there, and its name for people.
fn source(session: &Session, from: &Place) -> anyhow::Result<(End, String, String)> {
    match from {
        Place::Path(path) => {
            if path.is_dir() {
                bail!("{} is a directory; copy what is below it with -r", path.display());
            }
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("{} has no name in UTF-8", path.display()))?.to_owned();
            let directory = Session::directory(path.parent().unwrap_or(Path::new("")), Links::Follow)?;
            Ok((directory, name.clone(), name))
        }
        Place::Objects(place) => {
            let name = place.key.rsplit('/').next().unwrap_or_default().to_owned();
            if name.is_empty() {
                bail!("{place} is not one object; copy everything below it with -r");
            }
            Ok((session.bucket(place)?, place.key.clone(), name))
        }
        Place::Standard => bail!("- is no file"),
    }
}

/// The end that a single source goes to, and its name there.
pub(super) fn destination(session: &Session, to: &Place, name: &str) -> anyhow::Result<(End, String)> {
    match to {
        Place::Path(path) => {
            if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                return Ok((Session::directory(path, Links::Skip)?, name.to_owned()));
            }
            let own = path.file_name().and_then(|name| name.to_str());
            let own = own.with_context(|| format!("{} has no name in UTF-8", path.display()))?;
            Ok((Session::directory(path.parent().unwrap_or(Path::new("")), Links::Skip)?, own.to_owned()))
        }
        Place::Objects(place) => {
            let is_below = place.key.is_empty() || place.key.ends_with('/');
            let key = if is_below { format!("{}{name}", place.key) } else { place.key.clone() };
            Ok((session.bucket(place)?, key))
        }
        Place::Standard => bail!("- is no file"),
    }
}

async fn one(session: &Session, arguments: &Arguments, from: &Place, to: &Place) -> anyhow::Result<Ended> {
    let (from, name, shown) = source(session, from)?;
    let (to, to_name) = destination(session, to, &shown)?;
    let copier = session.copier(from, to, arguments.preserve);
    let (decided, actions) = mpsc::channel(1);
    let item = Item { name: name.clone(), size: 0, modified: Default::default() };
    let report = arguments.report.begin(session);
    // It has room for one.
    let _ = decided.try_send(Ok(tradewind_transfer::merge::Action::Copy(item)));
    drop(decided);
    let outcome: Outcome = moves::run(1, actions, &session.progress, move |_| {
        let (copier, name, to_name) = (copier.clone(), name.clone(), to_name.clone());
        async move { copier.copy_as(&name, None, &to_name).await.map(Done::Copied) }
    })
    .await?;
    Ok(report.conclude(&outcome)?)
}

async fn from_standard(session: &Session, to: &ObjectsPlace) -> anyhow::Result<Ended> {
    if to.key.is_empty() || to.key.ends_with('/') {
        bail!("{to} is not one object; what comes from standard input needs a whole key");
    }
    let (pieces, mut received) = mpsc::channel(2);
    // A read that nobody waits for any more ends with the process.
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = match input.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    piece.truncate(read);
                    Ok(Bytes::from(piece))
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    Err(Error::with_source(Reason::Defect, format!("cannot read standard input: {e}"), e))
                }
            };
            let is_over = read.is_err();
            if pieces.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    let input = futures::stream::poll_fn(move |cx| received.poll_recv(cx));
    let address = Address::parse(to.bucket.as_str(), &to.key)?;
    store_stream(&session.carrier, &session.store(&to.scheme)?, &address, input, metadata_of(&to.key))
        .await?;
    Ok(Ended::Done)
}

/// Writes an object to standard output.
pub(super) async fn to_standard(session: &Session, from: &ObjectsPlace) -> anyhow::Result<Ended> {
    let address = Address::parse(from.bucket.as_str(), &from.key)?;
    let fetch = Fetch::open(&session.carrier, &session.store(&from.scheme)?, &address, None).await?;
    let writer = Writer::new(io::stdout());
    let all = match fetch.write_in_order(|piece| writer.write(piece)).await {
        Ok(_) => writer.finish().await,
        Err(e) => Err(e),
    };
    written(all, from)
}

/// How a command ends that has written what is at a place to standard output.
pub(super) fn written(all: tradewind_core::Result<()>, from: &ObjectsPlace) -> anyhow::Result<Ended> {
    match all {
        // Whoever reads has had enough: nothing to complain of.
        Err(e) if e.reason() == Reason::Cancelled => {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        Err(e) if is_named(&e.to_string(), &from.key) => return Err(e.into()),
        Err(e) => return Err(anyhow::Error::new(e).context(from.to_string())),
        Ok(()) => {}
    }
    Ok(Ended::Done)
}
