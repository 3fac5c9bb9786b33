//! Credentials, and how they are exchanged for a token: Swift's v1 authentication (tempauth) and Keystone v3.
//! <https://docs.openstack.org/swift/latest/overview_auth.html>,
//! <https://docs.openstack.org/api-ref/identity/v3/#password-authentication-with-scoped-authorization>.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::{Value as Json, json};
use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};

use super::service_error::{Unauthorized, is_unauthorized};
use crate::remote::client::{Call, Client};
use crate::remote::decimal::parse_seconds;
use crate::remote::header_fields::header_value;
use crate::remote::payload::BufferedBody;
use crate::remote::time::parse_time;

/// Longest response with a token and its catalog.
const MAX_TOKEN_RESPONSE_BYTES: usize = 1 << 20;

/// Credentials, and the service that issues tokens for them.
#[derive(Clone)]
pub enum Auth {
    /// Swift's v1 authentication: `GET` of a URL like `http://host/auth/v1.0`.
    V1 {
        /// The URL.
        url: String,
        /// `account:user`.
        user: String,
        /// The user's key.
        key: String,
    },
    /// Keystone: a URL like `http://host:5000/v3`.
    Keystone {
        /// The URL.
        url: String,
        /// The credentials.
        login: KeystoneCredentials,
        /// The region of the endpoint in the catalog; `None` selects the first one.
        region: Option<String>,
        /// The interface of the endpoint in the catalog: `public`, `internal` or `admin`.
        interface: String,
    },
}

/// Credentials for Keystone.
#[derive(Clone)]
pub enum KeystoneCredentials {
    /// A user, scoped to the project that owns the account.
    Password {
        /// The user.
        user: NameOrId,
        /// The password.
        password: String,
        /// The project.
        project: NameOrId,
    },
    /// An application credential, which is bound to one project.
    ApplicationCredential {
        /// Its id.
        id: String,
        /// Its secret.
        secret: String,
    },
}

/// A user or a project in Keystone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameOrId {
    /// By its id.
    Id(String),
    /// By its name, which is unique within a domain.
    Named(String, Domain),
}

/// A domain in Keystone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Domain {
    /// By its id.
    Id(String),
    /// By its name.
    Name(String),
}

impl NameOrId {
    fn json(&self) -> Json {
        match self {
            Self::Id(id) => json!({ "id": id }),
            Self::Named(name, Domain::Id(id)) => json!({"name": name, "domain": {"id": id}}),
            Self::Named(name, Domain::Name(domain)) => json!({"name": name, "domain": {"name": domain}}),
        }
    }
}

impl fmt::Display for NameOrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => f.write_str(id),
            Self::Named(name, Domain::Id(domain) | Domain::Name(domain)) => write!(f, "{domain}/{name}"),
        }
    }
}

impl fmt::Display for KeystoneCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, project, .. } => write!(f, "{user} for {project}"),
            Self::ApplicationCredential { id, .. } => write!(f, "credential {id}"),
        }
    }
}

impl fmt::Display for Auth {
    /// Writes user and service without secrets. The text distinguishes the stores of different accounts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V1 { url, user, .. } => write!(f, "{user} at {url}"),
            Self::Keystone { url, login, region, interface } => {
                let region = region.as_deref().unwrap_or("any region");
                write!(f, "{login} at {url}, {interface} in {region}")
            }
        }
    }
}

impl fmt::Debug for Auth {
    /// Omits secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({self})")
    }
}

