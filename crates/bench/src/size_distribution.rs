//! Object sizes of a workload. The size of an object follows from its number, in every run, so that a reader knows
//! what to expect.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tradewind_core::quantity::ByteSize;

use crate::random::{mix, unit_fraction};

/// A distribution of sizes, in bytes. As text: `4KiB`; `4KiB-1MiB` for any size between the two;
/// `lognormal:60KiB:1.5` for a median and the standard deviation of the logarithm; `60%4KiB+40%1MiB` for shares, and
/// parentheses for shares of shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SizeDistribution {
    /// One size.
    Fixed(u64),
    /// Uniform between the two, inclusive.
    Uniform(u64, u64),
    /// Log-normal, truncated at 1000 times the median.
    LogNormal {
        /// The median.
        median: u64,
        /// The standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// A mixture: each distribution with its relative share of the objects. The shares need not add up to 1.
    Mixture(Vec<(f64, Self)>),
}

/// Largest size of a log-normal distribution, as a multiple of its median.
const MAX_MEDIAN_MULTIPLE: u64 = 1000;

impl SizeDistribution {
    /// The size of the object with the given number.
    #[must_use]
    pub fn size_of(&self, number: u64) -> u64 {
        let drawn = mix(number ^ 0x0073_697a_6573);
        match self {
            Self::Fixed(size) => *size,
            Self::Uniform(min, max) => {
                let span = u128::from(max - min) + 1;
                min + u64::try_from((u128::from(drawn) * span) >> 64).unwrap_or(0)
            }
            Self::LogNormal { median, sigma } => {
                // Box-Muller transform.
                let radius = (-2.0 * (1.0 - unit_fraction(drawn)).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * unit_fraction(mix(drawn))).cos();
                let size = *median as f64 * (sigma * normal).exp();
                (size.round() as u64).clamp(1, median.saturating_mul(MAX_MEDIAN_MULTIPLE))
            }
            Self::Mixture(parts) => {
                let mut left = unit_fraction(drawn) * parts.iter().map(|(share, _)| share).sum::<f64>();
                let found = parts.iter().find(|(share, _)| {
                    left -= share;
                    left < 0.0
                });
                found.or(parts.last()).map_or(0, |(_, sizes)| sizes.size_of(mix(drawn)))
            }
        }
    }

    /// The mean size. That of a log-normal distribution ignores the truncation.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(size) => *size as f64,
            Self::Uniform(min, max) => (*min as f64 + *max as f64) / 2.0,
            Self::LogNormal { median, sigma } => *median as f64 * (sigma * sigma / 2.0).exp(),
            Self::Mixture(parts) => {
                let total: f64 = parts.iter().map(|(share, _)| share).sum();
                parts.iter().map(|(share, sizes)| share * sizes.mean()).sum::<f64>() / total
            }
        }
    }

    /// The largest possible size.
    #[must_use]
    pub fn max(&self) -> u64 {
        match self {
            Self::Fixed(size) => *size,
            Self::Uniform(_, max) => *max,
            Self::LogNormal { median, .. } => median.saturating_mul(MAX_MEDIAN_MULTIPLE),
            Self::Mixture(parts) => parts.iter().map(|(_, sizes)| sizes.max()).max().unwrap_or(0),
        }
    }
}

impl FromStr for SizeDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.contains('%') {
            let parts = summands(text)?.into_iter().map(|part| {
                let (share, sizes) = part.split_once('%').ok_or_else(|| format!("{part:?} has no share"))?;
                let inside = sizes.strip_prefix('(').map(|inside| inside.strip_suffix(')').unwrap_or(inside));
                let share: f64 = share.trim().parse().map_err(|_| format!("{share:?} is not a number"))?;
                if !(share > 0.0 && share.is_finite()) {
                    return Err(format!("a share must be more than 0, not {share}"));
                }
                Ok((share, inside.unwrap_or(sizes).parse()?))
            });
            return Ok(Self::Mixture(parts.collect::<Result<_, String>>()?));
        }
        let size = |text: &str| ByteSize::parse(text).map(|size| size.0);
        if let Some(normal) = text.strip_prefix("lognormal:") {
            let (median, sigma) = normal.split_once(':').ok_or("write lognormal:MEDIAN:SIGMA")?;
            let sigma: f64 = sigma.parse().map_err(|_| format!("{sigma:?} is not a number"))?;
            let median = size(median)?;
            return match median > 0 && (0.0..=5.0).contains(&sigma) {
                true => Ok(Self::LogNormal { median, sigma }),
                false => Err("the median must be more than 0, and sigma 0 to 5".to_owned()),
            };
        }
        match text.split_once('-') {
            Some((min, max)) => {
                let (min, max) = (size(min)?, size(max)?);
                if min > max {
                    return Err(format!("{text:?}: the first size must not exceed the second"));
                }
                Ok(Self::Uniform(min, max))
            }
            None => Ok(Self::Fixed(size(text)?)),
        }
    }
}

