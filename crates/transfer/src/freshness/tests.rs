use proptest::prelude::*;

use super::*;
use crate::FileNanos;

/// The clock of a service that is ahead by this time.
fn ahead(offset_ms: i64) -> ObjectClock {
    ObjectClock { offset_ms: Some(offset_ms), rounds_up: false }
}

fn item(millis: i64, changed: Option<i64>) -> Item {
    Item {
        name: "a".to_owned(),
        size: 1,
        modified: Timestamp::from_millis(millis),
        changed: changed.map(Timestamp::from_millis),
        nanos: FileNanos::default(),
        version: None,
    }
}

/// A file with its modification time and ctime in milliseconds.
fn file(modified: i64, changed: i64) -> Item {
    item(modified, Some(changed))
}

fn object(modified: i64) -> Item {
    item(modified, None)
}

fn compare(source: &Item, destination: &Item) -> Freshness {
    compare_times(source, destination, ObjectClock::default())
}

#[test]
fn file_is_compared_with_its_object_to_the_millisecond() {
    for (source, expected) in [
        (file(11_000, 11_000), Freshness::Newer),
        (file(10_999, 10_999), Freshness::Racy),
        (file(10_001, 10_001), Freshness::Racy),
        (file(10_500, 50_000), Freshness::NewerWithinSecond),
        (file(10_001, 50_000), Freshness::NewerWithinSecond),
        (file(10_000, 50_000), Freshness::Current),
        (file(10_000, 13_000), Freshness::Current),
        (file(10_000, 12_999), Freshness::Racy),
        (file(10_000, 10_900), Freshness::Racy),
        (file(10_000, 8_000), Freshness::Racy),
        (file(10_000, 7_999), Freshness::Current),
        (file(9_999, 10_500), Freshness::Racy),
        (file(7_999, 10_500), Freshness::Current),
    ] {
        assert_eq!(compare(&source, &object(10_000)), expected, "{source:?}");
    }
    // A local store lists milliseconds.
    assert_eq!(compare(&file(10_500, 10_500), &object(10_700)), Freshness::Racy);
    assert_eq!(compare(&file(10_700, 50_000), &object(10_500)), Freshness::NewerWithinSecond);
    assert_eq!(compare(&file(10_500, 50_000), &object(10_700)), Freshness::Current);
}

#[test]
fn downloaded_file_is_racy_only_soon_after_the_upload() {
    for (modified, changed, expected) in [
        (10_000, 10_600, Freshness::Racy),
        (10_000, 12_999, Freshness::Racy),
        (10_000, 13_000, Freshness::Current),
        (9_000, 10_600, Freshness::Newer),
        (10_400, 10_400, Freshness::Current),
        // It changed after the download.
        (10_400, 10_600, Freshness::Current),
    ] {
        assert_eq!(compare(&object(10_000), &file(modified, changed)), expected, "{modified} {changed}");
    }
    // The other way it is as old as its object.
    assert_eq!(compare(&file(10_000, 20_000), &object(10_000)), Freshness::Current);
}

#[test]
fn copied_file_is_racy_only_soon_after_the_source_changed() {
    let source = file(10_300, 10_300);
    for (modified, changed, expected) in [
        (10_300, 10_400, Freshness::Racy),
        (10_300, 13_000, Freshness::Current),
        (10_200, 13_000, Freshness::NewerWithinSecond),
        (9_300, 13_000, Freshness::Newer),
        (11_300, 11_300, Freshness::Current),
    ] {
        assert_eq!(compare(&source, &file(modified, changed)), expected, "{modified} {changed}");
    }
}

/// The object was dated 11 when it was uploaded at 10.5.
#[test]
fn edit_after_an_upload_to_a_store_whose_clock_is_ahead_is_copied() {
    for (edited, offset_ms, expected) in [
        (10_800, 600, Freshness::Racy),
        (10_800, 0, Freshness::Racy),
        (40_000, 60_600, Freshness::Newer),
        (5_000, 60_600, Freshness::Current),
    ] {
        let time = if offset_ms > 1000 { 71_000 } else { 11_000 };
        let found = compare_times(&file(edited, edited), &object(time), ahead(offset_ms));
        assert_eq!(found, expected, "{edited} {offset_ms}");
    }
}

