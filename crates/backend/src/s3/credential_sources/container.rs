//! The endpoint that issues credentials to a container: that of ECS, and the agent of EKS Pod Identity.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html>

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};

use super::issued::{METADATA_FIELDS, parse_json};
use super::issuer_client::{IssueRequest, IssuerClient, RequestLimits};
use super::service_url::ServiceUrl;
use crate::remote::Peer;
use crate::s3::ExpiringCredentials;

/// The host of ECS.
const ECS_HOST: &str = "http://169.254.170.2";
/// Hosts that plain HTTP is allowed to, in addition to loopback addresses: ECS, and EKS by IPv4 and IPv6.
const PLAIN_HTTP_HOSTS: [&str; 4] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"];
/// Maximum time to connect, and until a response begins. The endpoint is on this machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The endpoint, and the value of `Authorization` that it requires, if any.
#[derive(Clone, PartialEq, Eq)]
pub struct ContainerEndpoint {
    url: ServiceUrl,
    /// The value of `Authorization`.
    pub authorization: Option<String>,
}

impl fmt::Debug for ContainerEndpoint {
    /// Omits path and authorization, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContainerEndpoint({})", self.url)
    }
}

impl ContainerEndpoint {
    /// The endpoint of a path on the host of ECS. `path` begins with a slash.
    pub fn on_ecs(path: &str) -> Result<Self> {
        if !path.starts_with('/') {
            return Err(Error::new(Reason::InvalidArgument, "the path does not begin with a slash"));
        }
        Ok(Self { url: ServiceUrl::parse(&format!("{ECS_HOST}{path}"))?, authorization: None })
    }

    /// The endpoint of a URL. Plain HTTP is allowed only to loopback addresses and the hosts of ECS and EKS: on a
    /// network, others could read the credentials.
    pub fn at_url(url: &str) -> Result<Self> {
        let url = ServiceUrl::parse(url)?;
        let host = &url.peer.host;
        let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        if !url.peer.is_tls && !is_loopback && !PLAIN_HTTP_HOSTS.contains(&host.as_str()) {
            let hosts = PLAIN_HTTP_HOSTS.join(", ");
            let why = format!(
                "http is allowed only to loopback addresses, {hosts}, and not to {host:?}; use https"
            );
            return Err(Error::new(Reason::InvalidArgument, why));
        }
        Ok(Self { url, authorization: None })
    }

    /// The address of the endpoint.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.url.peer
    }

    /// Requests the container's credentials.
    pub async fn issue(&self, client: &IssuerClient) -> Result<ExpiringCredentials> {
        let mut request = IssueRequest::new(Method::GET, &self.url);
        request.limits =
            RequestLimits { connect_timeout: TIMEOUT, response_timeout: TIMEOUT, ..request.limits };
        request.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            let value = HeaderValue::from_str(authorization).map_err(|_| {
                let why = "the authorization token contains a line break or another control character";
                Error::new(Reason::InvalidArgument, why)
            });
            let mut value = value?;
            value.set_sensitive(true);
            request.headers.insert(AUTHORIZATION, value);
        }
        let document = client.send(request).await?;
        let service = format!("the container's endpoint {}", self.url);
        METADATA_FIELDS.credentials(&service, &parse_json(&service, &document)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_allowed_only_to_local_hosts() {
        for good in [
            "http://127.0.0.1:8080/x",
            "http://127.9.9.9/x",
            "http://[::1]/x",
            "http://localhost/x",
            "http://169.254.170.2/x",
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1/credentials",
            "https://credentials.example.com/x",
        ] {
            assert!(ContainerEndpoint::at_url(good).is_ok(), "{good}");
        }
        for bad in
            ["http://credentials.example.com/x", "http://169.254.170.24/x", "http://127.0.0.1.example.com/x"]
        {
            let error = ContainerEndpoint::at_url(bad).unwrap_err();
            assert!(error.message().starts_with("http is allowed only to loopback addresses"), "{error}");
        }
        assert!(ContainerEndpoint::on_ecs("/v2/credentials/x").is_ok());
        assert!(ContainerEndpoint::on_ecs(".example.com/x").is_err());
    }
}
