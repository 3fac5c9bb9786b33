//! `tradewind settings show | check | reference`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Subcommand;

use super::{CommandOutcome, SettingsFlags};
use crate::settings::{self, FlagValue, Inputs, Problems, Settings};

/// Show the settings from file, environment and flags
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the settings and the origin of each; secrets are hidden
    ///
    /// Flags override environment variables (TRADEWIND_SERVER_LISTEN is server.listen), variables override the file,
    /// and the file overrides the defaults. Options of stores are printed only if they are set.
    #[command(after_help = "Examples:\n  \
        tradewind settings show\n  \
        tradewind settings show --config tradewind.toml --json\n  \
        TRADEWIND_MEMORY_BUDGET=256MiB tradewind settings show")]
    Show {
        #[command(flatten)]
        flags: SettingsFlags,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check the settings, and print the volumes that serve would serve
    ///
    /// Reports all problems with their lines. Reads the settings only: no store is opened.
    ///
    /// Exit status: 0 the settings are valid, 2 they are not.
    #[command(after_help = "Example:\n  tradewind settings check --config tradewind.toml")]
    Check {
        #[command(flatten)]
        flags: SettingsFlags,
    },
    /// Print every setting with its default and meaning, as Markdown
    #[command(after_help = "Example:\n  tradewind settings reference")]
    Reference,
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    let mut stdout = io::stdout().lock();
    match command {
        Command::Reference => write!(stdout, "{}", settings::reference())?,
        Command::Check { flags } => {
            let settings = flags.read()?;
            let volumes = super::volume::list_text(&settings)?;
            let notes = settings.named.notes().into_iter().chain(settings.named.caches_without_space());
            let notes: String = notes.map(|note| format!("note: {note}\n")).collect();
            write!(stdout, "the settings are valid\n{notes}{volumes}")?;
        }
        Command::Show { flags, json: true } => writeln!(stdout, "{:#}", flags.read()?.to_json())?,
        Command::Show { flags, json: false } => write!(stdout, "{}", flags.read()?)?,
    }
    Ok(CommandOutcome::Done)
}

impl SettingsFlags {
    /// Returns true if there is a settings file.
    pub(super) fn name_a_file(&self) -> bool {
        Inputs::name_a_file(self.config.as_deref())
    }

    /// The settings in effect with these flags.
    pub(super) fn read(self) -> Result<Settings, Problems> {
        Settings::read(&self.inputs()?)
    }

    /// The inputs of the settings: the file, the environment and these flags.
    pub(super) fn inputs(self) -> Result<Inputs, Problems> {
        let path = |path: Option<PathBuf>| path.map(|path| path.into_os_string().into_string());
        let given = [
            ("data", "--data", path(self.data)),
            ("server.listen", "--listen", self.listen.map(Ok)),
            ("server.admin", "--admin", self.admin.map(Ok)),
            ("server.tls_cert", "--tls-cert", path(self.tls_cert)),
            ("server.tls_key", "--tls-key", path(self.tls_key)),
        ];
        let mut problems = Problems::default();
        let mut flags = Vec::new();
        for (setting, flag, value) in given {
            match value {
                None => {}
                Some(Ok(value)) => flags.push(FlagValue { setting, flag, value }),
                Some(Err(_)) => {
                    problems.add(&crate::settings::SettingSource::Flag(flag), "the path is not UTF-8")
                }
            }
        }
        let flags = problems.into_result(flags)?;
        Inputs::gather(self.config, flags)
    }
}
