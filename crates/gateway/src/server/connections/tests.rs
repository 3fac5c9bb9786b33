use std::net::IpAddr;

use super::super::buffers::BufferLimits;
use super::*;
use crate::config::GatewayConfig;

struct OpenConnections {
    connections: Connections,
    buffers: Arc<BufferLimits>,
    next: u64,
    now: Duration,
}

fn peer(last: u8) -> Peer {
    IpAddr::from([192, 0, 2, last]).into()
}

impl OpenConnections {
    fn new() -> Self {
        let buffers = BufferLimits::new(&GatewayConfig::default());
        Self { connections: Connections::default(), buffers, next: 0, now: Duration::from_secs(1) }
    }

    fn open(&mut self, last: u8, phase: Phase) -> Arc<ConnectionState> {
        let connection = Arc::new(ConnectionState::new(peer(last), self.buffers.clone()));
        connection.set_phase(phase);
        connection.set_waits_since(self.now);
        self.now += Duration::from_secs(1);
        self.next += 1;
        self.connections.insert(self.next, connection.clone());
        connection
    }

    fn make_room(&mut self, last: u8) -> bool {
        self.now += Duration::from_secs(1);
        self.connections.evict_for_peer(peer(last), self.now)
    }
}

fn is_evicted(connection: &ConnectionState) -> bool {
    connection.idle_action() == IdleAction::Close || connection.command() == Command::TurnAway
}

#[test]
fn the_oldest_idle_connection_is_evicted() {
    let mut open = OpenConnections::new();
    let busy = open.open(1, Phase::Working);
    let old = open.open(1, Phase::Idle);
    let young = open.open(1, Phase::Idle);
    assert!(open.make_room(1));
    assert_eq!([&busy, &old, &young].map(|connection| is_evicted(connection)), [false, true, false]);
    assert!(open.make_room(1) && is_evicted(&young));
    assert!(!open.make_room(1), "a working connection is not evicted");
    assert_eq!(open.connections.evicting_count(), 2);
    open.connections.remove(2);
    open.connections.remove(3);
    assert_eq!(open.connections.evicting_count(), 0);
}

#[test]
fn an_unused_connection_is_evicted_before_a_used_one() {
    let mut open = OpenConnections::new();
    let used = open.open(1, Phase::Idle);
    used.begin_request(false);
    used.end_request();
    let unused = open.open(1, Phase::Idle);
    assert!(open.make_room(1) && is_evicted(&unused) && !is_evicted(&used));
    assert!(open.make_room(1) && is_evicted(&used));
}

#[test]
fn the_largest_peer_loses_its_connections_first() {
    let mut open = OpenConnections::new();
    let good = open.open(1, Phase::Idle);
    let many: Vec<_> = (0..100).map(|_| open.open(2, Phase::Head)).collect();
    for _ in 0..90 {
        assert!(open.make_room(3));
    }
    let evicted = many.iter().filter(|connection| is_evicted(connection)).count();
    assert_eq!((evicted, is_evicted(&good)), (90, false));
    assert!(is_evicted(&many[0]) && !is_evicted(&many[99]), "the oldest go first");
}

#[test]
fn a_peer_with_many_connections_evicts_only_its_own() {
    let mut open = OpenConnections::new();
    let good = open.open(1, Phase::Idle);
    let _many: Vec<_> = (0..100).map(|_| open.open(2, Phase::Working)).collect();
    assert!(!open.make_room(2) && !is_evicted(&good));
    let idle = open.open(2, Phase::Idle);
    assert!(open.make_room(2) && is_evicted(&idle) && !is_evicted(&good));
}

#[test]
fn evictions_follow_the_order_of_cost() {
    let mut open = OpenConnections::new();
    let phases = [Phase::Working, Phase::Admission, Phase::Body, Phase::Head, Phase::Idle, Phase::Working];
    let all = phases.map(|phase| open.open(2, phase));
    for expected in [4, 3, 2, 1] {
        assert!(open.make_room(1));
        assert!(is_evicted(&all[expected]), "{expected}");
        assert_eq!(all.iter().filter(|connection| is_evicted(connection)).count(), 5 - expected);
    }
    assert!(!open.make_room(1));
}

