//! What goes between here and a store: bytes on its connections, in both directions, and to which addresses. Whoever
//! measures gives one to a store when it is opened; a store that speaks with nobody counts nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Counts; they only grow.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicU64,
    addresses: Mutex<BTreeSet<SocketAddr>>,
}

/// What was carried up to a moment, or between two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that were handed to connections: requests with their heads, and TLS around them. What TCP and IP add, and what
    /// they send again, is not known here.
    pub sent: u64,
    /// The same of bytes that came.
    pub received: u64,
    /// Connections that were made.
    pub connections: u64,
}

impl Carried {
    /// What was carried since an earlier moment.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
            connections: self.connections.saturating_sub(earlier.connections),
        }
    }
}

impl Traffic {
    /// A connection was made.
    pub fn connected(&self, to: SocketAddr) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.addresses.lock().insert(to);
    }

    /// Bytes went out.
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes came in.
    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All that was carried so far.
    #[must_use]
    pub fn carried(&self) -> Carried {
        Carried {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
        }
    }

    /// Every address that there was a connection to.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().iter().copied().collect()
    }
}
