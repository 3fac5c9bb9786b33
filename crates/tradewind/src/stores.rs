//! The stores of commands without a server, by the part of a location before `://`: `s3` and `swift`, configured like
//! their usual clients, and each `[store.NAME]` of a settings file.
//!
//! A store in the settings overrides the built-in one: `[store.s3]` defines `s3://`, but must be of type `s3`. Flags
//! about S3 apply only to `s3://`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tradewind_backend::local::{self, LocalStore};
use tradewind_backend::remote::ProxyRules;
use tradewind_backend::s3::{MappedClasses, S3Store, SubstituteProofs};
use tradewind_backend::swift::{Auth, SwiftOptions, SwiftStore};
use tradewind_core::{Clock, ObjectStore, Traffic};
use tradewind_model::retry::RetryOptions;

use crate::aws::{self, Origin, Traced};
use crate::openstack::{self, Openrc, SwiftAccess};
use crate::proxies;
use crate::s3_access::{self, S3Flags};
use crate::settings::{
    ByteSize, Inputs, LocalOptions, Problems, S3Settings, Settings, Sourced, Store, StoreKind, StoreProxy,
    SwiftSettings, nearest_name,
};

/// A name that always has a store.
pub const S3: &str = "s3";
/// See [`S3`].
pub const SWIFT: &str = "swift";

/// The handling of a missing directory of a local store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingDirectory {
    /// Fail: a mistyped path must not be treated as an empty store.
    Fail,
    /// Create it.
    Create,
}

/// The error for a location without a store.
#[derive(Debug)]
pub struct UnknownStore(String);

impl fmt::Display for UnknownStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownStore {}

/// All stores that locations can refer to.
#[derive(Debug)]
pub struct Stores {
    named: Vec<Store>,
    overrides: S3Flags,
    clock: Arc<dyn Clock>,
    connection_options: ConnectionOptions,
}

/// Connection settings of all stores.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// Maximum number of connections, unless the settings have one.
    pub max_connections: usize,
    /// Maximum read buffer of a connection, in bytes.
    pub max_read_bytes: usize,
    /// Set for benchmarks.
    pub benchmark: Option<BenchmarkOptions>,
}

/// Settings of benchmarks. A measured store uses the requested number of connections, whatever the settings say, and
/// does not retry.
#[derive(Debug, Clone)]
pub struct BenchmarkOptions {
    /// Each request uses a new connection.
    pub is_single_use: bool,
    /// Counts the bytes of all connections.
    pub traffic: Arc<Traffic>,
}

/// An open store.
#[derive(Debug, Clone)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// Retry policy for callers, if configured for this store.
    pub retries: Option<RetryOptions>,
    /// The directory of a local store.
    pub directory: Option<PathBuf>,
    /// Counts the requests to an S3 service without checksum headers.
    pub substitute_proofs: Option<Arc<SubstituteProofs>>,
}

impl Stores {
    /// Reads the stores in the settings file given by `config` or `TRADEWIND_CONFIG`, if any; adds the built-in ones.
    pub fn find(
        config: Option<PathBuf>,
        overrides: S3Flags,
        clock: Arc<dyn Clock>,
        connection_options: ConnectionOptions,
    ) -> Result<Self, Problems> {
        let inputs = Inputs::gather(config, Vec::new())?;
        // Without a file, commands need no settings.
        let named = match &inputs.file {
            Some(_) => Settings::read(&inputs)?.named.stores,
            None => Vec::new(),
        };
        Ok(Self { named, overrides, clock, connection_options })
    }

    /// These stores with other connection settings.
    #[must_use]
    pub fn with_connection_options(self, connection_options: ConnectionOptions) -> Self {
        Self { connection_options, ..self }
    }

    /// The name of a remote store in profiles, without a request: its debug output. `None` if `scheme` is not a remote
    /// store or cannot be opened.
    #[must_use]
    pub fn profile_store_name(&self, scheme: &str) -> Option<String> {
        let is_local = |store: &Store| matches!(store.kind, StoreKind::Local { .. });
        if self.named.iter().any(|store| store.name.value == scheme && is_local(store)) {
            return None;
        }
        Some(format!("{:?}", self.open(scheme, MissingDirectory::Fail).ok()?.store))
    }

