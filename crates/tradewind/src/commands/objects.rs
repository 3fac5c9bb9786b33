//! Commands on single buckets and objects: `ls`, `rm`, `cat`, `stat`, `mb`, `rb`. Listings of versions are in
//! [`versions`](super::versions).

use std::io::{self, BufWriter, Write as _};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;
use tradewind_core::listing::ListEntry;
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, BucketName, VersionId, Versioning};
use tradewind_transfer::filter::Filter;
use tradewind_transfer::merge::Action;
use tradewind_transfer::objects::Objects;
use tradewind_transfer::workers::{self, copy_actions};
use tradewind_transfer::{Endpoint, Item, VersionItem};

use super::bundle;
use super::filter::FilterFlags;
use super::standard_io::write_to_stdout;
use super::summary::{TransferOutputFlags, rfc3339};
use super::terminal::{Names, printable_json};
use super::transfer::{LimitFlags, RequestFlags, Session, StoreFlags, block_on};
use super::versions::{self, describe_version, parse_version};
use super::{CommandOutcome, UsageError};
use crate::locations::{ObjectsLocation, StoreLocation};
use crate::stores::{MissingDirectory, S3};

/// List buckets or objects
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind ls\n  \
    tradewind ls s3://photos/2026/\n  \
    tradewind ls swift://\n  \
    tradewind ls -r --json s3://photos/\n  \
    tradewind ls --versions s3://photos/2026/photo.jpg\n  \
    tradewind ls --bundle s3://backup/photos.tar")]
pub(super) struct Ls {
    /// s3://BUCKET/PREFIX; NAME:// lists the buckets of a store [default: s3://]
    #[arg(value_name = "URL")]
    location: Option<StoreLocation>,
    /// List everything below the prefix
    #[arg(short, long)]
    recursive: bool,
    /// List all versions and delete markers, the newest of each key first: time, size or DELETED, version id, "latest"
    /// if it is the newest, key
    #[arg(long, requires = "location")]
    versions: bool,
    /// List the contents of a bundle that cp --bundle created
    #[arg(long, requires = "location", conflicts_with_all = ["recursive", "versions"])]
    bundle: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: RequestFlags,
}

/// Remove objects
///
/// In a bucket with versioning, a removal adds a delete marker: the object is no longer listed, but its versions stay and
/// occupy space. --version-id and --all-versions remove versions permanently.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind rm s3://photos/2026/old.jpg\n  \
    tradewind rm -r s3://photos/2025/ --exclude '*.raw'\n  \
    tradewind rm --version-id vaaaaaaaaaaaaabcd s3://photos/2026/old.jpg\n  \
    tradewind rm -r --all-versions s3://photos/2025/ --dry-run")]
pub(super) struct Rm {
    /// s3://BUCKET/KEY
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Remove everything below the prefix
    #[arg(short, long)]
    recursive: bool,
    /// Remove this version of one object permanently; of a delete marker, this restores the object [default: the current
    /// version]
    #[arg(long, value_name = "ID", value_parser = parse_version, conflicts_with = "recursive")]
    version_id: Option<VersionId>,
    /// Remove all versions and delete markers below the prefix permanently
    #[arg(long, requires = "recursive")]
    all_versions: bool,
    /// Print what would be removed, but remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    output: TransferOutputFlags,
    #[command(flatten)]
    store: RequestFlags,
}

/// Write objects to standard output
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind cat s3://logs/today.log | less\n  \
    tradewind cat --max-bandwidth 5MiB s3://backup/data.tar | tar x\n  \
    tradewind cat --version-id vaaaaaaaaaaaaabcd s3://logs/today.log\n  \
    tradewind cat s3://backup/logs.tar --member 2026/11/30.log")]
pub(super) struct Cat {
    /// s3://BUCKET/KEY
    #[arg(value_name = "URL", required = true)]
    locations: Vec<ObjectsLocation>,
    /// Write this version of one object [default: the current version]
    #[arg(long, value_name = "ID", value_parser = parse_version, conflicts_with = "member")]
    version_id: Option<VersionId>,
    /// Write only this file out of each bundle that cp --bundle created
    #[arg(long, value_name = "NAME")]
    member: Option<String>,
    #[command(flatten)]
    limit: LimitFlags,
    #[command(flatten)]
    store: StoreFlags,
}

/// Show an object's metadata
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind stat s3://photos/2026/photo.jpg\n  \
    tradewind stat --json --version-id vaaaaaaaaaaaaabcd s3://photos/2026/photo.jpg")]
