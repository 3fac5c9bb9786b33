//! Where and as whom Swift is spoken with, found out where its users have it: in the variables that python-swiftclient
//! reads (`ST_AUTH` and its like for Swift's own way, `OS_AUTH_URL` and its like for Keystone's third version), or in a
//! file that sets them (an "openrc").
//!
//! [`Access::find`] is a pure function of the variables. No message holds a secret.

mod openrc;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tradewind_backend::swift::{Auth, Domain, Login, Party};

pub use openrc::Openrc;

/// The variables that a named store takes from the environment although it has a file of its own.
const SECRETS: [&str; 3] = ["ST_KEY", "OS_PASSWORD", "OS_APPLICATION_CREDENTIAL_SECRET"];

/// What decides.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Variables: `OS_*` and `ST_*`; others are not looked at. An empty one counts as none.
    pub variables: BTreeMap<String, String>,
}

impl Inputs {
    /// Reads the process's environment.
    #[must_use]
    pub fn gather() -> Self {
        let is_read = |name: &str| name.starts_with("OS_") || name.starts_with("ST_");
        let text = |name: std::ffi::OsString| name.into_string().ok().filter(|name| is_read(name));
        // What is not UTF-8 counts as none, and what it was to set is missed by its name.
        let read = |(name, value): (_, std::ffi::OsString)| Some((text(name)?, value.into_string().ok()?));
        Self { variables: std::env::vars_os().filter_map(read).collect() }
    }

    /// What a file sets instead: of the environment only secrets are left, which people do not like to have in files.
    #[must_use]
    pub fn covered_by(mut self, file: Openrc) -> Self {
        self.variables.retain(|name, _| SECRETS.contains(&name.as_str()));
        self.variables.extend(file.variables);
        self
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The first of these that is set.
    fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }
}

/// How Swift is reached.
#[derive(Debug, Clone)]
pub struct Access {
    /// Who asks, and where a token is got.
    pub auth: Auth,
    /// The account's URL, where it is not the one that comes with the token.
    pub account_url: Option<String>,
    /// The certificates to trust instead of the system's.
    pub ca_bundle: Option<PathBuf>,
}

impl Access {
    /// Finds out; the error says in one line what is missing or wrong.
    pub fn find(inputs: &Inputs) -> Result<Self, String> {
        let of_first = inputs.first(&["ST_AUTH_VERSION", "OS_AUTH_VERSION", "OS_IDENTITY_API_VERSION"]);
        let auth = match of_first {
            Some("1" | "1.0") => v1(inputs)?,
            Some("3" | "3.0") => keystone(inputs)?,
            Some("2" | "2.0") => {
                return Err(
                    "Keystone's second version is not spoken; set OS_IDENTITY_API_VERSION to 3, and \
                            OS_AUTH_URL to the URL that ends with /v3"
                        .to_owned(),
                );
            }
            Some(other) => {
                return Err(format!("there is no version {other:?} of authentication; write 1 or 3"));
            }
            None if V1.iter().all(|name| inputs.get(name).is_some()) => v1(inputs)?,
            None if inputs.get("OS_AUTH_URL").is_some() => keystone(inputs)?,
            None if V1.iter().any(|name| inputs.get(name).is_some()) => v1(inputs)?,
            None => return Err(NOTHING.to_owned()),
        };
        let account_url = inputs.get("OS_STORAGE_URL").map(str::to_owned);
        let ca_bundle = inputs.get("OS_CACERT").map(PathBuf::from);
        Ok(Self { auth, account_url, ca_bundle })
    }
}

const V1: [&str; 3] = ["ST_AUTH", "ST_USER", "ST_KEY"];

const NOTHING: &str = "nothing says where Swift is; set ST_AUTH, ST_USER and ST_KEY, or for Keystone OS_AUTH_URL, \
                       OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME";

/// The values of these variables, or which of them are not set.
fn all<const N: usize>(inputs: &Inputs, needed: [&[&str]; N], way: &str) -> Result<[String; N], String> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|names| inputs.first(names).is_none())
        .filter_map(|names| names.first().copied())
        .collect();
    match missing.as_slice() {
        [] => Ok(needed.map(|names| inputs.first(names).unwrap_or_default().to_owned())),
        [one] => Err(format!("{one} is not set, and {way} needs it")),
        [before @ .., last] => {
            Err(format!("{} and {last} are not set, and {way} needs them", before.join(", ")))
        }
    }
}

