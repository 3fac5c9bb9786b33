//! `tradewind bench`: how fast a store is from here.

mod object;
mod output;
pub(super) mod page;

use clap::Subcommand;

use super::Ended;

/// Measure how fast a store is from here
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Object(object::Arguments),
}

pub(super) fn run(command: Command) -> anyhow::Result<Ended> {
    match command {
        Command::Object(arguments) => object::run(arguments),
    }
}