pub(super) struct Stat {
    /// s3://BUCKET/KEY
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Show this version [default: the current version]
    #[arg(long, value_name = "ID", value_parser = parse_version)]
    version_id: Option<VersionId>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: RequestFlags,
}

/// Create a bucket
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind mb s3://photos\n  \
    tradewind mb --versioning s3://photos\n  \
    tradewind mb disk://photos --config stores.toml")]
pub(super) struct Mb {
    /// s3://BUCKET
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Enable versioning
    #[arg(long)]
    versioning: bool,
    #[command(flatten)]
    store: RequestFlags,
}

/// Remove an empty bucket
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind rb s3://photos\n  \
    tradewind rm -r s3://photos && tradewind rb s3://photos")]
pub(super) struct Rb {
    /// s3://BUCKET
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    #[command(flatten)]
    store: RequestFlags,
}

pub(super) fn ls(arguments: Ls) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let location = match &arguments.location {
            Some(StoreLocation::Objects(location)) => Ok(location),
            Some(StoreLocation::Buckets(scheme)) => Err(scheme.as_str()),
            None => Err(S3),
        };
        let scheme = location.map_or_else(|scheme| scheme, |location| &location.scheme);
        let session = arguments.store.open([Some(scheme)])?;
        if arguments.bundle {
            let Ok(location) = location else {
                bail!("{scheme}:// is not a bundle; write {scheme}://BUCKET/NAME.tar")
            };
            return bundle::list(&session, location, arguments.json).await;
        }
        let delimiter = (!arguments.recursive).then_some("/");
        if arguments.versions {
            let Ok(location) = location else {
                return Err(UsageError(format!("--versions lists objects; write {scheme}://BUCKET")).into());
            };
            return versions::list(&session, location, delimiter, arguments.json).await;
        }
        let (mut out, names) = (BufWriter::new(io::stdout().lock()), Names::for_stdout());
        let Ok(location) = location else {
            let slot = session.transfer_context.acquire_request_permits(0).await?;
            for bucket in session.store(scheme)?.list_buckets(&slot.context).await? {
                if arguments.json {
                    writeln!(
                        out,
                        "{}",
                        json!({"bucket": bucket.name.as_str(), "created": bucket.created.map(rfc3339)})
                    )?;
                } else {
                    let created = bucket.created.map_or_else(|| "-".to_owned(), rfc3339);
                    writeln!(out, "{created:20}  {scheme}://{}", bucket.name)?;
                }
            }
            out.flush()?;
            return Ok(CommandOutcome::Done);
        };
        let objects = session.objects(location)?;
        let (mut after, mut is_empty) = (None, true);
        loop {
            let page = objects.list_page(&session.transfer_context, delimiter, after).await?;
            for entry in &page.entries {
                is_empty = false;
                match entry {
                    ListEntry::Key(key, object) if arguments.json => {
                        let (etag, modified) = (object.etag.as_str(), rfc3339(object.modified));
                        let line =
                            json!({"key": key, "size": object.size, "modified": modified, "etag": etag});
                        writeln!(out, "{}", printable_json(&line.to_string()))?;
                    }
                    ListEntry::Key(key, object) => {
                        let (modified, key) = (rfc3339(object.modified), names.show(key));
                        writeln!(out, "{modified}  {:>12}  {key}", object.size)?;
                    }
                    ListEntry::CommonPrefix(prefix) if arguments.json => {
                        writeln!(out, "{}", printable_json(&json!({"prefix": prefix}).to_string()))?;
                    }
                    ListEntry::CommonPrefix(prefix) => {
                        writeln!(out, "{:>20}  {:>12}  {}", "", "DIR", names.show(prefix))?;
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        out.flush()?;
        if is_empty && !location.key.is_empty() {
            bail!("there is nothing at {location}");
        }
        Ok(CommandOutcome::Done)
    })
}

pub(super) fn rm(arguments: Rm) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let session = arguments.store.open([Some(&*arguments.location.scheme)])?;
        if !arguments.recursive {
            return rm_one(&session, &arguments).await;
        }
        let endpoint = session.objects_below(&arguments.location)?;
        let filter = arguments.filter.read()?;
        let Endpoint::Objects(objects) = endpoint else { return Ok(CommandOutcome::Done) };
        match (arguments.all_versions, arguments.dry_run) {
            (true, true) => print_versions(&session, objects, &filter).await,
            (true, false) => {
                let display = arguments.output.start(&session);
                let outcome =
                    objects.remove_versions(session.transfer_context.clone(), filter, &session.progress);
                Ok(display.finish(&outcome.await?)?)
            }
            (false, _) => rm_below(&session, objects, filter, &arguments).await,
        }
    })
}

