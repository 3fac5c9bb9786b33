//! The plan that a service is read under while its objects are served, and what it follows from: the profile of the store, where it
//! was tuned, as for the commands that move data. It is found at the start and stays until the next one.

use std::fmt;
use std::sync::Arc;

use tradewind_core::{Clock, ObjectStore};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::{Cell, Surface};
use tradewind_volume::Planned;
use tradewind_volume::planned::PlannedOptions;

use crate::profiles::here::cores;
use crate::profiles::{Known, Profiles};
use crate::settings::ByteSize;

/// Of the memory that requests are admitted to, so many quarters may be fetched ahead of them: the other is for those that come.
const QUARTERS: usize = 3;
/// Sizes that ranges may have where it is known what they carry, and the one that they have otherwise: as many connections open their
/// windows at a time as memory allows, and a request's own cost is a hundredth yet.
const RANGES: [u64; 3] = [RANGE, 512 << 10, 256 << 10];
const RANGE: u64 = 1 << 20;
/// Smaller ones are more requests: they have to carry so much more.
const WORTH: f64 = 1.05;
/// Sizes whose requests are told as examples.
const TOLD: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// What a plan follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nothing is known of the store.
    Nothing,
    /// It was tuned from here, at this time.
    Profile(String),
    /// The profile of this store, made elsewhere or of another, scaled.
    Scaled(String),
}

impl Source {
    /// One word of it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Nothing => "default",
            Self::Profile(_) => "profile",
            Self::Scaled(_) => "scaled",
        }
    }
}

/// How a service is read.
#[derive(Debug, Clone)]
pub struct ServedPlan {
    /// The plan.
    pub plan: Plan,
    /// What it follows from.
    pub source: Source,
    /// The maximum number of connections to the service.
    pub connections: usize,
    /// Bytes that are fetched ahead, for all.
    ahead_bytes: u64,
    retries: RetryOptions,
    tags_are_md5: bool,
}

impl ServedPlan {
    /// That of the store of this name, where requests are admitted to so many bytes.
    #[must_use]
    pub fn of(store: &str, memory_bytes: usize, retries: RetryOptions) -> Self {
        let known = Profiles::find().filter(Profiles::has_any).and_then(|all| all.known(store, cores()));
        Self::from(known, memory_bytes, retries)
    }

    fn from(known: Option<Known>, memory_bytes: usize, retries: RetryOptions) -> Self {
        let ahead_bytes = (memory_bytes / 4 * QUARTERS) as u64;
        // More than that nobody has who is alone.
        let plan = Plan { memory_bytes: ahead_bytes / 3 * 2, stream_bytes: RANGE, ..Plan::default() };
        let connections = plan.requests;
        let mut found =
            Self { plan, source: Source::Nothing, connections, ahead_bytes, retries, tags_are_md5: false };
        let Some(Known { profile, surfaces, is_carried }) = known else { return found };
        let (reads, others): (Vec<_>, Vec<_>) =
            surfaces.into_iter().partition(|(direction, _)| *direction == Direction::Read);
        // It is for reading. Where nobody looked at that, what is known of writes is closer than nothing.
        let surfaces = if reads.is_empty() { others } else { reads };
        let surfaces: Vec<Surface> = surfaces.into_iter().map(|(_, surface)| surface).collect();
        if !surfaces.is_empty() {
            found.plan = best_ranges(plan.tuned(&surfaces), &surfaces);
            found.source =
                if is_carried { Source::Scaled(profile.store) } else { Source::Profile(profile.made) };
        }
        found
    }

    /// Ranges of one object at a time, at the most.
    #[must_use]
    pub fn ahead(&self) -> usize {
        under_way(&self.plan)
    }

    /// The same of a store whose tags are the MD5s of bytes, always.
    #[must_use]
    pub fn with_md5_tags(self) -> Self {
        Self { tags_are_md5: true, ..self }
    }

    /// Reads a store so.
    pub fn over(&self, store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Arc<Planned> {
        let Self { plan, ahead_bytes, retries, tags_are_md5, .. } = *self;
        Planned::new(store, PlannedOptions { plan, ahead_bytes, retries, tags_are_md5 }, clock)
    }
}

/// In words for whoever starts a server.
impl fmt::Display for ServedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, source, .. } = self;
        match source {
            Source::Nothing => {
                write!(f, "this store was never tuned: {} requests at a time", plan.requests)?;
            }
            Source::Profile(made) => write!(f, "by the profile of {made}: {} at a time", of_sizes(plan))?,
            Source::Scaled(store) => {
                write!(f, "by the profile of {store}, scaled: {} at a time", of_sizes(plan))?;
            }
        }
        write!(f, "; of a large object up to {} ranges of {}", self.ahead(), ByteSize(plan.stream_bytes))
    }
}

