use super::*;

const PIECE: u64 = 64 << 10;

/// A file of 16 pieces of which calls, closing and syncing sent so many by then.
fn written(after_call: impl Fn(u64) -> u64, after_close: u64, after_sync: u64) -> Written {
    let sent = Some(((1..=16).map(after_call).collect(), after_close, after_sync));
    Written { piece: PIECE, calls: vec![50.0; 16], close: 10.0, sync: 10.0, sent }
}

#[test]
fn counters_tell_when_writes_leave() {
    let all = 16 * PIECE;
    let told = |seen: &Written| writing(seen, None);
    let through = written(|n| n * PIECE + n * 200, all + 4000, all + 4000);
    assert_eq!(told(&through), Some((Writing::WriteThrough, By::Counters)));
    // Some of it left meanwhile, all of it by the end of closing.
    let back = written(|n| n * PIECE / 3, all + 4000, all + 4000);
    assert_eq!(told(&back), Some((Writing::WriteBack, By::Counters)));
    let buffered = written(|_| 0, 500, all + 80_000);
    assert_eq!(told(&buffered), Some((Writing::Buffered, By::Counters)));
    // The wire is another one than that of the files, and calls take no time to speak of.
    assert_eq!(told(&written(|_| 100, 200, 300)), None);
    assert_eq!(told(&Written::default()), None);
}

#[test]
fn timings_tell_it_where_they_differ_much() {
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
    // Slow calls alone are a slow memory, as far as is known.
    assert_eq!(writing(&seen(3000.0, 5.0, 200.0), None), None);
    // Memory throughout.
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
fn counters_tell_where_reads_come_from() {
    let counters = |told, again| (Some((told, By::Counters)), Some((again, By::Counters)));
    let through = read(|n| 2000 + n * 4300, 140_000);
    assert_eq!(reading(&through, None), counters(Reading::ReadThrough, Again::FromStorage));
    let ahead = read(|n| 2000 + n.div_ceil(32) * 131_072 + n / 16 * 131_072, 0);
    assert_eq!(reading(&ahead, None), counters(Reading::ReadAhead, Again::Cached));
    // On a fast line the next bytes come while these are read.
    let steady = read(|n| if n == 0 { 300 } else { 65_536 + n * 4300 }, 0);
    assert_eq!(reading(&steady, None), counters(Reading::ReadAhead, Again::Cached));
    let whole = read(|n| if n == 0 { 300 } else { 1_050_000 }, 900);
    assert_eq!(reading(&whole, None), counters(Reading::WholeFile, Again::Cached));
    // The cache answered, or the wire is another one.
    assert_eq!(reading(&read(|_| 0, 0), None), (None, None));
}

#[test]
fn timings_tell_it_where_caches_were_dropped() {
    let timings = |told, again| (Some((told, By::Timings)), Some((again, By::Timings)));
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
    // It may be that this memory is slow.
    assert_eq!(reading(&through, None), (None, None));
    assert_eq!(reading(&Read::default(), None), (None, None));
}
