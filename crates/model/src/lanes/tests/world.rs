//! Writers in a closed loop, each with a connection of its own, to a store behind a line with one queue. A connection has no
//! more than its window in the line; what is handed over beyond that waits in a buffer, and the writer then waits for room.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::super::*;
use crate::store_model::Operation;

/// Bytes of a connection that are on their way or wait in the line.
const WINDOW: u64 = 512 << 10;
/// Bytes of a connection that wait before that.
const BUFFER: u64 = 512 << 10;
/// Bytes that come with each request.
const HEAD: u64 = 800;
/// What somebody hands over at once.
const PIECE: u64 = 128 << 10;
/// How long somebody waits for an answer that does not come.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// Writers that are alike.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub priority: Priority,
    pub bytes: u64,
    pub workers: usize,
    /// When it begins.
    pub from: Duration,
    /// How long a writer does nothing behind each request.
    pub pause: Duration,
    /// The store answers it; else the writer gives up.
    pub is_answered: bool,
}

/// What a load got behind the warm-up.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub bytes_per_second: f64,
    pub p99: Duration,
}

/// The line, and whether lanes are used.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub bytes_per_second: f64,
    pub round_trip: Duration,
    /// What a request takes at the store's end of the line, in which one is served after the other.
    pub overhead: Duration,
    /// What a small request takes there besides, in the mean and whatever others do: its times vary by as much.
    pub own: Duration,
    pub scheduled: bool,
    /// What happens before counts for nothing.
    pub warm_up: Duration,
    /// How long what happens then counts.
    pub length: Duration,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A writer begins its next request.
    Begin(usize),
    /// The store has got so many bytes of a writer's, which knows it from now on.
    Acknowledged(usize, u64),
    /// The answer is here, or is not waited for any longer.
    Answered(usize),
    /// Somebody may have its turn.
    Wake,
}

#[derive(Debug, Default)]
struct Writer {
    load: usize,
    entered: Option<Entered>,
    begun: Duration,
    /// How long it waited for turns, and since when it does.
    waited: Duration,
    asked: Duration,
    is_waiting: bool,
    /// Bytes that have not had their turn, that wait in the buffer, that are on their way.
    left: u64,
    buffered: u64,
    in_flight: u64,
}

struct Run<'a> {
    world: World,
    loads: &'a [Load],
    lanes: Lanes,
    writers: Vec<Writer>,
    tickets: HashMap<Ticket, (usize, u64)>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    number: u64,
    now: Duration,
    wake: Option<Duration>,
    /// When the line and the store have done what they have.
    line_free: Duration,
    store_free: Duration,
    random: u64,
    times: Vec<Vec<Duration>>,
    acknowledged: Vec<u64>,
}

impl World {
    /// Has all loads run at the same time.
    pub fn run(self, loads: &[Load]) -> Vec<Found> {
        let writers = loads
            .iter()
            .enumerate()
            .flat_map(|(load, of)| (0..of.workers).map(move |_| Writer { load, ..Writer::default() }));
        let mut run = Run {
            world: self,
            loads,
            lanes: Lanes::new(LanesOptions::default()),
            writers: writers.collect(),
            tickets: HashMap::new(),
            events: BinaryHeap::new(),
            number: 0,
            now: Duration::ZERO,
            wake: None,
            line_free: Duration::ZERO,
            store_free: Duration::ZERO,
            random: self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            times: vec![Vec::new(); loads.len()],
            acknowledged: vec![0; loads.len()],
        };
        for writer in 0..run.writers.len() {
            let from = loads[run.writers[writer].load].from;
            let at = run.random(Duration::from_millis(100));
            run.at(from + at, Event::Begin(writer));
        }
        run.go();
        run.found()
    }
}

