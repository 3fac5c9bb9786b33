//! The loads to run in sequence: one given by flags, or those of a workload, which flags override.

use clap::Args;
use tradewind_bench::load_spec::LoadSpec;
use tradewind_bench::runner::Stage;
use tradewind_bench::test_plan::TestPlan;

use super::loads::{LoadDefaults, LoadFlags, loads_from_workload};
use crate::commands::UsageError;

/// Flags that select the loads.
#[derive(Debug, Args)]
pub(super) struct LoadSelection {
    /// Workload to run: a file, or a built-in one listed by `tradewind bench workloads`
    #[arg(long, value_name = "NAME|FILE")]
    workload: Option<String>,
    /// Multiply the counts of the workload
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor, requires = "workload")]
    scale: f64,
    #[command(flatten)]
    pub load: LoadFlags,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| (1e-6..=1e6).contains(factor));
    factor.ok_or_else(|| "write a number from 0.000001 to 1000000".to_owned())
}

impl LoadSelection {
    /// All loads.
    pub fn loads(&self) -> anyhow::Result<Vec<LoadFlags>> {
        Ok(match &self.workload {
            Some(name) => loads_from_workload(name, &self.load, self.scale)?,
            None => vec![self.load.clone()],
        })
    }
}

/// A load specification that two test plans with different conditions contain.
fn requested_twice(test_plans: &[TestPlan]) -> Option<&LoadSpec> {
    test_plans.iter().enumerate().find_map(|(n, test_plan)| {
        let others = test_plans[..n].iter().filter(|other| {
            (other.stop_condition, other.warm_up, other.objects)
                != (test_plan.stop_condition, test_plan.warm_up, test_plan.objects)
        });
        let mut requested = others.flat_map(|other| &other.loads);
        requested.find(|load| test_plan.loads.contains(load))
    })
}

/// The plans and stages of the loads, with all rounds.
pub(super) fn stages(
    loads: &[LoadFlags],
    defaults: &LoadDefaults,
    (seed, repeat): (u64, u32),
) -> anyhow::Result<(Vec<TestPlan>, Vec<Stage>)> {
    let test_plans =
        loads.iter().map(|load| load.test_plan(defaults, seed)).collect::<Result<Vec<_>, _>>()?;
    if let Some(twice) = requested_twice(&test_plans) {
        return Err(UsageError(format!(
            "{twice} is in two loads that differ in time or count: a result file could not distinguish them; measure \
             them separately, into different files"
        ))
        .into());
    }
    let steps = |repeat| test_plans.iter().flat_map(move |test_plan| test_plan.steps(repeat));
    let stages = (1..=repeat).flat_map(steps).map(|step| vec![step]).collect();
    Ok((test_plans, stages))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tradewind_bench::load::StopCondition;

    use super::*;

    #[test]
    fn indistinguishable_loads_are_found() {
        let test_plan = |load: &str, seconds| TestPlan {
            loads: vec![load.parse().unwrap()],
            stop_condition: StopCondition {
                max_requests: None,
                duration: Duration::from_secs(seconds),
                max_ci_fraction: None,
            },
            warm_up: Duration::ZERO,
            objects: None,
            seed: 1,
        };
        let twice = |test_plans: &[TestPlan]| requested_twice(test_plans).map(ToString::to_string);
        assert_eq!(
            twice(&[test_plan("get 4KiB x 2", 1), test_plan("get 4KiB x 2", 1)]),
            None,
            "it is the same"
        );
        assert_eq!(twice(&[test_plan("get 4KiB x 2", 1), test_plan("get 4KiB x 3", 2)]), None);
        assert_eq!(
            twice(&[
                test_plan("get 4KiB x 2", 1),
                test_plan("put 4KiB x 2", 2),
                test_plan("get 4KiB x 2", 2)
            ]),
            Some("get 4KiB x 2".to_owned())
        );
    }
}
