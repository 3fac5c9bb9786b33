//! `tradewind lab simulate`: simulations of what no test machine has.

mod balance;

use clap::Subcommand;

use super::super::CommandOutcome;

/// Simulate clusters that are larger, and runs that are longer, than a test can be
///
/// Simulations do no I/O and need no privileges. One seed is one schedule: the same flags print the same result.
#[derive(Debug, Subcommand)]
pub(in super::super) enum Command {
    Balance(balance::Arguments),
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Balance(arguments) => balance::run(&arguments),
    }
}
