//! Where and how S3 is reached, found out as the AWS CLI (version 2) finds it out: from the `AWS_*` variables and the
//! files `~/.aws/config` and `~/.aws/credentials`. Nothing of `tradewind serve`'s own settings is read here.
//!
//! [`Access::find`] is a pure function of its inputs and of the files that it is given; it runs no program and speaks
//! with nobody. [`Access::credentials`] does, where the profile says so. Everything found knows where it came from,
//! and no message holds a secret. Where AWS's own tools disagree, `docs/decisions/0012-as-the-aws-cli-does.md` says what
//! was chosen.

mod endpoint;
mod ini;
mod login;
mod moment;
mod origin;
mod process;
mod profile;
mod trust;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tradewind_backend::s3::Endpoint;

pub use login::{Issued, Login};
pub use origin::{Origin, Problem, Traced};
pub use process::CredentialProcess;
pub use trust::client_tls;

use profile::Files;

/// Reads a whole file. `std::fs::read` is the real one.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// What decides, apart from the files.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Environment variables: `AWS_*`, `HOME` and `SSL_CERT_FILE`; others are not looked at.
    pub environment: BTreeMap<String, String>,
    /// What the flag `--profile` names. It covers `AWS_PROFILE`, and keys in the environment as well.
    pub profile: Option<String>,
}

impl Inputs {
    /// Reads the process's environment.
    pub fn gather(profile: Option<&str>) -> Result<Self, Problem> {
        let mut environment = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.into_string().ok().filter(|name| is_read(name)) else { continue };
            let Ok(value) = value.into_string() else {
                let message = format!("the variable {name} is not UTF-8; set it anew or unset it");
                return Err(Problem::new(Origin::Variable("environment"), message));
            };
            environment.insert(name, value);
        }
        Ok(Self { environment, profile: profile.map(str::to_owned) })
    }

    /// A variable's value. An empty one counts as none.
    fn variable(&self, name: &'static str) -> Option<Traced<&str>> {
        let value = self.environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())?;
        Some(Traced::new(value, Origin::Variable(name)))
    }

    /// The path, where `~/` is the home directory.
    fn expand(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.variable("HOME")) {
            (Some(rest), Some(home)) => Path::new(home.value).join(rest),
            _ => PathBuf::from(path),
        }
    }
}

fn is_read(name: &str) -> bool {
    name.starts_with("AWS_") || matches!(name, "HOME" | "SSL_CERT_FILE")
}

/// How S3 is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The profile that was looked at.
    pub profile: String,
    /// Where requests go, and where the bucket stands in them.
    pub endpoint: Traced<Endpoint>,
    /// The region that signatures name.
    pub region: Traced<String>,
    /// Who asks.
    pub login: Login,
    /// The certificates to trust instead of the system's.
    pub ca_bundle: Option<Traced<PathBuf>>,
    /// How often a request is sent at most, the first time included.
    pub max_attempts: Option<Traced<u32>>,
}

impl Access {
    /// Finds out. The files are read anew each time, so that calling it again finds keys that were changed there.
    pub fn find(inputs: &Inputs, read: ReadFile<'_>) -> Result<Self, Problem> {
        let files = Files::read(inputs, read)?;
        let profile = files.profile(inputs)?;
        let (endpoint, region) = endpoint::find(inputs, &files, &profile)?;
        let login = Login::find(inputs, &profile)?;
        let ca_bundle = inputs.variable("AWS_CA_BUNDLE").or_else(|| profile.whole("ca_bundle"));
        let ca_bundle = ca_bundle.map(|given| Traced::new(inputs.expand(given.value), given.origin));
        let attempts = inputs.variable("AWS_MAX_ATTEMPTS").or_else(|| profile.get("max_attempts"));
        let max_attempts = attempts.map(|given| given.read(read_attempts)).transpose()?;
        Ok(Self { profile: profile.name, endpoint, region, login, ca_bundle, max_attempts })
    }

    /// The credentials; `None` asks without a signature. Where a program issues them it is run, each time anew and for
    /// up to 30 seconds, on the calling thread: call this on one that may wait, and again before
    /// [`Issued::expires`].
    pub fn credentials(&self) -> Result<Option<Issued>, Problem> {
        self.login.issue()
    }
}

fn read_attempts(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(attempts) if attempts > 0 => Ok(attempts),
        _ => Err(format!("{text:?} is no number of attempts; write a whole number from 1")),
    }
}
