//! The network address of a service.

use std::fmt;

use http::Uri;
use http::uri::Scheme;
use tradewind_core::error::{Error, Reason, Result};

/// A service's host and port, and whether it uses TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// True for https.
    pub is_tls: bool,
    /// A host name or IP address; an IPv6 address is without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Peer {
    /// Parses `http://host[:port][/path]` or `https://…`. Also returns the path, without trailing slashes.
    pub fn parse(url: &str) -> Result<(Self, String)> {
        let reject = |why: &str| {
            Err(Error::new(
                Reason::InvalidArgument,
                format!("endpoint {url:?} {why}; write it as https://HOST or http://HOST:PORT"),
            ))
        };
        let Ok(uri) = url.parse::<Uri>() else { return reject("is not a URL") };
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return reject("is neither http nor https"),
        };
        if uri.query().is_some() {
            return reject("has a query");
        }
        let Some(authority) = uri.authority() else { return reject("has no host") };
        if authority.as_str().contains('@') {
            return reject("contains a user; give credentials separately");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // An invalid port is not the default one; an empty one is.
        if uri.port_u16().is_none() && !authority.as_str().trim_end_matches(':').ends_with(authority.host()) {
            return reject("has no valid port");
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok((Self { is_tls, host, port }, uri.path().trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for Peer {
    /// Writes the host, and the port unless it is the scheme's default.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_urls_and_rejects_others() {
        let read =
            |url| Peer::parse(url).map(|(peer, path)| (peer.is_tls, peer.to_string(), peer.port, path));
        let plain = (false, "127.0.0.1:9000".to_owned(), 9000, String::new());
        assert_eq!(read("http://127.0.0.1:9000").unwrap(), plain);
        let with_path = (true, "swift.example.com".to_owned(), 443, "/v1/AUTH_x".to_owned());
        assert_eq!(read("https://swift.example.com/v1/AUTH_x/").unwrap(), with_path);
        assert_eq!(read("http://[::1]:80").unwrap(), (false, "[::1]".to_owned(), 80, String::new()));
        for bad in [
            "",
            "host",
            "ftp://host",
            "http://user@host",
            "https://host?x=1",
            "http://host:x",
            "http://host:70000",
        ] {
            assert_eq!(read(bad).unwrap_err().reason(), Reason::InvalidArgument, "{bad}");
        }
    }
}
