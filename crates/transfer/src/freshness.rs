//! The comparison of two items of one name and size by their times.
//!
//! Times are compared as each side has them; the time of a listed object may be truncated to its second. If both are in
//! one second, either item may have been written last. Such a pair is *racy* if the file was also last changed (ctime)
//! about then, and always between two stores. The clock of a store may be ahead: a file that was written about the time of its
//! object is racy, too. The name is then copied again, no earlier than its new time tells the two
//! apart. So no change is missed, and an unchanged item is copied twice at most.

use tradewind_core::Timestamp;
use tradewind_core::store::ObjectClock;

use crate::Item;
use crate::endpoint::Endpoint;
use crate::objects::Objects;
use crate::preserve::{FileTime, FileTimes};

const MILLIS_PER_SECOND: i64 = 1000;
/// Maximum distance in seconds of a file's ctime from the second of both times for the pair to be racy.
const MAX_RACE_SECONDS: u64 = 2;
/// Resolutions of file systems that round times down, in nanoseconds: exFAT, ext3, FAT.
const COARSE_RESOLUTIONS_NANOS: [i128; 3] = [10_000_000, 1_000_000_000, 2_000_000_000];
/// Finer resolutions, in nanoseconds: of NTFS, and of programs that set times in microseconds or milliseconds.
const FINE_RESOLUTIONS_NANOS: [i128; 3] = [100, 1000, 1_000_000];
/// The time by which the clock of file systems may lag behind this machine's clock.
const FILE_CLOCK_LAG_MS: i64 = 50;
/// The range of a service's clock offset, which is known from whole seconds.
const OFFSET_ERROR_MS: i64 = 1000;

/// The relation of a source item to the destination item of equal name and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The source is newer, by a second or more.
    Newer,
    /// The source is newer, but both times are in one second. No race explains that.
    NewerWithinSecond,
    /// Either item may have been written last: the times are too close to tell.
    Racy,
    /// The destination is up to date.
    Current,
}

/// The clock that sets the times of objects: the store's, or between directories this machine's.
#[derive(Debug, Clone, Default)]
pub struct StoreClock(Option<Objects>);

impl StoreClock {
    /// The clock of the destination if it is a store, otherwise of the source.
    #[must_use]
    pub fn new(from: &Endpoint, to: &Endpoint) -> Self {
        match (from, to) {
            (_, Endpoint::Objects(objects)) | (Endpoint::Objects(objects), _) => Self(Some(objects.clone())),
            (Endpoint::Files(..), Endpoint::Files(..)) => Self(None),
        }
    }

    /// Returns the clock as the latest response has shown it.
    pub(crate) fn object_clock(&self) -> ObjectClock {
        let Some(objects) = &self.0 else { return ObjectClock::default() };
        objects.store.object_clock(&objects.bucket)
    }
}

/// Compares two items of equal name and size by their times.
pub(crate) fn compare_times(source: &Item, destination: &Item, clock: ObjectClock) -> Freshness {
    let (new, old) = (source.modified, destination.modified);
    let copied = file_times(destination);
    let is_rounded = copied.is_some_and(|copied| is_rounded(source.modified_time(), copied));
    // The time of an object has milliseconds at most.
    let is_later = match (source.changed, copied) {
        (Some(_), Some(copied)) => source.modified_time() > copied.modified,
        _ => new > old,
    };
    let is_newer = (is_later || is_newer_by_clock(source, destination, clock)) && !is_rounded;
    let is_same_second = new.seconds() == old.seconds();
    if is_newer && !is_same_second {
        return Freshness::Newer;
    }
    let is_racy = match (source.changed, copied) {
        (Some(changed), None) => is_close(changed, old, clock) && is_close(new, old, clock),
        // A copy has the time of its source. Another time is that of a later change of the copy.
        (_, Some(copied)) => {
            let is_same = source.modified_time() == copied.modified;
            (is_same || is_rounded) && may_race_with_copy(copied, new, clock)
        }
        (None, None) => is_same_second,
    };
    if is_racy {
        Freshness::Racy
    } else if is_newer || clock.rounds_up && is_within_rounded_second(source, destination) {
        Freshness::NewerWithinSecond
    } else {
        Freshness::Current
    }
}

