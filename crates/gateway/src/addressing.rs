//! Virtual-hosted addressing: a request to `BUCKET.DOMAIN/KEY` is one to `DOMAIN/BUCKET/KEY`. It is rewritten
//! behind authentication, because the signature is over what the client sent, and in front of everything
//! else, so that nobody else knows two ways to name an object.

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Uri, header};

use crate::error::{Code, WireError};

/// The name under which buckets are hosts of their own, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(String);

impl Domain {
    /// A domain, given without a port: `s3.example.com`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.to_ascii_lowercase())
    }

    /// Puts the bucket that the host names in front of the path. Requests to any other host, the domain
    /// itself included, stay as they are.
    pub(crate) fn to_path_style(&self, parts: &mut Parts) -> Result<(), WireError> {
        let mut hosts = parts.headers.get_all(header::HOST).iter();
        let (Some(host), more) = (hosts.next(), hosts.next()) else { return Ok(()) };
        if more.is_some() {
            return Err(WireError::new(Code::InvalidRequest, "Header Host is given more than once."));
        }
        let Some(bucket) = host.to_str().ok().and_then(|host| self.bucket_of(host)) else { return Ok(()) };
        let given = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        if !given.starts_with('/') {
            return Ok(());
        }
        let path = format!("/{bucket}{given}").parse::<PathAndQuery>();
        parts.uri = path
            .map(Uri::from)
            .map_err(|_| WireError::new(Code::InvalidUri, "Couldn't parse the specified URI."))?;
        Ok(())
    }

    /// The bucket in a host such as `bucket.s3.example.com:9000`.
    fn bucket_of(&self, host: &str) -> Option<String> {
        let name = host.rsplit_once(':').map_or(host, |(name, _port)| name).to_ascii_lowercase();
        let bucket = name.strip_suffix(&self.0)?.strip_suffix('.')?;
        // A name that no bucket can have is not looked at more closely here; but it must stay one piece of a path.
        let is_one_piece =
            bucket.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        (!bucket.is_empty() && is_one_piece).then(|| bucket.to_owned())
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
    fn a_bucket_in_the_host_goes_into_the_path() {
        for (host, target, expected) in [
            ("b1.s3.example.com", "/k", "/b1/k"),
            ("b1.s3.example.com:9000", "/a%20b//c?versions&x=%2F", "/b1/a%20b//c?versions&x=%2F"),
            ("B1.S3.EXAMPLE.COM", "/", "/b1/"),
            ("my.bucket.s3.example.com", "/k", "/my.bucket/k"),
            ("b1.s3.example.com", "http://elsewhere/k", "/b1/k"),
            ("s3.example.com", "/b1/k", "/b1/k"),
            ("xs3.example.com", "/b1/k", "/b1/k"),
            (".s3.example.com", "/b1/k", "/b1/k"),
            ("127.0.0.1:9000", "/b1/k", "/b1/k"),
            ("[::1]:9000", "/b1/k", "/b1/k"),
            ("a/b?c.s3.example.com", "/b1/k", "/b1/k"),
        ] {
            assert_eq!(rewritten(&[host], target).as_deref(), Ok(expected), "{host} {target}");
        }
        assert_eq!(rewritten(&[], "/b1/k").as_deref(), Ok("/b1/k"));
    }

    #[test]
    fn two_hosts_are_refused() {
        let two = rewritten(&["b1.s3.example.com", "b2.s3.example.com"], "/k");
        assert_eq!(two, Err(Code::InvalidRequest));
    }
}