impl Auth {
    /// The URL of the service that issues tokens.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::V1 { url, .. } | Self::Keystone { url, .. } => url,
        }
    }

    /// Requests a token.
    pub(super) async fn request_token(&self, context: &Context, client: &Client) -> Result<IssuedToken> {
        match self {
            Self::V1 { user, key, .. } => {
                let mut call = Call::service(Method::GET);
                call.headers.insert("x-auth-user", header_value(user)?);
                call.headers.insert("x-auth-key", sensitive_value(key)?);
                let response = client.send(context, &call).await?;
                let header = |name: &str| response.header(name).map(str::to_owned);
                let token = header("x-auth-token").or_else(|| header("x-storage-token"));
                let (Some(token), Some(url)) = (token, header("x-storage-url")) else {
                    return Err(Error::new(Reason::Io, "the service returned no token or no storage URL"));
                };
                // A token of unknown lifetime is renewed once it is rejected.
                let lifetime = header("x-auth-token-expires").and_then(|seconds| parse_seconds(&seconds));
                response.collect(MAX_TOKEN_RESPONSE_BYTES).await?;
                Ok(IssuedToken { token: sensitive_value(&token)?, url, lifetime })
            }
            Self::Keystone { url, login, region, interface } => {
                let mut call = Call::service(Method::POST);
                call.key = Some("auth/tokens");
                call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                call.payload = BufferedBody::from_buffers([Bytes::from(login.request_body().to_string())]);
                // A retry issues a second token, which does no harm.
                call.may_repeat = true;
                let response =
                    client.send(context, &call).await.map_err(|e| login.explain_unauthorized(url, e))?;
                let token = response.header("x-subject-token").map(sensitive_value).transpose()?;
                let token = token.ok_or_else(|| Error::new(Reason::Io, "Keystone returned no token"))?;
                let document = response.collect(MAX_TOKEN_RESPONSE_BYTES).await?;
                let document: Json = serde_json::from_slice(&document)
                    .map_err(|e| Error::with_source(Reason::Io, "Keystone's response is not JSON", e))?;
                let url = find_endpoint(&document, region.as_deref(), interface)?;
                let expires = document["token"]["expires_at"].as_str().and_then(parse_time);
                let millis = expires.map(|at| at.millis().saturating_sub(client.clock.wall().millis()));
                let lifetime = millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0)));
                Ok(IssuedToken { token, url, lifetime })
            }
        }
    }
}

impl KeystoneCredentials {
    /// Adds advice to Keystone's 401. Keystone does not say which part of the credentials is wrong, so that it does not
    /// disclose its users.
    fn explain_unauthorized(&self, url: &str, error: Error) -> Error {
        if !is_unauthorized(&error) {
            return error;
        }
        let check = match self {
            Self::Password { .. } => {
                "check the user, the password, the project and their domains, and that the user has a role in the project"
            }
            Self::ApplicationCredential { .. } => "check its id and its secret, and whether it has expired",
        };
        let message = format!("Keystone at {url} rejects {self} (401 Unauthorized); {check}");
        Error::with_source(Reason::AccessDenied, message, Unauthorized).affecting_whole_bucket()
    }

    /// The body of a token request.
    fn request_body(&self) -> Json {
        match self {
            Self::Password { user, password, project } => {
                let mut user = user.json();
                user["password"] = json!(password);
                json!({"auth": {
                    "identity": {"methods": ["password"], "password": {"user": user}},
                    "scope": {"project": project.json()},
                }})
            }
            // An application credential determines the scope itself.
            Self::ApplicationCredential { id, secret } => json!({"auth": {"identity": {
                "methods": ["application_credential"],
                "application_credential": {"id": id, "secret": secret},
            }}}),
        }
    }
}

/// An issued token.
pub(super) struct IssuedToken {
    pub token: HeaderValue,
    /// The account's URL.
    pub url: String,
    /// Remaining lifetime of the token, if known.
    pub lifetime: Option<Duration>,
}

/// A header value that is marked as sensitive, so that logs omit it.
fn sensitive_value(text: &str) -> Result<HeaderValue> {
    let mut secret = HeaderValue::from_bytes(text.as_bytes()).map_err(|e| {
        Error::with_source(Reason::InvalidArgument, "the key or the token cannot be sent in a header", e)
    })?;
    secret.set_sensitive(true);
    Ok(secret)
}

