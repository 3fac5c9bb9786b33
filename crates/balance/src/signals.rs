//! The signals of an OSD beside its reads: those of its device and of its host.

use std::time::Instant;

use crate::device::DeviceCounters;
use crate::host::HostCounters;

/// Counters of an OSD's device and host at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignalCounters {
    /// Those of its data device; `None` where neither this host nor an agent can read them.
    pub device: Option<DeviceCounters>,
    /// Those of its host.
    pub host: HostCounters,
    /// When they were read.
    pub read_at: Instant,
}

/// Signals since the previous round. What is not known is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OsdSignals {
    /// Mean time of a read of the device in milliseconds.
    pub await_millis: Option<f64>,
    /// Share of the time in which the device had requests in flight, from 0 to 1.
    pub busy: Option<f64>,
    /// Share of the last 10 s in which some task of the host waited for I/O, in percent (PSI).
    pub io_pressure_percent: Option<f64>,
    /// %iowait of the host.
    pub iowait_percent: Option<f64>,
}

impl SignalCounters {
    /// The signals since an earlier sample of the same OSD.
    pub fn since(&self, earlier: &Self) -> OsdSignals {
        let devices = self.device.zip(earlier.device);
        let elapsed = self.read_at.saturating_duration_since(earlier.read_at);
        let cpus = self.host.cpu.zip(earlier.host.cpu);
        OsdSignals {
            await_millis: devices.and_then(|(now, earlier)| now.await_since(earlier)),
            busy: devices.and_then(|(now, earlier)| now.busy_since(earlier, elapsed)),
            io_pressure_percent: self.host.io_pressure_percent,
            iowait_percent: cpus.and_then(|(now, earlier)| now.iowait_percent_since(earlier)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::CpuTimes;

    #[test]
    fn signals_are_differences_and_pressure_is_the_latest() {
        let sample = |factor: u64, pressure: f64| SignalCounters {
            device: Some(DeviceCounters {
                reads: factor,
                read_millis: 8 * factor,
                busy_millis: 300 * factor,
            }),
            host: HostCounters {
                io_pressure_percent: Some(pressure),
                cpu: Some(CpuTimes { iowait: 10 * factor, total: 100 * factor }),
            },
            read_at: Instant::now(),
        };
        let earlier = sample(1, 50.0);
        let later = SignalCounters { read_at: earlier.read_at + Duration::from_secs(1), ..sample(3, 7.0) };
        let expected = OsdSignals {
            await_millis: Some(8.0),
            busy: Some(0.6),
            io_pressure_percent: Some(7.0),
            iowait_percent: Some(10.0),
        };
        assert_eq!(later.since(&earlier), expected);
        let unknown = SignalCounters { device: None, host: HostCounters::default(), ..later };
        assert_eq!(unknown.since(&earlier), OsdSignals::default());
    }
}
