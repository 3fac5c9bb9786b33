//! What is to be measured, in sections, each of which is one sweep over forms, sizes and threads (Ou 2015, section IV, has one
//! for each figure), and the steps that they come to. What stands in several sections is measured once a round.

use std::fmt;
use std::time::Duration;

use tradewind_core::quantity::ByteSize;

use super::UNIT_FILE;
use super::form::{self, Form};
use super::postmark::Workload;
use super::result::Scope;

/// A part of what can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// One file of 16 MiB in pieces of several sizes.
    Unit,
    /// Single files of several sizes.
    Single,
    /// Many files, of several threads.
    Batch,
    /// Postmark's workload.
    Postmark,
}

/// Measurements of one part: each form with each size, and so on.
#[derive(Debug, Clone, PartialEq)]
pub enum Section {
    /// See [`Part::Unit`].
    Unit {
        /// Forms of access.
        forms: Vec<Form>,
        /// Bytes of an access.
        units: Vec<u64>,
        /// The file is given up after five times as long, between two calls.
        time: Duration,
    },
    /// See [`Part::Single`].
    Single {
        /// Forms of access.
        forms: Vec<Form>,
        /// Bytes of a file.
        sizes: Vec<u64>,
        /// The file is given up after five times as long, between two calls.
        time: Duration,
    },
    /// See [`Part::Batch`].
    Batch {
        /// Forms of access.
        forms: Vec<Form>,
        /// Bytes of a file.
        sizes: Vec<u64>,
        /// Threads, each measured apart.
        threads: Vec<usize>,
        /// No file is begun after so long.
        time: Duration,
        /// So many files, however long they take; `None` for as many as can be made in the time, up to what is usual.
        files: Option<u64>,
    },
    /// See [`Part::Postmark`].
    Postmark(Vec<Workload>),
}

/// One thing to measure.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// One file, which is written and read.
    File {
        scope: Scope,
        form: Form,
        size: u64,
        unit: u64,
        time: Duration,
    },
    /// Many of them.
    Batch {
        form: Form,
        size: u64,
        threads: usize,
        time: Duration,
        files: Option<u64>,
    },
    Postmark(Workload),
}

impl Section {
    fn steps(&self) -> Vec<Step> {
        let files = |scope: Scope, forms: &[Form], of: &[(u64, u64)], time: Duration| -> Vec<Step> {
            let each = of.iter().flat_map(|(size, unit)| {
                let (size, unit) = (*size, *unit);
                forms.iter().map(move |form| Step::File { scope, form: *form, size, unit, time })
            });
            each.collect()
        };
        match self {
            Self::Unit { forms, units, time } => {
                let of: Vec<_> = units.iter().map(|unit| (UNIT_FILE, *unit)).collect();
                files(Scope::Unit, forms, &of, *time)
            }
            Self::Single { forms, sizes, time } => {
                let of: Vec<_> = sizes.iter().map(|size| (*size, *size)).collect();
                files(Scope::Single, forms, &of, *time)
            }
            Self::Batch { forms, sizes, threads, time, files } => {
                let each = sizes.iter().flat_map(|size| threads.iter().map(move |threads| (*size, *threads)));
                let (time, files) = (*time, *files);
                each.flat_map(|(size, threads)| {
                    forms.iter().map(move |form| Step::Batch { form: *form, size, threads, time, files })
                })
                .collect()
            }
            Self::Postmark(workloads) => workloads.iter().cloned().map(Step::Postmark).collect(),
        }
    }
}

impl Step {
    /// Its form of access, the size of its files and of a call, where that is chosen.
    pub const fn access(&self) -> Option<(Form, u64, u64)> {
        match *self {
            Self::File { form, size, unit, .. } => Some((form, size, unit)),
            Self::Batch { form, size, .. } => Some((form, size, size)),
            Self::Postmark(_) => None,
        }
    }

    /// Whether a result could not tell them apart.
    fn is_same(&self, other: &Self) -> bool {
        let placed = |step: &Self| match *step {
            Self::File { scope, .. } => Some((scope, 1)),
            Self::Batch { threads, .. } => Some((Scope::Batch, threads)),
            Self::Postmark(_) => None,
        };
        match (self, other) {
            (Self::Postmark(one), Self::Postmark(another)) => one == another,
            _ => placed(self) == placed(other) && self.access() == other.access(),
        }
    }

    /// Why it cannot be measured, in words for whoever asked for it.
    pub fn check(&self) -> Result<(), String> {
        match *self {
            Self::File { unit, .. } if self.is_of_unit() && (unit == 0 || unit > UNIT_FILE) => {
                let (unit, most) = (ByteSize(unit), ByteSize(UNIT_FILE));
                Err(format!("a unit of {unit} is none: write 1B to {most}, the size of the file"))
            }
            Self::File { size, .. } | Self::Batch { size, .. } if size == 0 => {
                Err(format!("files of {} hold nothing that could be measured", ByteSize(size)))
            }
            _ => Ok(()),
        }
    }

    const fn is_of_unit(&self) -> bool {
        matches!(self, Self::File { scope: Scope::Unit, .. })
    }
}

