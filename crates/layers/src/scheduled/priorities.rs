//! Priorities by key prefix and client.

use std::collections::BTreeSet;

use tradewind_core::{Address, Context};
use tradewind_model::lanes::Priority;

/// Key prefixes and clients of high priority. All others have normal priority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Buckets, or prefixes in the form `BUCKET/PREFIX`.
    key_prefixes: Vec<String>,
    clients: BTreeSet<String>,
}

impl Priorities {
    /// Gives high priority to keys that match one of `keys`, each `BUCKET` or `BUCKET/PREFIX`, and to requests of these
    /// clients.
    #[must_use]
    pub const fn new(keys: Vec<String>, clients: BTreeSet<String>) -> Self {
        Self { key_prefixes: keys, clients }
    }

    /// The priority of a request. `address` is its object, if it is for a single one.
    #[must_use]
    pub fn priority_for(&self, context: &Context, address: Option<&Address>) -> Priority {
        let is_first = context.client.as_ref().is_some_and(|client| self.clients.contains(&**client))
            || address.is_some_and(|address| self.is_prioritized(address));
        if is_first { Priority::High } else { Priority::Normal }
    }

    fn is_prioritized(&self, address: &Address) -> bool {
        let (bucket, key) = (address.bucket.as_str(), address.key.as_str());
        self.key_prefixes.iter().any(|prefix| {
            let (prefix_bucket, prefix) = prefix.split_once('/').unwrap_or((prefix, ""));
            prefix_bucket == bucket && key.starts_with(prefix)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::Budget;
    use tradewind_core::deadline::Deadline;
    use tradewind_core::testing::{SimulatedClock, context_until};

    fn context_of(client: Option<&str>) -> Context {
        let deadline = Deadline::none(SimulatedClock::new());
        context_until(&Budget::new(1 << 20), deadline).with_client(client.map(Into::into))
    }

    #[test]
    fn keys_match_by_bucket_and_prefix() {
        let keys = vec!["orders".to_owned(), "photos/small/".to_owned()];
        let priorities = Priorities::new(keys, BTreeSet::new());
        let context = context_of(None);
        let priority =
            |bucket, key| priorities.priority_for(&context, Some(&Address::parse(bucket, key).unwrap()));
        assert_eq!(priority("orders", "any"), Priority::High);
        assert_eq!(priority("photos", "small/a"), Priority::High);
        assert_eq!(priority("photos", "smaller"), Priority::Normal);
        assert_eq!(priority("orders-old", "any"), Priority::Normal);
        let address = Address::parse("orders", "any").unwrap();
        assert_eq!(Priorities::default().priority_for(&context, Some(&address)), Priority::Normal);
    }

    #[test]
    fn clients_match_by_exact_id() {
        let priorities = Priorities::new(Vec::new(), ["shop".to_owned()].into());
        let address = Address::parse("orders", "any").unwrap();
        for (client, expected) in
            [(Some("shop"), Priority::High), (Some("shops"), Priority::Normal), (None, Priority::Normal)]
        {
            let context = context_of(client);
            assert_eq!(priorities.priority_for(&context, Some(&address)), expected);
            assert_eq!(priorities.priority_for(&context, None), expected, "a listing");
        }
    }
}
