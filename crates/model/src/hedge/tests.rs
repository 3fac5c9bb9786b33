use super::*;
use proptest::prelude::*;

const SIZE: u64 = 8 << 20;
const STEP: Duration = Duration::from_millis(10);
/// Ranges of a simulated transfer.
const RANGES: usize = 80;
/// A simulated transfer that takes longer never ends: 80 ranges of at most 2.1 s, 40 times slower.
const MAX_DURATION: Duration = Duration::from_secs(80 * 3 * 40);

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Hedging statistics after ranges that took the usual time, and the current time.
struct Scene {
    hedges: HedgePolicy,
    now: Duration,
}

impl Scene {
    fn new(usual: Duration) -> Self {
        let mut scene = Self { hedges: HedgePolicy::default(), now: Duration::ZERO };
        scene.complete_others(20, usual);
        scene
    }

    /// Advances the time by `time`, in which `number` other ranges complete concurrently.
    fn complete_others(&mut self, number: u64, time: Duration) {
        let ranges: Vec<RangeProgress> = (0..number).map(|_| self.hedges.begin(self.now, SIZE)).collect();
        self.now += time;
        for mut range in ranges {
            self.hedges.record_bytes(&mut range, SIZE);
            self.hedges.end(range, self.now, Some(time));
        }
    }

    fn begin(&mut self, bytes: u64) -> RangeProgress {
        self.hedges.begin(self.now, bytes)
    }

    fn check(&mut self, range: &mut RangeProgress) -> HedgeDecision {
        let age = self.now - range.started;
        self.hedges.check(range, self.now, age)
    }

    fn should_hedge(&mut self, range: &mut RangeProgress) -> bool {
        self.check(range).hedge_now
    }

    fn end(mut self, range: RangeProgress) {
        self.hedges.end(range, self.now, None);
        assert_eq!(self.hedges.in_flight, 0);
    }
}

#[test]
fn stalled_range_is_hedged_if_concurrent_ranges_complete() {
    let mut scene = Scene::new(millis(200));
    let mut range = scene.begin(SIZE);
    assert_eq!(scene.hedges.first_check(&range), millis(400));
    scene.hedges.record_bytes(&mut range, 5000);
    scene.complete_others(2, millis(400));
    assert_eq!(scene.check(&mut range), HedgeDecision { hedge_now: false, next_check: millis(800) });
    scene.complete_others(3, millis(399));
    assert_eq!(scene.check(&mut range), HedgeDecision { hedge_now: false, next_check: millis(999) });
    scene.now += millis(1);
    assert!(scene.should_hedge(&mut range));
    scene.hedges.mark_hedged(&mut range);
    scene.complete_others(10, millis(200));
    assert!(!scene.should_hedge(&mut range), "a range is hedged at most once");
    scene.hedges.end(range, scene.now, Some(millis(9000)));
    assert_eq!((scene.hedges.hedged(), scene.hedges.in_flight), (1, 0));
    assert!(scene.hedges.durations.values().flatten().all(|time| *time < millis(9000)));
}

#[test]
fn no_range_is_hedged_before_500_ms() {
    let mut scene = Scene::new(millis(5));
    let mut range = scene.begin(SIZE);
    assert_eq!(scene.hedges.first_check(&range), millis(250));
    scene.complete_others(9, millis(5));
    scene.now += millis(494);
    assert!(!scene.should_hedge(&mut range));
    scene.now += millis(1);
    assert!(scene.should_hedge(&mut range));
    scene.end(range);
}

#[test]
fn no_hedge_without_samples_of_the_size_class() {
    let mut scene = Scene { hedges: HedgePolicy::default(), now: Duration::ZERO };
    let mut range = scene.begin(SIZE);
    let mut smaller = scene.begin(SIZE / 3);
    let mut larger = scene.begin(SIZE + 1);
    scene.complete_others(7, millis(10));
    scene.now += millis(4990);
    assert_eq!(scene.check(&mut range), HedgeDecision { hedge_now: false, next_check: millis(5250) });
    scene.complete_others(80, millis(10));
    assert!(scene.should_hedge(&mut range));
    assert!(scene.should_hedge(&mut smaller), "a smaller range takes no longer");
    assert!(!scene.should_hedge(&mut larger));
    scene.hedges.end(smaller, scene.now, None);
    scene.hedges.end(larger, scene.now, None);
    scene.end(range);
}

