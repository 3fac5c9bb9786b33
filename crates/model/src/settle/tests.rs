use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// A scheduler that compared everything at time zero.
fn settled() -> Settling {
    let mut settling = Settling::new(SettleOptions::default(), Duration::ZERO);
    assert_eq!(settling.take_tree(Duration::ZERO).as_deref(), Some(""));
    settling.tree_ended(true, Duration::ZERO);
    settling
}

#[test]
fn name_is_taken_after_the_quiet_period() {
    let mut settling = settled();
    settling.touched("a", SECOND);
    settling.touched("b", 2 * SECOND);
    settling.touched("a", 2 * SECOND + SECOND / 2);
    assert_eq!(settling.next_due(), Some(4 * SECOND));
    assert_eq!(settling.take(4 * SECOND - Duration::from_nanos(1)), None);
    assert_eq!(settling.take(4 * SECOND).as_deref(), Some("b"));
    assert_eq!(settling.take(4 * SECOND), None);
    assert_eq!(settling.take(5 * SECOND).as_deref(), Some("a"));
    settling.done("a");
    settling.done("b");
    assert_eq!(settling.next_due(), Some(600 * SECOND));
}

#[test]
fn name_changed_while_in_progress_is_taken_again() {
    let mut settling = settled();
    settling.touched("a", Duration::ZERO);
    assert!(settling.take(2 * SECOND).is_some());
    settling.touched("a", 3 * SECOND);
    assert_eq!(settling.take(9 * SECOND), None, "not processed concurrently");
    assert!(!settling.failed("a", 4 * SECOND), "the change explains the failure");
    assert_eq!(settling.failing(), 0);
    assert_eq!(settling.take(5 * SECOND).as_deref(), Some("a"));
    settling.touched("a", 6 * SECOND);
    settling.done("a");
    assert_eq!(settling.take(8 * SECOND).as_deref(), Some("a"));
    settling.done("a");
    assert_eq!(settling.take(99 * SECOND), None);
}

#[test]
fn failed_names_are_retried_with_backoff() {
    let options = SettleOptions { every: 10_000 * SECOND, ..SettleOptions::default() };
    let mut settling = Settling { options, ..settled() };
    settling.trees.clear();
    settling.touched("a", Duration::ZERO);
    let (mut now, mut waits) = (2 * SECOND, Vec::new());
    for _ in 0..9 {
        assert!(settling.take(now).is_some());
        assert!(settling.failed("a", now));
        waits.push((settling.next_due().unwrap() - now).as_secs());
        now = settling.next_due().unwrap();
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(settling.failing(), 1);
    let mut settling = settled();
    assert!(settling.begin("b"));
    assert_eq!(settling.failing(), 1, "an abandoned name counts as failing");
    assert!(settling.failed("b", Duration::ZERO));
    assert_eq!(settling.failing(), 1);
    settling.touched("b", SECOND);
    assert_eq!(
        (settling.next_due(), settling.failing()),
        (Some(3 * SECOND), 0),
        "a change resets the failures"
    );
}

#[test]
fn comparison_skips_names_waiting_or_in_progress() {
    let mut settling = settled();
    settling.touched("growing", Duration::ZERO);
    assert!(!settling.begin("growing"));
    assert!(settling.begin("other") && !settling.begin("other"));
    settling.done("other");
    assert!(settling.begin("other"));
}

#[test]
fn trees_are_compared_one_after_another() {
    let mut settling = settled();
    settling.tree_touched("a/", SECOND);
    settling.tree_touched("a/", 2 * SECOND);
    settling.tree_touched("b/", 2 * SECOND);
    assert_eq!(settling.take_tree(3 * SECOND).as_deref(), Some("a/"), "further changes do not postpone it");
    assert_eq!((settling.take_tree(9 * SECOND), settling.next_due()), (None, None));
    settling.tree_touched("a/", 9 * SECOND);
    settling.tree_ended(true, 9 * SECOND);
    assert_eq!(settling.take_tree(9 * SECOND).as_deref(), Some("b/"));
    settling.tree_ended(false, 10 * SECOND);
    assert_eq!(settling.take_tree(11 * SECOND).as_deref(), Some("a/"), "it changed during the comparison");
    settling.tree_ended(true, 11 * SECOND);
    assert_eq!(settling.next_due(), Some(15 * SECOND), "a failed tree is retried");
    settling.tree_touched("", 12 * SECOND);
    assert_eq!(settling.take_tree(20 * SECOND).as_deref(), Some(""));
    settling.tree_ended(true, 20 * SECOND);
    assert_eq!(settling.next_due(), Some(620 * SECOND), "the full comparison covered the other trees");
}

#[test]
fn too_many_names_become_a_full_comparison() {
    let mut settling = settled();
    for n in 0..=MAX_NAMES {
        settling.touched(&format!("{n}"), SECOND);
    }
    assert!(settling.names.is_empty() && settling.waiting.is_empty());
    assert_eq!(settling.take(99 * SECOND), None);
    assert_eq!(settling.take_tree(3 * SECOND).as_deref(), Some(""));
}

proptest! {
    /// For any sequence of events: no name is taken before it is quiet, and no change is lost.
    #[test]
    fn every_change_is_processed_after_the_quiet_period(
        steps in prop::collection::vec((0_usize..4, 0_u64..1500, 0_u8..4), 1..200),
    ) {
        let options = SettleOptions { every: Duration::from_secs(1 << 30), ..SettleOptions::default() };
        let mut settling = Settling::new(options, Duration::ZERO);
        settling.take_tree(Duration::ZERO);
        settling.tree_ended(true, Duration::ZERO);
        let (mut now, mut touched, mut under_way) = (Duration::ZERO, HashMap::new(), Vec::<String>::new());
        for (name, later, what) in steps {
            now += Duration::from_millis(later);
            match (what, under_way.pop()) {
                (0, Some(name)) => settling.done(&name),
                (1, Some(name)) => drop(settling.failed(&name, now)),
                (_, held) => {
                    under_way.extend(held);
                    settling.touched(&name.to_string(), now);
                    touched.insert(name.to_string(), now);
                }
            }
            while let Some(name) = settling.take(now) {
                prop_assert!(!under_way.contains(&name));
                if let Some(last) = touched.remove(&name) {
                    prop_assert!(now >= last + options.quiet, "{name} at {now:?}, changed at {last:?}");
                }
                under_way.push(name);
            }
        }
        under_way.iter().for_each(|name| settling.done(name));
        now += Duration::from_secs(1000);
        while let Some(name) = settling.take(now) {
            touched.remove(&name);
            settling.done(&name);
        }
        prop_assert!(touched.is_empty(), "{touched:?}");
    }
}
