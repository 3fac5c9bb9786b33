//! The settings: plain data from the TOML file, the environment and the flags, each value with its source.
//! Only this module reads these three. The configuration files of other S3 clients are read in `aws`.
//!
//! A flag overrides an environment variable, a variable the file, and the file the default. Unknown keys are rejected;
//! the message suggests the nearest known one. Secrets are never printed.

mod access;
mod cached;
mod class_overrides;
mod class_policies;
mod class_rules;
mod class_transforms;
mod deduplicated;
mod document;
mod exposure;
mod fields;
mod local;
mod named;
mod problem;
mod reference;
mod remote;
mod routed;
mod scalars;
mod served;
mod settings_file;
mod show;
mod slices;
mod source;
mod swift;
mod transformed;
mod value;
mod volume_checks;
mod volumes;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tradewind_cache::MIN_WRITE_BACK_MEMORY_BYTES;

pub use access::{AccessKey, RootKey};
pub use cached::{CacheWrite, CachedSettings, Validate, WriteAdmissionBy};
pub use class_overrides::{ChangedClasses, ClassOverrides};
pub use class_policies::ClassSettings;
pub(crate) use class_rules::read_class_rules;
pub use deduplicated::DeduplicatedSettings;
pub use local::LocalOptions;
pub use named::{Bucket, NamedSettings, Store, StoreKind};
pub(crate) use problem::nearest_name;
pub use problem::{Problem, Problems};
pub use reference::reference;
pub use remote::S3Settings;
pub use routed::{ClassSpan, RoutedSettings, RoutedTier};
pub use scalars::{
    LanesSettings, LimitSettings, LogSettings, MemorySettings, Scalars, ServerSettings, TopLevelSettings,
    UploadSettings, environment_variable,
};
pub use served::{IMPLICIT_STORE, ServedVolume};
pub use slices::SliceSettings;
pub use source::{SettingSource, Sourced};
pub use swift::SwiftSettings;
pub use tradewind_core::quantity::{ByteSize, TimeSpan};
pub use transformed::{ClassChoice, KeySource, TransformedSettings};
pub use value::{
    AccessKeyIds, AccountId, ETag, HostName, KeyPrefixes, LogFilter, LogFormat, Percent, Permissions, Secret,
    SettingValue, StoreProxy,
};
pub use volumes::{Volume, VolumeLayer};

use document::Table;

/// The environment variable with the path of the settings file, unless a flag gives it.
const CONFIG_VARIABLE: &str = "TRADEWIND_CONFIG";

/// A flag on the command line that overrides a setting.
#[derive(Debug, Clone)]
pub struct FlagValue {
    /// The name of the setting, such as `server.listen`.
    pub setting: &'static str,
    /// The flag, such as `--listen`.
    pub flag: &'static str,
    /// The argument of the flag.
    pub value: String,
}

/// The inputs from which settings are read.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The path and text of the settings file.
    pub file: Option<(PathBuf, String)>,
    /// The environment variables that start with `TRADEWIND_`.
    pub environment: BTreeMap<String, String>,
    /// The flags.
    pub flags: Vec<FlagValue>,
}

