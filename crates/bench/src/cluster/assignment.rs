//! Assigns concurrent loads to agents. Either every agent runs all loads, or the loads are isolated: each runs on its
//! own agents, so that any slowdown is caused by the store and not by a shared client machine.

use super::messages::{self, MAX_CONCURRENT_LOADS};
use crate::load::ArrivalMode;
use crate::load_spec::LoadSpec;
use crate::random::mix;
use crate::runner::Stage;
use crate::test_plan::Step;

/// The assignment of a load to agents.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The load. Its concurrency is per agent, its rate is the total of all agents.
    pub step: Step,
    /// Numbers of the agents, counted from 1.
    pub agents: Vec<u32>,
}

/// Loads that run concurrently, with their agents.
pub type AssignedStage = Vec<Assignment>;

impl Assignment {
    /// The total load of all agents, which names the measurement.
    #[must_use]
    pub fn total_load(&self) -> LoadSpec {
        let spec = self.step.load_spec();
        LoadSpec { concurrency: spec.concurrency.saturating_mul(self.agents.len()), ..spec }
    }

    /// The load of one agent: the full concurrency, a fraction of the rate with a phase that keeps evenly spaced
    /// requests of all agents evenly spaced, and a separate seed.
    fn share(&self, agent: u32) -> Step {
        let mut step = self.step.clone();
        step.load.seed = mix(step.load.seed ^ mix(u64::from(agent)));
        if let ArrivalMode::Open { requests_per_second, .. } = &mut step.load.arrival_mode {
            let agents = self.agents.len().max(1) as f64;
            *requests_per_second /= agents;
            // With equal phases, all agents would send at the same times.
            let index = self.agents.iter().position(|each| *each == agent).unwrap_or_default();
            step.load.phase = index as f64 / agents;
        }
        step
    }
}

/// Assigns all loads of each stage to every agent.
#[must_use]
pub fn assign_to_all(stages: &[Stage], agents: u32) -> Vec<AssignedStage> {
    let assignment = |step: &Step| Assignment { step: step.clone(), agents: (1..=agents).collect() };
    stages.iter().map(|stage| stage.iter().map(assignment).collect()).collect()
}

/// Assigns the loads of each stage to separate agents, round-robin. A load that also runs alone does so on exactly the
/// agents that run it in concurrent stages, once for each different group of them. Fails if the loads cannot be divided
/// evenly.
pub fn assign_isolated(stages: &[Stage], agents: u32) -> Result<Vec<AssignedStage>, String> {
    let max_loads = stages.iter().map(Vec::len).max().unwrap_or(0);
    let concurrent_stages: Vec<&Stage> = stages.iter().filter(|stage| stage.len() > 1).collect();
    if concurrent_stages.iter().any(|stage| stage.len() != max_loads) {
        return Err(
            "isolated loads need the same number of loads in every stage: name as many after each --concurrent-with"
                .to_owned(),
        );
    }
    let groups = u32::try_from(max_loads).unwrap_or(u32::MAX).max(1);
    if agents == 0 || !agents.is_multiple_of(groups) {
        return Err(format!(
            "{agents} agents cannot be divided evenly among {groups} loads: use a multiple of {groups}"
        ));
    }
    let group = |n: usize| (1..=agents).filter(|agent| ((agent - 1) % groups) as usize == n).collect();
    let assignment = |(n, step): (usize, &Step)| Assignment { step: step.clone(), agents: group(n) };
    let assigned_stages = stages.iter().flat_map(|stage| match stage.as_slice() {
        [alone] => {
            let spec = alone.load_spec();
            let runs_load = |n: &usize| concurrent_stages.iter().any(|stage| stage[*n].load_spec() == spec);
            (0..max_loads).filter(runs_load).map(|n| vec![assignment((n, alone))]).collect()
        }
        _ => vec![stage.iter().enumerate().map(assignment).collect()],
    });
    Ok(assigned_stages.collect())
}

/// The loads of one agent: the index of each assignment, and the agent's share of it.
pub fn loads_for_agent(assignments: &[Assignment], agent: u32) -> Vec<(usize, Step)> {
    let own = assignments.iter().enumerate().filter(|(_, assignment)| assignment.agents.contains(&agent));
    own.map(|(n, assignment)| (n, assignment.share(agent))).collect()
}

/// Validates all stages before anything is measured. Fails with the reason why an agent would reject its part.
pub fn check_stages(assigned_stages: &[AssignedStage], agents: u32) -> Result<(), String> {
    for assignments in assigned_stages {
        for agent in 1..=agents {
            let stage: Stage =
                loads_for_agent(assignments, agent).into_iter().map(|(_, share)| share).collect();
            if stage.is_empty() {
                continue;
            }
            messages::check_stage(&stage, MAX_CONCURRENT_LOADS, u64::MAX).map_err(|reason| {
                let loads: Vec<String> = stage.iter().map(ToString::to_string).collect();
                format!("an agent cannot run {}: {reason}", loads.join(" with "))
            })?;
        }
    }
    Ok(())
}

