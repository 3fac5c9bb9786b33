//! `tradewind lab simulate`: simulations of what no test machine has.

mod balance;
mod cache;

use clap::Subcommand;

use super::super::CommandOutcome;

/// Simulate clusters that are larger, and runs that are longer, than a test can be
///
/// Simulations need no stores and no privileges. The same flags print the same result.
#[derive(Debug, Subcommand)]
pub(in super::super) enum Command {
    Balance(balance::Arguments),
    Cache(cache::Arguments),
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Balance(arguments) => balance::run(&arguments),
        Command::Cache(arguments) => cache::run(&arguments),
    }
}
