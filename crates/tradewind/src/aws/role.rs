//! A role that is assumed with the credentials of another source: `role_arn` with `source_profile` or
//! `credential_source`. The source may be a role itself.

use std::time::Duration;

use tradewind_backend::s3::ExpiringCredentials;
use tradewind_backend::s3::credential_sources::{AssumedRole, Sts};

use super::credential_source::{CredentialSource, ResolveContext, export_advice};
use super::issue::IssueContext;
use super::origin::{Origin, Problem, Traced};
use super::profile::AwsProfile;
use super::{container, endpoint, instance_metadata, static_keys};

/// The name of a session whose profile has none. It appears in the logs of AWS.
pub(super) const DEFAULT_SESSION_NAME: &str = "tradewind";
/// The values of `credential_source`.
const SOURCES: [&str; 3] = ["Environment", "Ec2InstanceMetadata", "EcsContainer"];

/// A role, and the source of the credentials to assume it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleSource {
    sts: Sts,
    role: AssumedRole,
    source: Box<CredentialSource>,
}

/// Returns true if a profile has a role that is assumed with other credentials.
pub(super) fn is_in_profile(profile: &AwsProfile<'_>) -> bool {
    profile.get_raw("role_arn").is_some() && profile.get_raw("web_identity_token_file").is_none()
}

/// The role of the command's profile, which must have one.
pub(super) fn resolve(context: &ResolveContext<'_>) -> Result<Traced<RoleSource>, Problem> {
    let mut visited = vec![context.profile.name.clone()];
    resolve_in(context, context.profile, &mut visited)
}

/// The Security Token Service for the command's profile.
pub(super) fn sts(context: &ResolveContext<'_>) -> Result<Sts, Problem> {
    let ResolveContext { inputs, files, profile, region } = *context;
    let url = endpoint::service_url(inputs, files, profile, &endpoint::STS, region)?;
    Ok(Sts { url, region: region.to_owned() })
}

/// The role of a profile. `visited` has the profiles from that of the command to this one.
fn resolve_in(
    context: &ResolveContext<'_>,
    profile: &AwsProfile<'_>,
    visited: &mut Vec<String>,
) -> Result<Traced<RoleSource>, Problem> {
    let Some(arn) = profile.get("role_arn") else {
        let message = format!("profile {} has no role_arn", profile.name);
        return Err(Problem::new(Origin::Default, message));
    };
    if let Some(found) = profile.get_raw("mfa_serial") {
        let advice = export_advice(&profile.name);
        let message = format!("mfa_serial needs a code, and this program does not ask for one; {advice}");
        return Err(Problem::new(found.origin, message));
    }
    let duration = profile.get("duration_seconds").map(|given| given.parse(parse_duration)).transpose()?;
    let text = |key: &str| profile.get(key).map(|found| found.value.to_owned());
    let role = AssumedRole {
        arn: arn.value.to_owned(),
        session_name: text("role_session_name").unwrap_or_else(|| DEFAULT_SESSION_NAME.to_owned()),
        external_id: text("external_id"),
        duration: duration.map(|duration| duration.value),
    };
    let source = match (profile.get_raw("source_profile"), profile.get("credential_source")) {
        (Some(source), None) => source_profile(context, profile, &source, visited)?,
        (None, Some(source)) => credential_source(context, &source)?,
        (Some(_), Some(source)) => {
            let message = "the profile has source_profile as well; remove one of them";
            return Err(Problem::new(source.origin, message));
        }
        (None, None) => {
            let message = "the credentials to assume this role with are missing; add source_profile or \
                           credential_source";
            return Err(Problem::new(arn.origin, message));
        }
    };
    Ok(Traced::new(RoleSource { sts: sts(context)?, role, source: Box::new(source) }, arn.origin))
}

/// The source in the profile that a role refers to. A profile may refer to itself if it has keys.
fn source_profile(
    context: &ResolveContext<'_>,
    parent: &AwsProfile<'_>,
    name: &Traced<&str>,
    visited: &mut Vec<String>,
) -> Result<CredentialSource, Problem> {
    let profile = context.files.named_profile(name)?;
    let has_keys = static_keys::are_in_profile(&profile);
    let is_own_source = profile.name == parent.name && has_keys;
    if visited.contains(&profile.name) && !is_own_source {
        let path = visited.join(" -> ");
        let message = format!("the source profiles form a loop ({path} -> {}); break it", profile.name);
        return Err(Problem::new(name.origin.clone(), message));
    }
    visited.push(profile.name.clone());
    if is_in_profile(&profile) && !has_keys {
        return Ok(CredentialSource::Role(resolve_in(context, &profile, visited)?));
    }
    let found = CredentialSource::in_profile(context, &profile, None)?;
    found.ok_or_else(|| {
        let message =
            format!("profile {} has no credentials; add keys or another source to it", profile.name);
        Problem::new(name.origin.clone(), message)
    })
}

/// The source that `credential_source` names.
fn credential_source(
    context: &ResolveContext<'_>,
    source: &Traced<&str>,
) -> Result<CredentialSource, Problem> {
    let inputs = context.inputs;
    let missing = |why: &str| Problem::new(source.origin.clone(), format!("{} {why}", source.value));
    match source.value {
        "Environment" => static_keys::in_environment(inputs)?
            .map(CredentialSource::Keys)
            .ok_or_else(|| missing("needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which are not set")),
        "EcsContainer" => container::resolve(inputs)?.map(CredentialSource::Container).ok_or_else(|| {
            missing("needs AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or ..._FULL_URI, which are not set")
        }),
        "Ec2InstanceMetadata" => instance_metadata::resolve(inputs, context.profile)?
            .map(CredentialSource::InstanceMetadata)
            .ok_or_else(|| missing("cannot be used while AWS_EC2_METADATA_DISABLED is true; unset it")),
        other => {
            let message = format!("{other:?} is not a credential source; write {}", SOURCES.join(", "));
            Err(Problem::new(source.origin.clone(), message))
        }
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("{text:?} is not a number of seconds; write a whole number from 900 to 43200")),
    }
}

impl RoleSource {
    /// Issues the credentials of the source, and assumes the role with them.
    pub(super) fn issue(
        &self,
        context: &IssueContext<'_>,
        origin: &Origin,
    ) -> Result<ExpiringCredentials, Problem> {
        let Some(source) = self.source.issue(context)? else {
            return Err(Problem::new(origin.clone(), "the source of this role has no credentials"));
        };
        context.issue(&self.sts.url.peer, context.proxies(), origin, |client| async move {
            self.sts.assume_role(&client, &self.role, source.credentials).await
        })
    }
}
