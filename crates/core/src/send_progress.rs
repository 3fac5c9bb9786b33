//! Progress of a write's body on its connections. A write returns when a local buffer has taken the bytes, which may be
//! seconds before they have passed the link. Benchmarks need the latter: they put a [`SendProgress`] into the context
//! of a write, and leaves with connections report to it.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// A connection that knows how many of its bytes have been delivered.
pub trait SendQueue: Send + Sync + fmt::Debug {
    /// Bytes written to the connection since it was opened, whether they were delivered or not.
    fn sent_bytes(&self) -> u64;

    /// Bytes of [`sent_bytes`](Self::sent_bytes) that the peer's network stack has acknowledged.
    fn acknowledged_bytes(&self) -> u64;
}

/// The progress of one write, over all of its requests whose bodies are streamed.
#[derive(Debug, Default)]
pub struct SendProgress(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// Bytes of finished requests.
    finished_bytes: u64,
    current: Option<CurrentRequest>,
}

#[derive(Debug)]
struct CurrentRequest {
    connection: Arc<dyn SendQueue>,
    /// `sent_bytes` when the request began. All earlier requests of the connection have been answered.
    start: u64,
}

impl CurrentRequest {
    fn delivered_bytes(&self) -> u64 {
        self.connection.acknowledged_bytes().saturating_sub(self.start)
    }
}

impl SendProgress {
    /// Records that the next request of the write begins on a connection. The one before it has ended.
    pub fn start_request(&self, connection: Arc<dyn SendQueue>) {
        let mut requests = self.0.lock();
        requests.finished_bytes += requests.current.take().map_or(0, |request| request.delivered_bytes());
        let start = connection.sent_bytes();
        requests.current = Some(CurrentRequest { connection, start });
    }

    /// Bytes of the write's requests that were delivered, including request heads, framing and TLS overhead. `None` if
    /// no connection was reported.
    #[must_use]
    pub fn delivered_bytes(&self) -> Option<u64> {
        let requests = self.0.lock();
        let current = requests.current.as_ref()?;
        Some(requests.finished_bytes + current.delivered_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Connection {
        sent: AtomicU64,
        queued: AtomicU64,
    }

    impl SendQueue for Connection {
        fn sent_bytes(&self) -> u64 {
            self.sent.load(Ordering::Relaxed)
        }

        fn acknowledged_bytes(&self) -> u64 {
            self.sent_bytes() - self.queued.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn queued_bytes_and_earlier_requests_do_not_count() {
        let (progress, connection) = (SendProgress::default(), Arc::new(Connection::default()));
        assert_eq!(progress.delivered_bytes(), None);
        connection.sent.store(1000, Ordering::Relaxed);
        progress.start_request(connection.clone());
        connection.sent.store(5000, Ordering::Relaxed);
        connection.queued.store(3000, Ordering::Relaxed);
        assert_eq!(progress.delivered_bytes(), Some(1000));
        connection.queued.store(0, Ordering::Relaxed);
        assert_eq!(progress.delivered_bytes(), Some(4000));
    }

    #[test]
    fn requests_of_one_write_add_up() {
        let (progress, connection) = (SendProgress::default(), Arc::new(Connection::default()));
        for sent in [700, 1000] {
            progress.start_request(connection.clone());
            connection.sent.store(sent, Ordering::Relaxed);
        }
        assert_eq!(progress.delivered_bytes(), Some(1000));
    }
}
