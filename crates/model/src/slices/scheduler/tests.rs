use std::num::NonZeroU16;

use proptest::prelude::*;

use super::super::statistics::{GroupStatistics, RequestGroup, RequestKind};
use super::*;

const DISK: DiskSpeed =
    DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };
const MILLI: Duration = Duration::from_millis(1);

fn small() -> TurnRequest {
    TurnRequest {
        work: DiskWork::Small,
        urgency: Urgency::First,
        share: StreamShare::default(),
        is_prompt: true,
    }
}

fn change() -> TurnRequest {
    TurnRequest { work: DiskWork::Change, ..small() }
}

fn slice(stream: u32) -> TurnRequest {
    let bytes = DISK.slice_bytes();
    TurnRequest { work: DiskWork::Read { bytes }, urgency: Urgency::Stream(stream), ..small() }
}

fn dispatched(disk: &mut DiskScheduler, now: Duration) -> Vec<TurnId> {
    std::iter::from_fn(|| disk.next_dispatched(now)).collect()
}

#[test]
fn small_requests_wait_for_a_slice_and_then_share_the_disk() {
    let mut disk = DiskScheduler::new(DISK);
    let stream = disk.request(slice(1), Duration::ZERO).unwrap();
    assert_eq!(dispatched(&mut disk, MILLI), [stream]);
    disk.begin(stream, MILLI);
    let small: Vec<TurnId> = (0..6).map(|_| disk.request(small(), Duration::ZERO).unwrap()).collect();
    let next = disk.request(slice(2), Duration::ZERO).unwrap();
    assert!(dispatched(&mut disk, 50 * MILLI).is_empty(), "the slice has the disk");
    disk.end(stream);
    assert_eq!(dispatched(&mut disk, 60 * MILLI), small[..MAX_CONCURRENT_SMALL]);
    disk.end(small[1]);
    assert_eq!(dispatched(&mut disk, 61 * MILLI), small[4..5]);
    for id in &small {
        disk.end(*id);
    }
    assert_eq!(dispatched(&mut disk, 62 * MILLI), [next]);
}

#[test]
fn small_request_goes_before_slices_that_waited_longer() {
    let mut disk = DiskScheduler::new(DISK);
    let (holder, other) =
        (disk.request(slice(1), Duration::ZERO).unwrap(), disk.request(slice(2), Duration::ZERO).unwrap());
    assert_eq!(dispatched(&mut disk, MILLI), [holder]);
    disk.begin(holder, MILLI);
    assert!(dispatched(&mut disk, 2 * MILLI).is_empty());
    let small = disk.request(small(), Duration::ZERO).unwrap();
    disk.end(holder);
    assert_eq!(dispatched(&mut disk, 3 * MILLI), [small]);
    disk.end(small);
    assert_eq!(dispatched(&mut disk, 4 * MILLI), [other]);
}

#[test]
fn changes_share_one_place() {
    let mut disk = DiskScheduler::new(DISK);
    let stream = disk.request(slice(1), Duration::ZERO).unwrap();
    dispatched(&mut disk, MILLI);
    disk.begin(stream, MILLI);
    let changes: Vec<TurnId> = (0..100).map(|_| disk.request(change(), Duration::ZERO).unwrap()).collect();
    assert_eq!(disk.queued(), 100);
    disk.end(stream);
    assert_eq!(dispatched(&mut disk, 2 * MILLI), changes);
    for id in &changes {
        disk.begin(*id, 2 * MILLI);
    }
    let small: Vec<TurnId> = (0..4).map(|_| disk.request(small(), Duration::ZERO).unwrap()).collect();
    assert_eq!(dispatched(&mut disk, 3 * MILLI), small[..3]);
}

