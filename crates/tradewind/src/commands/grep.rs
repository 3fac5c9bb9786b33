//! `tradewind grep`: searches objects for lines that match a pattern.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use clap::Args;
use tradewind_model::plan::MAX_READERS;
use tradewind_transfer::grep::{OutputMode, Query, Search};

use super::CommandOutcome;
use super::filter::FilterFlags;
use super::summary::print_failure;
use super::transfer::{LimitFlags, StoreFlags, block_on};
use crate::locations::ObjectsLocation;

/// Search objects for a pattern
///
/// Prints lines like `grep -rn`. Objects are listed first, then fetched concurrently, and each is searched while the
/// next ones arrive. Exit status like grep: 0 a line matched, 1 no line matched, 2 an object could not be searched.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind grep 'timed? out' s3://logs/2026/11/\n  \
    tradewind grep -il -F 'order 4711' s3://mails/\n  \
    tradewind grep --sort -c TODO s3://src/ --include '*.rs' --exclude '*test*'")]
pub(super) struct Arguments {
    /// Regular expression, in the syntax of ripgrep
    pattern: String,
    /// s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Case-insensitive match
    #[arg(short, long)]
    ignore_case: bool,
    /// Treat the pattern as literal text
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Match whole words only
    #[arg(short, long)]
    word_regexp: bool,
    /// Print lines that do not match
    #[arg(short = 'v', long)]
    invert_match: bool,
    /// Accepted for compatibility with grep: lines are always numbered, and everything below the prefix is searched
    #[arg(short = 'n', long = "line-number", hide = true)]
    _numbers: bool,
    #[arg(short = 'r', long = "recursive", hide = true)]
    _recursive: bool,
    /// Print only the names of objects that match
    #[arg(short = 'l', long, conflicts_with = "count")]
    files_with_matches: bool,
    /// Print only the number of matching lines of each object
    #[arg(short, long)]
    count: bool,
    /// Also search objects that contain a zero byte
    #[arg(short = 'a', long)]
    text: bool,
    /// Print in the order of the listing, not in order of arrival
    #[arg(long)]
    sort: bool,
    /// Concurrent objects [default: from their mean size]
    #[arg(long, value_name = "N", help_heading = "Tuning")]
    concurrent_objects: Option<usize>,
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    limit: LimitFlags,
    #[command(flatten)]
    store: StoreFlags,
}

/// Runs the search. An error exits with 2 like grep, because 1 means that nothing matched.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    match search(arguments) {
        Err(error) if !error.is::<super::StoppedBySignal>() => {
            super::print_error(&error);
            Ok(CommandOutcome::Status(2))
        }
        ended => ended,
    }
}

fn search(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let output_mode = match (arguments.files_with_matches, arguments.count) {
        (true, _) => OutputMode::Names,
        (_, true) => OutputMode::Counts,
        _ => OutputMode::Lines,
    };
    let search = Search::new(Query {
        patterns: vec![arguments.pattern],
        is_fixed_string: arguments.fixed_strings,
        ignores_case: arguments.ignore_case,
        is_word: arguments.word_regexp,
        inverts: arguments.invert_match,
        searches_binary: arguments.text,
        output_mode,
        is_coloured: io::stdout().is_terminal(),
        is_sorted: arguments.sort,
        concurrency: arguments.concurrent_objects,
    })?;
    block_on(async move {
        let store = arguments
            .store
            .with_concurrency(arguments.concurrent_objects, MAX_READERS)
            .with_rate_limit(arguments.limit)
            .streaming();
        let session = store.open([Some(&*arguments.location.scheme)])?;
        let objects = session.objects(&arguments.location)?;
        let filter = arguments.filter.read()?;
        let search = Arc::new(search);
        let searching =
            search.run(&session.transfer_context, objects, &filter, io::stdout(), &session.progress);
        let searched = searching.await?;
        for (name, error) in &searched.failures {
            print_failure(name, error)?;
        }
        Ok(match (searched.failures.is_empty(), searched.has_matches) {
            (false, _) => CommandOutcome::Status(2),
            (true, true) => CommandOutcome::Done,
            (true, false) => CommandOutcome::Status(1),
        })
    })
}
