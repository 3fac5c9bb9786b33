//! `tradewind class encode | decode | set | show`: classes of data (`docs/classes.md`). `policy` and `reload` ask a running
//! server ([`policy`]).

mod policy;
mod sections;

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::json;
use tradewind_core::class::{ClassRange, ClassUpdate, format};
use tradewind_core::condition::ETagMatch;
use tradewind_core::store::{CopyRequest, GetRequest};
use tradewind_core::{
    Address, Class, Classes, Metadata, ObjectInfo, Precondition, ReadConditions, Retention, SystemClock,
    Timestamp, VersionId,
};
use tradewind_model::class_policy::{self, ClassPolicyTable};
use tradewind_parallel::copy_within_store;

use super::class_flags::find_class;
use super::objects::object_address;
use super::transfer::{RequestFlags, Session, block_on};
use super::versions::parse_version;
use super::{CommandOutcome, UsageError};
use crate::locations::ObjectsLocation;

/// Show and change classes of data, by which a client tells a store what its data is
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Encode(sections::Encode),
    Decode(sections::Decode),
    Set(Set),
    Show(Show),
    Policy(policy::Policy),
    Reload(policy::Reload),
}

/// Change the classes of an object without writing it again
///
/// --class, --ranges and --retention change only what they name; --file replaces all classes by those of a class file.
/// ETag, modification time and version stay. Stores other than Tradewind's cannot do that: there, --rewrite copies the object
/// onto itself with the new classes, which changes its modification time and adds a version if the bucket keeps versions.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind class set --class files s3://documents/notes.txt\n  \
    tradewind class set --ranges 0-64-25,1024-32-26 s3://images/disk.img\n  \
    tradewind class set --file disk.cls s3://images/disk.img\n  \
    tradewind class set --retention 3600 s3://documents/notes.txt\n  \
    tradewind class set --remove s3://documents/notes.txt\n  \
    tradewind class set --rewrite --class files s3://documents/notes.txt")]
pub(super) struct Set {
    /// Class of the object, 0 to 31 or a name
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Classes of ranges, as OFFSET-LENGTH-CLASS in sectors of 512 bytes, separated by commas, in ascending order; an empty list
    /// removes them
    #[arg(long, value_name = "LIST", value_parser = parse_ranges)]
    ranges: Option<RangeList>,
    /// Class file, as written by class encode
    #[arg(long, value_name = "FILE", conflicts_with_all = ["class", "ranges"])]
    file: Option<PathBuf>,
    /// Seconds for which caches give the object a higher priority, which decays to that of its class; 0 ends that
    #[arg(long, value_name = "SECONDS", value_parser = parse_retention)]
    retention: Option<RetentionSeconds>,
    /// Remove all classes and the retention
    #[arg(long, conflicts_with_all = ["class", "ranges", "file", "retention"])]
    remove: bool,
    /// Copy the object onto itself with the new classes
    #[arg(long, conflicts_with = "version_id")]
    rewrite: bool,
    /// Change this version [default: the current version]
    #[arg(long, value_name = "ID", value_parser = parse_version)]
    version_id: Option<VersionId>,
    /// s3://BUCKET/KEY
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    #[command(flatten)]
    store: RequestFlags,
}

/// Show the classes of an object, with the name and priority that the settings file or the default policy gives each
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind class show s3://images/disk.img\n  \
    tradewind class show --json s3://images/disk.img")]
pub(super) struct Show {
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

/// Ranges of one argument.
#[derive(Debug, Clone)]
struct RangeList(Vec<ClassRange>);

/// A retention that begins when the command runs; `None` ends the present one.
#[derive(Debug, Clone, Copy)]
struct RetentionSeconds(Option<Retention>);

/// Parses a number of seconds from now on.
fn parse_retention(text: &str) -> Result<RetentionSeconds, String> {
    Retention::parse_seconds(text, now()).map(RetentionSeconds).map_err(|error| error.to_string())
}

fn now() -> Timestamp {
    SystemClock::shared().wall()
}

/// Parses ranges; empty text is none.
fn parse_ranges(text: &str) -> Result<RangeList, String> {
    if text.trim().is_empty() {
        return Ok(RangeList(Vec::new()));
    }
    Classes::parse_ranges(text).map(RangeList).map_err(|error| error.to_string())
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Encode(arguments) => sections::encode(&arguments),
        Command::Decode(arguments) => sections::decode(&arguments),
        Command::Set(arguments) => block_on(set(arguments)),
        Command::Show(arguments) => block_on(show(arguments)),
        Command::Policy(arguments) => policy::policy(arguments),
        Command::Reload(arguments) => policy::reload(&arguments),
    }
}

