//! `tradewind bench object`: measures a store with requests of given operations, sizes and concurrencies.

use std::time::Duration;

use clap::Args;

use super::load_selection::{LoadSelection, stages};
use super::loads::LoadDefaults;
use super::target::{BenchRequest, TargetFlags, Work};
use crate::commands::CommandOutcome;

pub(super) const LOAD_DEFAULTS: LoadDefaults = LoadDefaults {
    sizes: &["4KiB", "64KiB", "1MiB", "8MiB"],
    concurrencies: &[1, 4, 16, 64],
    time: Duration::from_secs(3),
    warm_up: Duration::from_millis(500),
};

/// Measure the throughput and latency of an object store
///
/// Objects are written below a temporary prefix and removed at the end; all data read is compared with the data
/// written. By default, objects of 4 KiB, 64 KiB, 1 MiB and 8 MiB are written and read with 1, 4, 16 and 64 concurrent
/// requests, 3 seconds each after a warm-up of 0.5 seconds, which takes about two minutes. The load is a closed loop:
/// each worker sends its next request after a response. With --rate it is an open loop: requests start on a schedule,
/// independent of earlier responses, and latencies count from the scheduled start.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench object s3://bucket\n  \
    tradewind bench object s3://bucket --mix get --size 4KiB --concurrency 1,8,64 --time 10s --repeat 5\n  \
    tradewind bench object s3://bucket --mix get=70,put=20,delete=10 --size 60%4KiB+40%1MiB-4MiB\n  \
    tradewind bench object s3://bucket --mix get --size 64KiB --rate 500 --concurrency 128 -o open.jsonl\n  \
    tradewind bench object s3://bucket --mix get --size 64KiB --time 10s --samples requests.csv\n  \
    tradewind bench object s3://bucket --mix get --size 8MiB --drop-caches --warm-up 0s --repeat 3\n  \
    tradewind bench object s3://bucket --workload hou --scale 0.01\n\n\
    Sizes: 4KiB, a range 4KiB-1MiB, lognormal:60KiB:1.5 (median and sigma), shares 60%4KiB+40%1MiB.\n\
    Exit status: 0 measured, 1 a request failed or data was wrong, 2 usage.")]
pub(in crate::commands) struct Arguments {
    #[command(flatten)]
    selection: LoadSelection,
    #[command(flatten)]
    target: TargetFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let Arguments { selection, target } = arguments;
    let (test_plans, stages) =
        stages(&selection.loads()?, &LOAD_DEFAULTS, (target.run.seed, target.run.repeat))?;
    let check = move |limit| test_plans.iter().try_for_each(|test_plan| test_plan.check(limit));
    super::target::run(&target, BenchRequest { work: Work::Stages(stages), check: Box::new(check) })
}