impl Run<'_> {
    fn go(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > self.world.warm_up + self.world.length {
                return;
            }
            self.now = at;
            match event {
                Event::Begin(writer) => self.begin(writer),
                Event::Acknowledged(writer, bytes) => {
                    let load = self.writers[writer].load;
                    self.writers[writer].in_flight -= bytes;
                    if at > self.world.warm_up {
                        self.acknowledged[load] += bytes;
                    }
                    self.send(writer);
                    self.step(writer);
                    let Writer { left, buffered, in_flight, .. } = self.writers[writer];
                    if left + buffered + in_flight == 0 {
                        let takes = self.world.overhead / 2 + self.random(self.world.overhead);
                        self.store_free = self.store_free.max(at) + takes;
                        let answered = self.store_free + self.own(load);
                        self.at(answered, Event::Answered(writer));
                    }
                }
                Event::Answered(writer) => self.end(writer),
                Event::Wake if self.wake == Some(at) => self.wake = None,
                // One that came before this was enough.
                Event::Wake => continue,
            }
            while let Some(ticket) = self.lanes.next(at) {
                let (writer, bytes) = self.tickets.remove(&ticket).expect("it waits");
                let waiting = &mut self.writers[writer];
                waiting.is_waiting = false;
                waiting.waited += at - waiting.asked;
                self.give(writer, bytes);
                self.step(writer);
            }
            if let Some(due) = self.lanes.wake(at)
                && self.wake.is_none_or(|wake| due < wake)
            {
                // Timers are late.
                let late = self.random(Duration::from_millis(1));
                self.wake = Some(due.max(at) + late);
                self.at(due.max(at) + late, Event::Wake);
            }
        }
    }

    fn begin(&mut self, writer: usize) {
        let load = self.loads[self.writers[writer].load];
        let kind = Kind::new(Operation::Put, load.priority, load.bytes);
        let entered = Some(self.lanes.enter(kind, self.now).expect("there is room"));
        let begun = self.now;
        self.writers[writer] =
            Writer { load: self.writers[writer].load, entered, begun, left: load.bytes, ..Writer::default() };
        self.step(writer);
    }

    /// Takes turns until it has to wait.
    fn step(&mut self, writer: usize) {
        while !self.writers[writer].is_waiting {
            let Writer { left, buffered, entered: Some(entered), .. } = &self.writers[writer] else { return };
            if *left == 0 || *buffered >= BUFFER {
                return;
            }
            let piece = self.lanes.piece(entered, self.now).unwrap_or(PIECE).min(PIECE).min(*left);
            match self.world.scheduled.then(|| self.lanes.turn(entered, piece, self.now)) {
                None | Some(Turn::Now) => self.give(writer, piece),
                Some(Turn::Waits(ticket)) => {
                    self.tickets.insert(ticket, (writer, piece));
                    (self.writers[writer].is_waiting, self.writers[writer].asked) = (true, self.now);
                }
            }
        }
    }

    fn give(&mut self, writer: usize, bytes: u64) {
        let giving = &mut self.writers[writer];
        let head = if giving.left == self.loads[giving.load].bytes { HEAD } else { 0 };
        giving.left -= bytes;
        giving.buffered += bytes + head;
        if let Some(entered) = &mut giving.entered {
            self.lanes.carried(entered, bytes, self.now);
        }
        self.send(writer);
    }

    fn send(&mut self, writer: usize) {
        loop {
            let sending = &mut self.writers[writer];
            let bytes = sending.buffered.min(WINDOW - sending.in_flight).min(64 << 10);
            if bytes == 0 {
                return;
            }
            sending.buffered -= bytes;
            sending.in_flight += bytes;
            let takes = Duration::from_secs_f64(bytes as f64 / self.world.bytes_per_second);
            self.line_free = self.line_free.max(self.now) + takes;
            self.at(self.line_free + self.world.round_trip, Event::Acknowledged(writer, bytes));
        }
    }

    fn end(&mut self, writer: usize) {
        let ending = &mut self.writers[writer];
        let took = self.now - ending.begun;
        let entered = ending.entered.take().expect("it is under way");
        let load = self.loads[ending.load];
        self.lanes.end(entered, self.now, load.is_answered.then_some(took - ending.waited));
        if self.now > self.world.warm_up {
            self.times[ending.load].push(took);
        }
        let pause = load.pause + self.random(Duration::from_micros(100));
        self.at(self.now + pause, Event::Begin(writer));
    }

    /// What the store takes for a request of its own: mostly little, now and then much.
    fn own(&mut self, load: usize) -> Duration {
        let Load { bytes, is_answered, .. } = self.loads[load];
        if !is_answered {
            return GIVEN_UP;
        }
        let part = self.random(Duration::from_secs(1)).as_secs_f64();
        if bytes > SMALL_BYTES { Duration::ZERO } else { self.world.own.mul_f64(-(1.0 - part).ln()) }
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    /// Up to `most`.
    fn random(&mut self, most: Duration) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        most.mul_f64((self.random >> 11) as f64 / (1_u64 << 53) as f64)
    }

    fn found(mut self) -> Vec<Found> {
        let length = self.world.length;
        let times = self.times.iter_mut().zip(&self.acknowledged);
        let of = |((times, acknowledged), load): ((&mut Vec<Duration>, &u64), &Load)| {
            times.sort_unstable();
            let count = times.len();
            assert!(count > 0, "none of {load:?} was done");
            let payload = load.bytes as f64 / (load.bytes + HEAD) as f64;
            Found {
                bytes_per_second: *acknowledged as f64 * payload / length.as_secs_f64(),
                p99: times[(count * 99).div_ceil(100) - 1],
            }
        };
        times.zip(self.loads).map(of).collect()
    }
}
