mod faults;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::ObjectStore;
use tradewind_core::error::{ErrorKind, Reason};
use tradewind_core::testing::{Fault, FaultPlan, Faulty, Operation as Call, When};
use tradewind_model::store_model::Direction;
use tradewind_model::tune::Goal;
use tradewind_model::tune::goal;

use super::*;
use crate::drive::Bed;
use crate::drive::tests::bed;
use crate::site::Site;

fn ground(bed: &Bed) -> Arc<Ground> {
    let store = bed.store.clone();
    let open = Box::new(move || Ok(store.clone() as Arc<dyn ObjectStore>));
    Arc::new(Ground::new(bed.clone(), open, "probes/".to_owned()))
}

fn asked(probes: usize) -> Asked {
    let cells = Cell::grid(&[1 << 10, 64 << 10, 1 << 20], &[1, 4, 16]);
    Asked { cells, budget: Budget { bytes: 64e6, seconds: 10.0, probes }, cores: 2 }
}

const EXTENT: Extent =
    Extent { time: Duration::from_secs(2), bytes: 16 << 20, most: (Duration::from_secs(9), 16 << 20) };

#[tokio::test]
async fn a_store_is_sampled_and_left_as_it_was() {
    let bed = bed().await;
    let (ground, stop) = (ground(&bed), Stop::default());
    assert!(round_trip(&ground).await.unwrap().is_some());
    for direction in [Direction::Write, Direction::Read] {
        let mut told = 0;
        let tell = |event: Event<'_>| told += u32::from(matches!(event, Event::Probed(..)));
        let sampled = sample(&ground, direction, (&asked(4), Belief::default()), &stop, tell).await.unwrap();
        assert!((1..=4).contains(&sampled.probes.len()), "{:?}", sampled.probes);
        assert_eq!(told as usize, sampled.probes.len());
        assert!(sampled.probes.iter().all(|probed| probed.failures == 0), "{:?}", sampled.probes);
        let carried: u64 = sampled.probes.iter().map(|probed| probed.bytes).sum();
        assert!(carried > 0 && (carried as f64 - (64e6 - sampled.left.bytes)).abs() < 1.0, "{carried}");
        assert!(goal::choose(&sampled.surface, &asked(1).cells, Goal::Bandwidth).is_some());
    }
    assert!(ground.clean().await.unwrap() > 0);
    assert!(ground.look("").await.unwrap().is_empty(), "nothing is left");
}

#[test]
fn who_is_not_sure_soon_gets_a_part_of_what_is_left() {
    // Some 0.6 MB where it is sure after 32 rounds, 7.7 where it counts for as long as any.
    let quick = Inferred { cell: Cell { bytes: 1 << 10, parallel: 1 }, latency: 1e-4, deviation: 0.5 };
    let bytes = |left| extent(&quick, &Budget { bytes: left, seconds: 1.0, probes: 8 }).bytes as f64 / 1e6;
    for (left, expected) in [(1e9, 7.7), (20e6, 2.0), (2e6, 0.6), (0.3e6, 0.3)] {
        assert!((bytes(left) - expected).abs() < 0.1, "{} of {left}", bytes(left));
    }
    let time = extent(&quick, &Budget { bytes: 1e9, seconds: 1.0, probes: 8 }).time;
    assert_eq!(time, Duration::from_secs(1), "no longer than there is time");
}

