//! `tradewind serve`: opens the stores, serves S3 and the admin listener on it, and ends in order: the
//! first signal lets requests in flight finish, the second ends the process at once. With a settings file, SIGHUP reads
//! the rules in it again.

mod admin_calls;
mod cache_status;
mod changeable_settings;
mod class_calls;
mod layer_status;
mod prefix_work;
mod rewrap_work;
mod served_rules;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use tradewind_core::quantity::TimeSpan;
use tradewind_core::{Clock, SystemClock};
use tradewind_gateway::Gateway;
use tradewind_gateway::admin::api::GuardedApi;
use tradewind_gateway::admin::{self, Admin};

use super::command_runtime::start_runtime;
use super::limits::{OpenFiles, raise_file_limit};
use super::signals::Signals;
use super::{CommandOutcome, SettingsFlags};
use crate::assemble::{OpenedStore, ServedStore, ServedStores, StackedStore};
use crate::banner::Banner;
use crate::bucket_report::report_buckets;
use crate::chunk_collector::ChunkCollector;
use crate::chunk_preparation::ChunkPreparation;
use crate::expiry::UploadExpiry;
use crate::profiles::Profiles;
use crate::profiles::profile_updater::ProfileUpdater;
use crate::root_key::{self, RootCredentials};
use crate::settings::{RootKey, SettingSource, Settings, Sourced};
use crate::tier_mover::TierMover;
use crate::{assemble, logs, memory_limit};
use admin_calls::AdminCalls;
use changeable_settings::ChangeableSettings;
use served_rules::ServedRules;

/// The time after `server.shutdown_grace` in which dirty data is written back, for up to 20 s, and the stores are closed.
/// Then the process ends: what hangs, such as a service or an absent disk, does not delay it.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(90);

/// Serve S3
///
/// Without any settings, serves one store in the directory ./data on 127.0.0.1:9000. Settings can define
/// several stores and volumes (tradewind volume list). A root key
/// is created at the first start, saved in DIR/root-key and printed once; TRADEWIND_ACCESS_KEY and
/// TRADEWIND_SECRET_KEY set another one. On SIGTERM or SIGINT, requests in flight are finished; a
/// second SIGTERM or SIGINT ends the process at once. SIGHUP and tradewind class reload read the policies and rules of
/// classes in the settings file again; without a settings file, SIGHUP acts like SIGTERM.
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
    let flags = arguments.settings.clone();
    let settings = arguments.settings.read()?;
    settings.served_volumes()?;
    logs::init(&settings.scalars.log)?;
    memory_limit::check(&settings)?;
    raise_file_limit();
    let clock = SystemClock::shared();
    // Before the runtime starts, because replaying the log blocks.
    let opened = open(&settings, arguments.accept_loss, &clock)?;
    let root = root(&settings)?;
    let runtime = start_runtime(settings.scalars.server.workers.value)?;
    let served = runtime.block_on(serve(Arc::new(settings), flags, opened, root, clock));
    // All stores are closed. A thread that waits for an absent file server or a device does not delay the end.
    runtime.shutdown_background();
    served?;
    Ok(CommandOutcome::Done)
}

fn open(settings: &Settings, accept_loss: bool, clock: &Arc<dyn Clock>) -> anyhow::Result<Vec<OpenedStore>> {
    let started = clock.now();
    let opened = assemble::open_stores(settings, accept_loss, clock)?;
    let elapsed = clock.now().saturating_sub(started);
    info!(
        stores = opened.len(),
        took_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        "all stores open"
    );
    opened.iter().for_each(report_opened);
    Ok(opened)
}