    /// Opens the store named `scheme`. May block: the log of a local store is replayed.
    pub fn open(&self, scheme: &str, missing_directory: MissingDirectory) -> anyhow::Result<OpenStore> {
        let store = self.named.iter().find(|store| store.name.value == scheme);
        let kind = match store {
            Some(store) => &store.kind,
            None if scheme == S3 => &StoreKind::S3(S3Settings::default()),
            None if scheme == SWIFT => &StoreKind::Swift(SwiftSettings::default()),
            None => return Err(self.unknown_store_error(scheme).into()),
        };
        if let Some(store) = store
            && [S3, SWIFT].contains(&scheme)
            && store.type_name() != scheme
        {
            bail!(
                "{}: {scheme}:// is reserved for stores of type {scheme:?}, but this store is of type {:?}; rename it",
                store.name.source,
                store.type_name()
            );
        }
        match kind {
            StoreKind::Local { path, options } => {
                let directory = &path.value;
                if missing_directory == MissingDirectory::Fail && !directory.is_dir() {
                    let shown = directory.display();
                    bail!("there is no store in {shown}; create one with tradewind mb {scheme}://BUCKET");
                }
                let options = command_local_options(options);
                let store = LocalStore::open(directory, options, self.clock.clone());
                let store =
                    store.with_context(|| format!("cannot open the store in {}", directory.display()))?;
                let directory = Some(directory.clone());
                Ok(OpenStore { store, retries: None, directory, substitute_proofs: None })
            }
            StoreKind::S3(set) => {
                let flags = if scheme == S3 { self.overrides.clone() } else { S3Flags::default() };
                let mut options = s3_options(set, flags)?;
                if set.max_connections.is_none() || self.connection_options.benchmark.is_some() {
                    options.max_connections = self.connection_options.max_connections;
                }
                options.read_bytes = options.read_bytes.min(self.connection_options.max_read_bytes);
                if let Some(BenchmarkOptions { is_single_use, traffic }) = &self.connection_options.benchmark
                {
                    options.retries = RetryOptions::disabled();
                    (options.is_single_use, options.traffic) = (*is_single_use, Some(traffic.clone()));
                    // Buffered parts must not fail for lack of memory at the requested concurrency: that would look
                    // like a failure of the store.
                    let all = options.max_connections.saturating_mul(options.part_bytes);
                    options.buffer_bytes = options.buffer_bytes.max(all);
                }
                let retries = Some(options.retries);
                let substitute_proofs = Some(options.substitute_proofs.clone());
                let store = S3Store::new(options, self.clock.clone())?;
                Ok(OpenStore { store, retries, directory: None, substitute_proofs })
            }
            StoreKind::Swift(set) => {
                let mut options = swift_options(set).with_context(|| format!("{scheme}://"))?;
                if set.max_connections.is_none() || self.connection_options.benchmark.is_some() {
                    options.max_connections = self.connection_options.max_connections;
                }
                options.read_bytes = options.read_bytes.min(self.connection_options.max_read_bytes);
                if let Some(BenchmarkOptions { is_single_use, traffic }) = &self.connection_options.benchmark
                {
                    options.retries = RetryOptions::disabled();
                    (options.is_single_use, options.traffic) = (*is_single_use, Some(traffic.clone()));
                    // Deleted objects are read only by concurrent measurements, so a short grace period suffices.
                    options.segment_grace_period = Duration::from_secs(60);
                }
                let retries = Some(options.retries);
                let store = SwiftStore::new(options, self.clock.clone())?;
                Ok(OpenStore { store, retries, directory: None, substitute_proofs: None })
            }
        }
    }

    fn unknown_store_error(&self, scheme: &str) -> UnknownStore {
        let mut names = vec![format!("{S3}://"), format!("{SWIFT}://")];
        let own = self.named.iter().map(|store| &store.name.value);
        names.extend(
            own.filter(|name| ![S3, SWIFT].contains(&name.as_str())).map(|name| format!("{name}://")),
        );
        let last = names.pop().unwrap_or_default();
        let all = names.iter().chain([&last]).map(|name| name.trim_end_matches("://"));
        if let Some(meant) = nearest_store(scheme, all) {
            return UnknownStore(format!("there is no store {scheme:?}; did you mean {meant}://?"));
        }
        let names = names.join(", ");
        UnknownStore(format!(
            "there is no store {scheme:?}; locations begin with {names} or {last}, or are paths; to add this store, \
             define [store.{scheme}] in the settings file (--config)"
        ))
    }

