//! The first pass over a trace, before any request is sent: finds invalid lines, counts requests by operation, and
//! determines which objects must exist initially. Keeps the keys in memory, but not the requests.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::trace::{InvalidLine, Trace, TraceEntry};
use crate::operation::{Mix, Operation};
use crate::size_distribution::SizeDistribution;

/// Number of invalid lines that are reported in full.
const MAX_REPORTED_LINES: usize = 10;

/// The contents of a trace.
#[derive(Debug, Default)]
pub struct TraceSummary {
    /// Number of requests by operation.
    pub requests: BTreeMap<Operation, u64>,
    /// Number of invalid lines.
    pub invalid_lines: u64,
    /// The first of the invalid lines.
    pub first_invalid: Vec<InvalidLine>,
    /// The time of the first request, from which replay times count.
    pub first_at: Duration,
    /// Time from the first request to the last.
    pub span: Duration,
    /// Sorted keys of all requests, with the sizes of the objects that must exist initially.
    pub objects: Arc<[(Box<str>, Option<u64>)]>,
    /// Size of the smallest object; size of the largest object, and the line that requires it.
    pub sizes: Option<(u64, (u64, u64))>,
}

/// State of a key during the pass.
#[derive(Default)]
struct KeyState {
    /// The size of the object that must exist initially, and the line that requires it.
    needed: Option<(u64, u64)>,
    /// The trace has written or deleted the object.
    is_changed: bool,
}

impl TraceSummary {
    /// Reads a trace to its end. Fails only on I/O errors.
    pub fn read(trace: Trace) -> io::Result<Self> {
        let (mut summary, mut keys) = (Self::default(), BTreeMap::new());
        for each in trace {
            match each? {
                Ok(entry) => summary.add(entry, &mut keys),
                Err(invalid_line) => summary.add_invalid(invalid_line),
            }
        }
        summary.first_invalid.sort_unstable();
        summary.first_invalid.truncate(MAX_REPORTED_LINES);
        for (size, line) in keys.values().filter_map(|state: &KeyState| state.needed) {
            summary.add_size(size, line);
        }
        let needed = |(key, state): (Box<str>, KeyState)| (key, state.needed.map(|(size, _)| size));
        summary.objects = keys.into_iter().map(needed).collect();
        Ok(summary)
    }

    fn add_invalid(&mut self, invalid_line: InvalidLine) {
        self.invalid_lines += 1;
        self.first_invalid.push(invalid_line);
        // Out-of-order lines are detected later than other invalid lines, so the list must be sorted.
        if self.first_invalid.len() > 16 * MAX_REPORTED_LINES {
            self.first_invalid.sort_unstable();
            self.first_invalid.truncate(MAX_REPORTED_LINES);
        }
    }

    fn add(&mut self, entry: TraceEntry, keys: &mut BTreeMap<Box<str>, KeyState>) {
        if self.requests.is_empty() {
            self.first_at = entry.time;
        }
        self.span = entry.time - self.first_at;
        *self.requests.entry(entry.operation).or_default() += 1;
        let length = entry.length;
        if entry.operation == Operation::List {
            return;
        }
        if entry.operation == Operation::Put {
            self.add_size(length.unwrap_or(0), entry.line);
        }
        let state = match keys.get_mut(&*entry.key) {
            Some(state) => state,
            None => keys.entry(entry.key.into()).or_default(),
        };
        if state.is_changed {
            return;
        }
        let size = match entry.operation {
            Operation::Put => None,
            Operation::Get => Some(entry.offset + length.unwrap_or(1)),
            Operation::Head | Operation::Delete | Operation::List => Some(1),
        };
        if let Some(size) = size.filter(|size| state.needed.is_none_or(|(needed, _)| *size > needed)) {
            state.needed = Some((size, entry.line));
        }
        state.is_changed = matches!(entry.operation, Operation::Put | Operation::Delete);
    }

    fn add_size(&mut self, size: u64, line: u64) {
        let (smallest, largest) = self.sizes.unwrap_or((size, (size, line)));
        self.sizes = Some((smallest.min(size), if size > largest.0 { (size, line) } else { largest }));
    }

    /// Total number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.requests.values().sum()
    }

    /// The number of objects that must exist initially, and their total bytes.
    #[must_use]
    pub fn initial_objects(&self) -> (u64, u64) {
        let sizes = self.objects.iter().filter_map(|(_, size)| *size);
        sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes.saturating_add(size)))
    }

    /// The proportions of the operations.
    #[must_use]
    pub fn mix(&self) -> Mix {
        Mix::from_counts(&self.requests)
    }

    /// The range of object sizes.
    #[must_use]
    pub fn size_range(&self) -> SizeDistribution {
        match self.sizes {
            Some((smallest, (largest, _))) if smallest < largest => {
                SizeDistribution::Uniform(smallest, largest)
            }
            Some((size, _)) => SizeDistribution::Fixed(size),
            None => SizeDistribution::Fixed(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn summarize(text: &str) -> TraceSummary {
        let text = format!("time,op,key,offset,length\n{text}");
        TraceSummary::read(Trace::open(Box::new(Cursor::new(text.into_bytes())), 100).unwrap().unwrap())
            .unwrap()
    }

    #[test]
    fn summary_contains_objects_read_before_they_are_written() {
        let summary = summarize(
            "5,get,read,,\n5,get,read,100,28\n6,get,read,7,\n\
             6.5,put,written,,4096\n7,get,written,5000,10\n\
             7,head,asked,,\n7,delete,removed,,\n7,get,removed,900,100\n\
             8,get,later,10,1\n8,put,later,,5\n9,get,later,0,50\n9.5,list,r,,\n",
        );
        let needed: Vec<(&str, Option<u64>)> =
            summary.objects.iter().map(|(key, size)| (&**key, *size)).collect();
        let expected = [
            ("asked", Some(1)),
            ("later", Some(11)),
            ("read", Some(128)),
            ("removed", Some(1)),
            ("written", None),
        ];
        assert_eq!(needed, expected);
        assert_eq!((summary.initial_objects(), summary.count(), summary.invalid_lines), ((4, 141), 12, 0));
        assert_eq!((summary.first_at, summary.span), (Duration::from_secs(5), Duration::from_millis(4500)));
        assert_eq!(summary.mix().to_string(), "put=2,get=7,head=1,list=1,delete=1");
        assert_eq!(
            (summary.size_range(), summary.sizes),
            (SizeDistribution::Uniform(1, 4096), Some((1, (4096, 5))))
        );
    }

    #[test]
    fn summary_keeps_the_first_ten_invalid_lines() {
        let late = "99,get,a,,\n".repeat(1100) + "1,get,early,,\n";
        let summary = summarize(&(late + &"x\n".repeat(500)));
        let lines: Vec<u64> = summary.first_invalid.iter().map(|invalid_line| invalid_line.line).collect();
        assert_eq!((summary.invalid_lines, lines), (501, (1102..=1111).collect()));
        assert_eq!(summary.count(), 1100);
    }
}
