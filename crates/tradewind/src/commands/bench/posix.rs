//! `tradewind bench posix`: files in a directory of any mounted file system.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tradewind_bench::drive::Stop;
use tradewind_bench::posix::form::Form;
use tradewind_bench::posix::mount::Mount;
use tradewind_bench::posix::postmark::Workload;
use tradewind_bench::posix::{Part, Place, Site, Survey};
use tradewind_bench::{Content, Sizes};
use tradewind_core::quantity::ByteSize;
use tradewind_core::{Clock, SystemClock};

use super::ground::until_stopped;
use super::output::{Output, OutputFlags, Told, files};
use crate::commands::{Ended, Misused};
use crate::settings::Span;

/// Sizes of single files, unless others are named.
const SINGLE: &str = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB";
/// Sizes of files in batches, unless others are named.
const BATCH: &str = "4KiB,256KiB,16MiB";

/// Measure a directory of a mounted file system with files
///
/// Threads write and read files with blocking calls, opened with O_DIRECT, with O_SYNC and with neither. A file of 16 MiB is
/// accessed in pieces of several sizes (unit), single files of several sizes by themselves (single) and many of them from one
/// thread and more (batch); Postmark's workload makes, changes and removes small ones. Caches are dropped before reading,
/// those of the whole machine where that is allowed (root), and every byte is compared with what was written. Files lie in a
/// directory of its own in DIR, which is removed at the end. All of it takes some two minutes on a disk.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench posix /mnt/data\n  \
    tradewind bench posix /mnt/nfs --interface eth0 --only unit,single -o nfs.jsonl\n  \
    tradewind bench posix /mnt/data --only batch --form default --size 4KiB,16MiB --threads 1,2,4,8,16,32,64 --fsync\n  \
    tradewind bench posix . --only postmark --range 512B-100KiB --pool 500 --transactions 500 --repeat 3\n\n\
    Exit status: 0 measured, 1 a call failed or a byte was wrong, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// The directory in which files are made
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Parts that are measured: unit, single, batch, postmark [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = part)]
    only: Vec<Part>,
    /// Forms of access: direct (O_DIRECT), sync (O_SYNC), default (neither) [default: all]
    #[arg(long, value_name = "FORM", value_delimiter = ',')]
    form: Vec<Form>,
    /// Bytes of an access to the file of 16 MiB
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size,
        default_value = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB")]
    unit: Vec<u64>,
    /// Sizes of whole files [default: single 4KiB to 64MiB by powers of 4, batch 4KiB,256KiB,16MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    size: Vec<u64>,
    /// Threads of a batch, each measured apart
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,64", value_parser = threads)]
    threads: Vec<usize>,
    /// How long each batch is written and read; one file by itself is given up after five times as long
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = Span::parse)]
    time: Span,
    /// Files of a batch, however long they take [default: what is done in --time, up to 10000 or 512 MiB, one a thread at least]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    files: Option<u64>,
    /// Make each file durable before it is closed; that counts
    #[arg(long)]
    fsync: bool,
    /// The network interface between here and the storage: says what it carried for each byte
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Leave the caches of the machine alone: the kernel is only advised of the files that are read
    #[arg(long)]
    leave_caches: bool,
    /// Sizes of the files of Postmark, each range measured apart
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = range,
        default_value = "512B-100KiB,100KiB-200KiB,200KiB-1MiB")]
    range: Vec<(u64, u64)>,
    /// Files of Postmark before its transactions
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pool: u64,
    /// Transactions of Postmark
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    transactions: u64,
    /// How often all of it is done, one round behind the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Where chance begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Leave the files there
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    output: OutputFlags,
}

fn part(text: &str) -> Result<Part, String> {
    match text {
        "unit" => Ok(Part::Unit),
        "single" => Ok(Part::Single),
        "batch" => Ok(Part::Batch),
        "postmark" => Ok(Part::Postmark),
        _ => Err("write unit, single, batch or postmark".to_owned()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    ByteSize::parse(text).map(|size| size.0)
}

fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| "write a number from 1 to 1024".to_owned())
}

fn range(text: &str) -> Result<(u64, u64), String> {
    /// What is read at once is held in memory.
    const MOST: u64 = 256 << 20;
    match text.parse()? {
        Sizes::Between(least, most) if least > 0 && most <= MOST => Ok((least, most)),
        Sizes::Fixed(size) if size > 0 && size <= MOST => Ok((size, size)),
        _ => Err("write a range as 512B-100KiB, up to 256MiB".to_owned()),
    }
}

impl Arguments {
    fn survey(&self, cores: usize) -> anyhow::Result<Survey> {
        let sizes = |usual: &str| -> anyhow::Result<Vec<u64>> {
            let usual = usual.split(',').map(|text| size(text).map_err(anyhow::Error::msg));
            if self.size.is_empty() { usual.collect() } else { Ok(self.size.clone()) }
        };
        let all = vec![Part::Unit, Part::Single, Part::Batch, Part::Postmark];
        let workload =
            |range: &(u64, u64)| Workload { range: *range, pool: self.pool, transactions: self.transactions };
        Ok(Survey {
            parts: if self.only.is_empty() { all } else { self.only.clone() },
            forms: if self.form.is_empty() { Form::ALL.to_vec() } else { self.form.clone() },
            units: self.unit.clone(),
            single_sizes: sizes(SINGLE)?,
            sizes: sizes(BATCH)?,
            threads: self.threads.clone(),
            time: self.time.0,
            files: self.files,
            fsync: self.fsync,
            drops_caches: !self.leave_caches,
            interface: self.interface.clone(),
            postmark: self.range.iter().map(workload).collect(),
            repeats: self.repeat,
            seed: self.seed,
            keeps: self.keep,
            cores,
        })
    }
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    until_stopped(async move |stop| {
        // Files are accessed with blocking calls, from threads of their own: this one only waits for them.
        tokio::task::block_in_place(|| measure(&arguments, &stop))
    })
}

fn measure(arguments: &Arguments, stop: &Stop) -> anyhow::Result<Ended> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let survey = arguments.survey(cores)?;
    survey.check().map_err(Misused)?;
    let number = getrandom::u32().map_err(|e| anyhow::anyhow!("the system gives no random bytes: {e}"))?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let place = Arc::new(Place::make(&arguments.directory, &format!("tradewind-bench-{number:08x}"))?);
    let told = Told {
        place: arguments.directory.display().to_string(),
        kind: Mount::of(place.directory()).kind,
        prefix: place.directory().display().to_string(),
        seed: arguments.seed,
        cores,
        cells: survey.cells(),
        head: files::HEAD,
        agents: Vec::new(),
    };
    let site = Site { place: place.clone(), content: Arc::new(Content::new()), clock, stop: stop.clone() };
    let measured =
        Output::begin(&arguments.output, &told, site.clock.wall(), stop.clone()).and_then(|mut output| {
            let measured = survey.run(&site, &mut |event| output.tell_posix(event));
            let ended = output.end(matches!(measured, Ok(true)), Vec::new());
            measured?;
            ended
        });
    let shown = place.directory().display();
    if arguments.keep {
        writeln!(io::stderr(), "files are kept in {shown}")?;
        return measured;
    }
    match place.clean() {
        Ok(()) => measured,
        Err(e) => {
            // Whatever else went wrong is told too.
            writeln!(io::stderr(), "tradewind: files are left in {shown}: {e}")?;
            measured.map(|_| Ended::FoundFaults)
        }
    }
}
