//! The workload to tune for: files of a directory, objects below a prefix, or requests of a trace. It is reduced to the
//! sizes of the requests that commands would make.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::json;
use tradewind_bench::drive::BenchEnv;
use tradewind_bench::operation::Operation;
use tradewind_bench::replay::trace::Trace;
use tradewind_bench::tune::probe_target::sizes_below;
use tradewind_core::name::MAX_KEY_BYTES;
use tradewind_model::plan::{Plan, split_evenly};
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::{OperatingPoint, Workload};
use tradewind_transfer::files::{self, Links, Tree};
use tradewind_transfer::filter::Filter;

use super::Arguments;
use crate::commands::plan_output::{self, CANDIDATE_CONCURRENCIES, CANDIDATE_REQUEST_BYTES};
use crate::commands::terminal::print_error_line;
use crate::locations::{Location, ObjectsLocation};
use crate::settings::ByteSize;

/// The maximum number of objects or files that are examined: more hardly change the distribution.
const MAX_ITEMS: usize = 100_000;

/// The requests of both directions. If a trace has none of one direction, those of the other are used for it.
#[derive(Debug)]
pub(super) struct Workloads {
    upload: Workload,
    download: Workload,
    /// The kind of the examined items, a noun in the singular.
    item_kind: &'static str,
    /// The number of items examined.
    count: usize,
    /// There are more items than were examined.
    is_truncated: bool,
}

impl Workloads {
    /// Examines a location. Objects are in a store opened with the same access flags as the store to tune.
    pub async fn examine(
        location: &Location,
        (arguments, env): (&Arguments, &BenchEnv),
    ) -> anyhow::Result<Self> {
        let item_kind = match location {
            Location::Objects(_) => "object",
            Location::Path(path) if path.is_dir() => "file",
            Location::Path(_) | Location::Standard => "request",
        };
        let empty = Workload::new(&CANDIDATE_REQUEST_BYTES);
        let mut workloads =
            Self { upload: empty.clone(), download: empty, item_kind, count: 0, is_truncated: false };
        match location {
            Location::Objects(location) => workloads.add_objects(location, arguments, env).await?,
            Location::Path(path) if path.is_dir() => workloads.add_files(path).await?,
            Location::Path(path) => tokio::task::block_in_place(|| workloads.add_trace(path))?,
            Location::Standard => bail!("a workload is a directory, a trace or a prefix, not standard input"),
        }
        if workloads.count == 0 {
            bail!("{location}: no objects, files or requests found");
        }
        let is_empty = |workload: &Workload| workload.total().requests == 0;
        match (is_empty(&workloads.upload), is_empty(&workloads.download)) {
            (true, false) => workloads.upload = workloads.download.clone(),
            (false, true) => workloads.download = workloads.upload.clone(),
            _ => {}
        }
        Ok(workloads)
    }

    async fn add_objects(
        &mut self,
        location: &ObjectsLocation,
        arguments: &Arguments,
        env: &BenchEnv,
    ) -> anyhow::Result<()> {
        let store = tokio::task::block_in_place(|| {
            let open = arguments.client.opener(location, 1, env)?;
            anyhow::Ok(open()?)
        })?;
        let env = BenchEnv { store, bucket: location.bucket.clone(), ..env.clone() };
        let listed = sizes_below(&env, &location.key, MAX_ITEMS).await;
        let (sizes, is_truncated) = listed.with_context(|| location.to_string())?;
        sizes.into_iter().for_each(|size| self.add_object(size));
        self.is_truncated = is_truncated;
        Ok(())
    }

    async fn add_files(&mut self, directory: &Path) -> anyhow::Result<()> {
        let tree = Tree::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
        let mut items = files::find(tree, Links::Skip, &Filter::accept_all());
        let mut failed = 0_u64;
        while let Some(item) = items.recv().await {
            match item {
                Ok(item) => self.add_object(item.size),
                Err(part) => {
                    let (name, e) = part.into_named_error();
                    failed += 1;
                    if failed == 1 {
                        print_error_line(format_args!("tradewind: {name}: {e}"))?;
                    }
                }
            }
            if self.count >= MAX_ITEMS {
                self.is_truncated = true;
                break;
            }
        }
        if failed > 1 {
            writeln!(io::stderr(), "tradewind: and {} more could not be read", failed - 1)?;
        }
        Ok(())
    }

