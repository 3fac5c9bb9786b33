//! The metadata service of an EC2 instance, version 2: a session token, the name of the instance's role, its credentials.
//! <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html>
//!
//! Version 1 is not supported: it has no token, so that a program which forwards requests discloses the credentials.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};

use super::issued::{METADATA_FIELDS, parse_json};
use super::issuer_client::{IssueRequest, IssuerClient, MAX_ISSUE_TIME, RequestLimits, WaitedOutages};
use super::rejection::Rejection;
use super::service_url::ServiceUrl;
use crate::remote::query::Query;
use crate::s3::ExpiringCredentials;

const TOKEN_PATH: &str = "/latest/api/token";
const ROLE_PATH: &str = "/latest/meta-data/iam/security-credentials/";
/// Lifetime of the session token, in seconds. Its only use follows at once.
const TOKEN_LIFETIME_SECONDS: &str = "60";
/// Credentials are used at least this long. The service may be unable to renew them; S3 then accepts expired ones.
const MIN_LIFETIME: Duration = Duration::from_secs(600);
/// Longest delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The metadata service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// Its URL: `http://169.254.169.254` on EC2.
    pub url: ServiceUrl,
    /// Maximum time of one attempt of a request.
    pub timeout: Duration,
    /// The number of attempts of a request that the user has set. Without it, a service that does not answer is asked
    /// once, and a failing one is waited for.
    pub max_attempts: Option<NonZeroU32>,
}

impl InstanceMetadata {
    /// Requests the credentials of the instance's role.
    pub async fn issue(&self, client: &IssuerClient) -> Result<ExpiringCredentials> {
        let service = format!("the instance metadata service {}", self.url);
        let token = HeaderValue::from_static(TOKEN_LIFETIME_SECONDS);
        let header = MetadataHeader::Lifetime(token);
        let token = self.request(client, Method::PUT, TOKEN_PATH, header, WaitedOutages::Responses).await?;
        let mut token = HeaderValue::from_maybe_shared(token)
            .map_err(|e| Error::with_source(Reason::Io, format!("{service} sent an invalid token"), e))?;
        token.set_sensitive(true);
        // The service exists.
        let all = WaitedOutages::All;
        let header = MetadataHeader::Token(token.clone());
        let role = self.request(client, Method::GET, ROLE_PATH, header, all).await;
        let role = String::from_utf8_lossy(&role.map_err(explain_missing_role)?).trim().to_owned();
        if role.is_empty() || role.contains(char::is_whitespace) {
            return Err(Error::new(Reason::Io, format!("{service} named no role")));
        }
        let path = format!("{ROLE_PATH}{role}");
        let document = self.request(client, Method::GET, &path, MetadataHeader::Token(token), all).await?;
        let document = parse_json(&service, &document)?;
        if let Some(code) = document["Code"].as_str().filter(|code| *code != "Success") {
            let why =
                format!("{service} has no credentials of the role {role} ({code:?}); check its trust policy");
            return Err(Error::new(Reason::AccessDenied, why));
        }
        let mut issued = METADATA_FIELDS.credentials(&service, &document)?;
        issued.expires = issued.expires.map(|expires| expires.max(min_expiry(client.clock.wall())));
        Ok(issued)
    }

    async fn request(
        &self,
        client: &IssuerClient,
        method: Method,
        path: &str,
        header: MetadataHeader,
        outages: WaitedOutages,
    ) -> Result<Bytes> {
        let url = self.url.join(path, &Query::default());
        let mut request = IssueRequest::new(method, &url);
        request.limits = self.limits(outages);
        match header {
            MetadataHeader::Lifetime(value) => {
                request.headers.insert("x-aws-ec2-metadata-token-ttl-seconds", value)
            }
            MetadataHeader::Token(value) => request.headers.insert("x-aws-ec2-metadata-token", value),
        };
        client.send(request).await
    }

    fn limits(&self, outages: WaitedOutages) -> RequestLimits {
        let max_attempts = self.max_attempts.map_or(1, NonZeroU32::get);
        let retries = max_attempts.saturating_sub(1);
        let total = self.timeout.saturating_mul(max_attempts);
        RequestLimits {
            connect_timeout: self.timeout,
            response_timeout: self.timeout,
            max_attempts,
            outages: if self.max_attempts.is_some() { WaitedOutages::None } else { outages },
            total: total.saturating_add(RETRY_DELAY.saturating_mul(retries)).min(MAX_ISSUE_TIME),
        }
    }
}

/// The header of a request.
enum MetadataHeader {
    /// The lifetime of the session token to issue, in seconds.
    Lifetime(HeaderValue),
    /// The session token.
    Token(HeaderValue),
}

fn explain_missing_role(error: Error) -> Error {
    match Rejection::cause_of(&error) {
        Some(Rejection { status: StatusCode::NOT_FOUND, .. }) => {
            let message = format!("{error}; the instance has no role: attach an instance profile");
            error.with_message(message)
        }
        _ => error,
    }
}

fn min_expiry(now: Timestamp) -> Timestamp {
    let millis = i64::try_from(MIN_LIFETIME.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.millis().saturating_add(millis))
}
