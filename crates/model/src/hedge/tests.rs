use super::*;
use proptest::prelude::*;

const SIZE: u64 = 8 << 20;
const STEP: Duration = Duration::from_millis(10);

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// What is known where chunks usually take so long, and the time.
struct Scene {
    hedges: Hedges,
    now: Duration,
}

impl Scene {
    fn new(usual: Duration) -> Self {
        let mut scene = Self { hedges: Hedges::default(), now: Duration::ZERO };
        scene.come(20, usual);
        scene
    }

    /// Time passes, in which so many others come side by side.
    fn come(&mut self, number: u64, time: Duration) {
        let chunks: Vec<Chunk> = (0..number).map(|_| self.hedges.begin(self.now, SIZE)).collect();
        self.now += time;
        for mut chunk in chunks {
            self.hedges.came(&mut chunk, SIZE);
            self.hedges.end(chunk, self.now, Some(time));
        }
    }

    fn begin(&mut self, bytes: u64) -> Chunk {
        self.hedges.begin(self.now, bytes)
    }

    fn look(&mut self, chunk: &mut Chunk) -> Look {
        let age = self.now - chunk.begun;
        self.hedges.look(chunk, self.now, age)
    }

    fn is_due(&mut self, chunk: &mut Chunk) -> bool {
        self.look(chunk).is_due
    }

    fn end(mut self, chunk: Chunk) {
        self.hedges.end(chunk, self.now, None);
        assert_eq!(self.hedges.under_way, 0);
    }
}

#[test]
fn what_has_stalled_while_others_came_is_due() {
    let mut scene = Scene::new(millis(200));
    let mut chunk = scene.begin(SIZE);
    assert_eq!(scene.hedges.first_look(&chunk), millis(400));
    scene.hedges.came(&mut chunk, 5000);
    scene.come(2, millis(400));
    assert_eq!(scene.look(&mut chunk), Look { is_due: false, again: millis(800) });
    scene.come(3, millis(399));
    assert_eq!(scene.look(&mut chunk), Look { is_due: false, again: millis(999) });
    scene.now += millis(1);
    assert!(scene.is_due(&mut chunk));
    scene.hedges.hedge(&mut chunk);
    scene.come(10, millis(200));
    assert!(!scene.is_due(&mut chunk), "one is enough");
    scene.hedges.end(chunk, scene.now, Some(millis(9000)));
    assert_eq!((scene.hedges.hedged(), scene.hedges.under_way), (1, 0));
    assert!(scene.hedges.times.values().flatten().all(|time| *time < millis(9000)));
}

#[test]
fn nothing_is_late_before_half_a_second() {
    let mut scene = Scene::new(millis(5));
    let mut chunk = scene.begin(SIZE);
    assert_eq!(scene.hedges.first_look(&chunk), millis(250));
    scene.come(9, millis(5));
    scene.now += millis(494);
    assert!(!scene.is_due(&mut chunk));
    scene.now += millis(1);
    assert!(scene.is_due(&mut chunk));
    scene.end(chunk);
}

#[test]
fn who_knows_no_like_waits() {
    let mut scene = Scene { hedges: Hedges::default(), now: Duration::ZERO };
    let mut chunk = scene.begin(SIZE);
    let mut smaller = scene.begin(SIZE / 3);
    let mut larger = scene.begin(SIZE + 1);
    scene.come(7, millis(10));
    scene.now += millis(4990);
    assert_eq!(scene.look(&mut chunk), Look { is_due: false, again: millis(5250) });
    scene.come(80, millis(10));
    assert!(scene.is_due(&mut chunk));
    assert!(scene.is_due(&mut smaller), "what is smaller takes no longer");
    assert!(!scene.is_due(&mut larger));
    scene.hedges.end(smaller, scene.now, None);
    scene.hedges.end(larger, scene.now, None);
    scene.end(chunk);
}

#[test]
fn what_comes_well_is_not_due_however_late_it_began() {
    for (came, is_due) in [(SIZE / 4, true), (SIZE / 2, true), (SIZE / 4 * 3, false), (SIZE - 9, false)] {
        let mut scene = Scene::new(millis(200));
        let mut chunk = scene.begin(SIZE);
        scene.come(9, millis(200));
        scene.now += millis(200);
        scene.look(&mut chunk);
        scene.come(9, millis(200));
        scene.now += millis(200);
        scene.hedges.came(&mut chunk, came);
        // What is left takes as long as it takes at this pace.
        assert_eq!(scene.is_due(&mut chunk), is_due, "{came}");
        scene.end(chunk);
    }
    // It came well, and stalls now; then it crawls, but is as good as there.
    let mut scene = Scene::new(millis(200));
    let mut chunk = scene.begin(SIZE);
    scene.hedges.came(&mut chunk, SIZE - 1000);
    scene.come(9, millis(200));
    scene.now += millis(200);
    scene.look(&mut chunk);
    scene.come(9, millis(200));
    scene.now += millis(200);
    assert!(scene.is_due(&mut chunk));
    scene.hedges.came(&mut chunk, 800);
    scene.come(9, millis(200));
    assert!(!scene.is_due(&mut chunk));
    scene.end(chunk);
}

#[test]
fn where_others_are_no_faster_none_is_due() {
    for (time, is_due) in [(400, true), (499, true), (510, false), (999, false)] {
        let mut scene = Scene::new(millis(10));
        let mut chunk = scene.begin(SIZE);
        scene.come(8, millis(time));
        scene.now = chunk.begun + millis(1000);
        assert_eq!(scene.is_due(&mut chunk), is_due, "{time}");
        scene.end(chunk);
    }
    // Of what nothing comes beside it, nothing is known.
    let mut scene = Scene::new(millis(10));
    let mut chunk = scene.begin(SIZE);
    scene.now += millis(1000);
    assert!(!scene.is_due(&mut chunk));
    scene.end(chunk);
}

