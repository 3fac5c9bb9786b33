//! Virtual-hosted addressing: a request to `BUCKET.DOMAIN/KEY` means `DOMAIN/BUCKET/KEY`. It is rewritten after
//! authentication, because the signature covers the request as sent, and before everything else, so that all other code
//! handles only one form of address.

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Uri, header};

use crate::error::{Code, WireError};

/// Marks, in a request's extensions, that its bucket was named by the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BucketInHost;

/// The domain whose subdomains name buckets, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(String);

impl Domain {
    /// A domain, given without a port: `s3.example.com`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.to_ascii_lowercase())
    }

    /// Moves the bucket named by the host into the path. Requests to any other host, including the domain itself, are
    /// unchanged.
    pub(crate) fn to_path_style(&self, parts: &mut Parts) -> Result<(), WireError> {
        let mut hosts = parts.headers.get_all(header::HOST).iter();
        let (Some(host), more) = (hosts.next(), hosts.next()) else { return Ok(()) };
        if more.is_some() {
            return Err(WireError::new(Code::InvalidRequest, "Header Host is given more than once."));
        }
        let Some(bucket) = host.to_str().ok().and_then(|host| self.bucket_in_host(host)) else {
            return Ok(());
        };
        // Bucket names are validated later, with all others; here the bucket must only be a single path segment.
        let is_segment = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if bucket.is_empty() || !bucket.bytes().all(is_segment) {
            return Err(WireError::new(Code::InvalidBucketName, "The specified bucket is not valid."));
        }
        let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let slash = match target.as_bytes().first() {
            Some(b'/') => "",
            Some(b'?') => "/",
            // `OPTIONS *` addresses the server.
            _ => return Ok(()),
        };
        let path = format!("/{bucket}{slash}{target}").parse::<PathAndQuery>();
        parts.uri = path
            .map(Uri::from)
            .map_err(|_| WireError::new(Code::InvalidUri, "Couldn't parse the specified URI."))?;
        parts.extensions.insert(BucketInHost);
        Ok(())
    }

    /// The bucket in a host such as `bucket.s3.example.com:9000`; `None` for a host outside the domain.
    pub(crate) fn bucket_in_host(&self, host: &str) -> Option<String> {
        let name = host.rsplit_once(':').map_or(host, |(name, _port)| name).to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        Some(name.strip_suffix(&self.0)?.strip_suffix('.')?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn rewritten(host: &[&str], target: &str) -> Result<String, Code> {
        let mut request = Request::get(target);
        for host in host {
            request = request.header(header::HOST, *host);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let done = Domain::new("S3.Example.com").to_path_style(&mut parts);
        done.map(|()| parts.uri.to_string()).map_err(|e| e.code())
    }

    #[test]
    fn a_bucket_in_the_host_moves_into_the_path() {
        for (host, target, expected) in [
            ("b1.s3.example.com", "/k", "/b1/k"),
            ("b1.s3.example.com:9000", "/a%20b//c?versions&x=%2F", "/b1/a%20b//c?versions&x=%2F"),
            ("B1.S3.EXAMPLE.COM", "/", "/b1/"),
            ("my.bucket.s3.example.com", "/k", "/my.bucket/k"),
            ("b1.s3.example.com", "http://elsewhere/k", "/b1/k"),
            ("b1.s3.example.com", "http://elsewhere?list-type=2", "/b1/?list-type=2"),
            ("b1.s3.example.com.:80", "/k", "/b1/k"),
            ("b1.s3.example.com", "*", "*"),
            ("s3.example.com", "/b1/k", "/b1/k"),
            ("xs3.example.com", "/b1/k", "/b1/k"),
            ("127.0.0.1:9000", "/b1/k", "/b1/k"),
            ("[::1]:9000", "/b1/k", "/b1/k"),
        ] {
            assert_eq!(rewritten(&[host], target).as_deref(), Ok(expected), "{host} {target}");
        }
        assert_eq!(rewritten(&[], "/b1/k").as_deref(), Ok("/b1/k"));
    }

    #[test]
    fn two_hosts_are_rejected() {
        let two = rewritten(&["b1.s3.example.com", "b2.s3.example.com"], "/k");
        assert_eq!(two, Err(Code::InvalidRequest));
    }

    #[test]
    fn a_host_that_is_no_single_path_segment_is_rejected() {
        for host in [".s3.example.com", "a/b.s3.example.com", "a?c.s3.example.com", "a%62.s3.example.com"] {
            assert_eq!(rewritten(&[host], "/b1/k"), Err(Code::InvalidBucketName), "{host}");
        }
    }
}