#[tokio::test]
async fn what_nobody_may_list_is_removed_by_its_name() {
    let open = bed().await;
    let denied = FaultPlan::none().on(Call::List, When::Always, Fault::FailBefore(Reason::AccessDenied));
    let bed = Bed { store: Faulty::new(open.store.clone(), denied), ..open.clone() };
    let (ground, stop) = (ground(&bed), Stop::default());
    let cell = Cell { bytes: 1 << 10, parallel: 3 };
    probe::probe(&ground, (Direction::Write, cell), EXTENT, (2, &stop)).await.unwrap();
    assert_eq!(ground.clean().await.unwrap(), 3);
    assert_eq!(super::tests::ground(&open).clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn probes_go_on_where_packets_are_lost() {
    let bed = bed().await;
    let (ground, stop) = (ground(&bed), Stop::default());
    let most = (Duration::from_secs(9), 8 << 20);
    let extent = Extent { time: Duration::from_secs(2), bytes: 1 << 20, most };
    let cell = |parallel| Cell { bytes: 64 << 10, parallel };
    let bytes = async |direction, parallel| {
        let probed = probe::probe(&ground, (direction, cell(parallel)), extent, (2, &stop)).await.unwrap();
        assert!(probed.sample.is_some() && probed.failures == 0, "{probed:?}");
        probed.bytes
    };
    assert_eq!(bytes(Direction::Write, 16).await, 1 << 20);
    assert_eq!(bytes(Direction::Read, 1).await, 1 << 20);
    ground.found_losses();
    assert_eq!(
        bytes(Direction::Read, 1).await,
        8 << 20,
        "the other end knows how many were lost: all that may be"
    );
    assert_eq!(
        bytes(Direction::Read, 16).await,
        2 << 20,
        "so many have a quarter of what is left at the most"
    );
    assert!(ground.clean().await.unwrap() > 0);
}

#[tokio::test]
async fn losses_count_where_a_line_is_between() {
    let open = bed().await;
    let at_hand = ground(&open);
    // One of them is not disturbed.
    for _ in 0..50 {
        at_hand.touch().await.unwrap();
    }
    let slow = Fault::Delay(Duration::from_millis(2));
    let slow = Faulty::new(open.store.clone(), FaultPlan::none().on(Call::HeadBucket, When::Always, slow));
    let far = ground(&Bed { store: slow, ..open.clone() });
    far.touch().await.unwrap();
    assert_eq!([2, 3, 9].map(|lost| far.is_slowed_by(lost)), [false, true, true]);
    assert!(!at_hand.is_slowed_by(1 << 20));
}

#[tokio::test]
async fn what_is_there_is_read_where_nothing_may_be_written() {
    let open = bed().await;
    let mut site = Site::new(open.clone(), "theirs/".to_owned());
    let step = crate::survey::Step {
        load: crate::Load {
            mix: "get".parse().unwrap(),
            parallel: 4,
            pace: crate::load::Pace::Closed,
            until: crate::load::Until { requests: Some(1), time: Duration::from_secs(9), stable: None },
            warm_up: Duration::ZERO,
            seed: 1,
            phase: 0.0,
        },
        sizes: "100KiB".parse().unwrap(),
        objects: 5,
        repeat: 1,
    };
    assert!(site.prepare(&step, &Stop::default(), &Arc::default()).await.unwrap());
    let denied = FaultPlan::none().on(Call::Stage, When::Always, Fault::FailBefore(Reason::AccessDenied));
    let bed = Bed { store: Faulty::new(open.store.clone(), denied), ..open };
    let (ground, stop) = (ground(&bed), Stop::default());
    let cell = Cell { bytes: 1 << 10, parallel: 4 };
    let refused = probe::probe(&ground, (Direction::Write, cell), EXTENT, (2, &stop)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert_eq!(ground.most_bytes(), 0);
    assert_eq!(ground.look("theirs/").await.unwrap(), [100 << 10; 5]);
    let sampled =
        sample(&ground, Direction::Read, (&asked(3), Belief::default()), &stop, |_| ()).await.unwrap();
    // Ranges of what is there; nothing is as large as the largest cells.
    assert!(sampled.probes.iter().all(|probed| probed.failures == 0 && probed.cell.bytes <= 100 << 10));
    assert!(!sampled.probes.is_empty());
}

#[tokio::test]
async fn requests_that_fail_make_a_store_slow_and_not_fast() {
    let open = bed().await;
    let every_other =
        FaultPlan::none().on(Call::Stage, When::Probability(0.5), Fault::FailBefore(Reason::Overloaded));
    let bed = Bed { store: Faulty::new(open.store.clone(), every_other), ..open.clone() };
    let (cell, stop) = (Cell { bytes: 1 << 10, parallel: 2 }, Stop::default());
    let write = (Direction::Write, cell);
    let well = probe::probe(&ground(&open), write, EXTENT, (2, &stop)).await.unwrap();
    let ill = probe::probe(&ground(&bed), write, EXTENT, (2, &stop)).await.unwrap();
    assert!(ill.failures > 0 && ill.failure.is_some(), "{ill:?}");
    let latency = |probed: &Probed| probed.sample.unwrap().latency;
    assert!(latency(&ill) > 2.0 * latency(&well), "{ill:?} {well:?}");
}

#[tokio::test]
async fn a_store_that_answers_nothing_says_nothing() {
    let open = bed().await;
    let never = FaultPlan::none().on(Call::Stage, When::Always, Fault::FailBefore(Reason::Overloaded));
    let bed = Bed { store: Faulty::new(open.store.clone(), never), ..open };
    let (cell, stop) = (Cell { bytes: 1 << 10, parallel: 2 }, Stop::default());
    let probed = probe::probe(&ground(&bed), (Direction::Write, cell), EXTENT, (2, &stop)).await.unwrap();
    assert_eq!((probed.sample, probed.requests), (None, 0));
    assert!(probed.failures > 0);
}

#[tokio::test]
async fn who_stops_it_does_not_wait() {
    let bed = bed().await;
    let stop = Stop::default();
    stop.ask();
    let sampled =
        sample(&ground(&bed), Direction::Write, (&asked(8), Belief::default()), &stop, |_| ()).await.unwrap();
    assert!(sampled.probes.is_empty());
}
