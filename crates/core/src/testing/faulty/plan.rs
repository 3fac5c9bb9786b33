//! Which call gets which fault: a pure function of a seed, the operation and how many calls of that
//! operation came before. The same plan on the same calls always decides the same.

use std::time::Duration;

use crate::error::Reason;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a call does. Parts are written by the same kinds as objects.
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
    /// `get`, up to its answer.
    Get,
    /// The body of a `get` that was answered.
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
    /// `copy`.
    Copy,
    /// `set_tags`.
    SetTags,
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

/// What happens to a call instead of, or besides, what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and nothing was applied.
    FailBefore(Reason),
    /// It is applied, but the answer is an error: a lost acknowledgement.
    FailAfter(Reason),
    /// It is done after this long, on the request's clock.
    Delay(Duration),
    /// It never answers; only the request's deadline or cancellation ends it.
    Hang,
    /// Of bodies only: the stream ends early, without an error, after so many bytes.
    Truncate(u64),
    /// Of bodies only: one bit of the byte at this offset is flipped.
    Corrupt(u64),
    /// Of bodies only: an error after so many bytes.
    FailAt(u64, Reason),
    /// Of listings of objects only: they have all names, whatever the prefix that was asked for.
    IgnorePrefix,
    /// Of listings of objects only: they show nothing, whatever is there.
    ShowNothing,
    /// Of removals only: they say that they removed something, and did not.
    Feign,
}

impl Fault {
    /// Whether it is one of bodies, so that it has no effect on other calls.
    #[must_use]
    pub const fn is_of_bodies(self) -> bool {
        matches!(self, Self::Truncate(_) | Self::Corrupt(_) | Self::FailAt(..))
    }
}

/// Which calls of an operation a rule is about. Calls are counted from one, for each operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    /// Every call.
    Always,
    /// Only the call with this number.
    Nth(u64),
    /// The call with this number and all behind it.
    From(u64),
    /// Each call with this probability, 0 to 1.
    Probability(f64),
}

/// Rules with a seed. Of the rules that apply to a call the first wins.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    seed: u64,
    rules: Vec<(Option<Operation>, When, Fault)>,
    /// What the store says of the way to it.
    pub(super) round_trip: Option<Duration>,
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

    /// The same of a store that says how long a round trip to it takes. Nothing takes any longer for it.
    #[must_use]
    pub fn behind(self, round_trip: Duration) -> Self {
        Self { round_trip: Some(round_trip), ..self }
    }

    /// The same with one more rule.
    #[must_use]
    pub fn on(mut self, operation: Operation, when: When, fault: Fault) -> Self {
        self.rules.push((Some(operation), when, fault));
        self
    }

    /// The same with one more rule, for every operation that the fault can befall.
    #[must_use]
    pub fn on_any(mut self, when: When, fault: Fault) -> Self {
        self.rules.push((None, when, fault));
        self
    }

    /// What befalls the `nth` call of an operation.
    #[must_use]
    pub fn decide(&self, operation: Operation, nth: u64) -> Option<Fault> {
        let applies = |index: usize, of: Option<Operation>, when: When, fault: Fault| {
            let can_befall = operation == Operation::Body || !fault.is_of_bodies();
            let is_hit = match when {
                When::Always => true,
                When::Nth(n) => nth == n,
                When::From(n) => nth >= n,
                When::Probability(p) => self.draw(index, operation, nth) < p,
            };
            can_befall && is_hit && of.is_none_or(|of| of == operation)
        };
        let rules = self.rules.iter().enumerate();
        rules.map(|(i, &(of, when, fault))| applies(i, of, when, fault).then_some(fault)).find_map(|f| f)
    }

    /// A number in 0..1 that belongs to this call and rule.
    fn draw(&self, rule: usize, operation: Operation, nth: u64) -> f64 {
        let mixed = [rule as u64, operation as u64, nth]
            .into_iter()
            .fold(self.seed, |state, part| scramble(state ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let bits = u32::try_from(mixed >> 32).unwrap_or(u32::MAX);
        f64::from(bits) / (f64::from(u32::MAX) + 1.0)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every input bit moves every output bit.
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
            .on(Operation::Head, When::Nth(2), fail)
            .on(Operation::Head, When::From(5), Fault::Hang)
            .on_any(When::Probability(0.25), Fault::FailAfter(Reason::Io));
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
    fn bodies_alone_are_truncated() {
        let plan = FaultPlan::none().on_any(When::Always, Fault::Truncate(1));
        let hit: Vec<_> = Operation::ALL.iter().filter(|&&o| plan.decide(o, 1).is_some()).collect();
        assert_eq!(hit, [&Operation::Body]);
    }
}