fn report_opened(opened: &OpenedStore) {
    let name = &opened.name;
    let store = match &opened.served {
        ServedStore::Local(store) => store,
        ServedStore::Remote(store, plan) => {
            return info!(name, ?store, %plan, "serving the objects of a remote service");
        }
    };
    let recovery = store.recovery();
    info!(
        name,
        directory = %opened.directory.as_deref().unwrap_or(Path::new("")).display(),
        replayed = recovery.replayed_records,
        reindexed = recovery.reindexed,
        voided = recovery.voided_records,
        "store open"
    );
    if recovery.damaged_bytes > 0 {
        warn!(
            name,
            bytes = recovery.damaged_bytes,
            "the log has damaged bytes; stop the server and run `tradewind store check` to see what is affected"
        );
    }
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

async fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another address with {flag}"))?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// `flags` are those by which a reload reads the settings again.
async fn serve(
    settings: Arc<Settings>,
    flags: SettingsFlags,
    opened: Vec<OpenedStore>,
    root: RootCredentials,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let server = &settings.scalars.server;
    let mut signals = Signals::new()?;
    if flags.name_a_file() {
        signals.listen_to_hangup()?;
    }
    let (s3, endpoint) = listen(server.listen.value, "--listen").await?;
    let (admin, admin_address) = listen(server.admin.value, "--admin").await?;
    let served = Arc::new(ServedStores::new(&settings, opened, &clock).await?);
    let mut metrics = Registry::default();
    served.register_metrics(&mut metrics);
    let stop = CancellationToken::new();
    let keys = assemble::access_keys(&settings, &root.id, root.secret.reveal());
    let mut config = assemble::gateway_config(&settings)?;
    let rules = ServedRules::new(&settings);
    config.operations.classifier = Some(rules.clone());
    if let Some(max_requests) = served.max_requests() {
        // Each request reserves at least this much memory, so no more requests are admitted than connections to a
        // service may be open.
        config.min_window_bytes = config.memory_bytes / max_requests;
    }
    let min_window_bytes = config.min_window_bytes;
    let files = OpenFiles::now(served.max_connections())?;
    files.limit_connections(&mut config.limits)?;
    let gateway = Gateway::new(config, served.store.clone(), keys.clone(), clock.clone())?;

    // The admin listener outlives S3, so that a shutdown can be monitored.
    let stop_admin = CancellationToken::new();
    let mut serving = tokio::spawn({
        let (gateway, stop) = (gateway.clone(), stop.clone());
        async move { gateway.serve(s3, stop).await }
    });
    let changeable = Arc::new(ChangeableSettings::new(settings.clone(), flags, served.clone(), rules));
    let calls = AdminCalls {
        settings: settings.clone(),
        changeable: changeable.clone(),
        served: served.clone(),
        budget: gateway.budget().clone(),
        min_window_bytes,
        clock: clock.clone(),
        stop: stop.clone(),
        describing: Arc::default(),
    };
    let api = GuardedApi::new(Arc::new(calls), keys, &root.id, clock.clone());
    let service = admin_service(&gateway, served.clone(), metrics, api, &stop);
    let admin_task =
        tokio::spawn(admin::serve(admin, service, files.admin_connections(), stop_admin.clone()));
    let shutdown_clock = clock.clone();
    let background =
        Background { settings: &settings, served: &served, gateway: &gateway, clock, stop: &stop };
    let tasks = background.spawn();
    let preparation = background.chunk_preparation();

    Banner { settings: &settings, root: &root, endpoint, admin: admin_address, stores: &served.stores }
        .print()?;
    info!(%endpoint, admin = %admin_address, "serving");
    let shut_down = async {
        let listener_failed = "the S3 listener failed";
        let mut outcome = tokio::select! {
            ended = &mut serving => ended.context(listener_failed),
            failure = preparation.failure() => {
                error!(error = %format!("{failure:#}"), "stopping: a store cannot be served");
                stop.cancel();
                first_failure(Err(failure), (&mut serving).await.context(listener_failed))
            }
        };
        stop.cancel();
        for task in tasks {
            outcome = first_failure(outcome, task.await.context("a background task failed"));
        }
        // Also after a failure: what is dirty is written back.
        first_failure(outcome, served.store.close().await.context("cannot close the store"))
    };
    let mut shut_down = std::pin::pin!(shut_down);
    let outcome = tokio::select! {
        outcome = &mut shut_down => outcome,
        caught = changeable.reload_until_stopped(&mut signals) => {
            info!(signal = caught.name(), "finishing requests in flight; a second signal ends at once");
            stop.cancel();
            let limit = server.shutdown_grace.value.0 + MAX_CLOSE_TIME;
            tokio::select! {
                outcome = &mut shut_down => outcome,
                () = shutdown_clock.sleep_until(shutdown_clock.now() + limit) => {
                    error!(
                        limit_s = limit.as_secs(),
                        "the stores were not closed in time; ending at once: acknowledged writes are durable"
                    );
                    std::process::exit(1);
                }
                caught = signals.next_except_hangup() => {
                    warn!(signal = caught.name(), "ending at once");
                    // Acknowledged writes are durable; all other work may be aborted.
                    std::process::exit(1);
                }
            }
        }
    };
    stop_admin.cancel();
    first_failure(outcome, admin_task.await.context("the admin listener failed"))?;
    info!("stopped");
    io::stdout().flush()?;
    Ok(())
}

/// The first of two outcomes that is a failure. If both are, the second is logged.
fn first_failure(first: anyhow::Result<()>, second: anyhow::Result<()>) -> anyhow::Result<()> {
    if let (Err(_), Err(error)) = (&first, &second) {
        error!(error = %format!("{error:#}"), "another step of the shutdown failed, too");
    }
    first.and(second)
}

/// The components that the background tasks of a server use.
struct Background<'a> {
    settings: &'a Settings,
    served: &'a Arc<ServedStores>,
    gateway: &'a Gateway,
    clock: Arc<dyn Clock>,
    stop: &'a CancellationToken,
}