/// Removes the objects below a prefix.
async fn rm_below(
    session: &Session,
    objects: Objects,
    filter: Filter,
    arguments: &Rm,
) -> anyhow::Result<CommandOutcome> {
    let found = objects.clone().find(session.transfer_context.clone());
    let mut actions = copy_actions(found, filter, session.progress.clone(), None);
    if arguments.dry_run {
        while let Some(next) = actions.recv().await {
            print_removal(&objects, next.map_err(|(_, e)| e)?.item())?;
        }
        return Ok(CommandOutcome::Done);
    }
    let display = arguments.output.start(session);
    let context = session.transfer_context.clone();
    let workers = context.max_concurrency();
    let outcome = workers::run_actions(workers, actions, &session.progress, move |action: Action| {
        let (context, objects) = (context.clone(), objects.clone());
        async move { objects.remove_item(&context, action.item()).await }
    });
    Ok(display.finish(&outcome.await?)?)
}

/// Prints which versions below a prefix would be removed.
async fn print_versions(
    session: &Session,
    objects: Objects,
    filter: &Filter,
) -> anyhow::Result<CommandOutcome> {
    let mut found = objects.clone().find_versions(session.transfer_context.clone());
    while let Some(next) = found.recv().await {
        let VersionItem { item, .. } = next.map_err(|(_, e)| e)?;
        if filter.accepts(&item.name) {
            print_removal(&objects, &item)?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn print_removal(objects: &Objects, Item { name, version, .. }: &Item) -> io::Result<()> {
    let line = format!("{}{}", objects.describe(name), describe_version(version.as_ref()));
    writeln!(io::stdout(), "remove  {}", Names::for_stdout().show(&line))
}

/// The address of one object. Fails if the location is a bucket.
pub(super) fn object_address(location: &ObjectsLocation) -> anyhow::Result<Address> {
    if location.key.is_empty() {
        let ObjectsLocation { scheme, bucket, .. } = location;
        bail!("{scheme}://{bucket} is a bucket, not an object; list it with ls");
    }
    Ok(Address::parse(location.bucket.as_str(), &location.key)?)
}

async fn rm_one(session: &Session, arguments: &Rm) -> anyhow::Result<CommandOutcome> {
    let location = &arguments.location;
    if location.key.is_empty() {
        bail!("{location} is not one object; remove everything below it with -r");
    }
    let address = object_address(location)?.with_version(arguments.version_id.clone());
    // A key that ends in a slash may be an object. Removals of missing objects succeed, but here -r was likely meant.
    if location.key.ends_with('/')
        && !session.objects(location)?.exists(&session.transfer_context, &address).await?
    {
        bail!("{location} is not one object; remove everything below it with -r");
    }
    let (version, names) = (arguments.version_id.as_ref(), Names::for_stdout());
    if arguments.dry_run {
        let line = format!("{location}{}", describe_version(version));
        writeln!(io::stdout(), "remove  {}", names.show(&line))?;
        return Ok(CommandOutcome::Done);
    }
    let deleted = session.objects(location)?.remove(&session.transfer_context, &address).await?;
    if let Some(version) = version.filter(|_| !deleted.existed) {
        bail!("{location} has no version {version}: nothing was removed");
    }
    let is_silent = arguments.output.is_quiet() || arguments.output.is_json();
    if let Some(marker) = deleted.version.filter(|_| version.is_none() && deleted.is_delete_marker)
        && !is_silent
    {
        let line = format!("{location} has a delete marker now, version {marker}; its versions stay");
        writeln!(io::stdout(), "{}", names.show(&line))?;
    }
    Ok(CommandOutcome::Done)
}

pub(super) fn cat(arguments: Cat) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let version = arguments.version_id.as_ref();
        if version.is_some() && arguments.locations.len() > 1 {
            let message = "--version-id names a version of one object; write one location";
            return Err(UsageError(message.to_owned()).into());
        }
        let store = arguments.store.with_rate_limit(arguments.limit).streaming();
        let session = store.open(arguments.locations.iter().map(|location| Some(&*location.scheme)))?;
        for location in &arguments.locations {
            match &arguments.member {
                Some(name) => bundle::write_member_to_stdout(&session, location, name).await?,
                None => write_to_stdout(&session, location, version).await?,
            };
        }
        Ok(CommandOutcome::Done)
    })
}

