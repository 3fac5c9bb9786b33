//! `tradewind lab client`: runs a command with limited CPU and memory.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use tradewind_lab::client::{
    Client, ClientOptions, ClientProfile, CpuCount, ResourceUsage, available_cpus, machine_memory_bytes,
};

use super::super::{CommandOutcome, UsageError};
use super::run::{outcome_from_status, print_note, run_with_signals};
use crate::settings::ByteSize;

/// Run a command with fewer CPUs and less memory
///
/// With a whole number of CPUs, the command sees only those; a fraction is a CPU quota with a period of 20 ms. Memory
/// includes the page cache of the command's files; swap is not used. Processes that the command leaves running are
/// killed when it ends. Presets are the clients of Hou et al. 2017, Table I, scaled down if this machine has less. To
/// combine it with an emulated link, run it inside `lab wan`, as in the last example: the link itself is then not
/// slowed down. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab client --cpus 0.5 --memory 512MiB -- tradewind sync ./tree s3://data/tree\n  \
    tradewind lab client --preset hou-cpu-plus --stats -- tradewind bench object s3://data\n  \
    tradewind lab wan --delay 25ms -- tradewind lab client --cpus 1 -- sh -c 'ping -c 3 $TRADEWIND_LAB_FAR'\n\n\
    Exit status: that of the command; 128 plus the signal's number if a signal ended it: 137 if it ran out of memory.")]
pub(in super::super) struct Arguments {
    /// Number of CPUs, e.g. 2 or 0.5
    #[arg(long, value_name = "N", value_parser = CpuCount::parse)]
    cpus: Option<CpuCount>,
    /// Memory including page cache, e.g. 512MiB
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<ByteSize>,
    /// Client of the paper; --cpus and --memory override its values
    #[arg(long, value_name = "NAME", value_parser = names())]
    preset: Option<String>,
    /// Print the resource usage when the command has ended
    #[arg(long)]
    stats: bool,
    /// Command to run
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn names() -> PossibleValuesParser {
    ClientProfile::ALL.map(|profile| profile.name).into()
}

fn memory(text: &str) -> Result<ByteSize, String> {
    const MIN_BYTES: u64 = 1 << 20;
    let size = ByteSize::parse(text)?;
    if size.0 < MIN_BYTES { Err("the minimum is 1MiB".to_owned()) } else { Ok(size) }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let options = options(arguments)?;
    let command = arguments.command.clone();
    let outcome = run_with_signals(move || {
        let client = Client::start(options, &command)?;
        if let Some(why) = client.swaps() {
            // The user must know that the limit is not exact.
            let _ = print_note(&format!("the command may use swap space beyond the memory limit: {why}"));
        }
        Ok((client.pidfd()?, move || client.wait()))
    })??;
    let used = outcome.usage;
    if arguments.stats {
        print_note(&show(used))?;
    }
    if used.oom_kills > 0 {
        let bound =
            options.memory_bytes.map_or("the machine has".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let who = if outcome.was_oom_killed() { "the command was" } else { "processes of the command were" };
        print_note(&format!(
            "{who} killed: more than {bound} of memory needed ({} killed); raise --memory",
            used.oom_kills
        ))?;
    }
    Ok(outcome_from_status(outcome.status))
}

/// The requested options, with notes where this machine differs from the profile.
fn options(arguments: &Arguments) -> anyhow::Result<ClientOptions> {
    let here = available_cpus();
    let mut options =
        ClientOptions { cpus: arguments.cpus, memory_bytes: arguments.memory.map(|size| size.0) };
    let profile = arguments.preset.as_ref();
    if let Some(profile) = profile.and_then(|name| ClientProfile::ALL.into_iter().find(|p| p.name == name)) {
        let scaled = profile.scaled(here, machine_memory_bytes());
        options.cpus = options.cpus.or(Some(scaled.cpus));
        options.memory_bytes = options.memory_bytes.or(Some(scaled.memory_bytes));
        for words in &scaled.differences {
            print_note(words)?;
        }
        print_note(&format!(
            "in addition to CPUs and memory, the paper's client had: {}",
            profile.companion_commands
        ))?;
    }
    if options == ClientOptions::default() && !arguments.stats {
        return Err(UsageError("set at least one of --cpus, --memory or --preset".to_owned()).into());
    }
    if let Some(cpus) = options.cpus.filter(|cpus| cpus.whole_cpus() > here) {
        let requested = cpus.as_f64();
        return Err(UsageError(format!("--cpus {requested}: this machine has {here} CPUs")).into());
    }
    Ok(options)
}

fn show(used: ResourceUsage) -> String {
    let seconds = |time: Option<Duration>| {
        time.map_or("unknown".to_owned(), |time| format!("{:.3} s", time.as_secs_f64()))
    };
    let peak = used
        .peak_memory_bytes
        .map_or("unknown".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / 1_048_576.0));
    format!(
        "CPU time {}, throttled {}; peak memory {peak}; OOM kills: {}",
        seconds(used.cpu_time),
        seconds(used.throttled_time),
        used.oom_kills
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_minimum() {
        assert_eq!(memory("512MiB"), Ok(ByteSize(512 << 20)));
        assert!(memory("4KiB").is_err() && memory("much").is_err());
    }

    #[test]
    fn usage_includes_unknown_values() {
        let used = ResourceUsage {
            cpu_time: Some(Duration::from_millis(1500)),
            throttled_time: None,
            peak_memory_bytes: Some(3 << 20),
            oom_kills: 0,
        };
        let text = show(used);
        assert!(text.contains("CPU time 1.500 s, throttled unknown; peak memory 3.0 MiB"));
    }
}
