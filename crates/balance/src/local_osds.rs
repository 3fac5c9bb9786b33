//! The counters of OSDs on this host: of their reads from their admin sockets, of their devices and of the host from the
//! kernel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::admin_socket;
use crate::agent::OsdQuery;
use crate::ceph_process::{CephOptions, own_group};
use crate::counters::ReadCounters;
use crate::device::DeviceCounters;
use crate::error::{Error, Result};
use crate::host::HostCounters;
use crate::parallel::in_parallel;
use crate::process::output_in_time;

/// OSDs that are read concurrently.
const MAX_CONCURRENCY: usize = 16;

/// The counters of a host.
#[derive(Debug)]
pub struct HostSample {
    /// Those of the host itself.
    pub host: HostCounters,
    /// Those of its OSDs, in the order of the queries.
    pub osds: Vec<OsdSample>,
}

/// The counters of an OSD.
#[derive(Debug)]
pub struct OsdSample {
    /// Those of its reads, or why they are not known.
    pub reads: Result<ReadCounters>,
    /// Those of its device, if known.
    pub device: Option<DeviceCounters>,
    /// When they were read, by the clock of this host.
    pub read_at: Instant,
}

/// Reads the OSDs of this host.
#[derive(Debug)]
pub struct LocalOsds {
    options: CephOptions,
    timeout: Duration,
    /// Admin sockets found so far.
    sockets: Mutex<HashMap<u32, PathBuf>>,
}

impl LocalOsds {
    /// A reader that finds sockets by the cluster's configuration. `timeout` applies to each OSD.
    pub fn new(options: CephOptions, timeout: Duration) -> Self {
        Self { options, timeout, sockets: Mutex::default() }
    }

    /// Reads the host and these OSDs.
    pub fn read(&self, queries: &[OsdQuery]) -> HostSample {
        let host = HostCounters::read();
        let osds = in_parallel(queries, MAX_CONCURRENCY, |query| self.read_osd(query));
        HostSample { host, osds }
    }

    /// The admin socket of an OSD, if it exists on this host.
    pub fn socket(&self, osd: u32) -> Option<PathBuf> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = sockets.get(&osd) {
            return Some(known.clone());
        }
        drop(sockets);
        let path = self.configured_socket(osd).filter(|path| path.exists())?;
        sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.insert(osd, path.clone());
        Some(path)
    }

    /// Reads one OSD.
    pub(crate) fn read_osd(&self, query: &OsdQuery) -> OsdSample {
        let reads = self.read_counters(query.osd);
        let device = query.device.as_deref().and_then(|device| DeviceCounters::read(device).ok());
        OsdSample { reads, device, read_at: Instant::now() }
    }

    fn read_counters(&self, osd: u32) -> Result<ReadCounters> {
        let path = self.socket(osd).ok_or_else(|| {
            Error::Unsuitable("no admin socket on its host; is the OSD running?".to_owned())
        })?;
        ReadCounters::parse(&admin_socket::run(&path, "perf dump", self.timeout)?)
    }

    /// The path of the socket by the configuration.
    fn configured_socket(&self, osd: u32) -> Option<PathBuf> {
        let mut command = own_group(&self.options.program.with_file_name("ceph-conf"));
        if let Some(config) = &self.options.config {
            command.arg("--conf").arg(config);
        }
        command.args(["--name", &format!("osd.{osd}"), "--show-config-value", "admin_socket"]);
        let output = output_in_time(command, "ceph-conf", self.timeout).ok()?;
        Some(PathBuf::from(String::from_utf8(output).ok()?.trim()))
    }

    /// A reader with known sockets.
    #[cfg(test)]
    pub(crate) fn with_sockets(sockets: impl IntoIterator<Item = (u32, PathBuf)>) -> Self {
        let osds = Self::new(CephOptions::default(), Duration::from_secs(10));
        osds.sockets.lock().unwrap().extend(sockets);
        osds
    }
}
