//! Tests of traces and of simulated caches.

use std::io::Cursor;

use super::*;

fn read(text: &str) -> Result<Trace, TraceError> {
    Trace::read(Cursor::new(text), None)
}

/// A trace with skewed popularity, a loop and scans: every policy has misses of every kind.
fn synthetic_trace() -> Trace {
    let mut random = fastrand::Rng::with_seed(40);
    let mut text = String::new();
    for request in 0..60_000_u64 {
        let block = match request % 4 {
            0 => 1_000_000 + request,
            1 => 100_000 + request / 4 % 700,
            _ => (1.0 / (random.f64() + 2e-4)) as u64,
        };
        text.push_str(&format!("{block}\n"));
    }
    read(&text).unwrap()
}

#[test]
fn trace_numbers_blocks_in_the_order_of_their_first_request() {
    let trace = read("7\n18446744073709551615\n7\n\n0\n").unwrap();
    assert_eq!((trace.requests(), trace.distinct_blocks()), (&[0, 1, 0, 2][..], 3));
}

#[test]
fn trace_without_a_final_line_break_is_read_whole() {
    assert_eq!(read("1\r\n2").unwrap().requests(), [0, 1]);
}

#[test]
fn compressed_trace_equals_the_plain_one() {
    let text = "5\n6\n5\n".repeat(1000);
    let compressed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert_eq!(Trace::read(Cursor::new(compressed), None).unwrap(), read(&text).unwrap());
}

#[test]
fn limit_on_requests_also_limits_distinct_blocks() {
    let trace = Trace::read(Cursor::new("1\n1\n2\nno number\n"), Some(2)).unwrap();
    assert_eq!((trace.requests(), trace.distinct_blocks()), (&[0, 0][..], 1));
}

#[test]
fn malformed_traces_are_rejected_with_their_line() {
    for (text, message) in [
        ("1\nx\n", "line 2 is not a block number: \"x\""),
        ("1\n-1\n", "line 2 is not a block number: \"-1\""),
        ("18446744073709551616\n", "line 1 is not a block number: \"18446744073709551616\""),
        ("\n\n", "it has no requests"),
        ("", "it has no requests"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), message);
    }
    let mut damaged = zstd::encode_all(&b"1\n2\n"[..], 3).unwrap();
    damaged.truncate(damaged.len() - 2);
    let error = Trace::read(Cursor::new(damaged), None).unwrap_err().to_string();
    assert!(error.starts_with("cannot read it: "), "{error}");
}

#[test]
fn size_in_percent_is_rounded_down_to_at_least_one_block() {
    let text: String = (0..250).map(|block| format!("{block}\n")).collect();
    let trace = read(&text).unwrap();
    let blocks = |size: CacheSize| size.blocks(&trace);
    assert_eq!([1.0, 10.0, 0.1].map(|percent| blocks(CacheSize::Percent(percent))), [2, 25, 1]);
    assert_eq!([0, 7].map(|count| blocks(CacheSize::Blocks(count))), [1, 7]);
}

#[test]
fn cache_of_all_blocks_misses_each_block_once() {
    let trace = synthetic_trace();
    let distinct = u64::from(trace.distinct_blocks());
    for policy in Policy::ALL {
        let report = simulate(&trace, CacheSize::Blocks(distinct + 100), policy);
        assert_eq!((report.misses, report.requests), (distinct, 60_000), "{}", policy.name());
    }
}
