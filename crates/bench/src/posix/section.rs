//! Sections of a benchmark: each is one sweep over access forms, sizes and threads (Ou 2015, section IV, has one for
//! each figure) and expands to steps. A step that occurs in several sections is measured once per round.

use std::fmt;
use std::time::Duration;

use tradewind_core::quantity::ByteSize;

use super::UNIT_FILE_BYTES;
use super::access_form::{self, AccessForm};
use super::postmark::PostmarkWorkload;
use super::result::AccessScope;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PosixPart {
    /// One file of 16 MiB in units of several sizes.
    Unit,
    /// Single files of several sizes.
    Single,
    /// Many files, from several threads.
    Batch,
    /// The Postmark workload.
    Postmark,
}

/// A sweep of one part: all combinations of its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum PosixSection {
    /// See [`PosixPart::Unit`].
    Unit {
        /// Access forms.
        forms: Vec<AccessForm>,
        /// Bytes per call.
        units: Vec<u64>,
        /// Access ends after five times this time, between two calls.
        time: Duration,
    },
    /// See [`PosixPart::Single`].
    Single {
        /// Access forms.
        forms: Vec<AccessForm>,
        /// Bytes per file.
        sizes: Vec<u64>,
        /// Access ends after five times this time, between two calls.
        time: Duration,
    },
    /// See [`PosixPart::Batch`].
    Batch {
        /// Access forms.
        forms: Vec<AccessForm>,
        /// Bytes per file.
        sizes: Vec<u64>,
        /// Numbers of threads, each measured separately.
        threads: Vec<usize>,
        /// No file starts after this time.
        time: Duration,
        /// Total number of files, without a time limit; `None` for as many as fit into the time, up to a default
        /// maximum.
        files: Option<u64>,
    },
    /// See [`PosixPart::Postmark`].
    Postmark(Vec<PostmarkWorkload>),
}

/// One step of a round.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PosixStep {
    /// Write and read one file.
    File {
        scope: AccessScope,
        form: AccessForm,
        size: u64,
        unit: u64,
        time: Duration,
    },
    /// Write and read many files.
    Batch {
        form: AccessForm,
        size: u64,
        threads: usize,
        time: Duration,
        files: Option<u64>,
    },
    Postmark(PostmarkWorkload),
}

impl PosixSection {
    fn steps(&self) -> Vec<PosixStep> {
        let files = |scope: AccessScope,
                     forms: &[AccessForm],
                     sizes: &[(u64, u64)],
                     time: Duration|
         -> Vec<PosixStep> {
            let each = sizes.iter().flat_map(|(size, unit)| {
                let (size, unit) = (*size, *unit);
                forms.iter().map(move |form| PosixStep::File { scope, form: *form, size, unit, time })
            });
            each.collect()
        };
        match self {
            Self::Unit { forms, units, time } => {
                let sizes: Vec<_> = units.iter().map(|unit| (UNIT_FILE_BYTES, *unit)).collect();
                files(AccessScope::Unit, forms, &sizes, *time)
            }
            Self::Single { forms, sizes, time } => {
                let sizes: Vec<_> = sizes.iter().map(|size| (*size, *size)).collect();
                files(AccessScope::Single, forms, &sizes, *time)
            }
            Self::Batch { forms, sizes, threads, time, files } => {
                let each = sizes.iter().flat_map(|size| threads.iter().map(move |threads| (*size, *threads)));
                let (time, files) = (*time, *files);
                each.flat_map(|(size, threads)| {
                    forms.iter().map(move |form| PosixStep::Batch { form: *form, size, threads, time, files })
                })
                .collect()
            }
            Self::Postmark(workloads) => workloads.iter().cloned().map(PosixStep::Postmark).collect(),
        }
    }
}

impl PosixStep {
    /// The access form, file size and call size; `None` for Postmark, which has its own.
    pub const fn access(&self) -> Option<(AccessForm, u64, u64)> {
        match *self {
            Self::File { form, size, unit, .. } => Some((form, size, unit)),
            Self::Batch { form, size, .. } => Some((form, size, size)),
            Self::Postmark(_) => None,
        }
    }

    /// Returns true if both steps would have the same name in a result.
    fn has_same_name(&self, other: &Self) -> bool {
        let scope_and_threads = |step: &Self| match *step {
            Self::File { scope, .. } => Some((scope, 1)),
            Self::Batch { threads, .. } => Some((AccessScope::Batch, threads)),
            Self::Postmark(_) => None,
        };
        match (self, other) {
            (Self::Postmark(one), Self::Postmark(another)) => one == another,
            _ => scope_and_threads(self) == scope_and_threads(other) && self.access() == other.access(),
        }
    }

    /// Validates the parameters. The error is a message for the user.
    pub fn validate(&self) -> Result<(), String> {
        match *self {
            Self::File { unit, .. } if self.is_of_unit() && (unit == 0 || unit > UNIT_FILE_BYTES) => {
                let (unit, max) = (ByteSize(unit), ByteSize(UNIT_FILE_BYTES));
                Err(format!("invalid unit {unit}: it must be 1B to {max}, the size of the file"))
            }
            Self::File { size, .. } | Self::Batch { size, .. } if size == 0 => {
                Err(format!("invalid file size {}: empty files cannot be measured", ByteSize(size)))
            }
            _ => Ok(()),
        }
    }