pub(super) fn stat(arguments: Stat) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let location = &arguments.location;
        let session = arguments.store.open([Some(&*location.scheme)])?;
        let address = object_address(location)?.with_version(arguments.version_id.clone());
        let slot = session.transfer_context.acquire_request_permits(0).await?;
        let store = session.store(&location.scheme)?;
        let info = store.head(&slot.context, &address, GetRequest::default()).await?.info;
        let checksums: Vec<(String, String)> = info
            .checksums
            .iter()
            .map(|checksum| (checksum.algorithm().name().to_owned(), checksum.to_base64()))
            .collect();
        let mut out = io::stdout().lock();
        if arguments.json {
            let user: serde_json::Map<_, _> =
                info.metadata.user.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let tags: serde_json::Map<_, _> =
                info.metadata.tags.pairs().iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let checksums: serde_json::Map<_, _> =
                checksums.into_iter().map(|(name, value)| (name, json!(value))).collect();
            let line = json!({
                "bucket": location.bucket.as_str(), "key": location.key, "size": info.size,
                "version_id": info.version.as_ref().map(VersionId::as_str),
                "modified": rfc3339(info.modified), "etag": info.etag.as_str(),
                "content_type": info.metadata.headers.content_type, "checksums": checksums,
                "checksum_type": info.scope.name(), "class": info.metadata.classes.object.map(|c| c.value()),
                "class_ranges": info.metadata.classes.format_ranges(),
                "metadata": user, "tags": tags, "parts": info.parts,
            });
            writeln!(out, "{}", printable_json(&line.to_string()))?;
            return Ok(CommandOutcome::Done);
        }
        let names = Names::for_stdout();
        let mut line = |name: &str, value: &str| writeln!(out, "{name:<14} {}", names.show(value));
        line("object", &location.to_string())?;
        line("size", &info.size.to_string())?;
        line("modified", &rfc3339(info.modified))?;
        if let Some(version) = &info.version {
            line("version", version.as_str())?;
        }
        line("etag", info.etag.as_str())?;
        for (name, value) in &checksums {
            line(&name.to_lowercase(), &format!("{value} ({})", info.scope.name()))?;
        }
        if let Some(parts) = info.parts {
            line("parts", &parts.to_string())?;
        }
        if let Some(kind) = &info.metadata.headers.content_type {
            line("content-type", kind)?;
        }
        if let Some(class) = info.metadata.classes.object {
            line("class", &class.value().to_string())?;
        }
        if let Some(ranges) = info.metadata.classes.format_ranges() {
            line("class-ranges", &ranges)?;
        }
        for (name, value) in &info.metadata.user {
            line("metadata", &format!("{name}={value}"))?;
        }
        for (name, value) in info.metadata.tags.pairs() {
            line("tag", &format!("{name}={value}"))?;
        }
        Ok(CommandOutcome::Done)
    })
}

/// The bucket of a location. Fails if the location is not a whole bucket.
pub(super) fn whole_bucket(location: &ObjectsLocation) -> anyhow::Result<&BucketName> {
    if !location.key.is_empty() {
        bail!("{location} is more than a bucket; write {}://{}", location.scheme, location.bucket);
    }
    Ok(&location.bucket)
}

pub(super) fn mb(arguments: Mb) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let bucket = whole_bucket(&arguments.location)?;
        let scheme = &*arguments.location.scheme;
        let session = arguments.store.open_or_create([Some(scheme)], MissingDirectory::Create)?;
        let slot = session.transfer_context.acquire_request_permits(0).await?;
        let store = session.store(scheme)?;
        store.create_bucket(&slot.context, bucket).await?;
        if arguments.versioning {
            let enabled = store.set_versioning(&slot.context, bucket, Versioning::Enabled).await;
            enabled.with_context(|| format!("{} was created without versioning", arguments.location))?;
        }
        Ok(CommandOutcome::Done)
    })
}

pub(super) fn rb(arguments: Rb) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let bucket = whole_bucket(&arguments.location)?;
        let scheme = &*arguments.location.scheme;
        let session = arguments.store.open([Some(scheme)])?;
        let slot = session.transfer_context.acquire_request_permits(0).await?;
        session.store(scheme)?.delete_bucket(&slot.context, bucket).await?;
        Ok(CommandOutcome::Done)
    })
}
