use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// A scheduler that compared everything at time zero.
fn idle_debouncer() -> Debouncer {
    let mut debouncer = Debouncer::new(DebounceOptions::default(), Duration::ZERO);
    assert_eq!(debouncer.take_due_tree(Duration::ZERO).as_deref(), Some(""));
    debouncer.tree_compared(true, Duration::ZERO);
    debouncer
}

#[test]
fn name_is_taken_after_the_quiet_period() {
    let mut debouncer = idle_debouncer();
    debouncer.name_changed("a", SECOND);
    debouncer.name_changed("b", 2 * SECOND);
    debouncer.name_changed("a", 2 * SECOND + SECOND / 2);
    assert_eq!(debouncer.next_due(), Some(4 * SECOND));
    assert_eq!(debouncer.take_due_name(4 * SECOND - Duration::from_nanos(1)), None);
    assert_eq!(debouncer.take_due_name(4 * SECOND).as_deref(), Some("b"));
    assert_eq!(debouncer.take_due_name(4 * SECOND), None);
    assert_eq!(debouncer.take_due_name(5 * SECOND).as_deref(), Some("a"));
    debouncer.succeeded("a");
    debouncer.succeeded("b");
    assert_eq!(debouncer.next_due(), Some(600 * SECOND));
}

#[test]
fn name_changed_while_in_progress_is_taken_again() {
    let mut debouncer = idle_debouncer();
    debouncer.name_changed("a", Duration::ZERO);
    assert!(debouncer.take_due_name(2 * SECOND).is_some());
    debouncer.name_changed("a", 3 * SECOND);
    assert_eq!(debouncer.take_due_name(9 * SECOND), None, "not processed concurrently");
    assert!(!debouncer.failed("a", 4 * SECOND), "the change explains the failure");
    assert_eq!(debouncer.failing_count(), 0);
    assert_eq!(debouncer.take_due_name(5 * SECOND).as_deref(), Some("a"));
    debouncer.name_changed("a", 6 * SECOND);
    debouncer.succeeded("a");
    assert_eq!(debouncer.take_due_name(8 * SECOND).as_deref(), Some("a"));
    debouncer.succeeded("a");
    assert_eq!(debouncer.take_due_name(99 * SECOND), None);
}

#[test]
fn failed_names_are_retried_with_backoff() {
    let options = DebounceOptions { full_comparison_interval: 10_000 * SECOND, ..DebounceOptions::default() };
    let mut debouncer = Debouncer { options, ..idle_debouncer() };
    debouncer.trees.clear();
    debouncer.name_changed("a", Duration::ZERO);
    let (mut now, mut waits) = (2 * SECOND, Vec::new());
    for _ in 0..9 {
        assert!(debouncer.take_due_name(now).is_some());
        assert!(debouncer.failed("a", now));
        waits.push((debouncer.next_due().unwrap() - now).as_secs());
        now = debouncer.next_due().unwrap();
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(debouncer.failing_count(), 1);
    let mut debouncer = idle_debouncer();
    assert!(debouncer.try_start("b"));
    assert_eq!(debouncer.failing_count(), 1, "an abandoned name counts as failing");
    assert!(debouncer.failed("b", Duration::ZERO));
    assert_eq!(debouncer.failing_count(), 1);
    debouncer.name_changed("b", SECOND);
    assert_eq!(
        (debouncer.next_due(), debouncer.failing_count()),
        (Some(3 * SECOND), 0),
        "a change resets the failures"
    );
}

#[test]
fn comparison_skips_names_waiting_or_in_progress() {
    let mut debouncer = idle_debouncer();
    debouncer.name_changed("growing", Duration::ZERO);
    assert!(!debouncer.try_start("growing"));
    assert!(debouncer.try_start("other") && !debouncer.try_start("other"));
    debouncer.succeeded("other");
    assert!(debouncer.try_start("other"));
}

#[test]
fn trees_are_compared_one_after_another() {
    let mut debouncer = idle_debouncer();
    debouncer.tree_changed("a/", SECOND);
    debouncer.tree_changed("a/", 2 * SECOND);
    debouncer.tree_changed("b/", 2 * SECOND);
    assert_eq!(
        debouncer.take_due_tree(3 * SECOND).as_deref(),
        Some("a/"),
        "further changes do not postpone it"
    );
    assert_eq!((debouncer.take_due_tree(9 * SECOND), debouncer.next_due()), (None, None));
    debouncer.tree_changed("a/", 9 * SECOND);
    debouncer.tree_compared(true, 9 * SECOND);
    assert_eq!(debouncer.take_due_tree(9 * SECOND).as_deref(), Some("b/"));
    debouncer.tree_compared(false, 10 * SECOND);
    assert_eq!(
        debouncer.take_due_tree(11 * SECOND).as_deref(),
        Some("a/"),
        "it changed during the comparison"
    );
    debouncer.tree_compared(true, 11 * SECOND);
    assert_eq!(debouncer.next_due(), Some(15 * SECOND), "a failed tree is retried");
    debouncer.tree_changed("", 12 * SECOND);
    assert_eq!(debouncer.take_due_tree(20 * SECOND).as_deref(), Some(""));
    debouncer.tree_compared(true, 20 * SECOND);
    assert_eq!(debouncer.next_due(), Some(620 * SECOND), "the full comparison covered the other trees");
}

#[test]
fn too_many_names_become_a_full_comparison() {
    let mut debouncer = idle_debouncer();
    for n in 0..=MAX_NAMES {
        debouncer.name_changed(&format!("{n}"), SECOND);
    }
    assert!(debouncer.names.is_empty() && debouncer.waiting.is_empty());
    assert_eq!(debouncer.take_due_name(99 * SECOND), None);
    assert_eq!(debouncer.take_due_tree(3 * SECOND).as_deref(), Some(""));
}

proptest! {
    /// For any sequence of events: no name is taken before it is quiet, and no change is lost.
    #[test]
    fn every_change_is_processed_after_the_quiet_period(
        steps in prop::collection::vec((0_usize..4, 0_u64..1500, 0_u8..4), 1..200),
    ) {
        let options = DebounceOptions { full_comparison_interval: Duration::from_secs(1 << 30), ..DebounceOptions::default() };
        let mut debouncer = Debouncer::new(options, Duration::ZERO);
        debouncer.take_due_tree(Duration::ZERO);
        debouncer.tree_compared(true, Duration::ZERO);
        let (mut now, mut touched, mut in_flight) = (Duration::ZERO, HashMap::new(), Vec::<String>::new());
        for (name, later, what) in steps {
            now += Duration::from_millis(later);
            match (what, in_flight.pop()) {
                (0, Some(name)) => debouncer.succeeded(&name),
                (1, Some(name)) => drop(debouncer.failed(&name, now)),
                (_, held) => {
                    in_flight.extend(held);
                    debouncer.name_changed(&name.to_string(), now);
                    touched.insert(name.to_string(), now);
                }
            }
            while let Some(name) = debouncer.take_due_name(now) {
                prop_assert!(!in_flight.contains(&name));
                if let Some(last) = touched.remove(&name) {
                    prop_assert!(now >= last + options.quiet_period, "{name} at {now:?}, changed at {last:?}");
                }
                in_flight.push(name);
            }
        }
        in_flight.iter().for_each(|name| debouncer.succeeded(name));
        now += Duration::from_secs(1000);
        while let Some(name) = debouncer.take_due_name(now) {
            touched.remove(&name);
            debouncer.succeeded(&name);
        }
        prop_assert!(touched.is_empty(), "{touched:?}");
    }
}
