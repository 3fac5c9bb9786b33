//! The memory window and the timeout that a request requires, determined from its head alone, before admission.

use std::time::Duration;

use http::request::Parts;
use http::{Method, header};
use tradewind_core::{ByteRange, Window};

use crate::config::Limits;

/// Window of a read: two pieces (256 KiB each), one in the connection's queue and one being read. The first piece of an
/// extent is read with its record's head, and waits until the queue is empty.
const READ_WINDOW_BYTES: u64 = 512 << 10;
/// Window of a write, an estimate: nothing is carved out of it. It stands for one read from the connection, and for the
/// bytes that wait to be hashed and written.
const WRITE_WINDOW_BYTES: u64 = 768 << 10;
/// Window of a copy, which reads and writes, and of an XML body, which is read whole.
const LARGE_WINDOW_BYTES: u64 = 1280 << 10;
/// Window of a listing: a page of 1,000 entries, as returned by the store and as XML.
const LIST_WINDOW_BYTES: u64 = 512 << 10;
/// Window of every other request: small XML.
const SMALL_WINDOW_BYTES: u64 = 64 << 10;

/// The resources that a request requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requirements {
    pub(super) window_bytes: usize,
    /// Time from admission to the request's deadline.
    pub(super) timeout: Duration,
}

/// Excludes the memory of a large head from the window, so that no buffer can be reserved from it. If a small budget
/// granted less than `window_bytes + head_bytes`, the operation's `window_bytes` have priority. Only what remains
/// beyond `window_bytes` becomes overhead.
pub(super) fn mark_head_overhead(window: &Window, window_bytes: usize, head_bytes: usize) {
    window.add_overhead(window.size().saturating_sub(window_bytes).min(head_bytes));
}

/// Determines the requirements of a request. `length` is the body's length in bytes, `None` if unknown.
pub(super) fn requirements(parts: &Parts, length: Option<u64>, limits: &Limits) -> Requirements {
    let is_object =
        parts.uri.path().get(1..).is_some_and(|path| path.find('/').is_some_and(|at| at + 1 < path.len()));
    let (window_bytes, timeout) = match parts.method {
        Method::GET if is_object => (read_window(parts), limits.transfer_time),
        Method::GET => (LIST_WINDOW_BYTES, limits.request_time),
        Method::PUT if is_object && is_copy(parts) => (LARGE_WINDOW_BYTES, limits.transfer_time),
        // A small object needs its bytes twice (received, staged). The minimum covers XML bodies.
        Method::PUT if is_object => {
            let window_bytes = length.map_or(WRITE_WINDOW_BYTES, |length| {
                length.saturating_mul(2).clamp(SMALL_WINDOW_BYTES, WRITE_WINDOW_BYTES)
            });
            (window_bytes, limits.transfer_time)
        }
        // Completions and multi-deletes: the XML is read whole. A completion may copy the parts.
        Method::POST => (
            length.map_or(LARGE_WINDOW_BYTES, |n| n.clamp(SMALL_WINDOW_BYTES, LARGE_WINDOW_BYTES)),
            if has_query(parts, "uploadId") { limits.transfer_time } else { limits.request_time },
        ),
        _ => (SMALL_WINDOW_BYTES, limits.request_time),
    };
    Requirements { window_bytes: usize::try_from(window_bytes).unwrap_or(usize::MAX), timeout }
}

/// Returns true for a copy. A presigned URL may name its source in the query.
fn is_copy(parts: &Parts) -> bool {
    const COPY_SOURCE: &str = "x-amz-copy-source";
    parts.headers.contains_key(COPY_SOURCE) || has_query(parts, COPY_SOURCE)
}

/// Returns true if the query has a field of this name, in any case.
fn has_query(parts: &Parts, name: &str) -> bool {
    let is_named =
        |field: &str| field.split('=').next().is_some_and(|given| given.eq_ignore_ascii_case(name));
    parts.uri.query().is_some_and(|query| query.split('&').any(is_named))
}

/// The window of a read. A range bounds the window. A store may read more: the rest of the range's first and last
/// blocks, or a whole inline object.
fn read_window(parts: &Parts) -> u64 {
    let range = parts.headers.get(header::RANGE).and_then(|value| ByteRange::parse(value.to_str().ok()?));
    match range {
        Some(ByteRange::Inclusive { first, last }) => {
            (last - first).saturating_add(1).clamp(SMALL_WINDOW_BYTES, READ_WINDOW_BYTES)
        }
        Some(ByteRange::Suffix(length)) => length.clamp(SMALL_WINDOW_BYTES, READ_WINDOW_BYTES),
        _ => READ_WINDOW_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use http::Request;
    use tradewind_core::Budget;

    #[tokio::test]
    async fn a_window_next_to_a_large_head_can_be_reserved_whole() {
        let (window_bytes, head_bytes) = (64 << 10, 80 << 10);
        let budget = Budget::new(1 << 20);
        let window = budget.try_admit_optional(window_bytes + head_bytes).unwrap();
        mark_head_overhead(&window, window_bytes, head_bytes);
        // A small range of a small object: the store reads the whole object.
        let read = window.reserve_own(128 << 10).now_or_never().expect("no other holder");
        assert_eq!(read.bytes(), window_bytes);
        drop(read);
        let small = Budget::new(96 << 10);
        let window = small.try_admit_optional(window_bytes + head_bytes).unwrap();
        mark_head_overhead(&window, window_bytes, head_bytes);
        assert_eq!((window.size(), window.held()), (window_bytes, 96 << 10), "the request has priority");
    }

    #[test]
    fn windows_follow_method_target_range_and_length() {
        let limits = Limits::default();
        let window = |method: &str, uri: &str, range: &str, length| {
            let request = Request::builder().method(method).uri(uri).header("range", range).body(()).unwrap();
            requirements(&request.into_parts().0, length, &limits).window_bytes as u64
        };
        assert_eq!(window("GET", "/b/k", "", None), READ_WINDOW_BYTES);
        assert_eq!(window("GET", "/b/k", "bytes=0-4095", None), SMALL_WINDOW_BYTES);
        assert_eq!(window("GET", "/b/k", "bytes=0-999999999", None), READ_WINDOW_BYTES);
        assert_eq!(window("GET", "/b/", "", None), LIST_WINDOW_BYTES);
        assert_eq!(window("GET", "/b?list-type=2", "", None), LIST_WINDOW_BYTES);
        assert_eq!(window("HEAD", "/b", "", None), SMALL_WINDOW_BYTES);
        assert_eq!(window("PUT", "/b/k", "", Some(4096)), SMALL_WINDOW_BYTES);
        assert_eq!(window("PUT", "/b/k", "", Some(1 << 30)), WRITE_WINDOW_BYTES);
        assert_eq!(window("PUT", "/b/k", "", None), WRITE_WINDOW_BYTES);
        assert_eq!(window("HEAD", "/b/k", "", None), SMALL_WINDOW_BYTES);
        assert_eq!(window("PUT", "/b/k?X-Amz-Copy-Source=b/source", "", Some(0)), LARGE_WINDOW_BYTES);
    }
}
