//! The settings: plain data out of the TOML file, the environment and the flags, each value with the
//! place it came from. This module is the only one that reads any of the three; what clients of S3 are set
//! up with elsewhere is read in `aws`.
//!
//! A flag covers a variable, a variable covers the file, the file covers the default. Unknown keys are
//! refused with the nearest known one named. Secrets are never shown.

mod access;
mod document;
mod exposure;
mod fields;
mod local;
mod named;
mod problem;
mod remote;
mod scalars;
mod show;
mod source;
mod swift;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use access::{AccessKey, RootKey};
pub use local::LocalOptions;
pub use named::{Bucket, Named, Store, StoreKind, Volume};
pub(crate) use problem::nearest;
pub use problem::{Problem, Problems};
pub use remote::S3Settings;
pub use scalars::{LanesSettings, Limits, Log, Memory, Scalars, Server, Top, Uploads, variable};
pub use source::{Source, Sourced};
pub use swift::SwiftSettings;
pub use tradewind_core::quantity::{ByteSize, Span};
pub use value::{
    Beginnings, ETag, HostName, KeyIds, LogFilter, LogFormat, Percent, Permissions, Secret, Value,
};

use document::Table;

/// The variable that names the settings file where no flag does.
const CONFIG_VARIABLE: &str = "TRADEWIND_CONFIG";

/// A flag that covers a setting.
#[derive(Debug, Clone)]
pub struct Given {
    /// The setting's name, `server.listen`.
    pub setting: &'static str,
    /// The flag, `--listen`.
    pub flag: &'static str,
    /// What was written behind it.
    pub value: String,
}

/// Everything that settings are read from.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The settings file, with its text.
    pub file: Option<(PathBuf, String)>,
    /// The variables that begin with `TRADEWIND_`.
    pub environment: BTreeMap<String, String>,
    /// The flags.
    pub flags: Vec<Given>,
}

impl Inputs {
    /// Reads the process's environment and the file that `config` or the environment names.
    pub fn gather(config: Option<PathBuf>, flags: Vec<Given>) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let mut environment = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| name.starts_with("TRADEWIND_")) else { continue };
            match value.into_string() {
                Ok(value) => {
                    environment.insert(name.to_owned(), value);
                }
                Err(_) => problems.add(&Source::Environment(name.to_owned()), "the value is not UTF-8"),
            }
        }
        let (source, path) = match (config, environment.get(CONFIG_VARIABLE)) {
            (Some(path), _) => (Source::Flag("--config"), Some(path)),
            (None, Some(path)) => {
                (Source::Environment(CONFIG_VARIABLE.to_owned()), Some(PathBuf::from(path)))
            }
            (None, None) => (Source::Default, None),
        };
        let mut file = None;
        if let Some(path) = path {
            match std::fs::read_to_string(&path) {
                Ok(text) => file = Some((path, text)),
                Err(error) => {
                    problems
                        .add(&source, format!("cannot read the settings file {}: {error}", path.display()));
                }
            }
        }
        problems.or(Self { file, environment, flags })
    }

    fn environment(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// The directory that relative paths of the file start in.
    fn file_directory(&self) -> Option<&Path> {
        self.file.as_ref()?.0.parent()
    }
}

/// All settings, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The single-valued ones.
    pub scalars: Scalars,
    /// Stores, volumes, buckets, access keys.
    pub named: Named,
    /// The root key, where it is set.
    pub root_key: Option<RootKey>,
}

