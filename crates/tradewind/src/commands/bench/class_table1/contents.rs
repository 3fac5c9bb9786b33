//! Samples the contents of a server's cache by class (figure 8 of Chen 2014) from its metrics.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tradewind_bench::Operation;

/// Interval of the samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time of one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of one response.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;
/// Maximum number of samples, one for each second of ten hours.
const MAX_SAMPLES: usize = 36_000;
/// Beginning of the names of series to keep.
const SERIES_PREFIX: &str = "tradewind_cache_";

/// The address of a server's metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MetricsUrl {
    /// Host and port.
    authority: String,
    path: String,
}

impl FromStr for MetricsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").ok_or("write http://HOST:PORT/metrics")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, "metrics"));
        let is_printable = !text.contains(|c: char| c.is_whitespace() || c.is_control());
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !is_printable || !has_port {
            return Err("write http://HOST:PORT/metrics".to_owned());
        }
        Ok(Self { authority: authority.to_owned(), path: format!("/{path}") })
    }
}

impl MetricsUrl {
    /// The text of the metrics. HTTP/1.0, so that the body is neither chunked nor compressed.
    async fn fetch(&self) -> anyhow::Result<String> {
        let exchange = async {
            let mut stream = TcpStream::connect(&self.authority).await?;
            let request = format!("GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", self.path, self.authority);
            stream.write_all(request.as_bytes()).await?;
            let mut response = String::new();
            stream.take(MAX_RESPONSE_BYTES).read_to_string(&mut response).await?;
            anyhow::Ok(response)
        };
        let response = tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await??;
        let (head, body) = response.split_once("\r\n\r\n").ok_or_else(|| anyhow!("not an HTTP response"))?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status != "200" {
            return Err(anyhow!("status {status}"));
        }
        Ok(body.to_owned())
    }
}

/// The series of the cache that have a class, with their values.
fn class_series(metrics: &str) -> BTreeMap<String, f64> {
    let series = metrics.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let is_by_class = name.contains("{class=\"") || name.contains(",class=\"");
        let is_wanted = name.starts_with(SERIES_PREFIX) && is_by_class;
        is_wanted.then(|| Some((name.to_owned(), value.parse().ok()?))).flatten()
    });
    series.collect()
}

/// The samples of a run.
#[derive(Debug, Default)]
struct SampleLog {
    samples: Vec<Value>,
    /// Samples without a response.
    missed: u64,
}

/// A task that samples until [`ContentsSampler::finish`].
pub(super) struct ContentsSampler {
    phase: watch::Sender<Operation>,
    stop: CancellationToken,
    task: JoinHandle<SampleLog>,
}

impl ContentsSampler {
    /// Starts the samples. Fails if the metrics cannot be read.
    pub async fn start(url: MetricsUrl) -> anyhow::Result<Self> {
        let first = url.fetch().await;
        first.with_context(|| format!("cannot read metrics of http://{}{}", url.authority, url.path))?;
        let (phase, current_phase) = watch::channel(Operation::Put);
        let stop = CancellationToken::new();
        let task = tokio::spawn(sample(url, current_phase, stop.clone()));
        Ok(Self { phase, stop, task })
    }

    /// Records that a phase has ended: later samples are of the next one.
    pub fn end_phase(&self, phase: Operation) {
        let next = if phase == Operation::Put { Operation::Get } else { Operation::Delete };
        self.phase.send_replace(next);
    }

    /// Ends the samples and returns them.
    pub async fn finish(self) -> anyhow::Result<Value> {
        self.stop.cancel();
        let log = self.task.await.context("the task that samples metrics failed")?;
        Ok(json!({ "samples": log.samples, "missed": log.missed }))
    }
}

/// Samples at the interval and at the end of each phase.
async fn sample(
    url: MetricsUrl,
    mut phases: watch::Receiver<Operation>,
    stop: CancellationToken,
) -> SampleLog {
    let (begin, mut log, mut phase) = (Instant::now(), SampleLog::default(), Operation::Put);
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = phases.changed() => {}
            () = stop.cancelled() => return log,
        }
        let (seconds, name) = (begin.elapsed().as_secs_f64(), phase.to_string());
        match url.fetch().await {
            Ok(metrics) if log.samples.len() < MAX_SAMPLES => {
                let series = class_series(&metrics);
                log.samples.push(json!({ "seconds": seconds, "phase": name, "series": series }));
            }
            _ => log.missed += 1,
        }
        phase = *phases.borrow();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_need_http_and_a_port() {
        let url: MetricsUrl = "http://127.0.0.1:9001/metrics".parse().unwrap();
        assert_eq!((url.authority.as_str(), url.path.as_str()), ("127.0.0.1:9001", "/metrics"));
        assert_eq!("http://127.0.0.1:9001".parse::<MetricsUrl>(), Ok(url));
        for bad in ["https://a:1/metrics", "a:1", "http://a/metrics", "http://a:1/me trics", "http://a:x/"] {
            assert!(bad.parse::<MetricsUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn series_of_the_cache_with_a_class_are_kept() {
        let metrics = "# TYPE tradewind_cache_class_bytes gauge\n\
            tradewind_cache_class_bytes{class=\"25\",volume=\"v\"} 4096\n\
            tradewind_cache_class_bytes{volume=\"v\",class=\"26\"} 1.5e3\n\
            tradewind_cache_bytes{volume=\"v\"} 7\n\
            tradewind_store_class{class=\"3\"} 1\n";
        let series = class_series(metrics);
        assert_eq!(series.values().copied().collect::<Vec<_>>(), [4096.0, 1500.0]);
        assert!(series.contains_key("tradewind_cache_class_bytes{class=\"25\",volume=\"v\"}"));
    }
}
