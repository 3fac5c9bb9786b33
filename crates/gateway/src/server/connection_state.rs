//! The state of a connection. Its task publishes the state by a few relaxed stores per request, and the watchdog
//! evaluates it in each pass. No request sets a timer or reads a clock for its timeouts.
//!
//! A connection that waits too long for its client (for a request, for a body's bytes, for space in the send buffer) is
//! closed. A connection that waits for the store is never closed for its waiting time.
//!
//! Terms:
//! - *evict*: choose an open connection to close, to make room for another connection.
//! - *turn away*: close a connection that is not idle, with a 503 if no response has begun ([`Command::TurnAway`]). It
//!   was evicted, or its slot for a large head is needed ([`super::buffers`]). An evicted connection that is idle is
//!   closed without a response ([`IdleAction::Close`]).
//! - *reject*: respond to a request with an error, or to a new connection with a 503.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tradewind_core::{Account, Window};

use super::accounts::{Accounts, CachedAccount};
use super::buffers::{BufferLimits, INITIAL_READ_BYTES, Slot};
use super::peer::Peer;
use crate::auth::Identity;

/// The current activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Waiting for the next request.
    Idle,
    /// Receiving a request's head, or in a TLS handshake.
    Head,
    /// The request waits for memory.
    Admission,
    /// The request is being executed.
    Working,
    /// The operation waits for bytes of the body.
    Body,
    /// The response to a request with an unread body is sent; further bytes are discarded.
    Lingering,
}

/// A command to a connection, in ascending severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Command {
    /// No command: continue to serve requests.
    None,
    /// Finish the request in flight, then close.
    Finish,
    /// The body's bytes do not arrive: fail the request, send the error response, then close.
    FailBody,
    /// Close now; respond with 503 first if no response has begun.
    TurnAway,
    /// Close now.
    Close,
}

/// An action that a connection takes once it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum IdleAction {
    /// No action.
    None,
    /// Drop the buffers.
    Park,
    /// Close.
    Close,
}

/// The client action that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitingFor {
    /// No action: the connection waits for the store or for memory.
    Nothing,
    /// The first byte of a request.
    Request,
    /// The rest of a request's head, or of a TLS handshake.
    Head,
    /// Bytes of a request's body.
    Body,
    /// Reading of the response: the send buffer is full.
    Write,
    /// The end of the client's stream, in the lingering close.
    Eof,
}

/// The published state of one connection, and the commands to it.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(super) peer: Peer,
    phase: AtomicU8,
    requests: AtomicU32,
    /// Bytes read from and written to the socket.
    moved_bytes: AtomicU64,
    /// Written bytes that were unacknowledged in the kernel's send buffer when the connection last blocked.
    unacked_bytes: AtomicU64,
    write_blocked: AtomicBool,
    body_unread: AtomicBool,
    command: AtomicU8,
    pending_idle_action: AtomicU8,
    /// The time at which the watchdog first observed the current wait, in milliseconds.
    waits_since: AtomicU64,
    account: CachedAccount,
    /// The memory of the latest request. Buffers queued for the socket may hold it longer than the request.
    window: Mutex<Weak<Window>>,
    buffers: Arc<BufferLimits>,
    /// Bytes read of an incomplete head.
    head_bytes: AtomicUsize,
    /// A [`Slot`] as a number, changed only under the lock of [`BufferLimits`].
    slot: AtomicU64,
    /// The body in flight is admitted and large.
    reads_large_body: AtomicBool,
    /// The connection's read buffer may be large.
    is_grown: AtomicBool,
    /// The connection is counted as one that keeps a grown buffer (see [`BufferLimits::try_keep_buffer`]).
    keeps_grown_buffer: AtomicBool,
    pub(crate) waker: AtomicWaker,
    /// True if bytes of a response may be unsent.
    is_responding: AtomicBool,
}

