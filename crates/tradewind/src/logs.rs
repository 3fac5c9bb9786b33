//! Logs: to stderr, text where that is a terminal and JSON elsewhere, unless the settings say which.

use std::env;
use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, anyhow};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::settings::{Log, LogFilter, LogFormat, Value as _};

/// Begins to log. Once a process.
pub fn begin(settings: &Log) -> anyhow::Result<()> {
    let directives = settings.level.value.directives();
    let mut filter = EnvFilter::try_new(directives).context("log.level")?;
    if !directives.contains("s3s") {
        // It would log once more, with the answer's body, what the gateway logs already.
        filter = filter.add_directive("s3s=off".parse()?);
    }
    let is_text = match settings.format.value {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_writer(io::stderr);
    let begun = if is_text {
        builder.with_ansi(io::stderr().is_terminal()).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    begun.map_err(|error| anyhow!("cannot begin to log: {error}"))
}

/// The variable that has commands log more; for `serve` it is the setting of that name.
const LEVEL_VARIABLE: &str = "TRADEWIND_LOG_LEVEL";

/// Begins the log of a command that serves nothing: what it warns of, one line each, or what the variable says, with the time.
pub fn begin_quietly() {
    let wanted = env::var(LEVEL_VARIABLE).ok().map(|text| LogFilter::parse(&text));
    let known = wanted.as_ref().and_then(|wanted| wanted.as_ref().ok());
    let directives = known.map_or("warn", LogFilter::directives);
    let filter = EnvFilter::new(format!("{directives},s3s=off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    // Where there is one already, that one is told.
    let _ = match known {
        Some(_) => log.try_init(),
        None => log.without_time().with_target(false).try_init(),
    };
    if let Some(Err(wrong)) = wanted {
        tracing::warn!("{LEVEL_VARIABLE}: {wrong}; what is logged is as without it");
    }
}
