//! One configuration over the workload, event by event.

mod storage;
mod transfer;

use std::collections::VecDeque;
use std::time::Duration;

use tradewind_model::slices::Urgency;

use super::node::{Io, IoIndex, Leg, Node, Token, Work};
use super::report::{Contents, PhaseReport, Recorder, RunReport};
use super::server::{Job, Part};
use super::world::{ObjectIndex, Request, World};
use super::{CLIENTS, NODES, REPLICAS, Setup};
use crate::device_model::DeviceRequest;
use crate::simulate::event_loop::EventLoop;

/// Time within which a node must accept a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_millis(500);

/// The phases of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
    Delete,
}

#[derive(Debug)]
enum Event {
    /// A request to a device or link is complete.
    Done { node: usize, part: Part, token: Token },
    /// The request of a client must have been accepted.
    Timeout { client: usize, attempt: u64 },
}

/// The progress of one connection.
#[derive(Debug, Clone, Copy, Default)]
struct LegState {
    node: usize,
    is_done: bool,
    /// Storage is read or written.
    is_in_io: bool,
    /// The next byte to read from storage.
    read: u64,
    /// A unit is on the link to the client.
    is_sending: bool,
    sent: u64,
    received: u64,
    written: u64,
}

/// The request of a client.
#[derive(Debug, Clone)]
struct Active {
    request: Request,
    attempt: u64,
    started_at: Duration,
    first_byte: Option<Duration>,
    accepted: usize,
    /// Bytes of an upload that are sent.
    sent: u64,
    /// One for a GET, else one per replica.
    legs: Vec<LegState>,
}

/// A run.
#[derive(Debug)]
pub(super) struct Run<'a> {
    world: &'a World,
    setup: Setup,
    events: EventLoop<Event>,
    nodes: Vec<Node>,
    ios: Vec<Io>,
    free_ios: Vec<IoIndex>,
    operation: Operation,
    queue: VecDeque<Request>,
    clients: Vec<Option<Active>>,
    attempts: u64,
    recorder: Recorder,
}

impl<'a> Run<'a> {
    pub fn new(world: &'a World, setup: Setup) -> Self {
        Self {
            world,
            setup,
            events: EventLoop::new(),
            nodes: (0..NODES).map(|node| Node::new(world, &setup, node, world.device_seed)).collect(),
            ios: Vec::new(),
            free_ios: Vec::new(),
            operation: Operation::Put,
            queue: VecDeque::new(),
            clients: vec![None; CLIENTS],
            attempts: 0,
            recorder: Recorder::default(),
        }
    }

    /// Runs all phases.
    pub fn finish(mut self) -> RunReport {
        let world = self.world;
        let put = self.phase(Operation::Put, &world.puts);
        let contents_after_put = Contents::new(world, &self.nodes);
        let get = self.phase(Operation::Get, &world.gets);
        let contents_after_get = Contents::new(world, &self.nodes);
        let delete = self.phase(Operation::Delete, &world.deletes);
        let Setup { configuration, cache_share, labels, .. } = self.setup;
        RunReport {
            configuration,
            cache_share,
            labels,
            put,
            get,
            delete,
            contents_after_put,
            contents_after_get,
        }
    }

    fn phase(&mut self, operation: Operation, requests: &[Request]) -> PhaseReport {
        self.operation = operation;
        self.queue = requests.iter().copied().collect();
        self.recorder = Recorder::new(self.events.now(), &self.nodes);
        (0..CLIENTS).for_each(|client| self.start_request(client));
        while self.clients.iter().any(Option::is_some) {
            match self.events.next_event() {
                Some(Event::Done { node, part, token }) => self.done(node, part, token),
                Some(Event::Timeout { client, attempt }) => self.timeout(client, attempt),
                None => unreachable!("a request in flight has an event"),
            }
        }
        std::mem::take(&mut self.recorder).finish(self.events.now(), &self.nodes)
    }

    /// Starts the next request of a client, if there is one.
    fn start_request(&mut self, client: usize) {
        let Some(request) = self.queue.pop_front() else {
            return self.recorder.idle(self.events.now());
        };
        let replicas = self.world.objects[request.object].nodes();
        let nodes = match self.operation {
            Operation::Get => &replicas[request.replica..=request.replica],
            Operation::Put | Operation::Delete => &replicas[..],
        };
        let leg = |&node: &usize| LegState { node, ..LegState::default() };
        self.attempts += 1;
        self.clients[client] = Some(Active {
            request,
            attempt: self.attempts,
            started_at: self.events.now(),
            first_byte: None,
            accepted: 0,
            sent: 0,
            legs: nodes.iter().map(leg).collect(),
        });
        let timeout = Event::Timeout { client, attempt: self.attempts };
        self.events.schedule(self.events.now() + CONNECTION_TIMEOUT, timeout);
        for (number, &node) in nodes.iter().enumerate() {
            self.nodes[node].accepts.push_back(Leg { client, number });
        }
        nodes.iter().for_each(|&node| self.dispatch(node));
    }

