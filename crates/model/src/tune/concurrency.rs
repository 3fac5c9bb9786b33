//! The concurrency of requests by size, for transfers of objects of all sizes.

use super::{LatencyModel, OperatingPoint, Surface};
use crate::store_statistics::SizeClass;

/// Candidate concurrencies.
const CANDIDATES: [usize; 17] = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384];
/// Maximum concurrency that probes use. A higher one is used only if the link has capacity for the bytes of all
/// requests.
const MAX_PROBED: usize = 256;
/// Minimum relative gain in throughput that justifies a higher concurrency.
const MIN_GAIN: f64 = 0.03;
/// Window of a connection at the end of slow start, in bytes. Its throughput is one window per RTT; the window then grows
/// slowly for seconds.
const NEW_CONNECTION_WINDOW_BYTES: f64 = 256e3;
/// Number of new connections that fill any client link.
const MAX_NEW_CONNECTIONS: f64 = 64.0;
/// Retransmission timeout of a request that loses its last packets, in seconds (RFC 6298 with the minimum RTO of
/// Linux).
const RETRANSMISSION_TIMEOUT_SECONDS: f64 = 0.2;
/// Maximum fixed time of a request, in seconds, at which requests over new connections are limited to the capacity of
/// the link, for the `NEW_CONNECTION_PERIOD` of the permit pool. The limit avoids a retransmission timeout, but the
/// connections that it holds back go through slow start later: about five round trips, from 10 segments to
/// [`NEW_CONNECTION_WINDOW_BYTES`]. It pays off while these are shorter than one timeout.
const MAX_LIMITED_FIXED_SECONDS: f64 = RETRANSMISSION_TIMEOUT_SECONDS / 5.0;
/// Minimum concurrency of small requests over new connections, which keeps the link busy between two requests of one
/// connection.
const MIN_NEW_CONNECTIONS: usize = 4;
/// Capacity for bytes in flight, as a multiple of the bandwidth-delay product: one product on the link, and
/// half of one in the queue in front of it.
const PIPE_BDP_RATIO: f64 = 1.5;

/// The concurrency of each size class, in two values. The usual one is the lowest with nearly the maximum throughput that
/// also fills the link while congestion windows still grow, which takes seconds after slow start. The one on new
/// connections is for the first second: at most as many small requests as the link and its queue hold. Both are at least
/// 4, to keep the link busy between two objects, and never increase with the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyBySize {
    steady: [usize; SizeClass::COUNT],
    new_connections: [usize; SizeClass::COUNT],
}

impl ConcurrencyBySize {
    /// The highest value that any of the surfaces requires for each class; `None` without surfaces.
    #[must_use]
    pub fn from_surfaces(surfaces: &[Surface]) -> Option<Self> {
        if surfaces.is_empty() {
            return None;
        }
        let [mut steady, mut new_connections] = [[0; SizeClass::COUNT]; 2];
        // The highest value of this class and all larger ones.
        let mut concurrency = 0;
        for class in SizeClass::all().collect::<Vec<_>>().into_iter().rev() {
            let bytes = class.max_bytes().unwrap_or(1 << 29);
            let required_by = |surface: &Surface| {
                min_concurrency_for_full_throughput(surface, bytes).max(connections_to_fill_link(surface))
            };
            let required = surfaces.iter().map(required_by).max().unwrap_or(0);
            concurrency = concurrency.max(required);
            steady[class.index()] = concurrency;
            let max_new = surfaces.iter().map(|surface| requests_that_fit(surface, bytes)).max();
            new_connections[class.index()] = max_new.map_or(concurrency, |max| concurrency.min(max));
        }
        Some(Self { steady, new_connections })
    }

    /// Concurrency of a size class.
    #[must_use]
    pub const fn for_class(&self, size_class: SizeClass) -> usize {
        self.steady[size_class.index()]
    }

    /// Like [`for_class`](Self::for_class), while connections are new. Congestion windows that open at the same time
    /// overflow the queue in front of the link, and a request that loses its last packets waits for 200 ms. Later, the
    /// windows have the size that the link allows.
    #[must_use]
    pub const fn for_class_on_new_connections(&self, size_class: SizeClass) -> usize {
        self.new_connections[size_class.index()]
    }

    /// The highest concurrency: that of the smallest size.
    #[must_use]
    pub const fn highest(&self) -> usize {
        self.steady[0]
    }
}

/// Number of connections that fill the link before their windows have opened, which on a long link takes longer than
/// most transfers. The surface was sampled with open windows.
fn connections_to_fill_link(surface: &Surface) -> usize {
    let model = surface.model();
    (bandwidth_delay_product(model) / NEW_CONNECTION_WINDOW_BYTES).min(MAX_NEW_CONNECTIONS).ceil() as usize
}

