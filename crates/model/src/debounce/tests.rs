use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// A scheduler that compared everything at time zero.
fn idle_debouncer() -> Debouncer {
    let mut settling = Debouncer::new(DebounceOptions::default(), Duration::ZERO);
    assert_eq!(settling.take_due_tree(Duration::ZERO).as_deref(), Some(""));
    settling.tree_compared(true, Duration::ZERO);
    settling
}

#[test]
fn name_is_taken_after_the_quiet_period() {
    let mut settling = idle_debouncer();
    settling.name_changed("a", SECOND);
    settling.name_changed("b", 2 * SECOND);
    settling.name_changed("a", 2 * SECOND + SECOND / 2);
    assert_eq!(settling.next_due(), Some(4 * SECOND));
    assert_eq!(settling.take_due_name(4 * SECOND - Duration::from_nanos(1)), None);
    assert_eq!(settling.take_due_name(4 * SECOND).as_deref(), Some("b"));
    assert_eq!(settling.take_due_name(4 * SECOND), None);
    assert_eq!(settling.take_due_name(5 * SECOND).as_deref(), Some("a"));
    settling.succeeded("a");
    settling.succeeded("b");
    assert_eq!(settling.next_due(), Some(600 * SECOND));
}

#[test]
fn name_changed_while_in_progress_is_taken_again() {
    let mut settling = idle_debouncer();
    settling.name_changed("a", Duration::ZERO);
    assert!(settling.take_due_name(2 * SECOND).is_some());
    settling.name_changed("a", 3 * SECOND);
    assert_eq!(settling.take_due_name(9 * SECOND), None, "not processed concurrently");
    assert!(!settling.failed("a", 4 * SECOND), "the change explains the failure");
    assert_eq!(settling.failing_count(), 0);
    assert_eq!(settling.take_due_name(5 * SECOND).as_deref(), Some("a"));
    settling.name_changed("a", 6 * SECOND);
    settling.succeeded("a");
    assert_eq!(settling.take_due_name(8 * SECOND).as_deref(), Some("a"));
    settling.succeeded("a");
    assert_eq!(settling.take_due_name(99 * SECOND), None);
}

#[test]
fn failed_names_are_retried_with_backoff() {
    let options = DebounceOptions { full_comparison_interval: 10_000 * SECOND, ..DebounceOptions::default() };
    let mut settling = Debouncer { options, ..idle_debouncer() };
    settling.trees.clear();
    settling.name_changed("a", Duration::ZERO);
    let (mut now, mut waits) = (2 * SECOND, Vec::new());
    for _ in 0..9 {
        assert!(settling.take_due_name(now).is_some());
        assert!(settling.failed("a", now));
        waits.push((settling.next_due().unwrap() - now).as_secs());
        now = settling.next_due().unwrap();
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(settling.failing_count(), 1);
    let mut settling = idle_debouncer();
    assert!(settling.try_start("b"));
    assert_eq!(settling.failing_count(), 1, "an abandoned name counts as failing");
    assert!(settling.failed("b", Duration::ZERO));
    assert_eq!(settling.failing_count(), 1);
    settling.name_changed("b", SECOND);
    assert_eq!(
        (settling.next_due(), settling.failing_count()),
        (Some(3 * SECOND), 0),
        "a change resets the failures"
    );
}

#[test]
fn comparison_skips_names_waiting_or_in_progress() {
    let mut settling = idle_debouncer();
    settling.name_changed("growing", Duration::ZERO);
    assert!(!settling.try_start("growing"));
    assert!(settling.try_start("other") && !settling.try_start("other"));
    settling.succeeded("other");
    assert!(settling.try_start("other"));
}

#[test]
fn trees_are_compared_one_after_another() {
    let mut settling = idle_debouncer();
    settling.tree_changed("a/", SECOND);
    settling.tree_changed("a/", 2 * SECOND);
    settling.tree_changed("b/", 2 * SECOND);
    assert_eq!(
        settling.take_due_tree(3 * SECOND).as_deref(),
        Some("a/"),
        "further changes do not postpone it"
    );
    assert_eq!((settling.take_due_tree(9 * SECOND), settling.next_due()), (None, None));
    settling.tree_changed("a/", 9 * SECOND);
    settling.tree_compared(true, 9 * SECOND);
    assert_eq!(settling.take_due_tree(9 * SECOND).as_deref(), Some("b/"));
    settling.tree_compared(false, 10 * SECOND);
    assert_eq!(
        settling.take_due_tree(11 * SECOND).as_deref(),
        Some("a/"),
        "it changed during the comparison"
    );
    settling.tree_compared(true, 11 * SECOND);
    assert_eq!(settling.next_due(), Some(15 * SECOND), "a failed tree is retried");
    settling.tree_changed("", 12 * SECOND);
    assert_eq!(settling.take_due_tree(20 * SECOND).as_deref(), Some(""));
    settling.tree_compared(true, 20 * SECOND);
    assert_eq!(settling.next_due(), Some(620 * SECOND), "the full comparison covered the other trees");
}

#[test]
fn too_many_names_become_a_full_comparison() {
    let mut settling = idle_debouncer();
    for n in 0..=MAX_NAMES {
        settling.name_changed(&format!("{n}"), SECOND);
    }
    assert!(settling.names.is_empty() && settling.waiting.is_empty());
    assert_eq!(settling.take_due_name(99 * SECOND), None);
    assert_eq!(settling.take_due_tree(3 * SECOND).as_deref(), Some(""));
}

proptest! {
    /// For any sequence of events: no name is taken before it is quiet, and no change is lost.
    #[test]
    fn every_change_is_processed_after_the_quiet_period(
        steps in prop::collection::vec((0_usize..4, 0_u64..1500, 0_u8..4), 1..200),
    ) {
        let options = DebounceOptions { full_comparison_interval: Duration::from_secs(1 << 30), ..DebounceOptions::default() };
        let mut settling = Debouncer::new(options, Duration::ZERO);
        settling.take_due_tree(Duration::ZERO);
        settling.tree_compared(true, Duration::ZERO);
        let (mut now, mut touched, mut under_way) = (Duration::ZERO, HashMap::new(), Vec::<String>::new());
        for (name, later, what) in steps {
            now += Duration::from_millis(later);
            match (what, under_way.pop()) {
                (0, Some(name)) => settling.succeeded(&name),
                (1, Some(name)) => drop(settling.failed(&name, now)),
                (_, held) => {
                    under_way.extend(held);
                    settling.name_changed(&name.to_string(), now);
                    touched.insert(name.to_string(), now);
                }
            }
            while let Some(name) = settling.take_due_name(now) {
                prop_assert!(!under_way.contains(&name));
                if let Some(last) = touched.remove(&name) {
                    prop_assert!(now >= last + options.quiet_period, "{name} at {now:?}, changed at {last:?}");
                }
                under_way.push(name);
            }
        }
        under_way.iter().for_each(|name| settling.succeeded(name));
        now += Duration::from_secs(1000);
        while let Some(name) = settling.take_due_name(now) {
            touched.remove(&name);
            settling.succeeded(&name);
        }
        prop_assert!(touched.is_empty(), "{touched:?}");
    }
}