impl Inputs {
    /// Reads the environment of the process, and the settings file given by `config` or the environment.
    pub fn gather(config: Option<PathBuf>, flags: Vec<FlagValue>) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let mut environment = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| name.starts_with("TRADEWIND_")) else { continue };
            match value.into_string() {
                Ok(value) => {
                    environment.insert(name.to_owned(), value);
                }
                Err(_) => {
                    problems.add(&SettingSource::Environment(name.to_owned()), "the value is not UTF-8")
                }
            }
        }
        let (source, path) = match (config, environment.get(CONFIG_VARIABLE)) {
            (Some(path), _) => (SettingSource::Flag("--config"), Some(path)),
            (None, Some(path)) => {
                (SettingSource::Environment(CONFIG_VARIABLE.to_owned()), Some(PathBuf::from(path)))
            }
            (None, None) => (SettingSource::Default, None),
        };
        let mut file = None;
        if let Some(path) = path {
            match settings_file::read(&path) {
                Ok(text) => file = Some((path, text)),
                Err(error) => {
                    problems
                        .add(&source, format!("cannot read the settings file {}: {error}", path.display()));
                }
            }
        }
        problems.into_result(Self { file, environment, flags })
    }

    /// Returns true if there is a settings file, given by `config` or the environment.
    #[must_use]
    pub fn name_a_file(config: Option<&Path>) -> bool {
        config.is_some() || std::env::var_os(CONFIG_VARIABLE).is_some()
    }

    fn environment(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// The directory that relative paths in the file refer to.
    fn file_directory(&self) -> Option<&Path> {
        self.file.as_ref()?.0.parent()
    }
}

/// All settings, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The single-valued settings.
    pub scalars: Scalars,
    /// Stores, volumes, buckets, access keys.
    pub named: NamedSettings,
    /// The root key, if it is set.
    pub root_key: Option<RootKey>,
}

