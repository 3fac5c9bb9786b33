//! `tradewind serve`: opens the store, serves S3 and the admin listener on it, and ends in order: the
//! first signal lets requests in flight finish, the second ends the process at once.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_core::{Clock, ObjectStore, SystemClock};
use tradewind_gateway::Gateway;
use tradewind_gateway::admin::{self, Admin};
use tradewind_layers::Instrumented;

use super::limits::{OpenFiles, raise_file_limit};
use super::signals::Signals;
use super::{CommandOutcome, SettingsFlags};
use crate::assemble::ServedStore;
use crate::banner::Banner;
use crate::expiry::UploadExpiry;
use crate::profiles::Profiles;
use crate::profiles::profile_updater::ProfileUpdater;
use crate::root_key::{self, RootCredentials};
use crate::settings::{RootKey, Settings};
use crate::store_metrics::{LocalCollector, PlanCollector, StoreCollector};
use crate::{assemble, logs};

/// Serve S3
///
/// Without any settings, serves one store in the directory ./data on 127.0.0.1:9000. A root key
/// is created at the first start, saved in DIR/root-key and printed once; TRADEWIND_ACCESS_KEY and
/// TRADEWIND_SECRET_KEY set another one. On SIGTERM, SIGINT or SIGHUP, requests in flight are finished; a
/// second SIGTERM or SIGINT ends the process at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind serve --data ./data\n  \
    tradewind serve --data /srv/tradewind --listen 0.0.0.0:9000 --tls-cert chain.pem --tls-key key.pem\n  \
    tradewind serve --config tradewind.toml")]
pub(super) struct Arguments {
    #[command(flatten)]
    settings: SettingsFlags,
    /// Start although the store has provably lost acknowledged changes, and continue without them
    ///
    /// For one start, after `tradewind store check`: the loss is logged, and the index is rebuilt from the remaining
    /// log. Without this flag, such a store is neither opened nor changed.
    #[arg(long)]
    accept_loss: bool,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let settings = arguments.settings.read()?;
    settings.check_served()?;
    logs::init(&settings.scalars.log)?;
    raise_file_limit();
    let clock = SystemClock::shared();
    // Before the runtime starts, because replaying the log blocks.
    let store = open(&settings, arguments.accept_loss, clock.clone())?;
    let root = root(&settings)?;
    runtime(&settings)?.block_on(serve(settings, store, root, clock))?;
    Ok(CommandOutcome::Done)
}

fn open(settings: &Settings, accept_loss: bool, clock: Arc<dyn Clock>) -> anyhow::Result<ServedStore> {
    let started = clock.now();
    let served = assemble::open_store(settings, accept_loss, clock.clone())?;
    let store = match &served {
        ServedStore::Local(store) => store,
        ServedStore::Remote(store, plan) => {
            info!(?store, %plan, "serving the objects of a remote service");
            return Ok(served);
        }
    };
    let recovery = store.recovery();
    let elapsed = clock.now().saturating_sub(started);
    info!(
        directory = %settings.store_directory().unwrap_or(settings.data_directory()).display(),
        took_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        replayed = recovery.replayed_records,
        reindexed = recovery.reindexed,
        voided = recovery.voided_records,
        "store open"
    );
    if recovery.damaged_bytes > 0 {
        warn!(
            bytes = recovery.damaged_bytes,
            "the log has damaged bytes; stop the server and run `tradewind store check` to see what is affected"
        );
    }
    Ok(served)
}

/// The root key of the settings, else the one saved in the data directory, which is created if there is none.
fn root(settings: &Settings) -> anyhow::Result<RootCredentials> {
    if let Some(RootKey { id, secret }) = &settings.root_key {
        return Ok(RootCredentials { id: id.value.clone(), secret: secret.value.clone(), is_new: false });
    }
    let directory = settings.data_directory();
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let root = root_key::load_or_create(directory)?;
    if settings.named.access_keys.iter().any(|key| key.id.value == root.id) {
        bail!(
            "the settings define an access key {:?}, which is also the root key's id; use another id",
            root.id
        );
    }
    Ok(root)
}

fn runtime(settings: &Settings) -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().thread_name("tradewind");
    if let Some(workers) = settings.scalars.server.workers.value {
        builder.worker_threads(workers.get());
    }
    builder.build().context("cannot start the worker threads")
}

async fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another address with {flag}"))?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

