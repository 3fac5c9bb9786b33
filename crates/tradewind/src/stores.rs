//! The stores that commands without a server speak with, by what stands before `://` in a place: `s3` and `swift` as
//! the users of those have them set up, and each `[store.NAME]` of a settings file by its name.
//!
//! A name always means the store of the settings where there is one: `[store.s3]` says what `s3://` is, as long as it
//! is of that type. Flags about S3 are about `s3://` alone.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tradewind_backend::local::{self, LocalStore};
use tradewind_backend::s3::S3Store;
use tradewind_backend::swift::{Auth, SwiftOptions, SwiftStore};
use tradewind_core::{Clock, ObjectStore, Traffic};
use tradewind_model::retry::RetryOptions;

use crate::aws::{self, Origin, Traced};
use crate::openstack::{self, Access, Openrc};
use crate::remote::{self, Overrides};
use crate::settings::{
    ByteSize, Inputs, LocalOptions, Problems, S3Settings, Settings, Sourced, Store, StoreKind, SwiftSettings,
};

/// The names that there is always a store for.
pub const S3: &str = "s3";
/// See [`S3`].
pub const SWIFT: &str = "swift";

/// What to do where the directory of a local store is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// It is refused: a place that is mistyped is no empty store.
    Refuse,
    /// It is made.
    Make,
}

/// A place that no store goes with.
#[derive(Debug)]
pub struct Unknown(String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

/// All stores that places can name.
#[derive(Debug)]
pub struct Stores {
    named: Vec<Store>,
    overrides: Overrides,
    clock: Arc<dyn Clock>,
    lines: Lines,
}

/// What goes between here and each store.
#[derive(Debug, Clone)]
pub struct Lines {
    /// The most connections, unless settings say otherwise.
    pub connections: usize,
    /// What one of them reads at once at the most, in bytes.
    pub most_read_bytes: usize,
    /// Somebody measures.
    pub measuring: Option<Measuring>,
}

/// A store that is measured has as many connections as are asked for, whatever settings say, and sends each request once.
#[derive(Debug, Clone)]
pub struct Measuring {
    /// Each request has a connection of its own.
    pub is_fresh: bool,
    /// What is carried is counted here.
    pub traffic: Arc<Traffic>,
}

/// A store that is open.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// How patient whoever works with it is to be, where that was found out.
    pub retries: Option<RetryOptions>,
    /// The directory of a local store.
    pub directory: Option<PathBuf>,
}

impl Stores {
    /// Those of the settings file that `config` or `TRADEWIND_CONFIG` names, if any does, and those that are always there.
    pub fn find(
        config: Option<PathBuf>,
        overrides: Overrides,
        clock: Arc<dyn Clock>,
        lines: Lines,
    ) -> Result<Self, Problems> {
        let inputs = Inputs::gather(config, Vec::new())?;
        // Without a file there is nothing that commands would read.
        let named = match &inputs.file {
            Some(_) => Settings::read(&inputs)?.named.stores,
            None => Vec::new(),
        };
        Ok(Self { named, overrides, clock, lines })
    }

    /// The same stores over other lines.
    #[must_use]
    pub fn over(self, lines: Lines) -> Self {
        Self { lines, ..self }
    }

    /// What a service calls itself, without asking it; `None` where `scheme` names none, or one that cannot be opened.
    #[must_use]
    pub fn service(&self, scheme: &str) -> Option<String> {
        let is_local = |store: &Store| matches!(store.kind, StoreKind::Local { .. });
        if self.named.iter().any(|store| store.name.value == scheme && is_local(store)) {
            return None;
        }
        Some(format!("{:?}", self.open(scheme, Absent::Refuse).ok()?.store))
    }

    /// Opens what `scheme` names. May block: the log of a local store is replayed.
    pub fn open(&self, scheme: &str, absent: Absent) -> anyhow::Result<Opened> {
        let store = self.named.iter().find(|store| store.name.value == scheme);
        let kind = match store {
            Some(store) => &store.kind,
            None if scheme == S3 => &StoreKind::S3(S3Settings::default()),
            None if scheme == SWIFT => &StoreKind::Swift(SwiftSettings::default()),
            None => return Err(self.unknown(scheme).into()),
        };
        if let Some(store) = store
            && [S3, SWIFT].contains(&scheme)
            && store.type_name() != scheme
        {
            bail!(
                "{}: {scheme}:// would be the store {scheme:?} here, which is of type {:?}; give it another name",
                store.name.source,
                store.type_name()
            );
        }
        match kind {
            StoreKind::Local { path, options } => {
                let directory = &path.value;
                if absent == Absent::Refuse && !directory.is_dir() {
                    let shown = directory.display();
                    bail!("there is no store in {shown}; make one with tradewind mb {scheme}://BUCKET");
                }
                let options = local_options_of_commands(options);
                let store = LocalStore::open(directory, options, self.clock.clone());
                let store =
                    store.with_context(|| format!("cannot open the store in {}", directory.display()))?;
                Ok(Opened { store, retries: None, directory: Some(directory.clone()) })
            }
            StoreKind::S3(set) => {
                let flags = if scheme == S3 { self.overrides.clone() } else { Overrides::default() };
                let mut options = s3_options(set, flags)?;
                if set.connections.is_none() || self.lines.measuring.is_some() {
                    options.connections = self.lines.connections;
                }
                options.read_bytes = options.read_bytes.min(self.lines.most_read_bytes);
                if let Some(Measuring { is_fresh, traffic }) = &self.lines.measuring {
                    options.retries.attempts = 1;
                    (options.is_fresh, options.traffic) = (*is_fresh, Some(traffic.clone()));
                    // Where parts are gathered first, that so many are written at a time is no failure of the store.
                    let all = options.connections.saturating_mul(options.part_bytes);
                    options.gathered_bytes = options.gathered_bytes.max(all);
                }
                let retries = Some(options.retries);
                Ok(Opened { store: S3Store::new(options, self.clock.clone())?, retries, directory: None })
            }
            StoreKind::Swift(set) => {
                let mut options = swift_options(set).with_context(|| format!("{scheme}://"))?;
                if set.connections.is_none() || self.lines.measuring.is_some() {
                    options.connections = self.lines.connections;
                }
                options.read_bytes = options.read_bytes.min(self.lines.most_read_bytes);
                if let Some(Measuring { is_fresh, traffic }) = &self.lines.measuring {
                    options.retries.attempts = 1;
                    (options.is_fresh, options.traffic) = (*is_fresh, Some(traffic.clone()));
                    // What is removed may still be read, but only by what is measured beside it.
                    options.grace = Duration::from_secs(60);
                }
                let store = SwiftStore::new(options, self.clock.clone())?;
                Ok(Opened { store, retries: None, directory: None })
            }
        }
    }

