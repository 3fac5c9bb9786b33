//! Orders in which services list, and ways to continue a listing.

use std::collections::BTreeMap;

use tradewind_core::{Algorithm, Checksum};

use super::scripted_server::{Request, Rest, ScriptedResponse, listing, listing_entry};

/// The habit of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListingHabit {
    /// Directory by directory, as gateways over file systems do. `start-after` compares bytes.
    ByDirectory,
    /// Directory by directory. `start-after` is a place in that order.
    ByDirectoryAfterPlace,
    /// In the order of hashes.
    Hashes,
    /// In byte order. Pages have no token.
    WithoutTokens,
    /// In byte order. `start-after` is ignored.
    WithoutStartAfter,
}

impl ListingHabit {
    /// All habits.
    pub const ALL: [Self; 5] = [
        Self::ByDirectory,
        Self::ByDirectoryAfterPlace,
        Self::Hashes,
        Self::WithoutTokens,
        Self::WithoutStartAfter,
    ];

    /// The position of a key in the order of the service.
    fn place(self, key: &str) -> Vec<String> {
        match self {
            Self::ByDirectory | Self::ByDirectoryAfterPlace => key.split('/').map(str::to_owned).collect(),
            Self::Hashes => vec![Checksum::compute(Algorithm::Sha256, key.as_bytes()).to_base64()],
            Self::WithoutTokens | Self::WithoutStartAfter => vec![key.to_owned()],
        }
    }

    /// Returns true if the service lists in byte order.
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::WithoutTokens | Self::WithoutStartAfter)
    }

    /// A page of a listing with at most `max_keys` keys.
    pub fn page(
        self,
        objects: &BTreeMap<String, Vec<u8>>,
        request: &Request,
        max_keys: usize,
    ) -> ScriptedResponse {
        let (token, start) = (request.parameter("continuation-token"), request.parameter("start-after"));
        let is_after = |key: &str| match (token, start, self) {
            ("", "", _) | ("", _, Self::WithoutStartAfter) => true,
            ("", start, Self::ByDirectoryAfterPlace) => self.place(key) > self.place(start),
            ("", start, _) => key > start,
            (token, ..) => self.place(key) > self.place(token),
        };
        let mut keys: Vec<&String> =
            objects.keys().filter(|key| key.starts_with(request.parameter("prefix"))).collect();
        keys.sort_by_cached_key(|key| self.place(key));
        keys.retain(|key| is_after(key));
        let max_keys = max_keys.min(request.parameter("max-keys").parse().unwrap());
        let is_truncated = keys.len() > max_keys;
        keys.truncate(max_keys);
        let lines: Vec<String> = keys.iter().map(|key| listing_entry(key, &objects[*key])).collect();
        let rest = match keys.last() {
            Some(_) if is_truncated && self == Self::WithoutTokens => Rest::WithoutToken,
            Some(last) if is_truncated => Rest::After(last),
            _ => Rest::None,
        };
        listing(&lines, rest)
    }
}
