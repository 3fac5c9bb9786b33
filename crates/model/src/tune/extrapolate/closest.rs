//! Selects the existing profile that is closest to a client and a store without a profile.

use std::net::IpAddr;

use super::ClientEnvironment;

/// Ratio assumed for a property that is unknown for at least one of two origins.
const UNKNOWN_RATIO: f64 = 2.0;
/// Shorter RTTs count as equal, as other costs dominate the latency of a request.
const MIN_RTT_SECONDS: f64 = 1e-3;
/// Additional ratio for two different sites.
const OTHER_SITE_RATIO: f64 = 1.5;

/// The origin of a profile: a client, and the host of its store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfileOrigin<'a> {
    /// The host name, without scheme and port.
    pub host: &'a str,
    /// The properties of the client, as far as known.
    pub client: ClientEnvironment,
}

impl ProfileOrigin<'_> {
    /// The Euclidean distance over the logarithms of the ratios of all properties.
    #[must_use]
    pub fn distance(&self, other: &Self) -> f64 {
        let (a, b) = (&self.client, &other.client);
        let is_same_site = is_same_site(self.host, other.host);
        // Unknown properties of the path to the same site are assumed equal.
        let unknown_ratio = if is_same_site { 1.0 } else { UNKNOWN_RATIO };
        let log_ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map_or(unknown_ratio, |(a, b)| a / b).ln();
        let rtt = |client: &ClientEnvironment| client.rtt.map(|seconds| seconds.max(MIN_RTT_SECONDS));
        let site_ratio = if is_same_site { 1.0 } else { OTHER_SITE_RATIO };
        let log_ratios = [
            log_ratio(rtt(a), rtt(b)),
            log_ratio(a.interface_bandwidth, b.interface_bandwidth),
            log_ratio(a.cpus, b.cpus),
            log_ratio(a.storage_bandwidth, b.storage_bandwidth),
            site_ratio.ln(),
        ];
        log_ratios.iter().map(|log_ratio| log_ratio * log_ratio).sum::<f64>().sqrt()
    }
}

/// The entry closest to `to`, the first one on ties.
pub fn closest<'a, T>(
    to: &ProfileOrigin<'_>,
    candidates: impl IntoIterator<Item = (ProfileOrigin<'a>, T)>,
) -> Option<T> {
    let distances = candidates.into_iter().map(|(origin, entry)| (to.distance(&origin), entry));
    distances.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, entry)| entry)
}

/// Returns true if two host names denote the same site: equal names, or names of one provider in one region
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
    // A region label has a two-letter prefix and a hyphen: eu-west-1, fr-par.
    let region = |labels: &[&str]| labels[2..].iter().find(|label| is_region(label)).map(ToString::to_string);
    region(&a).is_some_and(|region_of_a| Some(region_of_a) == region(&b))
}

fn is_region(label: &str) -> bool {
    let (geography, rest) = label.split_once('-').unwrap_or_default();
    geography.len() == 2 && geography.bytes().all(|letter| letter.is_ascii_alphabetic()) && !rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_region_are_the_same_site() {
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
    fn closest_has_a_similar_rtt_and_cpu_count() {
        let origin = |host, milliseconds: f64, cpus| ProfileOrigin {
            host,
            client: ClientEnvironment {
                cpus: Some(cpus),
                rtt: Some(milliseconds / 1e3),
                ..ClientEnvironment::default()
            },
        };
        let known =
            [origin("a", 50.0, 2.0), origin("b", 50.0, 8.0), origin("c", 170.0, 2.0), origin("d", 0.3, 2.0)];
        let closest = |to: ProfileOrigin<'_>| closest(&to, known.map(|known| (known, known.host)));
        assert_eq!(closest(origin("e", 60.0, 2.0)), Some("a"));
        assert_eq!(closest(origin("e", 40.0, 16.0)), Some("b"));
        assert_eq!(closest(origin("e", 130.0, 2.0)), Some("c"));
        assert_eq!(closest(origin("e", 1.0, 4.0)), Some("d"));
        // Without an RTT the same host is the closest.
        assert_eq!(closest(ProfileOrigin { host: "c", client: ClientEnvironment::default() }), Some("c"));
        assert_eq!(super::closest(&origin("e", 1.0, 1.0), Vec::<(ProfileOrigin<'_>, ())>::new()), None);
    }
}
