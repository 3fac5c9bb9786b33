//! Simulation of closed-loop writers, each on its own connection, to a store behind a link with one queue. A connection
//! has at most its window in the link; bytes beyond that wait in a send buffer, and the writer then waits for space.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::super::*;
use crate::store_statistics::Operation;

/// Maximum bytes of a connection in the link, in flight or queued.
const WINDOW_BYTES: u64 = 512 << 10;
/// Maximum bytes of a connection in its send buffer.
const BUFFER_BYTES: u64 = 512 << 10;
/// Header bytes of each request.
const HEADER_BYTES: u64 = 800;
/// Bytes that a writer hands over at once.
const WRITE_BYTES: u64 = 128 << 10;
/// Timeout of a request that is never answered.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A group of identical writers.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub priority: Priority,
    pub bytes: u64,
    pub workers: usize,
    /// Start time.
    pub start: Duration,
    /// Pause of a writer after each request.
    pub pause: Duration,
    /// The store answers its requests; otherwise they time out.
    pub is_answered: bool,
}

/// Results of a load after the warm-up.
#[derive(Debug, Clone, Copy)]
pub struct LoadResult {
    pub bytes_per_second: f64,
    pub p99: Duration,
}

/// The link and the store, and whether lanes are used.
#[derive(Debug, Clone, Copy)]
pub struct Simulation {
    pub bytes_per_second: f64,
    pub round_trip: Duration,
    /// Service time of a request at the store, which serves one after another.
    pub overhead: Duration,
    /// Mean of an additional intrinsic latency of small requests, exponentially distributed and independent of other
    /// load.
    pub intrinsic_latency: Duration,
    pub scheduled: bool,
    /// Duration of the warm-up, which is not measured.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub length: Duration,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A writer starts its next request.
    Begin(usize),
    /// The store has received bytes of a writer, and the writer has been notified.
    Acknowledged(usize, u64),
    /// The response has arrived or timed out.
    Answered(usize),
    /// A queued request may be dispatched.
    Wake,
}

#[derive(Debug, Default)]
struct Writer {
    load: usize,
    entered: Option<LaneRequest>,
    started: Duration,
    /// Total time queued in the lane, and the start of the current wait.
    waited: Duration,
    queued_at: Duration,
    is_waiting: bool,
    /// Bytes not dispatched yet, in the send buffer, and in flight.
    left: u64,
    buffered: u64,
    in_flight: u64,
}

struct SimulationRun<'a> {
    simulation: Simulation,
    loads: &'a [Load],
    lanes: Lanes,
    writers: Vec<Writer>,
    tickets: HashMap<Ticket, (usize, u64)>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    number: u64,
    now: Duration,
    wake: Option<Duration>,
    /// Times at which the link and the store become idle.
    link_free: Duration,
    store_free: Duration,
    random: u64,
    times: Vec<Vec<Duration>>,
    acknowledged: Vec<u64>,
}

impl Simulation {
    /// Runs all loads concurrently.
    pub fn run(self, loads: &[Load]) -> Vec<LoadResult> {
        let writers = loads
            .iter()
            .enumerate()
            .flat_map(|(load, of)| (0..of.workers).map(move |_| Writer { load, ..Writer::default() }));
        let mut run = SimulationRun {
            simulation: self,
            loads,
            lanes: Lanes::new(LanesOptions::default()),
            writers: writers.collect(),
            tickets: HashMap::new(),
            events: BinaryHeap::new(),
            number: 0,
            now: Duration::ZERO,
            wake: None,
            link_free: Duration::ZERO,
            store_free: Duration::ZERO,
            random: self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            times: vec![Vec::new(); loads.len()],
            acknowledged: vec![0; loads.len()],
        };
        for writer in 0..run.writers.len() {
            let from = loads[run.writers[writer].load].start;
            let at = run.random(Duration::from_millis(100));
            run.schedule(from + at, Event::Begin(writer));
        }
        run.run();
        run.results()
    }
}