    fn add_trace(&mut self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
        let text: Box<dyn BufRead + Send> = Box::new(BufReader::new(file));
        let trace = Trace::open(text, MAX_KEY_BYTES).with_context(|| format!("{shown} cannot be read"))?;
        let trace = trace.map_err(|invalid| {
            anyhow::anyhow!("{shown} is neither a directory nor a trace of requests: {invalid}")
        })?;
        let (mut invalid, mut sizes) = (0_u64, HashMap::new());
        for entry in trace {
            let entry = match entry.with_context(|| format!("{shown} cannot be read"))? {
                Ok(entry) => entry,
                Err(why) => {
                    invalid += 1;
                    if invalid == 1 {
                        print_error_line(format_args!("tradewind: {shown}, {why}; skipped"))?;
                    }
                    continue;
                }
            };
            match entry.operation {
                Operation::Put => {
                    let bytes = entry.length.unwrap_or(0);
                    self.upload.add(bytes);
                    self.count += 1;
                    sizes.insert(entry.key, bytes);
                }
                Operation::Get => {
                    // The size of a whole object that the trace did not write is unknown.
                    let rest = || sizes.get(&entry.key).map(|size| size.saturating_sub(entry.offset));
                    if let Some(bytes) = entry.length.or_else(rest) {
                        self.download.add(bytes);
                        self.count += 1;
                    }
                }
                Operation::Head | Operation::List | Operation::Delete => {}
            }
        }
        if invalid > 1 {
            writeln!(io::stderr(), "tradewind: and {} more lines of {shown} are invalid", invalid - 1)?;
        }
        Ok(())
    }

    /// Adds the requests for an object with the default plan. The tuned plan is not known yet; its ranges of downloads may
    /// be smaller.
    fn add_object(&mut self, size: u64) {
        let plan = Plan::default();
        match plan.part_bytes(size) {
            Some(part) => split_evenly(size, part).for_each(|(_, bytes)| self.upload.add(bytes)),
            None => self.upload.add(size),
        }
        if size > plan.chunk_bytes {
            plan.ranges(0, size).for_each(|(_, bytes)| self.download.add(bytes));
        } else {
            self.download.add(size);
        }
        self.count += 1;
    }

    /// The workload of one direction.
    pub const fn for_direction(&self, direction: Direction) -> &Workload {
        match direction {
            Direction::Write => &self.upload,
            Direction::Read => &self.download,
        }
    }

    /// Candidate operating points of one direction.
    pub fn points(&self, direction: Direction) -> Vec<OperatingPoint> {
        let sizes: Vec<u64> =
            self.for_direction(direction).significant_sizes().iter().map(|share| share.size).collect();
        OperatingPoint::grid(&sizes, &CANDIDATE_CONCURRENCIES)
    }

    /// Prints the distribution of sizes.
    pub fn print(&self, is_json: bool) -> io::Result<()> {
        let mut out = io::stdout();
        if !is_json {
            let rest = if self.is_truncated { "; the rest is not examined" } else { "" };
            let plural = if self.count == 1 { "" } else { "s" };
            writeln!(out, "workload: {} {}{plural}{rest}", self.count, self.item_kind)?;
        }
        for direction in [Direction::Write, Direction::Read] {
            let (name, shares) =
                (plan_output::direction_name(direction), self.for_direction(direction).significant_sizes());
            if is_json {
                for share in shares {
                    let line = json!({
                        "line": "workload",
                        "direction": name,
                        "size": share.size,
                        "of_requests": share.request_share,
                        "of_bytes": share.byte_share,
                    });
                    writeln!(out, "{line}")?;
                }
                continue;
            }
            let sizes: Vec<String> = (shares.iter())
                .map(|share| {
                    let (requests, bytes) = (share.request_share * 100.0, share.byte_share * 100.0);
                    format!("{} ({requests:.0} % of requests, {bytes:.0} % of bytes)", ByteSize(share.size))
                })
                .collect();
            writeln!(out, "  {name}s of about {}", sizes.join(", "))?;
        }
        Ok(())
    }
}
