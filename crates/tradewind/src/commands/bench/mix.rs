//! `tradewind bench mix`: interference between concurrent loads (Hou 2017, section 4.4).

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tradewind_bench::runner::Stage;
use tradewind_bench::test_plan::TestPlan;
use tradewind_bench::{LoadSpec, Operation};

use super::loads::{LoadDefaults, LoadFlags};
use super::target::{BenchRequest, TargetFlags, Work};
use crate::commands::{CommandOutcome, UsageError};

const DEFAULTS: LoadDefaults = LoadDefaults {
    sizes: &["4KiB", "4MiB"],
    concurrencies: &[1, 16],
    time: Duration::from_secs(1),
    warm_up: Duration::from_millis(300),
};

/// Measure interference between workloads
///
/// Each load is measured alone, and then concurrently with each load including itself: uploads with downloads, small
/// objects with large ones, low with high concurrency. `tradewind report` renders a matrix of the remaining bandwidth
/// and of the factor by which latency grows. With --concurrent-with, only the given loads run concurrently.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench mix s3://bucket\n  \
    tradewind bench mix s3://bucket --concurrency 1,2,4,8,16,32 -o matrix.jsonl\n  \
    tradewind bench mix s3://bucket --size 64KiB --samples requests.csv\n  \
    tradewind bench mix s3://bucket --mix put --size 4MiB --concurrency 1,4,8 --concurrent-with \"put 4KiB x 8\"\n  \
    tradewind bench mix s3://bucket --mix get --size 64KiB --rate 200 --concurrent-with \"put 4MiB x 4 and get 4KiB x 16\"\n\n\
    Exit status: 0 measured, 1 a request failed or data was wrong, 2 usage.")]
pub(in crate::commands) struct Arguments {
    #[command(flatten)]
    load: LoadFlags,
    /// Loads to run concurrently with each load: "put 4MiB x 8", or several: "put 4MiB x 8 and get 4KiB x 2"
    #[arg(long, value_name = "LOAD")]
    concurrent_with: Vec<ConcurrentLoads>,
    #[command(flatten)]
    target: TargetFlags,
}

/// Loads that run concurrently.
#[derive(Debug, Clone)]
pub(super) struct ConcurrentLoads(Vec<LoadSpec>);

impl FromStr for ConcurrentLoads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(text.split(" and ").map(str::parse).collect::<Result<_, _>>()?))
    }
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let Arguments { load, concurrent_with, target } = arguments;
    let (test_plan, stages) = stages(&load, &concurrent_with, (target.run.seed, target.run.repeat))?;
    let check = move |limit| test_plan.check(limit);
    super::target::run(&target, BenchRequest { work: Work::Stages(stages), check: Box::new(check) })
}

/// The stages of all rounds: each load alone, then the concurrent ones; and the plan with all loads.
pub(super) fn stages(
    load: &LoadFlags,
    concurrent_with: &[ConcurrentLoads],
    (seed, repeat): (u64, u32),
) -> Result<(TestPlan, Vec<Stage>), UsageError> {
    if !load.ends_with_time() {
        let reason = "concurrent loads end together, by --time: --count and --until-ci are not supported";
        return Err(UsageError(reason.to_owned()));
    }
    let mut test_plan = load.test_plan(&DEFAULTS, seed)?;
    let pairs = pairs(&test_plan.loads, concurrent_with);
    let only_removes =
        |load: &&LoadSpec| load.mix.operations().all(|operation| operation == Operation::Delete);
    if let Some(load) = pairs.iter().flatten().find(only_removes) {
        let reason = format!(
            "{load} would run out of objects while the concurrent loads continue: mix it with as many puts"
        );
        return Err(UsageError(reason));
    }
    for others in &pairs {
        for load in others {
            if !test_plan.loads.contains(load) {
                test_plan.loads.push(load.clone());
            }
        }
    }
    let stages = (1..=repeat).flat_map(|repeat| round(&test_plan, &pairs, repeat)).collect();
    Ok((test_plan, stages))
}

/// The groups of concurrent loads: all pairs, or each load with the given ones.
fn pairs(loads: &[LoadSpec], concurrent_with: &[ConcurrentLoads]) -> Vec<Vec<LoadSpec>> {
    let each = |(n, first): (usize, &LoadSpec)| -> Vec<Vec<LoadSpec>> {
        if concurrent_with.is_empty() {
            return loads[n..].iter().map(|second| vec![first.clone(), second.clone()]).collect();
        }
        concurrent_with.iter().map(|others| [std::slice::from_ref(first), &*others.0].concat()).collect()
    };
    loads.iter().enumerate().flat_map(each).collect()
}

/// One round: each load alone, then each group.
fn round(test_plan: &TestPlan, pairs: &[Vec<LoadSpec>], repeat: u32) -> Vec<Stage> {
    let alone = test_plan.steps(repeat).into_iter().map(|step| vec![step]);
    let concurrent =
        pairs.iter().map(|loads| loads.iter().map(|load| test_plan.step(load, repeat)).collect());
    alone.chain(concurrent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(texts: &[&str]) -> Vec<LoadSpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn groups_are_all_pairs_or_the_given_loads() {
        let three = loads(&["put 4KiB x 1", "get 4KiB x 1", "get 4MiB x 8"]);
        assert_eq!(pairs(&three, &[]).len(), 6);
        let others: ConcurrentLoads = "put 4MiB x 8 and get=1,list=1 4KiB x 2 at 5/s".parse().unwrap();
        let groups = pairs(&three, &[others]);
        assert_eq!((groups.len(), groups[0].len()), (3, 3));
        assert_eq!(groups[2][2].to_string(), "get=1,list=1 4KiB x 2 at 5/s");
        assert!("put 4MiB x 8 and".parse::<ConcurrentLoads>().is_err());
    }
}
