//! `tradewind serve`: opens the store, serves S3 and the admin listener on it, and ends in order: the
//! first signal lets requests in flight finish, the second ends the process at once.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_backend::local::LocalStore;
use tradewind_core::{Clock, ObjectStore, SystemClock};
use tradewind_gateway::Gateway;
use tradewind_gateway::admin::{self, Admin, Render};
use tradewind_volume::{Observed, Planned};

use super::limits::{OpenFiles, raise_file_limit};
use super::signals::Signals;
use super::{Ended, SettingsFlags};
use crate::assemble::Served;
use crate::banner::Banner;
use crate::expiry::Expiry;
use crate::plans::ServedPlan;
use crate::profiles::Profiles;
use crate::profiles::served::Learning;
use crate::root_key::{self, KeptKey};
use crate::settings::{RootKey, Settings};
use crate::{assemble, logs, store_metrics};

/// Serve S3
///
/// With no settings at all this serves one store in the directory ./data on 127.0.0.1:9000. A root key
/// is made at the first start, kept in DIR/root-key and printed once; TRADEWIND_ACCESS_KEY and
/// TRADEWIND_SECRET_KEY set another one. SIGTERM, SIGINT or SIGHUP finishes requests in flight, a
/// second one of the first two ends at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind serve --data ./data\n  \
    tradewind serve --data /srv/tradewind --listen 0.0.0.0:9000 --tls-cert chain.pem --tls-key key.pem\n  \
    tradewind serve --config tradewind.toml")]
pub(super) struct Arguments {
    #[command(flatten)]
    settings: SettingsFlags,
    /// Start although the store proves that it lost acknowledged changes, and go on without them
    ///
    /// For one start, after `tradewind store check`: what is lost is logged, and the index is made anew from what is
    /// left of the log. Without this flag such a store is not opened and not changed.
    #[arg(long)]
    accept_loss: bool,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    let settings = arguments.settings.read()?;
    settings.check_served()?;
    logs::begin(&settings.scalars.log)?;
    raise_file_limit();
    let clock = SystemClock::shared();
    // Before the runtime: it blocks while the log is replayed.
    let store = open(&settings, arguments.accept_loss, clock.clone())?;
    let root = root(&settings)?;
    runtime(&settings)?.block_on(serve(settings, store, root, clock))?;
    Ok(Ended::Done)
}

fn open(settings: &Settings, accept_loss: bool, clock: Arc<dyn Clock>) -> anyhow::Result<Served> {
    let begun = clock.now();
    let served = assemble::open_store(settings, accept_loss, clock.clone())?;
    let store = match &served {
        Served::Local(store) => store,
        Served::Remote(store, plan) => {
            info!(?store, %plan, "serving a service's objects");
            return Ok(served);
        }
    };
    let recovery = store.recovery();
    let took = clock.now().saturating_sub(begun);
    info!(
        directory = %settings.store_directory().unwrap_or(settings.data_directory()).display(),
        took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        replayed = recovery.replayed,
        reindexed = recovery.reindexed,
        voided = recovery.voided,
        "store open"
    );
    if recovery.damaged_bytes > 0 {
        warn!(
            bytes = recovery.damaged_bytes,
            "the log holds damaged bytes; stop the server and run `tradewind store check` to see what they cost"
        );
    }
    Ok(served)
}