impl SimulationRun<'_> {
    fn run(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > self.simulation.warm_up + self.simulation.length {
                return;
            }
            self.now = at;
            match event {
                Event::Begin(writer) => self.begin(writer),
                Event::Acknowledged(writer, bytes) => {
                    let load = self.writers[writer].load;
                    self.writers[writer].in_flight -= bytes;
                    if at > self.simulation.warm_up {
                        self.acknowledged[load] += bytes;
                    }
                    self.send(writer);
                    self.step(writer);
                    let Writer { left, buffered, in_flight, .. } = self.writers[writer];
                    if left + buffered + in_flight == 0 {
                        let takes = self.simulation.overhead / 2 + self.random(self.simulation.overhead);
                        self.store_free = self.store_free.max(at) + takes;
                        let answered = self.store_free + self.own(load);
                        self.schedule(answered, Event::Answered(writer));
                    }
                }
                Event::Answered(writer) => self.end(writer),
                Event::Wake if self.wake == Some(at) => self.wake = None,
                // An earlier wake-up replaced this one.
                Event::Wake => continue,
            }
            while let Some(ticket) = self.lanes.next_dispatched(at) {
                let (writer, bytes) =
                    self.tickets.remove(&ticket).expect("every dispatched ticket was queued");
                let waiting = &mut self.writers[writer];
                waiting.is_waiting = false;
                waiting.waited += at - waiting.queued_at;
                self.hand_over(writer, bytes);
                self.step(writer);
            }
            if let Some(due) = self.lanes.next_wake(at)
                && self.wake.is_none_or(|wake| due < wake)
            {
                // Timers fire up to 1 ms late.
                let late = self.random(Duration::from_millis(1));
                self.wake = Some(due.max(at) + late);
                self.schedule(due.max(at) + late, Event::Wake);
            }
        }
    }

    fn begin(&mut self, writer: usize) {
        let load = self.loads[self.writers[writer].load];
        let kind = LaneKind::new(Operation::Put, load.priority, load.bytes);
        let entered = Some(self.lanes.enter(kind, self.now).expect("the queue has space"));
        let started = self.now;
        self.writers[writer] = Writer {
            load: self.writers[writer].load,
            entered,
            started,
            left: load.bytes,
            ..Writer::default()
        };
        self.step(writer);
    }

    /// Requests dispatches until one is queued.
    fn step(&mut self, writer: usize) {
        while !self.writers[writer].is_waiting {
            let Writer { left, buffered, entered: Some(entered), .. } = &self.writers[writer] else { return };
            if *left == 0 || *buffered >= BUFFER_BYTES {
                return;
            }
            let piece = self
                .lanes
                .quantum_bytes(entered, self.now)
                .unwrap_or(WRITE_BYTES)
                .min(WRITE_BYTES)
                .min(*left);
            match self.simulation.scheduled.then(|| self.lanes.request_dispatch(entered, piece, self.now)) {
                None | Some(Dispatch::Now) => self.hand_over(writer, piece),
                Some(Dispatch::Queued(ticket)) => {
                    self.tickets.insert(ticket, (writer, piece));
                    (self.writers[writer].is_waiting, self.writers[writer].queued_at) = (true, self.now);
                }
            }
        }
    }

    fn hand_over(&mut self, writer: usize, bytes: u64) {
        let giving = &mut self.writers[writer];
        let head = if giving.left == self.loads[giving.load].bytes { HEADER_BYTES } else { 0 };
        giving.left -= bytes;
        giving.buffered += bytes + head;
        if let Some(entered) = &mut giving.entered {
            self.lanes.record_bytes(entered, bytes, self.now);
        }
        self.send(writer);
    }

    fn send(&mut self, writer: usize) {
        loop {
            let sending = &mut self.writers[writer];
            let bytes = sending.buffered.min(WINDOW_BYTES - sending.in_flight).min(64 << 10);
            if bytes == 0 {
                return;
            }
            sending.buffered -= bytes;
            sending.in_flight += bytes;
            let takes = Duration::from_secs_f64(bytes as f64 / self.simulation.bytes_per_second);
            self.link_free = self.link_free.max(self.now) + takes;
            self.schedule(self.link_free + self.simulation.round_trip, Event::Acknowledged(writer, bytes));
        }
    }

    fn end(&mut self, writer: usize) {
        let ending = &mut self.writers[writer];
        let took = self.now - ending.started;
        let entered = ending.entered.take().expect("the request is in flight");
        let load = self.loads[ending.load];
        self.lanes.end(entered, self.now, load.is_answered.then_some(took - ending.waited));
        if self.now > self.simulation.warm_up {
            self.times[ending.load].push(took);
        }
        let pause = load.pause + self.random(Duration::from_micros(100));
        self.schedule(self.now + pause, Event::Begin(writer));
    }

    /// Intrinsic latency of a request at the store: mostly short, sometimes long.
    fn own(&mut self, load: usize) -> Duration {
        let Load { bytes, is_answered, .. } = self.loads[load];
        if !is_answered {
            return TIMEOUT;
        }
        let part = self.random(Duration::from_secs(1)).as_secs_f64();
        if bytes > SMALL_BYTES {
            Duration::ZERO
        } else {
            self.simulation.intrinsic_latency.mul_f64(-(1.0 - part).ln())
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    /// A pseudo-random duration up to `max`.
    fn random(&mut self, max: Duration) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        max.mul_f64((self.random >> 11) as f64 / (1_u64 << 53) as f64)
    }

    fn results(mut self) -> Vec<LoadResult> {
        let length = self.simulation.length;
        let times = self.times.iter_mut().zip(&self.acknowledged);
        let of = |((times, acknowledged), load): ((&mut Vec<Duration>, &u64), &Load)| {
            times.sort_unstable();
            let count = times.len();
            assert!(count > 0, "no request of {load:?} completed");
            let payload = load.bytes as f64 / (load.bytes + HEADER_BYTES) as f64;
            LoadResult {
                bytes_per_second: *acknowledged as f64 * payload / length.as_secs_f64(),
                p99: times[(count * 99).div_ceil(100) - 1],
            }
        };
        times.zip(self.loads).map(of).collect()
    }
}