#[test]
fn progressing_range_is_not_hedged_however_late_it_started() {
    for (came, is_due) in [(SIZE / 4, true), (SIZE / 2, true), (SIZE / 4 * 3, false), (SIZE - 9, false)] {
        let mut scene = Scene::new(millis(200));
        let mut range = scene.begin(SIZE);
        scene.complete_others(9, millis(200));
        scene.now += millis(200);
        scene.check(&mut range);
        scene.complete_others(9, millis(200));
        scene.now += millis(200);
        scene.hedges.record_bytes(&mut range, came);
        // The missing bytes are expected at the rate since the last check.
        assert_eq!(scene.should_hedge(&mut range), is_due, "{came}");
        scene.end(range);
    }
    // It progressed well and then stalls; later it crawls, but is almost complete.
    let mut scene = Scene::new(millis(200));
    let mut range = scene.begin(SIZE);
    scene.hedges.record_bytes(&mut range, SIZE - 1000);
    scene.complete_others(9, millis(200));
    scene.now += millis(200);
    scene.check(&mut range);
    scene.complete_others(9, millis(200));
    scene.now += millis(200);
    assert!(scene.should_hedge(&mut range));
    scene.hedges.record_bytes(&mut range, 800);
    scene.complete_others(9, millis(200));
    assert!(!scene.should_hedge(&mut range));
    scene.end(range);
}

#[test]
fn no_hedge_if_concurrent_ranges_are_no_faster() {
    for (time, is_due) in [(400, true), (499, true), (510, false), (999, false)] {
        let mut scene = Scene::new(millis(10));
        let mut range = scene.begin(SIZE);
        scene.complete_others(8, millis(time));
        scene.now = range.started + millis(1000);
        assert_eq!(scene.should_hedge(&mut range), is_due, "{time}");
        scene.end(range);
    }
    // Without concurrent ranges there is nothing to compare with.
    let mut scene = Scene::new(millis(10));
    let mut range = scene.begin(SIZE);
    scene.now += millis(1000);
    assert!(!scene.should_hedge(&mut range));
    scene.end(range);
}

#[test]
fn hedges_are_limited_to_one_plus_one_in_twenty() {
    let mut scene = Scene::new(millis(10));
    for _ in 0..1000 {
        let mut range = scene.begin(SIZE);
        scene.complete_others(2, millis(10));
        scene.now += millis(600);
        if scene.should_hedge(&mut range) {
            scene.hedges.mark_hedged(&mut range);
            assert!(scene.hedges.hedged() <= 1 + scene.hedges.started / HEDGE_ONE_IN);
        }
        scene.hedges.end(range, scene.now, None);
    }
    assert_eq!((scene.hedges.started, scene.hedges.hedged()), (3020, 152));
}

#[test]
fn out_of_order_times_are_tolerated() {
    let mut hedges = HedgePolicy::default();
    let range = hedges.begin(millis(20), SIZE);
    let mut other = hedges.begin(millis(10), SIZE);
    hedges.end(range, millis(5), Some(millis(1)));
    assert!(!hedges.check(&mut other, millis(3), millis(0)).hedge_now);
    hedges.end(other, millis(2), None);
    assert_eq!((hedges.totals.time_in_flight, hedges.in_flight), (Duration::ZERO, 0));
}

/// Chunks of one transfer, of which `concurrency` are in flight; each has the time that it would take alone.
#[derive(Debug)]
struct Transfer {
    concurrency: usize,
    times: Vec<Duration>,
}

impl Transfer {
    /// The duration of the transfer without its end. There, a link that stops looks like a single range that stops: all
    /// others have completed.
    fn duration(&self) -> Duration {
        self.times.iter().sum::<Duration>() / u32::try_from(self.concurrency).unwrap()
    }

