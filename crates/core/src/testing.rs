//! Test support for stores: the memory store, the conformance suite, the fault injector and a simulated
//! clock. Built with the feature `testing` only; nothing in production refers to it.

use futures::FutureExt;

use crate::budget::Budget;
use crate::clock::SystemClock;
use crate::context::{Context, Deadline};
use crate::error::{Reason, Result};

mod clock;
pub mod conformance;
mod content;
mod faulty;
mod memory;
mod passthrough;

pub use clock::SimulatedClock;
pub use content::{drain, pattern, write_all};
pub use faulty::{Fault, FaultPlan, FaultSchedule, Faulty, Operation};
pub use memory::MemoryStore;
pub use passthrough::{Passthrough, stack_layers};

/// The window of the contexts made here, unless the budget is smaller.
const WINDOW_BYTES: usize = 1 << 20;

/// A context without a deadline and with a budget of its own.
#[must_use]
pub fn context() -> Context {
    unbounded_context(&Budget::new(WINDOW_BYTES))
}

/// A context without a deadline, with a window of 1 MiB (or the whole of a smaller budget).
///
/// Panics if the budget has no free memory for it.
#[must_use]
pub fn unbounded_context(budget: &Budget) -> Context {
    context_until(budget, Deadline::none(SystemClock::shared()))
}

/// A context with this deadline, with a window of 1 MiB (or the whole of a smaller budget).
///
/// Panics if the budget has no free memory for it. The deadline itself may have passed already.
#[must_use]
pub fn context_until(budget: &Budget, deadline: Deadline) -> Context {
    let admitted = budget.admit(WINDOW_BYTES, &Deadline::none(deadline.clock().clone())).now_or_never();
    let window = admitted.expect("the budget has room").expect("admission without a deadline");
    Context::new(deadline, window)
}

/// The reason for which a call failed. Panics if it succeeded.
#[track_caller]
pub fn reason<T>(result: Result<T>) -> Reason {
    match result {
        Ok(_) => panic!("the call succeeded, but had to fail"),
        Err(e) => e.reason(),
    }
}
