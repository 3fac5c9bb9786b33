//! Where a store answers, and how buckets and keys are written into its URLs.

use std::fmt;

use http::uri::Scheme;
use http::{HeaderValue, Uri};
use tradewind_core::BucketName;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{encode_path, encode_query};

/// Where the bucket stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    /// In the path: `https://host/bucket/key`. Every store but some of Amazon's regions takes it.
    #[default]
    Path,
    /// In the host's name: `https://bucket.host/key`.
    VirtualHost,
}

/// A store's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether TLS is spoken.
    pub is_tls: bool,
    /// A name or an address; of version 6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Where the bucket stands.
    pub style: Style,
}

impl Endpoint {
    /// Reads `http://host[:port]` or `https://host[:port]`.
    pub fn parse(url: &str, style: Style) -> Result<Self> {
        let refuse = |why: &str| {
            Err(Error::new(
                Reason::InvalidArgument,
                format!("endpoint {url:?} {why}; write it as https://HOST or http://HOST:PORT"),
            ))
        };
        let Ok(uri) = url.parse::<Uri>() else { return refuse("is no URL") };
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return refuse("is neither http nor https"),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return refuse("has a path; the bucket is not part of it");
        }
        let Some(authority) = uri.authority() else { return refuse("names no host") };
        if authority.as_str().contains('@') {
            return refuse("holds a user; credentials are given apart");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { is_tls, host, port, style })
    }

    /// The `Host` header of a request to a bucket, or to the service.
    pub(super) fn host_header(&self, bucket: Option<&BucketName>) -> Result<HeaderValue> {
        let host = match bucket.filter(|_| self.style == Style::VirtualHost) {
            Some(bucket) => format!("{bucket}.{self}"),
            None => self.to_string(),
        };
        HeaderValue::try_from(host)
            .map_err(|e| Error::with_source(Reason::InvalidArgument, "the endpoint is no host name", e))
    }

    /// The path and query of a request.
    pub(super) fn target(
        &self,
        bucket: Option<&BucketName>,
        key: Option<&str>,
        query: &Query,
    ) -> Result<Uri> {
        let mut target = Vec::with_capacity(64 + key.map_or(0, str::len) + query.0.len());
        if let Some(bucket) = bucket.filter(|_| self.style == Style::Path) {
            target.push(b'/');
            target.extend_from_slice(bucket.as_str().as_bytes());
        }
        // A bucket itself has a slash behind it: some stores take the path without one for something else.
        target.push(b'/');
        encode_path(key.unwrap_or_default(), &mut target);
        if !query.0.is_empty() {
            target.push(b'?');
            target.extend_from_slice(&query.0);
        }
        Uri::try_from(target)
            .map_err(|e| Error::with_source(Reason::InvalidArgument, "the key makes no legal URL", e))
    }
}

impl fmt::Display for Endpoint {
    /// Host and, unless it is the scheme's own, port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => Ok(()),
            (_, port) => write!(f, ":{port}"),
        }
    }
}

/// The query of a request, in its canonical encoding.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<u8>);

impl Query {
    /// A parameter that has no value, as `uploads`.
    pub fn flag(mut self, name: &str) -> Self {
        self.begin(name);
        self
    }

    /// A parameter with its value.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.begin(name);
        self.0.push(b'=');
        encode_query(value, &mut self.0);
        self
    }

    /// The same where there is a value.
    pub fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn begin(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(b'&');
        }
        encode_query(name, &mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let read = |url| Endpoint::parse(url, Style::Path).map(|e| (e.is_tls, e.to_string(), e.port));
        assert_eq!(read("http://127.0.0.1:9000").unwrap(), (false, "127.0.0.1:9000".to_owned(), 9000));
        assert_eq!(read("https://s3.example.com/").unwrap(), (true, "s3.example.com".to_owned(), 443));
        assert_eq!(read("http://[::1]:80").unwrap(), (false, "[::1]".to_owned(), 80));
        for bad in ["", "host", "ftp://host", "http://host/bucket", "http://user@host", "https://host?x=1"] {
            assert_eq!(read(bad).unwrap_err().reason(), Reason::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn buckets_and_keys_in_both_styles() {
        let bucket = BucketName::new("photos").unwrap();
        let query = Query::default().flag("tagging").with("versionId", "a/b c");
        let mut endpoint = Endpoint::parse("https://s3.example.com", Style::Path).unwrap();
        let target = |e: &Endpoint, key| e.target(Some(&bucket), key, &query).unwrap().to_string();
        assert_eq!(
            target(&endpoint, Some("a b/../é//")),
            "/photos/a%20b/../%C3%A9//?tagging&versionId=a%2Fb%20c"
        );
        assert_eq!(target(&endpoint, None), "/photos/?tagging&versionId=a%2Fb%20c");
        assert_eq!(endpoint.host_header(Some(&bucket)).unwrap(), "s3.example.com");
        endpoint.style = Style::VirtualHost;
        assert_eq!(target(&endpoint, Some("k")), "/k?tagging&versionId=a%2Fb%20c");
        assert_eq!(endpoint.host_header(Some(&bucket)).unwrap(), "photos.s3.example.com");
        assert_eq!(endpoint.host_header(None).unwrap(), "s3.example.com");
    }
}
