//! Sizes and durations as people write them ("128MiB", "30s", "7d"), kept as exact numbers.
//!
//! Units are never guessed: a bare number is rejected, except 0. One letter is the binary unit, as in rclone, dd and
//! the AWS command line: "128M" is "128MiB", and "128MB" is not. What [`Display`](fmt::Display) prints parses to the
//! same value.

use std::fmt;
use std::time::Duration;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A length of time, written with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

/// Bytes by unit. Of units with the same value, the last is used for display.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Milliseconds by unit.
const TIME_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];

impl ByteSize {
    /// Parses "128MiB", "128M" (the same), "5GB", "4096B".
    pub fn parse(text: &str) -> Result<Self, String> {
        parse_quantity(text, SIZE_UNITS, str::eq_ignore_ascii_case)
            .map(Self)
            .map_err(|why| format!("{why}; write a size such as \"128MiB\", \"128M\" or \"5GB\""))
    }

    /// The size as `usize`; saturates if `usize` is narrower.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl TimeSpan {
    /// Parses "250ms", "30s", "5m", "12h", "7d".
    pub fn parse(text: &str) -> Result<Self, String> {
        parse_quantity(text, TIME_UNITS, |a, b| a == b)
            .map(|millis| Self(Duration::from_millis(millis)))
            .map_err(|why| format!("{why}; write a duration such as \"30s\", \"5m\" or \"7d\""))
    }
}

fn parse_quantity(text: &str, units: &[(&str, u64)], same: fn(&str, &str) -> bool) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let number: u64 = number.parse().map_err(|_| format!("{text:?} does not begin with a whole number"))?;
    if unit.is_empty() {
        return if number == 0 { Ok(0) } else { Err(format!("{text:?} has no unit")) };
    }
    let (_, factor) = units.iter().find(|(name, _)| same(name, unit)).ok_or_else(|| {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        format!("{unit:?} is not a unit ({})", names.join(", "))
    })?;
    number.checked_mul(*factor).ok_or_else(|| format!("{text:?} is too large"))
}

fn write_largest(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fitting = units.iter().filter(|(_, factor)| value >= *factor && value.is_multiple_of(*factor));
    match fitting.max_by_key(|(_, factor)| *factor) {
        Some((unit, factor)) => write!(f, "{}{unit}", value / factor),
        None => write!(f, "{value}"),
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_largest(f, self.0, SIZE_UNITS)
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_largest(f, u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX), TIME_UNITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("128MiB", 128 << 20), ("5gb", 5_000_000_000), ("4096B", 4096), (" 1 KiB ", 1024), ("0", 0)]
        {
            assert_eq!(ByteSize::parse(text), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "MiB", "12", "1.5GiB", "-1B", "3 parsecs", "99999999TiB"] {
            assert!(ByteSize::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_letter_is_a_binary_unit() {
        for (letter, unit) in [("K", "KiB"), ("M", "MiB"), ("G", "GiB"), ("T", "TiB")] {
            let expected = ByteSize::parse(&format!("7{unit}")).unwrap();
            for written in [letter.to_owned(), letter.to_lowercase(), format!(" {letter}")] {
                assert_eq!(ByteSize::parse(&format!("7{written}")), Ok(expected), "{written}");
            }
            assert_eq!(expected.to_string(), format!("7{unit}"), "it is shown in full");
            assert_ne!(ByteSize::parse(&format!("7{letter}B")), Ok(expected), "a decimal unit");
        }
        for bad in ["M", "1P", "1Ki", "1.5M", "-1M", "1 M B", "1m/s", "16777216T"] {
            assert!(ByteSize::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("7d", 604_800_000)] {
            assert_eq!(TimeSpan::parse(text), Ok(TimeSpan(Duration::from_millis(millis))), "{text}");
        }
        for bad in ["", "s", "30", "30S", "1w", "18446744073709551615d"] {
            assert!(TimeSpan::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn displayed_quantities_parse_back() {
        for bytes in [0, 1, 1000, 1024, 1536, 128 << 20, 5_000_000_000, u64::MAX] {
            assert_eq!(ByteSize::parse(&ByteSize(bytes).to_string()), Ok(ByteSize(bytes)));
        }
        for millis in [0, 1, 999, 1000, 90_000, 86_400_000] {
            let span = TimeSpan(Duration::from_millis(millis));
            assert_eq!(TimeSpan::parse(&span.to_string()), Ok(span));
        }
    }
}
