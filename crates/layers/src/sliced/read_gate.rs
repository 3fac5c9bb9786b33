//! The turns of one read. The store enters the gate before each read that needs the disk.
//!
//! A body of more than [`HEAD_BYTES`] takes turns for all of its pieces, also for those that the page cache has: a hit
//! of a page that the kernel has marked starts its next read-ahead, so that the disk would read outside of all turns.
//! Records and bodies of up to [`HEAD_BYTES`] that the page cache answers do not wait, have no turn, and are not
//! counted against the share of their class.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::{Context, DeviceGate};
use tradewind_model::slices::{DiskWork, HEAD_BYTES, MAX_UNSLICED_BYTES, StreamShare};

use super::disk_request::{DiskQueue, DiskRequest};

type Wait = BoxFuture<'static, ()>;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct ReadGate {
    state: Mutex<GateState>,
    deadline: Deadline,
}

struct GateState {
    request: DiskRequest,
    /// The bytes of the object, once the store has found it.
    body: Option<BodyState>,
    /// The wait for a turn that was requested at the end of the one before.
    ahead: Option<Wait>,
    /// The store entered the gate since the last piece.
    has_entered: bool,
}

#[derive(Debug, Clone, Copy)]
struct BodyState {
    length: u64,
    left: u64,
    /// The body has requested a turn.
    had_turn: bool,
}

impl BodyState {
    /// True if the page cache may answer reads of the body outside of turns.
    const fn is_short(&self) -> bool {
        self.length <= HEAD_BYTES
    }
}

impl std::fmt::Debug for GateState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateState").field("request", &self.request).field("body", &self.body).finish()
    }
}

impl ReadGate {
    /// The gate of a read that has no turn.
    pub fn new(disk: &Arc<DiskQueue>, context: &Context) -> Arc<Self> {
        let request = DiskRequest::new(disk, context);
        let state = GateState { request, body: None, ahead: None, has_entered: false };
        Arc::new(Self { state: Mutex::new(state), deadline: context.deadline.clone() })
    }

    /// The store has found the object, and the client gets `length` bytes of it as a stream. Fails with
    /// [`Overloaded`](tradewind_core::Reason::Overloaded) if the read has no turn and the queue is full: later, it is
    /// not rejected.
    pub fn begin_body(&self, length: u64, share: StreamShare) -> Result<()> {
        let mut state = self.state.lock();
        if length == 0 {
            state.end();
            return Ok(());
        }
        if state.request.has_bytes() {
            let work = if length > MAX_UNSLICED_BYTES { DiskWork::StreamHead } else { DiskWork::Small };
            state.request.relabel(work, share);
            state.request.pause(0);
        } else {
            state.request.check_capacity()?;
        }
        state.has_entered = false;
        state.request.set_share(share);
        state.body = Some(BodyState { length, left: length, had_turn: false });
        Ok(())
    }

    /// The client needs the next piece.
    pub fn record_demand(&self) {
        self.state.lock().request.record_demand();
    }

    /// The client got a piece of the body.
    pub fn record_piece(&self, bytes: u64) {
        self.state.lock().record_piece(bytes);
    }

    /// The read is complete, or has failed.
    pub fn end(&self) {
        self.state.lock().end();
    }

    /// The read is complete, and the store returned its bytes with its response.
    pub fn end_with_bytes(&self, bytes: u64) {
        let mut state = self.state.lock();
        if state.has_entered {
            state.request.pause(bytes);
        } else {
            state.request.disk().count_page_cache_bytes(bytes);
        }
        state.end();
    }
}

impl GateState {
    /// Requests the turn for the next read of the disk. `None` if it begins at once.
    fn request_turn(&mut self) -> Result<Option<Wait>> {
        let Some(body) = &mut self.body else {
            if self.request.has_bytes() {
                return Ok(None);
            }
            return Ok(self.request.request_first(DiskWork::Small)?.map(|wait| wait.boxed()));
        };
        let is_first = !std::mem::replace(&mut body.had_turn, true);
        let (length, left) = (body.length, body.left);
        if is_first && length > HEAD_BYTES && length <= MAX_UNSLICED_BYTES {
            // An object of this size is read at once, without other requests in between.
            let work = DiskWork::Read { bytes: length };
            return Ok(match self.request.has_bytes() {
                true => self.request.exchange_for_reads(length).map(|wait| wait.boxed()),
                false => self.request.request_admitted(work).map(|wait| wait.boxed()),
            });
        }
        if self.request.has_bytes() {
            return Ok(None);
        }
        let is_head = is_first && length - left < HEAD_BYTES;
        let head = if length > MAX_UNSLICED_BYTES { DiskWork::StreamHead } else { DiskWork::Small };
        Ok(match is_head {
            true => self.request.request_admitted(head).map(|wait| wait.boxed()),
            false => self.request.request_further(DiskWork::Read { bytes: left }).map(|wait| wait.boxed()),
        })
    }

    fn record_piece(&mut self, bytes: u64) {
        let has_entered = std::mem::take(&mut self.has_entered);
        let Some(body) = &mut self.body else { return };
        body.left = body.left.saturating_sub(bytes);
        let (left, is_short) = (body.left, body.is_short());
        if !has_entered {
            self.request.disk().count_page_cache_bytes(bytes);
            self.request.record_delivery();
        } else if left == 0 || is_short {
            self.request.pause(bytes);
        } else {
            let next = self.request.pause_slice(bytes, left);
            self.ahead = next.map(|wait| wait.boxed());
        }
        if left == 0 || !has_entered {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ahead = None;
        self.request.end();
    }
}

#[async_trait]
impl DeviceGate for ReadGate {
    async fn enter(&self) -> Result<()> {
        let ahead = {
            let mut state = self.state.lock();
            state.has_entered = true;
            state.ahead.take()
        };
        if let Some(ahead) = ahead {
            self.deadline.guard(ahead).await?;
        }
        let wait = self.state.lock().request_turn()?;
        if let Some(wait) = wait {
            self.deadline.guard(wait).await?;
        }
        self.state.lock().request.begin();
        Ok(())
    }

    fn passes_cached_reads(&self) -> bool {
        self.state.lock().body.is_none_or(|body| body.is_short())
    }
}
