//! The second pass over a trace, on a thread of its own, which reads ahead of the requests into a bounded queue.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tradewind_core::error::{Error, Reason, Result};

use super::objects::ReplayObjects;
use super::trace::{Trace, TraceEntry};
use super::worker::{ReplayCounts, RequestOrdering, TraceRequest};
use super::{OpenTrace, Replay};
use crate::drive::load_state::LoadState;
use crate::operation::Operation;
use crate::record::LoadRecord;

/// Capacity of the queue of requests.
const QUEUE_REQUESTS: usize = 4096;
/// Interval at which a feeder without a permit checks whether the replay has ended.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The reading thread.
pub(super) struct TraceReader {
    thread: JoinHandle<io::Result<Option<u64>>>,
    expected: u64,
}

/// The receiving end: requests, each with its time after the first.
pub(super) struct RequestQueue(mpsc::Receiver<(Duration, TraceRequest)>);

impl TraceReader {
    pub fn start(replay: &Replay, objects: Arc<ReplayObjects>) -> Result<(Self, RequestQueue)> {
        let (sender, receiver) = mpsc::channel(QUEUE_REQUESTS);
        let (open, max_key_bytes, first_at) =
            (replay.open.clone(), replay.max_key_bytes, replay.trace_summary.first_at);
        let reading = move || read(&open, max_key_bytes, first_at, (&objects, &sender));
        let thread =
            std::thread::Builder::new().name("trace".to_owned()).spawn(reading).map_err(read_error)?;
        Ok((Self { thread, expected: replay.trace_summary.count() }, RequestQueue(receiver)))
    }

    /// Joins the thread, which ends at the end of the trace or when the receiver has been dropped. Fails if the trace
    /// could not be read or differs from the first pass.
    pub fn join(self) -> Result<()> {
        let read = self
            .thread
            .join()
            .map_err(|_| Error::new(Reason::Defect, "the thread that reads the trace panicked"))?;
        match read.map_err(read_error)? {
            Some(read) if read != self.expected => {
                Err(changed_error(&format!("it has {read} requests, the first pass found {}", self.expected)))
            }
            _ => Ok(()),
        }
    }
}

fn read_error(e: io::Error) -> Error {
    Error::with_source(Reason::Io, format!("cannot read the trace again: {e}"), e)
}

fn changed_error(difference: &str) -> Error {
    Error::new(Reason::Io, format!("the trace changed during the replay: {difference}"))
}

/// Sends all requests of the trace. Returns their number, or `None` if the receiver was dropped.
fn read(
    open: &Arc<OpenTrace>,
    max_key_bytes: usize,
    first_at: Duration,
    (objects, sender): (&ReplayObjects, &mpsc::Sender<(Duration, TraceRequest)>),
) -> io::Result<Option<u64>> {
    let error = |message: String| io::Error::other(message);
    let trace =
        Trace::open(open()?, max_key_bytes)?.map_err(|invalid_line| error(invalid_line.to_string()))?;
    let mut count = 0;
    for each in trace {
        // Invalid lines were counted in the first pass.
        let Ok(entry) = each? else { continue };
        let (line, time) = (entry.line, entry.time);
        let request = resolve(objects, entry).ok_or_else(|| error(format!("line {line} is new")))?;
        count += 1;
        if sender.blocking_send((time.saturating_sub(first_at), request)).is_err() {
            return Ok(None);
        }
    }
    Ok(Some(count))
}

fn resolve(objects: &ReplayObjects, entry: TraceEntry) -> Option<TraceRequest> {
    let TraceEntry { operation, key, offset, length, .. } = entry;
    if operation == Operation::List {
        return Some(TraceRequest::List { prefix: key.into() });
    }
    let object = objects.find(&key)?;
    Some(match operation {
        Operation::Put => TraceRequest::Put { object, size: length? },
        Operation::Get => TraceRequest::Get { object, offset, length },
        Operation::Head => TraceRequest::Head { object },
        Operation::List | Operation::Delete => TraceRequest::Delete { object },
    })
}

impl RequestQueue {
    /// The requests with their start times, at `speed` times the pace of the trace. Blocks while the queue is empty.
    pub fn into_starts(mut self, speed: f64) -> impl Iterator<Item = (Duration, TraceRequest)> + Send {
        let next = move || self.0.blocking_recv();
        std::iter::from_fn(next).map(move |(time, request)| (time.div_f64(speed), request))
    }

    /// Passes the requests to the workers as fast as they can take them, in the order of each key.
    pub async fn feed(
        mut self,
        shared: Arc<LoadState<TraceRequest>>,
        ordering: Arc<RequestOrdering>,
    ) -> (LoadRecord, ReplayCounts) {
        let mut released = 0;
        while !shared.is_window_closed() {
            let permit = tokio::time::timeout(END_CHECK_INTERVAL, ordering.read_ahead.acquire()).await;
            let Ok(permit) = permit else { continue };
            let Ok(permit) = permit else { break };
            permit.forget();
            let Some((_, request)) = self.0.recv().await else {
                shared.limit_requests(released);
                break;
            };
            released += 1;
            let ready = match request.object() {
                Some((object, changes)) => ordering.order.lock().enqueue(object, changes, request),
                None => Some(request),
            };
            if let Some(request) = ready {
                shared.release(shared.now(), request);
            }
        }
        (LoadRecord::default(), ReplayCounts::default())
    }
}
