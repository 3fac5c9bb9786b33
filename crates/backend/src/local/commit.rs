//! The committer: the single thread that applies all changes. It takes all waiting changes and evaluates each on the
//! exact state left by the previous ones (index plus this batch). It writes their records with one write, makes them
//! durable with one fdatasync, updates the index, and only then responds. So changes and log have the same order, a
//! precondition is evaluated at the linearization point, and a failed sync acknowledges nothing.

mod active_segment;
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
use tradewind_core::threads::thread_error;

use self::batch::BatchError;
pub(crate) use self::batch::{Batch, LogWriter};
pub(crate) use self::operations::{
    AbortUpload, CompleteUpload, CreateBucket, CreateUpload, DeferredMd5, DeleteBucket, DeleteObject,
    MaintenanceChange, PutObject, PutPart, RecordCopy, RelocateRecords, RewritePart, RewriteVersion,
    SetVersioning,
};
use super::store_state::StoreState;

/// Maximum changes per batch.
const MAX_BATCH_CHANGES: usize = 512;
/// Record bytes of a batch from which on no further change is added.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Changes whose MD5s are computed in parallel: enough to fill the SIMD lanes a few times.
const HASH_GROUP_CHANGES: usize = 64;

/// A change to the store. Decides on the state that it finds, and adds records to the batch.
pub(crate) trait Change: Send + 'static {
    type Output: Send + 'static;

    /// The bytes whose MD5 the decision still needs. The MD5s of many changes are computed in parallel.
    fn md5_input(&self) -> Option<&[Bytes]> {
        None
    }

    /// Receives the MD5 of [`md5_input`](Self::md5_input). An error is the result of the change.
    fn set_md5(&mut self, _md5: [u8; 16]) -> Result<()> {
        Ok(())
    }

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<Self::Output>;
}

/// A queued change, with the channel for its result.
trait QueuedChange: Send {
    fn md5_input(&self) -> Option<&[Bytes]>;
    fn set_md5(&mut self, md5: [u8; 16]);
    /// An error fails the whole batch.
    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()>;
    fn complete(self: Box<Self>, outcome: Result<(), &Error>);
}

struct SubmittedChange<C: Change> {
    change: C,
    decision: Option<Result<C::Output>>,
    result_sender: oneshot::Sender<Result<C::Output>>,
}

impl<C: Change> QueuedChange for SubmittedChange<C> {
    fn md5_input(&self) -> Option<&[Bytes]> {
        self.change.md5_input()
    }

    fn set_md5(&mut self, md5: [u8; 16]) {
        self.decision = self.change.set_md5(md5).err().map(Err);
    }

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        if self.decision.is_some() {
            return Ok(());
        }
        let records_before = batch.begin_change();
        let decision = self.change.decide(batch);
        if let Err(e) = &decision
            && (batch.record_count() > records_before || e.reason() == Reason::ReadOnly)
        {
            // A partial change cannot be committed, nor removed from the batch. `ReadOnly`: a sync failed while a
            // segment was created; the whole store becomes read-only.
            return Err(Error::new(e.reason(), e.message()));
        }
        self.decision = Some(decision);
        Ok(())
    }

    fn complete(self: Box<Self>, outcome: Result<(), &Error>) {
        let result = match outcome {
            Ok(()) => {
                self.decision.unwrap_or_else(|| Err(Error::new(Reason::Defect, "a change was never decided")))
            }
            Err(e) => Err(Error::new(e.reason(), e.message())),
        };
        // The receiver may be gone; the change is committed nevertheless.
        let _ = self.result_sender.send(result);
    }
}

/// The queue of the committer.
pub(crate) struct Committer {
    queue: Arc<CommitQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct CommitQueue {
    state: Mutex<CommitQueueState>,
    ready: Condvar,
    /// True after a failure that leaves the state on disk unknown: the store is read-only until it is reopened.
    is_read_only: AtomicBool,
}

struct CommitQueueState {
    waiting: Vec<Box<dyn QueuedChange>>,
    closed: bool,
}

impl Committer {
    /// Starts the thread.
    pub fn start(state: Arc<StoreState>, log: LogWriter) -> Result<Self> {
        let queue = Arc::new(CommitQueue {
            state: Mutex::new(CommitQueueState { waiting: Vec::new(), closed: false }),
            ready: Condvar::new(),
            is_read_only: AtomicBool::new(false),
        });
        let thread = {
            let queue = queue.clone();
            std::thread::Builder::new()
                .name("local-commit".to_owned())
                .spawn(move || run(&queue, &state, log))
                .map_err(thread_error)?
        };
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Submits a change and waits for its result. Dropping the future does not cancel the change.
    pub async fn submit<C: Change>(&self, change: C) -> Result<C::Output> {
        self.enqueue(change)?.await.unwrap_or_else(|_| Err(closed_error()))
    }

    /// Like [`submit`](Self::submit), for callers that may block.
    pub fn submit_blocking<C: Change>(&self, change: C) -> Result<C::Output> {
        block_on(self.enqueue(change)?).unwrap_or_else(|_| Err(closed_error()))
    }

    /// Returns true if the store is read-only, after a failure that leaves the state on disk unknown.
    pub fn is_read_only(&self) -> bool {
        self.queue.is_read_only.load(Ordering::Acquire)
    }

    /// An error if the store is read-only.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(read_only_error()) } else { Ok(()) }
    }

