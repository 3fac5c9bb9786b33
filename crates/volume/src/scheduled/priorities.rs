//! Whose requests go first.

use std::collections::BTreeSet;

use tradewind_core::{Address, Context};
use tradewind_model::lanes::Priority;

/// Keys and clients of high priority; all others have a normal one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Beginnings of `BUCKET/KEY`.
    keys: Vec<String>,
    clients: BTreeSet<String>,
}

impl Priorities {
    /// Keys that begin so go first, each said as `BUCKET/BEGINNING`, and so does what these clients ask for.
    #[must_use]
    pub const fn new(keys: Vec<String>, clients: BTreeSet<String>) -> Self {
        Self { keys, clients }
    }

    /// That of a request for what is at this address, where it is for one object.
    #[must_use]
    pub fn of(&self, context: &Context, address: Option<&Address>) -> Priority {
        let is_first = context.client.as_ref().is_some_and(|client| self.clients.contains(&**client))
            || address.is_some_and(|address| self.goes_first(address));
        if is_first { Priority::High } else { Priority::Normal }
    }

    fn goes_first(&self, address: &Address) -> bool {
        let (bucket, key) = (address.bucket.as_str(), address.key.as_str());
        self.keys.iter().any(|beginning| {
            let (of, beginning) = beginning.split_once('/').unwrap_or((beginning, ""));
            of == bucket && key.starts_with(beginning)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::Budget;
    use tradewind_core::deadline::Deadline;
    use tradewind_core::testing::{SimulatedClock, context_until};

    fn asked_by(client: Option<&str>) -> Context {
        let deadline = Deadline::none(SimulatedClock::new());
        context_until(&Budget::new(1 << 20), deadline).of_client(client.map(Into::into))
    }

    #[test]
    fn beginnings_of_keys() {
        let keys = vec!["orders".to_owned(), "photos/small/".to_owned()];
        let priorities = Priorities::new(keys, BTreeSet::new());
        let asked = asked_by(None);
        let of = |bucket, key| priorities.of(&asked, Some(&Address::parse(bucket, key).unwrap()));
        assert_eq!(of("orders", "any"), Priority::High);
        assert_eq!(of("photos", "small/a"), Priority::High);
        assert_eq!(of("photos", "smaller"), Priority::Normal);
        assert_eq!(of("orders-old", "any"), Priority::Normal);
        let address = Address::parse("orders", "any").unwrap();
        assert_eq!(Priorities::default().of(&asked, Some(&address)), Priority::Normal);
    }

    #[test]
    fn clients() {
        let priorities = Priorities::new(Vec::new(), ["shop".to_owned()].into());
        let address = Address::parse("orders", "any").unwrap();
        for (client, expected) in
            [(Some("shop"), Priority::High), (Some("shops"), Priority::Normal), (None, Priority::Normal)]
        {
            let asked = asked_by(client);
            assert_eq!(priorities.of(&asked, Some(&address)), expected);
            assert_eq!(priorities.of(&asked, None), expected, "a listing");
        }
    }
}
