//! Who asks, and how a token is got for it: Swift's own way (v1, as tempauth speaks it) and Keystone's third version:
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

use crate::remote::client::{Call, Client};
use crate::remote::fields::value;
use crate::remote::payload::Held;
use crate::remote::time::parse_time;

/// A token with its catalog is no longer than this.
const MOST_ANSWER_BYTES: usize = 1 << 20;

/// Who asks.
#[derive(Clone)]
pub enum Auth {
    /// Swift's own: `GET` of a URL like `http://host/auth/v1.0`.
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
        /// The user's name.
        user: String,
        /// The domain in which the user's name means something.
        user_domain: String,
        /// The password.
        password: String,
        /// The project whose account is spoken with.
        project: String,
        /// The domain in which the project's name means something.
        project_domain: String,
        /// The region of the catalog's endpoint; `None` takes the first one.
        region: Option<String>,
        /// Which of the catalog's endpoints: `public`, `internal` or `admin`.
        interface: String,
    },
}

impl fmt::Debug for Auth {
    /// Says everything but secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V1 { url, user, .. } => write!(f, "V1({user:?} at {url:?})"),
            Self::Keystone { url, user, user_domain, project, project_domain, region, interface, .. } => {
                write!(
                    f,
                    "Keystone({user:?} of {user_domain:?} for {project:?} of {project_domain:?} at {url:?}, \
                 {interface} in {region:?})"
                )
            }
        }
    }
}

impl Auth {
    /// Where it is asked.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::V1 { url, .. } | Self::Keystone { url, .. } => url,
        }
    }

    /// Gets a token.
    pub(super) async fn ask(&self, context: &Context, client: &Client) -> Result<Grant> {
        match self {
            Self::V1 { user, key, .. } => {
                let mut call = Call::service(Method::GET);
                call.headers.insert("x-auth-user", value(user)?);
                call.headers.insert("x-auth-key", secret(key)?);
                let answer = client.send(context, &call).await?;
                let said = |name: &str| answer.header(name).map(str::to_owned);
                let token = said("x-auth-token").or_else(|| said("x-storage-token"));
                let (Some(token), Some(url)) = (token, said("x-storage-url")) else {
                    return Err(Error::new(Reason::Io, "the service answered no token or no account's URL"));
                };
                let life = said("x-auth-token-expires").and_then(|seconds| seconds.parse().ok());
                answer.collect(MOST_ANSWER_BYTES).await?;
                Ok(Grant { token: secret(&token)?, url, life: life.map(Duration::from_secs) })
            }
            Self::Keystone { region, interface, .. } => {
                let mut call = Call::service(Method::POST);
                call.key = Some("auth/tokens");
                call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                call.payload = Held::of([Bytes::from(self.keystone_request().to_string())]);
                // Asked twice it gives two tokens, of which one is used.
                call.may_repeat = true;
                let answer = client.send(context, &call).await?;
                let token = answer.header("x-subject-token").map(secret).transpose()?;
                let token = token.ok_or_else(|| Error::new(Reason::Io, "Keystone answered no token"))?;
                let document = answer.collect(MOST_ANSWER_BYTES).await?;
                let document: Json = serde_json::from_slice(&document)
                    .map_err(|e| Error::with_source(Reason::Io, "Keystone answered no JSON", e))?;
                let url = endpoint(&document, region.as_deref(), interface)?;
                let expires = document["token"]["expires_at"].as_str().and_then(parse_time);
                let life = expires.map(|at| at.millis().saturating_sub(client.clock.wall().millis()));
                let life = life.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0)));
                Ok(Grant { token, url, life })
            }
        }
    }

    fn keystone_request(&self) -> Json {
        let Self::Keystone { user, user_domain, password, project, project_domain, .. } = self else {
            return Json::Null;
        };
        json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": user, "domain": {"name": user_domain}, "password": password,
            }}},
            "scope": {"project": {"name": project, "domain": {"name": project_domain}}},
        }})
    }
}

/// What was got.
pub(super) struct Grant {
    pub token: HeaderValue,
    /// The account's URL.
    pub url: String,
    /// How long the token is good for, where that was said.
    pub life: Option<Duration>,
}

/// A header's value that no log shows.
fn secret(text: &str) -> Result<HeaderValue> {
    let mut secret = HeaderValue::from_bytes(text.as_bytes()).map_err(|e| {
        Error::with_source(Reason::InvalidArgument, "the key or the token cannot be sent in a header", e)
    })?;
    secret.set_sensitive(true);
    Ok(secret)
}

/// The object store's URL in Keystone's catalog.
fn endpoint(document: &Json, region: Option<&str>, interface: &str) -> Result<String> {
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
            format!(
                "Keystone knows no {interface} object store in region {region:?}, only in {}",
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
    fn an_endpoint_is_of_the_region_and_the_interface() {
        let find =
            |region, interface| endpoint(&catalog(), region, interface).map_err(|e| e.message().to_owned());
        assert_eq!(find(Some("two"), "public").unwrap(), "http://public.two/v1/AUTH_p");
        assert_eq!(find(None, "internal").unwrap(), "http://internal.one/v1/AUTH_p");
        assert!(find(Some("three"), "public").unwrap_err().ends_with("only in one, two"));
        assert!(find(None, "admin").is_err() && endpoint(&Json::Null, None, "public").is_err());
    }

    #[test]
    fn secrets_are_not_shown() {
        let keystone = Auth::Keystone {
            url: "http://k/v3".to_owned(),
            user: "u".to_owned(),
            user_domain: "d".to_owned(),
            password: "hidden".to_owned(),
            project: "p".to_owned(),
            project_domain: "d".to_owned(),
            region: None,
            interface: "public".to_owned(),
        };
        let plain = Auth::V1 { url: "http://s".to_owned(), user: "a:u".to_owned(), key: "hidden".to_owned() };
        let shown = format!("{keystone:?} {plain:?} {:?}", secret("hidden").unwrap());
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
