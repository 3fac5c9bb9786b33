//! Tiers that fail, also between the steps of a change, and restarts in between.

use proptest::prelude::*;
use tradewind_core::error::{ErrorKind, Reason};
use tradewind_core::listing::ListRequest;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Operation as At, context, reason};
use tradewind_core::{ObjectStore, Precondition};

use super::fixture::{DISK, Fixture, SSD, address, bucket, by_class, of_class, put};

fn away() -> FaultPlan {
    FaultPlan::none().with_fault_on_any(FaultSchedule::Always, Fault::FailBefore(Reason::Io))
}

fn fails(at: At, fault: Fault) -> FaultPlan {
    FaultPlan::none().with_fault(at, FaultSchedule::Always, fault)
}

#[tokio::test]
async fn objects_of_a_tier_are_served_while_a_later_tier_is_away() {
    let fixture = Fixture::new().await;
    fixture.put("fast", "one", of_class(SSD)).await;
    fixture.put("slow", "two", of_class(DISK)).await;
    fixture.disk.set_plan(away());
    assert_eq!(fixture.read("fast").await.unwrap().1, "one");
    fixture.put("fast", "three", of_class(SSD)).await;
    assert_eq!(fixture.read("fast").await.unwrap().1, "three");
    let error = fixture.read("slow").await.unwrap_err();
    assert_eq!(error.reason(), Reason::Io);
    assert!(error.message().starts_with("tier \"disk\": "), "{error}");
    // A copy on the disk would reappear, and a key that the first tier lacks may be on the disk.
    assert_eq!(reason(fixture.delete("fast").await), Reason::Io);
    let absent = StageRequest { precondition: Precondition::Absent, ..of_class(SSD) };
    assert_eq!(reason(put(&*fixture.routed, "new", "four", absent).await), Reason::Io);
    assert_eq!(reason(fixture.read("new").await), Reason::Io);
}

