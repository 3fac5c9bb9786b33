//! One policy over one world, event by event.

use std::time::Duration;

use fastrand::Rng;
use tradewind_model::affinity::placement::OsdIndex;

use super::Policy;
use super::report::{PolicyReport, Recorder, RunEnd};
use super::routing::{EndedRead, Request, Routing, routing};
use super::scenario::Phase;
use super::store::{Completion, Measured, ReadIndex, Store};
use super::workload::{Reads, World};
use crate::simulate::event_loop::EventLoop;

/// Time in which a failing store responds with an error.
const ERROR_LATENCY: Duration = Duration::from_millis(1);

/// An event of a run.
#[derive(Debug)]
enum Event {
    /// The read in service at a store completes.
    Completion { store: OsdIndex, epoch: u64 },
    /// The error of a read arrives.
    Error(ReadIndex),
    /// The stores change to this phase.
    PhaseStart(usize),
    /// The policy has a round.
    Round,
    /// The simulated time is over.
    End,
}

/// A read in flight. When it ends, its place is taken by the next read of the same client.
#[derive(Debug, Clone, Copy, Default)]
struct ReadInFlight {
    client: usize,
    pg: usize,
    store: OsdIndex,
    start: Duration,
}

/// A run.
pub(super) struct Run<'a> {
    world: &'a World,
    policy: Policy,
    events: EventLoop<Event>,
    stores: Vec<Store>,
    reads: Vec<ReadInFlight>,
    demands: Reads<'a>,
    routing: Box<dyn Routing + 'a>,
    choices: Rng,
    recorder: Recorder,
    failing_stores: usize,
}

impl<'a> Run<'a> {
    pub fn new(world: &'a World, policy: Policy) -> Self {
        let states = world.phases[0].stores.iter();
        Self {
            world,
            policy,
            events: EventLoop::new(),
            stores: states.map(|state| Store::new(*state)).collect(),
            reads: vec![ReadInFlight::default(); world.in_flight],
            demands: world.reads(),
            routing: routing(policy, world),
            choices: Rng::with_seed(world.choice_seed),
            recorder: Recorder::new(world.duration),
            failing_stores: 0,
        }
    }

    /// Runs to the end.
    pub fn finish(mut self) -> PolicyReport {
        self.events.schedule(self.world.duration, Event::End);
        for (index, phase) in self.world.phases.iter().enumerate() {
            self.events.schedule(phase.start, Event::PhaseStart(index));
        }
        if let Some(interval) = self.routing.round_interval() {
            self.events.schedule(interval, Event::Round);
        }
        // The first phase begins before the first read.
        let mut is_started = false;
        while let Some(event) = self.events.next_event() {
            match event {
                Event::End => break,
                Event::PhaseStart(index) => self.start_phase(&self.world.phases[index]),
                Event::Completion { store, epoch } => self.complete(store, epoch),
                Event::Error(read) => self.fail(read),
                Event::Round => self.round(),
            }
            if !is_started {
                is_started = true;
                (0..self.reads.len()).for_each(|read| self.start_read(read));
            }
        }
        let changes: Vec<Duration> = self.world.phases.iter().map(|phase| phase.start).collect();
        self.recorder.report(&RunEnd {
            policy: self.policy,
            duration: self.world.duration,
            changes: &changes,
            steps: self.routing.steps(),
        })
    }

    /// Starts the next read of the client in this place.
    fn start_read(&mut self, read: ReadIndex) {
        let (now, demand) = (self.events.now(), self.demands.draw());
        let client = read % self.world.clients;
        let request = Request {
            now,
            client,
            pg: demand.pg,
            replicas: self.world.pgs.replicas(demand.pg),
            random: self.choices.u64(..),
        };
        let store = self.routing.route(&request, &self.stores);
        self.reads[read] = ReadInFlight { client, pg: demand.pg, store, start: now };
        if self.stores[store].is_failing() {
            self.events.schedule(now + ERROR_LATENCY, Event::Error(read));
        } else {
            let completion = self.stores[store].push(now, read, demand.work);
            self.schedule_completion(store, completion);
        }
    }

    fn schedule_completion(&mut self, store: OsdIndex, completion: Option<Completion>) {
        if let Some(Completion { at, epoch }) = completion {
            self.events.schedule(at, Event::Completion { store, epoch });
        }
    }

    fn complete(&mut self, store: OsdIndex, epoch: u64) {
        let now = self.events.now();
        let Some(served) = self.stores[store].complete(now, epoch) else { return };
        self.schedule_completion(store, served.next);
        let ReadInFlight { client, pg, start, .. } = self.reads[served.read];
        let latency = now - start;
        self.stores[store].record(latency);
        self.recorder.success(now, latency, self.failing_stores > 0);
        self.routing.completed(EndedRead { now, client, pg, store });
        self.start_read(served.read);
    }

    fn fail(&mut self, read: ReadIndex) {
        let ReadInFlight { client, pg, store, .. } = self.reads[read];
        self.recorder.error();
        self.routing.failed(EndedRead { now: self.events.now(), client, pg, store });
        self.start_read(read);
    }

    fn start_phase(&mut self, phase: &Phase) {
        let now = self.events.now();
        for (index, state) in phase.stores.iter().enumerate() {
            let completion = self.stores[index].change(now, *state);
            if state.is_failing {
                for read in self.stores[index].drain(now) {
                    self.events.schedule(now + ERROR_LATENCY, Event::Error(read));
                }
            } else {
                self.schedule_completion(index, completion);
            }
        }
        self.failing_stores = phase.stores.iter().filter(|state| state.is_failing).count();
        self.routing.phase_changed(now, &phase.stores);
    }

    fn round(&mut self) {
        let now = self.events.now();
        let measured: Vec<Measured> = self.stores.iter_mut().map(|store| store.measure(now)).collect();
        self.routing.round(now, &measured);
        if let Some(interval) = self.routing.round_interval() {
            self.events.schedule(now + interval, Event::Round);
        }
    }
}
