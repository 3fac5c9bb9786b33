//! A role of IAM Identity Center ("SSO"), with the access token that `aws sso login` has cached.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/feature-sso-credentials.html>

use std::path::PathBuf;

use serde_json::Value as Json;
use tradewind_backend::s3::ExpiringCredentials;
use tradewind_backend::s3::credential_sources::SsoRole;
use tradewind_core::{Algorithm, Checksum, Clock as _, SystemClock};

use super::credential_source::ResolveContext;
use super::issue::IssueContext;
use super::origin::{Origin, Problem, Traced};
use super::profile::AwsProfile;
use super::{endpoint, expiration};

/// A role, and the file with the cached token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsoSource {
    role: SsoRole,
    profile: String,
    token_file: PathBuf,
}

/// The sign-on of a profile, if it has one: both of `sso_account_id` and `sso_role_name`, with region and start URL in
/// its `[sso-session NAME]` or in the profile itself.
pub(super) fn resolve(
    context: &ResolveContext<'_>,
    profile: &AwsProfile<'_>,
) -> Result<Option<Traced<SsoSource>>, Problem> {
    let (account, role) = (profile.get("sso_account_id"), profile.get("sso_role_name"));
    let Some(first) = account.as_ref().or(role.as_ref()) else { return Ok(None) };
    let origin = first.origin.clone();
    let session_name = profile.get("sso_session");
    let session = session_name.as_ref().map(|name| context.files.config_section("sso-session", name));
    let session = session.transpose()?;
    let shared =
        |key: &str| session.as_ref().and_then(|session| session.get(key)).or_else(|| profile.get(key));
    let required = |found: Option<Traced<&str>>, key: &str| match found {
        Some(found) => Ok(Traced::new(found.value.to_owned(), found.origin)),
        None => {
            let message = format!("the sign-on of profile {} has no {key}; add it", profile.name);
            Err(Problem::new(origin.clone(), message))
        }
    };
    let (account, role) = (required(account, "sso_account_id")?, required(role, "sso_role_name")?);
    let region = required(shared("sso_region"), "sso_region")?;
    let region = region.parse(|text| endpoint::parse_region(&text))?.value;
    let start_url = required(shared("sso_start_url"), "sso_start_url")?.value;
    let portal =
        endpoint::service_url(context.inputs, context.files, context.profile, &endpoint::SSO, &region)?;
    let token_name = hex_sha1(session_name.as_ref().map_or(start_url.as_str(), |name| name.value));
    let token_file = context.inputs.expand(&format!("~/.aws/sso/cache/{token_name}.json"));
    let role = SsoRole { portal, account_id: account.value, role_name: role.value };
    Ok(Some(Traced::new(SsoSource { role, profile: profile.name.clone(), token_file }, origin)))
}

fn hex_sha1(text: &str) -> String {
    let digest = Checksum::compute(Algorithm::Sha1, text.as_bytes());
    digest.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SsoSource {
    /// Requests the role's credentials with the cached token.
    pub(super) fn issue(
        &self,
        context: &IssueContext<'_>,
        origin: &Origin,
    ) -> Result<ExpiringCredentials, Problem> {
        let token =
            self.access_token(context).map_err(|why| Problem::new(origin.clone(), self.sign_on(&why)))?;
        context.issue(&self.role.portal.peer, context.proxies(), origin, |client| async move {
            self.role.issue(&client, &token).await.map_err(|error| match SsoRole::is_signed_out(&error) {
                true => {
                    let message = self.sign_on(&format!("the access token is not valid any more ({error})"));
                    error.with_message(message)
                }
                false => error,
            })
        })
    }

    /// The cached token, unless it is missing or has expired. The error never quotes the file.
    fn access_token(&self, context: &IssueContext<'_>) -> Result<String, String> {
        let shown = self.token_file.display();
        let bytes = (context.read)(&self.token_file)
            .map_err(|error| format!("there is no access token in {shown} ({error})"))?;
        let invalid = || format!("{shown} has no valid access token");
        let document: Json = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let token = document["accessToken"].as_str().ok_or_else(invalid)?;
        let expires = document["expiresAt"].as_str().ok_or_else(invalid)?;
        // Old versions of the CLI end it with UTC.
        let expires = match expires.strip_suffix("UTC") {
            Some(local) => expiration::parse(&format!("{local}Z")),
            None => expiration::parse(expires),
        };
        if expires.ok_or_else(invalid)? <= SystemClock::new().wall() {
            return Err("the access token has expired".to_owned());
        }
        Ok(token.to_owned())
    }

    /// The message about a sign-on that is needed, because of `why`.
    fn sign_on(&self, why: &str) -> String {
        format!("{why}; run \"aws sso login --profile {}\"", self.profile)
    }
}
