//! Retries of single requests of a collection that the store below is too busy for: one full queue must not end work of
//! hours.

use std::future::Future;
use std::time::Duration;

use tradewind_core::Context;
use tradewind_core::error::{Reason, Result};

/// Attempts of one request, over about 2 minutes.
const MAX_ATTEMPTS: u32 = 12;
/// The delay after the first attempt. It doubles with each one.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(20);

/// Repeats a request while it fails with [`Overloaded`](Reason::Overloaded). Fails as the last attempt does, and as the
/// context.
pub(super) async fn retry_busy<T, F>(context: &Context, mut request: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (clock, mut delay) = (context.deadline.clock(), MIN_DELAY);
    for _ in 1..MAX_ATTEMPTS {
        match request().await {
            Err(error) if error.reason() == Reason::Overloaded && !error.is_final() => {}
            result => return result,
        }
        context.guard(clock.sleep_until(clock.now() + delay)).await?;
        delay = (delay * 2).min(MAX_DELAY);
    }
    request().await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;
    use tradewind_core::Budget;
    use tradewind_core::context::Deadline;
    use tradewind_core::error::Error;
    use tradewind_core::testing::{SimulatedClock, context_until};

    use super::*;

    /// The result of a request with the given number of failures, and its attempts.
    async fn attempts(failures: u32, reason: Reason) -> (Result<()>, u32) {
        let (clock, count) = (SimulatedClock::new(), Cell::new(0));
        let context = context_until(&Budget::new(1 << 20), Deadline::none(clock.clone()));
        let request = || {
            count.set(count.get() + 1);
            let result = if count.get() > failures { Ok(()) } else { Err(Error::new(reason, "fails")) };
            std::future::ready(result)
        };
        let result = {
            let mut retried = std::pin::pin!(retry_busy(&context, request));
            loop {
                match retried.as_mut().now_or_never() {
                    Some(result) => break result,
                    None => clock.advance(MAX_DELAY),
                }
            }
        };
        (result, count.get())
    }

    #[tokio::test]
    async fn busy_requests_are_repeated_a_bounded_number_of_times() {
        let (result, count) = attempts(3, Reason::Overloaded).await;
        assert!(result.is_ok() && count == 4);
        let (result, count) = attempts(u32::MAX, Reason::Overloaded).await;
        assert_eq!((result.unwrap_err().reason(), count), (Reason::Overloaded, MAX_ATTEMPTS));
        let (result, count) = attempts(1, Reason::Io).await;
        assert_eq!((result.unwrap_err().reason(), count), (Reason::Io, 1));
    }
}
