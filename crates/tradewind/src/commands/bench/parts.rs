//! Specifications of file system benchmarks in flags, and in workloads, whose tables describe one part each and have
//! the flags of that part as keys.

use anyhow::{Context as _, anyhow};
use clap::Args;
use std::time::Duration;
use tradewind_bench::SizeDistribution;
use tradewind_bench::posix::access_form::AccessForm;
use tradewind_bench::posix::postmark::PostmarkWorkload;
use tradewind_bench::posix::{PosixPart, PosixSection};
use tradewind_core::quantity::ByteSize;

use super::workloads::{self, LoadTable, WorkloadCommand, first_non_empty};
use crate::commands::UsageError;
use crate::settings::TimeSpan;

/// All parts, in order of measurement.
const PARTS: [PosixPart; 4] = [PosixPart::Unit, PosixPart::Single, PosixPart::Batch, PosixPart::Postmark];
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The default access sizes in bytes.
const DEFAULT_UNIT_BYTES: [u64; 7] = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];
/// The default sizes of single files.
const DEFAULT_SINGLE_BYTES: [u64; 8] =
    [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
/// The default sizes of files in batches.
const DEFAULT_BATCH_BYTES: [u64; 3] = [4 * KIB, 256 * KIB, 16 * MIB];
const DEFAULT_THREADS: [usize; 3] = [1, 8, 64];
const DEFAULT_TIME: Duration = Duration::from_secs(1);
/// The default file sizes of Postmark (Wang 2012, section 5.3).
const DEFAULT_POSTMARK_RANGES: [(u64, u64); 3] = [(512, 100 * KIB), (100 * KIB, 200 * KIB), (200 * KIB, MIB)];
/// The default number of files and of transactions of Postmark.
const DEFAULT_POSTMARK_COUNT: u64 = 500;

/// A part to measure. Flags override the keys of a workload.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct PartFlags {
    /// Forms of access: direct (O_DIRECT), sync (O_SYNC), default (neither) [default: all]
    #[arg(long, value_name = "FORM", value_delimiter = ',')]
    form: Vec<AccessForm>,
    /// Access sizes for the file of 16 MiB [default: 4KiB to 16MiB by powers of 4]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    unit: Vec<u64>,
    /// Sizes of whole files [default: single 4KiB to 64MiB by powers of 4, batch 4KiB,256KiB,16MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    size: Vec<u64>,
    /// Threads of a batch, each value measured separately [default: 1,8,64]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = threads)]
    threads: Vec<usize>,
    /// Duration of writing and reading each batch; a single file is aborted after five times as long, between two calls
    /// [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = TimeSpan::parse)]
    time: Option<TimeSpan>,
    /// Number of files of a batch, regardless of --time [default: as many as fit into --time, up to 10000 or 512 MiB,
    /// at least one per thread]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    files: Option<u64>,
    /// File sizes of Postmark, each range measured separately [default: 512B-100KiB,100KiB-200KiB,200KiB-1MiB]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = range)]
    range: Vec<(u64, u64)>,
    /// Initial number of files of Postmark [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pool: Option<u64>,
    /// Number of transactions of Postmark [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    transactions: Option<u64>,
}

/// A table of a workload.
#[derive(Debug, Clone, Args)]
struct Load {
    #[arg(long, value_parser = parse_part)]
    part: Option<PosixPart>,
    #[command(flatten)]
    flags: PartFlags,
}

/// The sections that the flags describe: the given parts, or all.
pub(super) fn sections_from_flags(only: &[PosixPart], flags: &PartFlags) -> Vec<PosixSection> {
    let parts = if only.is_empty() { &PARTS } else { only };
    parts.iter().map(|part| flags.section(*part)).collect()
}

/// The sections of a workload, given by name or file, with flags as overrides; restricted to the given parts, if any.
pub(super) fn sections_from_workload(
    name: &str,
    only: &[PosixPart],
    flags: &PartFlags,
) -> anyhow::Result<Vec<PosixSection>> {
    let loads = workloads::find(name, WorkloadCommand::Posix, read)?;
    let selected = loads.into_iter().filter(|(part, _)| only.is_empty() || only.contains(part));
    let sections: Vec<PosixSection> =
        selected.map(|(part, load)| flags.clone().or(load).section(part)).collect();
    if sections.is_empty() {
        return Err(UsageError(format!("the workload {name} has none of the parts given by --only")).into());
    }
    Ok(sections)
}

