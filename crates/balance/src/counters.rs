//! The counters of an OSD's reads, and what happened between two samples of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tradewind_model::affinity::queueing::ReadLoad;

use crate::error::{Error, Result};

/// Reads of clients since an OSD's start, from its `perf dump`.
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
        assert_eq!(load, ReadLoad { reads_per_second: 10.0, bytes_per_second: 1000.0, latency_seconds: 0.2 });
        assert_eq!(before.since(after, Duration::from_secs(2)), None, "restarted");
        assert_eq!(before.since(before, Duration::from_secs(2)), Some(ReadLoad::default()));
        assert_eq!(after.since(before, Duration::ZERO), None);
    }

    #[test]
    fn dump_without_the_counters_is_rejected() {
        assert!(ReadCounters::parse(&json!({"osd": {"op_r": 1}})).is_err());
        assert!(ReadCounters::parse(&json!([])).is_err());
    }
}
