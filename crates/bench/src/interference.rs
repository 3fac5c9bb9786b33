//! What loads lose by each other: each measured alone and beside others (Hou 2017, section 4.4).

use std::collections::BTreeMap;

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
    /// Half of the requests of all repetitions took no longer, in microseconds; `None` where they took longer than all that counted.
    pub p50: Option<f64>,
    /// 99 of a hundred.
    pub p99: Option<f64>,
}

impl Loss {
    /// The part of its throughput that is left, of 1.
    #[must_use]
    pub fn left(&self) -> f64 {
        self.together.per_second / self.alone.per_second
    }

    /// How many times as long requests take in the median, where both are known.
    #[must_use]
    pub fn longer(&self) -> Option<f64> {
        Some(self.together.p50? / self.alone.p50?)
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
    let whole = whole(cells);
    let mut losses: Vec<Loss> = Vec::new();
    for cell in whole.iter().filter(|cell| !cell.beside.is_empty()) {
        let (load, beside) = (cell.asked(), cell.beside.join(" and "));
        if losses.iter().any(|loss| loss.load == load && loss.beside == beside) {
            continue;
        }
        let of = |beside: &[String]| {
            let same = whole.iter().filter(|cell| cell.beside == beside && cell.asked() == load);
            speed(&same.copied().collect::<Vec<_>>())
        };
        if let (Some(alone), Some(together)) = (of(&[]), of(&cell.beside)) {
            losses.push(Loss { load, beside, alone, together });
        }
    }
    losses
}

fn is_good(cell: &Cell) -> bool {
    !cell.is_partial() && !cell.has_nothing()
}

/// Those that say something, and beside which all that was to run is there and does too. The same loads may have run together
/// several times in one round, and a load beside itself: then they are as often as many.
fn whole(cells: &[Cell]) -> Vec<&Cell> {
    let mut stages: BTreeMap<(u32, Vec<String>), (usize, bool)> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| !cell.beside.is_empty()) {
        let (count, are_good) = stages.entry((cell.repeat, stage(cell))).or_insert((0, true));
        *count += 1;
        *are_good &= is_good(cell);
    }
    let is_whole = |cell: &Cell| {
        let Some((count, are_good)) = stages.get(&(cell.repeat, stage(cell))) else { return false };
        *are_good && count.is_multiple_of(1 + cell.beside.len())
    };
    cells.iter().filter(|cell| is_good(cell) && (cell.beside.is_empty() || is_whole(cell))).collect()
}

/// What ran at the same time, itself among it, in an order that is the same for all of them.
fn stage(cell: &Cell) -> Vec<String> {
    let mut all = cell.beside.clone();
    all.push(cell.asked().to_string());
    all.sort_unstable();
    all
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
    let at = |part: f64| (!latencies.is_empty()).then(|| latencies.value_at_quantile(part) as f64);
    (!cells.is_empty()).then(|| Speed {
        per_second: mean(|cell| cell.operations_per_second.mean),
        bytes_per_second: mean(|cell| cell.bytes_per_second.mean),
        p50: at(0.5),
        p99: at(0.99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::cell;

    #[test]
    fn a_load_is_held_against_itself_alone() {
        let (put, get) = ("put 4KiB x 4", "get 4KiB x 1");
        let beside = |cell: Cell, name: &str| Cell { beside: vec![name.to_owned()], ..cell };
        let cells = [
            cell("put", 4, 1, 90.0),
            cell("put", 4, 2, 110.0),
            beside(cell("put", 4, 1, 20.0), get),
            beside(cell("get", 1, 1, 5.0), put),
            beside(cell("put", 4, 2, 30.0), get),
            beside(cell("get", 1, 2, 5.0), put),
            // Itself.
            beside(cell("put", 4, 1, 50.0), put),
            beside(cell("put", 4, 1, 50.0), put),
            // It was beside one that did nothing.
            cell("get", 8, 1, 70.0),
            beside(cell("get", 8, 1, 70.0), "put 4KiB x 16"),
            beside(cell("put", 16, 1, 0.0), "get 4KiB x 8"),
        ];
        let losses = losses(&cells);
        assert_eq!(losses.len(), 2, "what was never alone is not among them: {losses:?}");
        assert_eq!(
            (losses[0].load.to_string(), &*losses[0].beside),
            ("put 4KiB x 4".to_owned(), "get 4KiB x 1")
        );
        assert!((losses[0].left() - 0.25).abs() < 1e-9 && (losses[1].left() - 0.5).abs() < 1e-9);
        assert!(losses[0].longer().is_some_and(|times| (times - 1.0).abs() < 1e-9));
    }

    #[test]
    fn what_ran_beside_nothing_lost_nothing_by_it() {
        let (put, get) = ("put 4KiB x 4", "get 4KiB x 1");
        let beside = |cell: Cell, names: &[&str]| Cell {
            beside: names.iter().map(|name| (*name).to_owned()).collect(),
            ..cell
        };
        let (alone, other) = (cell("put", 4, 1, 90.0), cell("get", 1, 1, 60.0));
        let lost = |cells: &[Cell]| losses(&[&[alone.clone(), other.clone()], cells].concat()).len();
        let one = beside(cell("put", 4, 1, 20.0), &[get]);
        let its = beside(cell("get", 1, 1, 20.0), &[put]);
        assert_eq!(lost(&[one.clone(), its.clone()]), 2);
        assert_eq!(lost(std::slice::from_ref(&one)), 0, "the other was lost");
        let another_round = Cell { repeat: 2, ..its.clone() };
        assert_eq!(lost(&[one.clone(), another_round]), 0);
        let itself = beside(cell("put", 4, 1, 20.0), &[put]);
        assert_eq!(lost(&[itself.clone(), itself.clone()]), 1);
        assert_eq!(lost(&[itself]), 0, "of a load beside itself one half was lost");
        let first = beside(cell("put", 4, 1, 20.0), &[put, get]);
        let third = beside(cell("get", 1, 1, 20.0), &[put, put]);
        assert_eq!(lost(&[first.clone(), first.clone(), third.clone()]), 2);
        assert_eq!(lost(&[first, third]), 0);
        assert_eq!(lost(&[one.clone(), its.clone(), its, one]), 2, "twice in a round");
    }
}
