//! Endpoint, region and credentials of S3, resolved like AWS CLI version 2: from the `AWS_*` variables and the files
//! `~/.aws/config` and `~/.aws/credentials`. The settings of `tradewind serve` are not read here.
//!
//! [`S3Access::resolve`] is a pure function of its inputs and of the given files: it runs no program and uses no network.
//! [`S3Access::issue`] runs a program or sends a request, if the source needs that. Every value records its origin, and no
//! message contains a secret. Where AWS's own tools disagree, `docs/decisions/0012-as-the-aws-cli-does.md` has the choice.

mod container;
mod credential_source;
mod endpoint;
mod expiration;
mod ini;
mod instance_metadata;
mod issue;
mod origin;
mod process;
mod profile;
mod role;
mod shell_words;
mod sso;
mod static_keys;
mod trust;
mod web_identity;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tradewind_backend::s3::{ChecksumUse, Endpoint};

pub use credential_source::{CredentialSource, ExpiringCredentials};
pub use origin::{Origin, Problem, Traced};
pub use process::CredentialProcess;
pub use trust::client_tls;

use credential_source::ResolveContext;
use issue::IssueContext;
use profile::Files;

/// A function that reads a whole file, such as `std::fs::read`.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// The inputs of the resolution, apart from the files.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Environment variables: `AWS_*`, `HOME` and `SSL_CERT_FILE`; others are ignored.
    pub environment: BTreeMap<String, String>,
    /// The value of `--profile`. It overrides `AWS_PROFILE`, and keys in the environment as well.
    pub profile: Option<String>,
}

impl Inputs {
    /// Reads the process's environment.
    pub fn gather(profile: Option<&str>) -> Result<Self, Problem> {
        let mut environment = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.into_string().ok().filter(|name| is_relevant(name)) else { continue };
            let Ok(value) = value.into_string() else {
                let message = format!("the variable {name} is not UTF-8; correct or unset it");
                return Err(Problem::new(Origin::Variable("environment"), message));
            };
            environment.insert(name, value);
        }
        Ok(Self { environment, profile: profile.map(str::to_owned) })
    }

    /// A variable's value; `None` if it is unset or empty.
    fn variable(&self, name: &'static str) -> Option<Traced<&str>> {
        let value = self.environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())?;
        Some(Traced::new(value, Origin::Variable(name)))
    }

    /// Expands `~/` to the home directory.
    fn expand(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.variable("HOME")) {
            (Some(rest), Some(home)) => Path::new(home.value).join(rest),
            _ => PathBuf::from(path),
        }
    }
}

fn is_relevant(name: &str) -> bool {
    name.starts_with("AWS_") || matches!(name, "HOME" | "SSL_CERT_FILE")
}

/// The resolved access to S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Access {
    /// The profile that was used.
    pub profile: String,
    /// The endpoint, with its addressing style.
    pub endpoint: Traced<Endpoint>,
    /// The region for signatures.
    pub region: Traced<String>,
    /// The source of credentials.
    pub credential_source: CredentialSource,
    /// Where credentials were looked for, for messages; without the instance metadata service.
    pub credential_locations: String,
    /// The certificates to trust instead of the system's.
    pub ca_bundle: Option<Traced<PathBuf>>,
    /// Maximum number of attempts per request, including the first.
    pub max_attempts: Option<Traced<u32>>,
    /// Checksum headers in requests that write.
    pub request_checksums: Option<Traced<ChecksumUse>>,
    /// Requests for the checksums of objects that are read.
    pub response_checksums: Option<Traced<ChecksumUse>>,
}

impl S3Access {
    /// Resolves the access. Reads the files each time, so that a second call finds keys that were changed there.
    pub fn resolve(inputs: &Inputs, read: ReadFile<'_>) -> Result<Self, Problem> {
        let files = Files::read(inputs, read)?;
        let profile = files.profile(inputs)?;
        let (endpoint, region) = endpoint::resolve(inputs, &files, &profile)?;
        let context = ResolveContext { inputs, files: &files, profile: &profile, region: &region.value };
        let credential_source = CredentialSource::resolve(&context)?;
        let ca_bundle = inputs.variable("AWS_CA_BUNDLE").or_else(|| profile.get_raw("ca_bundle"));
        let ca_bundle = ca_bundle.map(|given| Traced::new(inputs.expand(given.value), given.origin));
        let attempts = inputs.variable("AWS_MAX_ATTEMPTS").or_else(|| profile.get("max_attempts"));
        let max_attempts = attempts.map(|given| given.parse(parse_attempts)).transpose()?;
        let checksum_use = |variable: &'static str, key: &str| {
            let given = inputs.variable(variable).or_else(|| profile.get(key));
            given.map(|given| given.parse(parse_checksum_use)).transpose()
        };
        let request_checksums =
            checksum_use("AWS_REQUEST_CHECKSUM_CALCULATION", "request_checksum_calculation")?;
        let response_checksums =
            checksum_use("AWS_RESPONSE_CHECKSUM_VALIDATION", "response_checksum_validation")?;
        let credential_locations = files.credential_locations(inputs, &profile.name);
        Ok(Self {
            credential_locations,
            profile: profile.name,
            endpoint,
            region,
            credential_source,
            ca_bundle,
            max_attempts,
            request_checksums,
            response_checksums,
        })
    }

    /// Issues the credentials. If a program or a service issues them, each call blocks the calling thread for up to
    /// 30 seconds, and as long for each role of a chain. `inputs` and `read` are those of the resolution. Call it
    /// again before [`ExpiringCredentials::expires`].
    pub fn issue(&self, inputs: &Inputs, read: ReadFile<'_>) -> Result<Issued, Problem> {
        let context = IssueContext { inputs, read, ca_bundle: self.ca_bundle.as_ref() };
        let missing =
            |rest: &str| Issued::Missing { searched: format!("{}{rest}", self.credential_locations) };
        let issued = self.credential_source.issue(&context);
        match (issued, &self.credential_source) {
            (Ok(Some(issued)), _) => Ok(Issued::Credentials(issued)),
            (Ok(None), _) => {
                let variable = instance_metadata::DISABLED;
                Ok(missing(&format!("; {variable} excludes the instance metadata service")))
            }
            // It is the last resort on any machine, whether it is an instance or not.
            (Err(problem), CredentialSource::InstanceMetadata(_)) => {
                Ok(missing(&format!(" and the instance metadata service ({})", problem.message)))
            }
            (Err(problem), _) => Err(problem),
        }
    }
}

/// The result of [`S3Access::issue`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Issued {
    /// Credentials.
    Credentials(ExpiringCredentials),
    /// There are none.
    Missing {
        /// Where they were looked for. It completes "no credentials were found in".
        searched: String,
    },
}

/// Parses a setting of checksums; as in the SDKs, case does not matter.
fn parse_checksum_use(text: &str) -> Result<ChecksumUse, String> {
    match text.to_ascii_lowercase().as_str() {
        "when_supported" => Ok(ChecksumUse::WhenSupported),
        "when_required" => Ok(ChecksumUse::WhenRequired),
        _ => Err(format!("{text:?} is neither when_supported nor when_required")),
    }
}

fn parse_attempts(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(attempts) if attempts > 0 => Ok(attempts),
        _ => Err(format!("{text:?} is not a number of attempts; write a whole number of at least 1")),
    }
}
