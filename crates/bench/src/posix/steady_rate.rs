//! Steady-state rates: the throughput while all threads were active (Ou 2015, section IV-D). A file that extends
//! beyond that time counts in proportion to the part of its time within it, so that a few long files do not distort
//! the rate.

use std::time::Duration;

use crate::batch_means;
use crate::result::Rate;

/// The access of one file. Times have an arbitrary common origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileSpan {
    pub begin: Duration,
    pub end: Duration,
    pub bytes: u64,
}

/// With fewer files per thread there is no steady state, and everything until the last thread has finished counts.
/// Counting in proportion assumes that files progress evenly, which holds for many files but not for one.
const MIN_FILES_PER_THREAD: usize = 4;
/// Fewer files do not give a confidence interval.
const MIN_FILES_FOR_INTERVAL: usize = 50;

/// The rates while all threads were active.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SteadyRates {
    pub seconds: f64,
    pub bytes_per_second: Rate,
    pub files_per_second: Rate,
}

impl SteadyRates {
    /// Computes the rates from the spans of each thread, from the common start `begin` until the first thread had
    /// finished, or until the last one if they have few files each. Threads without spans are ignored.
    pub fn from_spans(begin: Duration, threads: &[Vec<FileSpan>]) -> Self {
        let ends = threads.iter().filter_map(|spans| Some(spans.last()?.end));
        let min_files = threads.iter().map(Vec::len).filter(|files| *files > 0).min().unwrap_or(0);
        let end = if min_files < MIN_FILES_PER_THREAD { ends.max() } else { ends.min() };
        let seconds = end.unwrap_or(begin).saturating_sub(begin).as_secs_f64();
        let spans: Vec<FileSpan> = threads.iter().flatten().copied().collect();
        let count = batch_means::interval_count(seconds, mean_time(&spans));
        let rate = |weight: fn(&FileSpan) -> f64| {
            let amount = |from: f64, to: f64| -> f64 {
                spans.iter().map(|span| weight(span) * fraction_between(span, begin, from, to)).sum()
            };
            if seconds <= 0.0 {
                return Rate { mean: 0.0, ci95_half_width: None };
            }
            let length = seconds / count as f64;
            let rates = (0..count).map(|n| amount(length * n as f64, length * (n + 1) as f64) / length);
            let rates: Vec<f64> = rates.collect();
            let interval = (spans.len() >= MIN_FILES_FOR_INTERVAL)
                .then(|| batch_means::estimate_rate_with_batches(&rates, count))
                .flatten();
            Rate {
                mean: amount(0.0, seconds) / seconds,
                ci95_half_width: interval.map(|rate| rate.ci95_half_width),
            }
        };
        Self { seconds, bytes_per_second: rate(|span| span.bytes as f64), files_per_second: rate(|_| 1.0) }
    }
}

/// The mean time of a file, in seconds.
fn mean_time(spans: &[FileSpan]) -> f64 {
    let spent: f64 = spans.iter().map(|span| span.end.saturating_sub(span.begin).as_secs_f64()).sum();
    spent / spans.len().max(1) as f64
}

/// The fraction of a file's time between `from` and `to`, which are in seconds since `begin`.
fn fraction_between(span: &FileSpan, begin: Duration, from: f64, to: f64) -> f64 {
    let since_begin = |time: Duration| time.saturating_sub(begin).as_secs_f64();
    let (start, end) = (since_begin(span.begin), since_begin(span.end));
    if end <= start {
        return if from <= start && start < to { 1.0 } else { 0.0 };
    }
    ((end.min(to) - start.max(from)) / (end - start)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(files: &[(u64, u64, u64)]) -> Vec<FileSpan> {
        let millis = Duration::from_millis;
        files
            .iter()
            .map(|(begin, end, bytes)| FileSpan { begin: millis(*begin), end: millis(*end), bytes: *bytes })
            .collect()
    }

    #[test]
    fn rates_exclude_time_after_the_first_thread_ended() {
        let short = [(1000, 1500, 50), (1500, 2000, 50), (2000, 2500, 50), (2500, 3000, 50)];
        let long = [(1000, 2000, 100), (2000, 2500, 50), (2500, 2500, 0), (2500, 3500, 100)];
        let steady = SteadyRates::from_spans(Duration::from_secs(1), &[spans(&short), spans(&long), vec![]]);
        assert!((steady.seconds - 2.0).abs() < 1e-9);
        // All 200 bytes of the first thread, and all of the second but half of its last file.
        assert!((steady.bytes_per_second.mean - 200.0).abs() < 1e-6, "{steady:?}");
        assert!((steady.files_per_second.mean - 3.75).abs() < 1e-6, "{steady:?}");
        assert_eq!(steady.bytes_per_second.ci95_half_width, None);
    }

    #[test]
    fn rates_of_few_files_cover_all_threads_to_the_end() {
        // The first thread had most of the link. Until its end, the other would count with half of its bytes.
        let threads = [spans(&[(0, 1000, 900)]), spans(&[(0, 2000, 900)])];
        let steady = SteadyRates::from_spans(Duration::ZERO, &threads);
        assert!((steady.seconds - 2.0).abs() < 1e-9);
        assert!((steady.bytes_per_second.mean - 900.0).abs() < 1e-6, "{steady:?}");
    }

    #[test]
    fn files_longer_than_an_interval_give_no_confidence() {
        // Each file lies in all intervals, however different the threads are.
        let threads: Vec<Vec<FileSpan>> = (0..64).map(|n| spans(&[(0, 5000 + 10 * n, 1 << 20)])).collect();
        let steady = SteadyRates::from_spans(Duration::ZERO, &threads);
        assert!(steady.bytes_per_second.mean > 0.0, "{steady:?}");
        assert_eq!(
            (steady.bytes_per_second.ci95_half_width, steady.files_per_second.ci95_half_width),
            (None, None)
        );
        // Long files mean fewer and longer intervals: six here, and too few with files twice as long.
        let confidence = |millis: u64| {
            let one: Vec<_> = (0..2400 / millis).map(|n| (n * millis, (n + 1) * millis, 1 + n % 7)).collect();
            SteadyRates::from_spans(Duration::ZERO, &vec![spans(&one); 6]).files_per_second.ci95_half_width
        };
        assert_eq!((confidence(100).is_some(), confidence(200)), (true, None));
    }

    #[test]
    fn many_files_give_a_confidence_interval() {
        let even: Vec<(u64, u64, u64)> = (0..200).map(|n| (n * 10, n * 10 + 10, 4096)).collect();
        let steady = SteadyRates::from_spans(Duration::ZERO, &[spans(&even)]);
        assert!((steady.bytes_per_second.mean - 409_600.0).abs() < 1.0, "{steady:?}");
        assert!(
            steady.bytes_per_second.ci95_half_width.is_some_and(|half_width| half_width < 1.0),
            "{steady:?}"
        );
        let nothing = SteadyRates::from_spans(Duration::ZERO, &[vec![]]);
        assert_eq!((nothing.seconds, nothing.bytes_per_second.mean), (0.0, 0.0));
    }
}
