//! Merges the measurements of agents into one for each load of a stage. If results of one load are missing or it was
//! overrun, it is unknown for how long the others ran concurrently with it, so they are marked as well.

use std::time::Duration;

use super::assignment::Assignment;
use crate::drive::EndReason;
use crate::interference::void_stage;
use crate::load::ArrivalMode;
use crate::result::{AgentMeasurement, Measurement, merge_agents};

/// Merges the parts of each load. Loads without parts are omitted. `start_skew` is the maximum skew between the starts
/// of the agents, and `reason` the reason for missing parts.
pub fn merge_stage(
    assignments: &[Assignment],
    parts: Vec<Vec<AgentMeasurement>>,
    start_skew: Duration,
    reason: &str,
) -> Vec<Measurement> {
    let missing = |(assignment, parts): (&Assignment, &Vec<AgentMeasurement>)| {
        let (missing_count, agent_count) =
            (assignment.agents.len().saturating_sub(parts.len()), assignment.agents.len());
        (missing_count > 0).then(|| format!("results of {missing_count} of {agent_count} agents"))
    };
    let missing: Vec<Option<String>> = assignments.iter().zip(&parts).map(missing).collect();
    let mut measurements = Vec::new();
    for (n, parts) in parts.into_iter().enumerate() {
        let Some(mut measurement) = merge_agents(parts, start_skew) else { continue };
        let others = || assignments.iter().enumerate().filter(|(other, _)| *other != n);
        measurement.concurrent_with =
            others().map(|(_, assignment)| assignment.total_load().to_string()).collect();
        if let Some(missing_parts) = &missing[n] {
            measurement.notes.push(format!("{missing_parts} are missing: {reason}"));
        } else if let ArrivalMode::Open { requests_per_second, .. } = assignments[n].step.load.arrival_mode {
            // The sum of the shares may be off in the last digit, which would change the name.
            measurement.requests_per_second = Some(requests_per_second);
        }
        for (other, assignment) in others() {
            if let Some(missing_parts) = &missing[other] {
                measurement.notes.push(format!(
                    "{missing_parts} for the concurrent {} are missing: {reason}",
                    assignment.total_load()
                ));
            }
        }
        if missing.iter().any(Option::is_some) {
            measurement.end_reason = EndReason::Stopped;
        }
        measurements.push(measurement);
    }
    void_stage(&mut measurements);
    measurements
}

#[cfg(test)]
mod tests {
    use super::super::assignment::assign_isolated;
    use super::*;
    use crate::load::StopCondition;
    use crate::result::tests::measurement;
    use crate::test_plan::TestPlan;

    /// Two concurrent loads on different agents.
    fn assignments() -> Vec<Assignment> {
        let stop_condition =
            StopCondition { max_requests: None, duration: Duration::from_secs(1), max_ci_fraction: None };
        let loads = ["put 4KiB x 4", "get 4KiB x 1"].map(|text| text.parse().unwrap()).to_vec();
        let plan = TestPlan { loads, stop_condition, warm_up: Duration::ZERO, objects: None, seed: 1 };
        assign_isolated(&[plan.steps(1)], 2).unwrap().remove(0)
    }

    fn part(operation: &str, concurrency: usize, end_reason: EndReason) -> AgentMeasurement {
        let measurement = Measurement { end_reason, ..measurement(operation, concurrency, 1, 50.0) };
        AgentMeasurement { address: operation.to_owned(), cores: 2, measurement }
    }

    #[test]
    fn load_concurrent_with_a_lost_one_is_partial() {
        let (put, get) = (|| part("put", 4, EndReason::TimeLimit), || part("get", 1, EndReason::TimeLimit));
        let whole = merge_stage(&assignments(), vec![vec![put()], vec![get()]], Duration::ZERO, "");
        assert!(
            whole.len() == 2
                && whole.iter().all(|measurement| !measurement.is_partial() && measurement.notes.is_empty())
        );
        let left = merge_stage(&assignments(), vec![Vec::new(), vec![get()]], Duration::ZERO, "it ended");
        assert_eq!((left.len(), left[0].end_reason), (1, EndReason::Stopped));
        assert_eq!(
            left[0].notes,
            ["results of 1 of 1 agents for the concurrent put 4KiB x 4 are missing: it ended"]
        );
    }

    #[test]
    fn load_concurrent_with_an_overrun_one_is_void() {
        let (put, get) = (part("put", 4, EndReason::TimeLimit), part("get", 1, EndReason::Overrun));
        let both = merge_stage(&assignments(), vec![vec![put], vec![get]], Duration::ZERO, "");
        assert!(both.iter().all(Measurement::is_void), "{both:?}");
        assert!(
            both[0].notes[0].contains("the concurrent load get 4KiB x 1 ended early"),
            "{:?}",
            both[0].notes
        );
        assert_eq!(both[1].notes, [""; 0]);
    }
}
