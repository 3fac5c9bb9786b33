//! Versions of objects on the command line: `ls --versions`, `versioning`, and the flag `--version-id`.

use std::io::{self, BufWriter, Write as _};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tradewind_core::listing::ListEntry;
use tradewind_core::version::ListedVersion;
use tradewind_core::{VersionId, Versioning};

use super::CommandOutcome;
use super::objects::whole_bucket;
use super::summary::rfc3339;
use super::terminal::{Names, printable_json};
use super::transfer::{RequestFlags, Session, block_on};
use crate::locations::ObjectsLocation;

/// Show or change the versioning of a bucket
///
/// Prints off, enabled or suspended. Enabled: a write keeps the versions before it, and a removal adds a delete marker.
/// Suspended: writes and removals replace only the version with the id null; all others stay. Versioning that was
/// enabled can be suspended, but not turned off.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind versioning s3://photos\n  \
    tradewind versioning s3://photos --enable")]
pub(super) struct VersioningArguments {
    /// s3://BUCKET
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Keep all versions from now on
    #[arg(long, conflicts_with = "suspend")]
    enable: bool,
    /// Keep no further versions; those that exist stay
    #[arg(long)]
    suspend: bool,
    #[command(flatten)]
    store: RequestFlags,
}

/// Parses the value of `--version-id`.
pub(super) fn parse_version(text: &str) -> Result<VersionId, String> {
    VersionId::parse(text).map_err(|e| e.to_string())
}

/// The part of a line that names a version; empty for the current one.
pub(super) fn describe_version(version: Option<&VersionId>) -> String {
    version.map_or_else(String::new, |version| format!(" (version {version})"))
}

pub(super) fn versioning(arguments: VersioningArguments) -> anyhow::Result<CommandOutcome> {
    block_on(async move {
        let bucket = whole_bucket(&arguments.location)?;
        let scheme = &*arguments.location.scheme;
        let session = arguments.store.open([Some(scheme)])?;
        let slot = session.transfer_context.acquire_request_permits(0).await?;
        let store = session.store(scheme)?;
        let requested = match (arguments.enable, arguments.suspend) {
            (true, _) => Some(Versioning::Enabled),
            (false, true) => Some(Versioning::Suspended),
            (false, false) => None,
        };
        if let Some(requested) = requested {
            store.set_versioning(&slot.context, bucket, requested).await?;
        }
        let state = match store.versioning(&slot.context, bucket).await? {
            Versioning::Off => "off",
            Versioning::Enabled => "enabled",
            Versioning::Suspended => "suspended",
        };
        writeln!(io::stdout(), "{state}")?;
        Ok(CommandOutcome::Done)
    })
}

/// Prints the versions and delete markers of the objects whose keys begin with the location's key, with common prefixes
/// rolled up at `delimiter`.
pub(super) async fn list(
    session: &Session,
    location: &ObjectsLocation,
    delimiter: Option<&str>,
    is_json: bool,
) -> anyhow::Result<CommandOutcome> {
    let (mut out, names) = (BufWriter::new(io::stdout().lock()), Names::for_stdout());
    let objects = session.objects(location)?;
    let (mut after, mut is_empty) = (None, true);
    loop {
        let page = objects.list_versions_page(&session.transfer_context, delimiter, after).await?;
        for entry in &page.entries {
            is_empty = false;
            let line = if is_json { json_line(entry) } else { names.show(&text_line(entry)).into_owned() };
            writeln!(out, "{line}")?;
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
}

fn json_line(entry: &ListEntry<ListedVersion>) -> String {
    let line = match entry {
        ListEntry::Key(key, listed) => json!({
            "key": key, "version_id": listed.version.as_str(), "is_latest": listed.is_latest,
            "is_delete_marker": listed.object.is_none(), "size": listed.object.as_ref().map(|object| object.size),
            "etag": listed.object.as_ref().map(|object| object.etag.as_str()), "modified": rfc3339(listed.modified),
        }),
        ListEntry::CommonPrefix(prefix) => json!({"prefix": prefix}),
    };
    printable_json(&line.to_string())
}

fn text_line(entry: &ListEntry<ListedVersion>) -> String {
    match entry {
        ListEntry::Key(key, listed) => {
            let (modified, version) = (rfc3339(listed.modified), listed.version.as_str());
            let size = listed.object.as_ref().map_or("DELETED".to_owned(), |object| object.size.to_string());
            let latest = if listed.is_latest { "latest" } else { "" };
            format!("{modified}  {size:>12}  {version:<17}  {latest:<6}  {key}")
        }
        ListEntry::CommonPrefix(prefix) => {
            format!("{:>20}  {:>12}  {:<17}  {:<6}  {prefix}", "", "DIR", "", "")
        }
    }
}
