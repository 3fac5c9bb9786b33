//! The proxies of remote stores, from the variables that other clients read. Names in lower case have priority, as for
//! curl and the AWS CLI; one that is set but empty turns the proxy off.

use std::collections::BTreeMap;

use tradewind_backend::remote::{NoProxy, ProxyRules};

/// The variables with lower-case names; each also has an upper-case name.
const VARIABLES: [&str; 3] = ["http_proxy", "https_proxy", "no_proxy"];
/// Set for CGI programs. There, `HTTP_PROXY` holds the header `Proxy` of a client's request.
const CGI_VARIABLE: &str = "REQUEST_METHOD";

/// Reads the rules from the process's environment. An invalid URL is an error only if it is needed.
#[must_use]
pub fn from_environment() -> ProxyRules {
    let is_read =
        |name: &str| name == CGI_VARIABLE || VARIABLES.contains(&name.to_ascii_lowercase().as_str());
    let text = |name: std::ffi::OsString| name.into_string().ok().filter(|name| is_read(name));
    // A URL that is not UTF-8 is invalid with replacement characters, too.
    let read =
        |(name, value): (_, std::ffi::OsString)| Some((text(name)?, value.to_string_lossy().into_owned()));
    rules(&std::env::vars_os().filter_map(read).collect())
}

/// The rules of the given variables.
pub(crate) fn rules(environment: &BTreeMap<String, String>) -> ProxyRules {
    let is_cgi = environment.contains_key(CGI_VARIABLE);
    let find = |lower: &str| {
        let upper = lower.to_ascii_uppercase();
        let names = [Some(lower), Some(upper.as_str()).filter(|name| !(is_cgi && *name == "HTTP_PROXY"))];
        let (name, value) = names.into_iter().flatten().find_map(|name| environment.get_key_value(name))?;
        let value = value.trim();
        (!value.is_empty()).then(|| (name.clone(), value.to_owned()))
    };
    let mut rules = ProxyRules::direct();
    if let Some((name, url)) = find("http_proxy") {
        rules = rules.with_http(&name, &url);
    }
    if let Some((name, url)) = find("https_proxy") {
        rules = rules.with_https(&name, &url);
    }
    match find("no_proxy") {
        Some((_, list)) => rules.except(NoProxy::parse(&list)),
        None => rules,
    }
}

#[cfg(test)]
mod tests {
    use tradewind_backend::remote::Peer;

    use super::*;

    #[test]
    fn variables_are_read_as_by_other_clients() {
        let (plain, secure) = ("http://s3.example", "https://s3.example");
        for (variables, url, expected) in [
            (&[][..], plain, ""),
            (&[("HTTP_PROXY", "upper")], plain, "http://upper"),
            (&[("HTTP_PROXY", "upper")], secure, ""),
            (&[("HTTP_PROXY", "upper"), ("http_proxy", " lower ")], plain, "http://lower"),
            (&[("HTTP_PROXY", "upper"), ("http_proxy", "")], plain, ""),
            (&[("HTTP_PROXY", "upper"), ("REQUEST_METHOD", "GET")], plain, ""),
            (&[("http_proxy", "lower"), ("REQUEST_METHOD", "GET")], plain, "http://lower"),
            (&[("HTTPS_PROXY", "upper"), ("REQUEST_METHOD", "GET")], secure, "http://upper"),
            (&[("HTTPS_PROXY", "upper"), ("https_proxy", "https://lower")], secure, "https://lower"),
            (&[("HTTPS_PROXY", "upper"), ("NO_PROXY", "a.example, s3.example")], secure, ""),
            (&[("HTTPS_PROXY", "upper"), ("NO_PROXY", "*"), ("no_proxy", "a")], secure, "http://upper"),
        ] {
            let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let rules = rules(&environment.collect());
            let peer = Peer::parse(url).unwrap().0;
            let found = rules.proxy_for(&peer).unwrap().map_or_else(String::new, ToString::to_string);
            assert_eq!(found, expected, "{variables:?} for {url}");
        }
    }

    #[test]
    fn invalid_proxy_is_reported_with_the_name_of_its_variable() {
        let environment = BTreeMap::from([("https_proxy".to_owned(), "socks5://me:hush@host".to_owned())]);
        let peer = Peer::parse("https://s3.example").unwrap().0;
        let message = rules(&environment).proxy_for(&peer).unwrap_err().to_string();
        assert!(
            message.contains("https_proxy has the scheme \"socks5\"") && !message.contains("hush"),
            "{message}"
        );
    }
}