impl Settings {
    /// Reads and validates all settings. Returns all problems at once.
    pub fn read(inputs: &Inputs) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let mut root = match &inputs.file {
            Some((path, text)) => document::parse(path, text)?,
            None => Table { source: SettingSource::Default, entries: Vec::new() },
        };
        let scalars = Scalars::read(&mut root, inputs, &mut problems);
        let named = NamedSettings::read(&mut root, inputs, &mut problems);
        let root_key = RootKey::read(&mut root, inputs, &mut problems);
        let known: Vec<&str> = Scalars::top_names().into_iter().chain(named::TOP_LEVEL_KEYS).collect();
        root.reject_unknown_keys("", &known, &named::PLANNED_TOP_LEVEL_KEYS, &mut problems);
        named.check(&mut problems);
        let settings = Self { scalars, named, root_key };
        settings.check(&mut problems);
        problems.into_result(settings)
    }

    fn check(&self, problems: &mut Problems) {
        let server = &self.scalars.server;
        if let Sourced { value: Some(name), source } = &server.store {
            let names: Vec<&str> = self.named.stores.iter().map(|store| store.name.value.as_str()).collect();
            let name = Sourced { value: name.clone(), source: source.clone() };
            named::check_reference("store", &name, &names, problems);
        }
        if let Sourced { value: Some(name), source } = &self.scalars.top.default_volume {
            let names: Vec<&str> =
                self.named.volumes.iter().map(|volume| volume.name.value.as_str()).collect();
            let name = Sourced { value: name.clone(), source: source.clone() };
            named::check_reference("volume", &name, &names, problems);
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
        if !lanes.enabled.value && !lanes.priority_prefixes.value.0.is_empty() {
            problems.add(
                &lanes.priority_prefixes.source,
                "lanes.priority_prefixes needs lanes: set lanes.enabled = true",
            );
        }
        if !lanes.enabled.value && !lanes.priority_access_keys.value.0.is_empty() {
            let source = &lanes.priority_access_keys.source;
            problems.add(source, "lanes.priority_access_keys needs lanes: set lanes.enabled = true");
        }
        let sliced = self.named.stores.iter().filter_map(|store| match &store.kind {
            StoreKind::Local { options, .. } => Some((store, options.slices.as_ref()?)),
            StoreKind::S3(_) | StoreKind::Swift(_) => None,
        });
        for (store, slices) in sliced.filter(|_| lanes.enabled.value) {
            let message = format!(
                "store.{}.slices and lanes.enabled both schedule this store; remove one of them",
                store.name.value
            );
            problems.add(&slices.source, message);
        }
        self.check_priority_clients(problems);
        self.check_clients_of_rules(problems);
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
        const MIN_HEADER_SIZE: ByteSize = ByteSize(8 << 10);
        if limits.header_size.value < MIN_HEADER_SIZE {
            problems.add(
                &limits.header_size.source,
                format!("limits.header_size must be at least {MIN_HEADER_SIZE}"),
            );
        }
        const MIN_BUDGET: ByteSize = ByteSize(16 << 20);
        let budget = &self.scalars.memory.budget;
        if budget.value < MIN_BUDGET {
            problems.add(&budget.source, format!("memory.budget must be at least {MIN_BUDGET}"));
        }
        self.check_cache_memory(problems);
        if let Some(root) = &self.root_key
            && let Some(key) = self.named.access_keys.iter().find(|key| key.id.value == root.id.value)
        {
            problems.add(&key.id.source, format!("{:?} is already the id of the root key", key.id.value));
        }
    }

    /// The caches of all volumes.
    fn caches(&self) -> impl Iterator<Item = &CachedSettings> {
        let layers = self.named.volumes.iter().flat_map(|volume| &volume.layers);
        layers.filter_map(VolumeLayer::cached)
    }

    /// The share of `memory.budget` for the write-back of each volume: three quarters of the budget less the memory of the
    /// caches, divided by the volumes that write back.
    #[must_use]
    pub fn write_back_memory(&self) -> ByteSize {
        let caches = self.caches().fold(0_u64, |sum, set| sum.saturating_add(set.memory.value.0));
        let volumes = self.caches().filter(|set| set.writes_back()).count() as u64;
        let budget = self.scalars.memory.budget.value.0;
        ByteSize((budget / 4 * 3).saturating_sub(caches) / volumes.max(1))
    }

    /// Checks that caches leave at least half of the memory to requests, and caches and write-back a quarter.
    fn check_cache_memory(&self, problems: &mut Problems) {
        let budget = self.scalars.memory.budget.value;
        let max = ByteSize(budget.0 / 2);
        let share = self.write_back_memory();
        if let Some(set) = self.caches().find(|set| set.writes_back())
            && share.0 < MIN_WRITE_BACK_MEMORY_BYTES
        {
            let message = format!(
                "write-back of each volume needs at least {} of memory.budget, {budget}, but gets {share}: requests have a \
                 quarter, caches have their memory, and the volumes that write back share the rest; lower the memory of \
                 caches or raise the budget",
                ByteSize(MIN_WRITE_BACK_MEMORY_BYTES)
            );
            problems.add(&set.write.source, message);
        }
        let mut sum = 0_u64;
        for set in self.caches() {
            sum = sum.saturating_add(set.memory.value.0);
            if sum > max.0 {
                let message = format!(
                    "caches may have at most half of memory.budget, {max}, but have {}; lower their memory or raise the \
                     budget",
                    ByteSize(sum)
                );
                problems.add(&set.disk.source, message);
                return;
            }
        }
    }

    /// Checks that the clients of high priority have access keys.
    fn check_priority_clients(&self, problems: &mut Problems) {
        let first = &self.scalars.lanes.priority_access_keys;
        for id in &first.value.0 {
            self.check_client(id, &first.source, problems);
        }
    }

    /// Checks that the clients of rules have access keys.
    fn check_clients_of_rules(&self, problems: &mut Problems) {
        for rule in &self.named.class_rules {
            if let Some(id) = &rule.value.access_key {
                self.check_client(id, &rule.source, problems);
            }
        }
    }

    /// Checks that there is an access key with this id.
    fn check_client(&self, id: &str, source: &SettingSource, problems: &mut Problems) {
        let named = self.named.access_keys.iter().map(|key| &key.id);
        let known: Vec<&str> =
            self.root_key.iter().map(|root| &root.id).chain(named).map(|id| id.value.as_str()).collect();
        if known.contains(&id) {
            return;
        }
        let help = nearest_name(id, known.iter().copied()).map_or_else(
            || "add an [[access_key]] with this id".to_owned(),
            |near| format!("did you mean {near:?}?"),
        );
        problems.add(source, format!("there is no access key {id:?}; {help}"));
    }
}
