//! The assignment of faults to calls: a pure function of a seed, the operation and the number of earlier calls of that
//! operation. The same plan makes the same decisions for the same calls.

use std::time::Duration;

use crate::error::Reason;
use crate::layer::Method;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The operation of a call. Objects and parts share [`Write`](Self::Write).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation { $($(#[$doc])* $name,)* }

        impl Operation {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

operations! {
    /// `create_bucket`.
    CreateBucket,
    /// `delete_bucket`.
    DeleteBucket,
    /// `head_bucket`.
    HeadBucket,
    /// `list_buckets`.
    ListBuckets,
    /// `head`.
    Head,
    /// `get`, up to its response.
    Get,
    /// The body of a successful `get`.
    Body,
    /// `stage`.
    Stage,
    /// `stage_part`.
    StagePart,
    /// `Staged::write`.
    Write,
    /// `Staged::commit` of an object.
    Commit,
    /// `Staged::commit` of a part.
    CommitPart,
    /// `delete`.
    Delete,
    /// `list`.
    List,
    /// `list_versions`.
    ListVersions,
    /// `versioning`.
    Versioning,
    /// `set_versioning`.
    SetVersioning,
    /// `copy`.
    Copy,
    /// `set_tags`.
    SetTags,
    /// `set_classes`.
    SetClasses,
    /// `redescribe`.
    Redescribe,
    /// `redescribe_upload`.
    RedescribeUpload,
    /// `object_parts`.
    ObjectParts,
    /// `create_upload`.
    CreateUpload,
    /// `copy_part`.
    CopyPart,
    /// `list_parts`.
    ListParts,
    /// `list_uploads`.
    ListUploads,
    /// `complete_upload`.
    CompleteUpload,
    /// `abort_upload`.
    AbortUpload,
}

impl From<Method> for Operation {
    fn from(method: Method) -> Self {
        match method {
            Method::CreateBucket => Self::CreateBucket,
            Method::DeleteBucket => Self::DeleteBucket,
            Method::HeadBucket => Self::HeadBucket,
            Method::ListBuckets => Self::ListBuckets,
            Method::Head => Self::Head,
            Method::Get => Self::Get,
            Method::Stage => Self::Stage,
            Method::Delete => Self::Delete,
            Method::List => Self::List,
            Method::ListVersions => Self::ListVersions,
            Method::Versioning => Self::Versioning,
            Method::SetVersioning => Self::SetVersioning,
            Method::Copy => Self::Copy,
            Method::SetTags => Self::SetTags,
            Method::SetClasses => Self::SetClasses,
            Method::Redescribe => Self::Redescribe,
            Method::RedescribeUpload => Self::RedescribeUpload,
            Method::ObjectParts => Self::ObjectParts,
            Method::CreateUpload => Self::CreateUpload,
            Method::StagePart => Self::StagePart,
            Method::CopyPart => Self::CopyPart,
            Method::ListParts => Self::ListParts,
            Method::ListUploads => Self::ListUploads,
            Method::CompleteUpload => Self::CompleteUpload,
            Method::AbortUpload => Self::AbortUpload,
        }
    }
}

/// The fault applied to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and nothing is applied.
    FailBefore(Reason),
    /// The call is applied, but returns an error: a lost acknowledgement.
    FailAfter(Reason),
    /// The call starts after this delay, on the request's clock.
    Delay(Duration),
    /// The call fails after this delay, and nothing is applied.
    DelayedFailure(Duration, Reason),
    /// The call never returns; only the request's deadline or cancellation ends it.
    Hang,
    /// Bodies only: the stream ends early, without an error, after this many bytes.
    Truncate(u64),
    /// Bodies only: one bit of the byte at this offset is flipped.
    Corrupt(u64),
    /// Bodies only: an error after this many bytes.
    FailAt(u64, Reason),
    /// Listings of objects only: the requested prefix is ignored and all names are returned.
    IgnorePrefix,
    /// Listings of objects only: the page is empty.
    EmptyListing,
    /// Listings of objects only: the entries of the page are not in byte order.
    UnorderedListing,
    /// Deletes only: success is reported, but nothing is deleted.
    PretendSuccess,
}

impl Fault {
    /// Returns true if the fault applies to bodies only.
    #[must_use]
    pub const fn is_body_fault(self) -> bool {
        matches!(self, Self::Truncate(_) | Self::Corrupt(_) | Self::FailAt(..))
    }
}

/// The calls of an operation that a rule applies to. Calls are counted from one, for each operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultSchedule {
    /// Every call.
    Always,
    /// Only the call with this number.
    Nth(u64),
    /// The call with this number and all later ones.
    From(u64),
    /// Each call with this probability, 0 to 1.
    Probability(f64),
}

/// Fault rules with a seed. The first rule that applies to a call wins.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    seed: u64,
    rules: Vec<(Option<Operation>, FaultSchedule, Fault)>,
    /// The RTT that the store reports.
    pub(super) min_rtt: Option<Duration>,
}

impl FaultPlan {
    /// A plan without faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A plan without rules yet, whose probabilities are drawn from this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Makes the store report this RTT. Calls are not delayed by it.
    #[must_use]
    pub fn with_rtt(self, round_trip: Duration) -> Self {
        Self { min_rtt: Some(round_trip), ..self }
    }

    /// Adds a rule for one operation.
    #[must_use]
    pub fn with_fault(mut self, operation: Operation, when: FaultSchedule, fault: Fault) -> Self {
        self.rules.push((Some(operation), when, fault));
        self
    }

    /// Adds a rule for every operation that the fault can apply to.
    #[must_use]
    pub fn with_fault_on_any(mut self, when: FaultSchedule, fault: Fault) -> Self {
        self.rules.push((None, when, fault));
        self
    }

    /// The fault for the `nth` call of an operation, if any.
    #[must_use]
    pub fn decide(&self, operation: Operation, nth: u64) -> Option<Fault> {
        let applies = |index: usize, target: Option<Operation>, when: FaultSchedule, fault: Fault| {
            let can_apply = operation == Operation::Body || !fault.is_body_fault();
            let is_hit = match when {
                FaultSchedule::Always => true,
                FaultSchedule::Nth(n) => nth == n,
                FaultSchedule::From(n) => nth >= n,
                FaultSchedule::Probability(p) => self.draw(index, operation, nth) < p,
            };
            can_apply && is_hit && target.is_none_or(|target| target == operation)
        };
        let rules = self.rules.iter().enumerate();
        let mut decisions =
            rules.map(|(i, &(target, when, fault))| applies(i, target, when, fault).then_some(fault));
        decisions.find_map(|fault| fault)
    }

    /// A number in 0..1 determined by the seed, the call and the rule.
    fn draw(&self, rule: usize, operation: Operation, nth: u64) -> f64 {
        let mixed = [rule as u64, operation as u64, nth]
            .into_iter()
            .fold(self.seed, |state, part| scramble(state ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let bits = u32::try_from(mixed >> 32).unwrap_or(u32::MAX);
        f64::from(bits) / (f64::from(u32::MAX) + 1.0)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every input bit affects every output bit.
fn scramble(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_pure_and_follow_the_rules() {
        let fail = Fault::FailBefore(Reason::Io);
        let plan = FaultPlan::seeded(1)
            .with_fault(Operation::Head, FaultSchedule::Nth(2), fail)
            .with_fault(Operation::Head, FaultSchedule::From(5), Fault::Hang)
            .with_fault_on_any(FaultSchedule::Probability(0.25), Fault::FailAfter(Reason::Io));
        for nth in [1, 3, 4] {
            assert_ne!(plan.decide(Operation::Head, nth), Some(fail));
        }
        assert_eq!(plan.decide(Operation::Head, 2), Some(fail));
        assert_eq!(plan.decide(Operation::Head, 7), Some(Fault::Hang));
        let hits = (0..10_000).filter(|&n| plan.decide(Operation::Get, n).is_some()).count();
        assert!((2_300..2_700).contains(&hits), "{hits} of 10,000 at one in four");
        let again = (0..10_000).filter(|&n| plan.decide(Operation::Get, n).is_some()).count();
        assert_eq!(hits, again);
        let other = FaultPlan { seed: 2, ..plan.clone() };
        assert!((0..100).any(|n| plan.decide(Operation::Get, n) != other.decide(Operation::Get, n)));
    }

    #[test]
    fn body_faults_apply_to_bodies_only() {
        let plan = FaultPlan::none().with_fault_on_any(FaultSchedule::Always, Fault::Truncate(1));
        let hit: Vec<_> = Operation::ALL.iter().filter(|&&o| plan.decide(o, 1).is_some()).collect();
        assert_eq!(hit, [&Operation::Body]);
    }
}
