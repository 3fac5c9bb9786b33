//! The plan that `tradewind serve` uses to read from a remote service, and the source of the plan. Like for the
//! transfer commands, it is derived from a tuning profile if one applies. It is determined once, at startup.

use std::fmt;
use std::sync::Arc;

use tradewind_core::{Clock, ObjectStore};
use tradewind_layers::ReadAhead;
use tradewind_layers::read_ahead::ReadAheadOptions;
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::{OperatingPoint, Surface};

use crate::profiles::this_machine::cpus;
use crate::profiles::{ApplicableProfile, Profiles};
use crate::settings::ByteSize;

/// Quarters of the admission memory that read-ahead may use. The rest is for new requests.
const READ_AHEAD_QUARTERS: usize = 3;
/// Candidate range sizes, if the store has a profile.
const RANGE_CANDIDATES_BYTES: [u64; 3] = [DEFAULT_RANGE_BYTES, 512 << 10, 256 << 10];
/// Default range size. It is small enough for many concurrent ranges, whose congestion windows open at the same time,
/// and large enough that the fixed cost of a request is only about 1 %.
const DEFAULT_RANGE_BYTES: u64 = 1 << 20;
/// A smaller range size must improve throughput by this factor, because it needs more requests.
const MIN_GAIN: f64 = 1.05;
/// Request sizes in the printed summary.
const SUMMARY_SIZES_BYTES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// The source of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanSource {
    /// The default: the store has no profile.
    Default,
    /// A profile of this store, measured from this machine at the given time.
    Profile(String),
    /// A profile extrapolated from another client or another store; with the name of the store.
    Extrapolated(String),
}

impl PlanSource {
    /// The value of the metric label `from`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Profile(_) => "profile",
            Self::Extrapolated(_) => "extrapolated",
        }
    }
}

/// The plan for reading from a service.
#[derive(Debug, Clone)]
pub struct ServedPlan {
    /// The plan.
    pub plan: Plan,
    /// Its source.
    pub source: PlanSource,
    /// The maximum number of connections to the service.
    pub max_connections: usize,
    /// Read-ahead budget of all requests together, in bytes.
    read_ahead_bytes: u64,
    retries: RetryOptions,
    etags_are_md5: bool,
}

impl ServedPlan {
    /// Builds the plan of the store with this name. `memory_bytes` is the admission budget.
    #[must_use]
    pub fn for_store(store: &str, memory_bytes: usize, retries: RetryOptions) -> Self {
        let profile =
            Profiles::find().filter(Profiles::has_any).and_then(|all| all.for_transfers(store, cpus()));
        Self::from_profile(profile, memory_bytes, retries)
    }

    fn from_profile(profile: Option<ApplicableProfile>, memory_bytes: usize, retries: RetryOptions) -> Self {
        let read_ahead_bytes = (memory_bytes / 4 * READ_AHEAD_QUARTERS) as u64;
        // A single reader gets at most two thirds of the read-ahead budget.
        let plan = Plan {
            max_buffered_bytes: read_ahead_bytes / 3 * 2,
            stream_bytes: DEFAULT_RANGE_BYTES,
            ..Plan::default()
        };
        let mut served = Self {
            plan,
            source: PlanSource::Default,
            max_connections: plan.initial_concurrency,
            read_ahead_bytes,
            retries,
            etags_are_md5: false,
        };
        let Some(ApplicableProfile { profile, surfaces, is_extrapolated }) = profile else {
            return served;
        };
        let (reads, others): (Vec<_>, Vec<_>) =
            surfaces.into_iter().partition(|(direction, _)| *direction == Direction::Read);
        // The plan is for reads. Without samples of reads, those of writes are a better estimate than the default.
        let surfaces = if reads.is_empty() { others } else { reads };
        let surfaces: Vec<Surface> = surfaces.into_iter().map(|(_, surface)| surface).collect();
        if !surfaces.is_empty() {
            served.plan = choose_range_size(plan.tuned(&surfaces), &surfaces);
            served.source = if is_extrapolated {
                PlanSource::Extrapolated(profile.store)
            } else {
                PlanSource::Profile(profile.measured_at)
            };
        }
        served
    }

    /// Maximum number of concurrent ranges of one object.
    #[must_use]
    pub fn max_concurrent_ranges(&self) -> usize {
        concurrent_ranges(&self.plan)
    }

    /// This plan for a store where an ETag that looks like an MD5 always is the MD5 of the bytes.
    #[must_use]
    pub fn with_md5_etags(self) -> Self {
        Self { etags_are_md5: true, ..self }
    }

    /// Wraps a store in a read-ahead layer with this plan.
    pub fn wrap(&self, store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Arc<ReadAhead> {
        let Self { plan, read_ahead_bytes, retries, etags_are_md5, .. } = *self;
        ReadAhead::new(
            store,
            ReadAheadOptions { plan, max_read_ahead_bytes: read_ahead_bytes, retries, etags_are_md5 },
            clock,
        )
    }
}

/// Writes the summary that is printed at startup.
impl fmt::Display for ServedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, source, .. } = self;
        match source {
            PlanSource::Default => {
                write!(
                    f,
                    "default (the store was never tuned): {} concurrent requests",
                    plan.initial_concurrency
                )?;
            }
            PlanSource::Profile(measured_at) => {
                write!(f, "profile of {measured_at}: concurrency {}", concurrency_summary(plan))?
            }
            PlanSource::Extrapolated(store) => {
                write!(
                    f,
                    "extrapolated from the profile of {store}: concurrency {}",
                    concurrency_summary(plan)
                )?;
            }
        }
        write!(
            f,
            "; per large object up to {} ranges of {}",
            self.max_concurrent_ranges(),
            ByteSize(plan.stream_bytes)
        )
    }
}

