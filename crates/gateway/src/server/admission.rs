//! How much memory a request gets and how long it may take, decided from its head alone.

use std::time::Duration;

use http::request::Parts;
use http::{Method, header};
use tradewind_core::{ByteRange, Window};

use crate::config::Limits;

/// A read: enough for blocks in flight on a fast disk.
const READ_WINDOW: u64 = 512 << 10;
/// A write: what the connection reads at once, and what waits to be hashed and written.
const WRITE_WINDOW: u64 = 768 << 10;
/// A copy reads and writes. XML is read whole.
const LARGE_WINDOW: u64 = 1280 << 10;
/// A listing: a page of a thousand entries, as the store finds them and as XML.
const LIST_WINDOW: u64 = 512 << 10;
/// Everything else: small XML.
const SMALL_WINDOW: u64 = 64 << 10;

/// What a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) window_bytes: usize,
    pub(super) patience: Duration,
}

/// Sets aside what a large head takes of a window that was granted with `head_bytes` more. A small budget has less than
/// was asked for: what the request needs (`window_bytes`) goes first.
pub(super) fn set_head_aside(window: &Window, window_bytes: usize, head_bytes: usize) {
    window.add_overhead(window.size().saturating_sub(window_bytes).min(head_bytes));
}

/// Decides. `length` is the body's, where it is known.
pub(super) fn grant(parts: &Parts, length: Option<u64>, limits: &Limits) -> Grant {
    let is_object =
        parts.uri.path().get(1..).is_some_and(|path| path.find('/').is_some_and(|at| at + 1 < path.len()));
    let (window, patience) = match parts.method {
        Method::GET if is_object => (read_window(parts), limits.transfer_time),
        Method::GET => (LIST_WINDOW, limits.request_time),
        Method::PUT if is_object && parts.headers.contains_key("x-amz-copy-source") => {
            (LARGE_WINDOW, limits.transfer_time)
        }
        // A small object needs its bytes twice (received, staged) and some room for XML bodies.
        Method::PUT if is_object => {
            let window = length
                .map_or(WRITE_WINDOW, |length| length.saturating_mul(2).clamp(SMALL_WINDOW, WRITE_WINDOW));
            (window, limits.transfer_time)
        }
        // Completions and multi-deletes: XML, read whole.
        Method::POST => {
            (length.map_or(LARGE_WINDOW, |n| n.clamp(SMALL_WINDOW, LARGE_WINDOW)), limits.request_time)
        }
        _ => (SMALL_WINDOW, limits.request_time),
    };
    Grant { window_bytes: usize::try_from(window).unwrap_or(usize::MAX), patience }
}

/// A range says how much will be read at most.
fn read_window(parts: &Parts) -> u64 {
    let range = parts.headers.get(header::RANGE).and_then(|value| ByteRange::parse(value.to_str().ok()?));
    match range {
        Some(ByteRange::Inclusive { first, last }) => {
            (last - first).saturating_add(1).clamp(SMALL_WINDOW, READ_WINDOW)
        }
        Some(ByteRange::Suffix(length)) => length.clamp(SMALL_WINDOW, READ_WINDOW),
        _ => READ_WINDOW,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use http::Request;
    use tradewind_core::Budget;

    #[tokio::test]
    async fn a_window_beside_a_large_head_can_be_reserved_whole() {
        let (window_bytes, head_bytes) = (64 << 10, 80 << 10);
        let budget = Budget::new(1 << 20);
        let window = budget.try_admit(window_bytes + head_bytes).unwrap();
        set_head_aside(&window, window_bytes, head_bytes);
        // A small range of a small object: the store reads the object whole.
        let read = window.reserve_own(128 << 10).now_or_never().expect("nobody else holds any of it");
        assert_eq!(read.bytes(), window_bytes);
        drop(read);
        let small = Budget::new(96 << 10);
        let window = small.try_admit(window_bytes + head_bytes).unwrap();
        set_head_aside(&window, window_bytes, head_bytes);
        assert_eq!((window.size(), window.held()), (window_bytes, 96 << 10), "the request goes first");
    }

    #[test]
    fn windows() {
        let limits = Limits::default();
        let window = |method: &str, uri: &str, range: &str, length| {
            let request = Request::builder().method(method).uri(uri).header("range", range).body(()).unwrap();
            grant(&request.into_parts().0, length, &limits).window_bytes as u64
        };
        assert_eq!(window("GET", "/b/k", "", None), READ_WINDOW);
        assert_eq!(window("GET", "/b/k", "bytes=0-4095", None), SMALL_WINDOW);
        assert_eq!(window("GET", "/b/k", "bytes=0-999999999", None), READ_WINDOW);
        assert_eq!(window("GET", "/b/", "", None), LIST_WINDOW);
        assert_eq!(window("GET", "/b?list-type=2", "", None), LIST_WINDOW);
        assert_eq!(window("HEAD", "/b", "", None), SMALL_WINDOW);
        assert_eq!(window("PUT", "/b/k", "", Some(4096)), SMALL_WINDOW);
        assert_eq!(window("PUT", "/b/k", "", Some(1 << 30)), WRITE_WINDOW);
        assert_eq!(window("PUT", "/b/k", "", None), WRITE_WINDOW);
        assert_eq!(window("HEAD", "/b/k", "", None), SMALL_WINDOW);
    }
}
