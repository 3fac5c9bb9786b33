//! `tradewind cp`: files and objects from one place to another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::sync::mpsc;
use tradewind_transfer::copy::metadata_of;
use tradewind_transfer::files::{self, Directory};
use tradewind_transfer::objects::Objects;
use tradewind_transfer::{FoundItem, Moves, Outcome};

use super::Ended;
use super::transfer::{Session, TransferFlags, block_on, conclude};
use crate::places::{ObjectsPlace, Place};

/// Copy files and objects
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind cp photo.jpg s3://photos/2026/\n  \
    tradewind cp -r ./photos s3://photos/2026/\n  \
    tradewind cp -r s3://photos/2026/ ./photos")]
pub(super) struct Arguments {
    /// s3://BUCKET/KEY, a path, or - for standard input
    source: Place,
    /// s3://BUCKET/KEY, a path, or - for standard output
    destination: Place,
    /// Everything below the source
    #[arg(short, long)]
    recursive: bool,
    /// Follow symbolic links to files
    #[arg(long)]
    follow_symlinks: bool,
    #[command(flatten)]
    transfer: TransferFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    block_on(async move {
        let session = arguments.transfer.open()?;
        let outcome = match (&arguments.source, &arguments.destination) {
            (Place::Path(from), Place::Objects(to)) => upload(&session, &arguments, from, to).await?,
            (Place::Objects(from), Place::Path(to)) => download(&session, &arguments, from, to).await?,
            (from, to) => bail!("cannot copy from {from} to {to} yet"),
        };
        Ok(conclude(&outcome))
    })
}

/// What files become keys below: a prefix that names something inside it ends with a slash.
fn below(prefix: &str) -> String {
    if prefix.is_empty() || prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") }
}

async fn upload(
    session: &Session,
    arguments: &Arguments,
    from: &Path,
    to: &ObjectsPlace,
) -> anyhow::Result<Outcome> {
    let metadata = std::fs::metadata(from).with_context(|| format!("cannot read {}", from.display()))?;
    if metadata.is_dir() && !arguments.recursive {
        bail!("{} is a directory; copy what is in it with -r", from.display());
    }
    let (root, found, prefix) = if metadata.is_dir() {
        let found = files::find(from.to_owned(), arguments.follow_symlinks, session.progress.clone());
        (from.to_owned(), found, below(&to.key))
    } else {
        let name = from.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} has no name in UTF-8", from.display()))?;
        let is_below = to.key.is_empty() || to.key.ends_with('/');
        let key = if is_below { format!("{}{name}", to.key) } else { to.key.clone() };
        let modified = metadata.modified().map(Into::into).unwrap_or_default();
        let item = tradewind_transfer::Item { name: name.to_owned(), size: metadata.len(), modified };
        let outcome = single(session, item, {
            let (copier, objects, path) = (session.copier(), session.objects(to), from.to_owned());
            let copier = Arc::new(copier);
            move |item: tradewind_transfer::Item| {
                let (copier, objects, path, key) =
                    (copier.clone(), objects.clone(), path.clone(), key.clone());
                async move { copier.upload(path, &objects, &key, metadata_of(&item.name)).await }
            }
        });
        return outcome.await;
    };
    let (copier, objects) = (Arc::new(session.copier()), Arc::new(session.objects(to)));
    let root: Arc<PathBuf> = Arc::new(root);
    let prefix: Arc<str> = prefix.into();
    let moves = moves(session);
    let outcome = moves.run(found, move |item| {
        let (copier, objects, root, prefix) = (copier.clone(), objects.clone(), root.clone(), prefix.clone());
        async move {
            let key = format!("{prefix}{}", item.name);
            copier.upload(root.join(&item.name), &objects, &key, metadata_of(&item.name)).await
        }
    });
    Ok(outcome.await?)
}

async fn single<F, C>(session: &Session, item: tradewind_transfer::Item, carry: C) -> anyhow::Result<Outcome>
where
    F: Future<Output = tradewind_core::Result<u64>> + Send,
    C: Fn(tradewind_transfer::Item) -> F + Clone + Send + Sync + 'static,
{
    let (found, items): (mpsc::Sender<FoundItem>, _) = mpsc::channel(1);
    session.progress.found(item.size);
    session.progress.found_all();
    found.send(Ok(item)).await.ok();
    drop(found);
    Ok(Moves { workers: 1, progress: session.progress.clone() }.run(items, carry).await?)
}

async fn download(
    session: &Session,
    arguments: &Arguments,
    from: &ObjectsPlace,
    to: &Path,
) -> anyhow::Result<Outcome> {
    if !arguments.recursive {
        let name = from.key.rsplit('/').next().unwrap_or_default();
        if name.is_empty() {
            bail!("{from} is no object; copy all below it with -r");
        }
        let is_below = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
        let (directory, name) = if is_below {
            (to.to_owned(), name.to_owned())
        } else {
            let name =
                to.file_name().and_then(|name| name.to_str()).context("the destination has no name")?;
            (to.parent().unwrap_or(Path::new("")).to_owned(), name.to_owned())
        };
        let directory = Arc::new(Directory::new(directory, session.progress.clone())?);
        let (copier, objects) = (Arc::new(session.copier()), Arc::new(session.objects(from)));
        let item = tradewind_transfer::Item { name, size: 0, modified: Default::default() };
        let key: Arc<str> = from.key.as_str().into();
        return single(session, item, move |item| {
            let (copier, objects, directory, key) =
                (copier.clone(), objects.clone(), directory.clone(), key.clone());
            async move { copier.download(&objects, &key, None, (&directory, &item.name)).await }
        })
        .await;
    }
    let objects = Objects { prefix: below(&from.key), ..session.objects(from) };
    let found = objects.clone().find(session.carrier.clone(), session.progress.clone());
    let directory = Arc::new(Directory::new(to.to_owned(), session.progress.clone())?);
    let (copier, objects) = (Arc::new(session.copier()), Arc::new(objects));
    let moves = moves(session);
    let outcome = moves.run(found, move |item| {
        let (copier, objects, directory) = (copier.clone(), objects.clone(), directory.clone());
        async move {
            let key = format!("{}{}", objects.prefix, item.name);
            copier.download(&objects, &key, Some(item.size), (&directory, &item.name)).await
        }
    });
    Ok(outcome.await?)
}

fn moves(session: &Session) -> Moves {
    Moves { workers: session.carrier.plan().requests, progress: session.progress.clone() }
}
