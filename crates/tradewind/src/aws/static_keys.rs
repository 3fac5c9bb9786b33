//! Keys that are written down: in the environment, or in a profile of one of the files.

use tradewind_backend::s3::ExpiringCredentials;
use tradewind_core::Timestamp;
use tradewind_wire::sigv4::Credentials;

use super::origin::{Origin, Problem, Traced};
use super::profile::{AwsProfile, SharedFileKind};
use super::{Inputs, expiration};

/// The keys in the environment.
pub(super) fn in_environment(inputs: &Inputs) -> Result<Option<Traced<ExpiringCredentials>>, Problem> {
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

/// Fails if the environment has a secret without an id. Called if nothing else is configured.
pub(super) fn reject_lone_secret(inputs: &Inputs) -> Result<(), Problem> {
    let is_alone = inputs.profile.is_none() && inputs.variable("AWS_SECRET_ACCESS_KEY").is_some();
    if is_alone { Err(half_set_error("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")) } else { Ok(()) }
}

/// The keys in one of the files. Both halves must be in the same file.
pub(super) fn in_profile(
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

/// Returns true if a profile has keys, or half of a pair, in either file.
pub(super) fn are_in_profile(profile: &AwsProfile<'_>) -> bool {
    ["aws_access_key_id", "aws_secret_access_key"].iter().any(|key| profile.get_raw(key).is_some())
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
