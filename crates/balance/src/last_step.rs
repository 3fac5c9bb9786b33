//! The last step of a balancer, in the cluster's `config-key` store. It stays there when the balancer ends and the
//! affinities are restored, so that `tradewind balance status` can tell afterwards what balancing brought.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tradewind_model::affinity::controller::Decision;

use crate::config_key;
use crate::error::Result;
use crate::monitors::Monitors;
use crate::policy::Outcome;

const KEY: &str = "tradewind/balance/last-step";
const VERSION: u32 = 1;
/// Maximum number of OSDs whose original shares are recorded: a value in the store has at most 64 KiB.
const MAX_OSDS: usize = 2048;
/// Shares are recorded in this fraction of the whole.
const SHARE_UNIT: f64 = 1e-6;

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// Its effect is not measured yet. The policy `dlr` measures none.
    Set,
    /// It brought what it should.
    Kept,
    /// It did not, and was undone.
    Undone,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastStep {
    version: u32,
    /// The balancer that made it.
    pub owner: String,
    /// When the affinities were set, in seconds since 1970.
    pub set_at_unix_seconds: u64,
    /// Its state.
    pub state: StepState,
    /// Predicted gain in throughput, as a share.
    pub predicted_gain: Option<f64>,
    /// Measured gain as a share.
    pub measured_gain: Option<f64>,
    /// Shares of the reads under the original affinities, by OSD, in millionths.
    #[serde(default)]
    original_shares: BTreeMap<u32, u32>,
}

/// The share of an OSD under the original affinities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OriginalShare {
    pub osd: u32,
    pub share: f64,
}

impl LastStep {
    /// The step after an outcome, given the step before it. `None` if the outcome is neither a step nor the end of one.
    pub(crate) fn after(
        outcome: &Outcome,
        previous: Option<&Self>,
        owner: &str,
        original_shares: impl FnOnce() -> Vec<OriginalShare>,
    ) -> Option<Self> {
        let ended = |state, measured_gain| {
            let step = previous?.clone();
            Some(Self { state, measured_gain: Some(measured_gain), ..step })
        };
        let predicted_gain = match outcome {
            Outcome::Predict(Decision::Keep { measured_gain } | Decision::KeepPart { measured_gain, .. }) => {
                return ended(StepState::Kept, *measured_gain);
            }
            Outcome::Predict(Decision::Undo { measured_gain, .. }) => {
                return ended(StepState::Undone, *measured_gain);
            }
            Outcome::Predict(Decision::Set { predicted_gain, .. }) => Some(*predicted_gain),
            Outcome::Dlr(_) => None,
            Outcome::Predict(_) => return None,
        };
        outcome.changed_affinities()?;
        let shares = original_shares();
        let shares = if shares.len() <= MAX_OSDS { shares } else { Vec::new() };
        let in_units = |share: f64| (share / SHARE_UNIT).round() as u32;
        Some(Self {
            version: VERSION,
            owner: owner.to_owned(),
            set_at_unix_seconds: unix_seconds(),
            state: StepState::Set,
            predicted_gain,
            measured_gain: None,
            original_shares: shares.iter().map(|osd| (osd.osd, in_units(osd.share))).collect(),
        })
    }

    /// The share of an OSD under the original affinities, if it was recorded.
    pub fn original_share(&self, osd: u32) -> Option<f64> {
        self.original_shares.get(&osd).map(|share| f64::from(*share) * SHARE_UNIT)
    }

    /// Reads the cluster's last step. `None` if there is none, or one of another version.
    pub fn load(ceph: &mut Monitors) -> Result<Option<Self>> {
        let value: Option<Value> = config_key::load(ceph, KEY)?;
        let known =
            value.filter(|value| value.get("version").and_then(Value::as_u64) == Some(VERSION.into()));
        known.map(|value| config_key::parse(KEY, value)).transpose()
    }

    /// Writes it.
    pub(crate) fn save(&self, ceph: &mut Monitors) -> Result<()> {
        config_key::save(ceph, KEY, self)
    }
}

/// The time in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use tradewind_model::affinity::Affinity;
    use tradewind_model::affinity::controller::Idle;

    use super::*;
    use crate::dlr_signal::SignalSource;
    use crate::policy::DlrRound;

    fn after(outcome: &Outcome, previous: Option<&LastStep>) -> Option<LastStep> {
        let shares = || vec![OriginalShare { osd: 3, share: 0.25 }];
        LastStep::after(outcome, previous, "process 1 on here", shares)
    }

    #[test]
    fn step_is_recorded_with_its_gains() {
        let affinities = vec![Affinity::MAX];
        let set = Outcome::Predict(Decision::Set { affinities: affinities.clone(), predicted_gain: 0.4 });
        let step = after(&set, None).unwrap();
        assert_eq!((step.state, step.predicted_gain, step.measured_gain), (StepState::Set, Some(0.4), None));
        assert_eq!((step.original_share(3), step.original_share(4)), (Some(0.25), None));
        let undo = Outcome::Predict(Decision::Undo { affinities, measured_gain: 0.01 });
        let undone = after(&undo, Some(&step)).unwrap();
        let expected = LastStep { state: StepState::Undone, measured_gain: Some(0.01), ..step };
        assert_eq!(undone, expected);
        assert_eq!(after(&Outcome::Predict(Decision::Wait(Idle::Measuring)), Some(&undone)), None);
        assert_eq!(after(&undo, None), None);
    }

    #[test]
    fn change_of_the_policy_dlr_is_a_step_without_gains() {
        let round = |is_change| DlrRound {
            signals_percent: vec![0.0],
            source: SignalSource::Iowait,
            affinities: vec![Affinity::MAX],
            is_change,
        };
        let step = after(&Outcome::Dlr(Some(round(true))), None).unwrap();
        assert_eq!((step.state, step.predicted_gain), (StepState::Set, None));
        assert_eq!(after(&Outcome::Dlr(Some(round(false))), None), None);
        assert_eq!(after(&Outcome::Dlr(None), None), None);
    }

    #[test]
    fn record_of_many_osds_fits_into_the_store() {
        let affinities = vec![Affinity::MAX];
        let set = Outcome::Predict(Decision::Set { affinities, predicted_gain: 0.4 });
        let record = |count: u32| {
            let shares =
                || (0..count).map(|osd| OriginalShare { osd: 90_000 + osd, share: 0.999_999 }).collect();
            let step = LastStep::after(&set, None, "process 1 on here", shares).unwrap();
            serde_json::to_string(&step).unwrap().len()
        };
        assert!((20_000..65_536).contains(&record(2048)));
        assert!(record(2049) < 1000);
    }
}
