//! Throughput and latency of a cluster whose OSDs are queues.
//!
//! Each OSD is a queue with one server. A read costs its bytes and a fixed overhead ([`ReadLoad::cost_per_second`]); its
//! service time is its cost divided by the OSD's service rate. The queue formulas take one constant service time per OSD, that
//! of its mean read. The clients keep a constant number of reads in flight. The reads in flight, the rates and the latencies follow Little's
//! law. Throughput under other shares is that of a closed network of such queues, by mean value analysis (Reiser
//! and Lavenberg 1980) in Schweitzer's approximation, with half of a service time left for the read in service.

/// The iteration ends when no queue length changes by more than this share of the reads in flight.
const TOLERANCE: f64 = 1e-7;
const MAX_ITERATIONS: usize = 2000;

/// Overhead of a read, expressed in bytes: a read without data costs as much as the transfer of these bytes. Lookups and
/// reads of indexes are short and many; by their number they would outweigh the reads of data.
const READ_OVERHEAD_BYTES: f64 = 65_536.0;

/// Cost in bytes of this number of reads that return this number of bytes: the bytes and an overhead for each read.
pub fn read_cost(reads: f64, bytes: f64) -> f64 {
    reads * READ_OVERHEAD_BYTES + bytes
}

/// The writes of an OSD over an interval, as the primary or as another replica of their placement groups.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WriteLoad {
    /// Completed writes per second.
    pub writes_per_second: f64,
    /// Bytes written per second.
    pub bytes_per_second: f64,
    /// Mean latency of a write at this OSD in seconds, without the time in which it waits for other replicas.
    pub latency_seconds: f64,
}

impl WriteLoad {
    /// Mean number of writes in flight at the OSD (Little's law).
    pub fn in_flight(self) -> f64 {
        self.writes_per_second * self.latency_seconds
    }

    /// Cost of the writes per second, in bytes: as high as the cost of as many reads of these bytes.
    pub fn cost_per_second(self) -> f64 {
        read_cost(self.writes_per_second, self.bytes_per_second)
    }
}

/// The reads and writes of an OSD over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReadLoad {
    /// Completed reads per second.
    pub reads_per_second: f64,
    /// Bytes that these reads returned, per second.
    pub bytes_per_second: f64,
    /// Mean latency of these reads in seconds, with the time in the OSD's queue.
    pub latency_seconds: f64,
    /// The writes. A change of the primary does not move them.
    pub writes: WriteLoad,
}

impl ReadLoad {
    /// Mean number of reads in flight at the OSD (Little's law).
    pub fn in_flight(self) -> f64 {
        self.reads_per_second * self.latency_seconds
    }

    /// Cost of the reads per second, in bytes ([`read_cost`]).
    pub fn cost_per_second(self) -> f64 {
        read_cost(self.reads_per_second, self.bytes_per_second)
    }

    /// Cost of reads and writes per second, in bytes, that the OSD can serve beside its other work; `None` without reads.
    ///
    /// The inverse of the Pollaczek-Khinchine formula for a constant service time, that of the mean read. Writes wait in the
    /// same queue. The estimate holds for busy and idle OSDs: a busy one serves what it can, an idle one answers in its
    /// service time. For an OSD that serves several requests at once it is a lower bound.
    pub fn service_rate(self) -> Option<f64> {
        let has_reads = self.reads_per_second > 0.0 && self.latency_seconds > 0.0;
        let cost = self.cost_per_second() + self.writes.cost_per_second();
        // As if all requests were reads of the mean size.
        let in_flight = self.in_flight() * cost / self.cost_per_second();
        // Of a sum and a root that are almost equal for a busy OSD, the difference in a form without cancellation.
        let utilization = 2.0 * in_flight / (1.0 + in_flight + in_flight.hypot(1.0));
        has_reads.then(|| cost / utilization)
    }
}