/// Concurrent ranges of one object. Only half of the memory is for ranges in flight; the other half holds completed
/// ranges that wait for earlier ones.
fn concurrent_ranges(plan: &Plan) -> usize {
    let half = Plan { max_buffered_bytes: plan.max_buffered_bytes / 2, ..*plan };
    half.read_ahead_ranges().min(plan.object_concurrency(plan.stream_bytes))
}

/// Chooses the range size with the highest throughput within the memory of one object.
fn choose_range_size(plan: Plan, surfaces: &[Surface]) -> Plan {
    let throughput = |bytes: u64| {
        let concurrency = concurrent_ranges(&Plan { stream_bytes: bytes, ..plan });
        let all = surfaces
            .iter()
            .map(|surface| surface.predict(OperatingPoint { bytes, concurrency }).throughput());
        all.fold(f64::INFINITY, f64::min)
    };
    let best = RANGE_CANDIDATES_BYTES.into_iter().map(|bytes| (bytes, throughput(bytes)));
    let best = best.reduce(|best, next| if next.1 > best.1 * MIN_GAIN { next } else { best });
    best.map_or(plan, |(bytes, _)| Plan { stream_bytes: bytes, ..plan })
}

fn concurrency_summary(plan: &Plan) -> String {
    SUMMARY_SIZES_BYTES
        .map(|bytes| format!("{} x {}", ByteSize(bytes), plan.concurrency_for(bytes)))
        .join(", ")
}

#[cfg(test)]
mod tests {
    use tradewind_model::tune::{Prior, Sample};

    use super::*;
    use crate::profiles::Profile;

    fn surface(latency: f64) -> Surface {
        let point = OperatingPoint { bytes: 4 << 10, concurrency: 64 };
        Surface::new(
            Prior::default().with_rtt(latency),
            vec![Sample { point, latency, relative_error: 0.02, tail: None, from_transfer: false }],
        )
    }

    fn plan(known: Option<ApplicableProfile>) -> ServedPlan {
        ServedPlan::from_profile(known, 128 << 20, RetryOptions::default())
    }

    #[test]
    fn summary_names_the_source_of_the_plan() {
        let unknown = plan(None);
        assert_eq!(
            unknown.to_string(),
            "default (the store was never tuned): 32 concurrent requests; per large object up to 32 ranges of 1MiB"
        );
        let known = |surfaces, is_extrapolated| {
            let (store, made) = ("S3Store(there)".to_owned(), "2026-11-23T12:00:00Z".to_owned());
            plan(Some(ApplicableProfile {
                profile: Profile { store, measured_at: made, ..Profile::default() },
                surfaces,
                is_extrapolated,
            }))
        };
        let far = known(vec![(Direction::Read, surface(0.2))], false);
        let summary = far.to_string();
        assert!(summary.starts_with("profile of 2026-11-23T12:00:00Z: concurrency 4KiB x "), "{summary}");
        assert!(far.plan.concurrency_for(4 << 10) > 32, "{far:?}");
        let extrapolated = known(vec![(Direction::Read, surface(0.2))], true);
        assert_eq!((extrapolated.source.label(), extrapolated.plan), ("extrapolated", far.plan));
        assert_eq!(known(Vec::new(), false).source, PlanSource::Default);
        // Samples of writes count only without samples of reads.
        let both = known(vec![(Direction::Write, surface(0.001)), (Direction::Read, surface(0.2))], false);
        assert_eq!(both.plan, far.plan);
        let written = known(vec![(Direction::Write, surface(0.2))], false);
        assert_eq!(written.plan, far.plan);
    }

    #[test]
    fn ranges_shrink_only_if_memory_is_scarce() {
        let surface = |round_trip: f64| {
            let sample = |bytes, concurrency, latency| {
                let point = OperatingPoint { bytes, concurrency };
                Sample { point, latency, relative_error: 0.02, tail: None, from_transfer: false }
            };
            // A connection achieves 15 MB/s, all together 110 MB/s.
            let of = |bytes: u64, concurrency: usize| {
                let alone = round_trip + bytes as f64 / 15e6;
                sample(bytes, concurrency, alone.max((bytes * concurrency as u64) as f64 / 110e6))
            };
            let samples =
                vec![of(4 << 10, 256), of(256 << 10, 256), of(1 << 20, 8), of(1 << 20, 128), of(8 << 20, 1)];
            vec![Surface::new(Prior::default().with_rtt(round_trip), samples)]
        };
        let ranges = |round_trip: f64, memory_bytes: u64| {
            let surfaces = surface(round_trip);
            let plan = Plan { max_buffered_bytes: memory_bytes, ..Plan::default() }.tuned(&surfaces);
            choose_range_size(plan, &surfaces).stream_bytes
        };
        assert_eq!(ranges(0.001, 32 << 20), DEFAULT_RANGE_BYTES, "all sizes are equal");
        assert!(ranges(0.3, 16 << 20) < DEFAULT_RANGE_BYTES, "few ranges fit, and each takes long");
        assert_eq!(ranges(0.3, 512 << 20), DEFAULT_RANGE_BYTES);
    }
}