fn v1(inputs: &Inputs) -> Result<Auth, String> {
    let [url, user, key] =
        all(inputs, [&["ST_AUTH"], &["ST_USER"], &["ST_KEY"]], "Swift's own authentication")?;
    Ok(Auth::V1 { url, user, key })
}

fn keystone(inputs: &Inputs) -> Result<Auth, String> {
    let is_credential = inputs.get("OS_AUTH_TYPE").is_some_and(|kind| kind == "v3applicationcredential")
        || inputs.get("OS_APPLICATION_CREDENTIAL_ID").is_some();
    let (url, login) = if is_credential {
        let id: &[&str] = &["OS_APPLICATION_CREDENTIAL_ID"];
        let needed = [&["OS_AUTH_URL"], id, &["OS_APPLICATION_CREDENTIAL_SECRET"]];
        let [url, id, secret] = all(inputs, needed, "an application credential")?;
        (url, Login::ApplicationCredential { id, secret })
    } else {
        if inputs.get("OS_PASSWORD").is_none() && inputs.get("OS_AUTH_TOKEN").is_some() {
            return Err(
                "OS_AUTH_TOKEN is set, but a token that runs out cannot be renewed; set OS_USERNAME and \
                        OS_PASSWORD"
                    .to_owned(),
            );
        }
        let user: &[&str] = &["OS_USERNAME", "OS_USER_ID"];
        let project: &[&str] = &["OS_PROJECT_NAME", "OS_PROJECT_ID", "OS_TENANT_NAME", "OS_TENANT_ID"];
        let needed = [&["OS_AUTH_URL"], user, &["OS_PASSWORD"], project];
        let [url, _, password, _] = all(inputs, needed, "Keystone")?;
        let user = party(inputs, &["OS_USER_ID"], &["OS_USERNAME"], "OS_USER_DOMAIN");
        let project = party(
            inputs,
            &["OS_PROJECT_ID", "OS_TENANT_ID"],
            &["OS_PROJECT_NAME", "OS_TENANT_NAME"],
            "OS_PROJECT_DOMAIN",
        );
        (url, Login::Password { user, password, project })
    };
    let interface = inputs.first(&["OS_ENDPOINT_TYPE", "OS_INTERFACE"]).unwrap_or("public");
    let interface = interface.trim_end_matches("URL").to_owned();
    if !["public", "internal", "admin"].contains(&interface.as_str()) {
        return Err(format!("OS_ENDPOINT_TYPE is {interface:?}; write public, internal or admin"));
    }
    let region = inputs.get("OS_REGION_NAME").map(str::to_owned);
    Ok(Auth::Keystone { url: third_version(&url)?, login, region, interface })
}

/// By its id, which is unique, or else by its name.
fn party(inputs: &Inputs, ids: &[&str], names: &[&str], domain: &str) -> Party {
    if let Some(id) = inputs.first(ids) {
        return Party::Id(id.to_owned());
    }
    let of_domain = |what: &str| inputs.get(&format!("{domain}_{what}")).map(str::to_owned);
    let domain = match (of_domain("ID"), of_domain("NAME")) {
        (Some(id), _) => Domain::Id(id),
        (None, Some(name)) => Domain::Name(name),
        // The one that every Keystone begins with.
        (None, None) => Domain::Id("default".to_owned()),
    };
    Party::Named(inputs.first(names).unwrap_or_default().to_owned(), domain)
}

/// Some people's URL ends with the version, and some people's does not.
fn third_version(url: &str) -> Result<String, String> {
    let url = url.trim_end_matches('/');
    match url.rsplit_once('/').map(|(_, last)| last) {
        Some("v3") => Ok(url.to_owned()),
        Some("v2.0") => {
            Err("OS_AUTH_URL ends with /v2.0, a version that is not spoken; write the URL that ends with /v3"
                .to_owned())
        }
        _ => Ok(format!("{url}/v3")),
    }
}
