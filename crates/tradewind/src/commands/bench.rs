//! `tradewind bench`: benchmarks of stores and file systems.

mod agent;
mod class_table1;
mod cluster;
mod key;
mod load_selection;
mod loads;
mod mix;
mod object;
pub(super) mod output;
pub(super) mod page;
mod parts;
mod posix;
mod replay;
mod samples;
pub(super) mod target;
mod workloads;

use std::io::{self, Write as _};

use clap::{Args, Subcommand};

use super::CommandOutcome;

/// Benchmark a store or a file system from this machine
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Object(object::Arguments),
    Mix(mix::Arguments),
    Posix(posix::Arguments),
    Replay(replay::Arguments),
    #[command(name = "class-table1")]
    ClassTable1(class_table1::Arguments),
    Cluster(cluster::Arguments),
    Agent(agent::Arguments),
    Workloads(WorkloadsArguments),
}

/// List the built-in workloads, or print one of them
///
/// A workload is a file of tables, one per load, whose keys are flags of the command that runs it: `tradewind bench
/// object` or `tradewind bench posix`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench workloads\n  \
    tradewind bench workloads ou")]
pub(super) struct WorkloadsArguments {
    /// Name of a workload
    name: Option<String>,
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Object(arguments) => object::run(arguments),
        Command::Mix(arguments) => mix::run(arguments),
        Command::Posix(arguments) => posix::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::ClassTable1(arguments) => class_table1::run(arguments),
        Command::Cluster(arguments) => cluster::run(&arguments),
        Command::Agent(arguments) => agent::run(arguments),
        Command::Workloads(arguments) => {
            io::stdout().write_all(workloads::list_or_show(arguments.name.as_deref())?.as_bytes())?;
            Ok(CommandOutcome::Done)
        }
    }
}
