//! How affinities are decided: by prediction, or as in the paper.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::controller::{Controller, Decision, Idle, Options, Round};
use tradewind_model::affinity::dlr::{self, Measured, Thresholds};

use crate::ceph_process::CephProcess;
use crate::device::{DeviceCounters, devices_on, iowait_stand_in};
use crate::error::{Error, Result};

/// The policies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Predicts, acts once, verifies ([`tradewind_model::affinity::controller`]).
    Predict(Options),
    /// The controller of Noel and Lama (2018), Algorithm 1.
    Dlr {
        /// Its thresholds.
        thresholds: Thresholds,
        /// Time between two rounds of the algorithm.
        interval: Duration,
    },
}

impl Policy {
    /// The paper's policy with its own parameters.
    pub fn dlr() -> Self {
        Self::Dlr { thresholds: Thresholds::default(), interval: Duration::from_secs(dlr::INTERVAL_SECONDS) }
    }
}

/// The outcome of a round.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// That of [`Policy::Predict`].
    Predict(Decision),
    /// That of [`Policy::Dlr`]: the signals in percent, one per OSD, and the new affinities; `None` between two rounds of
    /// the algorithm.
    Dlr(Option<DlrRound>),
}

/// A round of Algorithm 1.
#[derive(Debug, Clone, PartialEq)]
pub struct DlrRound {
    /// The stand-in for %iowait ([`iowait_stand_in`]), one per OSD.
    pub signals_percent: Vec<f64>,
    /// The new affinities, one per OSD.
    pub affinities: Vec<Affinity>,
    /// True if any affinity changes.
    pub is_change: bool,
}

impl Outcome {
    /// The affinities to set, if any.
    pub fn changed_affinities(&self) -> Option<&[Affinity]> {
        match self {
            Self::Predict(Decision::Set { affinities, .. } | Decision::Undo { affinities, .. }) => {
                Some(affinities)
            }
            Self::Dlr(Some(DlrRound { affinities, is_change: true, .. })) => Some(affinities),
            Self::Predict(Decision::Wait(_) | Decision::Keep { .. }) | Self::Dlr(_) => None,
        }
    }
}

/// The state of a policy for a set of OSDs.
#[derive(Debug, Clone)]
pub(crate) enum PolicyState {
    Predict(Controller),
    Dlr(DlrState),
}

#[derive(Debug, Clone)]
pub(crate) struct DlrState {
    thresholds: Thresholds,
    interval: Duration,
    /// Device names in the order of the OSDs.
    devices: Vec<String>,
    previous: Option<DeviceSample>,
}

#[derive(Debug, Clone)]
struct DeviceSample {
    counters: Vec<DeviceCounters>,
    at: Instant,
}

impl PolicyState {
    /// The state for these OSDs. The paper's policy fails if an OSD is not on this host.
    pub fn new(policy: Policy, osds: &[u32], ceph: &mut CephProcess) -> Result<Self> {
        match policy {
            Policy::Predict(options) => Ok(Self::Predict(Controller::new(osds.len(), options))),
            Policy::Dlr { thresholds, interval } => {
                let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                let devices = devices_on(hostname.trim(), &ceph.json(&["osd", "metadata"])?);
                let devices = in_order(osds, &devices)?;
                Ok(Self::Dlr(DlrState { thresholds, interval, devices, previous: None }))
            }
        }
    }

    /// Decides a round.
    pub fn decide(&mut self, round: &Round<'_>) -> Result<Outcome> {
        match self {
            Self::Predict(controller) => Ok(Outcome::Predict(controller.decide(round))),
            Self::Dlr(state) => Ok(Outcome::Dlr(state.decide(round)?)),
        }
    }

    /// The estimated service rates, where the policy has them.
    pub fn service_rates(&self) -> Vec<Option<f64>> {
        match self {
            Self::Predict(controller) => controller.service_rates(),
            Self::Dlr(_) => Vec::new(),
        }
    }
}

fn in_order(osds: &[u32], devices: &BTreeMap<u32, String>) -> Result<Vec<String>> {
    let devices = osds.iter().map(|osd| {
        devices.get(osd).cloned().ok_or_else(|| {
            Error::Unsuitable(format!(
                "the policy dlr reads the devices of this host, and osd.{osd} is not on it; use the default policy"
            ))
        })
    });
    devices.collect()
}

impl DlrState {
    fn decide(&mut self, round: &Round<'_>) -> Result<Option<DlrRound>> {
        let now = Instant::now();
        if self.previous.as_ref().is_some_and(|previous| now - previous.at < self.interval) {
            return Ok(None);
        }
        let counters = self.devices.iter().map(|device| DeviceCounters::read(device));
        let counters: Vec<DeviceCounters> = counters.collect::<Result<_>>()?;
        let sample = DeviceSample { counters, at: now };
        let Some(previous) = self.previous.replace(sample.clone()) else { return Ok(None) };
        let pairs = sample.counters.iter().zip(&previous.counters);
        let awaits: Vec<Option<f64>> = pairs.map(|(now, earlier)| now.await_since(*earlier)).collect();
        let signals_percent = iowait_stand_in(&awaits);
        let osds = signals_percent.iter().zip(round.affinities);
        let measured: Vec<Measured> = osds
            .map(|(signal, affinity)| Measured { signal_percent: *signal, affinity: *affinity })
            .collect();
        let affinities = dlr::adjust(&measured, &self.thresholds);
        let is_change = affinities != round.affinities;
        Ok(Some(DlrRound { signals_percent, affinities, is_change }))
    }
}

/// A sentence that says what an outcome means. `is_applied` is false for a dry run.
pub fn explain(outcome: &Outcome, is_applied: bool) -> String {
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    let set = if is_applied { "set" } else { "would set" };
    let decision = match outcome {
        Outcome::Predict(decision) => decision,
        Outcome::Dlr(None) => return "waiting for the next round of the policy dlr".to_owned(),
        Outcome::Dlr(Some(DlrRound { is_change: false, .. })) => {
            return "the policy dlr changes nothing".to_owned();
        }
        Outcome::Dlr(Some(_)) => return format!("{set} new affinities by the policy dlr"),
    };
    match decision {
        Decision::Wait(Idle::FewReads) => "too few reads to tell fast OSDs from slow ones".to_owned(),
        Decision::Wait(Idle::Measuring) => "measuring".to_owned(),
        Decision::Wait(Idle::NoGain(gain)) => {
            format!("no other affinities promise a gain worth a change (best: {})", percent(*gain))
        }
        Decision::Wait(Idle::Confirming(gain)) => {
            format!("other affinities promise {}; waiting for another round that says so", percent(*gain))
        }
        Decision::Wait(Idle::Settling) => "measuring the effect of the last step".to_owned(),
        Decision::Wait(Idle::RecentlyChanged) => {
            "a gain is predicted, but an OSD to change was changed within a minute".to_owned()
        }
        Decision::Set { predicted_gain, .. } => {
            format!("{set} new affinities: predicted throughput {}", percent(*predicted_gain))
        }
        Decision::Keep { measured_gain } => {
            format!("the last step stays: measured {}", percent(*measured_gain))
        }
        Decision::Undo { measured_gain, .. } => {
            format!("undid the last step: measured only {}", percent(*measured_gain))
        }
    }
}
