//! HTTP proxies, and the rules by which an endpoint is reached through one. An https endpoint is reached through a
//! tunnel (`CONNECT`, RFC 9110 section 9.3.6). Requests to an http endpoint are sent to the proxy in absolute form
//! (RFC 9112 section 3.2.2): proxies such as squid allow tunnels to port 443 only.
//!
//! The rules are plain data, so that only the binary reads the environment. No text made here contains a password.

mod no_proxy;

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::PROXY_AUTHORIZATION;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use tradewind_core::error::{Error, Reason, Result};

pub use self::no_proxy::NoProxy;
use super::Peer;

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    peer: Peer,
    /// The value of `Proxy-Authorization`.
    authorization: Option<HeaderValue>,
}

impl Proxy {
    /// Parses `[http[s]://][USER[:PASSWORD]@]HOST[:PORT]`. User and password may be percent-encoded. The default port
    /// is that of the scheme.
    ///
    /// # Errors
    /// The reason as a predicate, to be preceded by the name of the setting: "is not …". It never contains the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        const FORM: &str = "write it as http://HOST:PORT";
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return Err(format!(
                "has the scheme {scheme:?}; only http and https proxies are supported; {FORM}"
            ));
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let url = format!("{}://{host}", scheme.to_ascii_lowercase());
        let (peer, _) = Peer::parse(&url).map_err(|_| format!("is not the URL of a proxy; {FORM}"))?;
        let authorization = user.map(basic_authorization).transpose()?;
        Ok(Self { peer, authorization })
    }

    /// The address of the proxy.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Changes a signed request to an http endpoint into one to this proxy: its target gets the absolute form with
    /// `host`, the value of its `Host` header.
    pub(super) fn forward(&self, target: Uri, host: &HeaderValue, headers: &mut HeaderMap) -> Result<Uri> {
        if let Some(authorization) = &self.authorization {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        let mut parts = target.into_parts();
        parts.scheme = Some(Scheme::HTTP);
        let invalid = "the endpoint is not a valid host name";
        let authority = Authority::try_from(host.as_bytes())
            .map_err(|e| Error::with_source(Reason::InvalidArgument, invalid, e))?;
        parts.authority = Some(authority);
        Uri::from_parts(parts).map_err(|e| Error::with_source(Reason::InvalidArgument, invalid, e))
    }

    /// The value of `Proxy-Authorization`, marked as sensitive; `None` without credentials.
    pub(super) const fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }
}

/// The credentials of a URL as a header of the Basic scheme (RFC 7617).
fn basic_authorization(user_info: &str) -> Result<HeaderValue, String> {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let mut plain: Vec<u8> = percent_decode_str(user).collect();
    plain.push(b':');
    plain.extend(percent_decode_str(password));
    let value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(plain)));
    let mut value = value.map_err(|_| "has a user or password that cannot be sent".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Display for Proxy {
    /// Writes the URL without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.peer.is_tls { "https" } else { "http" }, self.peer)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// The proxy of one scheme as configured. An invalid one is an error only when it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConfiguredProxy {
    /// The variable or setting, for messages.
    origin: String,
    proxy: Result<Proxy, String>,
}

/// The rules by which endpoints are reached through proxies. The default uses none, as requests to link-local services
/// such as instance metadata must.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyRules {
    http: Option<Arc<ConfiguredProxy>>,
    https: Option<Arc<ConfiguredProxy>>,
    exceptions: NoProxy,
    /// Loopback endpoints are reached through the proxy, too.
    includes_loopback: bool,
}

impl ProxyRules {
    /// Reaches every endpoint directly.
    #[must_use]
    pub fn direct() -> Self {
        Self::default()
    }

    /// Reaches every endpoint through `proxy`, loopback included.
    #[must_use]
    pub fn always(proxy: Proxy) -> Self {
        let configured = Arc::new(ConfiguredProxy { origin: "proxy".to_owned(), proxy: Ok(proxy) });
        Self {
            http: Some(configured.clone()),
            https: Some(configured),
            exceptions: NoProxy::default(),
            includes_loopback: true,
        }
    }

    /// Sets the proxy for http endpoints. `origin` names the variable or setting in messages.
    #[must_use]
    pub fn with_http(self, origin: &str, url: &str) -> Self {
        Self { http: Some(ConfiguredProxy::parse(origin, url)), ..self }
    }

    /// Like [`Self::with_http`], for https endpoints.
    #[must_use]
    pub fn with_https(self, origin: &str, url: &str) -> Self {
        Self { https: Some(ConfiguredProxy::parse(origin, url)), ..self }
    }