#[test]
fn objects_of_one_second_are_always_racy() {
    assert_eq!(compare(&object(10_000), &object(10_000)), Freshness::Racy);
    assert_eq!(compare(&object(10_000), &object(10_900)), Freshness::Racy);
    assert_eq!(compare(&object(10_900), &object(10_000)), Freshness::Racy);
    assert_eq!(compare(&object(10_000), &object(11_000)), Freshness::Current);
    assert_eq!(compare(&object(11_000), &object(10_999)), Freshness::Newer);
}

#[test]
fn ctime_is_compared_by_the_clock_of_the_store() {
    let downloaded = |clock, changed| compare_times(&object(100_000), &file(100_000, changed), clock);
    // The file changed at 100.4 by the store's clock.
    assert_eq!(downloaded(ahead(60_000), 40_400), Freshness::Racy);
    assert_eq!(downloaded(ahead(60_000), 100_400), Freshness::Current);
    assert_eq!(downloaded(ahead(-60_000), 160_400), Freshness::Racy);
    assert_eq!(downloaded(ObjectClock::default(), 100_400), Freshness::Racy);
}

/// Each copy to such a file system has an earlier time than its source.
#[test]
fn coarse_file_systems_do_not_make_the_source_newer() {
    for (source, destination, expected) in [
        (object(11_456), file(10_000, 30_000), Freshness::Current),
        (file(10_456, 10_456), file(10_000, 30_000), Freshness::Current),
        (file(10_456, 10_456), file(10_450, 30_010), Freshness::Current),
        (file(10_456, 10_456), file(10_000, 12_000), Freshness::Racy),
        // FAT has no ctime: it is the modification time.
        (file(10_456, 10_456), file(10_000, 10_000), Freshness::Current),
        // The ctime shows that the time was set to a full second.
        (file(10_456, 10_456), file(10_000, 30_001), Freshness::NewerWithinSecond),
        (file(13_000, 13_000), file(10_000, 30_000), Freshness::Newer),
    ] {
        assert_eq!(compare(&source, &destination), expected, "{source:?} {destination:?}");
    }
}

#[test]
fn object_of_a_store_that_rounds_up_counts_from_the_second_before() {
    let clock = ObjectClock { offset_ms: Some(0), rounds_up: true };
    for (source, expected) in [
        (file(10_500, 10_500), Freshness::Racy),
        (file(10_500, 30_000), Freshness::NewerWithinSecond),
        (file(10_000, 30_000), Freshness::Current),
        (file(11_000, 30_000), Freshness::Current),
        (file(11_000, 11_000), Freshness::Racy),
        (object(10_000), Freshness::NewerWithinSecond),
        (object(9_000), Freshness::Current),
    ] {
        assert_eq!(compare_times(&source, &object(11_000), clock), expected, "{source:?}");
    }
    assert_eq!(compare_times(&object(11_000), &file(10_500, 30_000), clock), Freshness::Newer);
}

#[test]
fn times_at_the_ends_of_their_range_are_compared() {
    for time in [i64::MIN, i64::MAX] {
        for clock in [ObjectClock::default(), ahead(i64::MAX), ahead(-i64::MAX)] {
            for (source, destination) in [
                (object(time), file(time, time)),
                (file(time, time), object(time)),
                (object(time), object(time)),
            ] {
                compare_times(&source, &destination, clock);
                end_of_race(&source, &destination, clock);
            }
        }
    }
}

/// A direction of a sync, in a model of what each side records.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Up,
    Down,
    Directories,
    Stores,
}

impl Direction {
    /// The source that was written at this time. Objects have the time of the store's clock, in full seconds.
    fn source(self, written: i64, offset: i64) -> Item {
        match self {
            Self::Up | Self::Directories => file(written, written),
            Self::Down | Self::Stores => object((written + offset).div_euclid(1000) * 1000),
        }
    }