/// Two steps that a result could not tell apart and that are not the same: one of them would not be measured.
pub(super) fn conflict(sections: &[Section]) -> Result<(), String> {
    let mut steps: Vec<Step> = Vec::new();
    for step in sections.iter().flat_map(Section::steps) {
        if let Some(earlier) = steps.iter().find(|earlier| earlier.is_same(&step) && **earlier != step) {
            return Err(format!(
                "{earlier} is asked for twice, for another time or number of files each: a result could not tell them apart; \
                 measure them one after the other, into files of their own"
            ));
        }
        steps.push(step);
    }
    Ok(())
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { scope, form, size, unit, .. } => {
                write!(f, "{scope} {form} {} by {}", ByteSize(*size), ByteSize(*unit))
            }
            Self::Batch { form, size, threads, .. } => {
                write!(f, "batch {form} {} x {threads}", ByteSize(*size))
            }
            Self::Postmark(_) => f.write_str("postmark"),
        }
    }
}

/// The steps of a round, in the order of the sections, each of them once.
pub(super) fn steps(sections: &[Section]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for step in sections.iter().flat_map(Section::steps) {
        if !steps.iter().any(|earlier| earlier.is_same(&step)) {
            steps.push(step);
        }
    }
    steps
}

/// The forms of access that steps have, in the order in which they come.
pub(super) fn forms(steps: &[Step]) -> Vec<Form> {
    let mut forms = Vec::new();
    for (form, ..) in steps.iter().filter_map(Step::access) {
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

/// Which files and pieces a form of access does not take.
pub(super) fn left_out(steps: &[Step], form: Form) -> Option<String> {
    let taken =
        |step: &Step| step.access().filter(|(of, size, unit)| *of == form && !form.takes(*size, *unit));
    let mut all: Vec<u64> = steps.iter().filter_map(taken).map(|(_, _, unit)| unit).collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<String> = all.into_iter().map(|bytes| ByteSize(bytes).to_string()).collect();
    (!all.is_empty()).then(|| {
        format!("{} are no multiple of {}, which it takes", all.join(", "), ByteSize(form::ALIGNMENT))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sizes: &[u64], threads: &[usize]) -> Section {
        Section::Batch {
            forms: vec![Form::Direct, Form::Sync],
            sizes: sizes.to_vec(),
            threads: threads.to_vec(),
            time: Duration::from_secs(1),
            files: None,
        }
    }

    #[test]
    fn what_stands_in_several_sections_is_measured_once() {
        let sections = [batch(&[4096, 8192], &[1]), batch(&[4096], &[1, 2])];
        let steps = steps(&sections);
        let told: Vec<_> = steps
            .iter()
            .map(|step| match step {
                Step::Batch { form, size, threads, .. } => (*form, *size, *threads),
                other => panic!("{other:?}"),
            })
            .collect();
        let (direct, sync) = (Form::Direct, Form::Sync);
        assert_eq!(
            told,
            [
                (direct, 4096, 1),
                (sync, 4096, 1),
                (direct, 8192, 1),
                (sync, 8192, 1),
                (direct, 4096, 2),
                (sync, 4096, 2)
            ]
        );
        assert_eq!(forms(&steps), [direct, sync]);
    }

    #[test]
    fn what_a_result_could_not_tell_apart_is_refused() {
        let same = [batch(&[4096, 8192], &[1]), batch(&[4096], &[1, 2])];
        assert_eq!(conflict(&same), Ok(()));
        let mut longer = batch(&[8192], &[1]);
        if let Section::Batch { time, .. } = &mut longer {
            *time = Duration::from_secs(60);
        }
        let refused = conflict(&[same[0].clone(), longer]).unwrap_err();
        assert!(refused.starts_with("batch direct 8KiB x 1 is asked for twice"), "{refused}");
    }

    #[test]
    fn one_file_is_not_taken_for_many_or_for_pieces() {
        let (forms, time) = (vec![Form::Sync], Duration::from_secs(1));
        let sections = [
            Section::Unit { forms: forms.clone(), units: vec![UNIT_FILE], time },
            Section::Single { forms: forms.clone(), sizes: vec![UNIT_FILE], time },
            batch(&[UNIT_FILE], &[1]),
            Section::Postmark(vec![Workload { range: (1, 2), pool: 3, transactions: 4 }]),
            Section::Postmark(vec![Workload { range: (1, 2), pool: 3, transactions: 5 }]),
        ];
        assert_eq!(steps(&sections).len(), 1 + 1 + 2 + 2);
    }

    #[test]
    fn what_a_form_does_not_take_is_named() {
        let (forms, time) = (Form::ALL.to_vec(), Duration::from_secs(1));
        let sections = [Section::Unit { forms, units: vec![512, 8192], time }, batch(&[4096, 1000], &[1, 3])];
        let steps = steps(&sections);
        assert_eq!(left_out(&steps, Form::Sync), None);
        let why = left_out(&steps, Form::Direct).unwrap();
        assert_eq!(why, "512B, 1kB are no multiple of 4KiB, which it takes");
    }
}