/// Half of those that memory is for: the other half waits for those before it.
fn under_way(plan: &Plan) -> usize {
    let half = Plan { memory_bytes: plan.memory_bytes / 2, ..*plan };
    half.ahead().min(plan.of_one_object(plan.stream_bytes))
}

/// With ranges of the size that carries the most within the memory that there is for one object.
fn best_ranges(plan: Plan, surfaces: &[Surface]) -> Plan {
    let carries = |bytes: u64| {
        let parallel = under_way(&Plan { stream_bytes: bytes, ..plan });
        let all = surfaces.iter().map(|surface| surface.infer(Cell { bytes, parallel }).bandwidth());
        all.fold(f64::INFINITY, f64::min)
    };
    let best = RANGES.into_iter().map(|bytes| (bytes, carries(bytes)));
    let best = best.reduce(|best, next| if next.1 > best.1 * WORTH { next } else { best });
    best.map_or(plan, |(bytes, _)| Plan { stream_bytes: bytes, ..plan })
}

fn of_sizes(plan: &Plan) -> String {
    TOLD.map(|bytes| format!("{} x {}", ByteSize(bytes), plan.parallel(bytes))).join(", ")
}

#[cfg(test)]
mod tests {
    use tradewind_model::tune::{Belief, Sample};

    use super::*;
    use crate::profiles::Profile;

    fn surface(latency: f64) -> Surface {
        let cell = Cell { bytes: 4 << 10, parallel: 64 };
        Surface::new(
            Belief::default().with_round_trip(latency),
            vec![Sample { cell, latency, error: 0.02, tail: None, is_seen: false }],
        )
    }

    fn plan(known: Option<Known>) -> ServedPlan {
        ServedPlan::from(known, 128 << 20, RetryOptions::default())
    }

    #[test]
    fn what_is_known_is_told() {
        let unknown = plan(None);
        assert_eq!(
            unknown.to_string(),
            "this store was never tuned: 32 requests at a time; of a large object up to 32 ranges of 1MiB"
        );
        let known = |surfaces, is_carried| {
            let (store, made) = ("S3Store(there)".to_owned(), "2026-11-23T12:00:00Z".to_owned());
            plan(Some(Known { profile: Profile { store, made, ..Profile::default() }, surfaces, is_carried }))
        };
        let far = known(vec![(Direction::Read, surface(0.2))], false);
        let told = far.to_string();
        assert!(told.starts_with("by the profile of 2026-11-23T12:00:00Z: 4KiB x "), "{told}");
        assert!(far.plan.parallel(4 << 10) > 32, "{far:?}");
        let scaled = known(vec![(Direction::Read, surface(0.2))], true);
        assert_eq!((scaled.source.word(), scaled.plan), ("scaled", far.plan));
        assert_eq!(known(Vec::new(), false).source, Source::Nothing);
        // What is written decides only where nothing was read.
        let both = known(vec![(Direction::Write, surface(0.001)), (Direction::Read, surface(0.2))], false);
        assert_eq!(both.plan, far.plan);
        let written = known(vec![(Direction::Write, surface(0.2))], false);
        assert_eq!(written.plan, far.plan);
    }

    #[test]
    fn ranges_are_as_small_as_memory_needs_them() {
        let law = |round_trip: f64| {
            let sample = |bytes, parallel, latency| {
                let cell = Cell { bytes, parallel };
                Sample { cell, latency, error: 0.02, tail: None, is_seen: false }
            };
            // A connection carries 15 MB/s, all of them 110.
            let of = |bytes: u64, parallel: usize| {
                let alone = round_trip + bytes as f64 / 15e6;
                sample(bytes, parallel, alone.max((bytes * parallel as u64) as f64 / 110e6))
            };
            let samples =
                vec![of(4 << 10, 256), of(256 << 10, 256), of(1 << 20, 8), of(1 << 20, 128), of(8 << 20, 1)];
            vec![Surface::new(Belief::default().with_round_trip(round_trip), samples)]
        };
        let ranges = |round_trip: f64, memory_bytes: u64| {
            let surfaces = law(round_trip);
            let plan = Plan { memory_bytes, ..Plan::default() }.tuned(&surfaces);
            best_ranges(plan, &surfaces).stream_bytes
        };
        assert_eq!(ranges(0.001, 32 << 20), RANGE, "any will do");
        assert!(ranges(0.3, 16 << 20) < RANGE, "few fit, and each waits for long");
        assert_eq!(ranges(0.3, 512 << 20), RANGE);
    }
}
