//! Logging to stderr: text on a terminal and JSON elsewhere, unless the settings select a format.

use std::env;
use std::fmt::Debug;
use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, anyhow};
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{FmtSpan, Writer, debug_fn};
use tradewind_core::printable;

use crate::settings::{LogFilter, LogFormat, LogSettings, SettingValue as _};

/// Initializes logging. Must be called once per process.
pub fn init(settings: &LogSettings) -> anyhow::Result<()> {
    let directives = settings.level.value.directives();
    let mut filter = EnvFilter::try_new(directives).context("log.level")?;
    if !directives.contains("s3s") {
        // s3s would repeat, with the response body, what the gateway already logs.
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
    let initialized = if is_text {
        builder.with_ansi(io::stderr().is_terminal()).fmt_fields(printable_fields()).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    initialized.map_err(|error| anyhow!("cannot initialize logging: {error}"))
}

/// Formats fields as text with control characters escaped, because keys and messages of stores are among them. (JSON
/// escapes them itself.)
fn printable_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let format = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let text = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", printable(&text)),
            name if writer.has_ansi_escapes() => {
                write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{}", printable(&text))
            }
            name => write!(writer, "{name}={}", printable(&text)),
        }
    };
    debug_fn(format).delimited(" ")
}

/// The variable that sets the log level of commands; for `serve` it is the setting of that name.
const LEVEL_VARIABLE: &str = "TRADEWIND_LOG_LEVEL";

/// Initializes logging of commands other than `serve`: warnings without a timestamp, or the level of the variable with
/// one.
pub fn init_quiet() {
    let wanted = env::var(LEVEL_VARIABLE).ok().map(|text| LogFilter::parse(&text));
    let known = wanted.as_ref().and_then(|wanted| wanted.as_ref().ok());
    let directives = known.map_or("warn", LogFilter::directives);
    let filter = EnvFilter::new(format!("{directives},s3s=off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    let log = log.fmt_fields(printable_fields());
    // An existing subscriber stays.
    let _ = match known {
        Some(_) => log.try_init(),
        None => log.without_time().with_target(false).try_init(),
    };
    if let Some(Err(wrong)) = wanted {
        tracing::warn!("{LEVEL_VARIABLE}: {wrong}; the variable is ignored");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn control_characters_of_fields_are_escaped() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(printable_fields())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let key = "a\x1b[2J\nforged";
            tracing::warn!(key, other = %key, number = 7, "about {key}");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let shown = "a\\u{1b}[2J\\nforged";
        assert!(text.ends_with(&format!("about {shown} key=\"{shown}\" other={shown} number=7\n")), "{text}");
    }
}
