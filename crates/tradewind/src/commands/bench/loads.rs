//! Load specifications in flags, and in workloads, whose tables have the flags as keys.

use std::time::Duration;

use clap::Args;
use tradewind_bench::arrivals::Spacing;
use tradewind_bench::load::{ArrivalMode, StopCondition};
use tradewind_bench::load_spec::{MAX_CONCURRENCY, VALID_RATES};
use tradewind_bench::test_plan::TestPlan;
use tradewind_bench::{LoadSpec, Mix, SizeDistribution};

use super::workloads::{self, LoadTable, WorkloadCommand, first_non_empty};
use crate::commands::UsageError;
use crate::settings::TimeSpan;

/// A load. Flags override the keys of a workload.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LoadFlags {
    /// put, get, head, list or delete, or a mix such as get=70,put=30; repeatable, to run in sequence [default: put,
    /// get]
    #[arg(long, value_name = "MIX")]
    mix: Vec<Mix>,
    /// Object sizes, each measured separately
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    size: Vec<SizeDistribution>,
    /// Concurrent requests, each value measured separately
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_concurrency)]
    concurrency: Vec<usize>,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", value_parser = TimeSpan::parse)]
    time: Option<TimeSpan>,
    /// Stop after N requests (or after --time, if given)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop when the 95% confidence interval of the throughput is within this percentage, e.g. 5% (at the latest after
    /// --time, or one minute)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    until_ci: Option<f64>,
    /// Open loop: start N requests per second, independent of earlier responses
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Arrival process of --rate: poisson or fixed [default: poisson]
    #[arg(long, value_name = "HOW", value_parser = spacing)]
    spacing: Option<Spacing>,
    /// Duration of the warm-up before each measurement
    #[arg(long, value_name = "TIME", value_parser = TimeSpan::parse)]
    warm_up: Option<TimeSpan>,
    /// Number of objects to read from [default: up to 10000, or 512 MB of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    objects: Option<u64>,
}

/// Defaults of the flags.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadDefaults {
    pub sizes: &'static [&'static str],
    pub concurrencies: &'static [usize],
    pub time: Duration,
    pub warm_up: Duration,
}

/// The default time limit of measurements that end at a confidence interval.
const DEFAULT_CI_TIME: Duration = Duration::from_secs(60);
/// The default time limit of measurements with a count.
const DEFAULT_COUNT_TIME: Duration = Duration::from_secs(24 * 3600);

impl LoadFlags {
    /// Returns true if each measurement ends only by its time.
    pub const fn ends_with_time(&self) -> bool {
        self.count.is_none() && self.until_ci.is_none()
    }

    /// Returns true if each measurement ends at a confidence interval.
    pub const fn ends_at_confidence(&self) -> bool {
        self.until_ci.is_some()
    }

    /// Fills unset flags from `fallback`.
    fn or(self, fallback: Self) -> Self {
        Self {
            mix: first_non_empty(self.mix, &fallback.mix),
            size: first_non_empty(self.size, &fallback.size),
            concurrency: first_non_empty(self.concurrency, &fallback.concurrency),
            time: self.time.or(fallback.time),
            count: self.count.or(fallback.count),
            until_ci: self.until_ci.or(fallback.until_ci),
            rate: self.rate.or(fallback.rate),
            spacing: self.spacing.or(fallback.spacing),
            warm_up: self.warm_up.or(fallback.warm_up),
            objects: self.objects.or(fallback.objects),
        }
    }

    /// Multiplies the counts by `factor`, to at least one.
    fn scaled(mut self, factor: f64) -> Self {
        let scaled = |count: u64| ((count as f64 * factor).round() as u64).max(1);
        self.count = self.count.map(scaled);
        // Each concurrent request needs a separate object.
        let max_concurrency = self.concurrency.iter().copied().max().unwrap_or(1) as u64;
        self.objects = self.objects.map(|objects| scaled(objects).max(max_concurrency));
        self
    }

    /// The plan of this load.
    pub fn test_plan(&self, defaults: &LoadDefaults, seed: u64) -> Result<TestPlan, UsageError> {
        if self.spacing.is_some() && self.rate.is_none() {
            return Err(UsageError("--spacing needs --rate".to_owned()));
        }
        if self.count.is_some() && self.warm_up.is_some_and(|time| !time.0.is_zero()) {
            return Err(UsageError(
                "--warm-up cannot be combined with --count, which counts every request".to_owned(),
            ));
        }
        let default_sizes = || {
            defaults.sizes.iter().map(|size| size.parse()).collect::<Result<Vec<SizeDistribution>, String>>()
        };
        let default_mixes =
            || ["put", "get"].iter().map(|mix| mix.parse()).collect::<Result<Vec<Mix>, String>>();
        let mixes = if self.mix.is_empty() { default_mixes().map_err(UsageError)? } else { self.mix.clone() };
        let sizes =
            if self.size.is_empty() { default_sizes().map_err(UsageError)? } else { self.size.clone() };
        let concurrencies =
            if self.concurrency.is_empty() { defaults.concurrencies } else { &self.concurrency };
        let spacing = self.spacing.unwrap_or(Spacing::Poisson);
        let arrival_mode = self.rate.map_or(ArrivalMode::Closed, |requests_per_second| ArrivalMode::Open {
            requests_per_second,
            spacing,
        });
        let default_time = match (self.count, self.until_ci) {
            (Some(_), _) => DEFAULT_COUNT_TIME,
            (None, Some(_)) => DEFAULT_CI_TIME,
            (None, None) => defaults.time,
        };
        let duration = self.time.map_or(default_time, |duration| duration.0);
        let default_warm_up = if self.count.is_some() { Duration::ZERO } else { defaults.warm_up };
        Ok(TestPlan {
            loads: LoadSpec::combinations(&mixes, &sizes, concurrencies, arrival_mode),
            stop_condition: StopCondition {
                max_requests: self.count,
                duration,
                max_ci_fraction: self.until_ci,
            },
            warm_up: self.warm_up.map_or(default_warm_up, |time| time.0),
            objects: self.objects,
            seed,
        })
    }
}

