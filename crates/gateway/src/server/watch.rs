//! What a connection is doing, told by a few relaxed stores on the way of each request and judged
//! from outside once a tick: no request sets a timer or reads a clock for its timeouts.
//!
//! A connection that waits for its client (for a request, for a body's bytes, for room to write) and
//! does not get them in time is closed; one that waits for the store never is.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures::task::AtomicWaker;

use crate::config::Limits;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Waiting for the next request.
    Idle,
    /// A request's headers began to come. Also a TLS handshake.
    Head,
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
    /// Close now.
    Close,
}

/// One connection as seen from outside.
#[derive(Debug)]
pub(crate) struct Watch {
    phase: AtomicU8,
    requests: AtomicU32,
    moved: AtomicU64,
    write_blocked: AtomicBool,
    body_unread: AtomicBool,
    command: AtomicU8,
    pub(crate) waker: AtomicWaker,
}

impl Watch {
    pub(crate) const fn new() -> Self {
        Self {
            phase: AtomicU8::new(Phase::Head as u8),
            requests: AtomicU32::new(0),
            moved: AtomicU64::new(0),
            write_blocked: AtomicBool::new(false),
            body_unread: AtomicBool::new(false),
            command: AtomicU8::new(Command::Serve as u8),
            waker: AtomicWaker::new(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Working,
            3 => Phase::Body,
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

    /// The request's body was read to its end.
    pub(crate) fn set_body_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// Whether the client may still be sending a body. If the connection is closed then, the client
    /// must be let go on for a while, so that it sees the answer and not a reset connection.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// Bytes came.
    pub(crate) fn note_read(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.phase() == Phase::Idle {
            self.set_phase(Phase::Head);
        }
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
            _ => Command::Close,
        }
    }

    /// Tells the connection, unless it was told something graver.
    pub(crate) fn tell(&self, command: Command) {
        self.command.fetch_max(command as u8, Ordering::AcqRel);
        self.waker.wake();
    }

    fn waits_for(&self) -> Wait {
        let phase = self.phase();
        if self.write_blocked.load(Ordering::Relaxed) && phase != Phase::Lingering {
            return Wait::Write;
        }
        match phase {
            Phase::Idle => Wait::Request,
            Phase::Head => Wait::Head,
            Phase::Working => Wait::Nothing,
            Phase::Body => Wait::Body,
            Phase::Lingering => Wait::End,
        }
    }
}

/// What of its client a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Nothing,
    Request,
    Head,
    Body,
    Write,
    End,
}

/// What a client must move in the slow client's time while others wait for memory: about what its own
/// request holds of it.
const PRESSED_BYTES: u64 = 1 << 20;

/// Whether requests wait for memory, as the judge sees it from tick to tick.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    until: Duration,
}

impl Pressure {
    /// Looks at how many wait. A pause shorter than half the slow client's time does not end the
    /// pressure, or whoever holds the memory could wait for one. Since nobody is cut off who was not
    /// slow for the whole of that time, a moment's pressure cuts off nobody.
    pub(crate) fn look(&mut self, waiting: usize, now: Duration, limits: &Limits) -> bool {
        if waiting > 0 {
            self.until = now + limits.slow_client_time / 2;
        }
        now < self.until
    }
}

/// The judge's notes on one connection.
#[derive(Debug)]
pub(crate) struct Notes {
    wait: Wait,
    requests: u32,
    moved: u64,
    since: Duration,
}

impl Notes {
    pub(crate) const fn new(now: Duration) -> Self {
        Self { wait: Wait::Nothing, requests: 0, moved: 0, since: now }
    }

