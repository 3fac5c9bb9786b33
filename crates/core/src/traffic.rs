//! Traffic counters of a store's connections: bytes in both directions, connections and peer addresses. The benchmarks
//! pass one to a store when they open it; a local store counts nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Traffic counters of a store. They only grow.
#[derive(Debug, Default)]
pub struct Traffic {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    connections: AtomicU64,
    addresses: Mutex<BTreeSet<SocketAddr>>,
}

/// Counter values at one moment, or their difference between two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Bytes written to connections: requests with their headers, and TLS overhead. Headers and retransmissions of TCP
    /// and IP are not included.
    pub sent_bytes: u64,
    /// Bytes read from connections, counted likewise.
    pub received_bytes: u64,
    /// Connections established.
    pub connections: u64,
}

impl TrafficCounts {
    /// The difference from earlier counter values.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            connections: self.connections.saturating_sub(earlier.connections),
        }
    }
}

impl Traffic {
    /// Records a new connection.
    pub fn record_connection(&self, to: SocketAddr) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.addresses.lock().insert(to);
    }

    /// Records bytes sent.
    pub fn record_sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records bytes received.
    pub fn record_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The current counter values.
    #[must_use]
    pub fn counts(&self) -> TrafficCounts {
        TrafficCounts {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
        }
    }

    /// Every address that a connection was made to.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().iter().copied().collect()
    }
}
