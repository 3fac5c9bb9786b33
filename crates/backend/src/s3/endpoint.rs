//! A service's address, and how buckets and keys are written into its URLs.

use std::fmt;

use http::{HeaderValue, Uri};
use tradewind_core::error::Result;
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
    /// The path before all buckets, as in a URL: empty, or with a leading and without a trailing slash.
    pub path: String,
    /// The domain, if the host is derived from a region and this domain. Buckets of other regions then have other
    /// hosts.
    pub domain: Option<String>,
}

impl fmt::Display for Endpoint {
    /// Writes the host, the port unless it is the scheme's default, and the path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.peer, self.path)
    }
}

impl Endpoint {
    /// Parses `http://host[:port][/path]` or `https://host[:port][/path]`. The path is a prefix of all requests, as
    /// behind a reverse proxy. Signatures cover it.
    pub fn parse(url: &str, style: AddressingStyle) -> Result<Self> {
        let (peer, path) = Peer::parse(url)?;
        Ok(Self { peer, style, path, domain: None })
    }

    /// Amazon's endpoint of a region: `s3.REGION.DOMAIN`.
    #[must_use]
    pub fn for_region(region: &str, domain: &str, style: AddressingStyle) -> Self {
        let peer = Peer { is_tls: true, host: format!("s3.{region}.{domain}"), port: 443 };
        Self { peer, style, path: String::new(), domain: Some(domain.to_owned()) }
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
        let mut path = Vec::with_capacity(64 + self.path.len() + key.map_or(0, str::len) + query.len());
        path.extend_from_slice(self.path.as_bytes());
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
    fn target_begins_with_the_path_of_the_endpoint() {
        for url in ["https://host/storage/v1/s3", "https://host/storage/v1/s3/"] {
            let mut endpoint = Endpoint::parse(url, AddressingStyle::Path).unwrap();
            let target =
                |e: &Endpoint, bucket, key, query: &Query| e.target(bucket, key, query).unwrap().to_string();
            let query = Query::default().flag("uploads");
            assert_eq!(endpoint.to_string(), "host/storage/v1/s3");
            assert_eq!(target(&endpoint, None, None, &Query::default()), "/storage/v1/s3/");
            assert_eq!(target(&endpoint, Some("b"), None, &query), "/storage/v1/s3/b/?uploads");
            assert_eq!(target(&endpoint, Some("b"), Some("/k k"), &query), "/storage/v1/s3/b//k%20k?uploads");
            endpoint.style = AddressingStyle::VirtualHost;
            assert_eq!(target(&endpoint, Some("b"), Some("k"), &query), "/storage/v1/s3/k?uploads");
            assert_eq!(endpoint.host_header(Some("b")).unwrap(), "b.host");
            assert_eq!(endpoint.in_region("eu-west-3"), endpoint);
        }
        let root = Endpoint::parse("https://host/", AddressingStyle::Path).unwrap();
        assert_eq!(root, Endpoint::parse("https://host", AddressingStyle::Path).unwrap());
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
