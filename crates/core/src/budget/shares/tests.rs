use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use proptest::prelude::*;

use super::super::{Account, Budget, GRAIN_BYTES, Tenant, Window};
use crate::clock::SystemClock;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::testing::SimulatedClock;

/// The number of windows of 512 KiB in 128 MiB.
const WINDOWS: usize = 256;
const WINDOW: usize = 128 * GRAIN_BYTES;

type PendingAdmission = Pin<Box<dyn Future<Output = Result<Arc<Window>>>>>;

fn budget() -> Budget {
    Budget::new(WINDOWS * WINDOW)
}

fn account() -> Account {
    Account::new(&Tenant::default())
}

/// An admission that has been polled once.
fn begin_admission(budget: &Budget, account: &Account, bytes: usize) -> PendingAdmission {
    let (budget, account) = (budget.clone(), account.clone());
    let mut admission: PendingAdmission =
        Box::pin(
            async move { budget.admit_for(&account, bytes, &Deadline::none(SystemClock::shared())).await },
        );
    // A second poll of a completed future would panic: it is replaced by a ready one.
    match admission.as_mut().now_or_never() {
        Some(window) => Box::pin(std::future::ready(window)),
        None => admission,
    }
}

fn take(waiting: &mut PendingAdmission) -> Option<Arc<Window>> {
    waiting.as_mut().now_or_never().map(Result::unwrap)
}

/// Requests `windows` windows for an account: returns those granted, and those still waiting.
fn take_many(
    budget: &Budget,
    account: &Account,
    windows: usize,
) -> (Vec<Arc<Window>>, Vec<PendingAdmission>) {
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..windows {
        let mut admission = begin_admission(budget, account, WINDOW);
        match take(&mut admission) {
            Some(window) => held.push(window),
            None => waiting.push(admission),
        }
    }
    (held, waiting)
}

#[test]
fn an_account_alone_holds_seven_eighths() {
    let budget = budget();
    let (held, waiting) = take_many(&budget, &account(), 400);
    assert_eq!((held.len(), waiting.len()), (WINDOWS * 7 / 8, 400 - WINDOWS * 7 / 8));
    drop(waiting);
    assert_eq!(budget.waiting(), 0);
}

#[test]
fn another_tenant_gets_memory_immediately() {
    let budget = budget();
    let (_held, _waiting) = take_many(&budget, &account(), 10_000);
    let other = account();
    let (held, _) = take_many(&budget, &other, 40);
    assert!(held.len() >= 24, "{} windows", held.len());
}

#[test]
fn another_account_of_a_tenant_gets_memory_immediately() {
    let (budget, tenant) = (budget(), Tenant::default());
    let (_held, _waiting) = take_many(&budget, &Account::new(&tenant), 10_000);
    let (held, _) = take_many(&budget, &Account::new(&tenant), 40);
    assert!(held.len() >= 12, "{} windows", held.len());
    let (held, _) = take_many(&budget, &account(), 40);
    assert!(held.len() >= 12, "another tenant has as much: {}", held.len());
}

#[test]
fn accounts_of_one_tenant_take_one_share() {
    let (budget, tenant) = (budget(), Tenant::default());
    let all: Vec<_> = (0..100).map(|_| take_many(&budget, &Account::new(&tenant), 50)).collect();
    let held: usize = all.iter().map(|(held, _)| held.len()).sum();
    assert!(held <= WINDOWS * 15 / 16, "{held} windows");
    assert!(take(&mut begin_admission(&budget, &account(), WINDOW)).is_some());
}

#[test]
fn a_newcomer_goes_before_tenants_that_hold_some() {
    let budget = budget();
    let mut all: Vec<_> = (0..100).map(|_| take_many(&budget, &account(), 20)).collect();
    all.retain(|(held, _)| !held.is_empty());
    assert!(all.len() > 2 && budget.free() < WINDOW, "{} tenants hold nearly all", all.len());
    let mut admission = begin_admission(&budget, &account(), WINDOW);
    assert!(take(&mut admission).is_none());
    drop(all[1].0.pop());
    assert!(take(&mut admission).is_some());
}