/// Splits at the plus signs outside of parentheses.
fn summands(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_u32);
    for (position, sign) in text.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| format!("{text:?} has an unmatched closing parenthesis"))?
            }
            '+' if depth == 0 => {
                parts.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if depth == 0 { Ok(parts) } else { Err(format!("{text:?} has an unclosed parenthesis")) }
}

impl fmt::Display for SizeDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => ByteSize(*size).fmt(f),
            Self::Uniform(min, max) => write!(f, "{}-{}", ByteSize(*min), ByteSize(*max)),
            Self::LogNormal { median, sigma } => write!(f, "lognormal:{}:{sigma}", ByteSize(*median)),
            Self::Mixture(parts) => parts.iter().enumerate().try_for_each(|(n, (share, sizes))| {
                let (plus, is_nested) = (if n == 0 { "" } else { "+" }, matches!(sizes, Self::Mixture(_)));
                if is_nested {
                    write!(f, "{plus}{share}%({sizes})")
                } else {
                    write!(f, "{plus}{share}%{sizes}")
                }
            }),
        }
    }
}

impl TryFrom<String> for SizeDistribution {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<SizeDistribution> for String {
    fn from(sizes: SizeDistribution) -> Self {
        sizes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_trip_through_text() {
        for text in [
            "4KiB",
            "4KiB-1MiB",
            "lognormal:60KiB:1.5",
            "60%4KiB+40%1MiB",
            "1%1B-5B+2.5%lognormal:1MiB:0",
            "60%(79%1KiB+21%2KiB-3KiB)+40%1MiB",
        ] {
            let sizes: SizeDistribution = text.parse().unwrap();
            assert_eq!(sizes.to_string(), text);
        }
        for bad in [
            "",
            "4",
            "5KiB-4KiB",
            "lognormal:60KiB",
            "lognormal:0:1",
            "lognormal:1KiB:9",
            "0%4KiB",
            "x%4KiB",
            "1%(4KiB",
            "1%4KiB)",
            "1%()",
        ] {
            assert!(bad.parse::<SizeDistribution>().is_err(), "{bad}");
        }
    }

    #[test]
    fn drawn_sizes_match_the_distribution() {
        for text in [
            "4KiB",
            "1B-3B",
            "4KiB-1MiB",
            "lognormal:60KiB:1.2",
            "75%4KiB+25%1MiB",
            "50%(1%2KiB+1%4KiB)+50%1MiB",
        ] {
            let sizes: SizeDistribution = text.parse().unwrap();
            let drawn: Vec<u64> = (0..200_000).map(|number| sizes.size_of(number)).collect();
            let mean = drawn.iter().map(|size| *size as f64).sum::<f64>() / drawn.len() as f64;
            let ratio = mean / sizes.mean();
            assert!((0.97..1.03).contains(&ratio), "{text}: {mean} of {}", sizes.mean());
            assert!(drawn.iter().all(|size| *size <= sizes.max()), "{text}");
        }
        let sizes: SizeDistribution = "1B-3B".parse().unwrap();
        let mut seen: Vec<u64> = (0..100).map(|number| sizes.size_of(number)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 3]);
        let median: SizeDistribution = "lognormal:60KiB:1.2".parse().unwrap();
        let below = (0..100_000).filter(|number| median.size_of(*number) < 60 << 10).count();
        assert!((49_000..51_000).contains(&below), "{below}");
    }
}