    /// Gives free workers of a node connections to accept, then operations.
    fn dispatch(&mut self, node: usize) {
        while self.nodes[node].free_workers > 0 {
            if let Some(leg) = self.nodes[node].accepts.pop_front() {
                self.accept(leg);
            } else if let Some(io) = self.nodes[node].tasks.pop_front() {
                self.nodes[node].free_workers -= 1;
                self.begin(io);
            } else {
                return;
            }
        }
    }

    fn accept(&mut self, leg: Leg) {
        let operation = self.operation;
        let active = self.active(leg.client);
        active.accepted += 1;
        if active.accepted < active.legs.len() {
            return;
        }
        match operation {
            Operation::Get => self.add_task(leg, Work::ReadMetadata(leg)),
            Operation::Put => self.send_upload(leg.client),
            Operation::Delete => (0..REPLICAS).for_each(|number| {
                let leg = Leg { client: leg.client, number };
                self.remove(leg);
                self.add_task(leg, Work::WriteMetadata(leg));
            }),
        }
    }

    /// Fails a request that some node has not accepted. It is repeated after all others.
    fn timeout(&mut self, client: usize, attempt: u64) {
        let Some(active) = &self.clients[client] else { return };
        if active.attempt != attempt || active.accepted == active.legs.len() {
            return;
        }
        self.recorder.failure(self.events.now() - active.started_at);
        self.queue.push_back(active.request);
        for leg in &active.legs {
            self.nodes[leg.node].accepts.retain(|leg| leg.client != client);
        }
        self.clients[client] = None;
        self.start_request(client);
    }

    /// A connection has done its part. The request is complete with the last one.
    fn complete_leg(&mut self, leg: Leg) {
        let active = self.active(leg.client);
        active.legs[leg.number].is_done = true;
        if !active.legs.iter().all(|leg| leg.is_done) {
            return;
        }
        let (started_at, first_byte, object) = (active.started_at, active.first_byte, active.request.object);
        self.recorder.success(self.events.now() - started_at, first_byte, self.world.objects[object].bytes);
        self.clients[leg.client] = None;
        self.start_request(leg.client);
    }

    fn active(&mut self, client: usize) -> &mut Active {
        self.clients[client].as_mut().expect("a client with a connection has a request")
    }

    fn leg(&mut self, leg: Leg) -> &mut LegState {
        &mut self.active(leg.client).legs[leg.number]
    }

    fn object(&self, client: usize) -> ObjectIndex {
        self.clients[client].as_ref().map_or(0, |active| active.request.object)
    }

    /// Queues a request at a device or link.
    fn push(&mut self, node: usize, part: Part, urgency: Urgency, job: Job<Token>) {
        self.nodes[node].server(part).push(urgency, job);
        self.start_jobs(node, part);
    }

    fn push_io(&mut self, io: IoIndex, part: Part, request: DeviceRequest) {
        self.ios[io].pending += 1;
        let urgency = self.urgency(io);
        self.push(self.ios[io].node, part, urgency, Job { request, token: Token::Io(io) });
    }

    fn start_jobs(&mut self, node: usize, part: Part) {
        let now = self.events.now();
        while let Some(started) = self.nodes[node].server(part).start(now) {
            let token = started.token;
            if let Token::Send { leg, is_first: true, .. } = token {
                let active = self.active(leg.client);
                active.first_byte = Some(now - active.started_at);
            }
            self.events.schedule(started.done_at, Event::Done { node, part, token });
        }
    }

    fn done(&mut self, node: usize, part: Part, token: Token) {
        let now = self.events.now();
        self.nodes[node].server(part).complete(now);
        self.start_jobs(node, part);
        match token {
            Token::Send { leg, bytes, .. } => self.sent(leg, bytes),
            Token::Receive { leg, bytes } => self.received(leg, bytes),
            Token::Io(io) => {
                self.ios[io].pending -= 1;
                if self.ios[io].pending == 0 {
                    self.advance(io);
                }
            }
        }
    }
}