    /// Sets the endpoints that are reached directly.
    #[must_use]
    pub fn except(self, exceptions: NoProxy) -> Self {
        Self { exceptions, ..self }
    }

    /// The proxy for an endpoint; `None` if it is reached directly. A loopback endpoint is: the proxy would look for it
    /// on its own machine.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if the proxy's URL is invalid. The message names its origin.
    pub fn proxy_for(&self, peer: &Peer) -> Result<Option<&Proxy>> {
        let configured = if peer.is_tls { &self.https } else { &self.http };
        let Some(configured) = configured else { return Ok(None) };
        if (no_proxy::is_loopback(&peer.host) && !self.includes_loopback) || self.exceptions.matches(peer) {
            return Ok(None);
        }
        let ConfiguredProxy { origin, proxy } = &**configured;
        let invalid = |why: &String| Error::new(Reason::InvalidArgument, format!("{origin} {why}"));
        proxy.as_ref().map(Some).map_err(invalid)
    }
}

impl ConfiguredProxy {
    fn parse(origin: &str, url: &str) -> Arc<Self> {
        Arc::new(Self { origin: origin.to_owned(), proxy: Proxy::parse(url) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(url: &str) -> Peer {
        Peer::parse(url).unwrap().0
    }

    #[test]
    fn parse_reads_urls_of_proxies() {
        for (url, shown, authorization) in [
            ("proxy.example:3128", "http://proxy.example:3128", None),
            ("http://proxy.example", "http://proxy.example", None),
            ("HTTP://proxy.example:8080/", "http://proxy.example:8080", None),
            ("https://proxy.example", "https://proxy.example", None),
            ("http://[::1]:3128", "http://[::1]:3128", None),
            ("http://ann:s%40c%3Aret@proxy:3128", "http://proxy:3128", Some("Basic YW5uOnNAYzpyZXQ=")),
            ("ann:a@b@proxy:3128", "http://proxy:3128", Some("Basic YW5uOmFAYg==")),
            ("ann@proxy:3128", "http://proxy:3128", Some("Basic YW5uOg==")),
        ] {
            let proxy = Proxy::parse(url).unwrap();
            assert_eq!(proxy.to_string(), shown, "{url}");
            let sent = proxy.authorization().map(|value| value.to_str().unwrap());
            assert_eq!(sent, authorization, "{url}");
            let debug = format!("{proxy:?} {:?}", proxy.authorization());
            assert!(!debug.contains("Basic"), "{debug}");
        }
    }

    #[test]
    fn parse_rejects_other_urls_without_quoting_them() {
        for url in
            ["socks5://ann:secret@host:1080", "http://ann:secret@", "ann:secret@ho st", "", "http://h:x"]
        {
            let why = Proxy::parse(url).unwrap_err();
            assert!(why.contains("http://HOST:PORT") && !why.contains("secret"), "{url}: {why}");
        }
    }

    #[test]
    fn invalid_proxy_is_reported_only_where_it_is_needed() {
        let rules = ProxyRules::direct().with_https("HTTPS_PROXY", "socks5://host");
        assert_eq!(rules.proxy_for(&peer("http://store.example")).unwrap(), None);
        assert_eq!(rules.proxy_for(&peer("https://localhost:9000")).unwrap(), None);
        let failed = rules.proxy_for(&peer("https://store.example")).unwrap_err();
        assert!(failed.message().starts_with("HTTPS_PROXY has the scheme \"socks5\""), "{failed}");
    }

    #[test]
    fn proxy_follows_the_scheme_and_the_exceptions() {
        let rules = ProxyRules::direct().with_http("HTTP_PROXY", "plain").with_https("HTTPS_PROXY", "secure");
        let rules = rules.except(NoProxy::parse("internal.example"));
        let found = |rules: &ProxyRules, url| {
            rules.proxy_for(&peer(url)).unwrap().map_or_else(String::new, ToString::to_string)
        };
        for (url, expected) in [
            ("http://store.example", "http://plain"),
            ("https://store.example:9000", "http://secure"),
            ("https://s3.internal.example", ""),
            ("http://localhost", ""),
            ("http://127.0.0.1:9000", ""),
            ("http://[::1]:9000", ""),
        ] {
            assert_eq!(found(&rules, url), expected, "{url}");
        }
        let always = ProxyRules::always(Proxy::parse("plain").unwrap());
        assert_eq!(found(&always, "http://127.0.0.1:9000"), "http://plain");
        assert_eq!(found(&ProxyRules::direct(), "https://store.example"), "");
    }
}
