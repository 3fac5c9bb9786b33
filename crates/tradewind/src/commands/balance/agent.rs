//! `tradewind balance agent` and `tradewind balance key`: counters of OSDs on other hosts, and the keys that protect them.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use tradewind_balance::CephOptions;
use tradewind_balance::agent::{AgentServer, Agents, Fingerprint, Key, KeyError, parse_agents};
use tradewind_balance::local_osds::LocalOsds;
use tradewind_core::threads::thread_error;

use super::super::signals::Signals;
use super::super::{CommandOutcome, StoppedBySignal};

/// Maximum size of the list of agents.
const MAX_LIST_BYTES: u64 = 1 << 20;
/// Time for the counters of one OSD. Shorter than a balancer waits for the agent: an OSD that hangs must not hide the
/// others.
const OSD_TIMEOUT: Duration = Duration::from_secs(3);

/// The agents that a command uses.
#[derive(Debug, Args)]
pub(super) struct AgentFlags {
    /// List of agents: HOST ADDRESS:PORT FINGERPRINT in each line
    #[arg(long, value_name = "FILE", requires = "key")]
    agents: Option<PathBuf>,
    /// Own key, which the agents accept, from `tradewind balance key`
    #[arg(long, value_name = "FILE", requires = "agents")]
    key: Option<PathBuf>,
}

impl AgentFlags {
    pub fn open(&self) -> anyhow::Result<Agents> {
        let (Some(list), Some(key)) = (&self.agents, &self.key) else { return Ok(Agents::default()) };
        let key = Key::read(key)?;
        let entries = parse_agents(&read_list(list)?).map_err(|e| anyhow!("{}: {e}", list.display()))?;
        Ok(Agents::new(entries, &key)?)
    }
}

fn read_list(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.len();
    if size > MAX_LIST_BYTES {
        return Err(anyhow!("{shown} has {size} bytes: it is not a list of agents"));
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))
}

/// Report the read counters of the OSDs on this host to `tradewind balance` on another host
///
/// For clusters with OSDs on several hosts: without an agent, their counters are read by `ceph tell`, which starts a process
/// for each OSD and round, and knows nothing of devices and hosts. The agent reads the counters of its OSDs from their admin
/// sockets, and those of devices and host from the kernel. It cannot change anything.
///
/// Connections use TLS 1.3. Both sides have a key and accept only peers whose fingerprint they were given.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind balance key /etc/tradewind/agent.key\n  \
    tradewind balance agent --listen 10.0.0.7:9191 --key /etc/tradewind/agent.key \
    --peer sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
pub(in crate::commands) struct AgentArguments {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Own key, from `tradewind balance key`
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Fingerprint of the key of a balancer that may connect (repeatable)
    #[arg(long = "peer", value_name = "FINGERPRINT", required = true)]
    peers: Vec<Fingerprint>,
    /// Configuration file of the cluster, which names the admin sockets [default: that of the command ceph-conf]
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
}

/// Create a key for an agent or a balancer, and print its fingerprint
///
/// The file is readable by its owner only. An existing key is never changed: its fingerprint is printed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tradewind balance key ./balancer.key")]
pub(in crate::commands) struct KeyArguments {
    /// File of the key
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn create_key(arguments: &KeyArguments) -> anyhow::Result<CommandOutcome> {
    let key = match Key::create(&arguments.file) {
        Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
            Key::read(&arguments.file)?
        }
        created => created?,
    };
    writeln!(io::stdout(), "{}", key.fingerprint())?;
    Ok(CommandOutcome::Done)
}

pub(super) fn serve(arguments: AgentArguments) -> anyhow::Result<CommandOutcome> {
    let key = Key::read(&arguments.key)?;
    let options = CephOptions { config: arguments.conf, ..CephOptions::default() };
    let osds = LocalOsds::new(options, OSD_TIMEOUT);
    let server = AgentServer::bind(arguments.listen, &key, &arguments.peers, osds, Arc::new(print_line))
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        print_line(&format!("listening on {} with the key {}", server.local_address()?, key.fingerprint()));
        // It only reads: it ends with the process.
        std::thread::Builder::new().spawn(move || server.serve()).map_err(thread_error)?;
        Err(StoppedBySignal(signals.next().await).into())
    })
}

/// Prints a line. A closed standard output is ignored: the agent stays.
fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
