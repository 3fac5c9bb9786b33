//! `tradewind bench posix`: measures a mounted file system with files.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tradewind_bench::Content;
use tradewind_bench::drive::StopSignal;
use tradewind_bench::posix::mount::Mount;
use tradewind_bench::posix::{PosixEnv, PosixPart, PosixPlan, RunDirectory};
use tradewind_core::{Clock, SystemClock};

use super::output::{Output, OutputFlags, RunDescription, files};
use super::parts::{self, PartFlags};
use super::target::until_stopped;
use crate::commands::terminal::print_error_line;
use crate::commands::{CommandOutcome, UsageError};

/// Measure the file performance of a mounted file system
///
/// Threads write and read files with blocking calls, opened with O_DIRECT, with O_SYNC and with neither. Parts: a file
/// of 16 MiB accessed in units of several sizes (unit), single files of several sizes (single), many files from one or
/// more threads (batch), and Postmark's workload, which creates, changes and deletes small files. Caches are dropped
/// before reading, those of the whole machine if permitted (root), and all data read is compared with the data written.
/// Files are in a temporary directory in DIR, which is removed at the end. A full run takes about two minutes on a
/// disk.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench posix /mnt/data\n  \
    tradewind bench posix /mnt/nfs --interface eth0 --only unit,single -o nfs.jsonl\n  \
    tradewind bench posix /mnt/data --only batch --form default --size 4KiB,16MiB --threads 1,2,4,8,16,32,64 --fsync\n  \
    tradewind bench posix . --only postmark --range 512B-100KiB --pool 500 --transactions 500 --repeat 3\n  \
    tradewind bench posix /mnt/nfs --workload ou --only batch --interface eth0\n\n\
    Exit status: 0 measured, 1 a call failed, data was wrong or nothing was measured, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// Directory to measure
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Workload to run: a file, or a built-in one listed by `tradewind bench workloads`; flags override it
    #[arg(long, value_name = "NAME|FILE")]
    workload: Option<String>,
    /// Parts to measure: unit, single, batch, postmark [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = parts::parse_part)]
    only: Vec<PosixPart>,
    #[command(flatten)]
    parts: PartFlags,
    /// Call fsync before closing each file, within the measured time
    #[arg(long)]
    fsync: bool,
    /// Network interface to the storage: also measure the bytes on the wire per byte of data
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Do not drop the caches of the machine, only those of the files that are read
    #[arg(long)]
    leave_caches: bool,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Do not remove the files at the end
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    output: OutputFlags,
}

impl Arguments {
    fn test_plan(&self, cores: usize) -> anyhow::Result<PosixPlan> {
        let sections = match &self.workload {
            Some(name) => parts::sections_from_workload(name, &self.only, &self.parts)?,
            None => parts::sections_from_flags(&self.only, &self.parts),
        };
        Ok(PosixPlan {
            sections,
            fsync: self.fsync,
            drop_caches: !self.leave_caches,
            interface: self.interface.clone(),
            rounds: self.repeat,
            seed: self.seed,
            keep_files: self.keep,
            cores,
        })
    }
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    until_stopped(async move |stop| {
        // Files are accessed with blocking calls on separate threads: this thread only waits for them.
        tokio::task::block_in_place(|| measure(&arguments, &stop))
    })
}

fn measure(arguments: &Arguments, stop: &StopSignal) -> anyhow::Result<CommandOutcome> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let plan = arguments.test_plan(cores)?;
    plan.validate().map_err(UsageError)?;
    let run_number =
        getrandom::u32().map_err(|e| anyhow::anyhow!("cannot get random bytes from the system: {e}"))?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let run_directory =
        Arc::new(RunDirectory::create(&arguments.directory, &format!("tradewind-bench-{run_number:08x}"))?);
    let description = RunDescription {
        location: arguments.directory.display().to_string(),
        store: Mount::containing(run_directory.path()).fs_type,
        prefix: run_directory.path().display().to_string(),
        seed: arguments.seed,
        new_connections: false,
        files_dir: None,
        cores,
        measurements: plan.max_measurements(),
        table_header: files::TABLE_HEADER,
        agents: Vec::new(),
    };
    let env = PosixEnv {
        directory: run_directory.clone(),
        content: Arc::new(Content::new()),
        clock,
        stop: stop.clone(),
    };
    let measured = Output::begin(&arguments.output, &description, env.clock.wall(), stop.clone()).and_then(
        |mut output| {
            let measured = plan.run(&env, &mut |event| output.handle_posix_event(event));
            let ended = output.end(matches!(measured, Ok(true)), Vec::new());
            measured?;
            ended
        },
    );
    let shown = run_directory.path().display();
    if arguments.keep {
        writeln!(io::stderr(), "files are kept in {shown}")?;
        return measured;
    }
    match run_directory.remove() {
        Ok(()) => measured,
        Err(e) => {
            // Reported in addition to any other error.
            print_error_line(format_args!("tradewind: files remain in {shown}: {e}"))?;
            measured.map(|_| CommandOutcome::FoundProblems)
        }
    }
}
