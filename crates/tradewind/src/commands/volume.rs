//! `tradewind volume list | show`: the volumes that `serve` would serve, from the settings. No server and no service is
//! asked; of local stores, the free space is read. `status`, `evict`, `stage`, `pin`, `unpin` and
//! `rewrap` ask a running server ([`server`]).

mod server;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use tradewind_core::BucketName;

use super::terminal::printable_json;
use super::{CommandOutcome, UsageError};
use crate::settings::{ByteSize, Inputs, ServedVolume, Settings, Store, StoreKind, nearest_name};

/// Show the volumes of a server
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the volumes of the settings, with stack, buckets and free space
    ///
    /// The first one is the default: it has all buckets that are not mapped to another volume. Without volumes in the
    /// settings, the served store is the only one. No server is needed.
    #[command(after_help = "Examples:\n  \
        tradewind volume list --config tradewind.toml\n  \
        tradewind volume list --config tradewind.toml --json")]
    List(Flags),
    /// Print one volume
    #[command(after_help = "Examples:\n  \
        tradewind volume show archive --config tradewind.toml\n  \
        tradewind volume show archive --config tradewind.toml --json")]
    Show {
        /// Name of the volume
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        flags: Flags,
    },
    Status(server::Status),
    Evict(server::Evict),
    Stage(server::Stage),
    Pin(server::Pin),
    Unpin(server::Unpin),
    Rewrap(server::Rewrap),
}

/// Flags of the commands that read the settings.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    let (name, flags) = match command {
        Command::List(flags) => (None, flags),
        Command::Show { name, flags } => (Some(name), flags),
        Command::Status(arguments) => return server::status(arguments),
        Command::Evict(arguments) => return server::evict(arguments),
        Command::Stage(arguments) => return server::stage(arguments),
        Command::Pin(arguments) => return server::pin(arguments),
        Command::Unpin(arguments) => return server::unpin(arguments),
        Command::Rewrap(arguments) => return server::rewrap(arguments),
    };
    let settings = Settings::read(&Inputs::gather(flags.config, Vec::new())?)?;
    let all = descriptions(&settings)?;
    let mut stdout = io::stdout().lock();
    let Some(name) = name else {
        match flags.json {
            true => {
                let all: Vec<Json> = all.iter().map(VolumeDescription::to_json).collect();
                writeln!(stdout, "{}", printable_json(&format!("{:#}", Json::Array(all))))?;
            }
            false => write!(stdout, "{}", table(&all))?,
        }
        return Ok(CommandOutcome::Done);
    };
    let Some(volume) = all.iter().find(|volume| volume.name == name) else {
        let names: Vec<&str> = all.iter().map(|volume| volume.name).collect();
        let help = nearest_name(&name, names.iter().copied()).map_or_else(
            || format!("the volumes are {}", names.join(", ")),
            |near| format!("did you mean {near:?}?"),
        );
        return Err(UsageError(format!("there is no volume {name:?}; {help}")).into());
    };
    match flags.json {
        true => writeln!(stdout, "{}", printable_json(&format!("{:#}", volume.to_json())))?,
        false => write!(stdout, "{}", volume.lines())?,
    }
    Ok(CommandOutcome::Done)
}

/// The volumes to serve, as lines of a table.
pub(super) fn list_text(settings: &Settings) -> anyhow::Result<String> {
    Ok(table(&descriptions(settings)?))
}

/// The volumes to serve, as `volume list --json` prints them.
pub(super) fn descriptions_json(settings: &Settings) -> anyhow::Result<Vec<Json>> {
    Ok(descriptions(settings)?.iter().map(VolumeDescription::to_json).collect())
}

/// A volume, as printed.
struct VolumeDescription<'a> {
    name: &'a str,
    is_default: bool,
    stack: String,
    layers: Vec<String>,
    store: &'a str,
    store_type: &'a str,
    /// The directory of a local store.
    directory: Option<&'a Path>,
    /// The stores of its layers `routed`.
    tiers: Vec<&'a Store>,
    /// Free bytes of the directory's device; `None` for a remote store, and if it cannot be read.
    free: Option<ByteSize>,
    buckets: Vec<&'a BucketName>,
}