#[test]
fn slice_ends_with_its_bytes_or_its_time() {
    let mut disk = DiskScheduler::new(DISK);
    for (bytes, time) in [(DISK.slice_bytes(), MILLI), (DISK.slice_bytes() / 4, DISK.slice_time())] {
        let stream = disk.request(slice(1), Duration::ZERO).unwrap();
        let other = disk.request(slice(2), Duration::ZERO).unwrap();
        assert_eq!(dispatched(&mut disk, Duration::ZERO), [stream]);
        disk.begin(stream, Duration::ZERO);
        disk.pause(stream, bytes, time);
        assert_eq!(dispatched(&mut disk, time), [other]);
        assert!(!disk.has_bytes(stream));
        disk.end(other);
    }
}

#[test]
fn disk_waits_for_a_prompt_stream_only() {
    let mut disk = DiskScheduler::new(DISK);
    for (is_prompt, waits) in [(true, 12 * MILLI), (false, Duration::ZERO)] {
        let stream = disk.request(TurnRequest { is_prompt, ..slice(1) }, Duration::ZERO).unwrap();
        assert_eq!(dispatched(&mut disk, Duration::ZERO), [stream]);
        disk.begin(stream, Duration::ZERO);
        disk.pause(stream, 256 << 10, 2 * MILLI);
        let other = disk.request(small(), Duration::ZERO).unwrap();
        assert_eq!(disk.next_wake(), Some(2 * MILLI + waits));
        assert_eq!(dispatched(&mut disk, 2 * MILLI + waits), [other]);
        disk.end(other);
    }
}

#[test]
fn turn_stays_while_no_other_request_is_queued() {
    let mut disk = DiskScheduler::new(DISK);
    let stream = disk.request(slice(1), Duration::ZERO).unwrap();
    dispatched(&mut disk, Duration::ZERO);
    disk.begin(stream, Duration::ZERO);
    disk.pause(stream, 1 << 20, MILLI);
    assert!(dispatched(&mut disk, Duration::from_secs(9)).is_empty() && disk.next_wake().is_none());
    assert!(disk.has_bytes(stream) && disk.begin(stream, Duration::from_secs(9)));
}

#[test]
fn hung_request_blocks_others_for_a_bounded_time() {
    let mut disk = DiskScheduler::new(DISK);
    let stream = disk.request(slice(1), Duration::ZERO).unwrap();
    dispatched(&mut disk, Duration::ZERO);
    disk.begin(stream, Duration::ZERO);
    let other = disk.request(small(), Duration::ZERO).unwrap();
    assert_eq!(disk.next_wake(), Some(MAX_BUSY_TIME));
    assert_eq!(dispatched(&mut disk, MAX_BUSY_TIME), [other]);
    assert!(!disk.begin(stream, MAX_BUSY_TIME), "its turn is over");
}

#[test]
fn full_queue_rejects_requests_but_no_further_slices() {
    let mut disk = DiskScheduler::new(DISK);
    let stream = disk.request(slice(1), Duration::ZERO).unwrap();
    dispatched(&mut disk, Duration::ZERO);
    disk.begin(stream, Duration::ZERO);
    (0..MAX_QUEUED_REQUESTS).for_each(|_| {
        disk.request(small(), Duration::ZERO).unwrap();
    });
    assert_eq!(disk.request(change(), Duration::ZERO), Err(QueueFull { queued: MAX_QUEUED_REQUESTS }));
    disk.request(slice(2), Duration::ZERO).unwrap();
}

#[test]
fn slices_of_streams_take_no_room_of_first_requests() {
    let mut disk = DiskScheduler::new(DISK);
    for number in 0..=u32::try_from(MAX_QUEUED_REQUESTS).unwrap() {
        disk.request(slice(number), Duration::ZERO).unwrap();
    }
    assert!(disk.request(small(), Duration::ZERO).is_ok());
}

