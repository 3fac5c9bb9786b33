//! `tradewind lab`: emulated networks, clients and disks, and simulations.

mod client;
mod disk;
mod link;
mod run;
mod simulate;
mod wan;

use clap::Subcommand;

use super::CommandOutcome;

/// Emulate slow networks, clients and disks; simulate clusters
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Wan(wan::Arguments),
    Client(client::Arguments),
    Disk(disk::Arguments),
    #[command(subcommand)]
    Simulate(simulate::Command),
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Wan(arguments) => wan::run(arguments),
        Command::Client(arguments) => client::run(&arguments),
        Command::Disk(arguments) => disk::run(arguments),
        Command::Simulate(command) => simulate::run(command),
    }
}
