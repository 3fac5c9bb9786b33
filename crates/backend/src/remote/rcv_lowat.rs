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
pub(super) struct RcvLowat {
    /// Bytes received on the connection since it was opened, including response heads and TLS overhead.
    received: AtomicU64,
    /// `received` when the current request was sent.
    response_start: AtomicU64,
    /// Lower bound of `received` at the end of the current body; 0 disables the threshold.
    body_end: AtomicU64,
    /// The task that polls the socket: the body's reader or the connection's own task.
    reader: AtomicWaker,
}

impl RcvLowat {
    /// Starts a request: all earlier responses have been received in full.
    pub fn start_request(&self) {
        self.body_end.store(0, Ordering::Relaxed);
        self.response_start.store(self.received.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Announces a body of `bytes` bytes. The response's head and TLS bytes count towards it, so the bound is low.
    pub fn expect_body(&self, bytes: u64) {
        self.body_end
            .store(self.response_start.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
    }

    /// Disables the threshold for this response and wakes the polling task, which resets the socket option.
    pub fn disable(&self) {
        self.body_end.store(0, Ordering::Relaxed);
        self.reader.wake();
    }

    /// Records bytes received on the connection.
    pub fn record_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The threshold to set now, given the `current` one. It is raised only to the full [`WAKE_THRESHOLD_BYTES`], and
    /// lowered as the end of the body comes closer.
    fn threshold(&self, current: u32) -> u32 {
        let expected =
            self.body_end.load(Ordering::Relaxed).saturating_sub(self.received.load(Ordering::Relaxed));
        if current == DEFAULT_THRESHOLD_BYTES && expected < u64::from(WAKE_THRESHOLD_BYTES) {
            return DEFAULT_THRESHOLD_BYTES;
        }
        u32::try_from(expected)
            .unwrap_or(WAKE_THRESHOLD_BYTES)
            .clamp(DEFAULT_THRESHOLD_BYTES, WAKE_THRESHOLD_BYTES)
    }
}

/// The threshold that is set on a socket.
#[derive(Debug)]
pub(super) struct AppliedThreshold(u32);

impl AppliedThreshold {
    /// The kernel's default.
    pub const DEFAULT: Self = Self(DEFAULT_THRESHOLD_BYTES);

    /// Sets the socket's threshold; called before each poll. If the kernel rejects it, the threshold stays disabled for
    /// this response.
    pub fn apply(&mut self, socket: &impl AsFd, rcv_lowat: &RcvLowat, cx: &Context<'_>) -> io::Result<()> {
        if rcv_lowat.body_end.load(Ordering::Relaxed) > 0 {
            // Registered before the threshold is computed, so that a concurrent `disable` is not missed.
            rcv_lowat.reader.register(cx.waker());
        }
        let threshold = rcv_lowat.threshold(self.0);
        if threshold != self.0 {
            set_rcv_lowat(socket, threshold).inspect_err(|_| rcv_lowat.disable())?;
            self.0 = threshold;
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
        let rcv_lowat = RcvLowat::default();
        assert_eq!(rcv_lowat.threshold(DEFAULT_THRESHOLD_BYTES), DEFAULT_THRESHOLD_BYTES);
        rcv_lowat.record_received(5000);
        rcv_lowat.start_request();
        rcv_lowat.record_received(10_000);
        rcv_lowat.expect_body(1 << 20);
        assert_eq!(rcv_lowat.body_end.load(Ordering::Relaxed), 5000 + (1 << 20));
        // The response head counts too: more bytes follow than the bound says.
        rcv_lowat.record_received(20_000);
        assert_eq!(rcv_lowat.threshold(DEFAULT_THRESHOLD_BYTES), WAKE_THRESHOLD_BYTES);
        let receive_all_but = |left: u64| {
            let arrived = rcv_lowat.body_end.load(Ordering::Relaxed) - received(&rcv_lowat) - left;
            rcv_lowat.record_received(usize::try_from(arrived).unwrap());
        };
        receive_all_but(40_000);
        assert_eq!(rcv_lowat.threshold(WAKE_THRESHOLD_BYTES), WAKE_THRESHOLD_BYTES);
        receive_all_but(20_000);
        assert_eq!(
            (rcv_lowat.threshold(DEFAULT_THRESHOLD_BYTES), rcv_lowat.threshold(WAKE_THRESHOLD_BYTES)),
            (DEFAULT_THRESHOLD_BYTES, 20_000)
        );
        rcv_lowat.record_received(1 << 20);
        assert_eq!(rcv_lowat.threshold(20_000), DEFAULT_THRESHOLD_BYTES);
        rcv_lowat.start_request();
        rcv_lowat.expect_body(u64::from(WAKE_THRESHOLD_BYTES));
        assert_eq!(rcv_lowat.threshold(DEFAULT_THRESHOLD_BYTES), WAKE_THRESHOLD_BYTES);
        rcv_lowat.disable();
        assert_eq!(rcv_lowat.threshold(WAKE_THRESHOLD_BYTES), DEFAULT_THRESHOLD_BYTES);
    }

    fn received(rcv_lowat: &RcvLowat) -> u64 {
        rcv_lowat.received.load(Ordering::Relaxed)
    }
}
