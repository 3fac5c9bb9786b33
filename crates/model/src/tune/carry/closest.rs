//! Which of what is known lies closest to a client and a store of which nothing is.

use std::net::IpAddr;

use super::Client;

/// How far apart two are that do not both know of something: as if it were so many times as much.
const UNTOLD: f64 = 2.0;
/// Round trips that are shorter are alike: what a request takes then is something else.
const LEAST_ROUND_TRIP: f64 = 1e-3;
/// What a site of its own counts, in the same way.
const OTHER_SITE: f64 = 1.5;

/// A client, and the host of the store that it speaks with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Origin<'a> {
    /// Without scheme and port.
    pub host: &'a str,
    /// As far as it is known.
    pub client: Client,
}

impl Origin<'_> {
    /// How far apart two are: the length of what they differ by, each in the logarithm of its ratio.
    #[must_use]
    pub fn distance(&self, other: &Self) -> f64 {
        let (a, b) = (&self.client, &other.client);
        let is_same = is_same_site(self.host, other.host);
        // Who speaks with the same site has the same way there, as far as nothing else is known.
        let untold = if is_same { 1.0 } else { UNTOLD };
        let apart = |a: Option<f64>, b: Option<f64>| a.zip(b).map_or(untold, |(a, b)| a / b).ln();
        let round_trip = |client: &Client| client.round_trip.map(|seconds| seconds.max(LEAST_ROUND_TRIP));
        let site = if is_same { 1.0 } else { OTHER_SITE };
        let all = [
            apart(round_trip(a), round_trip(b)),
            apart(a.link, b.link),
            apart(a.processors, b.processors),
            apart(a.storage, b.storage),
            site.ln(),
        ];
        all.iter().map(|part| part * part).sum::<f64>().sqrt()
    }
}

/// The closest to `to`; of those that are equally close the first.
pub fn closest<'a, T>(to: &Origin<'_>, known: impl IntoIterator<Item = (Origin<'a>, T)>) -> Option<T> {
    let apart = known.into_iter().map(|(origin, what)| (to.distance(&origin), what));
    apart.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, what)| what)
}

/// Whether two hosts stand in the same place, by their names: they are the same, or a provider's in one region
/// (`s3.eu-west-1.example.com` and `swift.eu-west-1.example.com`).
#[must_use]
pub fn is_same_site(a: &str, b: &str) -> bool {
    if a.eq_ignore_ascii_case(b) {
        return true;
    }
    if [a, b].iter().any(|host| host.parse::<IpAddr>().is_ok()) {
        return false;
    }
    let [a, b] = [a, b].map(|host| host.to_ascii_lowercase());
    let [a, b] = [&a, &b].map(|host| host.rsplit('.').collect::<Vec<_>>());
    if a.len() < 3 || b.len() < 3 || a[..2] != b[..2] {
        return false;
    }
    // A region's name has a hyphen and says which of several it is, or where: eu-west-1, fr-par.
    let region = |labels: &[&str]| labels[2..].iter().find(|label| is_region(label)).map(ToString::to_string);
    region(&a).is_some_and(|named| Some(named) == region(&b))
}

fn is_region(label: &str) -> bool {
    let (place, rest) = label.split_once('-').unwrap_or_default();
    place.len() == 2 && place.bytes().all(|letter| letter.is_ascii_alphabetic()) && !rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_known_by_their_names() {
        for (a, b) in [
            ("here", "HERE"),
            ("10.0.0.1", "10.0.0.1"),
            ("s3.eu-west-1.example.com", "swift.eu-west-1.example.com"),
            ("bucket.s3.us-east-2.example.com", "s3.us-east-2.example.com"),
        ] {
            assert!(is_same_site(a, b), "{a} {b}");
        }
        for (a, b) in [
            ("10.0.0.1", "10.0.0.2"),
            ("a.example.com", "b.example.com"),
            ("s3.eu-west-1.example.com", "s3.eu-west-2.example.com"),
            ("s3.eu-west-1.example.com", "s3.eu-west-1.example.org"),
            ("here", ""),
        ] {
            assert!(!is_same_site(a, b), "{a} {b}");
        }
    }

    #[test]
    fn the_closest_is_as_far_away_and_as_strong() {
        let at = |host, milliseconds: f64, processors| Origin {
            host,
            client: Client {
                processors: Some(processors),
                round_trip: Some(milliseconds / 1e3),
                ..Client::default()
            },
        };
        let known = [at("a", 50.0, 2.0), at("b", 50.0, 8.0), at("c", 170.0, 2.0), at("d", 0.3, 2.0)];
        let closest = |to: Origin<'_>| closest(&to, known.map(|origin| (origin, origin.host)));
        assert_eq!(closest(at("e", 60.0, 2.0)), Some("a"));
        assert_eq!(closest(at("e", 40.0, 16.0)), Some("b"));
        assert_eq!(closest(at("e", 130.0, 2.0)), Some("c"));
        assert_eq!(closest(at("e", 1.0, 4.0)), Some("d"));
        // What is next door to one that is known is not always as far away.
        assert_eq!(closest(Origin { host: "c", client: Client::default() }), Some("c"));
        assert_eq!(super::closest(&at("e", 1.0, 1.0), Vec::<(Origin<'_>, ())>::new()), None);
    }
}