#[test]
fn a_request_withdraws_an_eviction() {
    let mut open = OpenConnections::new();
    let idle = open.open(1, Phase::Idle);
    assert!(open.make_room(1) && open.connections.evicting_count() == 1);
    idle.begin_request(false);
    open.connections.withdraw_eviction(1);
    assert_eq!((open.connections.evicting_count(), idle.idle_action()), (0, IdleAction::None));
    idle.end_request();
    assert!(open.make_room(1) && is_evicted(&idle));
}

#[test]
fn a_closed_connection_is_no_candidate() {
    let mut open = OpenConnections::new();
    let _first = open.open(1, Phase::Idle);
    let second = open.open(1, Phase::Idle);
    let _third = open.open(1, Phase::Idle);
    assert!(open.make_room(1));
    open.connections.remove(2);
    assert!(open.make_room(1) && !is_evicted(&second));
    assert!(!open.make_room(1));
}

#[test]
fn search_interval_grows_with_the_number_of_connections() {
    let mut open = OpenConnections::new();
    for _ in 0..999 {
        open.open(1, Phase::Working);
    }
    let now = open.now;
    assert!(!open.connections.evict_for_peer(peer(1), now));
    let _idle = open.open(1, Phase::Idle);
    assert!(!open.connections.evict_for_peer(peer(1), now + MIN_SEARCH_INTERVAL_PER_CONNECTION * 500));
    assert!(open.connections.evict_for_peer(peer(1), now + MIN_SEARCH_INTERVAL_PER_CONNECTION * 1000));
}

/// A connection that ends while it is being evicted is counted once, and no longer after it is closed.
#[test]
fn connections_that_end_while_being_evicted_do_not_stay_counted() {
    let buffers = BufferLimits::new(&GatewayConfig::default());
    let connections = Connections::default();
    let now = std::sync::atomic::AtomicU64::new(1);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (connections, buffers) = (&connections, &buffers);
            scope.spawn(move || {
                for n in 0..20_000 {
                    let connection = Arc::new(ConnectionState::new(peer(1), buffers.clone()));
                    connection.set_phase(Phase::Idle);
                    let id = n * 2 + thread;
                    connections.insert(id, connection);
                    connections.remove(id);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..40_000 {
                let now = now.fetch_add(1, Ordering::Relaxed);
                connections.evict_for_peer(peer(1), Duration::from_secs(now));
            }
        });
    });
    assert_eq!(connections.evicting_count(), 0);
}

#[tokio::test]
async fn eviction_ended_completes_when_an_eviction_is_withdrawn() {
    let mut open = OpenConnections::new();
    for _ in 0..MAX_CONCURRENT_EVICTIONS {
        open.open(1, Phase::Idle);
        assert!(open.make_room(1));
    }
    assert!(open.connections.is_eviction_limit_reached());
    let mut ended = std::pin::pin!(open.connections.eviction_ended());
    assert!(futures::poll!(&mut ended).is_pending());
    open.connections.withdraw_eviction(1);
    assert!(futures::poll!(&mut ended).is_ready() && !open.connections.is_eviction_limit_reached());
}

#[test]
fn a_request_that_the_store_works_on_is_not_turned_away() {
    let mut open = OpenConnections::new();
    let connection = open.open(1, Phase::Admission);
    open.open(1, Phase::Working);
    assert!(open.make_room(2));
    assert_eq!(connection.command(), Command::TurnAway);
    assert!(!connection.is_store_working());
    connection.set_phase(Phase::Working);
    assert!(connection.is_store_working());
    connection.downgrade_to_finish();
    assert_eq!(connection.command(), Command::Finish);
    connection.raise_command(Command::Close);
    connection.downgrade_to_finish();
    assert_eq!(connection.command(), Command::Close);
}
