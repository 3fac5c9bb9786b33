//! The command line: flags as plain data, one module per command, and the only place that translates an error
//! into an exit status: 0 done, 1 failed, 2 usage (wrong flags or settings), 129, 130 or 143 stopped by SIGHUP, SIGINT
//! or SIGTERM (0 for `serve` and `sync --watch`).

mod balance;
mod bench;
mod bundle;
mod class;
mod class_flags;
mod command_runtime;
mod cp;
mod execution;
mod filter;
mod grep;
mod lab;
mod labels_name;
mod latency_target;
mod limits;
mod objects;
mod plan_output;
mod profiles;
mod running_server;
mod serve;
mod settings;
mod signals;
mod standard_io;
mod store;
mod summary;
mod sync;
mod terminal;
mod transfer;
mod tune;
mod versions;
mod volume;
mod watch;

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use tradewind_core::printable;

use self::signals::CaughtSignal;
use crate::settings::Problems;
use crate::stores::UnknownStore;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "tradewind",
    version,
    about = "S3 server, transfer tools for S3, OpenStack Swift and local files, and storage benchmarks",
    after_help = "Examples:\n  \
        tradewind serve --data ./data\n  \
        tradewind cp -r ./photos s3://photos/2026/\n  \
        tradewind sync s3://photos/2026/ swift://photos/2026/\n  \
        tradewind bench object s3://photos\n  \
        tradewind bench posix /mnt/photos\n  \
        tradewind settings show --config tradewind.toml\n  \
        tradewind store check ./data\n\n\
        Sizes: 64KiB, 8MiB, 5GiB, 1TiB, or K, M, G and T for the same; 5GB is 5,000,000,000 bytes.\n\
        Exit status: 0 done, 1 failed, 2 usage, 129, 130 or 143 stopped by SIGHUP, SIGINT or SIGTERM (0 for serve and sync --watch)."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Cp(cp::Arguments),
    Sync(sync::Arguments),
    Grep(grep::Arguments),
    Ls(objects::Ls),
    Rm(objects::Rm),
    Cat(objects::Cat),
    Stat(objects::Stat),
    Mb(objects::Mb),
    Rb(objects::Rb),
    Versioning(versions::VersioningArguments),
    #[command(subcommand)]
    Class(class::Command),
    #[command(subcommand)]
    Bench(bench::Command),
    Tune(tune::Arguments),
    #[command(subcommand)]
    Profiles(profiles::Command),
    Report(bench::page::Arguments),
    #[command(subcommand)]
    Balance(balance::Command),
    #[command(subcommand)]
    Store(store::Command),
    #[command(subcommand)]
    Volume(volume::Command),
    #[command(subcommand)]
    Settings(settings::Command),
    #[command(subcommand)]
    Lab(lab::Command),
}

/// Flags of commands that read settings.
#[derive(Debug, Clone, clap::Args)]
struct SettingsFlags {
    /// Directory of the root key and, unless settings name a store, of the local store [default: data, or the
    /// directory of the configured local store]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address and port of the S3 listener [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address and port of the admin listener: health, metrics and the admin API [default: 127.0.0.1:9001]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Certificate chain (PEM): serve S3 over TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

/// The outcome of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandOutcome {
    /// Success.
    Done,
    /// The command completed, and has printed the failures or faults that it found.
    FoundProblems,
    /// An exit status that the command defines itself.
    Status(u8),
}

impl CommandOutcome {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Done => 0,
            Self::FoundProblems => 1,
            Self::Status(status) => *status,
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    crate::memory_limit::limit_c_allocator();
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) => {
            // Help and version are not errors for clap's exit status. A closed pipe is ignored.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let result = match command_line.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Cp(arguments) => cp::run(arguments),
        Command::Sync(arguments) => sync::run(arguments),
        Command::Grep(arguments) => grep::run(arguments),
        Command::Ls(arguments) => objects::ls(arguments),
        Command::Rm(arguments) => objects::rm(arguments),
        Command::Cat(arguments) => objects::cat(arguments),
        Command::Stat(arguments) => objects::stat(arguments),
        Command::Mb(arguments) => objects::mb(arguments),
        Command::Rb(arguments) => objects::rb(arguments),
        Command::Versioning(arguments) => versions::versioning(arguments),
        Command::Class(command) => class::run(command),
        Command::Bench(command) => bench::run(command),
        Command::Tune(arguments) => tune::run(arguments),
        Command::Profiles(command) => profiles::run(command),
        Command::Report(arguments) => bench::page::run(&arguments),
        Command::Balance(command) => balance::run(command),
        Command::Store(command) => store::run(command),
        Command::Volume(command) => volume::run(command),
        Command::Settings(command) => settings::run(command),
        Command::Lab(command) => lab::run(command),
    };
    match result {
        Ok(outcome) => ExitCode::from(outcome.exit_status()),
        Err(error) => ExitCode::from(print_error(&error)),
    }
}

/// A usage error that clap cannot detect from the flags alone.
#[derive(Debug)]
struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The error of a command that a signal stopped.
#[derive(Debug)]
struct StoppedBySignal(CaughtSignal);

impl fmt::Display for StoppedBySignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by {}", self.0.name())
    }
}

impl std::error::Error for StoppedBySignal {}

/// Prints an error; returns the exit status.
fn print_error(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return 1;
    }
    let mut stderr = io::stderr().lock();
    // If stderr is closed, the error cannot be reported anywhere.
    if let Some(problems) = error.downcast_ref::<Problems>() {
        let _ = writeln!(stderr, "tradewind: the settings are wrong:");
        for problem in &problems.0 {
            // For a file that cannot be parsed, the parser shows the line.
            for line in problem.to_string().lines() {
                let _ = writeln!(stderr, "  {}", printable(line));
            }
        }
        return 2;
    }
    // A usage error may be a list with one line per item. Elsewhere a line break belongs to a name and is escaped.
    let text = error_text(error);
    let lines: Vec<&str> = if error.is::<UsageError>() { text.lines().collect() } else { vec![&text] };
    let lines: Vec<_> = lines.into_iter().map(printable).collect();
    let _ = writeln!(stderr, "tradewind: {}", lines.join("\n"));
    let status = if error.is::<UnknownStore>() || error.is::<UsageError>() { 2 } else { 1 };
    let stopped = error.downcast_ref::<StoppedBySignal>();
    stopped.map_or(status, |StoppedBySignal(caught)| caught.exit_status())
}

/// An error and its causes in one line. A cause whose text is already included is not repeated.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Splits a line into words as a shell does, with quotes.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for letter in line.chars() {
            match letter {
                '\'' | '"' if quote.is_none() => quote = Some(letter),
                _ if quote == Some(letter) => quote = None,
                ' ' if quote.is_none() => words.push(String::new()),
                _ => words.last_mut().unwrap().push(letter),
            }
        }
        words
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut commands = vec![CommandLine::command()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = help.lines().flat_map(|line| line.split(" | ")).flat_map(|line| line.split(" && "));
            let examples: Vec<&str> =
                lines.map(str::trim).filter(|line| line.starts_with("tradewind ")).collect();
            let has_examples = !examples.is_empty();
            assert!(command.has_subcommands() || has_examples, "{} has no examples", command.get_name());
            for example in examples {
                let parsed = CommandLine::try_parse_from(words(example));
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