    /// Makes the store read-only after a failure elsewhere that leaves the state on disk unknown.
    pub fn set_read_only(&self) {
        self.queue.is_read_only.store(true, Ordering::Release);
    }

    fn enqueue<C: Change>(&self, change: C) -> Result<oneshot::Receiver<Result<C::Output>>> {
        let (result_sender, result_receiver) = oneshot::channel();
        let mut state = self.queue.state.lock();
        self.check_writable()?;
        if state.closed {
            return Err(closed_error());
        }
        state.waiting.push(Box::new(SubmittedChange { change, decision: None, result_sender }));
        if state.waiting.len() == 1 {
            self.queue.ready.notify_one();
        }
        Ok(result_receiver)
    }

    /// Finishes queued changes and ends the thread.
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

fn run(queue: &CommitQueue, state: &StoreState, mut log: LogWriter) {
    let _close_on_exit = CloseOnExit(queue);
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            let mut queued = queue.state.lock();
            while queued.waiting.is_empty() {
                if queued.closed {
                    drop(queued);
                    // After a failed sync, nothing is written.
                    if !queue.is_read_only.load(Ordering::Acquire) {
                        log.close();
                    }
                    return;
                }
                queue.ready.wait(&mut queued);
            }
            std::mem::swap(&mut waiting, &mut queued.waiting);
        }
        waiting = commit_some(queue, state, &mut log, waiting);
    }
}

/// Closes the queue when the thread ends for any reason: no caller waits forever, and a store whose committer
/// panicked is read-only.
struct CloseOnExit<'a>(&'a CommitQueue);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_read_only.store(true, Ordering::Release);
        }
        let mut state = self.0.state.lock();
        state.closed = true;
        state.waiting.clear();
    }
}

/// Commits as many changes as fit into one batch and returns the rest.
fn commit_some(
    queue: &CommitQueue,
    state: &StoreState,
    log: &mut LogWriter,
    mut waiting: Vec<Box<dyn QueuedChange>>,
) -> Vec<Box<dyn QueuedChange>> {
    if queue.is_read_only.load(Ordering::Acquire) {
        let error = read_only_error();
        waiting.into_iter().for_each(|change| change.complete(Err(&error)));
        return Vec::new();
    }
    let mut decided = 0;
    let outcome = decide(log.begin_batch(state), &mut waiting, &mut decided).and_then(Batch::commit);
    if let Err(e) = &outcome {
        tracing::error!(error = ?e.error, changes = decided, "a batch of changes failed");
        if !e.is_transient {
            queue.is_read_only.store(true, Ordering::Release);
        }
    }
    let rest = waiting.split_off(decided);
    for change in waiting {
        change.complete(outcome.as_ref().copied().map_err(|e| &e.error));
    }
    rest
}

/// Lets each change decide on the state left by the previous one, until the batch is full. `decided` counts the changes
/// that took part in the batch, including one that failed it.
fn decide<'a>(
    mut batch: Batch<'a>,
    waiting: &mut [Box<dyn QueuedChange>],
    decided: &mut usize,
) -> Result<Batch<'a>, BatchError> {
    if let Err(e) = batch.state.space.release_reserve_if_full() {
        tracing::warn!(error = ?e, "the free space of the device could not be read");
    }
    let count = waiting.len().min(MAX_BATCH_CHANGES);
    for changes in waiting[..count].chunks_mut(HASH_GROUP_CHANGES) {
        compute_md5s(changes);
        for change in changes {
            *decided += 1;
            if let Err(e) = change.decide(&mut batch) {
                let is_permanent = e.reason() == Reason::ReadOnly;
                return Err(if is_permanent { BatchError::permanent(e) } else { BatchError::transient(e) });
            }
            if batch.bytes() >= MAX_BATCH_BYTES {
                return Ok(batch);
            }
        }
    }
    Ok(batch)
}

/// Computes the MD5s that changes still need, in parallel, at a fraction of the cost.
fn compute_md5s(changes: &mut [Box<dyn QueuedChange>]) {
    let messages: Vec<&[Bytes]> = changes.iter().filter_map(|change| change.md5_input()).collect();
    let md5s = tradewind_digest::md5_each(&messages);
    let unhashed = changes.iter_mut().filter(|change| change.md5_input().is_some());
    for (change, md5) in unhashed.zip(md5s) {
        change.set_md5(md5);
    }
}

fn read_only_error() -> Error {
    Error::new(
        Reason::ReadOnly,
        "a write, sync or index update failed (see the logged error); the store is read-only until it is reopened; \
         reads continue; check the device first",
    )
}

fn closed_error() -> Error {
    Error::new(Reason::ShuttingDown, "the store is closed")
}
