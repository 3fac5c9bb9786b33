//! The file of raw samples. Like all output files of a measurement, it must not exist before.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::samples::SampleFile;

/// Flags for raw samples.
#[derive(Debug, Args)]
pub(super) struct SampleFlags {
    /// Also write each measured request as a line of CSV to this file
    #[arg(long = "samples", value_name = "FILE", help_heading = "Output")]
    file: Option<PathBuf>,
}

impl SampleFlags {
    /// Creates the file, for this number of concurrent workers.
    pub fn begin(&self, workers: usize) -> anyhow::Result<Option<SampleFile>> {
        let Some(path) = &self.file else { return Ok(None) };
        let shown = path.display();
        let file = File::create_new(path).with_context(|| format!("cannot create {shown}"))?;
        let samples = SampleFile::start(file, workers).inspect_err(|_| remove(path));
        samples.map(Some).with_context(|| format!("cannot write samples to {shown}"))
    }

    /// Removes the file, because nothing was measured.
    pub fn discard(&self) {
        self.file.iter().for_each(|path| remove(path));
    }

    /// Returns an error if writing failed.
    pub fn end(&self, written: io::Result<()>) -> anyhow::Result<()> {
        let shown = self.file.as_deref().unwrap_or(Path::new("")).display();
        written.with_context(|| format!("cannot write {shown}: samples are missing"))
    }
}

fn remove(path: &Path) {
    // A remaining empty file does no harm.
    let _ = fs::remove_file(path);
}
