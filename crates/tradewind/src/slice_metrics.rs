//! The metrics of rotating disks with slices, as a collector of `prometheus_client`. Their label `disk` is the name of
//! the first store on the disk. The label `class` is a class with a share, or `other` for all others.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use tradewind_gateway::metrics::{Family, encode_count};
use tradewind_layers::{DiskQueue, DiskQueueReport};
use tradewind_model::slices::{GroupStatistics, RequestGroup};

const TURNS: Family = Family::counter(
    "tradewind_slices_turns",
    "Requests that got the disk, by kind and class: small (objects up to 4 MiB, listings, and \
     the record of any object, whose class is not known yet), first_slice (of a stream), stream (further slices), change (writes that wait for a sync). Class other: all classes without a share.",
);
const WAIT_TIME: Family = Family::counter(
    "tradewind_slices_wait_seconds",
    "Sum of the times that these requests waited for the disk, in seconds, by kind and class.",
);
const MAX_WAIT: Family = Family::gauge(
    "tradewind_slices_max_wait_seconds",
    "Longest time that a request waited for the disk since the start, in seconds, by kind and class.",
);
const ABANDONED: Family = Family::counter(
    "tradewind_slices_abandoned",
    "Requests that were cancelled, or reached their deadline, while they waited for the disk, by kind and class.",
);
const READ_BYTES: Family = Family::counter(
    "tradewind_slices_read_bytes",
    "Bytes of objects that were read in turns, by kind and class, those included that the page cache had.",
);
const WRITTEN_BYTES: Family = Family::counter(
    "tradewind_slices_written_bytes",
    "Bytes of objects above 4 MiB that were admitted to be written, by kind and class.",
);
const WAITING: Family =
    Family::gauge("tradewind_slices_waiting", "Requests that wait for the disk, by kind and class.");
const OLDEST_WAIT: Family = Family::gauge(
    "tradewind_slices_oldest_wait_seconds",
    "Time for which the oldest of them has waited, in seconds, by kind and class.",
);
const IN_SERVICE: Family =
    Family::gauge("tradewind_slices_in_service", "Requests that have the disk, by kind and class.");
const REJECTED: Family = Family::counter(
    "tradewind_slices_rejected",
    "Requests that were rejected because too many waited for the disk.",
);
const PAGE_CACHE_BYTES: Family = Family::counter(
    "tradewind_slices_page_cache_bytes",
    "Bytes of objects and ranges of up to 256 KiB that the page cache had: their reads did not wait for the disk.",
);

/// The scheduler of a disk, with the name of the first store on it.
#[derive(Debug, Clone)]
pub struct NamedDisk {
    /// The name of the store.
    pub name: String,
    /// The scheduler.
    pub queue: Arc<DiskQueue>,
}

/// Collects the metrics of all disks.
#[derive(Debug)]
pub struct SliceCollector(pub Vec<NamedDisk>);

/// The state of one disk.
struct DiskSnapshot<'a> {
    name: &'a str,
    report: DiskQueueReport,
}

/// The labels of a group.
fn labels(name: &str, group: RequestGroup) -> [(&'static str, String); 3] {
    let class = group.class.map_or_else(|| "other".to_owned(), |class| class.to_string());
    [("disk", name.to_owned()), ("kind", group.kind.name().to_owned()), ("class", class)]
}

impl DiskSnapshot<'_> {
    fn groups(&self) -> impl Iterator<Item = ([(&'static str, String); 3], &GroupStatistics)> {
        self.report.statistics.groups.iter().map(|(group, counts)| (labels(self.name, *group), counts))
    }
}

fn encode_counters(
    snapshots: &[DiskSnapshot<'_>],
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    count: impl Fn(&GroupStatistics) -> u64,
) -> fmt::Result {
    let mut samples = family.describe(encoder)?;
    for (labels, counts) in snapshots.iter().flat_map(DiskSnapshot::groups) {
        encode_count(&mut samples, &labels, count(counts))?;
    }
    Ok(())
}

fn encode_waits(snapshots: &[DiskSnapshot<'_>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let groups = || snapshots.iter().flat_map(DiskSnapshot::groups);
    let mut samples = WAIT_TIME.describe(encoder)?;
    for (labels, counts) in groups() {
        let seconds = counts.waited.as_secs_f64();
        samples.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
    }
    let mut samples = MAX_WAIT.describe(encoder)?;
    for (labels, counts) in groups() {
        samples.encode_family(&labels)?.encode_gauge(&counts.max_wait.as_secs_f64())?;
    }
    Ok(())
}

/// Groups that were used before have a sample of 0.
fn encode_present(snapshots: &[DiskSnapshot<'_>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let groups = |snapshot: &DiskSnapshot<'_>| -> Vec<RequestGroup> {
        let report = &snapshot.report;
        let known = report.statistics.groups.keys().chain(report.waiting.keys());
        let mut groups: Vec<RequestGroup> = known.copied().collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    };
    let mut samples: MetricEncoder<'_> = WAITING.describe(encoder)?;
    for snapshot in snapshots {
        for group in groups(snapshot) {
            let count = snapshot.report.waiting.get(&group).map_or(0, |waiting| waiting.count as u64);
            samples.encode_family(&labels(snapshot.name, group))?.encode_gauge(&count)?;
        }
    }
    let mut samples = OLDEST_WAIT.describe(encoder)?;
    for snapshot in snapshots {
        for group in groups(snapshot) {
            let wait = snapshot.report.waiting.get(&group).map_or(0.0, |each| each.max_wait.as_secs_f64());
            samples.encode_family(&labels(snapshot.name, group))?.encode_gauge(&wait)?;
        }
    }
    let mut samples = IN_SERVICE.describe(encoder)?;
    for snapshot in snapshots {
        for group in groups(snapshot) {
            let count = snapshot.report.in_service.get(&group).map_or(0, |count| *count as u64);
            samples.encode_family(&labels(snapshot.name, group))?.encode_gauge(&count)?;
        }
    }
    Ok(())
}

impl Collector for SliceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshots: Vec<DiskSnapshot<'_>> = self
            .0
            .iter()
            .map(|named| DiskSnapshot { name: &named.name, report: named.queue.report() })
            .collect();
        encode_counters(&snapshots, &mut encoder, &TURNS, |counts| counts.turns)?;
        encode_waits(&snapshots, &mut encoder)?;
        encode_counters(&snapshots, &mut encoder, &ABANDONED, |counts| counts.abandoned)?;
        encode_counters(&snapshots, &mut encoder, &READ_BYTES, |counts| counts.read_bytes)?;
        encode_counters(&snapshots, &mut encoder, &WRITTEN_BYTES, |counts| counts.written_bytes)?;
        encode_present(&snapshots, &mut encoder)?;
        let mut samples = REJECTED.describe(&mut encoder)?;
        for snapshot in &snapshots {
            encode_count(&mut samples, &[("disk", snapshot.name)], snapshot.report.statistics.rejected)?;
        }
        let mut samples = PAGE_CACHE_BYTES.describe(&mut encoder)?;
        for snapshot in &snapshots {
            encode_count(&mut samples, &[("disk", snapshot.name)], snapshot.report.page_cache_bytes)?;
        }
        Ok(())
    }
}
