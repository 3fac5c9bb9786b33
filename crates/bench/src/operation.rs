//! The kinds of requests of a load, and their shares.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::random::unit_fraction;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Writes a new object.
    Put,
    /// Reads a whole object.
    Get,
    /// Reads the metadata of an object.
    Head,
    /// Lists a page of keys.
    List,
    /// Deletes an object.
    Delete,
}

impl Operation {
    /// All kinds of requests.
    pub const ALL: [Self; 5] = [Self::Put, Self::Get, Self::Head, Self::List, Self::Delete];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }

    /// Returns true if it needs an existing object.
    #[must_use]
    pub const fn needs_object(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Delete)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|operation| operation.name() == text);
        found.ok_or_else(|| format!("{text:?} is not an operation: use put, get, head, list or delete"))
    }
}

/// A request mix. As text: `get`, or `get=70,put=20,delete=10` with relative shares, which need not sum to 100.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mix(Vec<(Operation, f64)>);

impl Mix {
    /// A mix of one kind.
    #[must_use]
    pub fn single(operation: Operation) -> Self {
        Self(vec![(operation, 1.0)])
    }

    /// A mix with shares proportional to the given counts.
    #[must_use]
    pub fn from_counts(counts: &BTreeMap<Operation, u64>) -> Self {
        match counts.iter().next() {
            Some((operation, _)) if counts.len() == 1 => Self::single(*operation),
            _ => Self(counts.iter().map(|(operation, count)| (*operation, *count as f64)).collect()),
        }
    }

    /// Draws a kind according to the shares, using `random` as the random number.
    #[must_use]
    pub fn draw(&self, random: u64) -> Operation {
        let mut left = unit_fraction(random) * self.0.iter().map(|(_, share)| share).sum::<f64>();
        let found = self.0.iter().find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        found.or(self.0.last()).map_or(Operation::Get, |(operation, _)| *operation)
    }

    /// The share of a kind, 0 to 1.
    #[must_use]
    pub fn share(&self, operation: Operation) -> f64 {
        let total: f64 = self.0.iter().map(|(_, share)| share).sum();
        self.0.iter().filter(|(other, _)| *other == operation).map(|(_, share)| share / total).sum()
    }

    /// Returns true if the mix contains only the given kind.
    #[must_use]
    pub fn is_only(&self, operation: Operation) -> bool {
        self.operations().all(|other| other == operation)
    }

    /// The kinds in the mix.
    pub fn operations(&self) -> impl Iterator<Item = Operation> + '_ {
        self.0.iter().map(|(operation, _)| *operation)
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut shares: Vec<(Operation, f64)> = Vec::new();
        for part in text.split(',') {
            let (operation, share) = part.split_once('=').unwrap_or((part, "1"));
            let operation = operation.trim().parse()?;
            let share: f64 = share.trim().parse().map_err(|_| format!("{share:?} is not a number"))?;
            if !(share > 0.0 && share.is_finite()) {
                return Err(format!("a share must be greater than 0, not {share}"));
            }
            if shares.iter().any(|(earlier, _)| *earlier == operation) {
                return Err(format!("{operation} is given twice"));
            }
            shares.push((operation, share));
        }
        Ok(Self(shares))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(operation, _)] = &*self.0 {
            return operation.fmt(f);
        }
        self.0.iter().enumerate().try_for_each(|(n, (operation, share))| {
            write!(f, "{}{operation}={share}", if n == 0 { "" } else { "," })
        })
    }
}

impl TryFrom<String> for Mix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Mix> for String {
    fn from(mix: Mix) -> Self {
        mix.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix;

    #[test]
    fn mix_draws_by_share_and_rejects_invalid_text() {
        let mixed: Mix = "get=70, put=20,delete=10".parse().unwrap();
        assert_eq!(mixed.to_string(), "get=70,put=20,delete=10");
        assert_eq!("head".parse::<Mix>().unwrap().to_string(), "head");
        assert!(Mix::single(Operation::Head).is_only(Operation::Head) && !mixed.is_only(Operation::Get));
        for operation in Operation::ALL {
            let drawn = (0..100_000).filter(|n| mixed.draw(mix(*n)) == operation).count() as f64 / 100_000.0;
            assert!((drawn - mixed.share(operation)).abs() < 0.005, "{operation}: {drawn}");
        }
        for bad in ["", "get=0", "get=x", "take", "get=1,get=2", "get=-1"] {
            assert!(bad.parse::<Mix>().is_err(), "{bad}");
        }
    }
}
