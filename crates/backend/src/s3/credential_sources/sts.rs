//! The Security Token Service: exchanges credentials, or the token of another identity provider, for those of a role.
//! <https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html>,
//! <https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html>

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{Credentials, Signer};

use super::issuer_client::{IssueRequest, IssuerClient};
use super::rejection::Rejection;
use super::service_url::ServiceUrl;
use crate::remote::query::Query;
use crate::remote::time::parse_time;
use crate::s3::ExpiringCredentials;
use crate::s3::xml::DocumentKind;

const API_VERSION: &str = "2011-06-15";
const RESPONSE: DocumentKind = DocumentKind {
    name: "that of STS to AssumeRole",
    roots: &["AssumeRoleResponse", "AssumeRoleWithWebIdentityResponse"],
};

/// The Security Token Service of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sts {
    /// Its URL: `https://sts.REGION.amazonaws.com`.
    pub url: ServiceUrl,
    /// The region for signatures.
    pub region: String,
}

/// A role, and how it is assumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssumedRole {
    /// The role's ARN.
    pub arn: String,
    /// The name of the session in the logs of AWS.
    pub session_name: String,
    /// The external id that the role's trust policy requires, if any.
    pub external_id: Option<String>,
    /// Lifetime of the credentials; `None` for that of the service, one hour.
    pub duration: Option<Duration>,
}

impl Sts {
    /// Assumes a role with credentials (`AssumeRole`).
    pub async fn assume_role(
        &self,
        client: &IssuerClient,
        role: &AssumedRole,
        credentials: Credentials,
    ) -> Result<ExpiringCredentials> {
        let form = role.form("AssumeRole").with_optional("ExternalId", role.external_id.as_deref());
        let signer = Signer::for_service("sts", credentials, self.region.clone());
        self.request(client, role, &form, Some(signer)).await
    }

    /// Assumes a role with the token of an OpenID Connect provider (`AssumeRoleWithWebIdentity`).
    pub async fn assume_role_with_web_identity(
        &self,
        client: &IssuerClient,
        role: &AssumedRole,
        token: &str,
    ) -> Result<ExpiringCredentials> {
        let form = role.form("AssumeRoleWithWebIdentity").with("WebIdentityToken", token);
        self.request(client, role, &form, None).await
    }

    async fn request(
        &self,
        client: &IssuerClient,
        role: &AssumedRole,
        form: &Query,
        signer: Option<Signer>,
    ) -> Result<ExpiringCredentials> {
        let mut request = IssueRequest::new(Method::POST, &self.url);
        request.headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8"),
        );
        request.body = Bytes::copy_from_slice(form.as_bytes());
        request.signer = signer.map(Arc::new);
        let response = client.send(request).await;
        response.and_then(|document| parse_response(&document)).map_err(|e| role.explain(e))
    }
}

impl AssumedRole {
    fn form(&self, action: &str) -> Query {
        let seconds = self.duration.map(|duration| duration.as_secs().to_string());
        Query::default()
            .with("Action", action)
            .with("Version", API_VERSION)
            .with("RoleArn", &self.arn)
            .with("RoleSessionName", &self.session_name)
            .with_optional("DurationSeconds", seconds.as_deref())
    }

    /// Names the role, and what to do.
    fn explain(&self, error: Error) -> Error {
        let code = Rejection::cause_of(&error).map_or("", |rejection| rejection.code.as_str());
        let advice = match code {
            "AccessDenied" => "; check the role's trust policy, and that the caller may assume it",
            "ExpiredToken" | "ExpiredTokenException" => "; get a new token or new source credentials",
            "InvalidIdentityToken" | "IDPRejectedClaim" => {
                "; check the identity provider in IAM and the role's trust policy"
            }
            "InvalidClientTokenId" | "SignatureDoesNotMatch" => "; check the source credentials",
            "RegionDisabledException" => "; enable STS in this region, or set another region",
            _ => "",
        };
        let message = format!("the role {} cannot be assumed: {error}{advice}", self.arn);
        error.with_message(message)
    }
}

fn parse_response(document: &[u8]) -> Result<ExpiringCredentials> {
    let mut credentials = Credentials { id: String::new(), secret: String::new(), token: None };
    let mut expires = None;
    RESPONSE.for_each_element(document, |path, text| {
        let [.., "Credentials", field] = path else { return };
        match *field {
            "AccessKeyId" => text.clone_into(&mut credentials.id),
            "SecretAccessKey" => text.clone_into(&mut credentials.secret),
            "SessionToken" => credentials.token = Some(text.to_owned()),
            "Expiration" => expires = parse_time(text),
            _ => {}
        }
    })?;
    if credentials.id.is_empty() || credentials.secret.is_empty() || expires.is_none() {
        return Err(Error::new(Reason::Io, "the response of STS has no credentials, or no valid expiration"));
    }
    Ok(ExpiringCredentials { credentials, expires })
}
