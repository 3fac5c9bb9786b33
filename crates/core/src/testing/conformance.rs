//! The suite that every store must pass, leaf or layer: one case for each promise in the head of
//! [`crate::store`] and for each sentence of its methods that can be seen from outside. A case gets
//! a fresh, empty store and panics where a promise is broken.
//!
//! Cases run on a multi-threaded runtime. A store that does not own its buckets must have the two in
//! [`BUCKETS`] mapped, empty. Cases that need more than the store's capabilities are left out, and
//! named.

mod buckets;
mod cancellation;
mod checksums;
mod concurrency;
mod conditions;
mod copy;
mod deadlines;
mod desk;
mod listing;
mod metadata;
mod model;
mod multipart;
mod objects;
mod parts;
mod ranges;
mod tags;
mod uploads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::clock::{Clock as _, SystemClock};
use crate::store::{Capabilities, Lack, ObjectStore};

pub use desk::BUCKETS;
pub use model::model;

/// A case that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A case that takes this long is told with its time.
const SLOW: Duration = Duration::from_millis(500);

/// One promise, tested on one store.
#[derive(Clone, Copy)]
pub struct Case {
    /// `theme/promise`.
    pub name: &'static str,
    needs: Need,
    run: fn(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()>,
}

impl Case {
    /// Whether a store can be asked to keep this promise.
    #[must_use]
    pub fn suits(&self, capabilities: &Capabilities) -> bool {
        match self.needs {
            Need::Nothing => true,
            Need::Buckets => capabilities.owns_buckets,
            Need::AtomicBuckets => capabilities.owns_buckets && capabilities.atomic_buckets,
            Need::Conditions => capabilities.conditional_writes,
            Need::Multipart => capabilities.multipart,
            Need::ConditionsAndMultipart => capabilities.conditional_writes && capabilities.multipart,
            Need::Tags => capabilities.tags,
            Need::Generations => capabilities.generations,
            Need::UniqueTags => capabilities.unique_etags && capabilities.multipart,
            Need::SeveralChecksums => capabilities.several_checksums,
            Need::TellsDeleted => capabilities.tells_deleted,
            Need::Checksums => capabilities.has(Lack::Checksums),
            Need::Classes => capabilities.has(Lack::Classes),
            Need::Snapshots => capabilities.has(Lack::Snapshots),
            Need::TagsBesideWrites => capabilities.tags && capabilities.has(Lack::TagsBesideWrites),
            Need::LargeTags => capabilities.has(Lack::LargeTags),
            Need::ChecksumsOfParts => capabilities.multipart && capabilities.has(Lack::Checksums),
            Need::EndOfUploads => capabilities.multipart && capabilities.has(Lack::EndOfUploads),
            Need::LeavingPartsOut => capabilities.multipart && capabilities.has(Lack::LeavingPartsOut),
            Need::SingleParts => capabilities.multipart && capabilities.has(Lack::SinglePart),
        }
    }

    /// Runs the case on a fresh store and closes the store. Panics where the promise is broken or
    /// where the store hangs.
    pub async fn run(&self, store: Arc<dyn ObjectStore>) {
        let outcome = tokio::time::timeout(PATIENCE, async {
            (self.run)(store.clone()).await;
            store.close().await.expect("a store closes");
        });
        assert!(outcome.await.is_ok(), "{}: the store hung for {PATIENCE:?}", self.name);
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What a store must be able to do for a case to make sense.
#[derive(Clone, Copy)]
enum Need {
    Nothing,
    Buckets,
    AtomicBuckets,
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
    LargeTags,
    TagsBesideWrites,
    Snapshots,
    ChecksumsOfParts,
    EndOfUploads,
    LeavingPartsOut,
    SingleParts,
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
        checksums::CASES,
        concurrency::CASES,
        cancellation::CASES,
        deadlines::CASES,
    ];
    themes.into_iter().flatten().copied().collect()
}

/// Runs every case that suits, one after another, each on a store of its own, and prints each name.
pub async fn run(make: impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>>) {
    let clock = SystemClock::new();
    for case in cases() {
        let store = make().await;
        if case.suits(store.capabilities()) {
            say(&format!("conformance: {}", case.name));
            let begun = clock.now();
            case.run(store).await;
            let took = clock.now() - begun;
            if took >= SLOW {
                say(&format!("  took {took:.1?}"));
            }
        } else {
            say(&format!("conformance: {} left out: {} cannot", case.name, store.capabilities().kind));
            store.close().await.expect("a store closes");
        }
    }
}

#[expect(clippy::print_stdout, reason = "the test harness shows it with the test that failed")]
fn say(line: &str) {
    println!("{line}");
}

/// The cases of a theme: async functions of a `Desk`, with what they need of the store.
macro_rules! theme {
    ($theme:literal: $($case:ident $(needs $need:ident)?,)*) => {
        pub(super) const CASES: &[$crate::testing::conformance::Case] = &[$(
            $crate::testing::conformance::Case {
                name: concat!($theme, "/", stringify!($case)),
                needs: $crate::testing::conformance::need!($($need)?),
                run: |store| Box::pin(async move {
                    $case($crate::testing::conformance::desk::Desk::open(store).await).await;
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
