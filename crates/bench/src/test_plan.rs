//! A plan of many measurements of one store: every combination of mix, size and concurrency (Hou 2017, sections 3 and
//! 4), as steps that [`runner`](crate::runner) runs. The whole plan is repeated in rounds, so that slow drift affects
//! every measurement equally.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{Load, StopCondition};
use crate::load_spec::LoadSpec;
use crate::operation::Operation;
use crate::random::mix;
use crate::size_distribution::SizeDistribution;

/// Default maximum of objects created for reading: number, and total bytes.
const MAX_PREPARED_OBJECTS: u64 = 10_000;
const MAX_PREPARED_BYTES: f64 = 512e6;

/// A test plan.
#[derive(Debug, Clone)]
pub struct TestPlan {
    /// The loads, in order.
    pub loads: Vec<LoadSpec>,
    /// Stop condition of each measurement.
    pub stop_condition: StopCondition,
    /// Time before the measurement window opens.
    pub warm_up: Duration,
    /// Objects created for reading; `None` for the default.
    pub objects: Option<u64>,
    /// Random seed.
    pub seed: u64,
}

/// One measurement: a load on objects of given sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The load.
    pub load: Load,
    /// Object sizes.
    pub sizes: SizeDistribution,
    /// Minimum number of objects that must exist for reading before it begins.
    pub objects: u64,
    /// Round number, counted from 1.
    pub round: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load_spec().fmt(f)
    }
}

impl Step {
    /// The load in its text form.
    #[must_use]
    pub fn load_spec(&self) -> LoadSpec {
        let Load { mix, concurrency, arrival_mode, .. } = self.load.clone();
        LoadSpec { mix, sizes: self.sizes.clone(), concurrency, arrival_mode }
    }

    /// Returns true if it only writes and needs no existing objects.
    #[must_use]
    pub fn writes_only(&self) -> bool {
        self.load.mix.is_only(Operation::Put)
    }
}

impl TestPlan {
    /// Validates the plan. The error message is meant for the user.
    pub fn check(&self, max_object_bytes: u64) -> Result<(), String> {
        if self.loads.is_empty() {
            return Err("there is nothing to measure".to_owned());
        }
        if let Some(LoadSpec { sizes, .. }) =
            self.loads.iter().find(|spec| spec.sizes.max() > max_object_bytes)
        {
            return Err(format!(
                "objects of {sizes} may be larger than {max_object_bytes} bytes, the limit of this store"
            ));
        }
        let deletes_more = |spec: &&LoadSpec| {
            let mix = &spec.mix;
            mix.share(Operation::Delete) > mix.share(Operation::Put) && mix.operations().count() > 1
        };
        if let Some(LoadSpec { mix, .. }) = self.loads.iter().find(deletes_more) {
            return Err(format!("{mix} deletes more than it writes: it would run out of objects"));
        }
        let max_concurrency = self.max_concurrency();
        if let Some(objects) = self.objects.filter(|objects| *objects < max_concurrency) {
            return Err(format!(
                "{objects} objects are too few for {max_concurrency} concurrent requests: each needs at least one of its own"
            ));
        }
        Ok(())
    }

    /// The highest concurrency of any load.
    #[must_use]
    pub fn max_concurrency(&self) -> u64 {
        self.loads.iter().map(|spec| spec.concurrency).max().unwrap_or(1) as u64
    }

    /// All measurements of a round, in order.
    #[must_use]
    pub fn steps(&self, round: u32) -> Vec<Step> {
        self.loads.iter().map(|spec| self.step(spec, round)).collect()
    }

    /// The measurement of a load in a round.
    #[must_use]
    pub fn step(&self, spec: &LoadSpec, round: u32) -> Step {
        let seed = mix(self.seed ^ mix(u64::from(round)));
        let LoadSpec { mix, sizes, concurrency, arrival_mode } = spec.clone();
        // A warm-up would delete objects that the measurement needs.
        let is_consuming = mix.operations().all(|operation| operation == Operation::Delete);
        let warm_up = if is_consuming { Duration::ZERO } else { self.warm_up };
        let objects = self.object_count(&sizes);
        let load = Load {
            mix,
            concurrency,
            arrival_mode,
            stop_condition: self.stop_condition,
            warm_up,
            seed,
            phase: 0.0,
        };
        Step { load, sizes, objects, round }
    }

    fn object_count(&self, sizes: &SizeDistribution) -> u64 {
        let default = (MAX_PREPARED_BYTES / sizes.mean().max(1.0)) as u64;
        // A load never reads more objects than it has requests.
        let default = default.min(self.stop_condition.max_requests.unwrap_or(u64::MAX));
        let requested = self.objects.unwrap_or_else(|| default.clamp(1, MAX_PREPARED_OBJECTS));
        requested.max(self.max_concurrency())
    }
}

#[cfg(test)]
mod tests;
