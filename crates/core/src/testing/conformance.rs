//! The suite that every store must pass, leaf or layer: one case for each guarantee in the head of
//! [`crate::store`] and for each observable statement about its methods. A case gets
//! a fresh, empty store and panics if a guarantee is violated.
//!
//! Cases run on a multi-threaded runtime. A store that does not own its buckets must have the two in
//! [`BUCKETS`] mapped, empty. Cases that need more than the store's capabilities are skipped, and
//! their names are printed.

mod buckets;
mod cancellation;
mod checksums;
mod classes;
mod concurrency;
mod conditions;
mod copy;
mod deadlines;
mod fixture;
mod listing;
mod metadata;
mod model;
mod multipart;
mod objects;
mod parts;
mod ranges;
mod reported;
mod tags;
mod uploads;
mod versions;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::clock::{Clock as _, SystemClock};
use crate::store::{Capabilities, Feature, ObjectStore};

pub use fixture::BUCKETS;
pub use model::model;

/// The time after which a case counts as hung.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// Cases that take at least this long are printed with their time.
const SLOW_CASE: Duration = Duration::from_millis(500);

/// A test of one guarantee on one store.
#[derive(Clone, Copy)]
pub struct Case {
    /// `theme/guarantee`.
    pub name: &'static str,
    needs: Need,
    run: fn(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()>,
}

impl Case {
    /// Returns true if a store with these capabilities can run the case.
    #[must_use]
    pub fn suits(&self, capabilities: &Capabilities) -> bool {
        match self.needs {
            Need::Nothing => true,
            Need::Buckets => capabilities.owns_buckets,
            Need::AtomicBuckets => capabilities.owns_buckets && capabilities.atomic_buckets,
            Need::Versions => capabilities.versions,
            Need::Conditions => capabilities.conditional_writes,
            Need::Multipart => capabilities.multipart,
            Need::ConditionsAndMultipart => capabilities.conditional_writes && capabilities.multipart,
            Need::Tags => capabilities.tags,
            Need::Generations => capabilities.generations,
            Need::UniqueTags => capabilities.unique_etags && capabilities.multipart,
            Need::SeveralChecksums => capabilities.multiple_checksums,
            Need::TellsDeleted => capabilities.reports_deleted,
            Need::Checksums => capabilities.supports(Feature::Checksums),
            Need::Classes => capabilities.supports(Feature::Classes),
            Need::ManyClassRanges => {
                capabilities.supports(Feature::Classes) && capabilities.supports(Feature::ManyClassRanges)
            }
            Need::ClassChanges => capabilities.supports(Feature::ClassChanges),
            Need::ClassesOfVersions => capabilities.versions && capabilities.supports(Feature::ClassChanges),
            Need::Snapshots => capabilities.supports(Feature::SnapshotListing),
            Need::TagsBesideWrites => {
                capabilities.tags && capabilities.supports(Feature::ConcurrentTagWrites)
            }
            Need::LargeTags => capabilities.supports(Feature::LargeTags),
            Need::ChecksumsOfParts => capabilities.multipart && capabilities.supports(Feature::Checksums),
            Need::EndOfUploads => capabilities.multipart && capabilities.supports(Feature::SingleCompletion),
            Need::LeavingPartsOut => {
                capabilities.multipart && capabilities.supports(Feature::PartialCompletion)
            }
            Need::Identity => capabilities.supports(Feature::Identity),
            Need::IdentityAndMultipart => capabilities.multipart && capabilities.supports(Feature::Identity),
            Need::ReportedAttributes => capabilities.reported_attributes,
            Need::ReportedParts => capabilities.reported_attributes && capabilities.multipart,
            Need::ReportedVersions => capabilities.reported_attributes && capabilities.versions,
            Need::SingleParts => capabilities.multipart && capabilities.supports(Feature::PartReads),
        }
    }

    /// Runs the case on a fresh store and closes the store. Panics if the guarantee is violated or
    /// the store hangs.
    pub async fn run(&self, store: Arc<dyn ObjectStore>) {
        let outcome = tokio::time::timeout(CASE_TIMEOUT, async {
            (self.run)(store.clone()).await;
            store.close().await.expect("a store closes");
        });
        assert!(outcome.await.is_ok(), "{}: the store hung for {CASE_TIMEOUT:?}", self.name);
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A capability that a case requires.
#[derive(Clone, Copy)]
enum Need {
    Nothing,
    Buckets,
    AtomicBuckets,
    Versions,
    Conditions,
    Multipart,
    ConditionsAndMultipart,
    Tags,
    Generations,
    UniqueTags,
    SeveralChecksums,
    TellsDeleted,
    Checksums,
    Classes,
    ManyClassRanges,
    ClassChanges,
    ClassesOfVersions,
    LargeTags,
    TagsBesideWrites,
    Snapshots,
    ChecksumsOfParts,
    EndOfUploads,
    LeavingPartsOut,
    Identity,
    IdentityAndMultipart,
    SingleParts,
    ReportedAttributes,
    ReportedParts,
    ReportedVersions,
}

/// Every case, by theme.
#[must_use]
pub fn cases() -> Vec<Case> {
    let themes = [
        buckets::CASES,
        objects::CASES,
        ranges::CASES,
        conditions::CASES,
        listing::CASES,
        copy::CASES,
        uploads::CASES,
        parts::CASES,
        multipart::CASES,
        metadata::CASES,
        tags::CASES,
        classes::CASES,
        versions::CASES,
        checksums::CASES,
        concurrency::CASES,
        cancellation::CASES,
        deadlines::CASES,
        reported::CASES,
    ];
    themes.into_iter().flatten().copied().collect()
}

/// Runs every suitable case in sequence, each on a fresh store, and prints the name of each.
pub async fn run(make: impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>>) {
    let clock = SystemClock::new();
    for case in cases() {
        let store = make().await;
        if case.suits(store.capabilities()) {
            print_line(&format!("conformance: {}", case.name));
            let started = clock.now();
            case.run(store).await;
            let took = clock.now() - started;
            if took >= SLOW_CASE {
                print_line(&format!("  took {took:.1?}"));
            }
        } else {
            let kind = store.capabilities().kind;
            print_line(&format!("conformance: {} skipped: {kind} lacks a capability", case.name));
            store.close().await.expect("a store closes");
        }
    }
}

#[expect(clippy::print_stdout, reason = "the test harness prints it with the failed test")]
fn print_line(line: &str) {
    println!("{line}");
}

/// The cases of a theme: async functions of a `Fixture`, with the capabilities that they need.
macro_rules! theme {
    ($theme:literal: $($case:ident $(needs $need:ident)?,)*) => {
        pub(super) const CASES: &[$crate::testing::conformance::Case] = &[$(
            $crate::testing::conformance::Case {
                name: concat!($theme, "/", stringify!($case)),
                needs: $crate::testing::conformance::need!($($need)?),
                run: |store| Box::pin(async move {
                    $case($crate::testing::conformance::fixture::Fixture::open(store).await).await;
                }),
            },
        )*];
    };
}

macro_rules! need {
    () => {
        $crate::testing::conformance::Need::Nothing
    };
    ($need:ident) => {
        $crate::testing::conformance::Need::$need
    };
}

use {need, theme};