/// The loads of a workload, given by name or file, with flags as overrides and counts multiplied by `scale`.
pub(super) fn loads_from_workload(
    name: &str,
    flags: &LoadFlags,
    scale: f64,
) -> anyhow::Result<Vec<LoadFlags>> {
    let loads = workloads::find(name, WorkloadCommand::Object, LoadTable::flags::<LoadFlags>)?;
    Ok(loads.into_iter().map(|load| flags.clone().or(load.scaled(scale))).collect())
}

pub(super) fn parse_concurrency(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_CONCURRENCY).contains(number));
    number.ok_or_else(|| "write a number from 1 to 4096".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let fraction =
        number.filter(|percent| (0.1..=50.0).contains(percent)).map(|percent: f64| percent / 100.0);
    fraction.ok_or_else(|| "write a percentage from 0.1 to 50, such as 5%".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate: &f64| VALID_RATES.contains(rate));
    number.ok_or_else(|| "write requests per second, from 0.01 to 1000000".to_owned())
}

fn spacing(text: &str) -> Result<Spacing, String> {
    match text {
        "poisson" => Ok(Spacing::Poisson),
        "fixed" => Ok(Spacing::Fixed),
        _ => Err("write poisson or fixed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: LoadDefaults = LoadDefaults {
        sizes: &["4KiB"],
        concurrencies: &[1, 4],
        time: Duration::from_secs(3),
        warm_up: Duration::from_millis(500),
    };

    #[derive(Debug, clap::Parser)]
    #[command(no_binary_name = true)]
    struct LoadLine {
        #[command(flatten)]
        flags: LoadFlags,
    }

    fn flags(line: &[&str]) -> LoadFlags {
        clap::Parser::try_parse_from(line).map(|line: LoadLine| line.flags).unwrap()
    }

    #[test]
    fn built_in_workloads_are_valid() {
        for name in workloads::names(WorkloadCommand::Object) {
            let loads = loads_from_workload(name, &LoadFlags::default(), 0.001).unwrap();
            assert!(!loads.is_empty(), "{name}");
            for load in loads {
                load.test_plan(&DEFAULTS, 1).unwrap().check(5 << 40).unwrap();
            }
        }
    }

    #[test]
    fn flags_override_tables_and_tables_override_defaults() {
        let text = "about = \"x\"\n[[load]]\nmix = [\"put\", \"get=1,put=1\"]\nsize = \"1KiB\"\ncount = 5000\nwarm_up = \"0s\"";
        let loads = workloads::read(text, LoadTable::flags::<LoadFlags>).unwrap();
        let load = flags(&["--size=2KiB,3KiB"]).or(loads[0].clone().scaled(0.1));
        let plan = load.test_plan(&DEFAULTS, 1).unwrap();
        let names: Vec<String> = plan.loads.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 8);
        assert_eq!((&*names[1], &*names[6]), ("put 2KiB x 4", "get=1,put=1 3KiB x 1"));
        assert_eq!(
            (plan.stop_condition.max_requests, plan.stop_condition.duration),
            (Some(500), DEFAULT_COUNT_TIME)
        );
    }

    #[test]
    fn mistakes_are_reported() {
        let error = |text: &str| {
            let text = format!("about = \"x\"\n{text}");
            format!("{:#}", workloads::read(&text, LoadTable::flags::<LoadFlags>).unwrap_err())
        };
        assert_eq!(
            error("[[load]]\nsise = \"1KiB\""),
            "line 3: there is no \"sise\"; did you mean \"size\"?"
        );
        let huge = error("[[load]]\n[[load]]\ncount = 5\nsize = \"huge\"");
        assert!(huge.starts_with("line 5: invalid value 'huge' for '--size"), "{huge}");
        let plan_error = |line: &[&str]| flags(line).test_plan(&DEFAULTS, 1).unwrap_err().0;
        assert!(plan_error(&["--count=5", "--warm-up=1s"]).contains("counts every request"));
        assert!(plan_error(&["--spacing=fixed"]).contains("--spacing needs --rate"));
    }
}