    /// Runs the transfer at a pace common to all ranges, except for one that gets no bytes. Returns which ranges were
    /// hedged, and when.
    fn run(&self, pace: impl Fn(Duration) -> f64, stalled: Option<usize>) -> Vec<(usize, Duration)> {
        let (mut hedges, mut hedged) = (HedgePolicy::default(), Vec::new());
        let mut waiting = self.times.iter().copied().enumerate();
        // The number of the range, its state, start time, completed fraction and next check.
        let mut in_flight: Vec<(usize, RangeProgress, Duration, f64, Duration)> = Vec::new();
        let mut now = Duration::ZERO;
        loop {
            while in_flight.len() < self.concurrency
                && let Some((number, _)) = waiting.next()
            {
                let range = hedges.begin(now, SIZE);
                let look = hedges.first_check(&range);
                in_flight.push((number, range, now, 0.0, look));
            }
            if in_flight.is_empty() {
                return hedged;
            }
            now += STEP;
            assert!(now < MAX_DURATION, "a range never completes and is not hedged");
            let mut left = Vec::new();
            for (number, mut range, since, mut share, mut look) in in_flight {
                if stalled != Some(number) || range.is_hedged() {
                    share += STEP.as_secs_f64() / self.times[number].as_secs_f64() * pace(now);
                    let came = (share.min(1.0) * SIZE as f64) as u64 - range.received;
                    hedges.record_bytes(&mut range, came);
                }
                let waited = now - since;
                if share >= 1.0 {
                    hedges.end(range, now, Some(waited));
                    continue;
                }
                if waited >= look {
                    let seen = hedges.check(&mut range, now, waited);
                    assert!(seen.next_check > waited);
                    look = seen.next_check;
                    if seen.hedge_now {
                        hedges.mark_hedged(&mut range);
                        hedged.push((number, waited));
                    }
                }
                left.push((number, range, since, share, look));
            }
            in_flight = left;
        }
    }
}

/// A transfer whose ranges take about the same time.
fn transfers() -> impl Strategy<Value = Transfer> {
    (1_usize..33, 40_u64..1500).prop_flat_map(|(concurrency, usual)| {
        let times =
            prop::collection::vec((700_u64..1400).prop_map(move |part| millis(usual * part / 1000)), RANGES);
        times.prop_map(move |times| Transfer { concurrency, times })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// An overloaded store or a congested link gets no additional requests.
    #[test]
    fn nothing_is_hedged_if_all_ranges_are_slow(
        transfer in transfers(),
        times_slower in 1.0_f64..40.0,
        from in 0.0_f64..0.5,
    ) {
        let from = transfer.duration().mul_f64(from);
        let pace = |now: Duration| if now < from { 1.0 } else { 1.0 / times_slower };
        prop_assert_eq!(transfer.run(pace, None), []);
    }

    /// No range receives bytes for a while, then all do.
    #[test]
    fn nothing_is_hedged_if_all_ranges_stop(transfer in transfers(), from in 0.0_f64..0.5, length in 0_u64..9000) {
        let from = transfer.duration().mul_f64(from);
        let stop = from..from + millis(length);
        let pace = |now: Duration| if stop.contains(&now) { 0.0 } else { 1.0 };
        prop_assert_eq!(transfer.run(pace, None), []);
    }

    /// A range that stalls is hedged once it is a straggler, wherever it is in the transfer. The last one is exempt: the
    /// others may not receive enough bytes after its start to be compared with.
    #[test]
    fn single_stalled_range_is_hedged(transfer in transfers(), number in 20_usize..RANGES - 1) {
        prop_assume!(transfer.concurrency >= 4);
        let hedged = transfer.run(|_| 1.0, Some(number));
        let [(hedged, after)] = hedged[..] else { panic!("{hedged:?}") };
        let usual = transfer.times.iter().max().unwrap();
        prop_assert_eq!(hedged, number);
        let latest = straggler_age(*usual) * 5 / 4 + 2 * STEP;
        prop_assert!(after >= MIN_STRAGGLER_AGE && after <= latest, "{:?} of {:?}", after, usual);
    }
}
