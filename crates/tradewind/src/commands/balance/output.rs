//! The output of `tradewind balance`.

use std::io::{self, Write as _};

use serde_json::{Value, json};
use tradewind_balance::balancer::{Mode, OsdReport, RoundReport};
use tradewind_balance::policy::{Outcome, explain};
use tradewind_model::affinity::controller::Decision;

/// Prints rounds: in text only what changed.
pub(super) struct Printer {
    mode: Mode,
    is_json: bool,
    last_sentence: String,
}

impl Printer {
    pub fn new(mode: Mode, is_json: bool) -> Self {
        Self { mode, is_json, last_sentence: String::new() }
    }

    /// Prints a round of the daemon.
    pub fn print(&mut self, report: &RoundReport) -> io::Result<()> {
        if self.is_json {
            return self.print_json(report);
        }
        let sentence = self.sentence(report);
        let is_change = report.outcome.as_ref().is_some_and(|outcome| outcome.changed_affinities().is_some());
        // The predicted gain of a quiet cluster differs a little in every round.
        let kind = sentence.split('(').next().unwrap_or_default().to_owned();
        if kind == self.last_sentence && !is_change {
            return Ok(());
        }
        self.last_sentence = kind;
        let mut out = io::stdout().lock();
        writeln!(out, "{sentence}")?;
        if is_change {
            write_table(&mut out, report)?;
        }
        out.flush()
    }

    /// Prints a round with everything that led to its decision.
    pub fn explain(&mut self, report: &RoundReport) -> io::Result<()> {
        if self.is_json {
            return self.print_json(report);
        }
        let mut out = io::stdout().lock();
        write_table(&mut out, report)?;
        let check = report.primaries;
        writeln!(out, "predicted primaries: {} of {} as in the cluster", check.correct, check.predicted)?;
        if report.fixed.total() > 0 {
            let fixed = report.fixed;
            let reasons = [
                (fixed.temporary, "temporary"),
                (fixed.explicit, "with an explicit primary"),
                (fixed.unknown_order, "in an unknown order"),
                (fixed.erasure_coded, "erasure coded"),
                (fixed.tiered, "in cache tiers"),
            ];
            let reasons: Vec<String> = reasons
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}"))
                .collect();
            writeln!(out, "placement groups that affinity does not move: {}", reasons.join(", "))?;
        }
        writeln!(out, "{}", self.sentence(report))?;
        out.flush()
    }

    fn sentence(&self, report: &RoundReport) -> String {
        if !report.obstacles.is_empty() {
            let obstacles: Vec<String> = report.obstacles.iter().map(ToString::to_string).collect();
            return format!("nothing is done: {}", obstacles.join("; "));
        }
        match &report.outcome {
            Some(outcome) => explain(outcome, self.mode == Mode::Act),
            None if report.silent.is_empty() => "measuring".to_owned(),
            None => format!("nothing is done: no counters from {}", report.silent.join("; ")),
        }
    }

    fn print_json(&self, report: &RoundReport) -> io::Result<()> {
        let line = json!({
            "osds": report.osds.iter().map(osd_json).collect::<Vec<_>>(),
            "fixed_pgs": report.fixed.total(),
            "predicted_primaries": report.primaries.predicted,
            "correct_primaries": report.primaries.correct,
            "decision": decision_name(report),
            "signals_percent": signals(report),
            "predicted_gain": gains(report).predicted,
            "measured_gain": gains(report).measured,
            "explanation": self.sentence(report),
        });
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }
}

#[derive(Default)]
struct Gains {
    predicted: Option<f64>,
    measured: Option<f64>,
}

fn gains(report: &RoundReport) -> Gains {
    match report.outcome {
        Some(Outcome::Predict(Decision::Set { predicted_gain, .. })) => {
            Gains { predicted: Some(predicted_gain), measured: None }
        }
        Some(Outcome::Predict(Decision::Keep { measured_gain } | Decision::Undo { measured_gain, .. })) => {
            Gains { predicted: None, measured: Some(measured_gain) }
        }
        _ => Gains::default(),
    }
}

/// The signals of the policy `dlr`.
fn signals(report: &RoundReport) -> Option<&[f64]> {
    match &report.outcome {
        Some(Outcome::Dlr(Some(round))) => Some(&round.signals_percent),
        _ => None,
    }
}

fn decision_name(report: &RoundReport) -> &'static str {
    match &report.outcome {
        Some(Outcome::Predict(Decision::Set { .. })) => "set",
        Some(Outcome::Predict(Decision::Keep { .. })) => "keep",
        Some(Outcome::Predict(Decision::Undo { .. })) => "undo",
        Some(outcome) if outcome.changed_affinities().is_some() => "set",
        Some(_) | None => "wait",
    }
}

fn osd_json(osd: &OsdReport) -> Value {
    json!({
        "osd": osd.osd,
        "reads_per_second": osd.reads.map(|reads| reads.reads_per_second),
        "latency_seconds": osd.reads.map(|reads| reads.latency_seconds),
        "service_rate": osd.service_rate,
        "affinity": osd.affinity.ratio(),
        "next_affinity": osd.next_affinity.ratio(),
        "share": osd.share,
        "next_share": osd.next_share,
    })
}

fn write_table(out: &mut impl io::Write, report: &RoundReport) -> io::Result<()> {
    let rates = report.osds.iter().filter_map(|osd| osd.service_rate);
    let median = median(rates.collect());
    writeln!(
        out,
        "{:>8} {:>9} {:>12} {:>10} {:>9} {:>18} {:>16}",
        "OSD", "reads/s", "latency ms", "serves/s", "of peers", "affinity", "share %"
    )?;
    for osd in &report.osds {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let relative = osd.service_rate.zip(median).map(|(rate, median)| format!("{:.2} x", rate / median));
        writeln!(
            out,
            "{:>8} {:>9} {:>12} {:>10} {:>9} {:>18} {:>16}",
            format!("osd.{}", osd.osd),
            number(osd.reads.map(|reads| reads.reads_per_second), 1),
            number(osd.reads.map(|reads| reads.latency_seconds * 1e3), 1),
            number(osd.service_rate, 1),
            relative.unwrap_or_else(|| "-".to_owned()),
            change(osd.affinity.ratio(), osd.next_affinity.ratio(), 3),
            change(osd.share * 100.0, osd.next_share * 100.0, 1),
        )?;
    }
    Ok(())
}

/// `0.500 -> 0.250`, or only the first if they are equal.
fn change(before: f64, after: f64, digits: usize) -> String {
    let [before, after] = [before, after].map(|value| format!("{value:.digits$}"));
    if before == after { before } else { format!("{before} -> {after}") }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
