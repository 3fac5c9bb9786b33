//! What loads lose by each other: each measured alone and beside others (Hou 2017, section 4.4).

use hdrhistogram::Histogram;

use crate::asked::Asked;
use crate::drive::Ending;
use crate::record::histogram;
use crate::result::Cell;

/// A load beside others, against itself alone; all repetitions together.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The load.
    pub load: Asked,
    /// What ran beside it, in words.
    pub beside: String,
    /// Alone.
    pub alone: Speed,
    /// Beside the others.
    pub together: Speed,
}

/// How fast a load was.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Speed {
    /// Requests a second, in the mean of the repetitions.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Half of the requests of all repetitions took no longer, in microseconds.
    pub p50: f64,
    /// 99 of a hundred.
    pub p99: f64,
}

impl Loss {
    /// The part of its throughput that is left, of 1.
    #[must_use]
    pub fn left(&self) -> f64 {
        self.together.per_second / self.alone.per_second
    }

    /// How many times as long requests take in the median.
    #[must_use]
    pub fn longer(&self) -> f64 {
        self.together.p50 / self.alone.p50
    }
}

/// Marks what was measured at the same time, where one of it was overrun: that ended early, and the others ran on without it.
pub(crate) fn void_beside(stage: &mut [Cell]) {
    let Some(void) = stage.iter().find(|cell| cell.is_void()).map(|cell| cell.asked().to_string()) else {
        return;
    };
    for cell in stage.iter_mut().filter(|cell| !cell.is_partial()) {
        cell.ending = Ending::Overrun;
        cell.notes.push(format!(
            "this is void: the store was so far behind the rate of {void} beside it that that ended early, and this ran on \
             without it"
        ));
    }
}

/// All loads that were measured both alone and beside others, in the order of the result.
#[must_use]
pub fn losses(cells: &[Cell]) -> Vec<Loss> {
    let is_good = |cell: &Cell| !cell.is_partial() && !cell.has_nothing();
    let whole = || cells.iter().filter(|cell| is_good(cell) && neighbours(cell, cells).all(is_good));
    let mut losses: Vec<Loss> = Vec::new();
    for cell in whole().filter(|cell| !cell.beside.is_empty()) {
        let (load, beside) = (cell.asked(), cell.beside.join(" and "));
        if losses.iter().any(|loss| loss.load == load && loss.beside == beside) {
            continue;
        }
        let of = |beside: &[String]| {
            speed(&whole().filter(|cell| cell.beside == beside && cell.asked() == load).collect::<Vec<_>>())
        };
        if let (Some(alone), Some(together)) = (of(&[]), of(&cell.beside)) {
            losses.push(Loss { load, beside, alone, together });
        }
    }
    losses
}

/// What ran at the same time.
fn neighbours<'a>(cell: &'a Cell, cells: &'a [Cell]) -> impl Iterator<Item = &'a Cell> {
    let others =
        cells.iter().filter(|other| other.repeat == cell.repeat && other.beside.len() == cell.beside.len());
    others.filter(|other| {
        let (name, mine) = (other.asked().to_string(), cell.asked().to_string());
        cell.beside.contains(&name) && other.beside.contains(&mine)
    })
}

/// Of the same load several times; `None` where there is none.
fn speed(cells: &[&Cell]) -> Option<Speed> {
    let count = cells.len() as f64;
    let mean = |of: fn(&Cell) -> f64| cells.iter().map(|cell| of(cell)).sum::<f64>() / count;
    let mut latencies: Histogram<u64> = histogram();
    for figures in cells.iter().flat_map(|cell| cell.operations.values()) {
        // It grows as it needs to.
        let _ = latencies.add(figures.latency_us.histogram());
    }
    (!cells.is_empty()).then(|| Speed {
        per_second: mean(|cell| cell.operations_per_second.mean),
        bytes_per_second: mean(|cell| cell.bytes_per_second.mean),
        p50: latencies.value_at_quantile(0.5) as f64,
        p99: latencies.value_at_quantile(0.99) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::cell;

    #[test]
    fn a_load_is_held_against_itself_alone() {
        let beside = |name: &str, rate| Cell { beside: vec![name.to_owned()], ..cell("put", 4, 1, rate) };
        let cells = [
            cell("put", 4, 1, 90.0),
            cell("put", 4, 2, 110.0),
            cell("get", 1, 1, 50.0),
            beside("get 4KiB x 1", 20.0),
            beside("get 4KiB x 1", 30.0),
            beside("put 4KiB x 4", 50.0),
            Cell { beside: vec!["put 4KiB x 4".to_owned()], ..cell("head", 1, 1, 5.0) },
            // It was beside one that did nothing.
            cell("get", 8, 1, 70.0),
            Cell { beside: vec!["put 4KiB x 16".to_owned()], ..cell("get", 8, 1, 70.0) },
            Cell { beside: vec!["get 4KiB x 8".to_owned()], ..cell("put", 16, 1, 0.0) },
        ];
        let losses = losses(&cells);
        assert_eq!(losses.len(), 2, "what was never alone is not among them: {losses:?}");
        assert_eq!(
            (losses[0].load.to_string(), &*losses[0].beside),
            ("put 4KiB x 4".to_owned(), "get 4KiB x 1")
        );
        assert!((losses[0].left() - 0.25).abs() < 1e-9 && (losses[1].left() - 0.5).abs() < 1e-9);
        assert!((losses[0].longer() - 1.0).abs() < 1e-9);
    }
}
