//! Merges the measurements of agents into one for each load of a stage. If results of one load are missing or it was
//! overrun, it is unknown for how long the others ran concurrently with it, so they are marked as well.

use std::time::Duration;

use super::duty::Duty;
use crate::drive::Ending;
use crate::interference::void_beside;
use crate::load::Pace;
use crate::result::{Cell, Part, merge};

/// Merges the parts of each load. Loads without parts are omitted. `apart` is the maximum skew between the starts of
/// the agents, and `why` the reason for missing parts.
pub fn cells(act: &[Duty], parts: Vec<Vec<Part>>, apart: Duration, why: &str) -> Vec<Cell> {
    let missing = |(duty, parts): (&Duty, &Vec<Part>)| {
        let (missing, of) = (duty.agents.len().saturating_sub(parts.len()), duty.agents.len());
        (missing > 0).then(|| format!("results of {missing} of {of} agents"))
    };
    let missing: Vec<Option<String>> = act.iter().zip(&parts).map(missing).collect();
    let mut cells = Vec::new();
    for (n, parts) in parts.into_iter().enumerate() {
        let Some(mut cell) = merge(parts, apart) else { continue };
        let others = || act.iter().enumerate().filter(|(other, _)| *other != n);
        cell.beside = others().map(|(_, duty)| duty.asked().to_string()).collect();
        if let Some(what) = &missing[n] {
            cell.notes.push(format!("{what} are missing: {why}"));
        } else if let Pace::Open { per_second, .. } = act[n].step.load.pace {
            // The sum of the shares may be off in the last digit, which would change the name.
            cell.rate = Some(per_second);
        }
        for (other, duty) in others() {
            if let Some(what) = &missing[other] {
                cell.notes.push(format!("{what} for the concurrent {} are missing: {why}", duty.asked()));
            }
        }
        if missing.iter().any(Option::is_some) {
            cell.ending = Ending::Stopped;
        }
        cells.push(cell);
    }
    void_beside(&mut cells);
    cells
}

#[cfg(test)]
mod tests {
    use super::super::duty::apart;
    use super::*;
    use crate::load::Until;
    use crate::result::tests::cell;
    use crate::survey::Survey;

    /// Two concurrent loads on different agents.
    fn act() -> Vec<Duty> {
        let until = Until { requests: None, time: Duration::from_secs(1), stable: None };
        let asked = ["put 4KiB x 4", "get 4KiB x 1"].map(|text| text.parse().unwrap()).to_vec();
        let survey = Survey { asked, until, warm_up: Duration::ZERO, objects: None, seed: 1 };
        apart(&[survey.steps(1)], 2).unwrap().remove(0)
    }

    fn part(operation: &str, parallel: usize, ending: Ending) -> Part {
        let cell = Cell { ending, ..cell(operation, parallel, 1, 50.0) };
        Part { agent: operation.to_owned(), cores: 2, cell }
    }

    #[test]
    fn load_concurrent_with_a_lost_one_is_partial() {
        let (put, get) = (|| part("put", 4, Ending::Time), || part("get", 1, Ending::Time));
        let whole = cells(&act(), vec![vec![put()], vec![get()]], Duration::ZERO, "");
        assert!(whole.len() == 2 && whole.iter().all(|cell| !cell.is_partial() && cell.notes.is_empty()));
        let left = cells(&act(), vec![Vec::new(), vec![get()]], Duration::ZERO, "it ended");
        assert_eq!((left.len(), left[0].ending), (1, Ending::Stopped));
        assert_eq!(
            left[0].notes,
            ["results of 1 of 1 agents for the concurrent put 4KiB x 4 are missing: it ended"]
        );
    }

    #[test]
    fn load_concurrent_with_an_overrun_one_is_void() {
        let (put, get) = (part("put", 4, Ending::Time), part("get", 1, Ending::Overrun));
        let both = cells(&act(), vec![vec![put], vec![get]], Duration::ZERO, "");
        assert!(both.iter().all(Cell::is_void), "{both:?}");
        assert!(both[0].notes[0].contains("get 4KiB x 1 beside it"), "{:?}", both[0].notes);
        assert_eq!(both[1].notes, [""; 0]);
    }
}
