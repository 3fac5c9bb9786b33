//! Address and credentials of Swift, resolved from the variables that python-swiftclient reads, or from a file that
//! sets them (an "openrc"). `ST_AUTH` and related variables are for Swift's v1 authentication, `OS_AUTH_URL` and
//! related ones for Keystone v3.
//!
//! [`SwiftAccess::resolve`] is a pure function of the variables. No message contains a secret.

mod openrc;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tradewind_backend::swift::{Auth, Domain, KeystoneCredentials, NameOrId};

pub use openrc::Openrc;

/// The variables that a store with an openrc file still takes from the environment.
const SECRET_VARIABLES: [&str; 3] = ["ST_KEY", "OS_PASSWORD", "OS_APPLICATION_CREDENTIAL_SECRET"];

/// The inputs of the resolution.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Variables: `OS_*` and `ST_*`; others are ignored. An empty variable is treated as unset.
    pub variables: BTreeMap<String, String>,
}

impl Inputs {
    /// Reads the process's environment.
    #[must_use]
    pub fn gather() -> Self {
        let is_read = |name: &str| name.starts_with("OS_") || name.starts_with("ST_");
        let text = |name: std::ffi::OsString| name.into_string().ok().filter(|name| is_read(name));
        // A variable that is not UTF-8 is treated as unset; if it is required, the error names it.
        let read = |(name, value): (_, std::ffi::OsString)| Some((text(name)?, value.into_string().ok()?));
        Self { variables: std::env::vars_os().filter_map(read).collect() }
    }

    /// Replaces the variables by those of a file. Only secrets are still taken from the environment, since users avoid
    /// storing them in files.
    #[must_use]
    pub fn overridden_by(mut self, file: Openrc) -> Self {
        self.variables.retain(|name, _| SECRET_VARIABLES.contains(&name.as_str()));
        self.variables.extend(file.variables);
        self
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The first of these that is set.
    fn first_set(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }
}

/// The resolved access to Swift.
#[derive(Debug, Clone)]
pub struct SwiftAccess {
    /// Credentials, and the service that issues tokens.
    pub auth: Auth,
    /// The account's URL, if not the one returned with the token.
    pub account_url: Option<String>,
    /// The certificates to trust instead of the system's.
    pub ca_bundle: Option<PathBuf>,
}

impl SwiftAccess {
    /// Resolves the access. The error is one line with what is missing or wrong.
    pub fn resolve(inputs: &Inputs) -> Result<Self, String> {
        let version = inputs.first_set(&["ST_AUTH_VERSION", "OS_AUTH_VERSION", "OS_IDENTITY_API_VERSION"]);
        let auth = match version {
            Some("1" | "1.0") => resolve_v1(inputs)?,
            Some("3" | "3.0") => resolve_keystone(inputs)?,
            Some("2" | "2.0") => {
                return Err("Keystone v2 is not supported; set OS_IDENTITY_API_VERSION to 3, and \
                            OS_AUTH_URL to the URL that ends with /v3"
                    .to_owned());
            }
            Some(other) => {
                return Err(format!("unknown authentication version {other:?}; write 1 or 3"));
            }
            None if V1_VARIABLES.iter().all(|name| inputs.get(name).is_some()) => resolve_v1(inputs)?,
            None if inputs.get("OS_AUTH_URL").is_some() => resolve_keystone(inputs)?,
            None if V1_VARIABLES.iter().any(|name| inputs.get(name).is_some()) => resolve_v1(inputs)?,
            None => return Err(NOT_CONFIGURED.to_owned()),
        };
        let account_url = inputs.get("OS_STORAGE_URL").map(str::to_owned);
        let ca_bundle = inputs.get("OS_CACERT").map(PathBuf::from);
        Ok(Self { auth, account_url, ca_bundle })
    }
}

const V1_VARIABLES: [&str; 3] = ["ST_AUTH", "ST_USER", "ST_KEY"];

const NOT_CONFIGURED: &str = "Swift is not configured; set ST_AUTH, ST_USER and ST_KEY, or for Keystone OS_AUTH_URL, \
                       OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME";

/// The values of required variables, each the first one set of its alternatives. The error names the missing ones.
fn require_all<const N: usize>(
    inputs: &Inputs,
    needed: [&[&str]; N],
    way: &str,
) -> Result<[String; N], String> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|names| inputs.first_set(names).is_none())
        .filter_map(|names| names.first().copied())
        .collect();
    match missing.as_slice() {
        [] => Ok(needed.map(|names| inputs.first_set(names).unwrap_or_default().to_owned())),
        [one] => Err(format!("{one} is not set, and {way} needs it")),
        [before @ .., last] => {
            Err(format!("{} and {last} are not set, and {way} needs them", before.join(", ")))
        }
    }
}

