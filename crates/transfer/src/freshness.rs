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

const MILLIS_PER_SECOND: i64 = 1000;
/// Maximum distance in seconds of a file's ctime from the second of both times for the pair to be racy.
const MAX_RACE_SECONDS: u64 = 2;
/// Resolutions of file systems that round times down, in milliseconds: exFAT, ext3, FAT.
const COARSE_RESOLUTIONS_MS: [i64; 3] = [10, 1000, 2000];
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
    let is_rounded = destination.changed.is_some_and(|changed| is_rounded(new, old, changed));
    let is_newer = (new > old || is_newer_by_clock(source, destination, clock)) && !is_rounded;
    let is_same_second = new.seconds() == old.seconds();
    if is_newer && !is_same_second {
        return Freshness::Newer;
    }
    let is_racy = match (source.changed, destination.changed) {
        (Some(changed), None) => is_close(changed, old, clock) && is_close(new, old, clock),
        // A copy has the time of its source. Another time is that of a later change of the copy.
        (_, Some(changed)) => (new == old || is_rounded) && may_race_with_copy(changed, old, new, clock),
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

/// Returns true if a file at the destination, whose times are `changed` and `modified`, may have been copied before the
/// source was written last, at `written`. Equal times are those of a file that was not copied, or of a file system that
/// has only one time.
pub(crate) fn may_race_with_copy(
    changed: Timestamp,
    modified: Timestamp,
    written: Timestamp,
    clock: ObjectClock,
) -> bool {
    changed != modified && is_close(changed, written, clock)
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

/// Returns true if `stored` is `time` as a coarse file system has it. Such a file system rounds `changed` as well.
fn is_rounded(time: Timestamp, stored: Timestamp, changed: Timestamp) -> bool {
    COARSE_RESOLUTIONS_MS.iter().any(|resolution| {
        let floor = |time: Timestamp| time.millis().div_euclid(*resolution).saturating_mul(*resolution);
        floor(time) == stored.millis() && floor(changed) == changed.millis()
    })
}

#[cfg(test)]
mod tests;
