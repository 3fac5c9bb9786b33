//! The source of credentials: keys in the environment, keys in the profile, a program that issues them, or none.
//!
//! Roles, single sign-on and the metadata services of Amazon's machines are not supported. If the CLI would use one of
//! them, this is an error, instead of an unsigned request or one with other credentials.

pub use tradewind_backend::s3::ExpiringCredentials;
use tradewind_core::Timestamp;
use tradewind_wire::sigv4::Credentials;

use super::origin::{Origin, Problem, Traced};
use super::process::CredentialProcess;
use super::profile::{AwsProfile, SharedFileKind};
use super::{Inputs, expiration};

/// Keys of a profile that require a role, which is another identity than that of the profile's own keys.
const ROLE_KEYS: [&str; 2] = ["role_arn", "web_identity_token_file"];
/// Keys of a profile that require a sign-on, which applies only without other credentials.
const SIGN_ON_KEYS: [&str; 6] =
    ["sso_session", "sso_start_url", "sso_account_id", "sso_role_name", "sso_region", "login_session"];
/// Variables with the service that issues credentials to containers.
const CONTAINER_VARIABLES: [&str; 2] =
    ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

/// The source of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// None: requests are not signed.
    Anonymous,
    /// Fixed keys.
    Keys(Traced<ExpiringCredentials>),
    /// A program that issues credentials on each run.
    Process(Traced<CredentialProcess>),
}

impl CredentialSource {
    /// Resolves the source, in this order: keys in the environment (unless `--profile` is given), keys in the
    /// credentials file, the program, keys in the config file.
    pub(super) fn resolve(inputs: &Inputs, profile: &AwsProfile<'_>) -> Result<Self, Problem> {
        if inputs.profile.is_none() {
            if let Some(issued) = environment_keys(inputs)? {
                return Ok(Self::Keys(issued));
            }
            reject_variable(inputs, "AWS_WEB_IDENTITY_TOKEN_FILE", "a role by a web identity")?;
        }
        reject_keys(profile, &ROLE_KEYS, "a role")?;
        if let Some(issued) = profile_keys(profile, SharedFileKind::Credentials)? {
            return Ok(Self::Keys(issued));
        }
        if let Some(command) = profile.get_raw("credential_process") {
            return Ok(Self::Process(command.parse(CredentialProcess::parse)?));
        }
        if let Some(issued) = profile_keys(profile, SharedFileKind::Config)? {
            return Ok(Self::Keys(issued));
        }
        reject_keys(profile, &SIGN_ON_KEYS, "a sign-on")?;
        for name in CONTAINER_VARIABLES {
            reject_variable(inputs, name, "a container's role")?;
        }
        if inputs.profile.is_none() && inputs.variable("AWS_SECRET_ACCESS_KEY").is_some() {
            return Err(half_set_error("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"));
        }
        Ok(Self::Anonymous)
    }

    /// The credentials; `None` for unsigned requests. Each call runs the program, if there is one.
    pub(super) fn credentials(&self) -> Result<Option<ExpiringCredentials>, Problem> {
        match self {
            Self::Anonymous => Ok(None),
            Self::Keys(issued) => Ok(Some(issued.value.clone())),
            Self::Process(process) => match process.value.run() {
                Ok(issued) => Ok(Some(issued)),
                Err(message) => Err(Problem::new(process.origin.clone(), message)),
            },
        }
    }
}

fn environment_keys(inputs: &Inputs) -> Result<Option<Traced<ExpiringCredentials>>, Problem> {
    let Some(id) = inputs.variable("AWS_ACCESS_KEY_ID") else { return Ok(None) };
    let Some(secret) = inputs.variable("AWS_SECRET_ACCESS_KEY") else {
        return Err(half_set_error("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"));
    };
    let token = inputs.variable("AWS_SESSION_TOKEN");
    let expires =
        inputs.variable("AWS_CREDENTIAL_EXPIRATION").map(|given| given.parse(parse_time)).transpose()?;
    let issued = issued_credentials(id.value, secret.value, token, expires.map(|expires| expires.value));
    Ok(Some(Traced::new(issued, id.origin)))
}

/// The keys in one of the files. Both halves must be in the same file.
fn profile_keys(
    profile: &AwsProfile<'_>,
    kind: SharedFileKind,
) -> Result<Option<Traced<ExpiringCredentials>>, Problem> {
    let id = profile.get_from(kind, "aws_access_key_id");
    let secret = profile.get_from(kind, "aws_secret_access_key");
    let alone = |found: Traced<&str>, missing: &str| {
        let message =
            format!("profile {} has no {missing} in this file; add it next to this line", profile.name);
        Err(Problem::new(found.origin, message))
    };
    match (id, secret) {
        (None, None) => Ok(None),
        (Some(id), None) => alone(id, "aws_secret_access_key"),
        (None, Some(secret)) => alone(secret, "aws_access_key_id"),
        (Some(id), Some(secret)) => {
            let token = profile.get_from(kind, "aws_session_token");
            Ok(Some(Traced::new(issued_credentials(id.value, secret.value, token, None), id.origin)))
        }
    }
}

fn issued_credentials(
    id: &str,
    secret: &str,
    token: Option<Traced<&str>>,
    expires: Option<Timestamp>,
) -> ExpiringCredentials {
    let token = token.map(|token| token.value.to_owned());
    ExpiringCredentials {
        credentials: Credentials { id: id.to_owned(), secret: secret.to_owned(), token },
        expires,
    }
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("{text:?} is not a time; write it as {}", expiration::EXAMPLE);
    expiration::parse(text).ok_or_else(wrong)
}

fn half_set_error(missing: &'static str, found: &str) -> Problem {
    let message = format!("it is not set, but {found} is; set both or neither");
    Problem::new(Origin::Variable(missing), message)
}

fn reject_variable(inputs: &Inputs, name: &'static str, what: &str) -> Result<(), Problem> {
    match inputs.variable(name) {
        Some(found) => Err(unsupported_error(found.origin, what, "")),
        None => Ok(()),
    }
}

fn reject_keys(profile: &AwsProfile<'_>, keys: &[&str], what: &str) -> Result<(), Problem> {
    match keys.iter().find_map(|key| profile.get_raw(key)) {
        Some(found) => Err(unsupported_error(found.origin, what, &format!(" --profile {}", profile.name))),
        None => Ok(()),
    }
}

/// The error for an unsupported source. The AWS CLI supports all of them and can export the credentials.
fn unsupported_error(origin: Origin, what: &str, profile: &str) -> Problem {
    let command = format!("aws configure export-credentials{profile} --format env");
    Problem::new(origin, format!("{what} is not supported; set the variables that \"{command}\" prints"))
}
