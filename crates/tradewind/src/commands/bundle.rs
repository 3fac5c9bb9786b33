//! Bundles on the command line: `cp --bundle` packs and unpacks them, `--member` extracts one file, `ls --bundle` lists
//! their contents.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::sync::mpsc;
use tradewind_core::error::Reason;
use tradewind_model::bundle::BundleLimits;
use tradewind_transfer::bundle::{Bundle, Packer, Unpacker};
use tradewind_transfer::files::{self, Directory, Links};
use tradewind_transfer::filter::Filter;
use tradewind_transfer::merge::Action;
use tradewind_transfer::objects::Objects;
use tradewind_transfer::workers::{self, ActionFeed, ActionResult, copy_actions};
use tradewind_transfer::writer::OutputWriter;
use tradewind_transfer::{Endpoint, Item};

use super::CommandOutcome;
use super::execution::destination;
use super::standard_io::stdout_outcome;
use super::summary::{TransferOutputFlags, print_failure, rfc3339};
use super::terminal::{Names, printable_json};
use super::transfer::Session;
use crate::locations::{Location, ObjectsLocation};
use crate::settings::ByteSize;

/// Flags of `cp` for bundles.
#[derive(Debug, Clone, Args)]
pub(super) struct BundleFlags {
    /// Pack everything below a directory into one object, a tar archive with an index, or unpack one
    #[arg(long, help_heading = "Bundles", conflicts_with_all = ["member", "preserve"])]
    pub bundle: bool,
    /// Size at which the next bundle begins: photos.tar, photos-00002.tar [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = bundle_size, help_heading = "Bundles", requires = "bundle")]
    bundle_size: Option<ByteSize>,
    /// Copy only this file out of a bundle
    #[arg(long, value_name = "NAME", help_heading = "Bundles", conflicts_with_all = ["recursive", "preserve"])]
    pub member: Option<String>,
}

fn bundle_size(text: &str) -> Result<ByteSize, String> {
    let size = ByteSize::parse(text)?;
    let is_within = (64 << 10..=64 << 30).contains(&size.0);
    if is_within { Ok(size) } else { Err("it must be 64KiB to 64GiB".to_owned()) }
}

/// Options of `cp` for a tree.
pub(super) struct TreeOptions {
    pub filter: Filter,
    pub links: Links,
    pub is_dry_run: bool,
    pub output: TransferOutputFlags,
}

impl BundleFlags {
    /// Packs a directory, or unpacks a bundle.
    pub async fn copy(
        &self,
        session: &Session,
        from: &Location,
        to: &Location,
        tree: TreeOptions,
    ) -> anyhow::Result<CommandOutcome> {
        match (from, to) {
            (Location::Path(from), Location::Objects(to)) => self.pack(session, from, to, tree).await,
            (Location::Objects(from), Location::Path(to)) => unpack(session, from, to, tree).await,
            _ => bail!(
                "--bundle packs a directory into an object or unpacks one: write cp --bundle DIR s3://BUCKET/NAME.tar, \
                 or vice versa"
            ),
        }
    }

    async fn pack(
        &self,
        session: &Session,
        from: &Path,
        to: &ObjectsLocation,
        tree: TreeOptions,
    ) -> anyhow::Result<CommandOutcome> {
        if !from.is_dir() {
            bail!("{} is not a directory; copy a file without --bundle", from.display());
        }
        if !is_one_object(to) {
            bail!("{to} is not one object; name the bundle, as in {}://{}/photos.tar", to.scheme, to.bucket);
        }
        let objects = objects(session, to)?;
        let own = Session::directory(from, tree.links)?;
        own.check_disjoint(&Endpoint::Objects(objects.clone()))?;
        let Endpoint::Files(directory, _) = &own else { bail!("--bundle packs files") };
        let files = directory.tree()?;
        let items = files::find(files.clone(), tree.links, &tree.filter);
        let actions = copy_actions(items, tree.filter, session.progress.clone(), None);
        if tree.is_dry_run {
            return rehearse(actions, |item| {
                format!("pack    {} into {to}", from.join(&item.name).display())
            })
            .await;
        }
        let mut limits = BundleLimits::default();
        limits.bytes = self.bundle_size.map_or(limits.bytes, |size| size.0);
        let packer = Packer {
            from: files,
            links: tree.links,
            to: objects.clone(),
            key: to.key.clone(),
            transfers: session.transfer_context.clone(),
            progress: session.progress.clone(),
            limits,
            journals: session.journals_for(&[&objects.store]),
        };
        let display = tree.output.start(session);
        let packed = packer.pack(actions).await?;
        let ended = display.finish(&packed.outcome)?;
        if let [_, .., last] = packed.bundles.as_slice()
            && !tree.output.is_quiet()
            && !tree.output.is_json()
        {
            let count = packed.bundles.len();
            let last = packer.to.describe(last);
            writeln!(io::stderr(), "packed into {count} bundles, {to} to {last}")?;
        }
        Ok(ended)
    }

