//! The one-line text form of a load, as users write and read it: `get 4KiB x 16`, or
//! `get=70,put=30 4KiB-1MiB x 64 at 500/s evenly`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::arrivals::Spacing;
use crate::load::ArrivalMode;
use crate::operation::Mix;
use crate::size_distribution::SizeDistribution;

/// Maximum number of concurrent requests.
pub const MAX_CONCURRENCY: usize = 4096;
/// Valid arrival rates of an open loop, in req/s.
pub const VALID_RATES: RangeInclusive<f64> = 0.01..=1e6;

/// A request mix, object sizes, concurrency and arrival mode.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadSpec {
    /// Kinds of requests and their shares.
    pub mix: Mix,
    /// Object sizes.
    pub sizes: SizeDistribution,
    /// Concurrent requests; the maximum for an open loop.
    pub concurrency: usize,
    /// Arrival mode.
    pub arrival_mode: ArrivalMode,
}

impl LoadSpec {
    /// Returns every combination of mix, sizes and concurrency, grouped by size.
    #[must_use]
    pub fn combinations(
        mixes: &[Mix],
        sizes: &[SizeDistribution],
        concurrency: &[usize],
        arrival_mode: ArrivalMode,
    ) -> Vec<Self> {
        let mut all = Vec::new();
        for sizes in sizes {
            for mix in mixes {
                all.extend(concurrency.iter().map(|concurrency| Self {
                    mix: mix.clone(),
                    sizes: sizes.clone(),
                    concurrency: *concurrency,
                    arrival_mode,
                }));
            }
        }
        all
    }
}

impl fmt::Display for LoadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} x {}", self.mix, self.sizes, self.concurrency)?;
        match self.arrival_mode {
            ArrivalMode::Closed => Ok(()),
            ArrivalMode::Open { requests_per_second, spacing: Spacing::Poisson } => {
                write!(f, " at {requests_per_second}/s")
            }
            ArrivalMode::Open { requests_per_second, spacing: Spacing::Fixed } => {
                write!(f, " at {requests_per_second}/s evenly")
            }
        }
    }
}

impl FromStr for LoadSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (mix, sizes, concurrency, arrival_mode) = match *words {
            [mix, sizes, "x", concurrency] => (mix, sizes, concurrency, ArrivalMode::Closed),
            [mix, sizes, "x", concurrency, "at", rate] => {
                (mix, sizes, concurrency, open_loop(rate, Spacing::Poisson)?)
            }
            [mix, sizes, "x", concurrency, "at", rate, "evenly"] => {
                (mix, sizes, concurrency, open_loop(rate, Spacing::Fixed)?)
            }
            _ => {
                return Err(format!(
                    "{text:?} is not a load: write it like \"get 4KiB x 16\" or \"get 4KiB x 16 at 500/s\""
                ));
            }
        };
        let concurrency =
            concurrency.parse().ok().filter(|concurrency| (1..=MAX_CONCURRENCY).contains(concurrency));
        let concurrency = concurrency
            .ok_or_else(|| format!("{text:?}: the concurrency after x must be 1 to {MAX_CONCURRENCY}"))?;
        Ok(Self { mix: mix.parse()?, sizes: sizes.parse()?, concurrency, arrival_mode })
    }
}

fn open_loop(rate: &str, spacing: Spacing) -> Result<ArrivalMode, String> {
    let requests_per_second = rate.strip_suffix("/s").and_then(|rate| rate.parse().ok());
    let requests_per_second = requests_per_second.filter(|rate: &f64| VALID_RATES.contains(rate));
    let requests_per_second = requests_per_second
        .ok_or_else(|| format!("{rate:?} is not a rate between 0.01/s and 1000000/s: write it like 500/s"))?;
    Ok(ArrivalMode::Open { requests_per_second, spacing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_spec_round_trips_and_rejects_invalid_text() {
        for text in [
            "get 4KiB x 16",
            "get=70,put=30 4KiB-1MiB x 64 at 500/s",
            "list lognormal:60KiB:1.5 x 1 at 0.5/s evenly",
            "delete 60%4KiB+40%1MiB x 4096",
        ] {
            assert_eq!(text.parse::<LoadSpec>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "get 4KiB",
            "get 4KiB 16",
            "get 4KiB x 0",
            "get 4KiB x 1 at 5",
            "get 4KiB x 1 at -5/s",
            "get 4KiB x 9999",
            "get 4KiB x 1 at 1e9/s",
            "get x 4KiB x 1",
        ] {
            assert!(bad.parse::<LoadSpec>().is_err(), "{bad}");
        }
    }
}