#[test]
fn tenant_with_the_smallest_holding_is_next() {
    let budget = Budget::new(8 * WINDOW);
    let own = budget.try_admit_optional(8 * WINDOW).unwrap();
    let (much, little) = (account(), account());
    let mut first = begin_admission(&budget, &much, WINDOW);
    let mut second = begin_admission(&budget, &much, WINDOW);
    let mut third = begin_admission(&budget, &little, WINDOW);
    own.shrink_to(7 * WINDOW);
    let _one = take(&mut first).expect("the oldest, while both hold nothing");
    own.shrink_to(6 * WINDOW);
    assert!(take(&mut second).is_none());
    let _other = take(&mut third).expect("it holds less");
    own.shrink_to(1);
    assert!(take(&mut second).is_some());
}

#[test]
fn requests_of_one_account_stay_in_order() {
    let budget = Budget::new(8 * WINDOW);
    let one = account();
    let own = budget.try_admit_optional(8 * WINDOW - GRAIN_BYTES).unwrap();
    let mut large = begin_admission(&budget, &one, WINDOW);
    let mut small = begin_admission(&budget, &one, GRAIN_BYTES);
    assert!(take(&mut small).is_none(), "it would fit, but then the earlier large one would starve");
    drop(own);
    assert!(take(&mut large).is_some() && take(&mut small).is_some());
}

#[test]
fn a_large_request_is_not_overtaken_by_larger_holders() {
    let budget = Budget::new(8 * WINDOW);
    let busy = account();
    let own = budget.try_admit_optional(7 * WINDOW).unwrap();
    let _some = begin_admission(&budget, &busy, GRAIN_BYTES);
    let mut large = begin_admission(&budget, &account(), WINDOW);
    let mut more = begin_admission(&budget, &busy, GRAIN_BYTES);
    assert!(take(&mut large).is_none() && take(&mut more).is_none());
    own.shrink_to(6 * WINDOW);
    assert!(take(&mut large).is_some() && take(&mut more).is_some());
}

#[test]
fn a_dropped_request_does_not_block_others() {
    let budget = Budget::new(8 * WINDOW);
    let _own = budget.try_admit_optional(7 * WINDOW).unwrap();
    let large = begin_admission(&budget, &account(), 2 * WINDOW);
    let mut small = begin_admission(&budget, &account(), GRAIN_BYTES);
    assert!(take(&mut small).is_none());
    drop(large);
    assert!(take(&mut small).is_some());
    assert_eq!((budget.waiting(), budget.total_waits()), (0, 2));
}

#[test]
fn memory_granted_to_a_dropped_request_is_freed() {
    let budget = Budget::new(WINDOW);
    let own = budget.try_admit_optional(WINDOW).unwrap();
    let admission = begin_admission(&budget, &account(), WINDOW);
    drop(own);
    assert_eq!(budget.free(), 0, "it is granted");
    drop(admission);
    assert_eq!(budget.free(), WINDOW);
}

#[test]
fn extra_reservations_count_for_the_account() {
    let budget = budget();
    let one = account();
    let window = budget.try_admit_for(&one, WINDOW).unwrap();
    let extra = std::iter::from_fn(|| window.try_reserve(WINDOW + 1)).take(400).collect::<Vec<_>>();
    assert!(one.held() <= WINDOWS * WINDOW * 7 / 8, "{} bytes", one.held());
    assert!(take(&mut begin_admission(&budget, &account(), WINDOW)).is_some());
    drop((window, extra));
    assert_eq!((one.held(), one.tenant_held(), budget.free()), (0, 0, budget.capacity()));
}

