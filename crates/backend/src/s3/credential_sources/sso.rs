//! AWS IAM Identity Center, the former AWS SSO: exchanges the access token of a sign-on for the credentials of a role.
//! <https://docs.aws.amazon.com/singlesignon/latest/PortalAPIReference/API_GetRoleCredentials.html>

use http::{HeaderValue, Method, StatusCode};
use tradewind_core::error::{Error, Reason, Result};

use super::issued::{FieldNames, parse_json};
use super::issuer_client::{IssueRequest, IssuerClient};
use super::rejection::Rejection;
use super::service_url::ServiceUrl;
use crate::remote::query::Query;
use crate::s3::ExpiringCredentials;

const PATH: &str = "/federation/credentials";
const FIELDS: FieldNames =
    FieldNames { id: "accessKeyId", secret: "secretAccessKey", token: "sessionToken", expires: "expiration" };

/// A role of an account in IAM Identity Center.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsoRole {
    /// The portal: `https://portal.sso.REGION.amazonaws.com`.
    pub portal: ServiceUrl,
    /// The account's number.
    pub account_id: String,
    /// The role's name.
    pub role_name: String,
}

impl SsoRole {
    /// Requests the role's credentials with the access token of a sign-on. After an error that
    /// [`is_signed_out`](Self::is_signed_out), a new sign-on is needed.
    pub async fn issue(&self, client: &IssuerClient, access_token: &str) -> Result<ExpiringCredentials> {
        let query = Query::default().with("role_name", &self.role_name).with("account_id", &self.account_id);
        let url = self.portal.join(PATH, &query);
        let mut request = IssueRequest::new(Method::GET, &url);
        let mut token = HeaderValue::from_str(access_token).map_err(|_| {
            Error::new(
                Reason::InvalidArgument,
                "the access token contains a line break or another control character",
            )
        })?;
        token.set_sensitive(true);
        request.headers.insert("x-amz-sso_bearer_token", token);
        let document = client.send(request).await?;
        let service = format!("the sign-on portal {}", self.portal);
        FIELDS.credentials(&service, &parse_json(&service, &document)?["roleCredentials"])
    }

    /// Returns true if an error says that the access token is not valid any more.
    #[must_use]
    pub fn is_signed_out(error: &Error) -> bool {
        Rejection::cause_of(error).is_some_and(|rejection| rejection.status == StatusCode::UNAUTHORIZED)
    }
}