fn read(table: &LoadTable) -> anyhow::Result<(PosixPart, PartFlags)> {
    let load: Load = table.flags()?;
    let part = load.part.with_context(|| {
        let names = PARTS.map(name).join(", ");
        format!("line {}: set part, e.g. part = \"batch\": {names}", table.line)
    })?;
    let keys = keys(part);
    if let Some(other) = table.keys().find(|key| *key != "part" && !keys.contains(key)) {
        let (line, part) = (table.line_of(other).unwrap_or(table.line), name(part));
        return Err(anyhow!("line {line}: {other} does not apply to {part}, which has {}", keys.join(", ")));
    }
    Ok((part, load.flags))
}

const fn name(part: PosixPart) -> &'static str {
    match part {
        PosixPart::Unit => "unit",
        PosixPart::Single => "single",
        PosixPart::Batch => "batch",
        PosixPart::Postmark => "postmark",
    }
}

/// The keys of a part.
const fn keys(part: PosixPart) -> &'static [&'static str] {
    match part {
        PosixPart::Unit => &["form", "unit", "time"],
        PosixPart::Single => &["form", "size", "time"],
        PosixPart::Batch => &["form", "size", "threads", "time", "files"],
        PosixPart::Postmark => &["range", "pool", "transactions"],
    }
}

impl PartFlags {
    /// Fills unset flags from `fallback`.
    fn or(self, fallback: Self) -> Self {
        Self {
            form: first_non_empty(self.form, &fallback.form),
            unit: first_non_empty(self.unit, &fallback.unit),
            size: first_non_empty(self.size, &fallback.size),
            threads: first_non_empty(self.threads, &fallback.threads),
            time: self.time.or(fallback.time),
            files: self.files.or(fallback.files),
            range: first_non_empty(self.range, &fallback.range),
            pool: self.pool.or(fallback.pool),
            transactions: self.transactions.or(fallback.transactions),
        }
    }

    /// The section of a part with these flags.
    fn section(&self, part: PosixPart) -> PosixSection {
        let forms = first_non_empty(self.form.clone(), &AccessForm::ALL);
        let sizes = |defaults: &[u64]| first_non_empty(self.size.clone(), defaults);
        let time = self.time.map_or(DEFAULT_TIME, |time| time.0);
        match part {
            PosixPart::Unit => PosixSection::Unit {
                forms,
                units: first_non_empty(self.unit.clone(), &DEFAULT_UNIT_BYTES),
                time,
            },
            PosixPart::Single => PosixSection::Single { forms, sizes: sizes(&DEFAULT_SINGLE_BYTES), time },
            PosixPart::Batch => {
                let threads = first_non_empty(self.threads.clone(), &DEFAULT_THREADS);
                PosixSection::Batch {
                    forms,
                    sizes: sizes(&DEFAULT_BATCH_BYTES),
                    threads,
                    time,
                    files: self.files,
                }
            }
            PosixPart::Postmark => {
                let pool = self.pool.unwrap_or(DEFAULT_POSTMARK_COUNT);
                let transactions = self.transactions.unwrap_or(DEFAULT_POSTMARK_COUNT);
                let ranges = first_non_empty(self.range.clone(), &DEFAULT_POSTMARK_RANGES).into_iter();
                PosixSection::Postmark(
                    ranges.map(|size_range| PostmarkWorkload { size_range, pool, transactions }).collect(),
                )
            }
        }
    }
}

pub(super) fn parse_part(text: &str) -> Result<PosixPart, String> {
    let found = PARTS.into_iter().find(|part| name(*part) == text);
    found.ok_or_else(|| "write unit, single, batch or postmark".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    ByteSize::parse(text).map(|size| size.0)
}

fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| "write a number from 1 to 1024".to_owned())
}