/// Its pages cannot be merged: a key of another page may belong between their entries.
#[tokio::test]
async fn listing_of_a_tier_in_another_order_is_rejected() {
    let fixture = Fixture::new().await;
    for key in ["a", "b", "c"] {
        fixture.put(key, key, of_class(DISK)).await;
    }
    fixture.disk.set_plan(fails(At::List, Fault::UnorderedListing));
    let request = ListRequest { limit: 10, ..ListRequest::default() };
    let listed = fixture.routed.list(&context(), &bucket(), &request).await;
    assert_eq!(reason(listed), Reason::Unsupported);
    fixture.disk.set_plan(FaultPlan::none());
    assert_eq!(fixture.keys().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn nothing_is_read_or_replaced_while_the_first_tier_is_away() {
    let fixture = Fixture::new().await;
    fixture.put("slow", "one", of_class(DISK)).await;
    fixture.ssd.set_plan(away());
    assert_eq!(reason(fixture.read("slow").await), Reason::Io);
    assert_eq!(reason(put(&*fixture.routed, "slow", "two", of_class(DISK)).await), Reason::Io);
    fixture.ssd.set_plan(FaultPlan::none());
    assert_eq!(fixture.read("slow").await.unwrap().1, "one");
}

#[tokio::test]
async fn write_whose_old_copy_stays_visible_reports_an_unknown_outcome() {
    let fixture = Fixture::new().await;
    fixture.put("key", "old", of_class(SSD)).await;
    fixture.ssd.set_plan(fails(At::Delete, Fault::FailBefore(Reason::CorruptData)));
    let error = put(&*fixture.routed, "key", "new", of_class(DISK)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("unknown"), "{error}");
    assert_eq!(fixture.read("key").await.unwrap().1, "old");
    // Deleting the object deletes both copies: the hidden one does not appear.
    fixture.ssd.set_plan(FaultPlan::none());
    assert!(fixture.delete("key").await.unwrap());
    assert_eq!(reason(fixture.read("key").await), Reason::NoSuchKey);
    assert!(fixture.keys().await.is_empty());
}

#[tokio::test]
async fn write_succeeds_although_a_hidden_copy_remains() {
    let fixture = Fixture::new().await;
    fixture.put("key", "old", of_class(DISK)).await;
    fixture.disk.set_plan(fails(At::Delete, Fault::FailBefore(Reason::Io)));
    fixture.put("key", "new", of_class(SSD)).await;
    assert_eq!(fixture.holders("key").await, ["ssd", "disk"]);
    assert_eq!(fixture.read("key").await.unwrap().1, "new");
    assert_eq!(fixture.keys().await, ["key"]);
    // The hidden copy must not become visible by half of a delete.
    assert_eq!(reason(fixture.delete("key").await), Reason::Io);
    assert_eq!(fixture.read("key").await.unwrap().1, "new");
    fixture.disk.set_plan(FaultPlan::none());
    fixture.delete("key").await.unwrap();
    assert!(fixture.holders("key").await.is_empty());
}

#[tokio::test]
async fn interrupted_deletion_of_a_bucket_leaves_a_bucket() {
    let mut fixture = Fixture::new().await;
    fixture.put("key", "bytes", of_class(SSD)).await;
    assert_eq!(reason(fixture.routed.delete_bucket(&context(), &bucket()).await), Reason::BucketNotEmpty);
    fixture.delete("key").await.unwrap();
    fixture.disk.set_plan(fails(At::DeleteBucket, Fault::FailBefore(Reason::Io)));
    assert_eq!(reason(fixture.routed.delete_bucket(&context(), &bucket()).await), Reason::Io);
    fixture.disk.set_plan(FaultPlan::none());
    fixture.restart(by_class());
    fixture.put("key", "again", of_class(SSD)).await;
    assert_eq!(fixture.read("key").await.unwrap().1, "again");
    fixture.delete("key").await.unwrap();
    fixture.routed.delete_bucket(&context(), &bucket()).await.unwrap();
    for store in [&fixture.ssd, &fixture.disk] {
        assert_eq!(reason(store.head_bucket(&context(), &bucket()).await), Reason::NoSuchBucket);
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// To the SSD or the disk, with a condition.
    Put {
        class: u8,
        precondition: Precondition,
    },
    Delete,
    SetClass(u8),
    Restart,
}

/// A fault of one tier during a step.
#[derive(Debug, Clone)]
struct StepFault {
    is_ssd: bool,
    at: At,
    fault: Fault,
}

fn any_step() -> impl Strategy<Value = (Step, Option<StepFault>)> {
    let class = || prop_oneof![Just(SSD), Just(DISK)];
    let precondition = prop_oneof![
        3 => Just(Precondition::None),
        1 => Just(Precondition::Absent),
        1 => Just(Precondition::Exists),
    ];
    let step = prop_oneof![
        4 => (class(), precondition).prop_map(|(class, precondition)| Step::Put { class, precondition }),
        2 => Just(Step::Delete),
        1 => class().prop_map(Step::SetClass),
        1 => Just(Step::Restart),
    ];
    let at = prop_oneof![Just(At::Delete), Just(At::Commit), Just(At::Head), Just(At::Stage)];
    let fault = prop_oneof![Just(Fault::FailBefore(Reason::Io)), Just(Fault::FailAfter(Reason::Io))];
    let fault = (any::<bool>(), at, fault).prop_map(|(is_ssd, at, fault)| StepFault { is_ssd, at, fault });
    (step, prop::option::of(fault))
}

/// The value of the key, without faults.
async fn visible(fixture: &Fixture) -> Option<String> {
    let value = match fixture.read("key").await {
        Ok((_, bytes)) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
        Err(error) if error.reason() == Reason::NoSuchKey => None,
        Err(error) => panic!("{error:?}"),
    };
    let keys = fixture.keys().await;
    assert_eq!(keys.len(), usize::from(value.is_some()), "the listing agrees: {keys:?}");
    value
}

/// Plays steps and checks after each that the object is one of those that its result allows. An error of kind
/// `Unavailable` allows the old and the new one; later, the object stays what it was seen to be.
async fn play(steps: Vec<(Step, Option<StepFault>)>) {
    let mut fixture = Fixture::new().await;
    let mut before: Option<String> = None;
    for (number, (step, fault)) in steps.into_iter().enumerate() {
        if let Some(StepFault { is_ssd, at, fault }) = fault {
            let store = if is_ssd { &fixture.ssd } else { &fixture.disk };
            store.set_plan(fails(at, fault));
        }
        let new = format!("value {number}");
        let (result, after) = match &step {
            Step::Put { class, precondition } => {
                let request = StageRequest { precondition: precondition.clone(), ..of_class(*class) };
                let result = put(&*fixture.routed, "key", new.clone(), request).await.map(drop);
                if result.is_ok() {
                    let holds = match precondition {
                        Precondition::Absent => before.is_none(),
                        Precondition::Exists => before.is_some(),
                        _ => true,
                    };
                    assert!(holds, "step {number}: a write against its condition");
                }
                (result, Some(new))
            }
            Step::Delete => (fixture.delete("key").await.map(drop), None),
            Step::SetClass(class) => {
                let classes = of_class(*class).metadata.classes;
                let update = tradewind_core::ClassUpdate::replace(classes);
                (fixture.routed.set_classes(&context(), &address("key"), update).await, before.clone())
            }
            Step::Restart => {
                fixture.restart(by_class());
                (Ok(()), before.clone())
            }
        };
        fixture.ssd.set_plan(FaultPlan::none());
        fixture.disk.set_plan(FaultPlan::none());
        let now = visible(&fixture).await;
        let is_allowed = match &result {
            Ok(()) => now == after,
            Err(error) if error.kind() == ErrorKind::Unavailable => now == before || now == after,
            Err(_) => now == before,
        };
        assert!(is_allowed, "step {number}, {step:?}: {result:?}, from {before:?} to {now:?}");
        before = now;
    }
    // Whatever remains hidden, a delete removes the object.
    fixture.delete("key").await.unwrap();
    assert!(visible(&fixture).await.is_none() && fixture.holders("key").await.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn faults_between_the_steps_of_changes_leave_an_allowed_object(steps in prop::collection::vec(any_step(), 1..12)) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(play(steps));
    }
}

/// The remedy for a damaged object.
#[tokio::test]
async fn damaged_copies_are_deleted_and_replaced() {
    let damaged = || fails(At::Head, Fault::FailBefore(Reason::CorruptData));
    for tier in [SSD, DISK] {
        for class in [SSD, DISK] {
            let fixture = Fixture::new().await;
            for key in ["deleted", "replaced"] {
                fixture.put(key, "old", of_class(tier)).await;
            }
            let store = if tier == SSD { &fixture.ssd } else { &fixture.disk };
            store.set_plan(damaged());
            assert_eq!(
                reason(put(&*fixture.routed, "replaced", "new", absent(class)).await),
                Reason::CorruptData
            );
            fixture.delete("deleted").await.unwrap();
            fixture.put("replaced", "new", of_class(class)).await;
            store.set_plan(FaultPlan::none());
            assert!(fixture.holders("deleted").await.is_empty());
            assert_eq!(fixture.read("replaced").await.unwrap().1, "new");
            assert_eq!(fixture.holders("replaced").await.len(), 1, "tier of {tier}, class {class}");
        }
    }
}

fn absent(class: u8) -> StageRequest {
    StageRequest { precondition: Precondition::Absent, ..of_class(class) }
}
