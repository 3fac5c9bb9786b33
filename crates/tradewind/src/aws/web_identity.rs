//! A role that is assumed with the token of an OpenID Connect provider, as in EKS (IRSA). The token is in a file that
//! the provider's agent replaces.

use std::path::PathBuf;

use tradewind_backend::s3::ExpiringCredentials;
use tradewind_backend::s3::credential_sources::{AssumedRole, Sts};

use super::Inputs;
use super::credential_source::ResolveContext;
use super::issue::IssueContext;
use super::origin::{Origin, Problem, Traced};
use super::profile::AwsProfile;
use super::role::{self, DEFAULT_SESSION_NAME};

/// A role, and the file with the token to assume it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebIdentitySource {
    sts: Sts,
    role: AssumedRole,
    token_file: PathBuf,
}

/// The web identity of a profile, if it has one. Each value in `environment` overrides that of the profile.
pub(super) fn resolve(
    context: &ResolveContext<'_>,
    profile: &AwsProfile<'_>,
    environment: Option<&Inputs>,
) -> Result<Option<Traced<WebIdentitySource>>, Problem> {
    let value = |variable: &'static str, key: &str| {
        environment.and_then(|inputs| inputs.variable(variable)).or_else(|| profile.get_raw(key))
    };
    let Some(file) = value("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file") else { return Ok(None) };
    let Some(arn) = value("AWS_ROLE_ARN", "role_arn") else {
        let message =
            "the role of this web identity is missing; set AWS_ROLE_ARN, or role_arn in the profile";
        return Err(Problem::new(file.origin, message));
    };
    let session_name = value("AWS_ROLE_SESSION_NAME", "role_session_name");
    let role = AssumedRole {
        arn: arn.value.to_owned(),
        session_name: session_name.map_or(DEFAULT_SESSION_NAME, |name| name.value).to_owned(),
        external_id: None,
        duration: None,
    };
    let token_file = context.inputs.expand(file.value);
    let source = WebIdentitySource { sts: role::sts(context)?, role, token_file };
    Ok(Some(Traced::new(source, file.origin)))
}

impl WebIdentitySource {
    /// Assumes the role with the current token.
    pub(super) fn issue(
        &self,
        context: &IssueContext<'_>,
        origin: &Origin,
    ) -> Result<ExpiringCredentials, Problem> {
        let token = context.read_token(&self.token_file, origin)?;
        context.issue(&self.sts.url.peer, context.proxies(), origin, |client| async move {
            self.sts.assume_role_with_web_identity(&client, &self.role, &token).await
        })
    }
}