#[test]
fn slice_that_is_abandoned_before_its_turn_is_not_charged() {
    let of_class = |stream: u32| {
        let share = StreamShare { class: u8::try_from(stream).ok(), ..StreamShare::default() };
        TurnRequest { share, ..slice(stream) }
    };
    let mut disk = DiskScheduler::new(DISK);
    let holder = disk.request(small(), Duration::ZERO).unwrap();
    dispatched(&mut disk, Duration::ZERO);
    disk.begin(holder, Duration::ZERO);
    let abandoned = disk.request(of_class(1), Duration::ZERO).unwrap();
    // It leaves the queue, and waits for the small request.
    assert!(dispatched(&mut disk, MILLI).is_empty());
    disk.end(abandoned);
    let [first, second] = [1, 2].map(|stream| disk.request(of_class(stream), MILLI).unwrap());
    disk.end(holder);
    assert_eq!(dispatched(&mut disk, 2 * MILLI), [first]);
    disk.end(first);
    assert_eq!(dispatched(&mut disk, 3 * MILLI), [second]);
}

#[test]
fn exchanged_turn_is_the_next_one() {
    let mut disk = DiskScheduler::new(DISK);
    let (first, other) =
        (disk.request(small(), Duration::ZERO).unwrap(), disk.request(small(), Duration::ZERO).unwrap());
    assert_eq!(dispatched(&mut disk, MILLI), [first, other]);
    let (waiting, work) =
        (disk.request(slice(2), Duration::ZERO).unwrap(), DiskWork::Read { bytes: 1 << 20 });
    let medium = disk.exchange(first, TurnRequest { work, ..small() }, MILLI);
    disk.end(other);
    assert_eq!(dispatched(&mut disk, MILLI), [medium]);
    disk.end(medium);
    assert_eq!(dispatched(&mut disk, MILLI), [waiting]);
}

#[test]
fn written_slice_waits_for_its_turn_and_holds_nothing() {
    let mut disk = DiskScheduler::new(DISK);
    let stream = disk.request(slice(1), Duration::ZERO).unwrap();
    dispatched(&mut disk, Duration::ZERO);
    disk.begin(stream, Duration::ZERO);
    let written = TurnRequest { work: DiskWork::Write { bytes: 1 << 20 }, ..slice(2) };
    let (written, next) =
        (disk.request(written, Duration::ZERO).unwrap(), disk.request(slice(3), Duration::ZERO).unwrap());
    assert!(dispatched(&mut disk, MILLI).is_empty());
    disk.end(stream);
    assert_eq!(dispatched(&mut disk, MILLI), [written, next]);
}

#[test]
fn statistics_count_waits_turns_and_bytes_by_group() {
    let mut disk = DiskScheduler::new(DISK);
    let share = StreamShare { class: Some(25), weight: NonZeroU16::MIN };
    let group = |kind, class| RequestGroup { kind, class };
    let stream = disk.request(TurnRequest { share, ..slice(1) }, Duration::ZERO).unwrap();
    dispatched(&mut disk, Duration::ZERO);
    disk.begin(stream, Duration::ZERO);
    let waiting = disk.request(small(), 10 * MILLI).unwrap();
    let head = TurnRequest { work: DiskWork::StreamHead, ..small() };
    let dropped = disk.request(head, 20 * MILLI).unwrap();
    disk.request(change(), 20 * MILLI).unwrap();
    let found = disk.waiting(50 * MILLI);
    let max_wait = |kind| found[&group(kind, None)].max_wait;
    assert_eq!((max_wait(RequestKind::Small), max_wait(RequestKind::Change)), (40 * MILLI, 30 * MILLI));
    assert_eq!(found[&group(RequestKind::StreamHead, None)].count, 1);
    assert_eq!(disk.in_service(), BTreeMap::from([(group(RequestKind::Stream, Some(25)), 1)]));
    disk.end(dropped);
    disk.pause(stream, 4 << 20, 55 * MILLI);
    disk.end(stream);
    assert!(dispatched(&mut disk, 60 * MILLI).contains(&waiting));
    let counts = |kind, class| disk.statistics().groups[&group(kind, class)];
    let waited = GroupStatistics { turns: 1, waited: 50 * MILLI, max_wait: 50 * MILLI, ..Default::default() };
    assert_eq!(counts(RequestKind::Small, None), waited);
    assert_eq!(counts(RequestKind::StreamHead, None), GroupStatistics { abandoned: 1, ..Default::default() });
    let read = GroupStatistics { turns: 1, read_bytes: 4 << 20, ..Default::default() };
    assert_eq!(counts(RequestKind::Stream, Some(25)), read);
    assert!(disk.waiting(60 * MILLI).is_empty());
}

