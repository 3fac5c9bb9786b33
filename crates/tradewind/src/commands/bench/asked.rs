//! What is asked of a store, one load after the other: one that flags say, or those of a workload, which flags change.

use clap::Args;
use tradewind_bench::course::Stage;
use tradewind_bench::survey::Survey;

use super::loads::{LoadFlags, Usual, of_workload};

/// See the module.
#[derive(Debug, Args)]
pub(super) struct AskedFlags {
    /// Loads one after the other: a file, or one of those that `tradewind bench workloads` names
    #[arg(long, value_name = "NAME|FILE")]
    workload: Option<String>,
    /// Counts of the workload are so many times as large
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor, requires = "workload")]
    scale: f64,
    #[command(flatten)]
    pub load: LoadFlags,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| (1e-6..=1e6).contains(factor));
    factor.ok_or_else(|| "write a number from 0.000001 to 1000000".to_owned())
}

impl AskedFlags {
    /// All loads.
    pub fn loads(&self) -> anyhow::Result<Vec<LoadFlags>> {
        Ok(match &self.workload {
            Some(name) => of_workload(name, &self.load, self.scale)?,
            None => vec![self.load.clone()],
        })
    }
}

/// What loads come to, and all of it so often.
pub(super) fn stages(
    loads: &[LoadFlags],
    usual: &Usual,
    (seed, repeat): (u64, u32),
) -> anyhow::Result<(Vec<Survey>, Vec<Stage>)> {
    let surveys = loads.iter().map(|load| load.survey(usual, seed)).collect::<Result<Vec<_>, _>>()?;
    let steps = |repeat| surveys.iter().flat_map(move |survey| survey.steps(repeat));
    let stages = (1..=repeat).flat_map(steps).map(|step| vec![step]).collect();
    Ok((surveys, stages))
}