#[test]
fn optional_memory_is_denied_while_a_request_waits() {
    let budget = Budget::new(8 * WINDOW);
    let (more, less) = (account(), account());
    let _held = budget.try_admit_for(&more, 2 * GRAIN_BYTES).unwrap();
    let window = budget.try_admit_for(&less, GRAIN_BYTES).unwrap();
    let own = budget.try_admit_optional(7 * WINDOW).unwrap();
    let mut admission = begin_admission(&budget, &more, WINDOW - 2 * GRAIN_BYTES);
    assert!(take(&mut admission).is_none(), "a grain is missing");
    let half = WINDOW / 2;
    assert!(window.try_reserve(half).is_none() && window.try_reserve_leaving(half, GRAIN_BYTES).is_none());
    assert!(budget.try_admit_optional(GRAIN_BYTES).is_none() && budget.try_reserve(GRAIN_BYTES).is_none());
    assert!(window.try_reserve(GRAIN_BYTES).is_some(), "it is in the window");
    assert!(budget.try_admit_for(&less, half).is_some(), "an admission of an account that holds less");
    own.shrink_to(6 * WINDOW);
    assert!(take(&mut admission).is_some());
    assert!(window.try_reserve(half).is_some(), "no request waits");
}

#[test]
fn demands_list_accounts_that_waited_long_enough() {
    let clock = SimulatedClock::new();
    let budget = Budget::new(8 * WINDOW);
    let (_own, one) = (budget.try_admit_optional(8 * WINDOW), account());
    let deadline = Deadline::none(clock.clone());
    let mut admission = Box::pin(budget.admit_for(&one, WINDOW, &deadline));
    assert!(admission.as_mut().now_or_never().is_none());
    let now = crate::Clock::now(&*clock);
    let half = Duration::from_millis(500);
    assert!(budget.demands(now, half).is_empty());
    let found = budget.demands(now + half, half);
    assert_eq!((found.len(), found[0].bytes, found[0].waited), (1, WINDOW, half));
    drop(admission);
    assert!(budget.demands(now + half, half).is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Ask { account: usize, grains: usize },
    Keep { at: usize, grains: usize },
    Drop { at: usize },
    GiveUp { at: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6_usize, 1..400_usize).prop_map(|(account, grains)| Step::Ask { account, grains }),
        1 => (any::<usize>(), 0..200_usize).prop_map(|(at, grains)| Step::Keep { at, grains }),
        3 => any::<usize>().prop_map(|at| Step::Drop { at }),
        1 => any::<usize>().prop_map(|at| Step::GiveUp { at }),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn all_memory_returns_and_all_requests_are_served(steps in steps(), capacity in 100..3000_usize) {
        let budget = Budget::new(capacity * GRAIN_BYTES);
        let tenants = [Tenant::default(), Tenant::default(), Tenant::default()];
        let accounts: Vec<Account> = (0..6).map(|n| Account::new(&tenants[n / 2])).collect();
        let (mut held, mut waiting) = (Vec::<Arc<Window>>::new(), VecDeque::<PendingAdmission>::new());
        for step in steps {
            match step {
                Step::Ask { account, grains } => {
                    waiting.push_back(begin_admission(&budget, &accounts[account], grains * GRAIN_BYTES));
                }
                Step::Keep { at, grains } if !held.is_empty() => held[at % held.len()].shrink_to(grains * GRAIN_BYTES),
                Step::Drop { at } if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                Step::GiveUp { at } if !waiting.is_empty() => drop(waiting.remove(at % waiting.len())),
                _ => {}
            }
            waiting.retain_mut(|admission| take(admission).map(|window| held.push(window)).is_none());
            let sum: usize = held.iter().map(|window| window.size()).sum();
            prop_assert_eq!(sum + budget.free(), budget.capacity());
            prop_assert_eq!(accounts.iter().map(Account::held).sum::<usize>(), sum);
            prop_assert_eq!(budget.waiting(), waiting.len());
            prop_assert!(!held.is_empty() || waiting.is_empty(), "all memory is free and a request waits");
        }
        while !waiting.is_empty() {
            let had = held.len();
            held.clear();
            waiting.retain_mut(|admission| take(admission).map(|window| held.push(window)).is_none());
            prop_assert!(!held.is_empty(), "{had} windows were released and no request was served");
        }
        held.clear();
        prop_assert_eq!(budget.free(), budget.capacity());
        prop_assert!(accounts.iter().all(|account| account.held() == 0 && account.tenant_held() == 0));
    }
}