/// The maximum number of concurrent loads of one agent, and its maximum number of concurrent requests.
#[must_use]
pub fn max_agent_load(assigned_stages: &[AssignedStage], agents: u32) -> (usize, usize) {
    let stages = || {
        assigned_stages
            .iter()
            .flat_map(|assignments| (1..=agents).map(|agent| loads_for_agent(assignments, agent)))
    };
    let concurrency =
        |stage: Vec<(usize, Step)>| stage.iter().map(|(_, step)| step.load.concurrency).sum::<usize>();
    (stages().map(|stage| stage.len()).max().unwrap_or(1), stages().map(concurrency).max().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::arrivals::Arrivals;
    use crate::load::StopCondition;
    use crate::test_plan::TestPlan;

    fn stages(texts: &[&[&str]]) -> Vec<Stage> {
        let stop_condition =
            StopCondition { max_requests: None, duration: Duration::from_secs(1), max_ci_fraction: None };
        let stage = |loads: &&[&str]| {
            let loads = loads.iter().map(|text| text.parse().unwrap()).collect();
            TestPlan { loads, stop_condition, warm_up: Duration::ZERO, objects: None, seed: 1 }.steps(1)
        };
        texts.iter().map(stage).collect()
    }

    fn shown(assigned_stages: &[AssignedStage]) -> Vec<String> {
        let assignment =
            |assignment: &Assignment| format!("{} on {:?}", assignment.total_load(), assignment.agents);
        assigned_stages
            .iter()
            .map(|assignments| assignments.iter().map(assignment).collect::<Vec<_>>().join(" with "))
            .collect()
    }

    #[test]
    fn assign_to_all_gives_each_agent_a_share_of_each_load() {
        let assigned_stages =
            assign_to_all(&stages(&[&["put 4KiB x 3"], &["put 4KiB x 3", "get 1MiB x 1 at 90/s"]]), 3);
        let names =
            ["put 4KiB x 9 on [1, 2, 3]", "put 4KiB x 9 on [1, 2, 3] with get 1MiB x 3 at 90/s on [1, 2, 3]"];
        assert_eq!(shown(&assigned_stages), names);
        let second = loads_for_agent(&assigned_stages[1], 2);
        assert_eq!(second.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(second[1].1.to_string(), "get 1MiB x 1 at 30/s");
        assert_ne!(second[0].1.load.seed, loads_for_agent(&assigned_stages[1], 3)[0].1.load.seed);
        assert_eq!(
            (max_agent_load(&assigned_stages, 3), max_agent_load(&assigned_stages[..1], 3)),
            ((2, 4), (1, 3))
        );
    }

    #[test]
    fn evenly_spaced_requests_are_even_over_all_agents() {
        let assigned_stages = assign_to_all(&stages(&[&["get 1MiB x 1 at 100/s evenly"]]), 4);
        let mut starts: Vec<Duration> = (1..=4)
            .flat_map(|agent| {
                let load = loads_for_agent(&assigned_stages[0], agent).remove(0).1.load;
                let ArrivalMode::Open { requests_per_second, spacing } = load.arrival_mode else {
                    unreachable!("it has a rate")
                };
                Arrivals::new(spacing, requests_per_second, load.seed).with_phase(load.phase).take(3)
            })
            .collect();
        starts.sort();
        let even: Vec<Duration> = (1..=12).map(|n| Duration::from_millis(10 * n)).collect();
        assert_eq!(starts, even);
    }

    #[test]
    fn isolated_load_runs_alone_on_its_concurrent_agents() {
        let (put, get) = ("put 4KiB x 1", "get 4KiB x 1");
        let stages = stages(&[&[put], &[get], &[put, put], &[put, get], &[get, get]]);
        let assigned_stages = assign_isolated(&stages, 4).unwrap();
        let names = [
            "put 4KiB x 2 on [1, 3]",
            "put 4KiB x 2 on [2, 4]",
            "get 4KiB x 2 on [1, 3]",
            "get 4KiB x 2 on [2, 4]",
            "put 4KiB x 2 on [1, 3] with put 4KiB x 2 on [2, 4]",
            "put 4KiB x 2 on [1, 3] with get 4KiB x 2 on [2, 4]",
            "get 4KiB x 2 on [1, 3] with get 4KiB x 2 on [2, 4]",
        ];
        assert_eq!(shown(&assigned_stages), names);
        assert_eq!(
            (loads_for_agent(&assigned_stages[0], 2), max_agent_load(&assigned_stages, 4)),
            (Vec::new(), (1, 1))
        );
        assert!(
            assign_isolated(&stages, 3)
                .unwrap_err()
                .contains("3 agents cannot be divided evenly among 2 loads")
        );
    }

    #[test]
    fn check_finds_loads_that_an_agent_would_reject() {
        let half = "put 4KiB x 2048";
        let just = stages(&[&[half, half], &[half; 1]]);
        assert_eq!(check_stages(&assign_to_all(&just, 2), 2), Ok(()));
        let more = stages(&[&[half], &[half, "get 4KiB x 2049"]]);
        let reason = check_stages(&assign_to_all(&more, 2), 2).unwrap_err();
        let expected = "an agent cannot run put 4KiB x 2048 with get 4KiB x 2049: \
                        4097 concurrent requests exceed the limit of 4096";
        assert_eq!(reason, expected);
        assert_eq!(check_stages(&assign_isolated(&more, 2).unwrap(), 2), Ok(()), "each agent has one load");
        let mut long = stages(&[&["put 4KiB x 1"]]);
        long[0][0].load.stop_condition.duration = Duration::from_secs(25 * 3600);
        assert!(check_stages(&assign_to_all(&long, 1), 1).unwrap_err().contains("limited to one day"));
        let many = stages(&[&["put 4KiB x 1"; 17]]);
        let reason = check_stages(&assign_to_all(&many, 1), 1).unwrap_err();
        assert!(reason.contains("17 concurrent loads are not allowed: use 1 to 16"), "{reason}");
    }

    #[test]
    fn assign_isolated_rejects_stages_of_different_sizes() {
        let (put, get) = ("put 4KiB x 1", "get 4KiB x 1");
        let stages = stages(&[&[put], &[put, get], &[put, get, get]]);
        assert!(assign_isolated(&stages, 6).unwrap_err().contains("as many after each --concurrent-with"));
    }
}