/// Streams that always read at the given share of the disk's rate; bytes by class.
fn bytes_by_share(weights: &[u16]) -> Vec<u64> {
    let mut disk = DiskScheduler::new(DISK);
    let mut now = Duration::ZERO;
    let request = |stream: usize| {
        let share =
            StreamShare { class: Some(stream as u8), weight: NonZeroU16::new(weights[stream]).unwrap() };
        TurnRequest { share, ..slice(stream as u32) }
    };
    let mut waiting: BTreeMap<TurnId, usize> =
        (0..weights.len()).map(|stream| (disk.request(request(stream), now).unwrap(), stream)).collect();
    let mut bytes = vec![0; weights.len()];
    while now < Duration::from_secs(60) {
        let id = disk.next_dispatched(now).unwrap();
        let stream = waiting.remove(&id).unwrap();
        now += DISK.positioning_time;
        // The disk is slower than its settings say: turns end by time.
        while disk.has_bytes(id) {
            disk.begin(id, now);
            now += Duration::from_millis(3);
            disk.pause(id, 256 << 10, now);
            bytes[stream] += 256 << 10;
            if disk.turn_end(&disk.turns[&id]) <= now {
                break;
            }
        }
        disk.end(id);
        waiting.insert(disk.request(request(stream), now).unwrap(), stream);
    }
    bytes
}

#[test]
fn shares_of_the_disk_hold_within_ten_percent() {
    for weights in [vec![1, 1], vec![3, 1], vec![10, 5, 1]] {
        let bytes = bytes_by_share(&weights);
        let (all, sum) =
            (bytes.iter().sum::<u64>() as f64, weights.iter().map(|w| f64::from(*w)).sum::<f64>());
        for (bytes, weight) in bytes.iter().zip(&weights) {
            let ratio = *bytes as f64 / all / (f64::from(*weight) / sum);
            assert!((0.9..=1.1).contains(&ratio), "{ratio} of {weights:?}");
        }
    }
}

proptest! {
    /// Any sequence of requests, ends and passing time: no place leaks, and the disk is never idle while one waits.
    #[test]
    fn no_turn_leaks_for_any_sequence_of_events(steps in prop::collection::vec((0_u8..6, 0_usize..8, 0_u64..20), 1..200)) {
        let mut disk = DiskScheduler::new(DISK);
        let (mut live, mut now): (Vec<TurnId>, _) = (Vec::new(), Duration::ZERO);
        for (step, index, millis) in steps {
            now += Duration::from_millis(millis);
            match step {
                0 => live.push(disk.request(small(), now).unwrap()),
                1 => live.push(disk.request(change(), now).unwrap()),
                2 => live.push(disk.request(slice(index as u32), now).unwrap()),
                3 if !live.is_empty() => disk.end(live.swap_remove(index % live.len())),
                4 if !live.is_empty() => drop(disk.begin(live[index % live.len()], now)),
                5 if !live.is_empty() => drop(disk.pause(live[index % live.len()], millis << 18, now)),
                _ => {}
            }
            dispatched(&mut disk, now);
            prop_assert!(disk.turn_count() > 0 || disk.queued() == 0, "the disk is idle");
            let slices = disk.turns.values().filter(|turn| matches!(turn.request.work, DiskWork::Read { .. })).count();
            prop_assert!(slices <= 1 && (slices == 0 || disk.turn_count() == 1), "a slice has the disk alone");
        }
        live.into_iter().for_each(|id| disk.end(id));
        prop_assert_eq!((disk.queued(), disk.turn_count()), (0, 0));
        prop_assert!(disk.next.is_none() && disk.dispatched.is_empty());
    }
}