    /// Rejects names without a store, and flags that apply to none of these stores.
    pub fn check_schemes(&self, schemes: &[&str]) -> Result<(), UnknownStore> {
        let is_known = |scheme: &str| {
            [S3, SWIFT].contains(&scheme) || self.named.iter().any(|store| store.name.value == scheme)
        };
        if let Some(unknown) = schemes.iter().find(|scheme| !is_known(scheme)) {
            return Err(self.unknown_store_error(unknown));
        }
        let S3Flags { profile, endpoint_url, region, is_anonymous } = &self.overrides;
        let given = [
            ("--profile", profile.is_some()),
            ("--endpoint-url", endpoint_url.is_some()),
            ("--region", region.is_some()),
            ("--no-sign-request", *is_anonymous),
        ];
        let flag = given.into_iter().find(|(_, is_given)| *is_given);
        let (Some((flag, _)), Some(first)) = (flag, schemes.first()) else { return Ok(()) };
        if schemes.contains(&S3) {
            return Ok(());
        }
        let why = format!("{flag} applies only to s3://, but the location is in {first}://; remove the flag");
        Err(UnknownStore(why))
    }
}

/// The store whose name is nearest to `written`. A name of two letters is similar to any other, so that for short names
/// only the case may differ.
fn nearest_store<'a>(written: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let same = known.clone().find(|name| name.eq_ignore_ascii_case(written));
    same.or_else(|| nearest_name(written, known.filter(|name| name.len().min(written.len()) > 3)))
}

fn text(set: &Option<Sourced<String>>) -> Option<String> {
    set.as_ref().map(|set| set.value.clone())
}

/// The options of a local store that a command opens itself. Buffered bytes count towards the writer's window, and the
/// writer waits for that, so no further buffer is needed.
fn command_local_options(set: &LocalOptions) -> local::LocalOptions {
    local::LocalOptions { max_buffered_bytes: 0, ..local_options(set) }
}

/// The options of a local store.
#[must_use]
pub fn local_options(set: &LocalOptions) -> local::LocalOptions {
    let defaults = local::LocalOptions::default();
    let bytes = |size: ByteSize| size.0;
    let narrow = |size: ByteSize| u32::try_from(size.0).unwrap_or(u32::MAX);
    local::LocalOptions {
        segment_bytes: set.segment_size.as_ref().map_or(defaults.segment_bytes, |s| narrow(s.value)),
        inline_bytes: set.inline_size.as_ref().map_or(defaults.inline_bytes, |s| s.value.as_usize()),
        checkpoint_bytes: set.checkpoint_size.as_ref().map_or(defaults.checkpoint_bytes, |s| bytes(s.value)),
        reserve_bytes: set.min_free_space.as_ref().map_or(defaults.reserve_bytes, |s| bytes(s.value)),
        io_threads: set.io_threads.as_ref().map_or(defaults.io_threads, |s| s.value.get()),
        hash_threads: set.hash_threads.as_ref().map_or(defaults.hash_threads, |s| s.value.get()),
        compact_below_fraction: set
            .compact_below
            .as_ref()
            .map_or(defaults.compact_below_fraction, |s| f64::from(s.value.0) / 100.0),
        compact_bytes_per_second: set
            .compact_rate
            .as_ref()
            .map_or(defaults.compact_bytes_per_second, |s| bytes(s.value)),
        compact_interval: set.compact_interval.as_ref().map_or(defaults.compact_interval, |s| s.value.0),
        ..defaults
    }
}

/// The options of an S3 service. Flags override the settings, which override environment and `~/.aws`.
pub fn s3_options(set: &S3Settings, flags: S3Flags) -> anyhow::Result<tradewind_backend::s3::S3Options> {
    let given = flags.clone();
    let overrides = S3Flags {
        profile: flags.profile.or_else(|| text(&set.profile)),
        endpoint_url: flags.endpoint_url.or_else(|| text(&set.endpoint)),
        region: flags.region.or_else(|| text(&set.region)),
        is_anonymous: flags.is_anonymous,
    };
    let mut options = s3_access::resolve(&overrides, proxy_rules(set.proxy.as_ref()))
        .map_err(|error| name_origin(error, set, &given))?;
    if let Some(connections) = &set.max_connections {
        options.max_connections = connections.value.get();
    }
    if let Some(size) = &set.part_size {
        options.part_bytes = size.value.as_usize();
    }
    options.mapped_classes = MappedClasses {
        storage_classes: set.storage_classes.as_ref().map(|set| set.value.clone()).unwrap_or_default(),
        tag: text(&set.class_tag),
    };
    Ok(options)
}

