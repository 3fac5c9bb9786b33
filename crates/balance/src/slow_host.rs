//! Hosts whose OSDs are slow together: then the host is the cause (its network, controller or CPU), not a device.

use std::collections::BTreeMap;
use std::fmt;

/// An OSD is slow below this share of the median service rate of all.
const SLOW_SHARE: f64 = 0.5;
/// Minimum number of slow OSDs of a host.
const MIN_SLOW_OSDS: usize = 2;
/// Minimum share of slow OSDs of a host.
const MIN_SLOW_HOST_SHARE: f64 = 0.75;
/// Maximum share of slow OSDs on all other hosts: with more, slow OSDs are not a matter of hosts.
const MAX_SLOW_REST_SHARE: f64 = 0.25;

/// An OSD with its host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OsdOnHost<'a> {
    /// Name of its host.
    pub hostname: &'a str,
    /// Its service rate, in any unit.
    pub service_rate: f64,
}

/// A host whose OSDs are slow together. Its text is a sentence that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowHost {
    /// Its name.
    pub hostname: String,
    /// Its slow OSDs.
    pub slow: usize,
    /// All its OSDs that serve reads.
    pub total: usize,
}

impl fmt::Display for SlowHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "host {} is slow as a whole: {} of its {} OSDs serve less than half of the median; check its network, \
             controller and CPU before its devices",
            self.hostname, self.slow, self.total
        )
    }
}

/// Hosts of which at least two OSDs and 75 % are slow, in order of their names. None if OSDs of other hosts are slow too,
/// or if all OSDs are on one host.
pub fn slow_hosts(osds: &[OsdOnHost<'_>]) -> Vec<SlowHost> {
    let Some(median) = median(osds) else { return Vec::new() };
    let mut hosts: BTreeMap<&str, SlowHost> = BTreeMap::new();
    for osd in osds {
        let empty = || SlowHost { hostname: osd.hostname.to_owned(), slow: 0, total: 0 };
        let host = hosts.entry(osd.hostname).or_insert_with(empty);
        host.slow += usize::from(osd.service_rate < SLOW_SHARE * median);
        host.total += 1;
    }
    let is_slow = |host: &SlowHost| {
        host.slow >= MIN_SLOW_OSDS && host.slow as f64 >= MIN_SLOW_HOST_SHARE * host.total as f64
    };
    let (slow, rest): (Vec<SlowHost>, Vec<SlowHost>) = hosts.into_values().partition(is_slow);
    let count = |field: fn(&SlowHost) -> usize| rest.iter().map(field).sum::<usize>();
    let (rest_slow, rest_total) = (count(|host| host.slow), count(|host| host.total));
    if rest_total == 0 || rest_slow as f64 >= MAX_SLOW_REST_SHARE * rest_total as f64 {
        return Vec::new();
    }
    slow
}

/// The upper median: where half of the OSDs are slow, it is the rate of a fast one.
fn median(osds: &[OsdOnHost<'_>]) -> Option<f64> {
    let mut rates: Vec<f64> = osds.iter().map(|osd| osd.service_rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of slow hosts, of hosts with these service rates.
    fn slow_names(hosts: &[(&str, &[f64])]) -> Vec<String> {
        let osds = hosts.iter().flat_map(|(hostname, rates)| {
            rates.iter().map(|service_rate| OsdOnHost { hostname, service_rate: *service_rate })
        });
        slow_hosts(&osds.collect::<Vec<_>>()).into_iter().map(|host| host.hostname).collect()
    }

    #[test]
    fn host_is_named_if_three_of_four_of_its_osds_are_slow() {
        assert_eq!(slow_names(&[("a", &[200.0, 190.0]), ("b", &[50.0, 60.0])]), ["b"]);
        assert_eq!(slow_names(&[("a", &[100.0; 4]), ("b", &[40.0, 40.0, 40.0, 100.0])]), ["b"]);
        assert_eq!(slow_names(&[("a", &[100.0; 4]), ("b", &[40.0, 40.0, 60.0, 100.0])]), [""; 0]);
        assert_eq!(slow_names(&[("a", &[100.0; 9]), ("b", &[9.0; 3]), ("c", &[9.0; 3])]), ["b", "c"]);
    }

    #[test]
    fn single_slow_osds_do_not_name_a_host() {
        assert_eq!(slow_names(&[("a", &[100.0; 3]), ("b", &[10.0])]), [""; 0], "a host of one OSD");
        let scattered: [(&str, &[f64]); 3] =
            [("a", &[100.0, 100.0, 10.0]), ("b", &[100.0, 100.0, 10.0]), ("c", &[10.0, 10.0])];
        assert_eq!(slow_names(&scattered), [""; 0], "slow OSDs on all hosts");
        assert_eq!(slow_names(&[("a", &[100.0, 100.0, 10.0, 10.0])]), [""; 0], "one host");
        assert_eq!(slow_names(&[]), [""; 0]);
        assert_eq!(slow_names(&[("a", &[100.0, 100.0]), ("b", &[51.0, 51.0])]), [""; 0], "not half as fast");
    }
}
