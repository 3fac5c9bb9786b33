//! Waiting for the turns that `model/lanes` gives.
//!
//! One of those who wait watches the clock for all: it asks whose turn it is when somebody's may have come, and wakes them.
//! Who goes away gives its place back, and hands the watch on; who does not come back from it loses it.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::select;
use tokio::sync::Notify;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::lanes::{Client, Entered, Kind, Lanes, LanesOptions, Ticket, Turn};

/// Timers are no finer.
const GRAIN: Duration = Duration::from_micros(100);
/// Who does not come back from the watch for so long is not asked for it: a stream that nobody reads does not.
const OVERDUE: Duration = Duration::from_millis(20);

/// The lanes to one store, and who waits in them.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    clients: RandomState,
}

#[derive(Debug)]
struct State {
    lanes: Lanes,
    waiting: BTreeMap<Ticket, Arc<Notify>>,
    /// Who watches the clock, and until when.
    watch: Option<(Ticket, Duration)>,
}

/// A request in its lane. Dropping it is giving it up.
#[derive(Debug)]
pub(super) struct Request {
    turns: Arc<Turns>,
    /// `None` once it has ended.
    entered: Option<Entered>,
    kind: Kind,
    client: Client,
    /// How long the store was waited for, and since when it is.
    waited: Duration,
    since: Option<Duration>,
}

/// A turn that has not come. Dropping it gives the place back.
#[derive(Debug)]
struct Waiting {
    turns: Arc<Turns>,
    ticket: Ticket,
    woken: Arc<Notify>,
}

impl Turns {
    pub fn new(options: LanesOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State { lanes: Lanes::new(options), waiting: BTreeMap::new(), watch: None };
        Arc::new(Self { state: Mutex::new(state), clock, clients: RandomState::new() })
    }

    /// The client with this id of an access key; all without one are the same.
    pub fn client(&self, id: Option<&str>) -> Client {
        Client(self.clients.hash_one(id))
    }

    /// Lets a request into its lane. [`Overloaded`](Reason::Overloaded) where too many wait there, or too many of this
    /// client.
    pub fn enter(self: &Arc<Self>, client: Client, kind: Kind) -> Result<Request> {
        let entered = self.lock().lanes.enter_for(client, kind, self.clock.now()).map_err(|full| {
            let message = format!("{} requests wait for their turn already; try again later", full.waiting);
            Error::new(Reason::Overloaded, message)
        })?;
        let (waited, since) = (Duration::ZERO, None);
        Ok(Request { turns: self.clone(), entered: Some(entered), kind, client, waited, since })
    }

    /// Who waits, and who is under way.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.lanes.waiting(), state.lanes.under_way())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Has those pass whose turn it is.
    fn pass(&mut self, now: Duration) {
        while let Some(ticket) = self.lanes.next(now) {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                waiting.notify_one();
            }
        }
    }

    /// Until when this one is to sleep. Who has the watch sleeps until somebody's turn; all others until the watch is overdue.
    fn sleep(&mut self, ticket: Ticket, now: Duration) -> Option<Duration> {
        let due = self.lanes.wake(now)?.max(now + GRAIN);
        match self.watch {
            Some((watching, until)) if watching != ticket && until <= due && now < until + OVERDUE => {
                Some(until + OVERDUE)
            }
            _ => {
                self.watch = Some((ticket, due));
                Some(due)
            }
        }
    }

    /// This one waits no more.
    fn leave(&mut self, ticket: Ticket) {
        if self.waiting.remove(&ticket).is_some() {
            self.lanes.leave(ticket);
        }
        // Who was to take it may have gone too.
        if self.watch.is_none_or(|(watching, _)| watching == ticket) {
            self.watch = None;
            if let Some((_, other)) = self.waiting.first_key_value() {
                other.notify_one();
            }
        }
    }
}

impl Request {
    /// What it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Asks for the turn of so many bytes; `None` where it is now. Else it is to be waited for before the next is asked for.
    pub fn turn(&self, bytes: u64) -> Option<impl Future<Output = ()> + Send + use<>> {
        let entered = self.entered.as_ref()?;
        let mut state = self.turns.lock();
        let Turn::Waits(ticket) = state.lanes.turn(entered, bytes, self.turns.clock.now()) else {
            return None;
        };
        let woken = Arc::new(Notify::new());
        state.waiting.insert(ticket, woken.clone());
        Some(Waiting { turns: self.turns.clone(), ticket, woken }.pass())
    }

    /// Bytes after which the next turn is to be asked for.
    pub fn piece(&self) -> usize {
        let entered = self.entered.as_ref();
        let piece =
            entered.and_then(|entered| self.turns.lock().lanes.piece(entered, self.turns.clock.now()));
        piece.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// The store is waited for from now on, where it is not already.
    pub fn wait(&mut self) {
        self.since.get_or_insert_with(|| self.turns.clock.now());
    }

    /// The store has answered; so many bytes were taken or have come.
    pub fn come(&mut self, bytes: usize) {
        let now = self.turns.clock.now();
        self.waited += self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if let Some(entered) = self.entered.as_mut().filter(|_| bytes > 0) {
            self.turns.lock().lanes.carried(entered, bytes as u64, now);
        }
    }

    /// It is done.
    pub fn done(&mut self) {
        self.end(Some(self.waited));
    }

    /// It turns out to be as large as this, or that is known now. Refused as by [`enter`](Turns::enter) where it needs another lane.
    pub fn grow(&mut self, kind: Kind) -> Result<()> {
        if kind.size > self.kind.size || self.kind.is_guessed {
            let (waited, since) = (self.waited, self.since);
            let other = self.turns.enter(self.client, kind)?;
            *self = other;
            (self.waited, self.since) = (waited, since);
        }
        Ok(())
    }

    fn end(&mut self, service: Option<Duration>) {
        if let Some(entered) = self.entered.take() {
            let now = self.turns.clock.now();
            self.turns.lock().lanes.end(entered, now, service);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl Waiting {
    async fn pass(self) {
        loop {
            let sleep = {
                let now = self.turns.clock.now();
                let mut state = self.turns.lock();
                state.pass(now);
                if !state.waiting.contains_key(&self.ticket) {
                    return;
                }
                state.sleep(self.ticket, now)
            };
            let woken = std::pin::pin!(self.woken.notified());
            match sleep {
                Some(until) => drop(select(woken, self.turns.clock.sleep_until(until)).await),
                None => woken.await,
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.turns.lock().leave(self.ticket);
    }
}
