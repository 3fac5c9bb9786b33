use std::net::IpAddr;

use tradewind_core::{Account, Budget, Tenant};

use super::super::buffers::BufferLimits;
use super::super::connection_state::Phase;
use super::*;
use crate::config::GatewayConfig;

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: usize = 512 << 10;

fn limits() -> Limits {
    Limits {
        header_time: 2 * SECOND,
        idle_time: 5 * SECOND,
        slow_client_time: 3 * SECOND,
        slow_client_bytes: 100,
        ..Limits::default()
    }
}

fn connection() -> ConnectionState {
    ConnectionState::new(IpAddr::from([127, 0, 0, 1]).into(), BufferLimits::new(&GatewayConfig::default()))
}

/// The first command within a minute, and its second.
fn first_command(
    connection: &ConnectionState,
    each_second: impl FnMut(&ConnectionState),
) -> Option<(u32, Command)> {
    first_command_under_pressure(connection, |_| false, each_second)
}

/// Like [`first_command`], with other clients waiting for the connection's memory at the given seconds.
fn first_command_under_pressure(
    connection: &ConnectionState,
    is_memory_needed: impl Fn(u32) -> bool,
    mut each_second: impl FnMut(&ConnectionState),
) -> Option<(u32, Command)> {
    let mut record = ConnectionRecord::new(Duration::ZERO);
    (0..60).find_map(|second| {
        let command = record.update(connection, second * SECOND, &limits(), is_memory_needed(second));
        each_second(connection);
        command.map(|command| (second, command))
    })
}

#[test]
fn waiting_for_the_store_never_times_out() {
    let connection = connection();
    connection.begin_request(false);
    assert_eq!(first_command(&connection, |_| ()), None);
    connection.set_phase(Phase::Admission);
    assert_eq!(first_command(&connection, |_| ()), None);
}

#[test]
fn each_wait_has_its_own_timeout_and_command() {
    let connection = connection();
    connection.set_phase(Phase::Idle);
    assert_eq!(first_command(&connection, |_| ()), Some((5, Command::Finish)));
    connection.record_read(1);
    assert_eq!(
        first_command(&connection, |w| w.record_read(1000)),
        Some((2, Command::Close)),
        "bytes do not extend the time for a head"
    );
    connection.begin_request(false);
    connection.record_write(None);
    assert_eq!(first_command(&connection, |_| ()), Some((3, Command::Close)));
    connection.record_write(Some(1));
    connection.set_phase(Phase::Body);
    assert_eq!(first_command(&connection, |_| ()), Some((3, Command::FailBody)));
    assert_eq!(
        first_command(&connection, |w| w.record_read(10)),
        Some((3, Command::FailBody)),
        "a trickle is no progress"
    );
    assert_eq!(first_command(&connection, |w| w.record_read(100)), None);
    connection.raise_command(Command::FailBody);
    assert_eq!(first_command(&connection, |_| ()), Some((3, Command::Close)));
}

#[test]
fn a_slow_client_must_transfer_more_while_its_memory_is_wanted() {
    let connection = connection();
    connection.begin_request(true);
    connection.set_phase(Phase::Body);
    let slow = |w: &ConnectionState| w.record_read(1000);
    assert_eq!(first_command_under_pressure(&connection, |_| true, slow), Some((3, Command::FailBody)));
    assert_eq!(first_command_under_pressure(&connection, |_| true, |w| w.record_read(1 << 20)), None);
    assert_eq!(
        first_command_under_pressure(&connection, |second| second >= 20, slow),
        Some((22, Command::FailBody))
    );
    assert_eq!(
        first_command_under_pressure(&connection, |second| second % 2 == 0, slow),
        Some((3, Command::FailBody)),
        "a short gap in the demand does not end the pressure"
    );
    assert_eq!(
        first_command_under_pressure(&connection, |second| second % 4 == 0, slow),
        None,
        "short pressure is not enough"
    );
}

#[test]
fn lingering_ends_even_if_bytes_arrive() {
    let connection = connection();
    connection.begin_request(true);
    connection.record_write(None);
    connection.set_phase(Phase::Lingering);
    assert_eq!(first_command(&connection, |w| w.record_read(1 << 20)), Some((2, Command::Close)));
}

#[test]
fn a_busy_connection_is_never_idle() {
    let connection = connection();
    let answered = first_command(&connection, |w| {
        w.begin_request(false);
        w.end_request();
    });
    assert_eq!(answered, None);
}

#[test]
fn a_milder_command_does_not_replace_a_severe_one() {
    let connection = connection();
    connection.raise_command(Command::Close);
    connection.raise_command(Command::Finish);
    assert_eq!(connection.command(), Command::Close);
}

#[test]
fn stall_time_grows_only_while_waiting_for_the_client() {
    let connection = connection();
    let mut record = ConnectionRecord::new(Duration::ZERO);
    let mut at = |second: u32, change: &dyn Fn(&ConnectionState)| {
        change(&connection);
        record.update(&connection, second * SECOND, &limits(), false);
        record.stalled_for(second * SECOND)
    };
    assert_eq!(at(1, &|w| w.begin_request(false)), Duration::ZERO);
    assert_eq!(at(2, &|_| ()), Duration::ZERO, "the connection waits for the store");
    assert_eq!(at(3, &|w| w.record_write(None)), SECOND, "since the previous pass");
    assert_eq!(at(4, &|w| w.record_write(Some(99))), Duration::ZERO, "it is not blocked");
    assert_eq!(at(5, &|w| w.record_write(None)), SECOND);
    assert_eq!(at(6, &|w| w.record_read(99)), 2 * SECOND, "a trickle is no progress");
    assert_eq!(at(7, &|w| w.record_read(100)), Duration::ZERO);
    assert_eq!(at(8, &|_| ()), SECOND);
}