/// The proxies of a store: that of its settings, otherwise those of the environment.
fn proxy_rules(set: Option<&Sourced<StoreProxy>>) -> ProxyRules {
    set.map_or_else(proxies::from_environment, |set| set.value.rules())
}

/// Names the flag or the setting that a problem is about. Both are resolved as if they were variables.
fn name_origin(error: anyhow::Error, set: &S3Settings, flags: &S3Flags) -> anyhow::Error {
    let mut problem = match error.downcast::<aws::Problem>() {
        Ok(problem) => problem,
        Err(error) => return error,
    };
    let (flag, is_given, setting) = match problem.origin {
        Origin::Variable("AWS_REGION") => ("--region", flags.region.is_some(), &set.region),
        Origin::Variable("AWS_ENDPOINT_URL_S3") => {
            ("--endpoint-url", flags.endpoint_url.is_some(), &set.endpoint)
        }
        Origin::Flag("--profile") => ("--profile", flags.profile.is_some(), &set.profile),
        _ => return problem.into(),
    };
    if is_given {
        problem.origin = Origin::Flag(flag);
    } else if let Some(setting) = setting {
        problem.origin = Origin::Setting(setting.source.to_string());
    }
    problem.into()
}

/// The options of a Swift service. The settings override the environment.
pub fn swift_options(set: &SwiftSettings) -> anyhow::Result<SwiftOptions> {
    let mut inputs = openstack::Inputs::gather();
    if let Some(Sourced { value: path, source }) = &set.openrc {
        let read = std::fs::read_to_string(path);
        let text = read.with_context(|| format!("{source}: cannot read {}", path.display()))?;
        inputs = inputs.overridden_by(Openrc::parse(&text));
    }
    for (variable, value) in [("OS_REGION_NAME", &set.region), ("OS_STORAGE_URL", &set.storage_url)] {
        if let Some(set) = value {
            inputs.variables.insert(variable.to_owned(), set.value.clone());
        }
    }
    let SwiftAccess { auth, account_url, ca_bundle } = match (SwiftAccess::resolve(&inputs), &set.openrc) {
        (Ok(access), _) => access,
        (Err(why), None) => bail!(why),
        (Err(why), Some(openrc)) => bail!("{}: {why}", openrc.value.display()),
    };
    let is_https = |url: &str| url.starts_with("https:");
    let url = match &auth {
        Auth::V1 { url, .. } | Auth::Keystone { url, .. } => url,
    };
    let needs_tls = is_https(url) || account_url.as_deref().is_some_and(is_https);
    let tls = match swift_tls(ca_bundle) {
        Ok(tls) => Some(tls),
        Err(problem) if needs_tls => return Err(problem.into()),
        // If the account's URL turns out to be https, opening the session fails.
        Err(_) => None,
    };
    let retries = RetryOptions::for_commands();
    let proxies = proxy_rules(set.proxy.as_ref());
    let mut options = SwiftOptions { account_url, tls, proxies, retries, ..SwiftOptions::new(auth) };
    if let Some(connections) = &set.max_connections {
        options.max_connections = connections.value.get();
    }
    if let Some(size) = &set.segment_size {
        options.segment_bytes = size.value.0;
    }
    Ok(options)
}

fn swift_tls(bundle: Option<PathBuf>) -> Result<Arc<rustls::ClientConfig>, aws::Problem> {
    const VARIABLE: Origin = Origin::Variable("OS_CACERT");
    let inputs = aws::Inputs::gather(None)?;
    let bundle = bundle.map(|value| Traced { value, origin: VARIABLE });
    let read = |path: &Path| std::fs::read(path);
    aws::client_tls(bundle.as_ref(), &inputs, &read).map_err(|problem| match problem.origin {
        Origin::Variable("AWS_CA_BUNDLE") => aws::Problem { origin: VARIABLE, ..problem },
        _ => problem,
    })
}
