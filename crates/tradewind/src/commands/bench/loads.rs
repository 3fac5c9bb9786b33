//! What is asked of a store, in flags; and in workloads, whose tables have the same words as the flags.

use std::time::Duration;

use clap::Args;
use tradewind_bench::arrivals::Spacing;
use tradewind_bench::asked::{MOST_PARALLEL, RATES};
use tradewind_bench::load::{Pace, Until};
use tradewind_bench::survey::Survey;
use tradewind_bench::{Asked, Mix, Sizes};

use super::workloads::{self, Table, Taker, first};
use crate::commands::Misused;
use crate::settings::Span;

/// What is asked. Where a workload says it too, the flag counts.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LoadFlags {
    /// put, get, head, list or delete, or shares as get=70,put=30; several times for one after the other [default: put, get]
    #[arg(long, value_name = "MIX")]
    mix: Vec<Mix>,
    /// Sizes of objects, each measured apart
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    size: Vec<Sizes>,
    /// Requests at a time, each measured apart
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parallel)]
    parallel: Vec<usize>,
    /// How long each is measured
    #[arg(long, value_name = "TIME", value_parser = Span::parse)]
    time: Option<Span>,
    /// So many requests, however long they take; with --time at the most so long
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End when the throughput is known to within this part of it, as 5%; with --time, or after a minute, at the latest
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    stable: Option<f64>,
    /// Requests a second that start whether or not earlier ones have been answered
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// How the starts of --rate lie apart: poisson or fixed [default: poisson]
    #[arg(long, value_name = "HOW", value_parser = spacing)]
    spacing: Option<Spacing>,
    /// How long each runs before it counts
    #[arg(long, value_name = "TIME", value_parser = Span::parse)]
    warm_up: Option<Span>,
    /// Objects that are there to be read [default: up to 10000, or 512 MB of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    objects: Option<u64>,
}

/// What is asked where nothing is said, as flags have it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usual {
    pub sizes: &'static [&'static str],
    pub parallel: &'static [usize],
    pub time: Duration,
    pub warm_up: Duration,
}

/// What is never known well enough ends nevertheless.
const UNTIL_STABLE: Duration = Duration::from_secs(60);
/// Where counts say when it ends, time does not.
const LONG: Duration = Duration::from_secs(24 * 3600);

impl LoadFlags {
    /// Whether each measurement ends with its time, and not before.
    pub const fn ends_with_time(&self) -> bool {
        self.count.is_none() && self.stable.is_none()
    }

    /// Whether each measurement ends when it is known well enough.
    pub const fn ends_when_known(&self) -> bool {
        self.stable.is_some()
    }

    /// What is said here, and what else is said there.
    fn or(self, there: Self) -> Self {
        Self {
            mix: first(self.mix, &there.mix),
            size: first(self.size, &there.size),
            parallel: first(self.parallel, &there.parallel),
            time: self.time.or(there.time),
            count: self.count.or(there.count),
            stable: self.stable.or(there.stable),
            rate: self.rate.or(there.rate),
            spacing: self.spacing.or(there.spacing),
            warm_up: self.warm_up.or(there.warm_up),
            objects: self.objects.or(there.objects),
        }
    }

    /// Counts that are so many times as large, one at the least.
    fn scaled(mut self, factor: f64) -> Self {
        let scaled = |count: u64| ((count as f64 * factor).round() as u64).max(1);
        self.count = self.count.map(scaled);
        // Each request at a time has an object of its own.
        let most = self.parallel.iter().copied().max().unwrap_or(1) as u64;
        self.objects = self.objects.map(|objects| scaled(objects).max(most));
        self
    }