    /// Copies a member to a file, or to standard output.
    pub async fn copy_member(
        session: &Session,
        name: &str,
        (from, to): (&Location, &Location),
        output: TransferOutputFlags,
    ) -> anyhow::Result<CommandOutcome> {
        let Location::Objects(from) = from else {
            bail!(
                "--member extracts a file from a bundle in a store; write cp s3://BUCKET/NAME.tar --member NAME TO"
            )
        };
        let own = name.rsplit('/').next().unwrap_or(name);
        let (to, to_name) = match to {
            Location::Standard => return write_member_to_stdout(session, from, name).await,
            Location::Objects(to) => {
                bail!("{to} is in a store; --member copies to a file, or to - for standard output")
            }
            Location::Path(_) => destination(session, to, own)?,
        };
        let Endpoint::Files(to, _) = to else { bail!("--member copies to a file") };
        let (bundle, member) = open(session, from).await?.find(name).await?;
        let unpacker = Arc::new(unpacker(session, to));
        let bundle = Arc::new(bundle);
        session.progress.add_found(member.size);
        session.progress.complete_listing();
        let display = output.start(session);
        let (sender, actions) = mpsc::channel(1);
        let item = Item {
            name: member.name.clone(),
            size: member.size,
            modified: member.modified,
            changed: None,
            nanos: Default::default(),
            version: None,
        };
        // The channel has capacity for one item.
        let _ = sender.try_send(Ok(Action::Copy(item)));
        drop(sender);
        let outcome = workers::run_actions(1, actions, &session.progress, move |_| {
            let (unpacker, bundle) = (unpacker.clone(), bundle.clone());
            let (member, to_name) = (member.clone(), to_name.clone());
            async move { unpacker.unpack_member(&bundle, &member, &to_name).await.map(ActionResult::Copied) }
        });
        Ok(display.finish(&outcome.await?)?)
    }
}

async fn unpack(
    session: &Session,
    from: &ObjectsLocation,
    to: &Path,
    tree: TreeOptions,
) -> anyhow::Result<CommandOutcome> {
    let to = Session::directory(to, Links::Skip)?;
    Endpoint::Objects(objects(session, from)?).check_disjoint(&to)?;
    let first = open(session, from).await?;
    if tree.is_dry_run {
        let Endpoint::Files(to, _) = &to else { bail!("--bundle unpacks to files") };
        let mut out = BufWriter::new(io::stdout().lock());
        let (mut next, names) = (Some(first), Names::for_stdout());
        while let Some(bundle) = next {
            for member in bundle.members().iter().filter(|member| tree.filter.accepts(&member.name)) {
                let (name, location) = (&member.name, bundle.url());
                let line = format!("unpack  {name} from {location} to {}", to.root().join(name).display());
                writeln!(out, "{}", names.show(&line))?;
            }
            next = bundle.next().await?;
        }
        out.flush()?;
        return Ok(CommandOutcome::Done);
    }
    let Endpoint::Files(to, _) = to else { bail!("--bundle unpacks to files") };
    let display = tree.output.start(session);
    let outcome = Arc::new(unpacker(session, to)).unpack(first, &tree.filter).await?;
    Ok(display.finish(&outcome)?)
}

fn unpacker(session: &Session, to: Directory) -> Unpacker {
    Unpacker::new(to, session.transfer_context.clone(), session.progress.clone())
}

/// Prints what would be packed.
async fn rehearse(
    mut decided: ActionFeed,
    describe: impl Fn(&Item) -> String,
) -> anyhow::Result<CommandOutcome> {
    let (mut ended, names) = (CommandOutcome::Done, Names::for_stdout());
    while let Some(next) = decided.recv().await {
        match next {
            Ok(action) => writeln!(io::stdout(), "{}", names.show(&describe(action.item())))?,
            Err((name, error)) => {
                print_failure(&name, &error)?;
                ended = CommandOutcome::FoundProblems;
            }
        }
    }
    Ok(ended)
}

/// Writes a member to standard output.
pub(super) async fn write_member_to_stdout(
    session: &Session,
    from: &ObjectsLocation,
    name: &str,
) -> anyhow::Result<CommandOutcome> {
    let (bundle, member) = open(session, from).await?.find(name).await?;
    let writer = OutputWriter::new(io::stdout())?;
    let all = match bundle.write_in_order(&member, async |piece| writer.write(piece).await).await {
        Ok(()) => writer.finish().await,
        Err(e) => Err(e),
    };
    stdout_outcome(all, from)
}

/// Lists the members of a bundle and of its continuations.
pub(super) async fn list(
    session: &Session,
    location: &ObjectsLocation,
    is_json: bool,
) -> anyhow::Result<CommandOutcome> {
    let (mut out, names) = (BufWriter::new(io::stdout().lock()), Names::for_stdout());
    let mut next = Some(open(session, location).await?);
    while let Some(bundle) = next {
        for member in bundle.members() {
            let (name, size, modified) = (&member.name, member.size, rfc3339(member.modified));
            if is_json {
                let (mode, location) = (format!("{:04o}", member.mode), bundle.url());
                let line = json!({
                    "member": name, "size": size, "modified": modified, "mode": mode, "bundle": location,
                });
                writeln!(out, "{}", printable_json(&line.to_string()))?;
            } else {
                writeln!(out, "{modified}  {size:>12}  {}", names.show(name))?;
            }
        }
        next = match bundle.next().await {
            Ok(next) => next,
            Err(e) => {
                out.flush()?;
                return Err(e.into());
            }
        };
    }
    out.flush()?;
    Ok(CommandOutcome::Done)
}

async fn open(session: &Session, location: &ObjectsLocation) -> anyhow::Result<Bundle> {
    if !is_one_object(location) {
        let (scheme, bucket) = (&location.scheme, &location.bucket);
        bail!("{location} is not one object; name the bundle, as in {scheme}://{bucket}/photos.tar");
    }
    match Bundle::open(&session.transfer_context, &objects(session, location)?, &location.key).await {
        Err(e) if e.reason() == Reason::NoSuchKey => bail!("there is nothing at {location}"),
        bundle => Ok(bundle?),
    }
}

/// The whole bucket of a location: names are keys.
fn objects(session: &Session, location: &ObjectsLocation) -> anyhow::Result<Objects> {
    Ok(Objects { prefix: String::new(), ..session.objects(location)? })
}

fn is_one_object(location: &ObjectsLocation) -> bool {
    !location.key.is_empty() && !location.key.ends_with('/')
}
