//! Whose requests go first.

use tradewind_core::Address;
use tradewind_model::lanes::Priority;

/// Keys of high priority; all others have a normal one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Beginnings of `BUCKET/KEY`.
    first: Vec<String>,
}

impl Priorities {
    /// Keys that begin so go first, each said as `BUCKET/BEGINNING`.
    #[must_use]
    pub const fn new(first: Vec<String>) -> Self {
        Self { first }
    }

    /// That of what is at this address.
    #[must_use]
    pub fn of(&self, address: &Address) -> Priority {
        let (bucket, key) = (address.bucket.as_str(), address.key.as_str());
        let is_first = |beginning: &String| {
            let (of, beginning) = beginning.split_once('/').unwrap_or((beginning, ""));
            of == bucket && key.starts_with(beginning)
        };
        if self.first.iter().any(is_first) { Priority::High } else { Priority::Normal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_keys() {
        let priorities = Priorities::new(vec!["orders".to_owned(), "photos/small/".to_owned()]);
        let of = |bucket, key| priorities.of(&Address::parse(bucket, key).unwrap());
        assert_eq!(of("orders", "any"), Priority::High);
        assert_eq!(of("photos", "small/a"), Priority::High);
        assert_eq!(of("photos", "smaller"), Priority::Normal);
        assert_eq!(of("orders-old", "any"), Priority::Normal);
        assert_eq!(Priorities::default().of(&Address::parse("orders", "any").unwrap()), Priority::Normal);
    }
}