async fn set(arguments: Set) -> anyhow::Result<CommandOutcome> {
    let section = match &arguments.file {
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Some(format::decode(&bytes).with_context(|| path.display().to_string())?)
        }
        None => None,
    };
    let is_change = arguments.class.is_some()
        || arguments.ranges.is_some()
        || arguments.retention.is_some()
        || arguments.remove;
    if section.is_none() && !is_change {
        return Err(UsageError(
            "class set needs --class, --ranges, --retention, --file or --remove".to_owned(),
        )
        .into());
    }
    let class =
        arguments.class.as_ref().map(|class| find_class(class, arguments.store.access())).transpose()?;
    let session = arguments.store.open([Some(&*arguments.location.scheme)])?;
    let address = object_address(&arguments.location)?.with_version(arguments.version_id.clone());
    let store = session.store(&arguments.location.scheme)?;
    let retention = arguments.retention.map(|RetentionSeconds(retention)| retention);
    let update = match section {
        Some(section) => {
            let size = head(&session, &arguments.location, &address).await?.size;
            ClassUpdate { retention, ..ClassUpdate::replace(section.classes_for(size)?) }
        }
        None if arguments.remove => {
            ClassUpdate { retention: Some(None), ..ClassUpdate::replace(Classes::default()) }
        }
        None => {
            let ranges = arguments.ranges.map(|RangeList(ranges)| ranges);
            ClassUpdate { object: class.map(Some), ranges, retention }
        }
    };
    if arguments.rewrite {
        let info = head(&session, &arguments.location, &address).await?;
        let mut request = rewrite(address, info, &update)?;
        if !store.capabilities().conditional_writes {
            request.precondition = Precondition::None;
        }
        copy_within_store(&session.transfer_context, &store, request).await?;
        return Ok(CommandOutcome::Done);
    }
    let slot = session.transfer_context.acquire_request_permits(0).await?;
    store.set_classes(&slot.context, &address, update).await?;
    Ok(CommandOutcome::Done)
}

/// A copy of an object onto itself with other classes. It fails if the object changes before it is written.
fn rewrite(address: Address, info: ObjectInfo, update: &ClassUpdate) -> anyhow::Result<CopyRequest> {
    let classes = update.apply(&info.metadata.classes, info.size)?;
    let source_conditions = ReadConditions {
        if_match: Some(ETagMatch::OneOf(vec![info.etag.clone()])),
        ..ReadConditions::default()
    };
    Ok(CopyRequest {
        source: address.clone(),
        source_conditions,
        destination: address,
        metadata: Some(Metadata { classes, ..info.metadata }),
        tags: None,
        algorithm: None,
        precondition: Precondition::Matches(info.etag),
        etag: Default::default(),
    })
}

async fn head(
    session: &Session,
    location: &ObjectsLocation,
    address: &Address,
) -> anyhow::Result<ObjectInfo> {
    let slot = session.transfer_context.acquire_request_permits(0).await?;
    let store = session.store(&location.scheme)?;
    Ok(store.head(&slot.context, address, GetRequest::default()).await?.info)
}

async fn show(arguments: Show) -> anyhow::Result<CommandOutcome> {
    let policies = arguments.store.access().class_policies()?;
    let session = arguments.store.open([Some(&*arguments.location.scheme)])?;
    let address = object_address(&arguments.location)?.with_version(arguments.version_id.clone());
    let info = head(&session, &arguments.location, &address).await?;
    print_classes(&info.metadata.classes, info.size, &policies, arguments.json)?;
    Ok(CommandOutcome::Done)
}

/// Prints the classes of an object of `size` bytes.
fn print_classes(classes: &Classes, size: u64, policies: &ClassPolicyTable, is_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let unlabelled = class_policy::class_for_size(size);
    let remaining = classes.retention.map_or(0, |retention| retention.remaining_seconds(now()));
    if is_json {
        let label = |class: Class| {
            json!({
                "class": class.value(), "name": policies.name(class),
                "priority": policies.priority(class).value(),
            })
        };
        let ranges = classes.ranges.iter().map(|range| {
            let mut line = label(range.class);
            line["first_sector"] = json!(range.first_sector);
            line["sectors"] = json!(range.sectors);
            line
        });
        let line = json!({
            "object": classes.object.map(label), "ranges": ranges.collect::<Vec<_>>(),
            "class_by_size": unlabelled.value(), "retention_seconds": remaining,
        });
        return writeln!(out, "{line}");
    }
    match classes.object {
        Some(class) => writeln!(out, "object    {}", describe(class, policies))?,
        None => writeln!(out, "object    no label; by size: {}", describe(unlabelled, policies))?,
    }
    for range in &classes.ranges {
        let (first, sectors) = (range.first_sector, range.sectors);
        writeln!(out, "sectors   {first}-{sectors}: {}", describe(range.class, policies))?;
    }
    if remaining > 0 {
        writeln!(out, "retention {remaining} s remain")?;
    }
    Ok(())
}

fn describe(class: Class, policies: &ClassPolicyTable) -> String {
    let priority = policies.priority(class).value();
    match policies.name(class) {
        Some(name) => format!("{} ({name}), priority {priority}", class.value()),
        None => format!("{}, priority {priority}", class.value()),
    }
}