/// The root key of the settings, else the one kept in the data directory. The store's lock is held.
fn root(settings: &Settings) -> anyhow::Result<KeptKey> {
    if let Some(RootKey { id, secret }) = &settings.root_key {
        return Ok(KeptKey { id: id.value.clone(), secret: secret.value.clone(), is_new: false });
    }
    let directory = settings.data_directory();
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let root = root_key::load_or_create(directory)?;
    if settings.named.access_keys.iter().any(|key| key.id.value == root.id) {
        bail!(
            "the settings hold an access key {:?}, which is the root key's id; give it another id",
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
    builder.build().context("cannot start the threads that serve")
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
    served: Served,
    root: KeptKey,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let server = &settings.scalars.server;
    let mut signals = Signals::new()?;
    let (s3, endpoint) = listen(server.listen.value, "--listen").await?;
    let (admin, admin_address) = listen(server.admin.value, "--admin").await?;
    let laned = assemble::with_lanes(&settings, served.store(), clock.clone());
    let observed = Observed::new(laned, clock.clone());
    let mut store: Arc<dyn ObjectStore> = observed.clone();
    let name = settings.served().map_or(store.capabilities().kind, |store| &store.name.value).to_owned();
    let mut known = vec![known_of(name.clone(), observed.clone())];
    let (plan, mut learning) = (served.plan(), None);
    let stop = CancellationToken::new();
    if let Some(plan) = &plan {
        learning = Profiles::find()
            .map(|profiles| Learning { store: observed.clone(), profiles })
            .map(|learning| tokio::spawn(learning.run(stop.clone())));
        let planned = plan.over(observed.clone(), clock.clone());
        known.push(plan_of(name, planned.clone(), plan.clone()));
        store = planned;
    }
    let keys = assemble::keys(&settings, &root.id, root.secret.reveal());
    let mut config = assemble::gateway_config(&settings)?;
    if let Some(plan) = &plan {
        // So that a share of the memory is a share of the connections as well.
        config.min_window_bytes = config.memory_bytes / plan.connections.max(1);
    }
    let files = OpenFiles::now(plan.as_ref().map_or(0, |plan| plan.connections))?;
    files.bound(&mut config.limits)?;
    let gateway = Gateway::new(config, store.clone(), keys, clock.clone())?;

    // Admin outlives S3, so that a shutdown can be watched.
    let stop_admin = CancellationToken::new();
    let mut serving = tokio::spawn({
        let (gateway, stop) = (gateway.clone(), stop.clone());
        async move { gateway.serve(s3, stop).await }
    });
    let watch = observation(&gateway, served, known, &stop);
    let watching = tokio::spawn(admin::serve(admin, watch, files.admin_connections(), stop_admin.clone()));
    let expire_after = settings.scalars.uploads.expire_after.value.0;
    let expiring = (!expire_after.is_zero()).then(|| {
        let expiry =
            Expiry { store: store.clone(), budget: gateway.budget().clone(), clock, after: expire_after };
        tokio::spawn(expiry.run(stop.clone()))
    });

    Banner { settings: &settings, root: &root, endpoint, admin: admin_address, plan: plan.as_deref() }
        .print()?;
    info!(%endpoint, admin = %admin_address, "serving");
    let outcome = tokio::select! {
        caught = signals.next() => {
            info!(signal = caught.name(), "finishing requests in flight; signal again to end at once");
            stop.cancel();
            tokio::select! {
                ended = &mut serving => ended,
                caught = signals.again() => {
                    warn!(signal = caught.name(), "ending at once");
                    // What was acknowledged is durable; everything else may be cut off.
                    std::process::exit(1);
                }
            }
        }
        ended = &mut serving => ended,
    };
    stop.cancel();
    if let Some(expiring) = expiring {
        expiring.await.context("the task that expires uploads failed")?;
    }
    if let Some(learning) = learning {
        learning.await.context("the task that corrects the store's profile failed")?;
    }
    store.close().await.context("cannot close the store")?;
    stop_admin.cancel();
    watching.await.context("the admin listener failed")?;
    outcome.context("the S3 listener failed")?;
    info!("stopped");
    io::stdout().flush()?;
    Ok(())
}

/// What the admin listener answers: ready while writes are taken and nobody has asked for the end.
fn observation(gateway: &Gateway, served: Served, known: Vec<Render>, stop: &CancellationToken) -> Admin {
    let ready = {
        let (served, stop) = (served.clone(), stop.clone());
        move || {
            if stop.is_cancelled() {
                return Err("shutting down".to_owned());
            }
            if let Served::Local(store) = &served
                && store.is_read_only()
            {
                return Err("a sync failed and the store takes no writes; restart the server".to_owned());
            }
            Ok(())
        }
    };
    let gateway_metrics = gateway.metrics().clone();
    let mut metrics: Vec<Render> = vec![
        Arc::new(move |text| gateway_metrics.render(text)),
        Arc::new(move |text| {
            if let Served::Local(store) = &served {
                render_store(store, text);
            }
        }),
    ];
    metrics.extend(known);
    Admin { ready: Arc::new(ready), metrics }
}

/// What is known of a store.
fn known_of(name: String, store: Arc<Observed>) -> Render {
    Arc::new(move |text| store_metrics::render(&name, store.model(), store.now(), text))
}

/// How it is read.
fn plan_of(name: String, planned: Arc<Planned>, plan: Arc<ServedPlan>) -> Render {
    Arc::new(move |text| store_metrics::render_plan(&name, &planned, &plan.source, text))
}

fn render_store(store: &LocalStore, text: &mut String) {
    let mut gauge = |name: &str, help: &str, value: u64| {
        *text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
    };
    gauge(
        "tradewind_store_read_only",
        "1 once a failed sync has made the store refuse writes.",
        u64::from(store.is_read_only()),
    );
    // Left out where the device does not say: a figure that is not known must not be 0.
    if let Ok(free) = store.free_bytes() {
        gauge("tradewind_store_free_bytes", "Bytes free on the store's device.", free);
    }
}
