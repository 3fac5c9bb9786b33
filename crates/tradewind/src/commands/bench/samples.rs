//! Where raw samples go: a file that nobody had before, like all that a measurement keeps.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::samples::Samples;

/// Flags about raw samples.
#[derive(Debug, Args)]
pub(super) struct SampleFlags {
    /// Keep each request of a measured window too, as a line of CSV in this file
    #[arg(long = "samples", value_name = "FILE", help_heading = "Output")]
    file: Option<PathBuf>,
}

impl SampleFlags {
    /// Makes the file, for so many workers at a time.
    pub fn begin(&self, workers: usize) -> anyhow::Result<Option<Samples>> {
        let Some(path) = &self.file else { return Ok(None) };
        let shown = path.display();
        let file = File::create_new(path).with_context(|| format!("cannot make {shown}"))?;
        let samples = Samples::begin(file, workers).inspect_err(|_| remove(path));
        samples.map(Some).with_context(|| format!("samples cannot be written to {shown}"))
    }

    /// Removes it again: nothing was measured.
    pub fn discard(&self) {
        self.file.iter().for_each(|path| remove(path));
    }

    /// Says what is to be said of how writing to it ended.
    pub fn end(&self, written: io::Result<()>) -> anyhow::Result<()> {
        let shown = self.file.as_deref().unwrap_or(Path::new("")).display();
        written.with_context(|| format!("{shown} cannot be written and is not whole: samples are missing"))
    }
}

fn remove(path: &Path) {
    // It holds nothing; who finds it sees that.
    let _ = fs::remove_file(path);
}
