//! What is going to be moved, as somebody names it: files of a directory, objects below a prefix, or requests of a trace. What counts
//! of it is the sizes of the requests that commands would make.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::json;
use tradewind_bench::drive::Bed;
use tradewind_bench::operation::Operation;
use tradewind_bench::replay::trace::Trace;
use tradewind_bench::tune::ground::sizes_below;
use tradewind_core::name::MAX_KEY_BYTES;
use tradewind_model::plan::Plan;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::{Cell, Workload};
use tradewind_transfer::files::{self, Links, Tree};

use super::Arguments;
use crate::commands::advice::{self, PARALLEL, SIZES};
use crate::commands::terminal::say_line;
use crate::places::{ObjectsPlace, Place};
use crate::settings::ByteSize;

/// Objects or files that are looked at, at the most: more tell no more.
const MOST: usize = 100_000;

/// The requests of both directions. Where a trace has none of one direction, those of the other stand for it.
#[derive(Debug)]
pub(super) struct Workloads {
    upload: Workload,
    download: Workload,
    /// What was looked at, in one word, and how many of it.
    what: &'static str,
    count: usize,
    /// There is more than was looked at.
    is_cut: bool,
}

impl Workloads {
    /// Looks at a place. Objects are in a store that is opened with the same access as the one that is tuned.
    pub async fn find(place: &Place, (arguments, bed): (&Arguments, &Bed)) -> anyhow::Result<Self> {
        let what = match place {
            Place::Objects(_) => "object",
            Place::Path(path) if path.is_dir() => "file",
            Place::Path(_) | Place::Standard => "request",
        };
        let none = Workload::new(&SIZES);
        let mut found = Self { upload: none.clone(), download: none, what, count: 0, is_cut: false };
        match place {
            Place::Objects(place) => found.add_objects(place, arguments, bed).await?,
            Place::Path(path) if path.is_dir() => found.add_files(path).await?,
            Place::Path(path) => tokio::task::block_in_place(|| found.add_trace(path))?,
            Place::Standard => bail!("a workload is a directory, a trace or a prefix, not standard input"),
        }
        if found.count == 0 {
            bail!("{place}: nothing is there that could be moved");
        }
        let is_none = |workload: &Workload| workload.whole().requests == 0;
        match (is_none(&found.upload), is_none(&found.download)) {
            (true, false) => found.upload = found.download.clone(),
            (false, true) => found.download = found.upload.clone(),
            _ => {}
        }
        Ok(found)
    }

    async fn add_objects(
        &mut self,
        place: &ObjectsPlace,
        arguments: &Arguments,
        bed: &Bed,
    ) -> anyhow::Result<()> {
        let store = tokio::task::block_in_place(|| {
            let open = arguments.asking.opener(place, 1, bed)?;
            anyhow::Ok(open()?)
        })?;
        let bed = Bed { store, bucket: place.bucket.clone(), ..bed.clone() };
        let listed = sizes_below(&bed, &place.key, MOST).await;
        let (sizes, is_cut) = listed.with_context(|| place.to_string())?;
        sizes.into_iter().for_each(|size| self.add_object(size));
        self.is_cut = is_cut;
        Ok(())
    }

    async fn add_files(&mut self, directory: &Path) -> anyhow::Result<()> {
        let tree = Tree::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
        let mut items = files::find(tree, Links::Skip);
        let mut failed = 0_u64;
        while let Some(item) = items.recv().await {
            match item {
                Ok(item) => self.add_object(item.size),
                Err((name, e)) => {
                    failed += 1;
                    if failed == 1 {
                        say_line(format_args!("tradewind: {name}: {e}"))?;
                    }
                }
            }
            if self.count >= MOST {
                self.is_cut = true;
                break;
            }
        }
        if failed > 1 {
            writeln!(io::stderr(), "tradewind: and {} more could not be looked at", failed - 1)?;
        }
        Ok(())
    }

    fn add_trace(&mut self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
        let text: Box<dyn BufRead + Send> = Box::new(BufReader::new(file));
        let trace = Trace::open(text, MAX_KEY_BYTES).with_context(|| format!("{shown} cannot be read"))?;
        let trace = trace.map_err(|broken| {
            anyhow::anyhow!("{shown} is neither a directory nor a trace of requests: {broken}")
        })?;
        let (mut broken, mut sizes) = (0_u64, HashMap::new());
        for entry in trace {
            let entry = match entry.with_context(|| format!("{shown} cannot be read"))? {
                Ok(entry) => entry,
                Err(why) => {
                    broken += 1;
                    if broken == 1 {
                        say_line(format_args!("tradewind: {shown}, {why}; it is passed over"))?;
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
                    // One that reads all of what the trace did not write says nothing of its size.
                    let rest = || sizes.get(&entry.key).map(|size| size.saturating_sub(entry.offset));
                    if let Some(bytes) = entry.length.or_else(rest) {
                        self.download.add(bytes);
                        self.count += 1;
                    }
                }
                Operation::Head | Operation::List | Operation::Delete => {}
            }
        }
        if broken > 1 {
            writeln!(io::stderr(), "tradewind: and {} more lines of {shown} are broken", broken - 1)?;
        }
        Ok(())
    }

    /// Adds the requests that commands make for an object.
    fn add_object(&mut self, size: u64) {
        let plan = Plan::default();
        match plan.part_bytes(size) {
            Some(part) => Plan::chunks(size, part).for_each(|(_, bytes)| self.upload.add(bytes)),
            None => self.upload.add(size),
        }
        if size > plan.chunk_bytes {
            plan.ranges(0, size).for_each(|(_, bytes)| self.download.add(bytes));
        } else {
            self.download.add(size);
        }
        self.count += 1;
    }

    /// Of one direction.
    pub const fn of(&self, direction: Direction) -> &Workload {
        match direction {
            Direction::Write => &self.upload,
            Direction::Read => &self.download,
        }
    }

    /// The cells that plans of one direction may have.
    pub fn cells(&self, direction: Direction) -> Vec<Cell> {
        let sizes: Vec<u64> = self.of(direction).shares().iter().map(|share| share.size).collect();
        Cell::grid(&sizes, &PARALLEL)
    }

    /// Says what it is.
    pub fn print(&self, is_json: bool) -> io::Result<()> {
        let mut out = io::stdout();
        if !is_json {
            let cut = if self.is_cut { "; there are more, which are not looked at" } else { "" };
            let more = if self.count == 1 { "" } else { "s" };
            writeln!(out, "workload: {} {}{more}{cut}", self.count, self.what)?;
        }
        for direction in [Direction::Write, Direction::Read] {
            let (name, shares) = (advice::name(direction), self.of(direction).shares());
            if is_json {
                for share in shares {
                    let line = json!({
                        "line": "workload",
                        "direction": name,
                        "size": share.size,
                        "of_requests": share.of_requests,
                        "of_bytes": share.of_bytes,
                    });
                    writeln!(out, "{line}")?;
                }
                continue;
            }
            let told: Vec<String> = (shares.iter())
                .map(|share| {
                    let (requests, bytes) = (share.of_requests * 100.0, share.of_bytes * 100.0);
                    format!("{} ({requests:.0} % of requests, {bytes:.0} % of bytes)", ByteSize(share.size))
                })
                .collect();
            writeln!(out, "  {name}s of about {}", told.join(", "))?;
        }
        Ok(())
    }
}
