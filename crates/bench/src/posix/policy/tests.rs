use super::*;

const PIECE: u64 = 64 << 10;

/// A file of 16 pieces, with the total bytes sent after each call, after `close` and after the sync.
fn written(after_call: impl Fn(u64) -> u64, after_close: u64, after_sync: u64) -> Written {
    let sent = Some(((1..=16).map(after_call).collect(), after_close, after_sync));
    Written { piece: PIECE, calls: vec![50.0; 16], close: 10.0, sync: 10.0, sent }
}

#[test]
fn writing_is_inferred_from_counters() {
    let all = 16 * PIECE;
    let inferred = |seen: &Written| writing(seen, None);
    let through = written(|n| n * PIECE + n * 200, all + 4000, all + 4000);
    assert_eq!(inferred(&through), Some((Writing::WriteThrough, By::Counters)));
    // Some bytes were sent during the calls, all by the end of `close`.
    let back = written(|n| n * PIECE / 3, all + 4000, all + 4000);
    assert_eq!(inferred(&back), Some((Writing::WriteBack, By::Counters)));
    let buffered = written(|_| 0, 500, all + 80_000);
    assert_eq!(inferred(&buffered), Some((Writing::Buffered, By::Counters)));
    // The files are behind another interface, and the calls are fast.
    assert_eq!(inferred(&written(|_| 100, 200, 300)), None);
    assert_eq!(inferred(&Written::default()), None);
}

#[test]
fn writing_is_inferred_from_large_timing_differences() {
    let seen = |call: f64, close: f64, sync: f64| Written {
        piece: PIECE,
        calls: vec![call; 16],
        close,
        sync,
        sent: None,
    };
    assert_eq!(writing(&seen(30.0, 5.0, 20_000.0), None), Some((Writing::Buffered, By::Timings)));
    assert_eq!(writing(&seen(30.0, 20_000.0, 100.0), None), Some((Writing::WriteBack, By::Timings)));
    assert_eq!(writing(&seen(3000.0, 5.0, 200.0), Some(30.0)), Some((Writing::WriteThrough, By::Timings)));
    // Slow calls alone may be slow memory.
    assert_eq!(writing(&seen(3000.0, 5.0, 200.0), None), None);
    // All calls end in memory.
    assert_eq!(writing(&seen(30.0, 5.0, 3.0), Some(28.0)), None);
}

fn read(received: impl Fn(u64) -> u64, again: u64) -> Read {
    let received = Some(((0..=32).map(received).collect(), again));
    Read {
        piece: 4096,
        file: 1 << 20,
        is_cold: true,
        calls: vec![100.0; 32],
        calls_again: vec![100.0; 32],
        received,
    }
}

#[test]
fn reading_is_inferred_from_counters() {
    let counters = |reading, again| (Some((reading, By::Counters)), Some((again, By::Counters)));
    let through = read(|n| 2000 + n * 4300, 140_000);
    assert_eq!(reading(&through, None), counters(Reading::ReadThrough, Again::FromStorage));
    let ahead = read(|n| 2000 + n.div_ceil(32) * 131_072 + n / 16 * 131_072, 0);
    assert_eq!(reading(&ahead, None), counters(Reading::ReadAhead, Again::Cached));
    // On a fast link, the next bytes arrive while these are read.
    let steady = read(|n| if n == 0 { 300 } else { 65_536 + n * 4300 }, 0);
    assert_eq!(reading(&steady, None), counters(Reading::ReadAhead, Again::Cached));
    let whole = read(|n| if n == 0 { 300 } else { 1_050_000 }, 900);
    assert_eq!(reading(&whole, None), counters(Reading::WholeFile, Again::Cached));
    // A cache answered, or the files are behind another interface.
    assert_eq!(reading(&read(|_| 0, 0), None), (None, None));
}

#[test]
fn reading_is_inferred_from_timings_after_dropping_caches() {
    let timings = |reading, again| (Some((reading, By::Timings)), Some((again, By::Timings)));
    let seen = |calls: Vec<f64>, again: f64, is_cold| Read {
        piece: 4096,
        file: 1 << 20,
        is_cold,
        calls_again: vec![again; calls.len()],
        calls,
        received: None,
    };
    let ahead: Vec<f64> = (0..32).map(|n| if n % 16 == 0 { 5000.0 } else { 1.0 }).collect();
    assert_eq!(reading(&seen(ahead.clone(), 1.0, true), None), timings(Reading::ReadAhead, Again::Cached));
    assert_eq!(reading(&seen(ahead, 1.0, false), None), (None, None));
    let through = seen(vec![150.0; 32], 140.0, true);
    assert_eq!(reading(&through, Some(1.0)), timings(Reading::ReadThrough, Again::FromStorage));
    // The memory may be slow.
    assert_eq!(reading(&through, None), (None, None));
    assert_eq!(reading(&Read::default(), None), (None, None));
}
