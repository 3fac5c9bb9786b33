//! How things are called in Swift: a bucket is a container of its name, and what its objects need besides lies in a
//! second one, the *companion*. No bucket can be called like a companion: names of buckets hold no plus.
//!
//! | in the companion | what |
//! |---|---|
//! | `u/ID` | an upload that is under way |
//! | `p/ID/NUMBER` | what is known of one of its parts |
//! | `d/ID/...` | bytes of an object or a part (its *segments*), and metadata that fits no header |
//!
//! Swift takes no NUL in a name. NUL and U+0001 are written as two characters, so that order and prefixes stay what
//! they are; all other keys are names as they stand.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Timestamp};

/// The longest name that Swift takes, in bytes: `max_object_name_length`.
const MOST_NAME_BYTES: usize = 1024;

/// The name of a key, or of the beginning of one.
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

/// The name of an object.
pub(super) fn object(key: &str) -> Result<Cow<'_, str>> {
    let name = escape(key);
    if name.len() > MOST_NAME_BYTES {
        let why =
            format!("the key has {} bytes as Swift's name for it; it takes {MOST_NAME_BYTES}", name.len());
        return Err(Error::new(Reason::KeyTooLong, why));
    }
    Ok(name)
}

/// The key of a name. A name that no key has is taken as it stands.
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

/// The companion of a bucket.
pub(super) fn companion(bucket: &BucketName) -> String {
    format!("{bucket}+segments")
}

/// A name for a write or an upload that nothing else has; names made here sort in the order of their making.
pub(super) fn unique(now: Timestamp) -> Result<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let random = getrandom::u64()
        .map_err(|e| Error::new(Reason::Io, format!("the system gives no random bytes: {e}")))?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Twelve digits, whatever the clock says.
    Ok(format!("{:012x}{count:08x}-{random:016x}", now.within_calendar().millis()))
}

/// Whether an upload of this name can be one of ours.
pub(super) fn is_unique(id: &str) -> bool {
    id.len() == 37 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

pub(super) fn upload(id: &str) -> String {
    format!("u/{id}")
}

pub(super) fn parts(id: &str) -> String {
    format!("p/{id}/")
}

pub(super) fn part(id: &str, number: u16) -> String {
    format!("p/{id}/{number:05}")
}

pub(super) fn data(id: &str) -> String {
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
    fn names_of_writes_sort_and_differ() {
        let now = Timestamp::from_millis(1_795_316_334_000);
        let ids: Vec<String> = (0..100).map(|_| unique(now).unwrap()).collect();
        assert!(ids.is_sorted() && ids.iter().all(|id| is_unique(id)));
        assert!(!is_unique("no-such-upload"));
        for millis in [i64::MIN, -1, i64::MAX] {
            let id = unique(Timestamp::from_millis(millis)).unwrap();
            assert!(is_unique(&id), "{id}");
        }
    }

    proptest! {
        #[test]
        fn names_come_back_and_keep_order_and_prefixes(a in "[\0-\u{3}ab]{0,6}", b in "[\0-\u{3}ab]{0,6}") {
            let (name_a, name_b) = (escape(&a), escape(&b));
            prop_assert!(!name_a.contains('\0'));
            prop_assert_eq!(&unescape(&name_a), &a);
            prop_assert_eq!(name_a.cmp(&name_b), a.cmp(&b));
            prop_assert_eq!(name_a.starts_with(&*name_b), a.starts_with(&b));
        }
    }
}