/// The object store's URL in Keystone's catalog.
fn find_endpoint(document: &Json, region: Option<&str>, interface: &str) -> Result<String> {
    let none = Vec::new();
    let list = |value: &Json| value.as_array().unwrap_or(&none).clone();
    let mut regions = Vec::new();
    for service in list(&document["token"]["catalog"]) {
        if service["type"] != "object-store" {
            continue;
        }
        for endpoint in list(&service["endpoints"]) {
            let name =
                endpoint["region"].as_str().or_else(|| endpoint["region_id"].as_str()).unwrap_or_default();
            if endpoint["interface"] != interface {
                continue;
            }
            match endpoint["url"].as_str() {
                Some(url) if region.is_none_or(|region| region == name) => return Ok(url.to_owned()),
                _ => regions.push(name.to_owned()),
            }
        }
    }
    let why = match region {
        Some(region) if !regions.is_empty() => {
            regions.sort_unstable();
            format!(
                "Keystone's catalog has no {interface} object store in region {region:?}, only in {}",
                regions.join(", ")
            )
        }
        _ => format!("Keystone's catalog has no {interface} object store for this project"),
    };
    Err(Error::new(Reason::InvalidArgument, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog() -> Json {
        let endpoint = |interface: &str, region: &str| json!({"interface": interface, "region": region, "url": format!("http://{interface}.{region}/v1/AUTH_p")});
        json!({"token": {"catalog": [
            {"type": "identity", "endpoints": [endpoint("public", "one")]},
            {"type": "object-store", "endpoints": [
                endpoint("internal", "one"), endpoint("public", "one"), endpoint("public", "two"),
            ]},
        ]}})
    }

    #[test]
    fn endpoint_matches_region_and_interface() {
        let find = |region, interface| {
            find_endpoint(&catalog(), region, interface).map_err(|e| e.message().to_owned())
        };
        assert_eq!(find(Some("two"), "public").unwrap(), "http://public.two/v1/AUTH_p");
        assert_eq!(find(None, "internal").unwrap(), "http://internal.one/v1/AUTH_p");
        assert!(find(Some("three"), "public").unwrap_err().ends_with("only in one, two"));
        assert!(find(None, "admin").is_err() && find_endpoint(&Json::Null, None, "public").is_err());
    }

    #[test]
    fn display_and_debug_omit_secrets() {
        let keystone = |login| Auth::Keystone {
            url: "http://k/v3".to_owned(),
            login,
            region: None,
            interface: "public".to_owned(),
        };
        let named = |name: &str| NameOrId::Named(name.to_owned(), Domain::Name("d".to_owned()));
        let (user, project) = (named("u"), named("p"));
        let password =
            keystone(KeystoneCredentials::Password { user, password: "hidden".to_owned(), project });
        assert_eq!(format!("{password}"), "d/u for d/p at http://k/v3, public in any region");
        let secret_of = |id: &str, secret: &str| KeystoneCredentials::ApplicationCredential {
            id: id.to_owned(),
            secret: secret.to_owned(),
        };
        let keystone = keystone(secret_of("i", "hidden"));
        let plain = Auth::V1 { url: "http://s".to_owned(), user: "a:u".to_owned(), key: "hidden".to_owned() };
        let shown = format!("{password:?} {keystone:?} {plain:?} {:?}", sensitive_value("hidden").unwrap());
        assert!(!shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn token_requests_match_keystone_v3() {
        let user = NameOrId::Named("u".to_owned(), Domain::Id("default".to_owned()));
        let project = NameOrId::Id("4711".to_owned());
        let body = KeystoneCredentials::Password { user, password: "w".to_owned(), project }.request_body();
        let user = json!({"name": "u", "domain": {"id": "default"}, "password": "w"});
        assert_eq!(body["auth"]["identity"], json!({"methods": ["password"], "password": {"user": user}}));
        assert_eq!(body["auth"]["scope"], json!({"project": {"id": "4711"}}));
        let body = KeystoneCredentials::ApplicationCredential { id: "i".to_owned(), secret: "s".to_owned() }
            .request_body();
        let credential = json!({"id": "i", "secret": "s"});
        let identity = json!({"methods": ["application_credential"], "application_credential": credential});
        assert_eq!(body, json!({"auth": {"identity": identity}}));
    }
}