#[test]
fn hedges_are_few() {
    let mut scene = Scene::new(millis(10));
    for _ in 0..1000 {
        let mut chunk = scene.begin(SIZE);
        scene.come(2, millis(10));
        scene.now += millis(600);
        if scene.is_due(&mut chunk) {
            scene.hedges.hedge(&mut chunk);
            assert!(scene.hedges.hedged() <= 1 + scene.hedges.begun / ONE_IN);
        }
        scene.hedges.end(chunk, scene.now, None);
    }
    assert_eq!((scene.hedges.begun, scene.hedges.hedged()), (3020, 152));
}

#[test]
fn times_may_come_in_another_order() {
    let mut hedges = Hedges::default();
    let chunk = hedges.begin(millis(20), SIZE);
    let mut other = hedges.begin(millis(10), SIZE);
    hedges.end(chunk, millis(5), Some(millis(1)));
    assert!(!hedges.look(&mut other, millis(3), millis(0)).is_due);
    hedges.end(other, millis(2), None);
    assert_eq!((hedges.spent, hedges.under_way), (Duration::ZERO, 0));
}

/// Chunks of one transfer: some at a time, each with a time of its own that it would take alone.
#[derive(Debug)]
struct Transfer {
    at_a_time: usize,
    times: Vec<Duration>,
}

impl Transfer {
    /// How long it takes, but for its end. There one that stops with its line looks like one that stops by itself: the
    /// others have come.
    fn lasts(&self) -> Duration {
        self.times.iter().sum::<Duration>() / u32::try_from(self.at_a_time).unwrap()
    }

    /// Carries them at a pace that is the same for all, and one chunk not at all; answers when which was hedged.
    fn run(&self, pace: impl Fn(Duration) -> f64, stalled: Option<usize>) -> Vec<(usize, Duration)> {
        let (mut hedges, mut hedged) = (Hedges::default(), Vec::new());
        let mut waiting = self.times.iter().copied().enumerate();
        // A chunk, when it began, how much of it has come, and when it is looked at.
        let mut under_way: Vec<(usize, Chunk, Duration, f64, Duration)> = Vec::new();
        let mut now = Duration::ZERO;
        loop {
            while under_way.len() < self.at_a_time
                && let Some((number, _)) = waiting.next()
            {
                let chunk = hedges.begin(now, SIZE);
                let look = hedges.first_look(&chunk);
                under_way.push((number, chunk, now, 0.0, look));
            }
            if under_way.is_empty() {
                return hedged;
            }
            now += STEP;
            let mut left = Vec::new();
            for (number, mut chunk, since, mut share, mut look) in under_way {
                if stalled != Some(number) || chunk.is_hedged() {
                    share += STEP.as_secs_f64() / self.times[number].as_secs_f64() * pace(now);
                    let came = (share.min(1.0) * SIZE as f64) as u64 - chunk.done;
                    hedges.came(&mut chunk, came);
                }
                let waited = now - since;
                if share >= 1.0 {
                    hedges.end(chunk, now, Some(waited));
                    continue;
                }
                if waited >= look {
                    let seen = hedges.look(&mut chunk, now, waited);
                    assert!(seen.again > waited);
                    look = seen.again;
                    if seen.is_due {
                        hedges.hedge(&mut chunk);
                        hedged.push((number, waited));
                    }
                }
                left.push((number, chunk, since, share, look));
            }
            under_way = left;
        }
    }
}

/// A transfer whose chunks take about as long as each other.
fn transfers() -> impl Strategy<Value = Transfer> {
    (1_usize..33, 40_u64..1500).prop_flat_map(|(at_a_time, usual)| {
        let times =
            prop::collection::vec((700_u64..1400).prop_map(move |part| millis(usual * part / 1000)), 80);
        times.prop_map(move |times| Transfer { at_a_time, times })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A store that is overloaded, or a line that becomes thin, gets no more requests than before.
    #[test]
    fn where_all_is_slow_nothing_is_hedged(
        transfer in transfers(),
        times_slower in 1.0_f64..40.0,
        from in 0.0_f64..0.5,
    ) {
        let from = transfer.lasts().mul_f64(from);
        let pace = |now: Duration| if now < from { 1.0 } else { 1.0 / times_slower };
        prop_assert_eq!(transfer.run(pace, None), []);
    }

    /// Nothing comes for a time, then everything does.
    #[test]
    fn where_all_stops_nothing_is_hedged(transfer in transfers(), from in 0.0_f64..0.5, length in 0_u64..9000) {
        let from = transfer.lasts().mul_f64(from);
        let stop = from..from + millis(length);
        let pace = |now: Duration| if stop.contains(&now) { 0.0 } else { 1.0 };
        prop_assert_eq!(transfer.run(pace, None), []);
    }

    /// One that stalls is hedged as soon as it is late, wherever it is.
    #[test]
    fn what_stalls_alone_is_hedged(transfer in transfers(), number in 20_usize..80) {
        prop_assume!(transfer.at_a_time >= 4);
        let hedged = transfer.run(|_| 1.0, Some(number));
        let [(hedged, after)] = hedged[..] else { panic!("{hedged:?}") };
        let usual = transfer.times.iter().max().unwrap();
        prop_assert_eq!(hedged, number);
        prop_assert!(after >= LEAST_LATE && after <= late(*usual) * 5 / 4 + 2 * STEP, "{:?} of {:?}", after, usual);
    }
}
