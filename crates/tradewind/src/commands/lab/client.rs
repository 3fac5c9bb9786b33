//! `tradewind lab client`: a command on a weaker machine.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use tradewind_lab::client::{
    Client, ClientOptions, ClientProfile, Processors, Used, machine_memory, machine_processors,
};

use super::super::{Ended, Misused};
use super::run::{carry, ended, note};
use crate::settings::ByteSize;

/// Run a command with fewer processors and less memory
///
/// Whole processors are all that the command finds; a part of one is a quota of its time, in turns of 20 ms. Memory counts
/// the command's processes and the files that the kernel keeps for them; there is no swap space beyond. What the
/// command leaves running ends with it. Profiles are the clients of Hou et al. 2017, Table I, in proportion where this
/// machine has less. Behind a link, run this at its end, as in the last example: the link itself is then as fast as
/// before. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab client --cpus 0.5 --memory 512MiB -- tradewind sync ./tree s3://data/tree\n  \
    tradewind lab client --profile hou-cpu-plus --counts -- tradewind bench object s3://data\n  \
    tradewind lab wan --delay 25ms -- tradewind lab client --cpus 1 -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n\n\
    Exit status: that of the command; 128 and the signal's number where one ended it, so 137 where memory was lacking.")]
pub(in super::super) struct Arguments {
    /// Processors, as 2 or 0.5
    #[arg(long, value_name = "N", value_parser = Processors::parse)]
    cpus: Option<Processors>,
    /// Memory, with that of files, as 512MiB
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<ByteSize>,
    /// A client of the paper; --cpus and --memory go before what it has
    #[arg(long, value_name = "NAME", value_parser = names())]
    profile: Option<String>,
    /// Say what the command used when it has ended
    #[arg(long)]
    counts: bool,
    /// What is run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn names() -> PossibleValuesParser {
    ClientProfile::ALL.map(|profile| profile.name).into()
}

fn memory(text: &str) -> Result<ByteSize, String> {
    const LEAST: u64 = 1 << 20;
    let size = ByteSize::parse(text)?;
    if size.0 < LEAST { Err("no command runs in less than 1MiB".to_owned()) } else { Ok(size) }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Ended> {
    let options = options(arguments)?;
    let command = arguments.command.clone();
    let told = carry(move || {
        let client = Client::start(options, &command)?;
        if let Some(why) = client.swaps() {
            // Whoever emulates should know what the figures are worth.
            let _ = note(&format!("more memory than that may be taken of swap space: {why}"));
        }
        Ok((client.process()?, move || client.wait()))
    })??;
    let used = told.used;
    if arguments.counts {
        note(&show(used))?;
    }
    if used.killed_for_memory > 0 {
        let bound =
            options.memory.map_or("the machine has".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let who = if told.lacked_memory() { "the command was" } else { "processes of the command were" };
        note(&format!(
            "{who} killed for memory: more than {bound} was needed ({} killed); give it more with --memory",
            used.killed_for_memory
        ))?;
    }
    Ok(ended(told.status))
}

/// What is asked for, with notes on what this machine makes of it.
fn options(arguments: &Arguments) -> anyhow::Result<ClientOptions> {
    let here = machine_processors();
    let mut options =
        ClientOptions { processors: arguments.cpus, memory: arguments.memory.map(|size| size.0) };
    let profile = arguments.profile.as_ref();
    if let Some(profile) = profile.and_then(|name| ClientProfile::ALL.into_iter().find(|p| p.name == name)) {
        let scaled = profile.scaled(here, machine_memory());
        options.processors = options.processors.or(Some(scaled.processors));
        options.memory = options.memory.or(Some(scaled.memory));
        for words in &scaled.differs {
            note(words)?;
        }
        note(&format!("beside processors and memory the paper's client had: {}", profile.beside))?;
    }
    if options == ClientOptions::default() && !arguments.counts {
        return Err(Misused("say how weak: --cpus, --memory or --profile".to_owned()).into());
    }
    if let Some(processors) = options.processors.filter(|processors| processors.whole() > here) {
        let asked = processors.as_number();
        return Err(Misused(format!("--cpus {asked}: there are {here} processors here")).into());
    }
    Ok(options)
}

fn show(used: Used) -> String {
    let seconds = |time: Option<Duration>| {
        time.map_or("unknown".to_owned(), |time| format!("{:.3} s", time.as_secs_f64()))
    };
    let peak = used
        .peak_memory
        .map_or("unknown".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / 1_048_576.0));
    format!(
        "processor time {}, kept from it by the quota {}; most memory {peak}; killed for memory: {}",
        seconds(used.processor),
        seconds(used.throttled),
        used.killed_for_memory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_least_size() {
        assert_eq!(memory("512MiB"), Ok(ByteSize(512 << 20)));
        assert!(memory("4KiB").is_err() && memory("much").is_err());
    }

    #[test]
    fn what_was_used_is_told_and_what_is_not_known_too() {
        let used = Used {
            processor: Some(Duration::from_millis(1500)),
            throttled: None,
            peak_memory: Some(3 << 20),
            killed_for_memory: 0,
        };
        let told = show(used);
        assert!(
            told.contains("processor time 1.500 s, kept from it by the quota unknown; most memory 3.0 MiB")
        );
    }
}