#[test]
fn bytes_acknowledged_by_a_blocked_client_are_progress() {
    let connection = connection();
    connection.begin_request(false);
    let mut record = ConnectionRecord::new(Duration::ZERO);
    let mut stalled_at = |second: u32, unacked: u64| {
        connection.set_unacked_bytes(unacked);
        connection.record_write(None);
        record.update(&connection, second * SECOND, &limits(), false);
        record.stalled_for(second * SECOND)
    };
    connection.record_write(Some(2000));
    assert_eq!(stalled_at(1, 1000), Duration::ZERO, "1,000 bytes were acknowledged at once");
    assert_eq!(stalled_at(2, 900), Duration::ZERO);
    assert_eq!(stalled_at(3, 801), SECOND, "a trickle is no progress");
    assert_eq!(stalled_at(4, 800), Duration::ZERO);
    // The kernel accepts many bytes at once, and the client has acknowledged none of them.
    connection.record_write(Some(5000));
    assert_eq!(stalled_at(5, 5800), SECOND);
    assert_eq!(stalled_at(6, 5700), Duration::ZERO);
}

#[test]
fn bytes_in_the_send_buffer_are_no_progress() {
    let connection = connection();
    connection.begin_request(false);
    connection.record_write(Some(5000));
    let mut record = ConnectionRecord::new(Duration::ZERO);
    record.update(&connection, SECOND, &limits(), false);
    connection.set_unacked_bytes(4000);
    connection.record_write(None);
    record.update(&connection, 2 * SECOND, &limits(), false);
    assert_eq!(record.stalled_for(2 * SECOND), SECOND);
    connection.set_unacked_bytes(3900);
    record.update(&connection, 3 * SECOND, &limits(), false);
    assert_eq!(record.stalled_for(3 * SECOND), Duration::ZERO, "counted from the bytes acknowledged before");
}

fn account() -> Account {
    Account::new(&Tenant::default())
}

/// `count` connections of an account that each hold a window and have been stalled for the time `stalled`.
fn holders(budget: &Budget, account: &Account, count: usize, stalled: Duration) -> Vec<MemoryHolder> {
    let holder = |_| {
        let window = budget.try_admit_for(account, WINDOW).unwrap();
        MemoryHolder { connection: Arc::new(connection()), window, stalled_for: stalled }
    };
    (0..count).map(holder).collect()
}

fn demand(account: &Account, windows: usize) -> Demand {
    Demand { bytes: windows * WINDOW, tenant_held: account.tenant_held(), waited: SECOND }
}

/// The windows held by the tenant of each chosen holder.
fn chosen(holders: Vec<MemoryHolder>, demands: &[Demand]) -> Vec<usize> {
    // The holders keep their windows until they receive their commands.
    let _windows: Vec<_> = holders.iter().map(|holder| holder.window.clone()).collect();
    let chosen = select_stalled(holders, demands, SECOND);
    chosen.iter().map(|holder| holder.window.account().tenant_held() / WINDOW).collect()
}

#[test]
fn only_as_many_stalled_holders_are_chosen_as_needed() {
    let (budget, much, little) = (Budget::new(256 * WINDOW), account(), account());
    let all = || {
        let mut all = holders(&budget, &little, 5, 9 * SECOND);
        all.extend(holders(&budget, &much, 20, 2 * SECOND));
        all
    };
    assert_eq!(chosen(all(), &[demand(&account(), 3)]), [20; 3], "those of the largest tenant");
    assert_eq!(chosen(all(), &[demand(&account(), 22)]), [[20; 20].as_slice(), &[5; 2]].concat());
    assert_eq!(chosen(all(), &[]), [0; 0]);
}

#[test]
fn no_tenant_loses_memory_to_one_that_holds_more() {
    let (budget, much, little) = (Budget::new(256 * WINDOW), account(), account());
    let mut all = holders(&budget, &little, 5, 9 * SECOND);
    all.extend(holders(&budget, &much, 20, Duration::ZERO));
    let demands = [demand(&much, 100)];
    assert_eq!(chosen(all, &demands), [0; 0]);
    let mut all = holders(&budget, &little, 5, 9 * SECOND);
    all.extend(holders(&budget, &much, 20, SECOND));
    let demands = [demand(&much, 100), demand(&account(), 20)];
    assert_eq!(chosen(all, &demands), [20; 20], "its own requests are aborted for its own");
}

#[test]
fn memory_of_closing_connections_counts_as_freed() {
    let (budget, much) = (Budget::new(256 * WINDOW), account());
    let all = holders(&budget, &much, 20, 2 * SECOND);
    for holder in &all[..4] {
        holder.connection.raise_command(Command::Close);
    }
    assert_eq!(chosen(all, &[demand(&account(), 5)]).len(), 1);
}

#[test]
fn connections_with_progress_keep_their_memory() {
    let (budget, much) = (Budget::new(256 * WINDOW), account());
    let mut all = holders(&budget, &much, 20, SECOND / 2);
    all.extend(holders(&budget, &much, 1, SECOND));
    assert_eq!(chosen(all, &[demand(&account(), 5)]).len(), 1);
}