fn descriptions(settings: &Settings) -> anyhow::Result<Vec<VolumeDescription<'_>>> {
    let volumes = settings.served_volumes()?;
    Ok(volumes.into_iter().enumerate().map(|(index, volume)| describe(settings, index, volume)).collect())
}

fn describe<'a>(settings: &'a Settings, index: usize, volume: ServedVolume<'a>) -> VolumeDescription<'a> {
    let directory = match volume.store.map(|store| &store.kind) {
        None => Some(settings.data_directory()),
        Some(StoreKind::Local { path, .. }) => Some(path.value.as_path()),
        Some(StoreKind::S3(_) | StoreKind::Swift(_)) => None,
    };
    VolumeDescription {
        name: volume.name,
        is_default: index == 0,
        stack: volume.stack_text(),
        layers: volume.layers.iter().map(ToString::to_string).collect(),
        store: volume.store.map_or(crate::settings::IMPLICIT_STORE, |store| &store.name.value),
        store_type: volume.store.map_or("local", |store| store.type_name()),
        directory,
        tiers: volume.tiers,
        free: directory.and_then(free_space),
        buckets: volume.buckets,
    }
}

/// Free bytes of the device of a directory, or of where it would be created.
fn free_space(directory: &Path) -> Option<ByteSize> {
    let existing = directory.ancestors().find(|path| path.exists());
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = rustix::fs::statvfs(existing).ok()?;
    Some(ByteSize(found.f_bavail.saturating_mul(found.f_frsize)))
}

impl VolumeDescription<'_> {
    /// The buckets in words.
    fn buckets_text(&self) -> String {
        let names = self.buckets.iter().map(|bucket| bucket.as_str());
        let others = self.is_default.then_some("all others");
        let all: Vec<&str> = names.chain(others).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }

    fn free_text(&self) -> String {
        self.free.map_or_else(|| "-".to_owned(), rounded)
    }

    /// The lines of `volume show`.
    fn lines(&self) -> String {
        let default = if self.is_default { " (default)" } else { "" };
        let mut text = format!("volume   {}{default}\nstack    {}\n", self.name, self.stack);
        for layer in &self.layers {
            text += &format!("layer    {layer}\n");
        }
        text += &format!("store    {} ({})\n", self.store, self.store_type);
        if let Some(directory) = self.directory {
            text += &format!("path     {}\nfree     {}\n", directory.display(), self.free_text());
        }
        for tier in &self.tiers {
            text += &format!("tier     {} ({})\n", tier.name.value, tier.type_name());
        }
        text + &format!("buckets  {}\n", self.buckets_text())
    }

    fn to_json(&self) -> Json {
        json!({
            "name": self.name,
            "default": self.is_default,
            "stack": self.stack,
            "layers": self.layers,
            "store": {
                "name": self.store,
                "type": self.store_type,
                "path": self.directory.map(|directory| directory.display().to_string()),
                "free_bytes": self.free.map(|free| free.0),
            },
            "tiers": self.tiers.iter().map(|tier| {
                json!({ "name": tier.name.value, "type": tier.type_name() })
            }).collect::<Vec<_>>(),
            "buckets": self.buckets.iter().map(|bucket| bucket.as_str()).collect::<Vec<_>>(),
        })
    }
}

/// A size with at most four digits, rounded down.
fn rounded(size: ByteSize) -> String {
    let mut unit = 0;
    while unit < 50 && size.0 >> unit >= 10_000 {
        unit += 10;
    }
    ByteSize(size.0 >> unit << unit).to_string()
}

/// The lines of `volume list`.
fn table(volumes: &[VolumeDescription<'_>]) -> String {
    let head = ["volume", "stack", "free", "buckets"].map(str::to_owned);
    let rows = volumes.iter().map(|volume| {
        [volume.name.to_owned(), volume.stack.clone(), volume.free_text(), volume.buckets_text()]
    });
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (name, stack, free) = (width(0), width(1), width(2));
    let line =
        |row: &[String; 4]| format!("{:name$}  {:stack$}  {:>free$}  {}\n", row[0], row[1], row[2], row[3]);
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_rounded_down() {
        assert_eq!(rounded(ByteSize(9_999)), "9999B");
        assert_eq!(rounded(ByteSize((1 << 40) + 1)), "1TiB");
        assert_eq!(rounded(ByteSize((20 << 30) + (3 << 20))), "20GiB");
    }
}
