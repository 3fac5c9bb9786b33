//! What a connection is doing, told by a few relaxed stores on the way of each request and judged
//! from outside once a tick: no request sets a timer or reads a clock for its timeouts.
//!
//! A connection that waits for its client (for a request, for a body's bytes, for room to write) and
//! does not get them in time is closed; one that waits for the store never is.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tradewind_core::{Account, Window};

use super::accounts::{Accounts, LastAccount};
use super::buffers::{Buffers, HEAD_FREE_BYTES, Slot};
use super::peer::Peer;
use crate::auth::Identity;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Waiting for the next request.
    Idle,
    /// A request's headers began to come. Also a TLS handshake.
    Head,
    /// The request waits for memory.
    Admission,
    /// The request is being carried out.
    Working,
    /// The operation waits for bytes of the body.
    Body,
    /// The answer to a request whose body was not read is out; what still comes is thrown away.
    Lingering,
}

/// What a connection is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Command {
    /// Go on.
    Serve,
    /// Finish the request in flight, then close.
    Finish,
    /// The body's bytes did not come: fail the request, answer, close.
    FailBody,
    /// Close now; answer 503 first where no answer has begun.
    TurnAway,
    /// Close now.
    Close,
}

/// A request to a connection, granted once the connection is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum WhenIdle {
    /// Nothing.
    Stay,
    /// Give up the buffers.
    Park,
    /// Close.
    Leave,
}

/// The action of its client that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    Request,
    Head,
    Body,
    Write,
    End,
}

/// One connection as seen from outside.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(super) peer: Peer,
    phase: AtomicU8,
    requests: AtomicU32,
    moved: AtomicU64,
    /// Of the bytes that went, those that lay in the kernel when the connection was last blocked.
    untaken: AtomicU64,
    write_blocked: AtomicBool,
    body_unread: AtomicBool,
    command: AtomicU8,
    when_idle: AtomicU8,
    /// When the judge first saw it wait for what it waits for, in milliseconds.
    waits_since: AtomicU64,
    account: LastAccount,
    /// The memory of the latest request. Buffers on their way to the socket may hold it longer than the request.
    window: Mutex<Weak<Window>>,
    buffers: Arc<Buffers>,
    /// Bytes read of the head that is not whole.
    head_bytes: AtomicUsize,
    /// A [`Slot`], changed under the lock of the buffers.
    slot: AtomicU64,
    /// The body in flight is admitted and large.
    reads_large_body: AtomicBool,
    /// The buffer that the connection reads into may be large.
    is_grown: AtomicBool,
    has_permit: AtomicBool,
    pub(crate) waker: AtomicWaker,
}