    /// Looks at a connection at a tick and says what it must be told.
    pub(crate) fn judge(
        &mut self,
        watch: &Watch,
        now: Duration,
        limits: &Limits,
        is_pressed: bool,
    ) -> Option<Command> {
        let wait = watch.waits_for();
        let requests = watch.requests.load(Ordering::Relaxed);
        let moved = watch.moved.load(Ordering::Relaxed);
        let enough =
            if is_pressed { limits.slow_client_bytes.max(PRESSED_BYTES) } else { limits.slow_client_bytes };
        let progress = matches!(wait, Wait::Body | Wait::Write) && moved.wrapping_sub(self.moved) >= enough;
        let news = wait != self.wait || requests != self.requests || progress;
        if news || wait == Wait::Nothing {
            *self = Self { wait, requests, moved, since: now };
            return None;
        }
        let waited = now.saturating_sub(self.since);
        let patience = match wait {
            Wait::Nothing => return None,
            Wait::Request => limits.idle_time,
            Wait::Head => limits.header_time,
            Wait::Body | Wait::Write => limits.slow_client_time,
            // A courtesy, no more than that: whatever still comes does not prolong it.
            Wait::End => limits.slow_client_time.min(Duration::from_secs(2)),
        };
        if waited < patience {
            return None;
        }
        Some(match wait {
            Wait::Request => Command::Finish,
            // First the operation may answer; if that does not help, the connection goes.
            Wait::Body if watch.command() < Command::FailBody => {
                self.since = now;
                Command::FailBody
            }
            _ => Command::Close,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits {
            header_time: 2 * SECOND,
            idle_time: 5 * SECOND,
            slow_client_time: 3 * SECOND,
            slow_client_bytes: 100,
            ..Limits::default()
        }
    }

    /// The first command within a minute, and when.
    fn verdict(watch: &Watch, each_second: impl FnMut(&Watch)) -> Option<(u32, Command)> {
        verdict_pressed(watch, |_| 0, each_second)
    }

    /// The same where that many wait for memory at each second.
    fn verdict_pressed(
        watch: &Watch,
        waiting: impl Fn(u32) -> usize,
        mut each_second: impl FnMut(&Watch),
    ) -> Option<(u32, Command)> {
        let mut notes = Notes::new(Duration::ZERO);
        let mut pressure = Pressure::default();
        (0..60).find_map(|second| {
            let is_pressed = pressure.look(waiting(second), second * SECOND, &limits());
            let command = notes.judge(watch, second * SECOND, &limits(), is_pressed);
            each_second(watch);
            command.map(|command| (second, command))
        })
    }

    #[test]
    fn waiting_for_the_store_is_no_fault_of_the_client() {
        let watch = Watch::new();
        watch.begin_request(false);
        assert_eq!(verdict(&watch, |_| ()), None);
    }

    #[test]
    fn idle_headers_bodies_and_readers() {
        let watch = Watch::new();
        watch.set_phase(Phase::Idle);
        assert_eq!(verdict(&watch, |_| ()), Some((5, Command::Finish)));
        watch.note_read(1);
        assert_eq!(verdict(&watch, |w| w.note_read(1000)), Some((2, Command::Close)), "bytes do not help");
        watch.begin_request(false);
        watch.note_write(None);
        assert_eq!(verdict(&watch, |_| ()), Some((3, Command::Close)));
        watch.note_write(Some(1));
        watch.set_phase(Phase::Body);
        assert_eq!(verdict(&watch, |_| ()), Some((3, Command::FailBody)));
        assert_eq!(
            verdict(&watch, |w| w.note_read(10)),
            Some((3, Command::FailBody)),
            "a drip is no progress"
        );
        assert_eq!(verdict(&watch, |w| w.note_read(100)), None);
        watch.tell(Command::FailBody);
        assert_eq!(verdict(&watch, |_| ()), Some((3, Command::Close)));
    }

    #[test]
    fn who_holds_memory_that_others_wait_for_must_move_more() {
        let watch = Watch::new();
        watch.begin_request(true);
        watch.set_phase(Phase::Body);
        let slow = |w: &Watch| w.note_read(1000);
        assert_eq!(verdict_pressed(&watch, |_| 1, slow), Some((3, Command::FailBody)));
        assert_eq!(verdict_pressed(&watch, |_| 1, |w| w.note_read(1 << 20)), None);
        assert_eq!(
            verdict_pressed(&watch, |second| usize::from(second >= 20), slow),
            Some((22, Command::FailBody))
        );
        let with_pauses = |second| usize::from(second % 2 == 0);
        assert_eq!(verdict_pressed(&watch, with_pauses, slow), Some((3, Command::FailBody)));
        let for_a_moment = |second| usize::from(second % 4 == 0);
        assert_eq!(verdict_pressed(&watch, for_a_moment, slow), None);
    }

    #[test]
    fn lingering_ends_whatever_comes() {
        let watch = Watch::new();
        watch.begin_request(true);
        watch.note_write(None);
        watch.set_phase(Phase::Lingering);
        assert_eq!(verdict(&watch, |w| w.note_read(1 << 20)), Some((2, Command::Close)));
    }

    #[test]
    fn a_busy_connection_is_never_idle() {
        let watch = Watch::new();
        let answered = verdict(&watch, |w| {
            w.begin_request(false);
            w.set_phase(Phase::Idle);
        });
        assert_eq!(answered, None);
    }

    #[test]
    fn graver_commands_stay() {
        let watch = Watch::new();
        watch.tell(Command::Close);
        watch.tell(Command::Finish);
        assert_eq!(watch.command(), Command::Close);
    }
}
