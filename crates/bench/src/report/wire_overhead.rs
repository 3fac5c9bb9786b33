//! Bytes on the store's connections per byte of objects, by object size, with the curve that is also fitted for
//! mounted file systems (Ou 2015, section IV-F), so that a store and a file system on top of it can be compared. Uses
//! the measurements with the lowest concurrency, which have the fewest retransmissions and the least queueing.

use maud::{Markup, html};

use super::charts::{AxisScale, Series, figure, format_short, line_chart};
use super::mean_by_x;
use super::rows::OperationRow;
use crate::operation::Operation;
use crate::posix::amplification::{AmplificationFit, RatioPoint, fit};

/// The amplification of one operation.
#[derive(Debug)]
struct WireRatios {
    operation: Operation,
    /// Concurrency.
    concurrency: usize,
    /// Mean object size in KiB, and bytes on the wire per byte of the object.
    ratios: Vec<(f64, f64)>,
    fit: Option<AmplificationFit>,
}

/// The amplification of each operation that transfers objects and was measured with several sizes.
fn wire_ratios(rows: &[OperationRow<'_>]) -> Vec<WireRatios> {
    let for_operation = |operation: Operation| {
        let matching = || rows.iter().filter(move |row| row.operation == operation);
        let concurrency = matching()
            .flat_map(|row| row.by_concurrency.first())
            .map(|(concurrency, _)| *concurrency)
            .min()?;
        let measurements =
            matching().flat_map(|row| &row.by_concurrency).filter(|(other, _)| *other == concurrency);
        let ratios =
            mean_by_x(measurements.flat_map(|(_, measurements)| measurements).filter_map(|measurement| {
                Some((measurement.sizes.mean() / 1024.0, measurement.amplification()?))
            }));
        let points: Vec<RatioPoint> =
            ratios.iter().map(|(kib, ratio)| RatioPoint { kib: *kib, ratio: *ratio }).collect();
        (ratios.len() > 1).then(|| WireRatios { operation, concurrency, ratios, fit: fit(&points) })
    };
    [Operation::Put, Operation::Get].into_iter().filter_map(for_operation).collect()
}

/// A sentence about the overhead per object, if it is the same for all sizes.
pub(super) fn sentences(rows: &[OperationRow<'_>]) -> Vec<String> {
    let all = wire_ratios(rows);
    let described = all.iter().filter_map(|ratios| {
        Some((ratios, ratios.fit.filter(|fit| fit.is_good() && fit.constant_kib > 0.0)?))
    });
    let sentences = described.map(|(ratios, fit)| {
        format!(
            "Each object {} adds {} KiB of overhead on the wire, in both directions together.",
            if ratios.operation == Operation::Put { "written" } else { "read" },
            format_short(fit.constant_kib)
        )
    });
    sentences.collect()
}

/// The chart; empty without byte counts of several sizes.
pub(super) fn section(rows: &[OperationRow<'_>]) -> Markup {
    let all = wire_ratios(rows);
    let series = all.iter().flat_map(|WireRatios { operation, concurrency, ratios, fit }| {
        let measured =
            Series { name: format!("{operation} x {concurrency}"), points: ratios.clone(), is_dashed: false };
        let curve = fit.map(|fit| Series {
            name: format!("{operation}, 1 + {} KiB / s", format_short(fit.constant_kib)),
            points: ratios.iter().map(|(kib, _)| (*kib, fit.predict(*kib))).collect(),
            is_dashed: true,
        });
        [measured].into_iter().chain(curve)
    });
    let series: Vec<Series> = series.collect();
    html! {
        @if !series.is_empty() {
            h3 { "Bytes on the wire" }
            (figure(
                "bytes on the store's connections per byte of objects, in both directions, without TCP and IP headers; dashed: \
                 fitted curve",
                line_chart((AxisScale::Logarithmic, "object size, KiB"), (AxisScale::Logarithmic, "ratio"), &series),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;
    use crate::result::{Measurement, NetworkUsage};
    use crate::size_distribution::SizeDistribution;

    /// A measurement of 100 objects with an overhead of `overhead_bytes` bytes each.
    fn measurement(operation: &str, size: u64, concurrency: usize, overhead_bytes: u64) -> Measurement {
        let mut measurement = crate::result::tests::measurement(operation, concurrency, 1, 100.0);
        measurement.sizes = SizeDistribution::Fixed(size);
        measurement.bytes_per_second.mean = 100.0 * size as f64;
        measurement.network =
            NetworkUsage { bytes_sent: 100 * size, bytes_received: 100 * overhead_bytes, connections: 1 };
        measurement
    }

    #[test]
    fn overhead_per_object_is_drawn_and_described() {
        let sizes = [4_u64 << 10, 64 << 10, 1 << 20];
        let mut measurements: Vec<Measurement> =
            sizes.into_iter().map(|size| measurement("put", size, 2, 1536)).collect();
        // Higher concurrency is not used, nor are operations without a body.
        measurements.extend(sizes.map(|size| measurement("put", size, 16, 99_000)));
        measurements.extend(sizes.map(|size| measurement("head", size, 1, 1000)));
        measurements.push(measurement("get", 4096, 1, 1000));
        let rows = rows(&measurements);
        assert_eq!(
            sentences(&rows),
            ["Each object written adds 1.5 KiB of overhead on the wire, in both directions together."]
        );
        let all = wire_ratios(&rows);
        assert_eq!((all.len(), all[0].ratios[0]), (1, (4.0, 1.375)));
        let drawn = section(&rows).into_string();
        assert!(drawn.contains("put x 2") && drawn.contains("put, 1 + 1.5 KiB / s"), "{drawn}");
        assert!(!drawn.contains("get") && !drawn.contains("cannot be drawn"), "{drawn}");
    }

    #[test]
    fn measurements_without_byte_counts_are_not_drawn() {
        let mut measurements = [4096, 65_536].map(|size| measurement("get", size, 1, 700));
        assert_eq!(sentences(&rows(&measurements)).len(), 1);
        measurements.iter_mut().for_each(|measurement| measurement.network = NetworkUsage::default());
        assert_eq!(
            (sentences(&rows(&measurements)).len(), section(&rows(&measurements)).into_string()),
            (0, String::new())
        );
        // A cost proportional to the size is not a constant overhead.
        let measurements = [4096, 65_536, 1 << 20].map(|size| measurement("get", size, 1, size));
        assert_eq!(sentences(&rows(&measurements)), [""; 0]);
        assert!(section(&rows(&measurements)).into_string().contains("get x 1"));
    }
}
