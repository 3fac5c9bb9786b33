//! The second reading of a trace, from a thread of its own, which is ahead of the requests by a bounded queue.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tradewind_core::error::{Error, Reason, Result};

use super::objects::Objects;
use super::player::{Came, Request, Turns};
use super::trace::{Entry, Trace};
use super::{Open, Replay};
use crate::drive::shared::Shared;
use crate::operation::Operation;
use crate::record::Record;

/// Requests that were read and not yet taken.
const QUEUE: usize = 4096;
/// How often it is looked whether it is over, where there is no room for more.
const LOOK: Duration = Duration::from_millis(20);

/// The thread.
pub(super) struct Source {
    thread: JoinHandle<io::Result<Option<u64>>>,
    expected: u64,
}

/// What it reads: requests, and when each comes after the first.
pub(super) struct Requests(mpsc::Receiver<(Duration, Request)>);

impl Source {
    pub fn start(replay: &Replay, objects: Arc<Objects>) -> Result<(Self, Requests)> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (open, most_key_bytes, first) = (replay.open.clone(), replay.most_key_bytes, replay.plan.first);
        let reading = move || read(&open, most_key_bytes, first, (&objects, &sender));
        let thread = std::thread::Builder::new().name("trace".to_owned()).spawn(reading).map_err(unread)?;
        Ok((Self { thread, expected: replay.plan.count() }, Requests(receiver)))
    }

    /// Waits until it has read all that was asked for, which is so where nobody takes any more. The error says why that was
    /// less than the plan had.
    pub fn end(self) -> Result<()> {
        let read =
            self.thread.join().map_err(|_| Error::new(Reason::Defect, "the reader of the trace failed"))?;
        match read.map_err(unread)? {
            Some(read) if read != self.expected => {
                Err(changed(&format!("{read} requests were read, {} the first time", self.expected)))
            }
            _ => Ok(()),
        }
    }
}

fn unread(e: io::Error) -> Error {
    Error::with_source(Reason::Io, format!("the trace cannot be read again: {e}"), e)
}

fn changed(how: &str) -> Error {
    Error::new(Reason::Io, format!("the trace was changed while it was replayed: {how}"))
}

/// How many requests there were; `None` where nobody takes them any more.
fn read(
    open: &Arc<Open>,
    most_key_bytes: usize,
    first: Duration,
    (objects, sender): (&Objects, &mpsc::Sender<(Duration, Request)>),
) -> io::Result<Option<u64>> {
    let other = |what: String| io::Error::other(what);
    let trace = Trace::open(open()?, most_key_bytes)?.map_err(|broken| other(broken.to_string()))?;
    let mut count = 0;
    for each in trace {
        // The plan has counted those that are broken.
        let Ok(entry) = each? else { continue };
        let (line, at) = (entry.line, entry.at);
        let request =
            resolve(objects, entry).ok_or_else(|| other(format!("line {line} was not there before")))?;
        count += 1;
        if sender.blocking_send((at.saturating_sub(first), request)).is_err() {
            return Ok(None);
        }
    }
    Ok(Some(count))
}

fn resolve(objects: &Objects, entry: Entry) -> Option<Request> {
    let Entry { operation, key, offset, length, .. } = entry;
    if operation == Operation::List {
        return Some(Request::List { prefix: key.into() });
    }
    let object = objects.find(&key)?;
    Some(match operation {
        Operation::Put => Request::Put { object, size: length? },
        Operation::Get => Request::Get { object, offset, length },
        Operation::Head => Request::Head { object },
        Operation::List | Operation::Delete => Request::Delete { object },
    })
}

impl Requests {
    /// With their moments, so many times as fast as they were.
    pub fn starts(mut self, speed: f64) -> impl Iterator<Item = (Duration, Request)> + Send {
        let next = move || self.0.blocking_recv();
        std::iter::from_fn(next).map(move |(at, request)| (at.div_f64(speed), request))
    }

    /// Hands them to workers as fast as these can take them, in the order of each key.
    pub async fn feed(mut self, shared: Arc<Shared<Request>>, turns: Arc<Turns>) -> (Record, Came) {
        let mut fed = 0;
        while !shared.has_ended() {
            let Ok(room) = tokio::time::timeout(LOOK, turns.room.acquire()).await else { continue };
            let Ok(room) = room else { break };
            room.forget();
            let Some((_, request)) = self.0.recv().await else {
                shared.at_most(fed);
                break;
            };
            fed += 1;
            let now = match request.object() {
                Some((object, changes)) => turns.order.lock().come(object, changes, request),
                None => Some(request),
            };
            if let Some(request) = now {
                shared.release(shared.now(), request);
            }
        }
        (Record::default(), Came::default())
    }
}