    fn unknown(&self, scheme: &str) -> Unknown {
        let mut names = vec![format!("{S3}://"), format!("{SWIFT}://")];
        let own = self.named.iter().map(|store| &store.name.value);
        names.extend(
            own.filter(|name| ![S3, SWIFT].contains(&name.as_str())).map(|name| format!("{name}://")),
        );
        let last = names.pop().unwrap_or_default();
        let names = names.join(", ");
        Unknown(format!(
            "there is no store {scheme:?}; places begin with {names} or {last}, or are paths, and a [store.{scheme}] in \
             the settings file (--config) would be one"
        ))
    }

    /// Refuses names without a store, and flags that none of these is concerned by.
    pub fn check(&self, schemes: &[&str]) -> Result<(), Unknown> {
        let is_known = |scheme: &str| {
            [S3, SWIFT].contains(&scheme) || self.named.iter().any(|store| store.name.value == scheme)
        };
        if let Some(unknown) = schemes.iter().find(|scheme| !is_known(scheme)) {
            return Err(self.unknown(unknown));
        }
        let Overrides { profile, endpoint_url, region, is_anonymous } = &self.overrides;
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
        let why = format!("{flag} is about s3://, and nothing here is there; {first}:// is set up elsewhere");
        Err(Unknown(why))
    }
}

fn text(set: &Option<Sourced<String>>) -> Option<String> {
    set.as_ref().map(|set| set.value.clone())
}

/// The options of a local store that a command works with itself. What it gathers counts towards the window of its
/// writer, who waits for room in it: more than that is never gathered.
fn local_options_of_commands(set: &LocalOptions) -> local::LocalOptions {
    local::LocalOptions { gather_bytes: 0, ..local_options(set) }
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
        reserve_bytes: set.reserve.as_ref().map_or(defaults.reserve_bytes, |s| bytes(s.value)),
        io_threads: set.io_threads.as_ref().map_or(defaults.io_threads, |s| s.value.get()),
        hash_threads: set.hash_threads.as_ref().map_or(defaults.hash_threads, |s| s.value.get()),
        compact_below: set
            .compact_below
            .as_ref()
            .map_or(defaults.compact_below, |s| f64::from(s.value.0) / 100.0),
        compact_bytes_per_second: set
            .compact_rate
            .as_ref()
            .map_or(defaults.compact_bytes_per_second, |s| bytes(s.value)),
        compact_interval: set.compact_interval.as_ref().map_or(defaults.compact_interval, |s| s.value.0),
        ..defaults
    }
}

/// What is to be known of an S3 service: flags cover the settings, which cover what S3 users have.
pub fn s3_options(set: &S3Settings, flags: Overrides) -> anyhow::Result<tradewind_backend::s3::S3Options> {
    let overrides = Overrides {
        profile: flags.profile.or_else(|| text(&set.profile)),
        endpoint_url: flags.endpoint_url.or_else(|| text(&set.endpoint)),
        region: flags.region.or_else(|| text(&set.region)),
        is_anonymous: flags.is_anonymous,
    };
    let mut options = remote::options(&overrides)?;
    if let Some(connections) = &set.connections {
        options.connections = connections.value.get();
    }
    if let Some(size) = &set.part_size {
        options.part_bytes = size.value.as_usize();
    }
    Ok(options)
}

/// What is to be known of a Swift service: settings cover what Swift's users have.
pub fn swift_options(set: &SwiftSettings) -> anyhow::Result<SwiftOptions> {
    let mut inputs = openstack::Inputs::gather();
    if let Some(Sourced { value: path, source }) = &set.openrc {
        let read = std::fs::read_to_string(path);
        let text = read.with_context(|| format!("{source}: cannot read {}", path.display()))?;
        inputs = inputs.covered_by(Openrc::parse(&text));
    }
    for (variable, value) in [("OS_REGION_NAME", &set.region), ("OS_STORAGE_URL", &set.storage_url)] {
        if let Some(set) = value {
            inputs.variables.insert(variable.to_owned(), set.value.clone());
        }
    }
    let Access { auth, account_url, ca_bundle } = match (Access::find(&inputs), &set.openrc) {
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
        // It is missed where the account turns out to need it.
        Err(_) => None,
    };
    let mut options = SwiftOptions { account_url, tls, ..SwiftOptions::new(auth) };
    if let Some(connections) = &set.connections {
        options.connections = connections.value.get();
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
