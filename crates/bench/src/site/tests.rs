use tradewind_core::error::Reason;
use tradewind_core::testing::{Fault, FaultPlan, Faulty, Operation as Call, When};

use super::*;
use crate::arrivals::Spacing;
use crate::drive::Ending;
use crate::drive::tests::bed;
use crate::result::Cell;
use crate::survey::Step;

fn step(mix: &str) -> Step {
    let until = Until { requests: Some(30), time: Duration::from_secs(30), stable: None };
    let load = Load {
        mix: mix.parse().unwrap(),
        parallel: 4,
        pace: Pace::Closed,
        until,
        warm_up: Duration::ZERO,
        seed: 1,
        phase: 0.0,
    };
    Step { load, sizes: "1KiB".parse().unwrap(), objects: 20, repeat: 1 }
}

#[tokio::test]
async fn where_listing_is_denied_objects_are_removed_by_their_names() {
    let open = bed().await;
    let denied = FaultPlan::none().on(Call::List, When::Always, Fault::FailBefore(Reason::AccessDenied));
    let bed = Bed { store: Faulty::new(open.store.clone(), denied), ..open.clone() };
    let mut site = Site::new(bed, "there/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    assert!(site.prepare(&step("get"), &stop, &gauge).await.unwrap());
    site.measure(&step("put"), &stop, &gauge).await.unwrap();
    assert_eq!(site.clean().await.unwrap(), 50);
    let mut all = Site::new(open, String::new());
    assert_eq!(all.clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn what_others_made_and_nobody_may_list_is_told() {
    let open = bed().await;
    let denied = FaultPlan::none().on(Call::List, When::Always, Fault::FailBefore(Reason::AccessDenied));
    let bed = Bed { store: Faulty::new(open.store.clone(), denied), ..open.clone() };
    assert_eq!(Site::clean_others(&bed, "lost/").await.unwrap_err().reason(), Reason::AccessDenied);
    assert_eq!(Site::clean_others(&open, "lost/").await.unwrap(), 0);
}

#[tokio::test]
async fn nothing_is_removed_that_has_another_name_than_was_asked_for() {
    let open = bed().await;
    let mut theirs = Site::new(open.clone(), "theirs/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    assert!(theirs.prepare(&step("get"), &stop, &gauge).await.unwrap());
    let lies = FaultPlan::none().on(Call::List, When::Always, Fault::IgnorePrefix);
    let bed = Bed { store: Faulty::new(open.store.clone(), lies), ..open };
    let mut ours = Site::new(bed, "ours/".to_owned());
    assert!(ours.prepare(&step("get"), &stop, &gauge).await.unwrap());
    let refused = ours.clean().await.unwrap_err().to_string();
    assert!(refused.contains("asked for names that begin with ours/, the store lists theirs/"), "{refused}");
    assert_eq!(theirs.clean().await.unwrap(), 20, "they are all there");
}

#[tokio::test]
async fn what_was_removed_at_once_is_not_removed_again() {
    let open = bed().await;
    let passing = FaultPlan::none().on(Call::Delete, When::Nth(7), Fault::FailBefore(Reason::Overloaded));
    // All but one are gone with the first look: to remove them again would fail.
    let later = passing.on(Call::Delete, When::From(22), Fault::FailBefore(Reason::Overloaded));
    let bed = Bed { store: Faulty::new(open.store.clone(), later), ..open };
    let mut site = Site::new(bed, "there/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    assert!(site.prepare(&step("get"), &stop, &gauge).await.unwrap());
    assert_eq!(site.clean().await.unwrap(), 20);
}

#[tokio::test]
async fn what_a_listing_does_not_show_yet_is_removed_by_its_name() {
    let open = bed().await;
    let blind = FaultPlan::none().on(Call::List, When::Always, Fault::ShowNothing);
    let bed = Bed { store: Faulty::new(open.store.clone(), blind), ..open.clone() };
    let mut site = Site::new(bed, "there/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    assert!(site.prepare(&step("get"), &stop, &gauge).await.unwrap());
    site.measure(&step("put"), &stop, &gauge).await.unwrap();
    assert_eq!(site.clean().await.unwrap(), 50);
    assert_eq!(Site::new(open, String::new()).clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn what_cannot_be_removed_however_often_is_told() {
    let open = bed().await;
    let feigns = FaultPlan::none().on(Call::Delete, When::Always, Fault::Feign);
    let bed = Bed { store: Faulty::new(open.store.clone(), feigns), ..open };
    let mut site = Site::new(bed, "there/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    assert!(site.prepare(&step("get"), &stop, &gauge).await.unwrap());
    let why = site.clean().await.unwrap_err().to_string();
    assert!(why.contains("however often they are removed"), "{why}");
}

#[tokio::test]
async fn objects_that_are_there_are_not_made_again() {
    let mut site = Site::new(bed().await, "there/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    assert_eq!((site.missing(&step("get")), site.missing(&step("put"))), (20, 0));
    site.prepare(&step("get"), &stop, &gauge).await.unwrap();
    assert_eq!(site.missing(&step("head")), 0);
    assert_eq!(site.missing(&step("get=1,put=1")), 20, "what changes is apart from what is read");
    site.measure(&step("delete"), &stop, &gauge).await.unwrap();
    assert_eq!(site.missing(&step("get")), 20);
}

#[tokio::test]
async fn requests_that_only_remove_go_on_together_until_nothing_is_left() {
    let mut site = Site::new(bed().await, "there/".to_owned());
    let (stop, gauge) = (Stop::default(), Arc::default());
    let mut step = step("delete");
    // More than there are objects, at moments of their own, and far more hands: those must not wait for a moment each.
    step.load.pace = Pace::Open { per_second: 40.0, spacing: Spacing::Fixed };
    step.load.parallel = 1000;
    step.load.until = Until { requests: None, time: Duration::from_secs(10), stable: None };
    assert!(site.prepare(&step, &stop, &gauge).await.unwrap());
    let outcome = site.measure(&step, &stop, &gauge).await.unwrap();
    assert_eq!(outcome.record.tallies()[&Operation::Delete].operations, 20);
    assert_eq!((outcome.waiting, outcome.abandoned), (0, 0), "the store is not to blame");
    assert_eq!(outcome.ending, Ending::Exhausted, "{:?}", outcome.time);
}

#[tokio::test]
async fn requests_that_take_longer_than_all_that_counts_have_no_latency_and_are_told() {
    let open = bed().await;
    let slow = FaultPlan::none().on(Call::Commit, When::Always, Fault::Delay(Duration::from_secs(2)));
    let bed = Bed { store: Faulty::new(open.store.clone(), slow), ..open };
    let mut site = Site::new(bed, "there/".to_owned());
    let mut step = step("put");
    step.load.warm_up = Duration::from_millis(100);
    step.load.until = Until { requests: None, time: Duration::from_millis(200), stable: None };
    let outcome = site.measure(&step, &Stop::default(), &Arc::default()).await.unwrap();
    let cell = Cell::of(&step, Vec::new(), &outcome, 2);
    assert_eq!(cell.operations[&Operation::Put].latency_us.known(|latency| latency.p50), None);
    assert!(cell.operations_per_second.mean > 0.0 && cell.operations_per_second.within.is_none(), "{cell:?}");
    assert!(
        cell.notes.iter().any(|note| note.starts_with("no put began within the 0.2 s")),
        "{:?}",
        cell.notes
    );
}