impl Settings {
    /// Reads and validates; all problems at once.
    pub fn read(inputs: &Inputs) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let mut root = match &inputs.file {
            Some((path, text)) => document::parse(path, text)?,
            None => Table { source: Source::Default, entries: Vec::new() },
        };
        let scalars = Scalars::read(&mut root, inputs, &mut problems);
        let named = Named::read(&mut root, inputs, &mut problems);
        let root_key = RootKey::read(&mut root, inputs, &mut problems);
        let known: Vec<&str> = Scalars::top_names().into_iter().chain(named::TOP_NAMES).collect();
        root.refuse_rest("", &known, &named::PLANNED_TOP_NAMES, &mut problems);
        named.check(&mut problems);
        let settings = Self { scalars, named, root_key };
        settings.check(&mut problems);
        problems.or(settings)
    }

    /// The store that is served: the one that is named, or the only one. `None`: an embedded one in `data`, unless there
    /// are several, which [`check_served`](Self::check_served) refuses.
    #[must_use]
    pub fn served(&self) -> Option<&Store> {
        match (&self.scalars.server.store.value, self.named.stores.as_slice()) {
            (Some(name), stores) => stores.iter().find(|store| store.name.value == *name),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// Refuses to choose one of several stores to serve.
    pub fn check_served(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        if let (None, [first, second, ..]) = (self.served(), self.named.stores.as_slice()) {
            let message = format!(
                "there are several stores, of which one can be served so far; say which: server.store = {:?}",
                first.name.value
            );
            problems.add(&second.name.source, message);
        }
        problems.or(())
    }

    /// The directory of the store that is served, where it has one.
    #[must_use]
    pub fn store_directory(&self) -> Option<&Path> {
        match self.served().map(|store| &store.kind) {
            None => Some(self.data_directory()),
            Some(StoreKind::Local { path, .. }) => Some(&path.value),
            Some(StoreKind::S3(_) | StoreKind::Swift(_)) => None,
        }
    }

    /// The directory where a generated root key is kept: `data`, but beside the configured store's
    /// bytes where only that was set.
    #[must_use]
    pub fn data_directory(&self) -> &Path {
        match self.served().map(|store| &store.kind) {
            Some(StoreKind::Local { path, .. }) if self.scalars.top.data.source == Source::Default => {
                &path.value
            }
            _ => &self.scalars.top.data.value,
        }
    }

    fn check(&self, problems: &mut Problems) {
        let server = &self.scalars.server;
        if let Sourced { value: Some(name), source } = &server.store {
            let names: Vec<&str> = self.named.stores.iter().map(|store| store.name.value.as_str()).collect();
            let name = Sourced { value: name.clone(), source: source.clone() };
            named::refer("store", &name, &names, problems);
        }
        match (&server.tls_cert, &server.tls_key) {
            (Sourced { value: Some(_), source }, Sourced { value: None, .. }) => {
                problems.add(source, "TLS needs the private key too: set server.tls_key or --tls-key");
            }
            (Sourced { value: None, .. }, Sourced { value: Some(_), source }) => {
                problems.add(source, "TLS needs the certificate too: set server.tls_cert or --tls-cert");
            }
            _ => {}
        }
        let listen = server.listen.value;
        if listen.port() != 0 && listen == server.admin.value {
            problems.add(
                &server.admin.source,
                format!("server.admin and server.listen are both {listen}; give each its own port"),
            );
        }
        let lanes = &self.scalars.lanes;
        if !lanes.enabled.value && !lanes.first.value.0.is_empty() {
            problems.add(&lanes.first.source, "lanes.first needs lanes: set lanes.enabled = true");
        }
        if !lanes.enabled.value && !lanes.first_clients.value.0.is_empty() {
            let source = &lanes.first_clients.source;
            problems.add(source, "lanes.first_clients needs lanes: set lanes.enabled = true");
        }
        self.check_first_clients(problems);
        let limits = &self.scalars.limits;
        for (name, span) in [
            ("header_time", &limits.header_time),
            ("idle_time", &limits.idle_time),
            ("slow_client_time", &limits.slow_client_time),
            ("admission_time", &limits.admission_time),
            ("request_time", &limits.request_time),
            ("transfer_time", &limits.transfer_time),
        ] {
            if span.value.0.is_zero() {
                problems.add(&span.source, format!("limits.{name} must be longer than 0"));
            }
        }
        const LEAST_HEADER: ByteSize = ByteSize(8 << 10);
        if limits.header_size.value < LEAST_HEADER {
            problems.add(
                &limits.header_size.source,
                format!("limits.header_size must be at least {LEAST_HEADER}"),
            );
        }
        const LEAST_BUDGET: ByteSize = ByteSize(16 << 20);
        let budget = &self.scalars.memory.budget;
        if budget.value < LEAST_BUDGET {
            problems.add(&budget.source, format!("memory.budget must be at least {LEAST_BUDGET}"));
        }
        if let Some(root) = &self.root_key
            && let Some(key) = self.named.access_keys.iter().find(|key| key.id.value == root.id.value)
        {
            problems.add(&key.id.source, format!("{:?} is the root key's id already", key.id.value));
        }
    }

    /// Who goes first must be somebody.
    fn check_first_clients(&self, problems: &mut Problems) {
        let named = self.named.access_keys.iter().map(|key| &key.id);
        let known: Vec<&str> =
            self.root_key.iter().map(|root| &root.id).chain(named).map(|id| id.value.as_str()).collect();
        let first = &self.scalars.lanes.first_clients;
        for id in first.value.0.iter().filter(|id| !known.contains(&id.as_str())) {
            let help = nearest(id, known.iter().copied()).map_or_else(
                || "add an [[access_key]] with this id".to_owned(),
                |near| format!("did you mean {near:?}?"),
            );
            problems.add(&first.source, format!("there is no access key {id:?}; {help}"));
        }
    }
}
