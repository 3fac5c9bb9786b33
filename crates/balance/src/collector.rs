//! The reads of all OSDs, collected in parallel with a deadline: from the admin sockets of OSDs on this host, and by
//! `ceph tell` from the others.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tradewind_model::affinity::queueing::ReadLoad;

use crate::admin_socket;
use crate::ceph_process::CephOptions;
use crate::counters::ReadCounters;
use crate::error::{Error, Result};

/// OSDs asked at the same time.
const MAX_CONCURRENCY: usize = 16;
/// Interval between two looks at a process that has a deadline.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where the counters of an OSD come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Its admin socket on this host.
    Socket(PathBuf),
    /// `ceph tell`: the OSD is on another host.
    Tell,
}

/// The reads of an OSD since the previous round.
#[derive(Debug)]
pub struct OsdReads {
    /// Its id.
    pub osd: u32,
    /// `None` in the first round and after a restart of the OSD.
    pub load: Result<Option<ReadLoad>>,
}

/// Collects counters.
#[derive(Debug)]
pub struct Collector {
    options: CephOptions,
    timeout: Duration,
    sources: Vec<OsdSource>,
    previous: HashMap<u32, Sample>,
}

#[derive(Debug, Clone)]
struct OsdSource {
    osd: u32,
    source: Source,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    counters: ReadCounters,
    at: Instant,
}

impl Collector {
    /// Finds the source of each OSD. `timeout` applies to each OSD in each round.
    pub fn new(options: &CephOptions, osds: &[u32], timeout: Duration) -> Self {
        let sources =
            in_parallel(osds, |osd| OsdSource { osd: *osd, source: find_source(options, *osd, timeout) });
        Self { options: options.clone(), timeout, sources, previous: HashMap::new() }
    }

    /// The source of each OSD.
    pub fn sources(&self) -> impl Iterator<Item = (u32, &Source)> {
        self.sources.iter().map(|source| (source.osd, &source.source))
    }

    /// Collects one round, in the order of the OSDs given to [`Collector::new`].
    pub fn collect(&mut self) -> Vec<OsdReads> {
        let samples = in_parallel(&self.sources, |source| {
            let counters = self.counters(source);
            counters.map(|counters| Sample { counters, at: Instant::now() })
        });
        let mut reads = Vec::with_capacity(samples.len());
        for (source, sample) in self.sources.iter().zip(samples) {
            let load = sample.map(|sample| {
                let previous = self.previous.insert(source.osd, sample);
                previous
                    .and_then(|previous| sample.counters.since(previous.counters, sample.at - previous.at))
            });
            reads.push(OsdReads { osd: source.osd, load });
        }
        reads
    }

    fn counters(&self, source: &OsdSource) -> Result<ReadCounters> {
        let dump = match &source.source {
            Source::Socket(path) => admin_socket::run(path, "perf dump", self.timeout)?,
            Source::Tell => {
                let target = format!("osd.{}", source.osd);
                let mut command = self.options.command();
                command.args(["tell", &target, "perf", "dump", "--format", "json"]);
                let output = output_in_time(command, &format!("tell {target} perf dump"), self.timeout)?;
                parse(&output, "perf dump")?
            }
        };
        ReadCounters::parse(&dump)
    }
}

/// The admin socket of an OSD if it exists on this host.
fn find_source(options: &CephOptions, osd: u32, timeout: Duration) -> Source {
    let mut command = Command::new(options.program.with_file_name("ceph-conf"));
    if let Some(config) = &options.config {
        command.arg("--conf").arg(config);
    }
    command.args(["--name", &format!("osd.{osd}"), "--show-config-value", "admin_socket"]);
    let path = output_in_time(command, "ceph-conf", timeout).ok();
    let path = path.and_then(|output| Some(PathBuf::from(String::from_utf8(output).ok()?.trim())));
    path.filter(|path| path.exists()).map_or(Source::Tell, Source::Socket)
}

fn parse(output: &[u8], command: &str) -> Result<Value> {
    let malformed =
        |e: serde_json::Error| Error::Malformed { command: command.to_owned(), message: e.to_string() };
    serde_json::from_slice(output).map_err(malformed)
}

/// The standard output of a command; a command that takes longer is killed.
fn output_in_time(mut command: Command, name: &str, timeout: Duration) -> Result<Vec<u8>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::Start)?;
    let mut output =
        child.stdout.take().ok_or_else(|| Error::Start(std::io::ErrorKind::BrokenPipe.into()))?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| bytes)
    });
    let deadline = Instant::now() + timeout;
    let status = loop {
        match child.try_wait().map_err(Error::Start)? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    let Some(status) = status else {
        // Killing fails only if the process ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
        return Err(Error::Timeout { command: name.to_owned(), timeout });
    };
    let bytes =
        reader.join().map_err(|_| Error::Start(std::io::ErrorKind::Other.into()))?.map_err(Error::Start)?;
    if !status.success() {
        return Err(Error::Rejected { command: name.to_owned(), message: status.to_string() });
    }
    Ok(bytes)
}

/// Maps items by several threads, in order.
fn in_parallel<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..MAX_CONCURRENCY.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = map(item);
                    let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    results.push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn parallel_results_keep_the_order_of_the_items() {
        let items: Vec<u64> = (0..200).collect();
        assert_eq!(in_parallel(&items, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert!(in_parallel(&[] as &[u8], |n| *n).is_empty());
    }

    #[test]
    fn command_that_hangs_is_killed_at_the_deadline() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let error = output_in_time(command, "sleep", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(matches!(
            output_in_time(Command::new("false"), "false", Duration::from_secs(20)).unwrap_err(),
            Error::Rejected { .. }
        ));
    }

    #[test]
    fn silent_osd_does_not_hide_the_others() {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(place.path().join("osd")).unwrap();
        std::thread::spawn(move || {
            for reads in [10_u64, 30] {
                let (mut socket, _) = listener.accept().unwrap();
                let mut request = [0; 64];
                let _ = socket.read(&mut request).unwrap();
                let dump = format!(
                    r#"{{"osd":{{"op_r":{reads},"op_r_latency":{{"avgcount":{reads},"sum":{reads}}}}}}}"#
                );
                socket.write_all(&u32::try_from(dump.len()).unwrap().to_be_bytes()).unwrap();
                socket.write_all(dump.as_bytes()).unwrap();
            }
        });
        let source = |osd, name: &str| OsdSource { osd, source: Source::Socket(place.path().join(name)) };
        let mut collector = Collector {
            options: CephOptions::default(),
            timeout: Duration::from_secs(10),
            sources: vec![source(0, "absent"), source(1, "osd")],
            previous: HashMap::new(),
        };
        let first = collector.collect();
        assert!(first[0].load.is_err() && matches!(first[1].load, Ok(None)));
        std::thread::sleep(Duration::from_millis(50));
        let second = collector.collect();
        let load = second[1].load.as_ref().unwrap().unwrap();
        assert!(load.reads_per_second > 0.0 && (load.latency_seconds - 1.0).abs() < 1e-9);
    }
}
