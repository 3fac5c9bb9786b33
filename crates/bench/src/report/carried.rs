//! How many bytes a store's connections carried for each byte of objects, by their size, with the curve that mounted file
//! systems are described by too (Ou 2015, section IV-F): so that a store can be seen beside what is built on it. Requests are
//! those of the fewest at a time, where the least is sent again or kept in wait.

use maud::{Markup, html};

use super::charts::{Axis, Series, figure, lines, short};
use super::means;
use super::rows::Row;
use crate::operation::Operation;
use crate::posix::amplification::{Fit, Point, fit};

/// What was seen of a kind of request.
#[derive(Debug)]
struct Seen {
    operation: Operation,
    /// Requests at a time.
    parallel: usize,
    /// KiB of an object in the mean, and bytes on the connections for each of its bytes.
    ratios: Vec<(f64, f64)>,
    fit: Option<Fit>,
}

/// What was seen of each kind of request that carries objects and was measured with several sizes.
fn seen(rows: &[Row<'_>]) -> Vec<Seen> {
    let of = |operation: Operation| {
        let those = || rows.iter().filter(move |row| row.operation == operation);
        let parallel =
            those().flat_map(|row| row.by_parallel.first()).map(|(parallel, _)| *parallel).min()?;
        let cells = those().flat_map(|row| &row.by_parallel).filter(|(at, _)| *at == parallel);
        let ratios = means(
            cells
                .flat_map(|(_, cells)| cells)
                .filter_map(|cell| Some((cell.sizes.mean() / 1024.0, cell.amplification()?))),
        );
        let points: Vec<Point> =
            ratios.iter().map(|(kib, ratio)| Point { kib: *kib, ratio: *ratio }).collect();
        (ratios.len() > 1).then(|| Seen { operation, parallel, ratios, fit: fit(&points) })
    };
    [Operation::Put, Operation::Get].into_iter().filter_map(of).collect()
}

/// What is sent on top of an object, where that is the same for all sizes.
pub(super) fn words(rows: &[Row<'_>]) -> Vec<String> {
    let seen = seen(rows);
    let described = seen
        .iter()
        .filter_map(|seen| Some((seen, seen.fit.filter(|fit| fit.describes() && fit.constant_kib > 0.0)?)));
    let said = described.map(|(seen, fit)| {
        format!(
            "For each object that is {} the connections carry {} KiB on top of it, both ways.",
            if seen.operation == Operation::Put { "written" } else { "read" },
            short(fit.constant_kib)
        )
    });
    said.collect()
}

/// The chart; nothing where nothing was counted, or of one size only.
pub(super) fn section(rows: &[Row<'_>]) -> Markup {
    let seen = seen(rows);
    let series = seen.iter().flat_map(|Seen { operation, parallel, ratios, fit }| {
        let measured =
            Series { name: format!("{operation} x {parallel}"), points: ratios.clone(), is_second: false };
        let curve = fit.map(|fit| Series {
            name: format!("{operation}, 1 + {} KiB / s", short(fit.constant_kib)),
            points: ratios.iter().map(|(at, _)| (*at, fit.at(*at))).collect(),
            is_second: true,
        });
        [measured].into_iter().chain(curve)
    });
    let series: Vec<Series> = series.collect();
    html! {
        @if !series.is_empty() {
            h3 { "what the wire carries" }
            (figure(
                "bytes on the store's connections, both ways, for each byte of objects, without what TCP and IP add; dashed what \
                 was fitted",
                lines((Axis::Logarithmic, "KiB of an object"), (Axis::Logarithmic, "times"), &series),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;
    use crate::result::Cell;
    use crate::sizes::Sizes;

    /// One that has so many bytes on top of each of 100 objects.
    fn cell(operation: &str, size: u64, parallel: usize, on_top: u64) -> Cell {
        let mut cell = crate::result::tests::cell(operation, parallel, 1, 100.0);
        cell.sizes = Sizes::Fixed(size);
        cell.bytes_per_second.mean = 100.0 * size as f64;
        cell.carried = (100 * size, 100 * on_top, 1);
        cell
    }

    #[test]
    fn what_is_on_top_of_an_object_is_drawn_and_told() {
        let sizes = [4_u64 << 10, 64 << 10, 1 << 20];
        let mut cells: Vec<Cell> = sizes.into_iter().map(|size| cell("put", size, 2, 1536)).collect();
        // More at a time are not what is looked at, nor is what carries no object.
        cells.extend(sizes.map(|size| cell("put", size, 16, 99_000)));
        cells.extend(sizes.map(|size| cell("head", size, 1, 1000)));
        cells.push(cell("get", 4096, 1, 1000));
        let rows = rows(&cells);
        assert_eq!(
            words(&rows),
            ["For each object that is written the connections carry 1.5 KiB on top of it, both ways."]
        );
        let seen = seen(&rows);
        assert_eq!((seen.len(), seen[0].ratios[0]), (1, (4.0, 1.375)));
        let drawn = section(&rows).into_string();
        assert!(drawn.contains("put x 2") && drawn.contains("put, 1 + 1.5 KiB / s"), "{drawn}");
        assert!(!drawn.contains("get") && !drawn.contains("cannot be drawn"), "{drawn}");
    }

    #[test]
    fn what_was_not_counted_is_not_drawn() {
        let mut cells = [4096, 65_536].map(|size| cell("get", size, 1, 700));
        assert_eq!(words(&rows(&cells)).len(), 1);
        cells.iter_mut().for_each(|cell| cell.carried = (0, 0, 0));
        assert_eq!((words(&rows(&cells)).len(), section(&rows(&cells)).into_string()), (0, String::new()));
        // Something that grows with each byte is no constant.
        let cells = [4096, 65_536, 1 << 20].map(|size| cell("get", size, 1, size));
        assert_eq!(words(&rows(&cells)), [""; 0]);
        assert!(section(&rows(&cells)).into_string().contains("get x 1"));
    }
}