/// Returns true if a file is newer than its object by the clock of a store that is ahead, although its time is earlier.
fn is_newer_by_clock(source: &Item, destination: &Item, clock: ObjectClock) -> bool {
    if source.changed.is_none() || destination.changed.is_some() {
        return false;
    }
    let ahead = clock.offset_ms.unwrap_or(0).saturating_sub(OFFSET_ERROR_MS + OFFSET_ERROR_MS / 2).max(0);
    source.modified.millis().saturating_add(ahead) > destination.modified.millis()
}

/// Returns true if an object whose time was rounded up may have been written in the second of an earlier source.
fn is_within_rounded_second(source: &Item, destination: &Item) -> bool {
    let (new, start) =
        (source.modified.millis(), destination.modified.millis().saturating_sub(MILLIS_PER_SECOND));
    // The object of another store may be later than its time.
    let is_later = new > start || new == start && source.changed.is_none();
    destination.changed.is_none() && is_later && source.modified < destination.modified
}

/// Returns true if a file at the destination may have been copied before the source was written last, at `written`. Equal
/// times show a file that was not copied, or a file system that has only one time.
pub(crate) fn may_race_with_copy(copied: FileTimes, written: Timestamp, clock: ObjectClock) -> bool {
    copied.changed != copied.modified && is_close(copied.changed.to_timestamp(), written, clock)
}

/// The times of a file; `None` for an object.
fn file_times(item: &Item) -> Option<FileTimes> {
    let changed = item.changed_time()?;
    Some(FileTimes { modified: item.modified_time(), changed })
}

/// Returns true if a time of a file is within [`MAX_RACE_SECONDS`] of the second of `written`.
pub(crate) fn is_close(changed: Timestamp, written: Timestamp, clock: ObjectClock) -> bool {
    let changed = changed.millis().saturating_add(clock.offset_ms.unwrap_or(0));
    Timestamp::from_millis(changed).seconds().abs_diff(written.seconds()) <= MAX_RACE_SECONDS
}

/// The earliest time, by this machine's clock, at which a copy of an item of the destination's second gets a time that is
/// not racy.
pub(crate) fn end_of_race(source: &Item, destination: &Item, clock: ObjectClock) -> Timestamp {
    let second = source.modified.seconds().max(destination.modified.seconds());
    let after = match destination.changed {
        Some(_) => MAX_RACE_SECONDS.cast_signed() + 1,
        None => 1,
    };
    let margin = match clock.offset_ms {
        Some(offset) => OFFSET_ERROR_MS.saturating_sub(offset),
        None => 0,
    };
    let millis = second.saturating_add(after).saturating_mul(MILLIS_PER_SECOND).saturating_add(margin);
    // The new object is not about as old as the file.
    let close = (MAX_RACE_SECONDS.cast_signed() + 1) * MILLIS_PER_SECOND + OFFSET_ERROR_MS;
    let millis = match (source.changed, destination.changed) {
        (Some(changed), None) => millis.max(changed.millis().saturating_add(close)),
        _ => millis,
    };
    Timestamp::from_millis(millis.saturating_add(FILE_CLOCK_LAG_MS))
}

/// Returns true if a file has `time` as a coarse file system stores it. Such a file system rounds the ctime as well. A fine
/// resolution may also be of the program that set the time, so the ctime says nothing about it.
fn is_rounded(time: FileTime, stored: FileTimes) -> bool {
    let rounds = |grain: &i128| time.floor(*grain) == stored.modified;
    let rounds_both = |grain: &i128| rounds(grain) && stored.changed.floor(*grain) == stored.changed;
    COARSE_RESOLUTIONS_NANOS.iter().any(rounds_both) || FINE_RESOLUTIONS_NANOS.iter().any(rounds)
}

#[cfg(test)]
mod tests;
