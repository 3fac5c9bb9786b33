use super::*;

const PIECE: u64 = 64 << 10;

/// A file of 16 pieces, with the total bytes sent after each call, after `close` and after the sync.
fn written(after_call: impl Fn(u64) -> u64, after_close: u64, after_sync: u64) -> WriteTrace {
    let sent_bytes = Some(((1..=16).map(after_call).collect(), after_close, after_sync));
    WriteTrace { piece_bytes: PIECE, call_us: vec![50.0; 16], close_us: 10.0, sync_us: 10.0, sent_bytes }
}

#[test]
fn writing_is_inferred_from_counters() {
    let all = 16 * PIECE;
    let inferred = |trace: &WriteTrace| infer_write_policy(trace, None);
    let through = written(|n| n * PIECE + n * 200, all + 4000, all + 4000);
    assert_eq!(inferred(&through), Some(PolicyFinding::new(WritePolicy::WriteThrough, Evidence::Counters)));
    // Some bytes were sent during the calls, all by the end of `close`.
    let back = written(|n| n * PIECE / 3, all + 4000, all + 4000);
    assert_eq!(inferred(&back), Some(PolicyFinding::new(WritePolicy::WriteBack, Evidence::Counters)));
    let buffered = written(|_| 0, 500, all + 80_000);
    assert_eq!(inferred(&buffered), Some(PolicyFinding::new(WritePolicy::Buffered, Evidence::Counters)));
    // The files are behind another interface, and the calls are fast.
    assert_eq!(inferred(&written(|_| 100, 200, 300)), None);
    assert_eq!(inferred(&WriteTrace::default()), None);
}

#[test]
fn writing_is_inferred_from_large_timing_differences() {
    let trace = |call_us: f64, close_us: f64, sync_us: f64| WriteTrace {
        piece_bytes: PIECE,
        call_us: vec![call_us; 16],
        close_us,
        sync_us,
        sent_bytes: None,
    };
    assert_eq!(
        infer_write_policy(&trace(30.0, 5.0, 20_000.0), None),
        Some(PolicyFinding::new(WritePolicy::Buffered, Evidence::Timings))
    );
    assert_eq!(
        infer_write_policy(&trace(30.0, 20_000.0, 100.0), None),
        Some(PolicyFinding::new(WritePolicy::WriteBack, Evidence::Timings))
    );
    assert_eq!(
        infer_write_policy(&trace(3000.0, 5.0, 200.0), Some(30.0)),
        Some(PolicyFinding::new(WritePolicy::WriteThrough, Evidence::Timings))
    );
    // Slow calls alone may be slow memory.
    assert_eq!(infer_write_policy(&trace(3000.0, 5.0, 200.0), None), None);
    // All calls end in memory.
    assert_eq!(infer_write_policy(&trace(30.0, 5.0, 3.0), Some(28.0)), None);
}

fn read(received: impl Fn(u64) -> u64, reread: u64) -> ReadTrace {
    let received_bytes = Some(((0..=32).map(received).collect(), reread));
    ReadTrace {
        piece_bytes: 4096,
        file_bytes: 1 << 20,
        is_cold: true,
        call_us: vec![100.0; 32],
        reread_call_us: vec![100.0; 32],
        received_bytes,
    }
}

#[test]
fn reading_is_inferred_from_counters() {
    let counters = |read, reread| {
        (
            Some(PolicyFinding::new(read, Evidence::Counters)),
            Some(PolicyFinding::new(reread, Evidence::Counters)),
        )
    };
    let through = read(|n| 2000 + n * 4300, 140_000);
    assert_eq!(
        infer_read_policies(&through, None),
        counters(ReadPolicy::ReadThrough, RereadPolicy::FromStorage)
    );
    let ahead = read(|n| 2000 + n.div_ceil(32) * 131_072 + n / 16 * 131_072, 0);
    assert_eq!(infer_read_policies(&ahead, None), counters(ReadPolicy::ReadAhead, RereadPolicy::Cached));
    // On a fast link, the next bytes arrive while these are read.
    let steady = read(|n| if n == 0 { 300 } else { 65_536 + n * 4300 }, 0);
    assert_eq!(infer_read_policies(&steady, None), counters(ReadPolicy::ReadAhead, RereadPolicy::Cached));
    let whole = read(|n| if n == 0 { 300 } else { 1_050_000 }, 900);
    assert_eq!(infer_read_policies(&whole, None), counters(ReadPolicy::WholeFile, RereadPolicy::Cached));
    // A cache answered, or the files are behind another interface.
    assert_eq!(infer_read_policies(&read(|_| 0, 0), None), (None, None));
}

#[test]
fn reading_is_inferred_from_timings_after_dropping_caches() {
    let timings = |read, reread| {
        (
            Some(PolicyFinding::new(read, Evidence::Timings)),
            Some(PolicyFinding::new(reread, Evidence::Timings)),
        )
    };
    let trace = |call_us: Vec<f64>, reread: f64, is_cold| ReadTrace {
        piece_bytes: 4096,
        file_bytes: 1 << 20,
        is_cold,
        reread_call_us: vec![reread; call_us.len()],
        call_us,
        received_bytes: None,
    };
    let ahead: Vec<f64> = (0..32).map(|n| if n % 16 == 0 { 5000.0 } else { 1.0 }).collect();
    assert_eq!(
        infer_read_policies(&trace(ahead.clone(), 1.0, true), None),
        timings(ReadPolicy::ReadAhead, RereadPolicy::Cached)
    );
    assert_eq!(infer_read_policies(&trace(ahead, 1.0, false), None), (None, None));
    let through = trace(vec![150.0; 32], 140.0, true);
    assert_eq!(
        infer_read_policies(&through, Some(1.0)),
        timings(ReadPolicy::ReadThrough, RereadPolicy::FromStorage)
    );
    // The memory may be slow.
    assert_eq!(infer_read_policies(&through, None), (None, None));
    assert_eq!(infer_read_policies(&ReadTrace::default(), None), (None, None));
}