    /// The destination after a copy at this time.
    fn copy(self, source: &Item, copied: i64, offset: i64) -> Item {
        match self {
            Self::Up | Self::Stores => object((copied + offset).div_euclid(1000) * 1000),
            Self::Down | Self::Directories => file(source.modified.millis(), copied),
        }
    }
}

fn directions() -> impl Strategy<Value = Direction> {
    prop::sample::select(vec![Direction::Up, Direction::Down, Direction::Directories, Direction::Stores])
}

proptest! {
    /// Whatever the times are: a change after a copy is copied, and what does not change is copied twice at most.
    #[test]
    fn changes_are_copied_and_syncs_converge(
        direction in directions(),
        skew in prop::sample::select(vec![0_i64, 400, -70_000, 3_600_000]),
        errors in prop::array::uniform3(-500_i64..500),
        written in 1_000_000_000_i64..1_000_010_000,
        pauses in prop::array::uniform4(1_i64..4000),
    ) {
        let offset = if matches!(direction, Direction::Directories) { 0 } else { skew };
        let clock = |run: usize| match direction {
            Direction::Directories => ObjectClock::default(),
            _ => ahead(offset + errors[run]),
        };
        // A file that is newer than its object by the clocks is copied each time until the store's clock has caught up.
        prop_assume!(!(matches!(direction, Direction::Up) && skew < 0));
        let source = direction.source(written, offset);
        let copied = written + pauses[0];
        let destination = direction.copy(&source, copied, offset);

        // By chance, the time of the copy is the time that the store's clock gave to its source.
        prop_assume!(destination.changed != Some(destination.modified));

        let changed = direction.source(copied + pauses[1], offset);
        prop_assert_ne!(compare_times(&changed, &destination, clock(0)), Freshness::Current);

        let again = copied + pauses[2];
        if compare_times(&source, &destination, clock(1)) != Freshness::Current {
            let end = end_of_race(&source, &destination, clock(1)).millis();
            prop_assert!(end - again <= 6000, "{} ms", end - again);
            let destination = direction.copy(&source, again.max(end), offset);
            prop_assert_eq!(compare_times(&source, &destination, clock(2)), Freshness::Current);
        }
    }
}

/// A file with nanoseconds after the milliseconds of its times.
fn precise(millis: i64, modified: u32, changed: u32) -> Item {
    Item { nanos: FileNanos { modified, changed }, ..file(millis, millis) }
}

#[test]
fn files_are_compared_to_the_nanosecond() {
    let copy = |nanos| Item { nanos: FileNanos { modified: nanos, changed: 5 }, ..file(10_300, 50_000) };
    for (source, destination, expected) in [
        (precise(10_300, 450_150, 450_150), copy(450_050), Freshness::NewerWithinSecond),
        (precise(10_300, 400_000, 400_000), copy(400_000), Freshness::Current),
        // A file system or a program may round the time of a copy.
        (precise(10_300, 456_789, 456_789), copy(456_700), Freshness::Current),
        (precise(10_300, 456_789, 456_789), copy(456_000), Freshness::Current),
        (precise(10_300, 456_789, 456_789), copy(0), Freshness::Current),
        (precise(10_300, 456_789, 456_789), copy(1), Freshness::NewerWithinSecond),
        // It was copied within a millisecond of its last change, and may have changed since.
        (precise(10_300, 400_000, 400_000), precise(10_300, 400_000, 700_000), Freshness::Racy),
        (object(10_300), precise(10_300, 0, 700_000), Freshness::Racy),
        // It was not copied.
        (precise(10_300, 400_000, 400_000), precise(10_300, 400_000, 400_000), Freshness::Current),
        // An object has no nanoseconds.
        (precise(10_300, 400_001, 0), object(10_300), Freshness::Racy),
        (
            Item { nanos: FileNanos { modified: 9, changed: 0 }, ..file(10_000, 50_000) },
            object(10_000),
            Freshness::Current,
        ),
    ] {
        assert_eq!(compare(&source, &destination), expected, "{source:?} {destination:?}");
    }
}
