//! The counters of an OSD's reads and writes, and what happened between two samples of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tradewind_model::affinity::queueing::{ReadLoad, WriteLoad};

use crate::error::{Error, Result};

/// Reads and writes of clients since an OSD's start, from its `perf dump`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ReadCounters {
    /// Completed reads (`op_r`).
    pub reads: u64,
    /// Bytes that they returned (`op_r_out_bytes`).
    pub bytes: u64,
    /// Number of latencies in the sum (`op_r_latency.avgcount`).
    pub latencies: u64,
    /// Sum of the latencies in seconds, with the time in the queue.
    pub latency_seconds: f64,
    /// The writes. Agents of earlier versions do not report them: then there seem to be none.
    #[serde(default)]
    pub writes: WriteCounters,
}

/// Writes since an OSD's start, as the primary (`op_w`) and as another replica (`subop_w`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WriteCounters {
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Number of latencies in the sum, of writes as another replica. As the primary, an OSD waits for the others, too.
    pub latencies: u64,
    /// Sum of these latencies in seconds.
    pub latency_seconds: f64,
}

impl WriteCounters {
    /// Counters that are missing are 0: the reads are known without them.
    fn parse(osd: &Value) -> Self {
        let counter = |name: &str| osd.get(name).and_then(Value::as_u64).unwrap_or_default();
        let latency = osd.get("subop_w_latency");
        Self {
            writes: counter("op_w") + counter("subop_w"),
            bytes: counter("op_w_in_bytes") + counter("subop_w_in_bytes"),
            latencies: latency.and_then(|latency| latency.get("avgcount")?.as_u64()).unwrap_or_default(),
            latency_seconds: latency.and_then(|latency| latency.get("sum")?.as_f64()).unwrap_or_default(),
        }
    }

    /// The load since an earlier sample. None if the counters went back.
    fn since(self, earlier: Self, seconds: f64) -> WriteLoad {
        let latencies = self.latencies.saturating_sub(earlier.latencies);
        let sum = (self.latency_seconds - earlier.latency_seconds).max(0.0);
        WriteLoad {
            writes_per_second: self.writes.saturating_sub(earlier.writes) as f64 / seconds,
            bytes_per_second: self.bytes.saturating_sub(earlier.bytes) as f64 / seconds,
            latency_seconds: if latencies == 0 { 0.0 } else { sum / latencies as f64 },
        }
    }
}

impl ReadCounters {
    /// Parses the response to `perf dump`.
    pub fn parse(dump: &Value) -> Result<Self> {
        let osd = dump.get("osd");
        let counter = |name: &str| osd.and_then(|osd| osd.get(name)?.as_u64());
        let latency = osd.and_then(|osd| osd.get("op_r_latency"));
        let parsed = || {
            Some(Self {
                reads: counter("op_r")?,
                bytes: counter("op_r_out_bytes")?,
                latencies: latency?.get("avgcount")?.as_u64()?,
                latency_seconds: latency?.get("sum")?.as_f64()?,
                writes: WriteCounters::parse(osd?),
            })
        };
        parsed().ok_or_else(|| Error::Malformed {
            command: "perf dump".to_owned(),
            message: "the counters op_r, op_r_out_bytes and op_r_latency are missing".to_owned(),
        })
    }

    /// The load since an earlier sample. `None` if the counters went back: the OSD was restarted.
    pub fn since(self, earlier: Self, elapsed: Duration) -> Option<ReadLoad> {
        let reads = self.reads.checked_sub(earlier.reads)?;
        let bytes = self.bytes.checked_sub(earlier.bytes)?;
        let latencies = self.latencies.checked_sub(earlier.latencies)?;
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let sum = (self.latency_seconds - earlier.latency_seconds).max(0.0);
        let latency_seconds = if latencies == 0 { 0.0 } else { sum / latencies as f64 };
        Some(ReadLoad {
            reads_per_second: reads as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency_seconds,
            writes: self.writes.since(earlier.writes, seconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dump(reads: u64, latencies: u64, sum: f64) -> Value {
        let latency = json!({"avgcount": latencies, "sum": sum, "avgtime": 0.1});
        json!({"osd": {"op_r": reads, "op_r_out_bytes": 100 * reads, "op_r_latency": latency}})
    }

    #[test]
    fn load_is_the_difference_of_two_samples() {
        let before = ReadCounters::parse(&dump(70, 70, 1.5)).unwrap();
        let after = ReadCounters::parse(&dump(90, 90, 5.5)).unwrap();
        let load = after.since(before, Duration::from_secs(2)).unwrap();
        let expected = ReadLoad {
            reads_per_second: 10.0,
            bytes_per_second: 1000.0,
            latency_seconds: 0.2,
            ..ReadLoad::default()
        };
        assert_eq!(load, expected);
        assert_eq!(before.since(after, Duration::from_secs(2)), None, "restarted");
        assert_eq!(before.since(before, Duration::from_secs(2)), Some(ReadLoad::default()));
        assert_eq!(after.since(before, Duration::ZERO), None);
    }

    #[test]
    fn writes_count_as_primary_and_as_replica() {
        let sample = |writes: u64, sum: f64| {
            let mut dump = dump(70, 70, 1.5);
            let latency = json!({"avgcount": writes, "sum": sum});
            let counters = [("op_w", json!(writes)), ("op_w_in_bytes", json!(10 * writes))];
            let others = [("subop_w", json!(writes)), ("subop_w_in_bytes", json!(10 * writes))];
            for (name, value) in counters.into_iter().chain(others).chain([("subop_w_latency", latency)]) {
                dump["osd"][name] = value;
            }
            ReadCounters::parse(&dump).unwrap()
        };
        let load = sample(30, 5.0).since(sample(10, 1.0), Duration::from_secs(2)).unwrap();
        let expected = WriteLoad { writes_per_second: 20.0, bytes_per_second: 200.0, latency_seconds: 0.2 };
        assert_eq!(load.writes, expected);
    }

    #[test]
    fn dump_without_the_counters_is_rejected() {
        assert!(ReadCounters::parse(&json!({"osd": {"op_r": 1}})).is_err());
        assert!(ReadCounters::parse(&json!([])).is_err());
    }
}