impl Background<'_> {
    /// The preparation of layers that are new to their stores.
    fn chunk_preparation(&self) -> ChunkPreparation {
        ChunkPreparation {
            layers: self.served.layers.deduplicated.clone(),
            budget: self.gateway.budget().clone(),
            clock: self.clock.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Starts the tasks. They end when the server stops.
    fn spawn(&self) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        for StackedStore { instrumented, .. } in
            self.served.stores.iter().filter(|store| store.read_ahead.is_some())
        {
            let updater =
                Profiles::find().map(|profiles| ProfileUpdater { store: instrumented.clone(), profiles });
            tasks.extend(updater.map(|updater| tokio::spawn(updater.run(self.stop.clone()))));
        }
        let Sourced { value: TimeSpan(max_age), source } = self.settings.scalars.uploads.expire_after.clone();
        if !max_age.is_zero() {
            // Uploads at a service may be of other programs: they expire only if the settings say so.
            for expiring in self.served.expiring_stores(source == SettingSource::Default) {
                let (budget, clock) = (self.gateway.budget().clone(), self.clock.clone());
                let expiry = UploadExpiry { expiring, budget, clock, max_age };
                tasks.push(tokio::spawn(expiry.run(self.stop.clone())));
            }
        }
        for routed in self.served.layers.routed.iter().filter(|routed| routed.move_rate.0 > 0) {
            let mover = TierMover::new(
                routed,
                self.served.clone(),
                self.gateway.budget().clone(),
                self.clock.clone(),
            );
            tasks.push(tokio::spawn(mover.run(self.stop.clone())));
        }
        for layer in self.served.layers.deduplicated.iter().filter(|layer| !layer.collect_every.is_zero()) {
            let collector = ChunkCollector::new(layer, self.gateway.budget().clone(), self.clock.clone());
            tasks.push(tokio::spawn(collector.run(self.stop.clone())));
        }
        if let Some(volumes) = &self.served.volumes {
            let (budget, clock) = (self.gateway.budget().clone(), self.clock.clone());
            tasks.push(tokio::spawn(report_buckets(volumes.clone(), budget, clock, self.stop.clone())));
        }
        tasks
    }
}

/// The service of the admin listener. It is ready while any store accepts writes and no shutdown was requested: a store
/// that fails must not take the others out of service.
fn admin_service(
    gateway: &Gateway,
    served: Arc<ServedStores>,
    mut metrics: Registry,
    api: GuardedApi,
    stop: &CancellationToken,
) -> Admin {
    let stop = stop.clone();
    let ready = move || {
        if stop.is_cancelled() {
            return Err("shutting down".to_owned());
        }
        let read_only: Vec<&str> =
            served.local_stores().filter(|(_, store)| store.is_read_only()).map(|(name, _)| name).collect();
        if read_only.len() == served.stores.len() {
            return Err(format!(
                "a write, sync or index update failed (see the log); read-only until the server is restarted: {}",
                read_only.join(", ")
            ));
        }
        Ok(())
    };
    metrics.register_collector(Box::new(gateway.metrics().clone()));
    Admin { ready: Arc::new(ready), metrics: Arc::new(metrics), api: Some(api) }
}