async fn serve(
    settings: Settings,
    served: ServedStore,
    root: RootCredentials,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let server = &settings.scalars.server;
    let mut signals = Signals::new()?;
    let (s3, endpoint) = listen(server.listen.value, "--listen").await?;
    let (admin, admin_address) = listen(server.admin.value, "--admin").await?;
    let lanes_or_leaf = assemble::with_lanes(&settings, served.store(), clock.clone());
    let instrumented = Instrumented::new(lanes_or_leaf, clock.clone());
    let mut store: Arc<dyn ObjectStore> = instrumented.clone();
    let name =
        settings.served_store().map_or(store.capabilities().kind, |store| &store.name.value).to_owned();
    let mut metrics = Registry::default();
    metrics.register_collector(Box::new(StoreCollector { name: name.clone(), store: instrumented.clone() }));
    let (plan, mut profile_updater) = (served.plan(), None);
    let stop = CancellationToken::new();
    if let Some(plan) = &plan {
        profile_updater = Profiles::find()
            .map(|profiles| ProfileUpdater { store: instrumented.clone(), profiles })
            .map(|updater| tokio::spawn(updater.run(stop.clone())));
        let read_ahead = plan.wrap(instrumented.clone(), clock.clone());
        let collector = PlanCollector { name, layer: read_ahead.clone(), plan: plan.clone() };
        metrics.register_collector(Box::new(collector));
        store = read_ahead;
    }
    let keys = assemble::access_keys(&settings, &root.id, root.secret.reveal());
    let mut config = assemble::gateway_config(&settings)?;
    if let Some(plan) = &plan {
        // Each request reserves at least this much memory, so no more requests are admitted than connections to the
        // service may be open.
        config.min_window_bytes = config.memory_bytes / plan.max_connections.max(1);
    }
    let files = OpenFiles::now(plan.as_ref().map_or(0, |plan| plan.max_connections))?;
    files.limit_connections(&mut config.limits)?;
    let gateway = Gateway::new(config, store.clone(), keys, clock.clone())?;

    // The admin listener outlives S3, so that a shutdown can be monitored.
    let stop_admin = CancellationToken::new();
    let mut serving = tokio::spawn({
        let (gateway, stop) = (gateway.clone(), stop.clone());
        async move { gateway.serve(s3, stop).await }
    });
    let health = admin_service(&gateway, served, metrics, &stop);
    let admin_task = tokio::spawn(admin::serve(admin, health, files.admin_connections(), stop_admin.clone()));
    let expire_after = settings.scalars.uploads.expire_after.value.0;
    let upload_expiry = (!expire_after.is_zero()).then(|| {
        let expiry = UploadExpiry {
            store: store.clone(),
            budget: gateway.budget().clone(),
            clock,
            max_age: expire_after,
        };
        tokio::spawn(expiry.run(stop.clone()))
    });

    Banner { settings: &settings, root: &root, endpoint, admin: admin_address, plan: plan.as_deref() }
        .print()?;
    info!(%endpoint, admin = %admin_address, "serving");
    let outcome = tokio::select! {
        caught = signals.next() => {
            info!(signal = caught.name(), "finishing requests in flight; a second signal ends at once");
            stop.cancel();
            tokio::select! {
                ended = &mut serving => ended,
                caught = signals.next_except_hangup() => {
                    warn!(signal = caught.name(), "ending at once");
                    // Acknowledged writes are durable; all other work may be aborted.
                    std::process::exit(1);
                }
            }
        }
        ended = &mut serving => ended,
    };
    stop.cancel();
    if let Some(upload_expiry) = upload_expiry {
        upload_expiry.await.context("the task that expires uploads failed")?;
    }
    if let Some(profile_updater) = profile_updater {
        profile_updater.await.context("the task that updates the store's profile failed")?;
    }
    store.close().await.context("cannot close the store")?;
    stop_admin.cancel();
    admin_task.await.context("the admin listener failed")?;
    outcome.context("the S3 listener failed")?;
    info!("stopped");
    io::stdout().flush()?;
    Ok(())
}

/// The service of the admin listener. It is ready while the store accepts writes and no shutdown was requested.
fn admin_service(
    gateway: &Gateway,
    served: ServedStore,
    mut metrics: Registry,
    stop: &CancellationToken,
) -> Admin {
    let ready = {
        let (served, stop) = (served.clone(), stop.clone());
        move || {
            if stop.is_cancelled() {
                return Err("shutting down".to_owned());
            }
            if let ServedStore::Local(store) = &served
                && store.is_read_only()
            {
                return Err("a write, sync or index update failed (see the log); \
                            the store is read-only until the server is restarted"
                    .to_owned());
            }
            Ok(())
        }
    };
    metrics.register_collector(Box::new(gateway.metrics().clone()));
    if let ServedStore::Local(store) = served {
        metrics.register_collector(Box::new(LocalCollector(store)));
    }
    Admin { ready: Arc::new(ready), metrics: Arc::new(metrics) }
}