fn range(text: &str) -> Result<(u64, u64), String> {
    /// Files are held in memory, so their size is limited.
    const MAX_BYTES: u64 = 256 << 20;
    match text.parse()? {
        SizeDistribution::Uniform(min, max) if min > 0 && max <= MAX_BYTES => Ok((min, max)),
        SizeDistribution::Fixed(size) if size > 0 && size <= MAX_BYTES => Ok((size, size)),
        _ => Err("write a range such as 512B-100KiB, up to 256MiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(name: &str) -> Vec<PosixSection> {
        sections_from_workload(name, &[], &PartFlags::default()).unwrap()
    }

    /// All measurements of the sections.
    fn points(sections: &[PosixSection]) -> Vec<(AccessForm, u64, u64, usize)> {
        let mut points = Vec::new();
        for section in sections {
            let (forms, measurements): (&[AccessForm], Vec<(u64, u64, usize)>) = match section {
                PosixSection::Unit { forms, units, .. } => {
                    (forms, units.iter().map(|unit| (16 * MIB, *unit, 0)).collect())
                }
                PosixSection::Single { forms, sizes, .. } => {
                    (forms, sizes.iter().map(|size| (*size, *size, 0)).collect())
                }
                PosixSection::Batch { forms, sizes, threads, .. } => {
                    let each = sizes.iter().flat_map(|size| threads.iter().map(|n| (*size, *size, *n)));
                    (forms, each.collect())
                }
                PosixSection::Postmark(_) => (&[], Vec::new()),
            };
            let each =
                measurements.into_iter().flat_map(|(a, b, c)| forms.iter().map(move |form| (*form, a, b, c)));
            points.extend(each);
        }
        points
    }

    #[test]
    fn ou_workload_is_the_union_of_its_figures() {
        let figures = ["ou-unit", "ou-single", "ou-batch", "ou-small", "ou-large"];
        let counts = figures.map(|name| points(&sections(name)).len());
        // Three forms by seven units; two by eight sizes; two by eight; two by seven numbers of threads, twice.
        assert_eq!(counts, [3 * 7, 2 * 8, 2 * 8, 2 * 7, 2 * 7]);
        let separate: Vec<PosixSection> = figures.into_iter().flat_map(sections).collect();
        assert_eq!(points(&separate), points(&sections("ou")));
        let batches = sections("ou");
        let times = batches.iter().filter_map(|section| match section {
            PosixSection::Batch { time, files, .. } => Some((*time, *files)),
            _ => None,
        });
        assert!(times.eq([(Duration::from_secs(10), None); 3]));
    }

    #[test]
    fn postmark_has_the_three_ranges_of_the_paper() {
        let expected = DEFAULT_POSTMARK_RANGES.map(|size_range| PostmarkWorkload {
            size_range,
            pool: 500,
            transactions: 500,
        });
        assert_eq!(sections("postmark"), [PosixSection::Postmark(expected.to_vec())]);
    }

    #[test]
    fn flags_override_tables_and_select_parts() {
        let flags =
            PartFlags { time: Some(TimeSpan(DEFAULT_TIME)), threads: vec![3], ..PartFlags::default() };
        let chosen = sections_from_workload("ou", &[PosixPart::Batch], &flags).unwrap();
        assert_eq!(chosen.len(), 3);
        for section in chosen {
            let PosixSection::Batch { threads, time, forms, .. } = section else { panic!("{section:?}") };
            assert_eq!(
                (threads, time, forms),
                (vec![3], DEFAULT_TIME, vec![AccessForm::Direct, AccessForm::Sync])
            );
        }
        let none = sections_from_workload("postmark", &[PosixPart::Batch], &flags).unwrap_err().to_string();
        assert_eq!(none, "the workload postmark has none of the parts given by --only");
        let sections_of_flags = sections_from_flags(&[PosixPart::Single, PosixPart::Unit], &flags);
        assert!(
            matches!(&sections_of_flags[..], [PosixSection::Single { .. }, PosixSection::Unit { .. }]),
            "{sections_of_flags:?}"
        );
        assert_eq!(sections_from_flags(&[], &PartFlags::default()).len(), 4);
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let error = |text: &str| {
            let text = format!("about = \"x\"\n[[load]]\n{text}");
            format!("{:#}", workloads::read(&text, read).unwrap_err())
        };
        assert_eq!(
            error("form = \"sync\"\n"),
            "line 2: set part, e.g. part = \"batch\": unit, single, batch, postmark"
        );
        assert_eq!(
            error("unit = \"4KiB\"\npart = \"batch\"\n"),
            "line 3: unit does not apply to batch, which has form, size, threads, time, files"
        );
        assert_eq!(
            error("part = \"batch\"\nthread = 3\n"),
            "line 4: there is no \"thread\"; did you mean \"threads\"?"
        );
        for (text, expected) in [
            ("part = \"reading\"\n", "line 3: invalid value 'reading' for '--part"),
            (
                "part = \"unit\"\nform = [\"sync\", \"odirect\"]\n",
                "line 4: invalid value 'odirect' for '--form",
            ),
            ("part = \"batch\"\n\nthreads = [1, 0]\n", "line 5: invalid value '0' for '--threads"),
            ("part = \"postmark\"\nrange = \"0B-4KiB\"\n", "line 4: invalid value '0B-4KiB' for '--range"),
            ("part = \"single\"\nfsync = 1\n", "line 4: there is no \"fsync\""),
        ] {
            assert!(error(text).starts_with(expected), "{text}: {}", error(text));
        }
    }
}
