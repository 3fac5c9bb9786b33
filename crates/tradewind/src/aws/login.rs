//! Who asks: keys of the environment, keys of the profile, a program that issues them, or nobody.
//!
//! Roles, single sign-on and the metadata services of Amazon's machines are not spoken with; where the CLI would use
//! one of them this says so, rather than to ask without a signature or as somebody else.

pub use tradewind_backend::s3::Issued;
use tradewind_core::Timestamp;
use tradewind_wire::sigv4::Credentials;

use super::origin::{Origin, Problem, Traced};
use super::process::CredentialProcess;
use super::profile::{Kind, Profile};
use super::{Inputs, moment};

/// Keys of a profile that ask for a role, which is not who the profile's own keys are.
const ROLES: [&str; 2] = ["role_arn", "web_identity_token_file"];
/// Keys of a profile that ask for a sign-on, which counts only where nothing else is there.
const SIGN_ONS: [&str; 6] =
    ["sso_session", "sso_start_url", "sso_account_id", "sso_role_name", "sso_region", "login_session"];
/// Variables that name a service where containers get credentials.
const CONTAINERS: [&str; 2] =
    ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

/// Who asks, and how that is found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// Nobody: requests go out without a signature.
    Anonymous,
    /// Who has these keys.
    Keys(Traced<Issued>),
    /// Whom a program names, each time it is run.
    Process(Traced<CredentialProcess>),
}

impl Login {
    /// The keys of the environment unless a flag names the profile, then those of the credentials file, the program, and
    /// the keys of the config file.
    pub(super) fn find(inputs: &Inputs, profile: &Profile<'_>) -> Result<Self, Problem> {
        if inputs.profile.is_none() {
            if let Some(issued) = of_environment(inputs)? {
                return Ok(Self::Keys(issued));
            }
            refuse_variable(inputs, "AWS_WEB_IDENTITY_TOKEN_FILE", "a role by a web identity")?;
        }
        refuse_key(profile, &ROLES, "a role")?;
        if let Some(issued) = of_profile(profile, Kind::Credentials)? {
            return Ok(Self::Keys(issued));
        }
        if let Some(command) = profile.whole("credential_process") {
            return Ok(Self::Process(command.read(CredentialProcess::parse)?));
        }
        if let Some(issued) = of_profile(profile, Kind::Config)? {
            return Ok(Self::Keys(issued));
        }
        refuse_key(profile, &SIGN_ONS, "a sign-on")?;
        for name in CONTAINERS {
            refuse_variable(inputs, name, "a container's role")?;
        }
        if inputs.profile.is_none() && inputs.variable("AWS_SECRET_ACCESS_KEY").is_some() {
            return Err(half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"));
        }
        Ok(Self::Anonymous)
    }

    /// The credentials, if anybody asks. A program is run each time.
    pub(super) fn issue(&self) -> Result<Option<Issued>, Problem> {
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

fn of_environment(inputs: &Inputs) -> Result<Option<Traced<Issued>>, Problem> {
    let Some(id) = inputs.variable("AWS_ACCESS_KEY_ID") else { return Ok(None) };
    let Some(secret) = inputs.variable("AWS_SECRET_ACCESS_KEY") else {
        return Err(half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"));
    };
    let token = inputs.variable("AWS_SESSION_TOKEN");
    let expires =
        inputs.variable("AWS_CREDENTIAL_EXPIRATION").map(|given| given.read(read_moment)).transpose()?;
    let issued = issued(id.value, secret.value, token, expires.map(|expires| expires.value));
    Ok(Some(Traced::new(issued, id.origin)))
}

/// The keys of one of the files; both halves stand in the same.
fn of_profile(profile: &Profile<'_>, kind: Kind) -> Result<Option<Traced<Issued>>, Problem> {
    let id = profile.of(kind, "aws_access_key_id");
    let secret = profile.of(kind, "aws_secret_access_key");
    let alone = |found: Traced<&str>, missing: &str| {
        let message =
            format!("profile {} has no {missing} in this file; add it beside this line", profile.name);
        Err(Problem::new(found.origin, message))
    };
    match (id, secret) {
        (None, None) => Ok(None),
        (Some(id), None) => alone(id, "aws_secret_access_key"),
        (None, Some(secret)) => alone(secret, "aws_access_key_id"),
        (Some(id), Some(secret)) => {
            let token = profile.of(kind, "aws_session_token");
            Ok(Some(Traced::new(issued(id.value, secret.value, token, None), id.origin)))
        }
    }
}

fn issued(id: &str, secret: &str, token: Option<Traced<&str>>, expires: Option<Timestamp>) -> Issued {
    let token = token.map(|token| token.value.to_owned());
    Issued { credentials: Credentials { id: id.to_owned(), secret: secret.to_owned(), token }, expires }
}

fn read_moment(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("{text:?} is no time; write it as {}", moment::EXAMPLE);
    moment::parse(text).ok_or_else(wrong)
}

fn half(missing: &'static str, found: &str) -> Problem {
    let message = format!("it is not set, but {found} is; set both or neither");
    Problem::new(Origin::Variable(missing), message)
}

fn refuse_variable(inputs: &Inputs, name: &'static str, what: &str) -> Result<(), Problem> {
    match inputs.variable(name) {
        Some(found) => Err(unsupported(found.origin, what, "")),
        None => Ok(()),
    }
}

fn refuse_key(profile: &Profile<'_>, keys: &[&str], what: &str) -> Result<(), Problem> {
    match keys.iter().find_map(|key| profile.whole(key)) {
        Some(found) => Err(unsupported(found.origin, what, &format!(" --profile {}", profile.name))),
        None => Ok(()),
    }
}

/// The AWS CLI knows all of these and can hand on what it gets.
fn unsupported(origin: Origin, what: &str, profile: &str) -> Problem {
    let command = format!("aws configure export-credentials{profile} --format env");
    Problem::new(origin, format!("{what} is not supported; set the variables that \"{command}\" prints"))
}
