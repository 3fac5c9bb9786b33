use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::osd_map::Osd;

#[test]
fn journal_of_an_earlier_version_is_read() {
    let text = r#"{"version":1,"owner":"a","heartbeat":3,"originals":{"0":65536,"1":32768}}"#;
    let journal: Journal = serde_json::from_str(text).unwrap();
    assert_eq!(journal.started_at_unix_seconds, None);
    assert_eq!(journal.original(0), Some(Affinity::MAX));
    assert_eq!((journal.original(1), journal.original(2)), (Some(Affinity::from_ratio(0.5)), None));
}

fn map(affinities: &[f64]) -> OsdMap {
    let osds = (0..).zip(affinities).map(|(id, affinity)| Osd {
        id,
        is_up: true,
        is_in: true,
        affinity: Affinity::from_ratio(*affinity),
    });
    OsdMap {
        epoch: 1,
        osds: osds.collect(),
        pools: BTreeMap::new(),
        temporary: HashSet::new(),
        explicit_primaries: HashSet::new(),
    }
}

fn change(osd: u32, ratio: f64) -> AffinityChange {
    AffinityChange { osd, affinity: Affinity::from_ratio(ratio) }
}

/// A journal of OSD 1, whose affinity was set from 0.5 to 0.25.
fn journal_of_a_step() -> Journal {
    let mut journal = Journal::new("a".to_owned(), &map(&[1.0, 0.5, 1.0]));
    journal.note(&[change(1, 0.25)], &map(&[1.0, 0.5, 1.0]));
    journal.confirm(&[change(1, 0.25)]);
    journal
}

#[test]
fn changed_osds_are_restored_and_others_left_alone() {
    let mut journal = Journal::new("a".to_owned(), &map(&[1.0, 0.5, 1.0]));
    assert_eq!(journal.restoration(&map(&[0.0, 0.0, 0.0])), Restoration::default());
    // OSD 3 came later.
    journal.note(&[change(1, 0.25), change(3, 0.25)], &map(&[1.0, 0.5, 1.0, 0.75]));
    let restored = journal.restoration(&map(&[0.0, 0.5, 1.0, 0.25]));
    assert_eq!(restored.changes, [change(1, 0.5), change(3, 0.75)], "a change of osd.1 may follow");
    assert_eq!(restored.operators, []);
    assert_eq!(journal.restoration(&map(&[1.0])), Restoration::default());
}

#[test]
fn journal_of_version_1_restores_what_it_names() {
    let text = r#"{"version":1,"owner":"a","heartbeat":3,"originals":{"0":65536,"1":32768},"changed":[1]}"#;
    let journal: Journal = serde_json::from_str(text).unwrap();
    let restored = journal.restoration(&map(&[0.3, 0.7, 0.2]));
    assert_eq!(restored, Restoration { changes: vec![change(1, 0.5)], operators: Vec::new() });
}

#[test]
fn lower_value_than_version_1_set_is_the_operators() {
    let text = r#"{"version":1,"owner":"a","heartbeat":3,"originals":{"0":65536,"1":65536,"2":0}}"#;
    let journal: Journal = serde_json::from_str(text).unwrap();
    let restored = journal.restoration(&map(&[0.0, 0.0625, 0.0]));
    assert_eq!(restored.changes, [change(1, 1.0), change(2, 0.0)]);
    assert_eq!(restored.operators, [change(0, 0.0)]);
}

#[test]
fn value_of_another_command_is_not_restored_but_named() {
    let journal = journal_of_a_step();
    for ratio in [0.0, 0.3, 1.0] {
        let restored = journal.restoration(&map(&[1.0, ratio, 1.0]));
        assert_eq!(restored, Restoration { changes: Vec::new(), operators: vec![change(1, ratio)] });
    }
    // By a restoration that was interrupted, or by hand: there is nothing left to do or to say.
    assert_eq!(journal.restoration(&map(&[1.0, 0.5, 1.0])), Restoration::default());
    assert_eq!(journal.restoration(&map(&[1.0, 0.25, 1.0])).changes, [change(1, 0.5)]);
}

