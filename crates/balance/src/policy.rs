//! How affinities are decided: by prediction, or as in the paper.

use std::time::{Duration, Instant};

use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::controller::{Controller, Decision, Idle, Options, Round};
use tradewind_model::affinity::dlr::{self, Measured, Thresholds};

use crate::collector::Collector;
use crate::dlr_signal::{DlrSignals, SignalSource, dlr_signals, have_hosts_of_their_own};
use crate::error::{Error, Result};
use crate::signals::SignalCounters;

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
    /// The signals, one per OSD.
    pub signals_percent: Vec<f64>,
    /// Their kind.
    pub source: SignalSource,
    /// The new affinities, one per OSD.
    pub affinities: Vec<Affinity>,
    /// True if any affinity changes.
    pub is_change: bool,
}

impl Outcome {
    /// The affinities to set, if any.
    pub fn changed_affinities(&self) -> Option<&[Affinity]> {
        match self {
            Self::Predict(
                Decision::Set { affinities, .. }
                | Decision::Undo { affinities, .. }
                | Decision::KeepPart { affinities, .. },
            ) => Some(affinities),
            Self::Dlr(Some(DlrRound { affinities, is_change: true, .. })) => Some(affinities),
            Self::Predict(Decision::Wait(_) | Decision::Keep { .. }) | Self::Dlr(_) => None,
        }
    }
}

/// The state of a policy for a set of OSDs.
#[derive(Debug, Clone)]
pub(crate) enum PolicyState {
    Predict(Box<Controller>),
    Dlr(DlrState),
}

#[derive(Debug, Clone)]
pub(crate) struct DlrState {
    thresholds: Thresholds,
    interval: Duration,
    has_hosts_of_their_own: bool,
    previous: Option<SignalSample>,
}

#[derive(Debug, Clone)]
struct SignalSample {
    counters: Vec<SignalCounters>,
    at: Instant,
}

impl PolicyState {
    /// The state for the collector's OSDs. The paper's policy fails if a device can be read neither by this host nor by an
    /// agent.
    pub fn new(policy: Policy, collector: &Collector) -> Result<Self> {
        let hostnames = collector.hostnames();
        match policy {
            Policy::Predict(options) => {
                Ok(Self::Predict(Box::new(Controller::new(hostnames.len(), options))))
            }
            Policy::Dlr { thresholds, interval } => {
                let has_hosts_of_their_own = have_hosts_of_their_own(&hostnames);
                if let Some(osd) = collector.unmeasured_osd(!has_hosts_of_their_own) {
                    return Err(Error::Unsuitable(format!(
                        "the policy dlr measures devices or hosts of OSDs, and osd.{osd} is neither on this host nor on \
                         one with an agent; run \"tradewind balance agent\" there, or use the default policy"
                    )));
                }
                Ok(Self::Dlr(DlrState { thresholds, interval, has_hosts_of_their_own, previous: None }))
            }
        }
    }

    /// Decides a round. `signals` are the counters of devices and hosts in this round, in the order of the OSDs.
    pub fn decide(&mut self, round: &Round<'_>, signals: &[Option<SignalCounters>]) -> Result<Outcome> {
        match self {
            Self::Predict(controller) => Ok(Outcome::Predict(controller.decide(round))),
            Self::Dlr(state) => Ok(Outcome::Dlr(state.decide(round, signals)?)),
        }
    }

    /// True while the effect of a step is measured.
    pub fn is_verifying(&self) -> bool {
        match self {
            Self::Predict(controller) => controller.is_verifying(),
            Self::Dlr(_) => false,
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

impl DlrState {
    fn decide(&mut self, round: &Round<'_>, signals: &[Option<SignalCounters>]) -> Result<Option<DlrRound>> {
        let now = Instant::now();
        if self.previous.as_ref().is_some_and(|previous| now - previous.at < self.interval) {
            return Ok(None);
        }
        let Some(counters) = signals.iter().copied().collect() else { return Ok(None) };
        let sample = SignalSample { counters, at: now };
        let Some(previous) = self.previous.replace(sample.clone()) else { return Ok(None) };
        let DlrSignals { percent: signals_percent, source } =
            dlr_signals(&sample.counters, &previous.counters, self.has_hosts_of_their_own)?;
        let osds = signals_percent.iter().zip(round.affinities);
        let measured: Vec<Measured> = osds
            .map(|(signal, affinity)| Measured { signal_percent: *signal, affinity: *affinity })
            .collect();
        let mut affinities = dlr::adjust(&measured, &self.thresholds);
        for osd in round.fixed_osds {
            affinities[*osd] = round.affinities[*osd];
        }
        let is_change = affinities != round.affinities;
        Ok(Some(DlrRound { signals_percent, source, affinities, is_change }))
    }
}

/// A sentence that says what an outcome means. `is_applied` is false for a dry run.
pub fn explain(outcome: &Outcome, is_applied: bool) -> String {
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    let set = if is_applied { "set" } else { "would set" };
    let decision = match outcome {
        Outcome::Predict(decision) => decision,
        Outcome::Dlr(None) => return "waiting for the next round of the policy dlr".to_owned(),
        Outcome::Dlr(Some(DlrRound { is_change: false, source, .. })) => {
            return format!("the policy dlr changes nothing (signal: {source})");
        }
        Outcome::Dlr(Some(DlrRound { source, .. })) => {
            return format!("{set} new affinities by the policy dlr (signal: {source})");
        }
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
        Decision::KeepPart { measured_gain, .. } => format!(
            "the last step stays, measured {}, without the OSDs whose change costs throughput",
            percent(*measured_gain)
        ),
        Decision::Undo { measured_gain, .. } => {
            format!("undid the last step: measured only {}", percent(*measured_gain))
        }
    }
}

#[cfg(test)]
mod tests;
