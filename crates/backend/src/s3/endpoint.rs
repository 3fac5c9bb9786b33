//! A service's address, and how buckets and keys are written into its URLs.

use std::fmt;

use http::{HeaderValue, Uri};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::encode_path;

use crate::remote::Peer;
use crate::remote::header_fields::host_value;
use crate::remote::query::Query;

/// The position of the bucket in a URL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AddressingStyle {
    /// In the path: `https://host/bucket/key`. Supported by every service except some regions of Amazon.
    #[default]
    Path,
    /// In the host's name: `https://bucket.host/key`.
    VirtualHost,
}

/// A service's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port.
    pub peer: Peer,
    /// The position of the bucket in a URL.
    pub style: AddressingStyle,
    /// The domain, if the host is derived from a region and this domain. Buckets of other regions then have other
    /// hosts.
    pub domain: Option<String>,
}

impl fmt::Display for Endpoint {
    /// Writes the host, and the port unless it is the scheme's default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)
    }
}

impl Endpoint {
    /// Parses `http://host[:port]` or `https://host[:port]`.
    pub fn parse(url: &str, style: AddressingStyle) -> Result<Self> {
        let (peer, path) = Peer::parse(url)?;
        if !path.is_empty() {
            let why = format!(
                "endpoint {url:?} has a path; write it without the bucket, as https://HOST or http://HOST:PORT"
            );
            return Err(Error::new(Reason::InvalidArgument, why));
        }
        Ok(Self { peer, style, domain: None })
    }

    /// Amazon's endpoint of a region: `s3.REGION.DOMAIN`.
    #[must_use]
    pub fn for_region(region: &str, domain: &str, style: AddressingStyle) -> Self {
        let peer = Peer { is_tls: true, host: format!("s3.{region}.{domain}"), port: 443 };
        Self { peer, style, domain: Some(domain.to_owned()) }
    }

    /// The endpoint for buckets of the given region. An explicitly configured endpoint stays the same.
    pub(super) fn in_region(&self, region: &str) -> Self {
        match &self.domain {
            Some(domain) => Self::for_region(region, domain, self.style),
            None => self.clone(),
        }
    }

    /// The `Host` header of a request to a bucket, or to the service.
    pub(super) fn host_header(&self, bucket: Option<&str>) -> Result<HeaderValue> {
        host_value(match bucket.filter(|_| self.style == AddressingStyle::VirtualHost) {
            Some(bucket) => format!("{bucket}.{}", self.peer),
            None => self.peer.to_string(),
        })
    }

    /// The path and query of a request.
    pub(super) fn target(&self, bucket: Option<&str>, key: Option<&str>, query: &Query) -> Result<Uri> {
        let mut path = Vec::with_capacity(64 + key.map_or(0, str::len) + query.len());
        if let Some(bucket) = bucket.filter(|_| self.style == AddressingStyle::Path) {
            path.push(b'/');
            path.extend_from_slice(bucket.as_bytes());
        }
        // A bucket has a trailing slash: some services interpret the path without it differently.
        path.push(b'/');
        encode_path(key.unwrap_or_default(), &mut path);
        query.append_to(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_rejects_an_endpoint_with_a_bucket() {
        for bad in ["http://host/bucket", "host"] {
            assert_eq!(
                Endpoint::parse(bad, AddressingStyle::Path).unwrap_err().reason(),
                Reason::InvalidArgument
            );
        }
    }

    #[test]
    fn in_region_changes_only_hosts_derived_from_a_region() {
        let amazon = Endpoint::for_region("us-east-1", "amazonaws.com", AddressingStyle::VirtualHost);
        let there = amazon.in_region("eu-west-3");
        assert_eq!(there.to_string(), "s3.eu-west-3.amazonaws.com");
        assert_eq!(there.host_header(Some("photos")).unwrap(), "photos.s3.eu-west-3.amazonaws.com");
        let named = Endpoint::parse("http://127.0.0.1:9000", AddressingStyle::Path).unwrap();
        assert_eq!(named.in_region("eu-west-3"), named);
    }

    #[test]
    fn target_and_host_follow_the_style() {
        let bucket = "photos";
        let query = Query::default().flag("tagging").with("versionId", "a/b c");
        let mut endpoint = Endpoint::parse("https://s3.example.com", AddressingStyle::Path).unwrap();
        let target = |e: &Endpoint, key| e.target(Some(bucket), key, &query).unwrap().to_string();
        assert_eq!(
            target(&endpoint, Some("a b/../é//")),
            "/photos/a%20b/../%C3%A9//?tagging&versionId=a%2Fb%20c"
        );
        assert_eq!(target(&endpoint, None), "/photos/?tagging&versionId=a%2Fb%20c");
        assert_eq!(endpoint.host_header(Some(bucket)).unwrap(), "s3.example.com");
        endpoint.style = AddressingStyle::VirtualHost;
        assert_eq!(target(&endpoint, Some("k")), "/k?tagging&versionId=a%2Fb%20c");
        assert_eq!(endpoint.host_header(Some(bucket)).unwrap(), "photos.s3.example.com");
        assert_eq!(endpoint.host_header(None).unwrap(), "s3.example.com");
    }
}