#[test]
fn values_of_an_incomplete_change_are_own_until_its_end() {
    let mut journal = journal_of_a_step();
    journal.note(&[change(1, 0.75)], &map(&[1.0, 0.25, 1.0]));
    for ratio in [0.25, 0.75] {
        assert!(journal.is_own(1, Affinity::from_ratio(ratio)), "{ratio}");
    }
    // It failed, and another one follows: a command of the first may still arrive.
    journal.note(&[change(1, 0.125)], &map(&[1.0, 0.25, 1.0]));
    for ratio in [0.125, 0.25, 0.75] {
        assert!(journal.is_own(1, Affinity::from_ratio(ratio)), "{ratio}");
    }
    assert!(!journal.is_own(1, Affinity::from_ratio(0.5)));
    journal.confirm(&[change(1, 0.125)]);
    assert!(!journal.is_own(1, Affinity::from_ratio(0.25)) && journal.is_own(1, Affinity::from_ratio(0.125)));
}

#[test]
fn osd_of_the_operator_is_found_once_and_stays_the_operators() {
    let mut journal = journal_of_a_step();
    assert_eq!(journal.find_operators(&map(&[1.0, 0.25, 1.0])), []);
    let found = journal.find_operators(&map(&[0.7, 0.0, 1.0]));
    assert_eq!(found, [change(0, 0.7), change(1, 0.0)], "also an OSD that the balancer never changed");
    assert_eq!(journal.find_operators(&map(&[0.7, 0.0, 1.0])), []);
    // Also with the value that the balancer had set.
    let back = map(&[0.7, 0.25, 1.0]);
    assert_eq!(journal.find_operators(&back), []);
    let expected = Restoration { changes: Vec::new(), operators: vec![change(0, 0.7), change(1, 0.25)] };
    assert_eq!(journal.restoration(&back), expected);
}

#[test]
fn stored_journal_is_small_and_knows_all_values() {
    let count = 1_500;
    let before = map(&vec![1.0; count]);
    let mut journal = Journal::new("a".to_owned(), &before);
    let changes: Vec<AffinityChange> = (0..count).map(|osd| change(osd as u32, 0.515_625)).collect();
    journal.note(&changes, &before);
    let text = serde_json::to_string(&journal.stored()).unwrap();
    assert!(text.len() < 65_536, "{}", text.len());
    let stored: Journal = serde_json::from_str(&text).unwrap();
    assert_eq!(stored.original(7), Some(Affinity::MAX));
    assert_eq!(stored.restoration(&before), journal.restoration(&before));
}

#[test]
fn only_a_process_of_this_boot_and_namespace_is_known_to_have_ended() {
    let journal = Journal::new(process_owner(), &map(&[1.0]));
    assert!(!journal.is_of_an_ended_process(), "alive");
    let process = journal.process.clone().unwrap();
    // Above the largest process id of Linux.
    let ended = ProcessIdentity { id: 4_194_305, ..process };
    assert!(ended.has_ended());
    assert!(!ProcessIdentity { boot: "another".to_owned(), ..ended.clone() }.has_ended());
    assert!(!ProcessIdentity { namespace: "pid:[1]".to_owned(), ..ended }.has_ended());
    assert!(!journal.has_same_owner(&Journal::new(process_owner(), &map(&[1.0]))), "another instance");
}

#[test]
fn damaged_affinity_in_a_stored_journal_is_found() {
    let text = serde_json::to_string(&journal_of_a_step().stored()).unwrap();
    let parse = |text: &str| serde_json::from_str::<Journal>(text).unwrap();
    assert!(parse(&text).is_intact());
    assert!(!parse(&text.replace("32768", "32760")).is_intact(), "original");
    assert!(!parse(&text.replace("16384", "16385")).is_intact(), "set");
    assert!(parse(r#"{"version":2,"owner":"a","heartbeat":3,"originals":{"0":7}}"#).is_intact(), "earlier");
}
