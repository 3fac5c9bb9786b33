//! The output of `tradewind balance`.

use std::io::{self, Write as _};

use serde_json::{Value, json};
use tradewind_balance::balancer::{Mode, OsdReport, RoundReport, SilentOsd};
use tradewind_balance::policy::{DlrRound, Outcome, explain};
use tradewind_balance::signals::OsdSignals;
use tradewind_model::affinity::controller::Decision;
use tradewind_model::affinity::queueing::ReadLoad;

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
            writeln!(out, "placement groups that are not predicted: {}", reasons.join(", "))?;
        }
        for host in report.slow_hosts() {
            writeln!(out, "{host}")?;
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
            None => format!("nothing is done: {}", silent_sentence(&report.silent)),
        }
    }

    fn print_json(&self, report: &RoundReport) -> io::Result<()> {
        let line = json!({
            "osds": report.osds.iter().map(osd_json).collect::<Vec<_>>(),
            "fixed_pgs": report.fixed.total(),
            "predicted_primaries": report.primaries.predicted,
            "correct_primaries": report.primaries.correct,
            "decision": decision_name(report),
            "signals_percent": signals(report).map(|round| &round.signals_percent),
            "signal_source": signals(report).map(|round| round.source.to_string()),
            "predicted_gain": gains(report).predicted,
            "measured_gain": gains(report).measured,
            "slow_hosts": report.slow_hosts().iter().map(|host| &host.hostname).collect::<Vec<_>>(),
            "silent_osds": report.silent.iter().map(|silent| silent.osd).collect::<Vec<_>>(),
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
        Some(Outcome::Predict(
            Decision::Keep { measured_gain }
            | Decision::KeepPart { measured_gain, .. }
            | Decision::Undo { measured_gain, .. },
        )) => Gains { predicted: None, measured: Some(measured_gain) },
        _ => Gains::default(),
    }
}

/// The signals of the policy `dlr`.
fn signals(report: &RoundReport) -> Option<&DlrRound> {
    match &report.outcome {
        Some(Outcome::Dlr(Some(round))) => Some(round),
        _ => None,
    }
}

fn decision_name(report: &RoundReport) -> &'static str {
    match &report.outcome {
        Some(Outcome::Predict(Decision::Set { .. })) => "set",
        Some(Outcome::Predict(Decision::Keep { .. })) => "keep",
        Some(Outcome::Predict(Decision::KeepPart { .. })) => "keep-part",
        Some(Outcome::Predict(Decision::Undo { .. })) => "undo",
        Some(outcome) if outcome.changed_affinities().is_some() => "set",
        Some(_) | None => "wait",
    }
}

fn osd_json(osd: &OsdReport) -> Value {
    json!({
        "osd": osd.osd,
        "host": osd.hostname,
        "reads_per_second": osd.reads.map(|reads| reads.reads_per_second),
        "read_bytes_per_second": osd.reads.map(|reads| reads.bytes_per_second),
        "latency_seconds": osd.reads.map(|reads| reads.latency_seconds),
        "service_bytes_per_second": osd.service_rate,
        "device_await_ms": osd.signals.await_millis,
        "device_busy": osd.signals.busy,
        "host_io_pressure_percent": osd.signals.io_pressure_percent,
        "host_iowait_percent": osd.signals.iowait_percent,
        "affinity": osd.affinity.ratio(),
        "next_affinity": osd.next_affinity.ratio(),
        "share": osd.share,
        "next_share": osd.next_share,
    })
}

fn write_table(out: &mut impl io::Write, report: &RoundReport) -> io::Result<()> {
    let table = Table::new(report.osds.iter().filter_map(|osd| osd.service_rate));
    table.write_head(out)?;
    for osd in &report.osds {
        let row = Row {
            osd: osd.osd,
            reads: osd.reads,
            signals: osd.signals,
            service_rate: osd.service_rate,
            affinity: change_of(osd.affinity, osd.next_affinity),
            share: change(osd.share * 100.0, osd.next_share * 100.0, 1),
            note: "",
        };
        table.write_row(out, &row)?;
    }
    Ok(())
}

/// A table of OSDs.
pub(super) struct Table {
    /// Median of the service rates.
    median: Option<f64>,
}

/// An OSD in a table.
pub(super) struct Row {
    pub osd: u32,
    pub reads: Option<ReadLoad>,
    pub signals: OsdSignals,
    pub service_rate: Option<f64>,
    pub affinity: String,
    pub share: String,
    pub note: &'static str,
}

impl Table {
    pub fn new(service_rates: impl Iterator<Item = f64>) -> Self {
        Self { median: median(service_rates.collect()) }
    }

    pub fn write_head(&self, out: &mut impl io::Write) -> io::Result<()> {
        writeln!(
            out,
            "{:>8} {:>9} {:>11} {:>9} {:>7} {:>7} {:>9} {:>9} {:>15} {:>14}",
            "OSD",
            "reads/s",
            "latency ms",
            "await ms",
            "busy %",
            "PSI %",
            "max MB/s",
            "of peers",
            "affinity",
            "share %"
        )
    }

    pub fn write_row(&self, out: &mut impl io::Write, row: &Row) -> io::Result<()> {
        let relative =
            row.service_rate.zip(self.median).map(|(rate, median)| format!("{:.2} x", rate / median));
        writeln!(
            out,
            "{:>8} {:>9} {:>11} {:>9} {:>7} {:>7} {:>9} {:>9} {:>15} {:>14}{}",
            format!("osd.{}", row.osd),
            number(row.reads.map(|reads| reads.reads_per_second), 1),
            number(row.reads.map(|reads| reads.latency_seconds * 1e3), 1),
            number(row.signals.await_millis, 1),
            number(row.signals.busy.map(|busy| busy * 100.0), 0),
            number(row.signals.io_pressure_percent, 1),
            number(row.service_rate.map(|rate| rate / 1e6), 1),
            relative.unwrap_or_else(|| "-".to_owned()),
            row.affinity,
            row.share,
            row.note,
        )
    }
}

/// A number, or `-` for one that is not known.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A share as `+12.3 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Names the OSDs without counters, with each reason once.
pub(super) fn silent_sentence(silent: &[SilentOsd]) -> String {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for osd in silent {
        let name = format!("osd.{}", osd.osd);
        match groups.iter_mut().find(|(reason, _)| *reason == osd.reason) {
            Some((_, names)) => names.push(name),
            None => groups.push((&osd.reason, vec![name])),
        }
    }
    let groups = groups.iter().map(|(reason, names)| format!("{}: {reason}", names.join(", ")));
    format!("no counters from {}", groups.collect::<Vec<_>>().join("; "))
}

/// `25.0 -> 9.4`, or only the first if they are equal.
pub(super) fn change(before: f64, after: f64, digits: usize) -> String {
    change_of(format!("{before:.digits$}"), format!("{after:.digits$}"))
}

/// `1 -> 33/64`, or only the first if they are equal.
pub(super) fn change_of<T: ToString>(before: T, after: T) -> String {
    let [before, after] = [before, after].map(|value| value.to_string());
    if before == after { before } else { format!("{before} -> {after}") }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osds_that_are_silent_for_one_reason_are_named_together() {
        let silent = |osd, reason: &str| SilentOsd { osd, reason: reason.to_owned() };
        let sentence = silent_sentence(&[silent(1, "a"), silent(2, "b"), silent(3, "a")]);
        assert_eq!(sentence, "no counters from osd.1, osd.3: a; osd.2: b");
    }
}
