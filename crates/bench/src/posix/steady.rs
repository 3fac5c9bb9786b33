//! How fast files were accessed while all threads were at work (Ou 2015, section IV-D: from the steady state). A file that
//! reaches beyond the end of that counts by the part of it that lies within, so that few long files make no steps.

use std::time::Duration;

use crate::result::Rate;
use crate::summary;

/// A file that was accessed, in time since any origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub begin: Duration,
    pub end: Duration,
    pub bytes: u64,
}

/// With fewer files for a thread there is no steady state: everything counts then, until the last is done. That a file goes
/// on evenly, and so counts by the part of its time, is true of many and not of one.
const LEAST_OF_THREAD: usize = 4;
/// Of fewer files it is not known how much their number varies.
const LEAST_FILES: usize = 50;

/// What was done while all threads were at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Steady {
    pub seconds: f64,
    pub bytes_per_second: Rate,
    pub files_per_second: Rate,
}

impl Steady {
    /// From what each thread did, from a common beginning until the first of them had nothing left to do; until the last had,
    /// where they have few files each. A thread that did nothing is as if it were not there.
    pub fn of(begin: Duration, threads: &[Vec<Span>]) -> Self {
        let ends = threads.iter().filter_map(|spans| Some(spans.last()?.end));
        let least = threads.iter().map(Vec::len).filter(|files| *files > 0).min().unwrap_or(0);
        let end = if least < LEAST_OF_THREAD { ends.max() } else { ends.min() };
        let seconds = end.unwrap_or(begin).saturating_sub(begin).as_secs_f64();
        let spans: Vec<Span> = threads.iter().flatten().copied().collect();
        let most = summary::stretches(seconds, mean_time(&spans));
        let rate = |weight: fn(&Span) -> f64| {
            let amount = |from: f64, to: f64| -> f64 {
                spans.iter().map(|span| weight(span) * within(span, begin, from, to)).sum()
            };
            if seconds <= 0.0 {
                return Rate { mean: 0.0, within: None };
            }
            let stretch = seconds / most as f64;
            let stretches = (0..most).map(|n| amount(stretch * n as f64, stretch * (n + 1) as f64) / stretch);
            let stretches: Vec<f64> = stretches.collect();
            let sure = (spans.len() >= LEAST_FILES).then(|| summary::rate_of(&stretches, most)).flatten();
            Rate { mean: amount(0.0, seconds) / seconds, within: sure.map(|rate| rate.within) }
        };
        Self { seconds, bytes_per_second: rate(|span| span.bytes as f64), files_per_second: rate(|_| 1.0) }
    }
}

/// How long a file took in the mean, in seconds.
fn mean_time(spans: &[Span]) -> f64 {
    let spent: f64 = spans.iter().map(|span| span.end.saturating_sub(span.begin).as_secs_f64()).sum();
    spent / spans.len().max(1) as f64
}

/// The part of a file's time that lies between two moments, in seconds since the beginning.
fn within(span: &Span, begin: Duration, from: f64, to: f64) -> f64 {
    let at = |moment: Duration| moment.saturating_sub(begin).as_secs_f64();
    let (start, end) = (at(span.begin), at(span.end));
    if end <= start {
        return if from <= start && start < to { 1.0 } else { 0.0 };
    }
    ((end.min(to) - start.max(from)) / (end - start)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(of: &[(u64, u64, u64)]) -> Vec<Span> {
        let millis = Duration::from_millis;
        of.iter()
            .map(|(begin, end, bytes)| Span { begin: millis(*begin), end: millis(*end), bytes: *bytes })
            .collect()
    }

    #[test]
    fn what_comes_after_the_first_thread_has_ended_does_not_count() {
        let short = [(1000, 1500, 50), (1500, 2000, 50), (2000, 2500, 50), (2500, 3000, 50)];
        let long = [(1000, 2000, 100), (2000, 2500, 50), (2500, 2500, 0), (2500, 3500, 100)];
        let steady = Steady::of(Duration::from_secs(1), &[spans(&short), spans(&long), vec![]]);
        assert!((steady.seconds - 2.0).abs() < 1e-9);
        // 200 of the first; all of the second but half of its last one.
        assert!((steady.bytes_per_second.mean - 200.0).abs() < 1e-6, "{steady:?}");
        assert!((steady.files_per_second.mean - 3.75).abs() < 1e-6, "{steady:?}");
        assert_eq!(steady.bytes_per_second.within, None);
    }

    #[test]
    fn of_few_files_all_counts_until_the_last_is_done() {
        // Whoever was first had most of the line: by its time the other would count with half of its bytes.
        let threads = [spans(&[(0, 1000, 900)]), spans(&[(0, 2000, 900)])];
        let steady = Steady::of(Duration::ZERO, &threads);
        assert!((steady.seconds - 2.0).abs() < 1e-9);
        assert!((steady.bytes_per_second.mean - 900.0).abs() < 1e-6, "{steady:?}");
    }

    #[test]
    fn what_all_stretches_have_in_common_says_nothing_of_how_sure_it_is() {
        // Each lies in all of them, however different the threads are.
        let threads: Vec<Vec<Span>> = (0..64).map(|n| spans(&[(0, 5000 + 10 * n, 1 << 20)])).collect();
        let steady = Steady::of(Duration::ZERO, &threads);
        assert!(steady.bytes_per_second.mean > 0.0, "{steady:?}");
        assert_eq!((steady.bytes_per_second.within, steady.files_per_second.within), (None, None));
        // Stretches are fewer and longer where files are long: six here, and too few with twice as long ones.
        let of = |millis: u64| {
            let one: Vec<_> = (0..2400 / millis).map(|n| (n * millis, (n + 1) * millis, 1 + n % 7)).collect();
            Steady::of(Duration::ZERO, &vec![spans(&one); 6]).files_per_second.within
        };
        assert_eq!((of(100).is_some(), of(200)), (true, None));
    }

    #[test]
    fn many_files_say_how_sure_it_is() {
        let even: Vec<(u64, u64, u64)> = (0..200).map(|n| (n * 10, n * 10 + 10, 4096)).collect();
        let steady = Steady::of(Duration::ZERO, &[spans(&even)]);
        assert!((steady.bytes_per_second.mean - 409_600.0).abs() < 1.0, "{steady:?}");
        assert!(steady.bytes_per_second.within.is_some_and(|within| within < 1.0), "{steady:?}");
        let nothing = Steady::of(Duration::ZERO, &[vec![]]);
        assert_eq!((nothing.seconds, nothing.bytes_per_second.mean), (0.0, 0.0));
    }
}
