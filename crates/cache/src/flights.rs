//! Single flight of misses: of the readers that miss the same object concurrently, one reads the backing store, and the
//! others wait until it is cached, or not.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Misses in flight, by the fingerprint of the head.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<u64, CancellationToken>>);

/// The part of a reader in a miss.
pub(crate) enum Flight {
    /// It reads; the others wait until this is dropped.
    Leader(Leader),
    /// It waits for the end of the leader's miss.
    Follower(CancellationToken),
}

/// See [`Flight::Leader`].
pub(crate) struct Leader {
    flights: Arc<Flights>,
    fingerprint: u64,
}

impl Flights {
    /// Joins the miss of an object.
    pub fn join(self: &Arc<Self>, fingerprint: u64) -> Flight {
        let mut flights = self.0.lock();
        match flights.get(&fingerprint) {
            Some(ended) => Flight::Follower(ended.clone()),
            None => {
                flights.insert(fingerprint, CancellationToken::new());
                Flight::Leader(Leader { flights: self.clone(), fingerprint })
            }
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let ended = self.flights.0.lock().remove(&self.fingerprint);
        if let Some(ended) = ended {
            ended.cancel();
        }
    }
}
