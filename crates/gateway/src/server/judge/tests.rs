use std::net::IpAddr;

use tradewind_core::{Account, Budget, Tenant};

use super::super::buffers::Buffers;
use super::super::watch::Phase;
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

fn watch() -> Watch {
    Watch::new(IpAddr::from([127, 0, 0, 1]).into(), Buffers::new(&GatewayConfig::default()))
}

/// The first command within a minute, and when.
fn verdict(watch: &Watch, each_second: impl FnMut(&Watch)) -> Option<(u32, Command)> {
    verdict_pressed(watch, |_| false, each_second)
}

/// Like [`verdict`], with other clients waiting for the connection's memory at the given seconds.
fn verdict_pressed(
    watch: &Watch,
    is_wanted: impl Fn(u32) -> bool,
    mut each_second: impl FnMut(&Watch),
) -> Option<(u32, Command)> {
    let mut notes = Notes::new(Duration::ZERO);
    (0..60).find_map(|second| {
        let command = notes.judge(watch, second * SECOND, &limits(), is_wanted(second));
        each_second(watch);
        command.map(|command| (second, command))
    })
}

#[test]
fn waiting_for_the_store_is_no_fault_of_the_client() {
    let watch = watch();
    watch.begin_request(false);
    assert_eq!(verdict(&watch, |_| ()), None);
    watch.set_phase(Phase::Admission);
    assert_eq!(verdict(&watch, |_| ()), None);
}

#[test]
fn idle_headers_bodies_and_readers() {
    let watch = watch();
    watch.set_phase(Phase::Idle);
    assert_eq!(verdict(&watch, |_| ()), Some((5, Command::Finish)));
    watch.note_read(1);
    assert_eq!(verdict(&watch, |w| w.note_read(1000)), Some((2, Command::Close)), "bytes do not help");
    watch.begin_request(false);
    watch.note_write(None);
    assert_eq!(verdict(&watch, |_| ()), Some((3, Command::Close)));
    watch.note_write(Some(1));
    watch.set_phase(Phase::Body);
    assert_eq!(verdict(&watch, |_| ()), Some((3, Command::FailBody)));
    assert_eq!(verdict(&watch, |w| w.note_read(10)), Some((3, Command::FailBody)), "a drip is no progress");
    assert_eq!(verdict(&watch, |w| w.note_read(100)), None);
    watch.tell(Command::FailBody);
    assert_eq!(verdict(&watch, |_| ()), Some((3, Command::Close)));
}

#[test]
fn a_slow_client_moves_more_while_its_memory_is_wanted() {
    let watch = watch();
    watch.begin_request(true);
    watch.set_phase(Phase::Body);
    let slow = |w: &Watch| w.note_read(1000);
    assert_eq!(verdict_pressed(&watch, |_| true, slow), Some((3, Command::FailBody)));
    assert_eq!(verdict_pressed(&watch, |_| true, |w| w.note_read(1 << 20)), None);
    assert_eq!(verdict_pressed(&watch, |second| second >= 20, slow), Some((22, Command::FailBody)));
    assert_eq!(
        verdict_pressed(&watch, |second| second % 2 == 0, slow),
        Some((3, Command::FailBody)),
        "a short pause does not end it"
    );
    assert_eq!(verdict_pressed(&watch, |second| second % 4 == 0, slow), None, "a moment is not enough");
}

#[test]
fn lingering_ends_whatever_comes() {
    let watch = watch();
    watch.begin_request(true);
    watch.note_write(None);
    watch.set_phase(Phase::Lingering);
    assert_eq!(verdict(&watch, |w| w.note_read(1 << 20)), Some((2, Command::Close)));
}

#[test]
fn a_busy_connection_is_never_idle() {
    let watch = watch();
    let answered = verdict(&watch, |w| {
        w.begin_request(false);
        w.end_request();
    });
    assert_eq!(answered, None);
}

#[test]
fn graver_commands_stay() {
    let watch = watch();
    watch.tell(Command::Close);
    watch.tell(Command::Finish);
    assert_eq!(watch.command(), Command::Close);
}

#[test]
fn a_stall_is_counted_while_the_client_is_waited_for() {
    let watch = watch();
    let mut notes = Notes::new(Duration::ZERO);
    let mut at = |second: u32, change: &dyn Fn(&Watch)| {
        change(&watch);
        notes.judge(&watch, second * SECOND, &limits(), false);
        notes.stalled(second * SECOND)
    };
    assert_eq!(at(1, &|w| w.begin_request(false)), Duration::ZERO);
    assert_eq!(at(2, &|_| ()), Duration::ZERO, "the store is waited for");
    assert_eq!(at(3, &|w| w.note_write(None)), SECOND, "since it was last seen");
    assert_eq!(at(4, &|w| w.note_write(Some(99))), Duration::ZERO, "it is not blocked");
    assert_eq!(at(5, &|w| w.note_write(None)), SECOND);
    assert_eq!(at(6, &|w| w.note_read(99)), 2 * SECOND, "a drip is no progress");
    assert_eq!(at(7, &|w| w.note_read(100)), Duration::ZERO);
    assert_eq!(at(8, &|_| ()), SECOND);
}

