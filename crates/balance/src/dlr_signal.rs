//! The signal of the paper's policy: %iowait where every OSD has a host of its own, and otherwise a stand-in for it.

use std::collections::HashSet;
use std::fmt;

use crate::device::iowait_stand_in;
use crate::error::{Error, Result};
use crate::signals::{OsdSignals, SignalCounters};

/// The kinds of signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalSource {
    /// %iowait of the host of each OSD.
    Iowait,
    /// A function of the read awaits of the OSDs' devices ([`iowait_stand_in`]).
    StandIn,
}

impl fmt::Display for SignalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iowait => "%iowait",
            Self::StandIn => "stand-in for %iowait",
        })
    }
}

/// The signals of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct DlrSignals {
    /// From 0 to 100, one per OSD.
    pub percent: Vec<f64>,
    /// Their kind.
    pub source: SignalSource,
}

/// Returns true if all hosts are known and no two OSDs share one: only then %iowait tells OSDs apart.
pub fn have_hosts_of_their_own(hostnames: &[Option<String>]) -> bool {
    let known: Option<HashSet<&str>> = hostnames.iter().map(Option::as_deref).collect();
    known.is_some_and(|known| known.len() == hostnames.len())
}

/// The signals between two samples, one per OSD in both.
///
/// %iowait is used if the OSDs have hosts of their own and all of these report it. An OSD without counters of its device is
/// an error otherwise.
pub fn dlr_signals(
    now: &[SignalCounters],
    earlier: &[SignalCounters],
    has_hosts_of_their_own: bool,
) -> Result<DlrSignals> {
    let signals: Vec<OsdSignals> = now.iter().zip(earlier).map(|(now, earlier)| now.since(earlier)).collect();
    let iowaits: Option<Vec<f64>> = signals.iter().map(|signals| signals.iowait_percent).collect();
    if let Some(percent) = iowaits.filter(|_| has_hosts_of_their_own) {
        return Ok(DlrSignals { percent, source: SignalSource::Iowait });
    }
    if now.iter().any(|counters| counters.device.is_none()) {
        return Err(Error::Unsuitable("the policy dlr cannot read the device of an OSD".to_owned()));
    }
    let awaits: Vec<Option<f64>> = signals.iter().map(|signals| signals.await_millis).collect();
    Ok(DlrSignals { percent: iowait_stand_in(&awaits), source: SignalSource::StandIn })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::DeviceCounters;
    use crate::host::{CpuTimes, HostCounters};

    /// A sample with an await of `read_millis` per read and this %iowait, when it follows one with `step` lower by 1.
    fn sample(step: u64, read_millis: u64, iowait: u64) -> SignalCounters {
        SignalCounters {
            device: Some(DeviceCounters { reads: step, read_millis: step * read_millis, busy_millis: 0 }),
            host: HostCounters {
                io_pressure_percent: None,
                cpu: Some(CpuTimes { iowait: step * iowait, total: step * 100 }),
            },
            read_at: Instant::now() + Duration::from_secs(step),
        }
    }

    #[test]
    fn iowait_is_used_if_every_osd_has_its_own_host() {
        let (earlier, now) = ([sample(1, 10, 5), sample(1, 40, 60)], [sample(2, 10, 5), sample(2, 40, 60)]);
        let signals = dlr_signals(&now, &earlier, true).unwrap();
        assert_eq!(signals, DlrSignals { percent: vec![5.0, 60.0], source: SignalSource::Iowait });
        let signals = dlr_signals(&now, &earlier, false).unwrap();
        assert_eq!(signals, DlrSignals { percent: vec![0.0, 75.0], source: SignalSource::StandIn });
    }

    #[test]
    fn host_without_iowait_leads_to_the_stand_in() {
        let earlier = [sample(1, 10, 5), sample(1, 40, 60)];
        let mut now = [sample(2, 10, 5), sample(2, 40, 60)];
        now[1].host.cpu = None;
        assert_eq!(dlr_signals(&now, &earlier, true).unwrap().source, SignalSource::StandIn);
        now[1].device = None;
        assert!(dlr_signals(&now, &earlier, true).is_err());
    }

    #[test]
    fn shared_and_unknown_hosts_are_not_their_own() {
        let hosts = |names: &[Option<&str>]| {
            let names: Vec<Option<String>> = names.iter().map(|name| name.map(str::to_owned)).collect();
            have_hosts_of_their_own(&names)
        };
        assert!(hosts(&[Some("a"), Some("b")]));
        assert!(!hosts(&[Some("a"), Some("a")]) && !hosts(&[Some("a"), None]));
    }
}
