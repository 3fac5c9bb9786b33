//! `tradewind profiles list | show | forget | export | import`: what was found out about stores, looked at and carried about.

mod exchange;
mod show;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tradewind_core::SystemClock;

use super::transfer::AccessFlags;
use super::{Ended, Misused};
use crate::profiles::{Kept, Profile, Profiles};
use crate::stores::Lines;

/// Standard input or output.
const STANDARD: &str = "-";

/// Look at, share and forget what was found out about stores
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print a line for each store that has been tuned
    #[command(after_help = "Examples:\n  tradewind profiles list\n  tradewind profiles list --json")]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Print what was measured of a store, and what commands ask for because of it
    ///
    /// Of a store that was never tuned it says which other's profile commands go by, if there is one.
    #[command(after_help = "Examples:\n  \
        tradewind profiles show s3://\n  \
        tradewind profiles show eu-west-1 --json")]
    Show {
        #[command(flatten)]
        of: StoreArgument,
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
        of: StoreArgument,
    },
    /// Write the profile of a store, for another machine
    #[command(after_help = "Examples:\n  \
        tradewind profiles export s3://\n  \
        tradewind profiles export s3:// store.toml")]
    Export {
        #[command(flatten)]
        of: StoreArgument,
        /// Where to; it is replaced [default: standard output]
        #[arg(value_name = "FILE", default_value = STANDARD, hide_default_value = true)]
        file: PathBuf,
    },
    /// Keep a profile that was exported
    ///
    /// One that was made on another client is scaled when it is used. What means nothing in it is named by its line and left out.
    #[command(after_help = "Examples:\n  \
        tradewind profiles import store.toml\n  \
        tradewind profiles export s3:// | tradewind profiles import - --replace\n\n\
        Exit status: 0 done, 1 it is no profile, or what is kept is newer, or some of it was left out, 2 usage.")]
    Import {
        /// The file, or - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Also in the place of a newer one
        #[arg(long)]
        replace: bool,
    },
}

/// Which store is meant.
#[derive(Debug, Args)]
pub(super) struct StoreArgument {
    /// s3:// or another store's NAME://, or its host, or a part of its name as `profiles list` prints it
    #[arg(value_name = "STORE")]
    store: String,
    #[command(flatten)]
    access: AccessFlags,
}

pub(super) fn run(command: Command) -> anyhow::Result<Ended> {
    let profiles = Profiles::find().context("neither HOME nor XDG_DATA_HOME says where profiles are kept")?;
    match command {
        Command::List { json } => show::list(&profiles.all(), json)?,
        Command::Show { of, json } => show::show(&profiles, &of.name(&profiles)?, json)?,
        Command::Forget { of } => {
            let kept = of.find(&profiles)?;
            Profiles::forget(&kept).with_context(|| format!("cannot remove {}", kept.path.display()))?;
        }
        Command::Export { of, file } => exchange::export(&of.find(&profiles)?, &file)?,
        Command::Import { file, replace } => return exchange::import(&profiles, &file, replace),
    }
    Ok(Ended::Done)
}

/// Prints the evidence behind what commands ask a store for.
pub(super) fn explain(scheme: &str, access: AccessFlags, is_json: bool) -> anyhow::Result<()> {
    let profiles = Profiles::find().context("neither HOME nor XDG_DATA_HOME says where profiles are kept")?;
    let of = StoreArgument { store: format!("{scheme}://"), access };
    show::show(&profiles, &of.name(&profiles)?, is_json)
}

impl StoreArgument {
    /// What the store that is meant calls itself.
    fn name(&self, profiles: &Profiles) -> anyhow::Result<String> {
        match self.store.split_once("://") {
            Some((scheme, _)) => self.service(scheme),
            None => Ok(self.part_of(profiles)?.profile.store),
        }
    }

    /// The profile of the store that is meant.
    fn find(&self, profiles: &Profiles) -> anyhow::Result<Kept> {
        let Some((scheme, _)) = self.store.split_once("://") else { return self.part_of(profiles) };
        let name = self.service(scheme)?;
        let path = profiles.path(&name);
        // One that cannot be read names no store, and is that of its file's.
        let is_its =
            |kept: &Kept| kept.profile.store == name || (kept.profile.store.is_empty() && kept.path == path);
        profiles.all().into_iter().find(is_its).with_context(|| none_of(&name))
    }

    fn service(&self, scheme: &str) -> anyhow::Result<String> {
        let lines = Lines { connections: 1, most_read_bytes: 64 << 10, measuring: None };
        let stores = self.access.stores(SystemClock::shared(), lines)?;
        stores.check(&[scheme])?;
        let why = || format!("{scheme}:// is a directory here, or is not set up: it has no profile");
        stores.service(scheme).with_context(why)
    }

    /// The one that has this in its name; of several the one whose address it is.
    fn part_of(&self, profiles: &Profiles) -> anyhow::Result<Kept> {
        let wanted = self.store.to_ascii_lowercase();
        let mut found = profiles.all();
        let is_meant = |kept: &Kept| kept.profile.store.to_ascii_lowercase().contains(&wanted);
        found.retain(|kept| !kept.profile.store.is_empty() && is_meant(kept));
        let is_exact = |kept: &Kept| [&*kept.profile.store, address(&kept.profile)].contains(&&*self.store);
        if found.iter().any(is_exact) {
            found.retain(is_exact);
        }
        if found.len() > 1 {
            let names: Vec<&str> = found.iter().map(|kept| &*kept.profile.store).collect();
            let (text, names) = (&self.store, names.join(" and "));
            return Err(Misused(format!("{text:?} may be {names}; write more of it")).into());
        }
        found.pop().with_context(|| none_of(&self.store))
    }
}

/// What a store's name has between its brackets.
fn address(profile: &Profile) -> &str {
    let store = profile.store.as_str();
    store.split_once('(').map_or(store, |(_, inner)| inner.trim_end_matches(')'))
}

fn none_of(store: &str) -> String {
    format!("there is no profile of {store}: tradewind profiles list says of which stores there are")
}