/// Predicted behaviour of a cluster whose clients issue requests of one unit of the cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Cost per second that all OSDs serve, in the unit of the service rates.
    pub throughput: f64,
    /// Mean latency in seconds per unit of the cost.
    pub latency_seconds: f64,
}

/// Predicts a cluster with `in_flight` reads in flight (a mean; below 1 counts as 1).
///
/// `loads` are the shares of the OSDs in any unit; `service_rates` their service rates, above 0, in cost per second.
/// `None` if no OSD has a load.
pub fn predict(loads: &[f64], service_rates: &[f64], in_flight: f64) -> Option<Prediction> {
    let total: f64 = loads.iter().sum();
    if total <= 0.0 {
        return None;
    }
    let in_flight = in_flight.max(1.0);
    let shares: Vec<f64> = loads.iter().map(|load| load / total).collect();
    let mut queues: Vec<f64> = shares.iter().map(|share| share * in_flight).collect();
    let (mut latency, mut throughput) = (0.0, 0.0);
    for _ in 0..MAX_ITERATIONS {
        // A read that arrives finds the queues of the others (arrival theorem), half of the one in service already done.
        let others = (in_flight - 1.0) / in_flight;
        let residence = |osd: usize| {
            let service_seconds = shares[osd] / service_rates[osd].max(f64::MIN_POSITIVE);
            let utilization = (throughput * service_seconds).min(1.0).min(queues[osd]);
            service_seconds * (1.0 + (queues[osd] - utilization / 2.0) * others)
        };
        let residences: Vec<f64> = (0..shares.len()).map(residence).collect();
        latency = residences.iter().sum();
        throughput = in_flight / latency;
        let mut change: f64 = 0.0;
        for (queue, residence) in queues.iter_mut().zip(residences) {
            let next = in_flight * residence / latency;
            change = change.max((next - *queue).abs());
            *queue = next;
        }
        if change <= TOLERANCE * in_flight {
            break;
        }
    }
    Some(Prediction { throughput, latency_seconds: latency })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::hash::hash_pair;

    fn rate(loads: &[f64], service_rates: &[f64], in_flight: f64) -> f64 {
        predict(loads, service_rates, in_flight).unwrap().throughput
    }

    #[test]
    fn one_read_in_flight_waits_for_nobody() {
        let prediction = predict(&[1.0, 3.0], &[10.0, 20.0], 1.0).unwrap();
        assert!((prediction.latency_seconds - (0.25 / 10.0 + 0.75 / 20.0)).abs() < 1e-9);
        assert_eq!(predict(&[1.0, 3.0], &[10.0, 20.0], 0.1), Some(prediction));
    }

    #[test]
    fn many_reads_in_flight_run_at_the_bottleneck() {
        // The second OSD serves half of the reads, 5 per second.
        assert!((rate(&[1.0, 1.0], &[20.0, 5.0], 1000.0) - 10.0).abs() < 0.1);
        assert!((rate(&[3.0, 1.0], &[20.0, 5.0], 1000.0) - 20.0).abs() < 0.1);
    }

    /// Reads per second of a simulated closed network with constant service times.
    fn simulate(loads: &[f64], service_rates: &[f64], in_flight: usize) -> f64 {
        const READS: u32 = 40_000;
        let total: f64 = loads.iter().sum();
        let choose = |read: u32| {
            let mut left = f64::from(hash_pair(read, 7)) / f64::from(u32::MAX) * total;
            loads.iter().position(|load| {
                left -= load;
                left <= 0.0
            })
        };
        let mut free_at = vec![0.0_f64; loads.len()];
        let mut ends = vec![0.0_f64; in_flight];
        for read in 0..READS {
            let client = (0..in_flight).min_by(|a, b| ends[*a].total_cmp(&ends[*b])).unwrap();
            let osd = choose(read).unwrap_or(0);
            free_at[osd] = ends[client].max(free_at[osd]) + 1.0 / service_rates[osd];
            ends[client] = free_at[osd];
        }
        f64::from(READS) / ends.iter().copied().fold(0.0, f64::max)
    }

    #[test]
    fn prediction_is_close_to_a_simulation() {
        for (loads, rates) in [
            ([1.0; 8], [5.0, 5.0, 5.0, 5.0, 20.0, 20.0, 20.0, 20.0]),
            // Equal service times would synchronize the clients.
            ([1.0; 8], [17.0, 18.1, 19.2, 20.3, 21.4, 22.5, 23.6, 24.7]),
            ([1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0], [5.0, 5.0, 5.0, 5.0, 20.0, 20.0, 20.0, 20.0]),
        ] {
            for in_flight in [1_u8, 4, 16, 64] {
                let simulated = simulate(&loads, &rates, usize::from(in_flight));
                let ratio = rate(&loads, &rates, f64::from(in_flight)) / simulated;
                assert!((0.95..1.05).contains(&ratio), "{loads:?} {rates:?} {in_flight}: {ratio}");
            }
        }
    }

    #[test]
    fn faster_osd_never_lowers_the_throughput() {
        for in_flight in [1.0, 4.0, 16.0, 64.0] {
            let slow = rate(&[2.0, 1.0, 1.0], &[4.0, 5.0, 6.0], in_flight);
            assert!(rate(&[2.0, 1.0, 1.0], &[5.0, 5.0, 6.0], in_flight) > slow);
        }
    }

    #[test]
    fn service_rate_is_that_of_an_idle_and_of_a_busy_queue() {
        let reads_rate = |load: ReadLoad| load.service_rate().unwrap() / READ_OVERHEAD_BYTES;
        let idle = ReadLoad { reads_per_second: 0.001, latency_seconds: 0.05, ..ReadLoad::default() };
        assert!((reads_rate(idle) - 20.0).abs() < 0.01);
        let busy = ReadLoad { reads_per_second: 19.9, latency_seconds: 5.0, ..ReadLoad::default() };
        assert!((reads_rate(busy) - 20.0).abs() < 0.01);
        // Utilization 0.5: 0.5 in service, 0.25 waiting.
        let half = ReadLoad { reads_per_second: 10.0, latency_seconds: 0.075, ..ReadLoad::default() };
        assert!((reads_rate(half) - 20.0).abs() < 1e-9);
        assert!((half.in_flight() - 0.75).abs() < 1e-9);
        assert_eq!(ReadLoad::default().service_rate(), None);
    }

    #[test]
    fn service_rate_is_the_same_for_short_and_for_long_reads_of_equal_cost() {
        // Of equal speed: one serves only lookups, the other only reads of 1 MiB.
        let lookups = ReadLoad { reads_per_second: 160.0, latency_seconds: 0.005, ..ReadLoad::default() };
        let reads_per_second = 160.0 / 17.0;
        let bytes_per_second = reads_per_second * f64::from(1 << 20);
        let latency_seconds = 0.005 * 17.0;
        let long = ReadLoad { reads_per_second, bytes_per_second, latency_seconds, ..ReadLoad::default() };
        assert!((lookups.service_rate().unwrap() / long.service_rate().unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn service_rate_is_the_same_whether_reads_or_writes_fill_the_queue() {
        // Half of the service rate of 20 reads per second, in both cases: 0.5 in service, 0.25 waiting.
        let reads = ReadLoad { reads_per_second: 10.0, latency_seconds: 0.075, ..ReadLoad::default() };
        let writes = WriteLoad { writes_per_second: 7.0, latency_seconds: 0.075, ..WriteLoad::default() };
        let mixed = ReadLoad { reads_per_second: 3.0, writes, ..reads };
        assert!((mixed.service_rate().unwrap() / reads.service_rate().unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(
            ReadLoad { writes, ..ReadLoad::default() }.service_rate(),
            None,
            "no read shows the queue"
        );
    }

    #[test]
    fn nothing_is_predicted_without_load() {
        assert_eq!(predict(&[0.0, 0.0], &[1.0, 1.0], 4.0), None);
        assert_eq!(predict(&[], &[], 4.0), None);
    }
}
