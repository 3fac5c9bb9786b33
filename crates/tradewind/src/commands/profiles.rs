//! `tradewind profiles list | show | forget | export | import`: management of tuning profiles.

mod exchange;
mod show;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tradewind_core::SystemClock;

use super::transfer::AccessFlags;
use super::{CommandOutcome, UsageError};
use crate::profiles::{Profile, Profiles, SavedProfile};
use crate::stores::ConnectionOptions;

/// The file name that stands for standard input or output.
const STANDARD: &str = "-";
/// The message for an environment without a directory for profiles.
const NO_PROFILE_DIRECTORY: &str = "there is no directory for profiles: set HOME or XDG_DATA_HOME";

/// Manage tuning profiles
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List all stores that have been tuned
    #[command(after_help = "Examples:\n  tradewind profiles list\n  tradewind profiles list --json")]
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Print the measurements of a store, and the operating points derived from them
    ///
    /// For a store that was never tuned, prints which other store's profile commands use, if any.
    #[command(after_help = "Examples:\n  \
        tradewind profiles show s3://\n  \
        tradewind profiles show eu-west-1 --json")]
    Show {
        #[command(flatten)]
        store: StoreArgument,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the profile of a store
    #[command(
        after_help = "Examples:\n  tradewind profiles forget s3://\n  tradewind profiles forget 10.0.0.7"
    )]
    Forget {
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Export the profile of a store, for another machine
    #[command(after_help = "Examples:\n  \
        tradewind profiles export s3://\n  \
        tradewind profiles export s3:// store.toml")]
    Export {
        #[command(flatten)]
        store: StoreArgument,
        /// Output file, which is overwritten [default: standard output]
        #[arg(value_name = "FILE", default_value = STANDARD, hide_default_value = true)]
        file: PathBuf,
    },
    /// Import an exported profile
    ///
    /// A profile from another client is extrapolated when it is used. Invalid entries are reported with their line and
    /// ignored.
    #[command(after_help = "Examples:\n  \
        tradewind profiles import store.toml\n  \
        tradewind profiles export s3:// | tradewind profiles import - --replace\n\n\
        Exit status: 0 done, 1 not a profile, or older than the existing one, or partly invalid, 2 usage.")]
    Import {
        /// Profile file, or - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Replace the existing profile even if it is newer
        #[arg(long)]
        replace: bool,
    },
}

/// The store whose profile is meant.
#[derive(Debug, Args)]
pub(super) struct StoreArgument {
    /// s3:// or another store's NAME://, its host, or a part of its name as printed by `profiles list`
    #[arg(value_name = "STORE")]
    store: String,
    #[command(flatten)]
    access: AccessFlags,
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    let profiles = Profiles::find().context(NO_PROFILE_DIRECTORY)?;
    match command {
        Command::List { json } => show::list(&profiles.all(), json)?,
        Command::Show { store, json } => show::show(&profiles, &store.name(&profiles)?, json)?,
        Command::Forget { store } => {
            let saved = store.find(&profiles)?;
            Profiles::delete(&saved).with_context(|| format!("cannot remove {}", saved.path.display()))?;
        }
        Command::Export { store, file } => exchange::export(&store.find(&profiles)?, &file)?,
        Command::Import { file, replace } => return exchange::import(&profiles, &file, replace),
    }
    Ok(CommandOutcome::Done)
}

/// Prints the best operating points of a store, the concurrency that commands use, and the measurements behind both.
pub(super) fn explain(scheme: &str, access: AccessFlags, is_json: bool) -> anyhow::Result<()> {
    let profiles = Profiles::find().context(NO_PROFILE_DIRECTORY)?;
    let argument = StoreArgument { store: format!("{scheme}://"), access };
    show::show(&profiles, &argument.name(&profiles)?, is_json)
}

impl StoreArgument {
    /// The name of the store in profiles.
    fn name(&self, profiles: &Profiles) -> anyhow::Result<String> {
        match self.store.split_once("://") {
            Some((scheme, _)) => self.service_name(scheme),
            None => Ok(self.find_by_part(profiles)?.profile.store),
        }
    }

    /// The profile of the store.
    fn find(&self, profiles: &Profiles) -> anyhow::Result<SavedProfile> {
        let Some((scheme, _)) = self.store.split_once("://") else { return self.find_by_part(profiles) };
        let name = self.service_name(scheme)?;
        let path = profiles.path(&name);
        // A profile that cannot be read has no store name. It is identified by its path.
        let is_of_store = |saved: &SavedProfile| {
            saved.profile.store == name || (saved.profile.store.is_empty() && saved.path == path)
        };
        profiles.all().into_iter().find(is_of_store).with_context(|| missing_profile(&name))
    }

    /// The name in profiles of the store that a scheme denotes. Fails for a local store.
    fn service_name(&self, scheme: &str) -> anyhow::Result<String> {
        let connection_options =
            ConnectionOptions { max_connections: 1, max_read_bytes: 64 << 10, benchmark: None };
        let stores = self.access.stores(SystemClock::shared(), connection_options)?;
        stores.check_schemes(&[scheme])?;
        let message = || format!("{scheme}:// is a local directory or not configured: it has no profile");
        stores.profile_store_name(scheme).with_context(message)
    }

    /// The only profile whose store name contains the argument. If there are several, the one whose store name or
    /// address equals the argument.
    fn find_by_part(&self, profiles: &Profiles) -> anyhow::Result<SavedProfile> {
        let part = self.store.to_ascii_lowercase();
        let mut candidates = profiles.all();
        let contains_part = |saved: &SavedProfile| saved.profile.store.to_ascii_lowercase().contains(&part);
        candidates.retain(|saved| !saved.profile.store.is_empty() && contains_part(saved));
        let is_exact =
            |saved: &SavedProfile| [&*saved.profile.store, address(&saved.profile)].contains(&&*self.store);
        if candidates.iter().any(is_exact) {
            candidates.retain(is_exact);
        }
        if candidates.len() > 1 {
            let names: Vec<&str> = candidates.iter().map(|saved| &*saved.profile.store).collect();
            let (text, names) = (&self.store, names.join(" and "));
            return Err(
                UsageError(format!("{text:?} may be {names}; write a longer part of the name")).into()
            );
        }
        candidates.pop().with_context(|| missing_profile(&self.store))
    }
}

/// The address in a store's name: the part between its parentheses.
fn address(profile: &Profile) -> &str {
    let store = profile.store.as_str();
    store.split_once('(').map_or(store, |(_, inner)| inner.trim_end_matches(')'))
}

fn missing_profile(store: &str) -> String {
    format!("there is no profile of {store}: tradewind profiles list prints the existing ones")
}
