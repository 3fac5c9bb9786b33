//! Raises `SO_RCVLOWAT` while a response body is read, so that the reader is woken per 32 KiB rather than per packet.
//! A client that is faster than its link would otherwise wake, read and write for every few KiB, which costs a weak CPU
//! much of its time.
//!
//! The threshold never exceeds the bytes still expected, so a read cannot block on data that will not arrive.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

/// Threshold while at least this much is expected. It is half of the initial receive window of a new connection
/// (64 KiB), so that the window is reopened before the sender has filled it.
const WAKE_THRESHOLD_BYTES: u32 = 32 << 10;
/// The kernel's default threshold: every byte wakes the reader.
const DEFAULT_THRESHOLD_BYTES: u32 = 1;

/// Tracks how many bytes are still expected on a connection. Shared by the socket and the response's reader.
#[derive(Debug, Default)]
pub(super) struct Waking {
    /// Bytes received on the connection since it was opened, including response heads and TLS overhead.
    received: AtomicU64,
    /// `received` when the current request was sent.
    begun: AtomicU64,
    /// Lower bound of `received` at the end of the current body; 0 disables the threshold.
    until: AtomicU64,
    /// The task that polls the socket: the body's reader or the connection's own task.
    waiting: AtomicWaker,
}

impl Waking {
    /// Starts a request: all earlier responses have been received in full.
    pub fn begin(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.begun.store(self.received.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Announces a body of `bytes` bytes. The response's head and TLS bytes count towards it, so the bound is low.
    pub fn expect(&self, bytes: u64) {
        self.until.store(self.begun.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
    }

    /// Disables the threshold for this response and wakes the polling task, which resets the socket option.
    pub fn hurry(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.waiting.wake();
    }

    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The threshold to set now, given the current one. It is raised only to the full [`WAKE_THRESHOLD_BYTES`], and
    /// lowered as the end of the body comes closer.
    fn worth(&self, before: u32) -> u32 {
        let to_come =
            self.until.load(Ordering::Relaxed).saturating_sub(self.received.load(Ordering::Relaxed));
        if before == DEFAULT_THRESHOLD_BYTES && to_come < u64::from(WAKE_THRESHOLD_BYTES) {
            return DEFAULT_THRESHOLD_BYTES;
        }
        u32::try_from(to_come)
            .unwrap_or(WAKE_THRESHOLD_BYTES)
            .clamp(DEFAULT_THRESHOLD_BYTES, WAKE_THRESHOLD_BYTES)
    }
}

/// The threshold that is set on a socket.
#[derive(Debug)]
pub(super) struct Told(u32);

impl Told {
    /// The kernel's default.
    pub const NOTHING: Self = Self(DEFAULT_THRESHOLD_BYTES);

    /// Sets the socket's threshold; called before each poll. If the kernel rejects it, the threshold stays disabled for
    /// this response.
    pub fn tell(&mut self, socket: &impl AsFd, waking: &Waking, cx: &Context<'_>) -> io::Result<()> {
        if waking.until.load(Ordering::Relaxed) > 0 {
            // Registered before the threshold is computed, so that a concurrent `hurry` is not missed.
            waking.waiting.register(cx.waker());
        }
        let worth = waking.worth(self.0);
        if worth != self.0 {
            set_rcv_lowat(socket, worth).inspect_err(|_| waking.hurry())?;
            self.0 = worth;
        }
        Ok(())
    }
}

fn set_rcv_lowat(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of_val(&value) as libc::socklen_t;
    let number = socket.as_fd().as_raw_fd();
    // SAFETY: `value` outlives the call, and `length` is its size.
    let set = unsafe {
        libc::setsockopt(number, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), length)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_never_exceeds_the_bytes_expected() {
        let waking = Waking::default();
        assert_eq!(waking.worth(DEFAULT_THRESHOLD_BYTES), DEFAULT_THRESHOLD_BYTES);
        waking.received(5000);
        waking.begin();
        waking.received(10_000);
        waking.expect(1 << 20);
        assert_eq!(waking.until.load(Ordering::Relaxed), 5000 + (1 << 20));
        // The response head counts too: more bytes follow than the bound says.
        waking.received(20_000);
        assert_eq!(waking.worth(DEFAULT_THRESHOLD_BYTES), WAKE_THRESHOLD_BYTES);
        let receive_all_but = |left: u64| {
            let arrived = waking.until.load(Ordering::Relaxed) - received(&waking) - left;
            waking.received(usize::try_from(arrived).unwrap());
        };
        receive_all_but(40_000);
        assert_eq!(waking.worth(WAKE_THRESHOLD_BYTES), WAKE_THRESHOLD_BYTES);
        receive_all_but(20_000);
        assert_eq!(
            (waking.worth(DEFAULT_THRESHOLD_BYTES), waking.worth(WAKE_THRESHOLD_BYTES)),
            (DEFAULT_THRESHOLD_BYTES, 20_000)
        );
        waking.received(1 << 20);
        assert_eq!(waking.worth(20_000), DEFAULT_THRESHOLD_BYTES);
        waking.begin();
        waking.expect(u64::from(WAKE_THRESHOLD_BYTES));
        assert_eq!(waking.worth(DEFAULT_THRESHOLD_BYTES), WAKE_THRESHOLD_BYTES);
        waking.hurry();
        assert_eq!(waking.worth(WAKE_THRESHOLD_BYTES), DEFAULT_THRESHOLD_BYTES);
    }

    fn received(waking: &Waking) -> u64 {
        waking.received.load(Ordering::Relaxed)
    }
}