fn resolve_v1(inputs: &Inputs) -> Result<Auth, String> {
    let [url, user, key] =
        require_all(inputs, [&["ST_AUTH"], &["ST_USER"], &["ST_KEY"]], "Swift's own authentication")?;
    Ok(Auth::V1 { url, user, key })
}

fn resolve_keystone(inputs: &Inputs) -> Result<Auth, String> {
    let is_credential = inputs.get("OS_AUTH_TYPE").is_some_and(|kind| kind == "v3applicationcredential")
        || inputs.get("OS_APPLICATION_CREDENTIAL_ID").is_some();
    let (url, login) = if is_credential {
        let id: &[&str] = &["OS_APPLICATION_CREDENTIAL_ID"];
        let needed = [&["OS_AUTH_URL"], id, &["OS_APPLICATION_CREDENTIAL_SECRET"]];
        let [url, id, secret] = require_all(inputs, needed, "an application credential")?;
        (url, KeystoneCredentials::ApplicationCredential { id, secret })
    } else {
        if inputs.get("OS_PASSWORD").is_none() && inputs.get("OS_AUTH_TOKEN").is_some() {
            return Err("OS_AUTH_TOKEN is set, but an expired token cannot be renewed; set OS_USERNAME and \
                        OS_PASSWORD"
                .to_owned());
        }
        let user: &[&str] = &["OS_USERNAME", "OS_USER_ID"];
        let project: &[&str] = &["OS_PROJECT_NAME", "OS_PROJECT_ID", "OS_TENANT_NAME", "OS_TENANT_ID"];
        let needed = [&["OS_AUTH_URL"], user, &["OS_PASSWORD"], project];
        let [url, _, password, _] = require_all(inputs, needed, "Keystone")?;
        let user = user_or_project(inputs, &["OS_USER_ID"], &["OS_USERNAME"], "OS_USER_DOMAIN");
        let project = user_or_project(
            inputs,
            &["OS_PROJECT_ID", "OS_TENANT_ID"],
            &["OS_PROJECT_NAME", "OS_TENANT_NAME"],
            "OS_PROJECT_DOMAIN",
        );
        (url, KeystoneCredentials::Password { user, password, project })
    };
    let interface = inputs.first_set(&["OS_ENDPOINT_TYPE", "OS_INTERFACE"]).unwrap_or("public");
    let interface = interface.trim_end_matches("URL").to_owned();
    if !["public", "internal", "admin"].contains(&interface.as_str()) {
        return Err(format!("OS_ENDPOINT_TYPE is {interface:?}; write public, internal or admin"));
    }
    let region = inputs.get("OS_REGION_NAME").map(str::to_owned);
    Ok(Auth::Keystone { url: with_version_3(&url)?, login, region, interface })
}

/// A user or project by its id, which is unique, otherwise by its name and domain.
fn user_or_project(inputs: &Inputs, ids: &[&str], names: &[&str], domain: &str) -> NameOrId {
    if let Some(id) = inputs.first_set(ids) {
        return NameOrId::Id(id.to_owned());
    }
    let domain_part = |what: &str| inputs.get(&format!("{domain}_{what}")).map(str::to_owned);
    let domain = match (domain_part("ID"), domain_part("NAME")) {
        (Some(id), _) => Domain::Id(id),
        (None, Some(name)) => Domain::Name(name),
        // The domain that exists in every Keystone.
        (None, None) => Domain::Id("default".to_owned()),
    };
    NameOrId::Named(inputs.first_set(names).unwrap_or_default().to_owned(), domain)
}

/// Appends the version to Keystone's URL, unless it is there already.
fn with_version_3(url: &str) -> Result<String, String> {
    let url = url.trim_end_matches('/');
    match url.rsplit_once('/').map(|(_, last)| last) {
        Some("v3") => Ok(url.to_owned()),
        Some("v2.0") => {
            Err("OS_AUTH_URL ends with /v2.0, which is not supported; write the URL that ends with /v3"
                .to_owned())
        }
        _ => Ok(format!("{url}/v3")),
    }
}