    const fn is_of_unit(&self) -> bool {
        matches!(self, Self::File { scope: AccessScope::Unit, .. })
    }
}

/// Rejects different steps with the same name in a result: only one of them would be measured.
pub(super) fn check_conflicts(sections: &[PosixSection]) -> Result<(), String> {
    let mut steps: Vec<PosixStep> = Vec::new();
    for step in sections.iter().flat_map(PosixSection::steps) {
        if let Some(earlier) = steps.iter().find(|earlier| earlier.has_same_name(&step) && **earlier != step)
        {
            return Err(format!(
                "{earlier} is requested twice with different times or numbers of files, which a result cannot distinguish; \
                 measure them one after another, into separate result files"
            ));
        }
        steps.push(step);
    }
    Ok(())
}

impl fmt::Display for PosixStep {
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

/// The distinct steps of a round, in the order of the sections.
pub(super) fn steps(sections: &[PosixSection]) -> Vec<PosixStep> {
    let mut steps: Vec<PosixStep> = Vec::new();
    for step in sections.iter().flat_map(PosixSection::steps) {
        if !steps.iter().any(|earlier| earlier.has_same_name(&step)) {
            steps.push(step);
        }
    }
    steps
}

/// The distinct access forms of the steps, in the order of their first use.
pub(super) fn forms(steps: &[PosixStep]) -> Vec<AccessForm> {
    let mut forms = Vec::new();
    for (form, ..) in steps.iter().filter_map(PosixStep::access) {
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

/// Names the sizes that an access form does not support; `None` if it supports all.
pub(super) fn unsupported_sizes(steps: &[PosixStep], form: AccessForm) -> Option<String> {
    let unsupported = |step: &PosixStep| {
        step.access().filter(|(own, size, unit)| *own == form && !form.supports(*size, *unit))
    };
    let mut all: Vec<u64> = steps.iter().filter_map(unsupported).map(|(_, _, unit)| unit).collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<String> = all.into_iter().map(|bytes| ByteSize(bytes).to_string()).collect();
    (!all.is_empty()).then(|| {
        format!(
            "{}: not a multiple of the required {}",
            all.join(", "),
            ByteSize(access_form::DIRECT_ALIGNMENT_BYTES)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sizes: &[u64], threads: &[usize]) -> PosixSection {
        PosixSection::Batch {
            forms: vec![AccessForm::Direct, AccessForm::Sync],
            sizes: sizes.to_vec(),
            threads: threads.to_vec(),
            time: Duration::from_secs(1),
            files: None,
        }
    }

    #[test]
    fn steps_contain_a_shared_step_once() {
        let sections = [batch(&[4096, 8192], &[1]), batch(&[4096], &[1, 2])];
        let steps = steps(&sections);
        let parameters: Vec<_> = steps
            .iter()
            .map(|step| match step {
                PosixStep::Batch { form, size, threads, .. } => (*form, *size, *threads),
                other => panic!("{other:?}"),
            })
            .collect();
        let (direct, sync) = (AccessForm::Direct, AccessForm::Sync);
        assert_eq!(
            parameters,
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
    fn conflict_rejects_different_steps_of_the_same_name() {
        let same = [batch(&[4096, 8192], &[1]), batch(&[4096], &[1, 2])];
        assert_eq!(check_conflicts(&same), Ok(()));
        let mut longer = batch(&[8192], &[1]);
        if let PosixSection::Batch { time, .. } = &mut longer {
            *time = Duration::from_secs(60);
        }
        let error = check_conflicts(&[same[0].clone(), longer]).unwrap_err();
        assert!(error.starts_with("batch direct 8KiB x 1 is requested twice"), "{error}");
    }

    #[test]
    fn steps_of_different_scopes_are_distinct() {
        let (forms, time) = (vec![AccessForm::Sync], Duration::from_secs(1));
        let sections = [
            PosixSection::Unit { forms: forms.clone(), units: vec![UNIT_FILE_BYTES], time },
            PosixSection::Single { forms: forms.clone(), sizes: vec![UNIT_FILE_BYTES], time },
            batch(&[UNIT_FILE_BYTES], &[1]),
            PosixSection::Postmark(vec![PostmarkWorkload { size_range: (1, 2), pool: 3, transactions: 4 }]),
            PosixSection::Postmark(vec![PostmarkWorkload { size_range: (1, 2), pool: 3, transactions: 5 }]),
        ];
        assert_eq!(steps(&sections).len(), 1 + 1 + 2 + 2);
    }

    #[test]
    fn unsupported_sizes_are_named() {
        let (forms, time) = (AccessForm::ALL.to_vec(), Duration::from_secs(1));
        let sections =
            [PosixSection::Unit { forms, units: vec![512, 8192], time }, batch(&[4096, 1000], &[1, 3])];
        let steps = steps(&sections);
        assert_eq!(unsupported_sizes(&steps, AccessForm::Sync), None);
        let reason = unsupported_sizes(&steps, AccessForm::Direct).unwrap();
        assert_eq!(reason, "512B, 1kB: not a multiple of the required 4KiB");
    }
}
