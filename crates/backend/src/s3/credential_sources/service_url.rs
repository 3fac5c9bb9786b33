//! The URL of a service that issues credentials.

use std::fmt;

use http::Uri;
use tradewind_core::error::{Error, Reason, Result};

use crate::remote::Peer;
use crate::remote::query::Query;

/// The URL of a service, or of one resource of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    /// The service's address.
    pub peer: Peer,
    /// Path and query as written; may be empty.
    target: String,
}

impl ServiceUrl {
    /// Parses `http://host[:port][/path][?query]` or `https://…`. A URL with a user is rejected.
    pub fn parse(url: &str) -> Result<Self> {
        let authority_end = url.find("://").map_or(0, |at| at + 3);
        let rest = &url[authority_end..];
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            // The URL may contain a password, so it is not quoted.
            return Err(Error::new(Reason::InvalidArgument, "the URL contains a user; remove it"));
        }
        let (peer, _) = Peer::parse(&url[..authority_end + authority.len()])?;
        let url = Self { peer, target: target.to_owned() };
        url.uri().map(|_| url)
    }

    /// The https URL of a host.
    #[must_use]
    pub const fn of_host(host: String) -> Self {
        Self { peer: Peer { is_tls: true, host, port: 443 }, target: String::new() }
    }

    /// The URL of a resource below this one. `path` begins with a slash.
    pub(super) fn join(&self, path: &str, query: &Query) -> Self {
        let mut target = format!("{}{path}", self.target.trim_end_matches('/'));
        if query.len() > 0 {
            target.push('?');
            target.push_str(&String::from_utf8_lossy(query.as_bytes()));
        }
        Self { peer: self.peer.clone(), target }
    }

    /// The request target.
    pub(super) fn uri(&self) -> Result<Uri> {
        let slash = if self.target.starts_with('/') { "" } else { "/" };
        Uri::try_from(format!("{slash}{}", self.target)).map_err(|e| {
            Error::with_source(
                Reason::InvalidArgument,
                format!("{:?} is not a path of a URL", self.target),
                e,
            )
        })
    }
}

impl fmt::Display for ServiceUrl {
    /// Writes the scheme and the host. Path and query are omitted: they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.peer.is_tls { "https" } else { "http" }, self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_keeps_path_and_query() {
        let target = |url: &str| ServiceUrl::parse(url).unwrap().uri().unwrap().to_string();
        assert_eq!(target("http://169.254.170.2/v2/credentials/a/?x=1"), "/v2/credentials/a/?x=1");
        assert_eq!(target("https://host:8443?x=1"), "/?x=1");
        let base = ServiceUrl::parse("http://[fd00:ec2::254]/base/").unwrap();
        let below = base.join("/latest", &Query::default().with("a", "b c"));
        assert_eq!((below.to_string(), below.uri().unwrap().to_string()), {
            ("http://[fd00:ec2::254]".to_owned(), "/base/latest?a=b%20c".to_owned())
        });
    }

    #[test]
    fn parse_rejects_urls_without_quoting_passwords() {
        for bad in ["", "host", "ftp://host", "http://u:hush@host/x", "http://host/a b"] {
            let error = ServiceUrl::parse(bad).unwrap_err();
            assert_eq!(error.reason(), Reason::InvalidArgument, "{bad}");
            assert!(!error.message().contains("hush"), "{error}");
        }
    }
}
