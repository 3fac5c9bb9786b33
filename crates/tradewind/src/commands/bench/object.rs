//! `tradewind bench object`: requests of chosen kinds, sizes and parallelisms to a store.

use std::time::Duration;

use clap::Args;

use super::asked::{AskedFlags, stages};
use super::ground::{self, GroundFlags, Wanted, Work};
use super::loads::Usual;
use crate::commands::Ended;

pub(super) const USUAL: Usual = Usual {
    sizes: &["4KiB", "64KiB", "1MiB", "8MiB"],
    parallel: &[1, 4, 16, 64],
    time: Duration::from_secs(3),
    warm_up: Duration::from_millis(500),
};

/// Measure a store with requests for objects
///
/// Objects are written below a prefix of its own and removed at the end; whatever is read is compared, byte for byte, with
/// what was written. By default objects of 4 KiB, 64 KiB, 1 MiB and 8 MiB are written and read with 1, 4, 16 and 64 requests
/// at a time, 3 seconds each behind a warm-up of half a second, which takes some two minutes. Each worker asks again as soon
/// as it has been answered; with --rate requests start at moments of their own, whether or not earlier ones have been
/// answered, and latencies count from there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench object s3://bucket\n  \
    tradewind bench object s3://bucket --mix get --size 4KiB --parallel 1,8,64 --time 10s --repeat 5\n  \
    tradewind bench object s3://bucket --mix get=70,put=20,delete=10 --size 60%4KiB+40%1MiB-4MiB\n  \
    tradewind bench object s3://bucket --mix get --size 64KiB --rate 500 --parallel 128 -o open.jsonl\n  \
    tradewind bench object s3://bucket --mix get --size 64KiB --time 10s --samples requests.csv\n  \
    tradewind bench object s3://bucket --mix get --size 8MiB --drop-caches --warm-up 0s --repeat 3\n  \
    tradewind bench object s3://bucket --workload hou --scale 0.01\n\n\
    Sizes: 4KiB, a range 4KiB-1MiB, lognormal:60KiB:1.5 (median and sigma), shares 60%4KiB+40%1MiB.\n\
    Exit status: 0 measured, 1 a request failed or was answered wrongly, 2 usage.")]
pub(in crate::commands) struct Arguments {
    #[command(flatten)]
    asked: AskedFlags,
    #[command(flatten)]
    ground: GroundFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    let Arguments { asked, ground } = arguments;
    let (surveys, stages) = stages(&asked.loads()?, &USUAL, (ground.run.seed, ground.run.repeat))?;
    let check = move |most| surveys.iter().try_for_each(|survey| survey.check(most));
    ground::run(&ground, Wanted { work: Work::Stages(stages), check: Box::new(check) })
}
