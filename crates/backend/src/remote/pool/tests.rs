use std::net::TcpListener;

use tokio::runtime::{Builder, Runtime};
use tradewind_core::SystemClock;
use tradewind_core::testing::SimulatedClock;

use super::*;

#[test]
fn acquire_reuses_connections_of_its_own_runtime_only() {
    let (_store, peer) = store();
    let pool = |connections| pool(&peer, connections);
    let (one, other) = (runtime(), runtime());
    let (few, more) = (pool(1), pool(2));
    assert_eq!([&one, &one, &other, &other].map(|runtime| reuses(&few, runtime)), [false, true, false, true]);
    assert_eq!(few.idle.lock().len(), 1, "the other runtime's connection replaced the first");
    assert_eq!(
        [&one, &other, &one, &other].map(|runtime| reuses(&more, runtime)),
        [false, false, true, true]
    );
    drop(other);
    assert_eq!(
        [&one, &one].map(|runtime| reuses(&few, runtime)),
        [false, true],
        "connections of a dropped runtime are not reused"
    );
}

/// A store that accepts connections: the kernel completes the handshakes, and nothing calls accept.
fn store() -> (TcpListener, Peer) {
    let store = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = store.local_addr().unwrap().port();
    (store, Peer { is_tls: false, host: "127.0.0.1".to_owned(), port })
}

fn pool(peer: &Peer, connections: usize) -> Arc<Pool> {
    pool_with_clock(peer, connections, SystemClock::shared())
}

fn pool_with_clock(peer: &Peer, connections: usize, clock: Arc<dyn Clock>) -> Arc<Pool> {
    let options = PoolOptions { max_connections: connections, ..PoolOptions::default() };
    Arc::new(Pool::new(peer.clone(), None, options, clock))
}

#[test]
fn round_trip_is_the_lowest_connect_time_beyond_loopback() {
    let pool = pool(&Peer { is_tls: false, host: "far".to_owned(), port: 80 }, 1);
    let [loopback, far] = ["[::ffff:127.0.0.1]:80", "10.1.2.3:80"].map(|address| address.parse().unwrap());
    let at = Duration::from_millis;
    [(loopback, 1), (far, 180), (far, 176), (far, 1200)]
        .into_iter()
        .for_each(|(to, took)| pool.record_connect_time(to, at(took)));
    assert_eq!(pool.min_rtt(), Some(at(176)));
}

#[test]
fn prewarm_opens_missing_connections_up_to_the_maximum() {
    let (store, peer) = store();
    let (runtime, pool) = (runtime(), pool(&peer, 3));
    runtime.block_on(async {
        let held = pool.acquire(false, Reuse::Any).await.unwrap();
        assert_eq!(pool.min_rtt(), None, "loopback has no RTT");
        pool.prewarm(2);
        // Existing connections count, and the maximum is not exceeded.
        pool.prewarm(2);
        assert_eq!(pool.prewarmed.lock().len(), 2);
        pool.prewarm(100);
        assert_eq!(pool.prewarmed.lock().len(), 2);
        let taken =
            [pool.acquire(false, Reuse::Any).await.unwrap(), pool.acquire(false, Reuse::Any).await.unwrap()];
        assert!(!held.is_reused && taken.iter().all(|connection| connection.is_reused));
        assert!(pool.prewarmed.lock().is_empty());
        drop(taken);
        pool.prewarm(1);
        pool.close();
        assert!(pool.prewarmed.lock().is_empty() && pool.acquire(false, Reuse::Any).await.is_err());
    });
    // A failure to connect in advance is reported to the next caller.
    drop(store);
    let pool = self::pool(&peer, 2);
    runtime.block_on(async {
        pool.prewarm(1);
        assert!(pool.acquire(false, Reuse::Any).await.is_err());
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns true if `acquire` in the given runtime returns a reused connection.
fn reuses(pool: &Pool, runtime: &Runtime) -> bool {
    runtime.block_on(async {
        let connection = pool.acquire(false, Reuse::Any).await.unwrap();
        let is_reused = connection.is_reused;
        pool.release(connection);
        is_reused
    })
}

#[test]
fn failure_on_a_reused_connection_closes_earlier_ones_of_all_runtimes() {
    let (_store, peer) = store();
    let (one, other, pool) = (runtime(), runtime(), pool(&peer, 8));
    let acquire = |runtime: &Runtime| runtime.block_on(pool.acquire(false, Reuse::Any)).unwrap();
    let lose = |connection: &Connection, operation| {
        pool.record_loss(
            connection,
            LostRequest { operation, silent_since: Duration::ZERO, is_timeout: false },
        );
    };
    let [in_use, idle, failed] = [&one, &one, &other].map(acquire);
    lose(&failed, 1);
    [idle, failed].into_iter().for_each(|connection| pool.release(connection));
    assert_eq!(pool.idle.lock().len(), 2, "a failure on a new connection says nothing about others");
    one.block_on(async { pool.prewarm(3) });
    assert_eq!(pool.prewarmed.lock().len(), 2);

    let failed = acquire(&other);
    assert!(failed.is_reused);
    lose(&failed, 2);
    assert!(pool.idle.lock().is_empty() && pool.prewarmed.lock().is_empty());
    pool.release(in_use);
    assert!(pool.idle.lock().is_empty(), "a connection that was in use is not reused");

    let newer = acquire(&one);
    assert!(!newer.is_reused);
    pool.release(newer);
    lose(&failed, 3);
    assert!(acquire(&one).is_reused, "a failure on an old connection says nothing about newer ones");
}

#[test]
fn connection_that_was_idle_for_long_is_reused_only_by_any() {
    let (_store, peer) = store();
    let (runtime, clock) = (runtime(), SimulatedClock::new());
    let pool = pool_with_clock(&peer, 8, clock.clone());
    runtime.block_on(async {
        let is_reused = async |reuse: Reuse| pool.acquire(false, reuse).await.unwrap().is_reused;
        let leave_idle = async || {
            pool.close_idle();
            pool.release(pool.acquire(false, Reuse::Never).await.unwrap());
        };
        leave_idle().await;
        assert!(!is_reused(Reuse::Never).await);
        clock.advance(MAX_RECENT_IDLE_TIME);
        assert!(is_reused(Reuse::Recent).await);
        leave_idle().await;
        clock.advance(MAX_RECENT_IDLE_TIME + Duration::from_millis(1));
        assert!(!is_reused(Reuse::Recent).await && is_reused(Reuse::Any).await);

        // The idle time of a connection opened in advance begins when it is open.
        let prewarm = || {
            pool.close_idle();
            pool.prewarm(1);
        };
        prewarm();
        clock.advance(2 * MAX_RECENT_IDLE_TIME);
        assert!(is_reused(Reuse::Recent).await);
        prewarm();
        while pool.prewarmed.lock()[0].opened_at.get().is_none() {
            tokio::task::yield_now().await;
        }
        clock.advance(2 * MAX_RECENT_IDLE_TIME);
        assert!(!is_reused(Reuse::Never).await && !is_reused(Reuse::Recent).await);
        assert!(is_reused(Reuse::Any).await);
    });
}