impl Watch {
    pub(crate) fn new(peer: Peer, buffers: Arc<Buffers>) -> Self {
        Self {
            peer,
            phase: AtomicU8::new(Phase::Head as u8),
            requests: AtomicU32::new(0),
            moved: AtomicU64::new(0),
            untaken: AtomicU64::new(0),
            write_blocked: AtomicBool::new(false),
            body_unread: AtomicBool::new(false),
            command: AtomicU8::new(Command::Serve as u8),
            when_idle: AtomicU8::new(WhenIdle::Stay as u8),
            waits_since: AtomicU64::new(0),
            account: LastAccount::default(),
            window: Mutex::default(),
            buffers,
            head_bytes: AtomicUsize::new(0),
            slot: AtomicU64::new(0),
            reads_large_body: AtomicBool::new(false),
            is_grown: AtomicBool::new(false),
            has_permit: AtomicBool::new(false),
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

    /// A request's headers are complete; a body follows or not.
    pub(crate) fn begin_request(&self, has_body: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.body_unread.store(has_body, Ordering::Relaxed);
        self.set_phase(Phase::Working);
    }

    /// The account that an identity's requests on this connection take memory on.
    pub(crate) fn account(&self, accounts: &Accounts, identity: &Arc<Identity>) -> Account {
        self.account.find(accounts, identity, self.peer)
    }

    /// The request has its memory, and its head no longer counts beside it. A body larger than what is read at first is
    /// read in large pieces from now on.
    pub(crate) fn set_admitted(&self, window: &Arc<Window>, has_large_body: bool) {
        *self.window.lock() = Arc::downgrade(window);
        self.buffers.release_slot(self);
        if has_large_body {
            self.reads_large_body.store(true, Ordering::Relaxed);
            self.is_grown.store(true, Ordering::Relaxed);
        }
    }

    /// The memory that the connection holds, its own or that of an answer on its way.
    pub(crate) fn window(&self) -> Option<Arc<Window>> {
        self.window.lock().upgrade()
    }

    /// The request's answer is out, or given up; or a TLS handshake is over.
    pub(crate) fn end_request(&self) {
        self.reads_large_body.store(false, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
        self.buffers.release_slot(self);
        if self.is_grown.load(Ordering::Relaxed) && !self.has_permit.load(Ordering::Relaxed) {
            if self.buffers.take_permit() {
                self.has_permit.store(true, Ordering::Relaxed);
            } else {
                self.when_idle.fetch_max(WhenIdle::Park as u8, Ordering::Relaxed);
            }
        }
        self.set_phase(Phase::Idle);
    }

    /// The connection has given up its buffers.
    pub(crate) fn set_buffers_dropped(&self) {
        if self.slot() == Slot::None {
            self.is_grown.store(false, Ordering::Relaxed);
        }
        if self.has_permit.swap(false, Ordering::Relaxed) {
            self.buffers.release_permit();
        }
        let (park, stay) = (WhenIdle::Park as u8, WhenIdle::Stay as u8);
        let _more = self.when_idle.compare_exchange(park, stay, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The connection is over.
    pub(crate) fn end_connection(&self) {
        self.buffers.release_slot(self);
        self.set_buffers_dropped();
    }

    /// The request's body was read to its end.
    pub(crate) fn set_body_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// Whether the client may still be sending a body. If the connection is closed then, the client
    /// must be let go on for a while, so that it sees the answer and not a reset connection.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// The number of bytes that may be read now. `None`: none until the waker is called.
    pub(crate) fn read_limit(self: &Arc<Self>) -> Option<usize> {
        match self.phase() {
            Phase::Idle | Phase::Head => {
                let left = HEAD_FREE_BYTES.saturating_sub(self.head_bytes.load(Ordering::Relaxed));
                if left > 0 {
                    return Some(left);
                }
                self.take_slot().then_some(HEAD_FREE_BYTES)
            }
            _ if self.reads_large_body.load(Ordering::Relaxed) => Some(usize::MAX),
            // A small body, the beginning of one that is not admitted yet, or that of a next request.
            _ => Some(HEAD_FREE_BYTES),
        }
    }

    /// Returns true if there is a slot for a large head; otherwise the waker is called when there is.
    pub(crate) fn take_slot(self: &Arc<Self>) -> bool {
        self.is_grown.store(true, Ordering::Relaxed);
        self.buffers.take_slot(self)
    }

    /// Bytes from which on a head is refused whatever follows.
    pub(crate) fn max_head_bytes(&self) -> usize {
        self.buffers.max_head_bytes()
    }

    /// Bytes came.
    pub(crate) fn note_read(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.phase() {
            Phase::Idle => self.set_phase(Phase::Head),
            Phase::Head => {}
            _ => return,
        }
        self.head_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The connection is blocked in a write, and this many bytes lie in the kernel that the client has not taken.
    pub(super) fn note_untaken(&self, bytes: u64) {
        self.untaken.store(bytes, Ordering::Relaxed);
    }

    /// Has a connection that is blocked in a write look again at what its client has taken.
    pub(super) fn refresh_untaken(&self) {
        self.waker.wake();
    }

    /// Bytes went, or (`None`) could not.
    pub(crate) fn note_write(&self, bytes: Option<usize>) {
        match bytes {
            Some(bytes) => {
                self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
                self.write_blocked.store(false, Ordering::Relaxed);
            }
            None => self.write_blocked.store(true, Ordering::Relaxed),
        }
    }

    pub(crate) fn command(&self) -> Command {
        match self.command.load(Ordering::Acquire) {
            0 => Command::Serve,
            1 => Command::Finish,
            2 => Command::FailBody,
            3 => Command::TurnAway,
            _ => Command::Close,
        }
    }

    /// Tells the connection, unless it was told something graver.
    pub(crate) fn tell(&self, command: Command) {
        self.command.fetch_max(command as u8, Ordering::AcqRel);
        self.waker.wake();
    }

    /// Takes back [`Command::TurnAway`]: the connection finishes its request instead, and closes then.
    pub(crate) fn finish_instead(&self) {
        let [told, instead] = [Command::TurnAway, Command::Finish].map(|command| command as u8);
        // It may be told to close meanwhile, which stands.
        let _ = self.command.compare_exchange(told, instead, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns true if the store works on a request: neither the client nor memory is waited for.
    pub(crate) fn is_at_work(&self) -> bool {
        self.waits_for() == Wait::Nothing && self.phase() == Phase::Working
    }

    /// Asks the connection, unless it was asked for more.
    pub(crate) fn ask(&self, when_idle: WhenIdle) {
        self.when_idle.fetch_max(when_idle as u8, Ordering::AcqRel);
        self.waker.wake();
    }

    /// The pending request for when the connection is idle.
    pub(crate) fn when_idle(&self) -> WhenIdle {
        match self.when_idle.load(Ordering::Acquire) {
            0 => WhenIdle::Stay,
            1 => WhenIdle::Park,
            _ => WhenIdle::Leave,
        }
    }

    /// Returns true if the connection waits for a request and has sent all answers.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits_for() == Wait::Request
    }

    /// Returns true if the connection waits for the rest of a small head.
    pub(crate) fn is_in_small_head(&self) -> bool {
        self.waits_for() == Wait::Head && self.slot() == Slot::None
    }

    /// Withdraws the pending request.
    pub(crate) fn stay(&self) {
        self.when_idle.store(WhenIdle::Stay as u8, Ordering::Release);
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes that came and went. While the connection is blocked in a write, those count that the client has taken: the
    /// kernel lets a connection write again only after a large part of its buffer is empty, and a steady client would
    /// seem to pause. So the number may fall when a connection becomes blocked.
    pub(super) fn moved(&self) -> u64 {
        let moved = self.moved.load(Ordering::Relaxed);
        if !self.write_blocked.load(Ordering::Relaxed) {
            return moved;
        }
        moved.saturating_sub(self.untaken.load(Ordering::Relaxed))
    }

    pub(super) fn waits_since(&self) -> Duration {
        Duration::from_millis(self.waits_since.load(Ordering::Relaxed))
    }

    pub(super) fn set_waits_since(&self, since: Duration) {
        let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.waits_since.store(since, Ordering::Relaxed);
    }

    pub(super) fn slot(&self) -> Slot {
        Slot::from_number(self.slot.load(Ordering::Acquire))
    }

    pub(super) fn set_slot(&self, slot: Slot) {
        self.slot.store(slot.to_number(), Ordering::Release);
    }

    pub(super) fn waits_for(&self) -> Wait {
        let phase = self.phase();
        if self.write_blocked.load(Ordering::Relaxed) && phase != Phase::Lingering {
            return Wait::Write;
        }
        match phase {
            Phase::Idle => Wait::Request,
            Phase::Head => Wait::Head,
            Phase::Admission | Phase::Working => Wait::Nothing,
            Phase::Body => Wait::Body,
            Phase::Lingering => Wait::End,
        }
    }
}
