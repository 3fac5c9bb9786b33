//! Probes of stores that fail, stop responding, or limit their request rate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tradewind_model::tune::ConcurrencyBySize;

use super::*;

const BUDGET: Duration = Duration::from_secs(4);

fn small_config() -> SamplingConfig {
    let points = OperatingPoint::grid(&[1 << 10, 16 << 10], &[1, 4, 16, 64]);
    SamplingConfig {
        points,
        budget: SamplingBudget { bytes: 64e6, seconds: BUDGET.as_secs_f64(), probes: 8 },
        cpus: 2,
    }
}

async fn sampled(env: &BenchEnv, config: &SamplingConfig) -> SamplingResult {
    let (target, stop) = (target(env), StopSignal::default());
    sample(&target, Direction::Write, (config, Prior::default()), &stop, |_| ()).await.unwrap()
}

/// Samples a store that injects `fault` from the middle of a probe on.
async fn sample_with_late_fault(fault: Fault) -> (SamplingResult, Duration) {
    let open = env().await;
    let plan = FaultPlan::none().with_fault(Call::Stage, FaultSchedule::From(40), fault);
    let env = BenchEnv { store: Faulty::new(open.store.clone(), plan), ..open };
    let started = Instant::now();
    (sampled(&env, &small_config()).await, started.elapsed())
}

#[tokio::test]
async fn store_failing_during_a_probe_ends_sampling_in_budget() {
    let (result, elapsed) = sample_with_late_fault(Fault::FailBefore(Reason::Io)).await;
    assert!(elapsed < BUDGET + Duration::from_secs(2), "{elapsed:?}");
    assert!(result.probes.iter().any(|probed| probed.sample.is_some()), "{:?}", result.probes);
    assert!(result.probes.iter().any(|probed| probed.failure.is_some()), "{:?}", result.probes);
    // A probe without any response yields no sample rather than a wrong one.
    assert!(result.surface.samples().len() < result.probes.len(), "{:?}", result.probes);
}

#[tokio::test]
async fn hanging_store_ends_sampling_in_budget() {
    let (result, elapsed) = sample_with_late_fault(Fault::Hang).await;
    assert!(elapsed < BUDGET + Duration::from_secs(2), "{elapsed:?}");
    let silent = result.probes.iter().filter(|probed| probed.sample.is_none());
    assert!(silent.count() > 0 && !result.surface.samples().is_empty(), "{:?}", result.probes);
}

#[tokio::test]
async fn rate_limited_store_gets_a_limited_concurrency() {
    const REQUESTS_PER_TICK: u64 = 20;
    const TICK: Duration = Duration::from_millis(100);
    let open = env().await;
    let limited = |done: u64| {
        // Accepted requests take as long as over a network link.
        FaultPlan::none()
            .with_fault(
                Call::Stage,
                FaultSchedule::From(done + REQUESTS_PER_TICK + 1),
                Fault::FailBefore(Reason::Overloaded),
            )
            .with_fault(Call::Stage, FaultSchedule::Always, Fault::Delay(Duration::from_millis(10)))
    };
    let store = Faulty::new(open.store.clone(), limited(0));
    let env = BenchEnv { store: store.clone(), ..open };
    let is_over = Arc::new(AtomicBool::new(false));
    let limiter = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            while !is_over.load(Ordering::Relaxed) {
                tokio::time::sleep(TICK).await;
                store.set_plan(limited(store.calls(Call::Stage)));
            }
        }
    });
    let result = sampled(&env, &small_config()).await;
    is_over.store(true, Ordering::Relaxed);
    limiter.await.unwrap();
    let failed: u64 = result.probes.iter().map(|probed| probed.failures).sum();
    assert!(failed > 0, "the limit was not reached: {:?}", result.probes);
    let limit = REQUESTS_PER_TICK as f64 / TICK.as_secs_f64();
    let rate =
        |concurrency| result.surface.predict(OperatingPoint { bytes: 1 << 10, concurrency }).request_rate();
    assert!((0.5..1.3).contains(&(rate(64) / limit)), "{} of {limit}: {:?}", rate(64), result.probes);
    let concurrency = ConcurrencyBySize::from_surfaces(std::slice::from_ref(&result.surface)).unwrap();
    assert!(concurrency.highest() <= 32, "{concurrency:?}: {:?}", result.surface.samples());
}