impl ConnectionState {
    pub(crate) fn new(peer: Peer, buffers: Arc<BufferLimits>) -> Self {
        Self {
            peer,
            phase: AtomicU8::new(Phase::Head as u8),
            requests: AtomicU32::new(0),
            moved_bytes: AtomicU64::new(0),
            unacked_bytes: AtomicU64::new(0),
            write_blocked: AtomicBool::new(false),
            body_unread: AtomicBool::new(false),
            command: AtomicU8::new(Command::None as u8),
            pending_idle_action: AtomicU8::new(IdleAction::None as u8),
            waits_since: AtomicU64::new(0),
            account: CachedAccount::default(),
            window: Mutex::default(),
            buffers,
            head_bytes: AtomicUsize::new(0),
            slot: AtomicU64::new(0),
            reads_large_body: AtomicBool::new(false),
            is_grown: AtomicBool::new(false),
            keeps_grown_buffer: AtomicBool::new(false),
            is_responding: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Admission,
            3 => Phase::Working,
            4 => Phase::Body,
            _ => Phase::Lingering,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Records that a request's head is complete.
    pub(crate) fn begin_request(&self, has_body: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.body_unread.store(has_body, Ordering::Relaxed);
        self.is_responding.store(true, Ordering::Relaxed);
        self.set_phase(Phase::Working);
    }

    /// Returns true if bytes of a response may be unsent, or its request is in flight.
    pub(crate) fn is_responding(&self) -> bool {
        self.is_responding.load(Ordering::Relaxed)
    }

    /// Records that all bytes written to the connection were passed to the kernel.
    pub(crate) fn record_flush(&self) {
        if matches!(self.phase(), Phase::Idle | Phase::Head) {
            self.is_responding.store(false, Ordering::Relaxed);
        }
    }

    /// The memory account of an identity's requests on this connection.
    pub(crate) fn account(&self, accounts: &Accounts, identity: &Arc<Identity>) -> Account {
        self.account.find(accounts, identity, self.peer)
    }

    /// Records that the request was admitted. Its window now includes its head, so the slot for a large head is
    /// released. From now on a large body is read in large pieces.
    pub(crate) fn set_admitted(&self, window: &Arc<Window>, has_large_body: bool) {
        *self.window.lock() = Arc::downgrade(window);
        self.buffers.release_slot(self);
        if has_large_body {
            self.reads_large_body.store(true, Ordering::Relaxed);
            self.is_grown.store(true, Ordering::Relaxed);
        }
    }

    /// The memory that the connection holds, for its request or for a response that is being sent.
    pub(crate) fn window(&self) -> Option<Arc<Window>> {
        self.window.lock().upgrade()
    }

    /// Records the end of a request (the last buffer of its response was taken by hyper, or the response was aborted)
    /// or of a TLS handshake.
    pub(crate) fn end_request(&self) {
        self.reads_large_body.store(false, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
        self.buffers.release_slot(self);
        if self.is_grown.load(Ordering::Relaxed) && !self.keeps_grown_buffer.load(Ordering::Relaxed) {
            if self.buffers.try_keep_buffer() {
                self.keeps_grown_buffer.store(true, Ordering::Relaxed);
            } else {
                self.pending_idle_action.fetch_max(IdleAction::Park as u8, Ordering::Relaxed);
            }
        }
        self.set_phase(Phase::Idle);
    }

    /// Records that the connection has no buffers, or new and small ones. Withdraws a pending [`IdleAction::Park`].
    pub(crate) fn reset_buffer_state(&self) {
        // With a slot, the buffer is going to grow again.
        if self.slot() == Slot::None {
            self.is_grown.store(false, Ordering::Relaxed);
        }
        if self.keeps_grown_buffer.swap(false, Ordering::Relaxed) {
            self.buffers.release_kept_buffer();
        }
        let [park, none] = [IdleAction::Park, IdleAction::None].map(|action| action as u8);
        // A pending `Close` stays.
        let _ = self.pending_idle_action.compare_exchange(park, none, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records the end of the connection.
    pub(crate) fn end_connection(&self) {
        self.buffers.release_slot(self);
        self.reset_buffer_state();
    }

    /// Records that the request's body was read to its end.
    pub(crate) fn set_body_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// Returns true if the client may still be sending a body. Closing must then linger, so that the client reads the
    /// response instead of a connection reset.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// The number of bytes that may be read now; `None` if the connection must wait for a slot first. Its waker is
    /// called when it gets one or is turned away.
    pub(crate) fn read_limit(self: &Arc<Self>) -> Option<usize> {
        match self.phase() {
            Phase::Idle | Phase::Head => {
                let left = INITIAL_READ_BYTES.saturating_sub(self.head_bytes.load(Ordering::Relaxed));
                if left > 0 {
                    return Some(left);
                }
                self.take_slot().then_some(INITIAL_READ_BYTES)
            }
            _ if self.reads_large_body.load(Ordering::Relaxed) => Some(usize::MAX),
            // A small body, the beginning of a body whose request is not admitted yet, or the next request.
            _ => Some(INITIAL_READ_BYTES),
        }
    }

    /// Takes a slot for a large head. Returns true if the connection has one. Otherwise the waker is called when it
    /// gets one or is turned away.
    pub(crate) fn take_slot(self: &Arc<Self>) -> bool {
        self.is_grown.store(true, Ordering::Relaxed);
        self.buffers.take_slot(self)
    }

    /// The size from which a head is rejected even if it is incomplete, in bytes.
    pub(crate) fn max_head_bytes(&self) -> usize {
        self.buffers.max_head_bytes()
    }

    /// Records bytes read from the socket.
    pub(crate) fn record_read(&self, bytes: usize) {
        self.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.phase() {
            Phase::Idle => self.set_phase(Phase::Head),
            Phase::Head => {}
            _ => return,
        }
        self.head_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records the unacknowledged bytes in the kernel's send buffer of a connection that is blocked in a write.
    pub(super) fn set_unacked_bytes(&self, bytes: u64) {
        self.unacked_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Makes a connection that is blocked in a write update its unacknowledged bytes.
    pub(super) fn refresh_unacked_bytes(&self) {
        self.waker.wake();
    }

    /// Records bytes written to the socket; `None` if the write blocked.
    pub(crate) fn record_write(&self, bytes: Option<usize>) {
        match bytes {
            Some(bytes) => {
                self.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                self.write_blocked.store(false, Ordering::Relaxed);
            }
            None => self.write_blocked.store(true, Ordering::Relaxed),
        }
    }

    pub(crate) fn command(&self) -> Command {
        match self.command.load(Ordering::Acquire) {
            0 => Command::None,
            1 => Command::Finish,
            2 => Command::FailBody,
            3 => Command::TurnAway,
            _ => Command::Close,
        }
    }

    /// Gives the connection a command, unless it has a more severe one.
    pub(crate) fn raise_command(&self, command: Command) {
        self.command.fetch_max(command as u8, Ordering::AcqRel);
        self.waker.wake();
    }

    /// Replaces [`Command::TurnAway`] with [`Command::Finish`]: the connection finishes its request, then closes.
    pub(crate) fn downgrade_to_finish(&self) {
        let [current, new] = [Command::TurnAway, Command::Finish].map(|command| command as u8);
        // A concurrent `Close` has priority.
        let _ = self.command.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns true if the store works on a request, that is, the connection waits for neither the client nor memory.
    pub(crate) fn is_store_working(&self) -> bool {
        self.waits_for() == WaitingFor::Nothing && self.phase() == Phase::Working
    }

    /// Requests an action for when the connection is idle, unless a stronger one is pending.
    pub(crate) fn request_idle_action(&self, action: IdleAction) {
        self.pending_idle_action.fetch_max(action as u8, Ordering::AcqRel);
        self.waker.wake();
    }

    /// The pending action for when the connection is idle.
    pub(crate) fn idle_action(&self) -> IdleAction {
        match self.pending_idle_action.load(Ordering::Acquire) {
            0 => IdleAction::None,
            1 => IdleAction::Park,
            _ => IdleAction::Close,
        }
    }

    /// Returns true if the connection waits for a request and has sent all responses.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits_for() == WaitingFor::Request
    }

    /// Returns true if the connection waits for the rest of a small head.
    pub(crate) fn is_in_small_head(&self) -> bool {
        self.waits_for() == WaitingFor::Head && self.slot() == Slot::None
    }

    /// Withdraws the pending action.
    pub(crate) fn clear_idle_action(&self) {
        self.pending_idle_action.store(IdleAction::None as u8, Ordering::Release);
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes received and sent. While the connection is blocked in a write, only bytes that the client has acknowledged
    /// count. The kernel accepts more bytes only after a large part of its send buffer is empty. Counted by accepted
    /// bytes, a steady client would seem to pause. The number may decrease when a connection blocks.
    pub(super) fn transferred_bytes(&self) -> u64 {
        let moved = self.moved_bytes.load(Ordering::Relaxed);
        if !self.write_blocked.load(Ordering::Relaxed) {
            return moved;
        }
        moved.saturating_sub(self.unacked_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn waits_since(&self) -> Duration {
        Duration::from_millis(self.waits_since.load(Ordering::Relaxed))
    }

    pub(super) fn set_waits_since(&self, since: Duration) {
        let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.waits_since.store(since, Ordering::Relaxed);
    }

    pub(super) fn slot(&self) -> Slot {
        Slot::from_u64(self.slot.load(Ordering::Acquire))
    }

    pub(super) fn set_slot(&self, slot: Slot) {
        self.slot.store(slot.to_u64(), Ordering::Release);
    }

    pub(super) fn waits_for(&self) -> WaitingFor {
        let phase = self.phase();
        if self.write_blocked.load(Ordering::Relaxed) && phase != Phase::Lingering {
            return WaitingFor::Write;
        }
        match phase {
            Phase::Idle => WaitingFor::Request,
            Phase::Head => WaitingFor::Head,
            Phase::Admission | Phase::Working => WaitingFor::Nothing,
            Phase::Body => WaitingFor::Body,
            Phase::Lingering => WaitingFor::Eof,
        }
    }
}
