//! Merges the measurements of agents into one for each load of a stage. If results of one load are missing or it was
//! overrun, it is unknown for how long the others ran concurrently with it, so they are marked as well.

use std::time::Duration;

use super::assignment::Assignment;
use crate::drive::EndReason;
use crate::interference::void_stage;
use crate::load::ArrivalMode;
use crate::result::{AgentMeasurement, Measurement, merge_agents};

/// Merges the parts of each load. Loads without parts are omitted. `apart` is the maximum skew between the starts of
/// the agents, and `why` the reason for missing parts.
pub fn merge_stage(
    act: &[Assignment],
    parts: Vec<Vec<AgentMeasurement>>,
    apart: Duration,
    why: &str,
) -> Vec<Measurement> {
    let missing = |(duty, parts): (&Assignment, &Vec<AgentMeasurement>)| {
        let (missing, of) = (duty.agents.len().saturating_sub(parts.len()), duty.agents.len());
        (missing > 0).then(|| format!("results of {missing} of {of} agents"))
    };
    let missing: Vec<Option<String>> = act.iter().zip(&parts).map(missing).collect();
    let mut cells = Vec::new();
    for (n, parts) in parts.into_iter().enumerate() {
        let Some(mut cell) = merge_agents(parts, apart) else { continue };
        let others = || act.iter().enumerate().filter(|(other, _)| *other != n);
        cell.concurrent_with = others().map(|(_, duty)| duty.total_load().to_string()).collect();
        if let Some(what) = &missing[n] {
            cell.notes.push(format!("{what} are missing: {why}"));
        } else if let ArrivalMode::Open { requests_per_second: per_second, .. } =
            act[n].step.load.arrival_mode
        {
            // The sum of the shares may be off in the last digit, which would change the name.
            cell.requests_per_second = Some(per_second);
        }
        for (other, duty) in others() {
            if let Some(what) = &missing[other] {
                cell.notes
                    .push(format!("{what} for the concurrent {} are missing: {why}", duty.total_load()));
            }
        }
        if missing.iter().any(Option::is_some) {
            cell.end_reason = EndReason::Stopped;
        }
        cells.push(cell);
    }
    void_stage(&mut cells);
    cells
}

#[cfg(test)]
mod tests {
    use super::super::assignment::assign_isolated;
    use super::*;
    use crate::load::StopCondition;
    use crate::result::tests::measurement;
    use crate::test_plan::TestPlan;

    /// Two concurrent loads on different agents.
    fn act() -> Vec<Assignment> {
        let until =
            StopCondition { max_requests: None, duration: Duration::from_secs(1), max_ci_fraction: None };
        let asked = ["put 4KiB x 4", "get 4KiB x 1"].map(|text| text.parse().unwrap()).to_vec();
        let survey =
            TestPlan { loads: asked, stop_condition: until, warm_up: Duration::ZERO, objects: None, seed: 1 };
        assign_isolated(&[survey.steps(1)], 2).unwrap().remove(0)
    }

    fn part(operation: &str, parallel: usize, ending: EndReason) -> AgentMeasurement {
        let cell = Measurement { end_reason: ending, ..measurement(operation, parallel, 1, 50.0) };
        AgentMeasurement { address: operation.to_owned(), cores: 2, measurement: cell }
    }

    #[test]
    fn load_concurrent_with_a_lost_one_is_partial() {
        let (put, get) = (|| part("put", 4, EndReason::TimeLimit), || part("get", 1, EndReason::TimeLimit));
        let whole = merge_stage(&act(), vec![vec![put()], vec![get()]], Duration::ZERO, "");
        assert!(whole.len() == 2 && whole.iter().all(|cell| !cell.is_partial() && cell.notes.is_empty()));
        let left = merge_stage(&act(), vec![Vec::new(), vec![get()]], Duration::ZERO, "it ended");
        assert_eq!((left.len(), left[0].end_reason), (1, EndReason::Stopped));
        assert_eq!(
            left[0].notes,
            ["results of 1 of 1 agents for the concurrent put 4KiB x 4 are missing: it ended"]
        );
    }

    #[test]
    fn load_concurrent_with_an_overrun_one_is_void() {
        let (put, get) = (part("put", 4, EndReason::TimeLimit), part("get", 1, EndReason::Overrun));
        let both = merge_stage(&act(), vec![vec![put], vec![get]], Duration::ZERO, "");
        assert!(both.iter().all(Measurement::is_void), "{both:?}");
        assert!(both[0].notes[0].contains("get 4KiB x 1 beside it"), "{:?}", both[0].notes);
        assert_eq!(both[1].notes, [""; 0]);
    }
}
