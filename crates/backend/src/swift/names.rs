//! Names in Swift. A bucket is a container of the same name; additional data of its objects is in a second container,
//! the *companion*. No bucket can have the name of a companion, because bucket names contain no plus.
//!
//! | in the companion | content |
//! |---|---|
//! | `u/ID` | marker of an unfinished upload |
//! | `p/ID/NUMBER` | record of a part of an upload |
//! | `d/ID/...` | bytes of an object or a part (its *segments*), and metadata that does not fit into headers |
//!
//! Swift does not allow NUL in a name. NUL and U+0001 are escaped as two characters, which preserves order and
//! prefixes; other characters are unchanged.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Timestamp};

/// Maximum length of a name: Swift's `max_object_name_length`.
const MAX_NAME_BYTES: usize = 1024;

/// The escaped form of a key, or of a prefix of one.
pub(super) fn escape(key: &str) -> Cow<'_, str> {
    if !key.contains(['\0', '\u{1}']) {
        return key.into();
    }
    let mut name = String::with_capacity(key.len() + 8);
    for c in key.chars() {
        match c {
            '\0' => name.push_str("\u{1}\u{1}"),
            '\u{1}' => name.push_str("\u{1}\u{2}"),
            c => name.push(c),
        }
    }
    name.into()
}

/// The name of an object. Fails if it is too long.
pub(super) fn object(key: &str) -> Result<Cow<'_, str>> {
    let name = escape(key);
    if name.len() > MAX_NAME_BYTES {
        let why =
            format!("the key's name in Swift has {} bytes; at most {MAX_NAME_BYTES} are allowed", name.len());
        return Err(Error::new(Reason::KeyTooLong, why));
    }
    Ok(name)
}

/// The key of a name. Invalid escapes are kept unchanged.
pub(super) fn unescape(name: &str) -> String {
    let mut key = String::with_capacity(name.len());
    let mut characters = name.chars();
    while let Some(c) = characters.next() {
        if c != '\u{1}' {
            key.push(c);
            continue;
        }
        match characters.clone().next() {
            Some('\u{1}') => key.push('\0'),
            Some('\u{2}') => key.push('\u{1}'),
            _ => {
                key.push(c);
                continue;
            }
        }
        characters.next();
    }
    key
}

/// The name of a bucket's companion.
pub(super) fn companion(bucket: &BucketName) -> String {
    format!("{bucket}+segments")
}

/// A unique id for a write or an upload. Ids created by one process sort in the order of creation.
pub(super) fn unique_id(now: Timestamp) -> Result<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let random = getrandom::u64()
        .map_err(|e| Error::new(Reason::Io, format!("the system's random number generator failed: {e}")))?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Clamped to the calendar, so that it always has twelve digits.
    Ok(format!("{:012x}{count:08x}-{random:016x}", now.clamp_to_calendar().millis()))
}

/// Returns true if the text has the form of an id from [`unique_id`].
pub(super) fn is_unique_id(id: &str) -> bool {
    id.len() == 37 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

pub(super) fn marker_name(id: &str) -> String {
    format!("u/{id}")
}

pub(super) fn record_prefix(id: &str) -> String {
    format!("p/{id}/")
}

pub(super) fn record_name(id: &str, number: u16) -> String {
    format!("p/{id}/{number:05}")
}

pub(super) fn segment_prefix(id: &str) -> String {
    format!("d/{id}/")
}

pub(super) fn metadata(id: &str) -> String {
    format!("d/{id}/metadata")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unique_ids_are_distinct_and_sorted() {
        let now = Timestamp::from_millis(1_795_316_334_000);
        let ids: Vec<String> = (0..100).map(|_| unique_id(now).unwrap()).collect();
        assert!(ids.is_sorted() && ids.iter().all(|id| is_unique_id(id)));
        assert!(!is_unique_id("no-such-upload"));
        for millis in [i64::MIN, -1, i64::MAX] {
            let id = unique_id(Timestamp::from_millis(millis)).unwrap();
            assert!(is_unique_id(&id), "{id}");
        }
    }

    proptest! {
        #[test]
        fn escape_is_reversible_and_keeps_order_and_prefixes(a in "[\0-\u{3}ab]{0,6}", b in "[\0-\u{3}ab]{0,6}") {
            let (name_a, name_b) = (escape(&a), escape(&b));
            prop_assert!(!name_a.contains('\0'));
            prop_assert_eq!(&unescape(&name_a), &a);
            prop_assert_eq!(name_a.cmp(&name_b), a.cmp(&b));
            prop_assert_eq!(name_a.starts_with(&*name_b), a.starts_with(&b));
        }
    }
}