/// Maximum number of concurrent small requests whose bytes all fit on the link and in its queue. It is unlimited for
/// large requests, because a new connection never has all their bytes in flight, and if the fixed time of a request
/// exceeds [`MAX_LIMITED_FIXED_SECONDS`].
fn requests_that_fit(surface: &Surface, bytes: u64) -> usize {
    let model = surface.model();
    if bytes as f64 >= NEW_CONNECTION_WINDOW_BYTES || model.fixed_seconds > MAX_LIMITED_FIXED_SECONDS {
        return usize::MAX;
    }
    let capacity = PIPE_BDP_RATIO * bandwidth_delay_product(model);
    MIN_NEW_CONNECTIONS.max((capacity / bytes.max(1) as f64) as usize)
}

/// The bandwidth-delay product, in bytes. The fixed time of a request stands for the RTT, of which it is an upper
/// bound.
fn bandwidth_delay_product(model: &LatencyModel) -> f64 {
    model.fixed_seconds / model.bottleneck_seconds_per_byte
}

/// The lowest candidate concurrency with nearly the maximum throughput.
fn min_concurrency_for_full_throughput(surface: &Surface, bytes: u64) -> usize {
    let capacity = PIPE_BDP_RATIO * bandwidth_delay_product(surface.model());
    let fits = |concurrency: usize| {
        concurrency <= MAX_PROBED || OperatingPoint { bytes, concurrency }.bytes_in_flight() <= capacity
    };
    let candidates = CANDIDATES.into_iter().filter(|concurrency| fits(*concurrency));
    let request_rates: Vec<_> = candidates
        .map(|concurrency| {
            (concurrency, surface.predict(OperatingPoint { bytes, concurrency }).request_rate())
        })
        .collect();
    let best = request_rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let sufficient = request_rates.iter().find(|(_, rate)| *rate >= best * (1.0 - MIN_GAIN));
    sufficient.map_or(CANDIDATES[0], |(concurrency, _)| *concurrency)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Prior, Sample};

    /// The concurrency for a store at this RTT in seconds, over 1 Gbit/s.
    fn known(rtt: f64) -> ConcurrencyBySize {
        let sample = |(bytes, concurrency, besides): (u64, usize, f64)| {
            let point = OperatingPoint { bytes, concurrency };
            let latency = (rtt + besides).max(point.bytes_in_flight() / 115e6);
            Sample { point, latency, relative_error: 0.02, tail: None, from_transfer: false }
        };
        let samples = [(4 << 10, 1, 0.5e-3), (64 << 10, 1, 1e-3), (64 << 10, 64, 0.0), (8 << 20, 16, 0.0)];
        let prior = Prior::default().with_rtt(rtt);
        ConcurrencyBySize::from_surfaces(&[Surface::new(prior, samples.map(sample).to_vec())]).unwrap()
    }

    #[test]
    fn new_connections_fit_the_bandwidth_delay_product() {
        let region = known(0.01);
        let of = |bytes| {
            [
                region.for_class(SizeClass::for_bytes(bytes)),
                region.for_class_on_new_connections(SizeClass::for_bytes(bytes)),
            ]
        };
        // The bandwidth-delay product is 1.2 MB; 1.5 times that is 27 requests of 64 KiB.
        let [all, new] = of(64 << 10);
        assert!(all >= 48 && (24..=32).contains(&new), "{all} {new}");
        for bytes in [4 << 10, 1 << 20, 16 << 20] {
            let [all, new] = of(bytes);
            assert_eq!(all, new, "{bytes}");
        }
        // At a long RTT a retransmission timeout is short compared with a round trip.
        let far = known(0.05);
        assert!(
            SizeClass::all().all(|class| far.for_class(class) == far.for_class_on_new_connections(class)),
            "{far:?}"
        );
        // The bandwidth-delay product is 20 MB.
        let small = SizeClass::for_bytes(64 << 10);
        assert!(known(0.176).for_class(small) > MAX_PROBED, "{:?}", known(0.176));
        // At a very short RTT hardly any bytes are in flight.
        let near = known(0.3e-3);
        assert_eq!(near.for_class_on_new_connections(SizeClass::for_bytes(64 << 10)), MIN_NEW_CONNECTIONS);
        for class in SizeClass::all() {
            let [all, new] = [near.for_class(class), near.for_class_on_new_connections(class)];
            assert!(new == all || new < all && new >= MIN_NEW_CONNECTIONS, "{class:?}: {all} {new}");
        }
    }
}
