//! Many measurements of one store: each kind of load with each size and each parallelism (Hou 2017, sections 3 and 4), as
//! steps that [`course`](crate::course) goes through. Repetitions of the whole lie behind each other, so that what changes
//! slowly touches every measurement alike.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::asked::Asked;
use crate::load::{Load, Until};
use crate::operation::Operation;
use crate::random::mix;
use crate::sizes::Sizes;

/// Objects that are made for reading, at the most, and how many bytes they take together.
const MOST_PREPARED: u64 = 10_000;
const MOST_PREPARED_BYTES: f64 = 512e6;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Survey {
    /// What is asked, in this order.
    pub asked: Vec<Asked>,
    /// When a measurement ends.
    pub until: Until,
    /// So long before anything counts.
    pub warm_up: Duration,
    /// Objects that are there to be read; `None` for as many as are usual.
    pub objects: Option<u64>,
    /// What is drawn by chance follows from it.
    pub seed: u64,
}

/// One measurement: a load on objects of some sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is asked.
    pub load: Load,
    /// How large the objects are.
    pub sizes: Sizes,
    /// Objects that are there to be read before it begins, at the least.
    pub objects: u64,
    /// Which of several of the same, from 1 on.
    pub repeat: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked().fmt(f)
    }
}

impl Step {
    /// What is asked.
    #[must_use]
    pub fn asked(&self) -> Asked {
        let Load { mix, parallel, pace, .. } = self.load.clone();
        Asked { mix, sizes: self.sizes.clone(), parallel, pace }
    }

    /// Whether nothing is there that it needs.
    #[must_use]
    pub fn writes_only(&self) -> bool {
        self.load.mix.has_only(Operation::Put)
    }
}

impl Survey {
    /// Refuses what cannot be measured, in words for whoever asked for it.
    pub fn check(&self, most_object_bytes: u64) -> Result<(), String> {
        if self.asked.is_empty() {
            return Err("nothing is to be measured".to_owned());
        }
        if let Some(Asked { sizes, .. }) =
            self.asked.iter().find(|asked| asked.sizes.most() > most_object_bytes)
        {
            return Err(format!(
                "objects of {sizes} may be larger than {most_object_bytes} bytes, the most that this store takes"
            ));
        }
        let takes_away = |asked: &&Asked| {
            let mix = &asked.mix;
            mix.share(Operation::Delete) > mix.share(Operation::Put) && mix.operations().count() > 1
        };
        if let Some(Asked { mix, .. }) = self.asked.iter().find(takes_away) {
            return Err(format!("{mix} removes more than it writes: it would run out of objects"));
        }
        let most = self.most_parallel();
        if let Some(objects) = self.objects.filter(|objects| *objects < most) {
            return Err(format!(
                "{objects} objects are too few for {most} requests at a time, each of which has some of its own"
            ));
        }
        Ok(())
    }

    /// The most requests at a time.
    #[must_use]
    pub fn most_parallel(&self) -> u64 {
        self.asked.iter().map(|asked| asked.parallel).max().unwrap_or(1) as u64
    }

    /// All measurements of a round, in their order.
    #[must_use]
    pub fn steps(&self, repeat: u32) -> Vec<Step> {
        self.asked.iter().map(|asked| self.step(asked, repeat)).collect()
    }

    /// One of them.
    #[must_use]
    pub fn step(&self, asked: &Asked, repeat: u32) -> Step {
        let seed = mix(self.seed ^ mix(u64::from(repeat)));
        let Asked { mix, sizes, parallel, pace } = asked.clone();
        // What was removed before it counts cannot be removed again.
        let is_consuming = mix.operations().all(|operation| operation == Operation::Delete);
        let warm_up = if is_consuming { Duration::ZERO } else { self.warm_up };
        let objects = self.objects_of(&sizes);
        let load = Load { mix, parallel, pace, until: self.until, warm_up, seed, phase: 0.0 };
        Step { load, sizes, objects, repeat }
    }

    fn objects_of(&self, sizes: &Sizes) -> u64 {
        let usual = (MOST_PREPARED_BYTES / sizes.mean().max(1.0)) as u64;
        // Of what reads so often, no more are read.
        let usual = usual.min(self.until.requests.unwrap_or(u64::MAX));
        let wanted = self.objects.unwrap_or_else(|| usual.clamp(1, MOST_PREPARED));
        wanted.max(self.most_parallel())
    }
}

#[cfg(test)]
mod tests;
