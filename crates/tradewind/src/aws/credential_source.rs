//! The source of credentials, chosen in the order of the AWS CLI (`create_credential_resolver` of botocore). The first
//! source that is configured is used: if it fails, none after it is tried. Only the last one, the metadata service of an
//! instance, needs no configuration.

use tradewind_backend::remote::ProxyRules;
pub use tradewind_backend::s3::ExpiringCredentials;
use tradewind_backend::s3::credential_sources::InstanceMetadata;

use super::container::ContainerSource;
use super::issue::IssueContext;
use super::origin::{Problem, Traced};
use super::process::CredentialProcess;
use super::profile::{AwsProfile, Files, SharedFileKind};
use super::role::RoleSource;
use super::sso::SsoSource;
use super::web_identity::WebIdentitySource;
use super::{Inputs, container, instance_metadata, role, sso, static_keys, web_identity};

/// The source of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// None: requests are not signed.
    Anonymous,
    /// Fixed keys.
    Keys(Traced<ExpiringCredentials>),
    /// A program that issues credentials on each run.
    Process(Traced<CredentialProcess>),
    /// A role, assumed with the credentials of another source.
    Role(Traced<RoleSource>),
    /// A role, assumed with the token of another identity provider.
    WebIdentity(Traced<WebIdentitySource>),
    /// A role of IAM Identity Center.
    Sso(Traced<SsoSource>),
    /// The endpoint of the container.
    Container(Traced<ContainerSource>),
    /// The metadata service of the instance.
    InstanceMetadata(Traced<InstanceMetadata>),
}

/// The inputs of the resolution.
pub(super) struct ResolveContext<'a> {
    pub inputs: &'a Inputs,
    pub files: &'a Files,
    /// The profile of the command, which determines endpoints also where a role refers to other profiles.
    pub profile: &'a AwsProfile<'a>,
    /// The region of STS.
    pub region: &'a str,
}

impl CredentialSource {
    /// Resolves the source. An explicit `--profile` excludes the keys and the web identity in the environment.
    pub(super) fn resolve(context: &ResolveContext<'_>) -> Result<Self, Problem> {
        let ResolveContext { inputs, profile, .. } = *context;
        if inputs.profile.is_none()
            && let Some(issued) = static_keys::in_environment(inputs)?
        {
            return Ok(Self::Keys(issued));
        }
        if role::is_in_profile(profile) {
            return Ok(Self::Role(role::resolve(context)?));
        }
        let environment = inputs.profile.is_none().then_some(inputs);
        if let Some(found) = Self::in_profile(context, profile, environment)? {
            return Ok(found);
        }
        if let Some(container) = container::resolve(inputs)? {
            return Ok(Self::Container(container));
        }
        static_keys::reject_lone_secret(inputs)?;
        Ok(match instance_metadata::resolve(inputs, profile)? {
            Some(metadata) => Self::InstanceMetadata(metadata),
            None => Self::Anonymous,
        })
    }

    /// The source in a profile, if it has one that is not `role_arn` with a source. `environment` has variables that
    /// override the profile's web identity.
    pub(super) fn in_profile(
        context: &ResolveContext<'_>,
        profile: &AwsProfile<'_>,
        environment: Option<&Inputs>,
    ) -> Result<Option<Self>, Problem> {
        if let Some(web_identity) = web_identity::resolve(context, profile, environment)? {
            return Ok(Some(Self::WebIdentity(web_identity)));
        }
        if let Some(sso) = sso::resolve(context, profile)? {
            return Ok(Some(Self::Sso(sso)));
        }
        if let Some(issued) = static_keys::in_profile(profile, SharedFileKind::Credentials)? {
            return Ok(Some(Self::Keys(issued)));
        }
        reject_login_session(profile)?;
        if let Some(command) = profile.get_raw("credential_process") {
            return Ok(Some(Self::Process(command.parse(CredentialProcess::parse)?)));
        }
        Ok(static_keys::in_profile(profile, SharedFileKind::Config)?.map(Self::Keys))
    }

    /// Issues the credentials; `None` for unsigned requests. Each call runs the program or sends the request.
    pub(super) fn issue(&self, context: &IssueContext<'_>) -> Result<Option<ExpiringCredentials>, Problem> {
        let issued = match self {
            Self::Anonymous => return Ok(None),
            Self::Keys(issued) => Ok(issued.value.clone()),
            Self::Process(process) => {
                process.value.run().map_err(|message| Problem::new(process.origin.clone(), message))
            }
            Self::Role(role) => role.value.issue(context, &role.origin),
            Self::WebIdentity(web_identity) => web_identity.value.issue(context, &web_identity.origin),
            Self::Sso(sso) => sso.value.issue(context, &sso.origin),
            Self::Container(container) => container.value.issue(context, &container.origin),
            Self::InstanceMetadata(metadata) => {
                let Traced { value, origin } = metadata;
                context.issue(&value.url.peer, ProxyRules::direct(), origin, |client| async move {
                    value.issue(&client).await
                })
            }
        };
        issued.map(Some)
    }
}

/// Rejects `aws login`. The CLI can export such credentials.
fn reject_login_session(profile: &AwsProfile<'_>) -> Result<(), Problem> {
    let Some(found) = profile.get_raw("login_session") else { return Ok(()) };
    let message = format!("a login session is not supported; {}", export_advice(&profile.name));
    Err(Problem::new(found.origin, message))
}

/// The advice to let the AWS CLI find the credentials of a profile.
pub(super) fn export_advice(profile: &str) -> String {
    format!(
        "set the variables that \"aws configure export-credentials --profile {profile} --format env\" prints"
    )
}
