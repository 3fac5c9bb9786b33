//! Builds the components of `tradewind serve` from the settings: the served stores, the gateway's configuration and the
//! access keys. Only this module maps the names of settings to those of the components.

mod deduplicate;
mod opened;
mod slices;
mod stores;
mod transform_keys;
mod volume_layers;
mod write_back;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tradewind_backend::local::{self, LocalStore};
use tradewind_backend::s3::{S3Options, S3Store};
use tradewind_backend::swift::{SwiftOptions, SwiftStore};
use tradewind_core::store::ETagForm;
use tradewind_core::traffic::Traffic;
use tradewind_core::{Clock, ObjectStore};
use tradewind_gateway::addressing::Domain;
use tradewind_gateway::auth;
use tradewind_gateway::config::{self, GatewayConfig, TlsIdentity};
use tradewind_gateway::keys;
use tradewind_gateway::s3;
use tradewind_layers::scheduled::Priorities;
use tradewind_layers::{Responsive, Scheduled};
use tradewind_model::lanes::LanesOptions;
use tradewind_model::retry::RetryOptions;

use crate::s3_access::S3Flags;
use crate::served_plan::ServedPlan;
use crate::settings::{ETag, Permissions, Settings, Store, StoreKind, TimeSpan};
use crate::stores as store_options;

pub use self::opened::{OpenedStore, open_stores};
pub use self::stores::{ServedStores, StackedStore};
pub use self::volume_layers::{ServedDeduplicated, ServedRouted, ServedTransformed};

/// The served store.
#[derive(Debug, Clone)]
pub enum ServedStore {
    /// A local store.
    Local(Arc<LocalStore>),
    /// A remote service, and the plan for reading from it.
    Remote(Arc<dyn ObjectStore>, Arc<ServedPlan>),
}

impl ServedStore {
    /// The store as an implementation of the port.
    #[must_use]
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        match self {
            Self::Local(store) => store.clone(),
            Self::Remote(store, _) => store.clone(),
        }
    }

    /// The plan for reading; `None` for a local store.
    #[must_use]
    pub fn plan(&self) -> Option<Arc<ServedPlan>> {
        match self {
            Self::Local(_) => None,
            Self::Remote(_, plan) => Some(plan.clone()),
        }
    }
}

/// Options of opening a store.
#[derive(Debug, Clone, Copy)]
struct OpenOptions {
    /// Open a local store although it has provably lost acknowledged changes.
    accept_loss: bool,
    /// The memory of requests to the store.
    memory_bytes: usize,
}

/// The part of the memory of requests to a local store in which uploads wait for the end of an extent.
const GATHERED_DIVISOR: usize = 4;

