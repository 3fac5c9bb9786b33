//! What is asked of a store, in one line that people write and read: `get 4KiB x 16`, or
//! `get=70,put=30 4KiB-1MiB x 64 at 500/s evenly`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::arrivals::Spacing;
use crate::load::Pace;
use crate::operation::Mix;
use crate::sizes::Sizes;

/// Requests at a time, at the most.
pub const MOST_PARALLEL: usize = 4096;
/// Requests a second that an open loop can start.
pub const RATES: RangeInclusive<f64> = 0.01..=1e6;

/// Requests of some kinds for objects of some sizes, so many at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// What kinds of requests.
    pub mix: Mix,
    /// How large the objects are.
    pub sizes: Sizes,
    /// Requests at a time; of an open loop the most.
    pub parallel: usize,
    /// When each starts.
    pub pace: Pace,
}

impl Asked {
    /// Each kind with each size and each parallelism: those of one size together.
    #[must_use]
    pub fn each(mixes: &[Mix], sizes: &[Sizes], parallel: &[usize], pace: Pace) -> Vec<Self> {
        let mut all = Vec::new();
        for sizes in sizes {
            for mix in mixes {
                all.extend(parallel.iter().map(|parallel| Self {
                    mix: mix.clone(),
                    sizes: sizes.clone(),
                    parallel: *parallel,
                    pace,
                }));
            }
        }
        all
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} x {}", self.mix, self.sizes, self.parallel)?;
        match self.pace {
            Pace::Closed => Ok(()),
            Pace::Open { per_second, spacing: Spacing::Poisson } => write!(f, " at {per_second}/s"),
            Pace::Open { per_second, spacing: Spacing::Fixed } => write!(f, " at {per_second}/s evenly"),
        }
    }
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (mix, sizes, parallel, pace) = match *words {
            [mix, sizes, "x", parallel] => (mix, sizes, parallel, Pace::Closed),
            [mix, sizes, "x", parallel, "at", rate] => (mix, sizes, parallel, open(rate, Spacing::Poisson)?),
            [mix, sizes, "x", parallel, "at", rate, "evenly"] => {
                (mix, sizes, parallel, open(rate, Spacing::Fixed)?)
            }
            _ => {
                return Err(format!(
                    "{text:?} is not written like \"get 4KiB x 16\", or with \"at 500/s\" behind it"
                ));
            }
        };
        let parallel = parallel.parse().ok().filter(|parallel| (1..=MOST_PARALLEL).contains(parallel));
        let parallel = parallel
            .ok_or_else(|| format!("{text:?}: behind x stands a number from 1 to {MOST_PARALLEL}"))?;
        Ok(Self { mix: mix.parse()?, sizes: sizes.parse()?, parallel, pace })
    }
}

fn open(rate: &str, spacing: Spacing) -> Result<Pace, String> {
    let per_second = rate.strip_suffix("/s").and_then(|rate| rate.parse().ok());
    let per_second = per_second.filter(|rate: &f64| RATES.contains(rate));
    let per_second = per_second
        .ok_or_else(|| format!("{rate:?} is no rate from 0.01/s to 1000000/s: write it as 500/s"))?;
    Ok(Pace::Open { per_second, spacing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for text in [
            "get 4KiB x 16",
            "get=70,put=30 4KiB-1MiB x 64 at 500/s",
            "list lognormal:60KiB:1.5 x 1 at 0.5/s evenly",
            "delete 60%4KiB+40%1MiB x 4096",
        ] {
            assert_eq!(text.parse::<Asked>().unwrap().to_string(), text);
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
            assert!(bad.parse::<Asked>().is_err(), "{bad}");
        }
    }
}
