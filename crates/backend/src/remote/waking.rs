//! When a connection wakes whoever reads a body: not for each packet of it. A client that is faster than its line would be
//! woken, read and write for every few kilobytes, which costs a weak one a third of its processor.
//!
//! The kernel is told how many bytes are worth waking for (`SO_RCVLOWAT`), for as long as more than that is to come for certain: a
//! connection never waits for bytes that nobody sends.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

/// So many bytes are worth being woken for. Twice that is the least that a connection may have on its way without being
/// told to send more.
const WORTH: u32 = 32 << 10;
/// What the kernel does of its own.
const FIRST: u32 = 1;

/// What is known of the bytes that are still to come on a connection.
#[derive(Debug, Default)]
pub(super) struct Waking {
    /// Bytes that came, of all answers, with heads and what TLS adds.
    received: AtomicU64,
    /// How many there were when the request under way was begun.
    begun: AtomicU64,
    /// There will be so many for certain.
    until: AtomicU64,
    /// Who waits for them, be it whoever reads or a task of the connection's own.
    waiting: AtomicWaker,
}

impl Waking {
    /// A request is to be sent: all that was asked for before is here.
    pub fn begin(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.begun.store(self.received.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The answer has a body of so many bytes. Some are here, and others with them: they count as if they were the body's.
    pub fn expect(&self, bytes: u64) {
        self.until.store(self.begun.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
    }

    /// From now on each byte is worth it. Whoever waits tells the kernel so.
    pub fn hurry(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.waiting.wake();
    }

    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How many bytes whoever waits now is to be woken for, where it was so many before.
    fn worth(&self, before: u32) -> u32 {
        let to_come =
            self.until.load(Ordering::Relaxed).saturating_sub(self.received.load(Ordering::Relaxed));
        if before == FIRST && to_come < u64::from(WORTH) {
            return FIRST;
        }
        u32::try_from(to_come).unwrap_or(WORTH).clamp(FIRST, WORTH)
    }
}

/// What the kernel was told of a connection.
#[derive(Debug)]
pub(super) struct Told(u32);

impl Told {
    /// Nothing yet.
    pub const NOTHING: Self = Self(FIRST);

    /// Tells it what is worth waking for, before the connection is waited for. Where it takes that from nobody, each byte is.
    pub fn tell(&mut self, socket: &impl AsFd, waking: &Waking, cx: &Context<'_>) -> io::Result<()> {
        if waking.until.load(Ordering::Relaxed) > 0 {
            // Before it is looked at again: whoever hurries in between is heard.
            waking.waiting.register(cx.waker());
        }
        let worth = waking.worth(self.0);
        if worth != self.0 {
            wake_for(socket, worth).inspect_err(|_| waking.hurry())?;
            self.0 = worth;
        }
        Ok(())
    }
}

fn wake_for(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of_val(&value) as libc::socklen_t;
    let number = socket.as_fd().as_raw_fd();
    // SAFETY: the value lives for the call, and its length is what is said.
    let set = unsafe {
        libc::setsockopt(number, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), length)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_more_than_is_to_come() {
        let waking = Waking::default();
        assert_eq!(waking.worth(FIRST), FIRST);
        waking.received(5000);
        waking.begin();
        waking.received(10_000);
        waking.expect(1 << 20);
        assert_eq!(waking.until.load(Ordering::Relaxed), 5000 + (1 << 20));
        // The head is one of these: more is to come than is counted on.
        waking.received(20_000);
        assert_eq!(waking.worth(FIRST), WORTH);
        let leave = |left: u64| {
            let came = waking.until.load(Ordering::Relaxed) - received(&waking) - left;
            waking.received(usize::try_from(came).unwrap());
        };
        leave(40_000);
        assert_eq!(waking.worth(WORTH), WORTH);
        leave(20_000);
        assert_eq!((waking.worth(FIRST), waking.worth(WORTH)), (FIRST, 20_000));
        waking.received(1 << 20);
        assert_eq!(waking.worth(20_000), FIRST);
        waking.begin();
        waking.expect(u64::from(WORTH));
        assert_eq!(waking.worth(FIRST), WORTH);
        waking.hurry();
        assert_eq!(waking.worth(WORTH), FIRST);
    }

    fn received(waking: &Waking) -> u64 {
        waking.received.load(Ordering::Relaxed)
    }
}
