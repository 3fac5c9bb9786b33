//! The committer: one thread through which every change goes. It takes all changes that wait, lets
//! each decide against the exact state that the ones before it left (index plus this batch), writes
//! their records with one write, makes them durable with one fdatasync, brings the index up to date
//! and only then answers. So the order of changes is the order of the log, a precondition is judged
//! at the linearization point, and a failed sync acknowledges nothing.

mod batch;
mod operations;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use futures::executor::block_on;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

use self::batch::Failed;
pub(crate) use self::batch::{Batch, LogWriter};
pub(crate) use self::operations::{
    AbortUpload, Amendment, CompleteUpload, CreateBucket, CreateUpload, DeleteBucket, DeleteObject, Md5Use,
    PutObject, PutPart, RecordCopy, Relocate,
};
use super::shared::Shared;

/// The most changes in one batch, and the most payload bytes after which no further one is taken in.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Changes whose bytes are hashed side by side: enough to fill the lanes a few times.
const HASHED_TOGETHER: usize = 64;

/// A change: decides against the state it finds and adds records to the batch.
pub(crate) trait Operation: Send + 'static {
    type Answer: Send + 'static;

    /// Bytes whose MD5 the decision needs, as long as it is not known: those of many changes are hashed side
    /// by side.
    fn unhashed(&self) -> Option<&[Bytes]> {
        None
    }

    /// Takes that MD5 in. An error is the answer to the change.
    fn take_md5(&mut self, _md5: [u8; 16]) -> Result<()> {
        Ok(())
    }

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<Self::Answer>;
}

/// A change in the queue, with its answer on the way.
trait Waiting: Send {
    fn unhashed(&self) -> Option<&[Bytes]>;
    fn take_md5(&mut self, md5: [u8; 16]);
    /// An error means that the batch cannot go on.
    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()>;
    fn settle(self: Box<Self>, outcome: Result<(), &Error>);
}

struct Submitted<O: Operation> {
    operation: O,
    decision: Option<Result<O::Answer>>,
    answer: oneshot::Sender<Result<O::Answer>>,
}

impl<O: Operation> Waiting for Submitted<O> {
    fn unhashed(&self) -> Option<&[Bytes]> {
        self.operation.unhashed()
    }

    fn take_md5(&mut self, md5: [u8; 16]) {
        self.decision = self.operation.take_md5(md5).err().map(Err);
    }

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        if self.decision.is_some() {
            return Ok(());
        }
        let before = batch.begin_change();
        let decision = self.operation.decide(batch);
        if let Err(e) = &decision
            && (batch.records() > before || e.reason() == Reason::ReadOnly)
        {
            // Half of a change cannot be committed, nor taken back out of the batch.
            return Err(Error::new(e.reason(), e.message()));
        }
        self.decision = Some(decision);
        Ok(())
    }

    fn settle(self: Box<Self>, outcome: Result<(), &Error>) {
        let answer = match outcome {
            Ok(()) => {
                self.decision.unwrap_or_else(|| Err(Error::new(Reason::Defect, "a change was never decided")))
            }
            Err(e) => Err(Error::new(e.reason(), e.message())),
        };
        // Nobody may be waiting any more; the change stands all the same.
        let _ = self.answer.send(answer);
    }
}