/// Opens a store; `None` is the local store in `data`. Replays the log of a local store that was not closed.
fn open_store(
    settings: &Settings,
    store: Option<&Store>,
    open: OpenOptions,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<ServedStore> {
    let (directory, options) = match store.map(|store| &store.kind) {
        Some(StoreKind::S3(set)) => {
            let mut options = store_options::s3_options(set, S3Flags::default())?;
            options.retries = options.retries.for_server();
            let traffic = options.traffic.insert(Arc::default()).clone();
            let (connections, retries) = (options.max_connections, options.retries);
            let connect = |connections| {
                S3Store::new(S3Options { max_connections: connections, ..options.clone() }, clock.clone())
            };
            let remote = RemoteOptions {
                connections,
                is_configured: set.max_connections.is_some(),
                retries,
                memory_bytes: open.memory_bytes,
            };
            return open_remote(connect, remote, traffic, clock);
        }
        Some(StoreKind::Swift(set)) => {
            let mut options = store_options::swift_options(set)?;
            options.retries = options.retries.for_server();
            let traffic = options.traffic.insert(Arc::default()).clone();
            let (connections, retries) = (options.max_connections, options.retries);
            let connect = |connections| {
                SwiftStore::new(
                    SwiftOptions { max_connections: connections, ..options.clone() },
                    clock.clone(),
                )
            };
            let remote = RemoteOptions {
                connections,
                is_configured: set.max_connections.is_some(),
                retries,
                memory_bytes: open.memory_bytes,
            };
            let served = open_remote(connect, remote, traffic, clock)?;
            let ServedStore::Remote(store, plan) = served else { return Ok(served) };
            // Large objects have ETags of another form, so an ETag that is an MD5 is always the MD5 of the bytes.
            return Ok(ServedStore::Remote(store, Arc::new(ServedPlan::clone(&plan).with_md5_etags())));
        }
        Some(StoreKind::Local { path, options }) => {
            (path.value.as_path(), store_options::local_options(options))
        }
        None => (settings.data_directory(), local::LocalOptions::default()),
    };
    let options = local::LocalOptions {
        accept_loss: open.accept_loss,
        max_buffered_bytes: options.max_buffered_bytes.max(open.memory_bytes / GATHERED_DIVISOR),
        ..options
    };
    let store = LocalStore::open(directory, options, clock.clone());
    store.map(ServedStore::Local).with_context(|| format!("cannot open the store in {}", directory.display()))
}

/// Options of opening a remote service.
#[derive(Debug, Clone, Copy)]
struct RemoteOptions {
    /// The maximum number of connections.
    connections: usize,
    /// True if the settings have that number; otherwise the plan's concurrency determines it.
    is_configured: bool,
    retries: RetryOptions,
    memory_bytes: usize,
}

/// Opens a remote service with the plan from its profile. `traffic` counts its connections.
fn open_remote<S: ObjectStore>(
    connect: impl Fn(usize) -> tradewind_core::Result<Arc<S>>,
    options: RemoteOptions,
    traffic: Arc<Traffic>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<ServedStore> {
    let mut store = connect(options.connections)?;
    // The profile is found by the store's debug name, which needs no request.
    let mut plan = ServedPlan::for_store(&format!("{store:?}"), options.memory_bytes, options.retries);
    plan.max_connections = options.connections;
    if !options.is_configured {
        // A single client may use at most 7/8 of the connections (`core/budget`), which must suffice for the plan.
        plan.max_connections =
            plan.plan.initial_concurrency.max(options.connections).div_ceil(7).saturating_mul(8);
        store = connect(plan.max_connections)?;
    }
    Ok(ServedStore::Remote(Responsive::new(store, traffic, clock.clone()), Arc::new(plan)))
}

/// Adds the lanes layer to the store, if the settings enable it.
pub fn with_lanes(
    settings: &Settings,
    store: Arc<dyn ObjectStore>,
    clock: Arc<dyn Clock>,
) -> Arc<dyn ObjectStore> {
    let set = &settings.scalars.lanes;
    if !set.enabled.value {
        return store;
    }
    let options = LanesOptions { max_queue_depth: set.max_queue_depth.value.get() };
    let clients = set.priority_access_keys.value.0.iter().cloned().collect();
    Scheduled::new(store, options, Priorities::new(set.priority_prefixes.value.0.clone(), clients), clock)
}

/// The gateway's configuration. Reads the TLS files.
pub fn gateway_config(settings: &Settings) -> anyhow::Result<GatewayConfig> {
    let (server, limits) = (&settings.scalars.server, &settings.scalars.limits);
    let tls = match (&server.tls_cert.value, &server.tls_key.value) {
        (Some(certificates), Some(key)) => Some(TlsIdentity {
            certificates_pem: read_file(certificates, "the TLS certificates")?,
            key_pem: read_file(key, "the TLS key")?,
        }),
        _ => None,
    };
    let time = |span: &crate::settings::Sourced<TimeSpan>| span.value.0;
    let defaults = s3::Options::default();
    Ok(GatewayConfig {
        region: server.region.value.clone(),
        domain: server.domain.value.as_ref().map(|name| Domain::new(&name.0)),
        presigned_sigv2: server.presigned_sigv2.value,
        operations: s3::Options {
            region: server.region.value.clone().unwrap_or_else(|| defaults.region.clone()),
            account_id: server.account_id.value.0.clone(),
            etag: match settings.scalars.top.etag.value {
                ETag::Md5 => ETagForm::Md5,
                ETag::Unique => ETagForm::Unique,
            },
            ..defaults
        },
        tls,
        memory_bytes: settings.scalars.memory.budget.value.as_usize(),
        min_window_bytes: 0,
        early_head_time: GatewayConfig::default().early_head_time,
        limits: config::Limits {
            connections: server.max_connections.value.get(),
            descriptors: None,
            header_bytes: limits.header_size.value.as_usize(),
            headers: limits.headers.value.get(),
            body_bytes: limits.body_size.value.0,
            header_time: time(&limits.header_time),
            idle_time: time(&limits.idle_time),
            slow_client_time: time(&limits.slow_client_time),
            slow_client_bytes: limits.slow_client_size.value.0,
            admission_time: time(&limits.admission_time),
            request_time: time(&limits.request_time),
            transfer_time: time(&limits.transfer_time),
            grace_time: time(&server.shutdown_grace),
        },
    })
}

fn read_file(path: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {what} in {}", path.display()))
}

/// The access keys: the root key and those of the settings, and the public buckets.
#[must_use]
pub fn access_keys(settings: &Settings, root_id: &str, root_secret: &str) -> keys::Keys {
    let root = keys::AccessKey {
        id: root_id.to_owned(),
        secret: root_secret.to_owned(),
        permissions: auth::Permissions::ReadWrite,
        buckets: auth::Buckets::All,
    };
    let others = settings.named.access_keys.iter().map(|key| keys::AccessKey {
        id: key.id.value.clone(),
        secret: key.secret.value.reveal().to_owned(),
        permissions: match key.permissions.value {
            Permissions::Read => auth::Permissions::ReadOnly,
            Permissions::ReadWrite => auth::Permissions::ReadWrite,
        },
        buckets: match &key.buckets.value {
            None => auth::Buckets::All,
            Some(names) => auth::Buckets::Names(names.iter().map(|name| name.as_str().to_owned()).collect()),
        },
    });
    let is_public =
        |bucket: &&crate::settings::Bucket| bucket.anonymous_read.as_ref().is_some_and(|set| set.value);
    let public_buckets =
        settings.named.buckets.iter().filter(is_public).map(|bucket| bucket.name.value.to_string());
    keys::Keys::new(std::iter::once(root).chain(others), public_buckets)
}