#[test]
fn what_a_blocked_client_takes_of_the_kernel_is_progress() {
    let watch = watch();
    watch.begin_request(false);
    let mut notes = Notes::new(Duration::ZERO);
    let mut stalled_at = |second: u32, untaken: u64| {
        watch.note_untaken(untaken);
        watch.note_write(None);
        notes.judge(&watch, second * SECOND, &limits(), false);
        notes.stalled(second * SECOND)
    };
    watch.note_write(Some(2000));
    assert_eq!(stalled_at(1, 1000), Duration::ZERO, "a thousand were taken at once");
    assert_eq!(stalled_at(2, 900), Duration::ZERO);
    assert_eq!(stalled_at(3, 801), SECOND, "a drip is no progress");
    assert_eq!(stalled_at(4, 800), Duration::ZERO);
    // Much goes to the kernel at once, and the client has taken none of it.
    watch.note_write(Some(5000));
    assert_eq!(stalled_at(5, 5800), SECOND);
    assert_eq!(stalled_at(6, 5700), Duration::ZERO);
}

#[test]
fn bytes_that_only_the_kernel_took_are_no_measure() {
    let watch = watch();
    watch.begin_request(false);
    watch.note_write(Some(5000));
    let mut notes = Notes::new(Duration::ZERO);
    notes.judge(&watch, SECOND, &limits(), false);
    watch.note_untaken(4000);
    watch.note_write(None);
    notes.judge(&watch, 2 * SECOND, &limits(), false);
    assert_eq!(notes.stalled(2 * SECOND), SECOND);
    watch.note_untaken(3900);
    notes.judge(&watch, 3 * SECOND, &limits(), false);
    assert_eq!(notes.stalled(3 * SECOND), Duration::ZERO, "from what it had taken on");
}

fn account() -> Account {
    Account::new(&Tenant::default())
}

/// Connections of an account that each hold a window and have been stalled for so long.
fn holders(budget: &Budget, account: &Account, count: usize, stalled: Duration) -> Vec<Holder> {
    let holder = |_| {
        let window = budget.try_admit_for(account, WINDOW).unwrap();
        Holder { watch: Arc::new(watch()), window, stalled }
    };
    (0..count).map(holder).collect()
}

fn demand(account: &Account, windows: usize) -> Demand {
    Demand { bytes: windows * WINDOW, tenant_held: account.tenant_held(), waited: SECOND }
}

/// The tenant_held of those that are chosen.
fn chosen(holders: Vec<Holder>, demands: &[Demand]) -> Vec<usize> {
    // They hold it until they are told.
    let _windows: Vec<_> = holders.iter().map(|holder| holder.window.clone()).collect();
    let chosen = choose(holders, demands, SECOND);
    chosen.iter().map(|holder| holder.window.account().tenant_held() / WINDOW).collect()
}

#[test]
fn as_many_stalled_lose_their_memory_as_is_needed() {
    let (budget, much, little) = (Budget::new(256 * WINDOW), account(), account());
    let all = || {
        let mut all = holders(&budget, &little, 5, 9 * SECOND);
        all.extend(holders(&budget, &much, 20, 2 * SECOND));
        all
    };
    assert_eq!(chosen(all(), &[demand(&account(), 3)]), [20; 3], "those of the largest holder");
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
    assert_eq!(chosen(all, &demands), [20; 20], "its own are given up for its own");
}

#[test]
fn connections_on_their_way_out_count_as_gone() {
    let (budget, much) = (Budget::new(256 * WINDOW), account());
    let all = holders(&budget, &much, 20, 2 * SECOND);
    for holder in &all[..4] {
        holder.watch.tell(Command::Close);
    }
    assert_eq!(chosen(all, &[demand(&account(), 5)]).len(), 1);
}

#[test]
fn moving_connections_keep_their_memory() {
    let (budget, much) = (Budget::new(256 * WINDOW), account());
    let mut all = holders(&budget, &much, 20, SECOND / 2);
    all.extend(holders(&budget, &much, 1, SECOND));
    assert_eq!(chosen(all, &[demand(&account(), 5)]).len(), 1);
}