    /// What is to be measured.
    pub fn survey(&self, usual: &Usual, seed: u64) -> Result<Survey, Misused> {
        if self.spacing.is_some() && self.rate.is_none() {
            return Err(Misused(
                "--spacing says how the starts of --rate lie apart: say the rate too".to_owned(),
            ));
        }
        if self.count.is_some() && self.warm_up.is_some_and(|time| !time.0.is_zero()) {
            return Err(Misused("with --count every request counts: there is no --warm-up".to_owned()));
        }
        let usual_sizes =
            || usual.sizes.iter().map(|size| size.parse()).collect::<Result<Vec<Sizes>, String>>();
        let usual_mixes =
            || ["put", "get"].iter().map(|mix| mix.parse()).collect::<Result<Vec<Mix>, String>>();
        let mixes = if self.mix.is_empty() { usual_mixes().map_err(Misused)? } else { self.mix.clone() };
        let sizes = if self.size.is_empty() { usual_sizes().map_err(Misused)? } else { self.size.clone() };
        let parallel = if self.parallel.is_empty() { usual.parallel } else { &self.parallel };
        let spacing = self.spacing.unwrap_or(Spacing::Poisson);
        let pace = self.rate.map_or(Pace::Closed, |per_second| Pace::Open { per_second, spacing });
        let usual_time = match (self.count, self.stable) {
            (Some(_), _) => LONG,
            (None, Some(_)) => UNTIL_STABLE,
            (None, None) => usual.time,
        };
        let time = self.time.map_or(usual_time, |time| time.0);
        let usual_warm_up = if self.count.is_some() { Duration::ZERO } else { usual.warm_up };
        Ok(Survey {
            asked: Asked::each(&mixes, &sizes, parallel, pace),
            until: Until { requests: self.count, time, stable: self.stable },
            warm_up: self.warm_up.map_or(usual_warm_up, |time| time.0),
            objects: self.objects,
            seed,
        })
    }
}

/// The loads of the workload of a name, or of a file, as flags change them, with counts that are so many times as large.
pub(super) fn of_workload(name: &str, flags: &LoadFlags, scale: f64) -> anyhow::Result<Vec<LoadFlags>> {
    let loads = workloads::find(name, Taker::Object, Table::flags::<LoadFlags>)?;
    Ok(loads.into_iter().map(|load| flags.clone().or(load.scaled(scale))).collect())
}

pub(super) fn parallel(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_PARALLEL).contains(number));
    number.ok_or_else(|| "write a number from 1 to 4096".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let part = number.filter(|percent| (0.1..=50.0).contains(percent)).map(|percent: f64| percent / 100.0);
    part.ok_or_else(|| "write a percentage from 0.1 to 50, as 5%".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate: &f64| RATES.contains(rate));
    number.ok_or_else(|| "write requests a second, from 0.01 to 1000000".to_owned())
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

    const USUAL: Usual = Usual {
        sizes: &["4KiB"],
        parallel: &[1, 4],
        time: Duration::from_secs(3),
        warm_up: Duration::from_millis(500),
    };

    #[derive(Debug, clap::Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        flags: LoadFlags,
    }

    fn flags(line: &[&str]) -> LoadFlags {
        clap::Parser::try_parse_from(line).map(|line: Line| line.flags).unwrap()
    }

    #[test]
    fn ready_workloads_can_be_measured() {
        for name in workloads::names(Taker::Object) {
            let loads = of_workload(name, &LoadFlags::default(), 0.001).unwrap();
            assert!(!loads.is_empty(), "{name}");
            for load in loads {
                load.survey(&USUAL, 1).unwrap().check(5 << 40).unwrap();
            }
        }
    }

    #[test]
    fn flags_count_before_tables_and_tables_before_what_is_usual() {
        let text = "about = \"x\"\n[[load]]\nmix = [\"put\", \"get=1,put=1\"]\nsize = \"1KiB\"\ncount = 5000\nwarm_up = \"0s\"";
        let loads = workloads::read(text, Table::flags::<LoadFlags>).unwrap();
        let load = flags(&["--size=2KiB,3KiB"]).or(loads[0].clone().scaled(0.1));
        let survey = load.survey(&USUAL, 1).unwrap();
        let names: Vec<String> = survey.asked.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 8);
        assert_eq!((&*names[1], &*names[6]), ("put 2KiB x 4", "get=1,put=1 3KiB x 1"));
        assert_eq!((survey.until.requests, survey.until.time), (Some(500), LONG));
    }

    #[test]
    fn what_is_mistaken_is_told() {
        let said = |text: &str| {
            let text = format!("about = \"x\"\n{text}");
            format!("{:#}", workloads::read(&text, Table::flags::<LoadFlags>).unwrap_err())
        };
        assert_eq!(said("[[load]]\nsise = \"1KiB\""), "line 3: there is no \"sise\"; did you mean \"size\"?");
        let huge = said("[[load]]\n[[load]]\ncount = 5\nsize = \"huge\"");
        assert!(huge.starts_with("line 5: invalid value 'huge' for '--size"), "{huge}");
        let refused = |line: &[&str]| flags(line).survey(&USUAL, 1).unwrap_err().0;
        assert!(refused(&["--count=5", "--warm-up=1s"]).contains("every request counts"));
        assert!(refused(&["--spacing=fixed"]).contains("say the rate too"));
    }
}