/// The queue in front of the committer.
pub(crate) struct Committer {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Queue {
    state: Mutex<QueueState>,
    ready: Condvar,
    failed: AtomicBool,
}

struct QueueState {
    waiting: Vec<Box<dyn Waiting>>,
    closed: bool,
}

impl Committer {
    /// Starts the thread.
    pub fn start(shared: Arc<Shared>, log: LogWriter) -> Result<Self> {
        let queue = Arc::new(Queue {
            state: Mutex::new(QueueState { waiting: Vec::new(), closed: false }),
            ready: Condvar::new(),
            failed: AtomicBool::new(false),
        });
        let thread = {
            let queue = queue.clone();
            std::thread::Builder::new()
                .name("local-commit".to_owned())
                .spawn(move || run(&queue, &shared, log))
                .map_err(|e| super::io::io_error("a thread could not be started", e))?
        };
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Hands a change over and waits for its answer. Dropping the future does not take it back.
    pub async fn submit<O: Operation>(&self, operation: O) -> Result<O::Answer> {
        self.enqueue(operation)?.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The same for callers that may block.
    pub fn submit_blocking<O: Operation>(&self, operation: O) -> Result<O::Answer> {
        block_on(self.enqueue(operation)?).unwrap_or_else(|_| Err(closed()))
    }

    /// Whether a failed sync or index update made the store read-only.
    pub fn has_failed(&self) -> bool {
        self.queue.failed.load(Ordering::Acquire)
    }

    /// An error where the store takes no writes any more.
    pub fn check(&self) -> Result<()> {
        if self.has_failed() { Err(read_only()) } else { Ok(()) }
    }

    /// Makes the store read-only, after a sync failed elsewhere.
    pub fn fail(&self) {
        self.queue.failed.store(true, Ordering::Release);
    }

    fn enqueue<O: Operation>(&self, operation: O) -> Result<oneshot::Receiver<Result<O::Answer>>> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.queue.state.lock();
        self.check()?;
        if state.closed {
            return Err(closed());
        }
        state.waiting.push(Box::new(Submitted { operation, decision: None, answer }));
        if state.waiting.len() == 1 {
            self.queue.ready.notify_one();
        }
        Ok(answered)
    }

    /// Finishes what waits and ends the thread.
    pub fn close(&self) {
        {
            let mut state = self.queue.state.lock();
            state.closed = true;
            self.queue.ready.notify_one();
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the committer panicked");
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(queue: &Queue, shared: &Shared, mut log: LogWriter) {
    let _ended = Ended(queue);
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            let mut state = queue.state.lock();
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                queue.ready.wait(&mut state);
            }
            std::mem::swap(&mut waiting, &mut state.waiting);
        }
        waiting = commit_some(queue, shared, &mut log, waiting);
    }
}

/// Closes the queue when the thread ends, however it ends: nobody waits for an answer for ever, and a store
/// whose committer panicked says that it takes no writes.
struct Ended<'a>(&'a Queue);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
        let mut state = self.0.state.lock();
        state.closed = true;
        state.waiting.clear();
    }
}

/// Commits as many changes as fit into one batch and gives back the rest.
fn commit_some(
    queue: &Queue,
    shared: &Shared,
    log: &mut LogWriter,
    mut waiting: Vec<Box<dyn Waiting>>,
) -> Vec<Box<dyn Waiting>> {
    if queue.failed.load(Ordering::Acquire) {
        let error = read_only();
        waiting.into_iter().for_each(|change| change.settle(Err(&error)));
        return Vec::new();
    }
    let mut decided = 0;
    let outcome = decide(log.begin(shared), &mut waiting, &mut decided).and_then(Batch::commit);
    if let Err(failed) = &outcome {
        tracing::error!(error = ?failed.error, changes = decided, "a batch of changes failed");
        if !failed.may_go_on {
            queue.failed.store(true, Ordering::Release);
        }
    }
    let rest = waiting.split_off(decided);
    for change in waiting {
        change.settle(outcome.as_ref().copied().map_err(|failed| &failed.error));
    }
    rest
}

/// Lets changes decide, one on the state that the other leaves, until the batch is full.
fn decide<'a>(
    mut batch: Batch<'a>,
    waiting: &mut [Box<dyn Waiting>],
    decided: &mut usize,
) -> Result<Batch<'a>, Failed> {
    if let Err(e) = batch.shared.space.make_room() {
        tracing::warn!(error = ?e, "the device could not be asked for its free space");
    }
    let most = waiting.len().min(MAX_BATCH);
    for changes in waiting[..most].chunks_mut(HASHED_TOGETHER) {
        hash(changes);
        for change in changes {
            *decided += 1;
            if let Err(e) = change.decide(&mut batch) {
                let for_good = e.reason() == Reason::ReadOnly;
                return Err(if for_good { Failed::for_good(e) } else { Failed::for_now(e) });
            }
            if batch.bytes() >= MAX_BATCH_BYTES {
                return Ok(batch);
            }
        }
    }
    Ok(batch)
}

/// Computes the MD5s that changes still need, side by side: together they cost a fraction.
fn hash(changes: &mut [Box<dyn Waiting>]) {
    let messages: Vec<&[Bytes]> = changes.iter().filter_map(|change| change.unhashed()).collect();
    let md5s = tradewind_digest::md5_each(&messages);
    let unhashed = changes.iter_mut().filter(|change| change.unhashed().is_some());
    for (change, md5) in unhashed.zip(md5s) {
        change.take_md5(md5);
    }
}

fn read_only() -> Error {
    Error::new(
        Reason::ReadOnly,
        "the store takes no writes since its device failed; reads go on; check the device and reopen the store",
    )
}

fn closed() -> Error {
    Error::new(Reason::ShuttingDown, "the store is closed")
}
