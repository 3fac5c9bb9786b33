//! `tradewind class encode | decode`: class files, and class sections in front of data.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use serde_json::json;
use tradewind_core::class::format::{self, ClassSection, ClassWidth, Classification, Decoder, Granularity};
use tradewind_core::{Class, Classes};

use super::{RangeList, describe, parse_ranges};
use crate::commands::class_flags::parse_class;
use crate::commands::{CommandOutcome, UsageError};
use crate::settings::ByteSize;
use tradewind_model::class_policy::ClassPolicyTable;

/// The file name that stands for standard input or output.
const STANDARD: &str = "-";
/// The size of one read.
const PIECE_BYTES: usize = 256 << 10;

/// Write a class file, or a class section in front of data
///
/// A class file changes the classes of an object: PUT it to the object's URL with the header X-DSS-Class-File: True. With
/// --data, the data follows: PUT the result with X-DSS-Object-File: True, and the object is the data alone.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["class", "ranges", "blocks"]),
    after_help = "Examples:\n  \
    tradewind class encode --class 25 notes.cls\n  \
    tradewind class encode --ranges 0-64-25,1024-32-26 disk.cls\n  \
    tradewind class encode --blocks classes.txt --block-size 4KiB disk.cls\n  \
    tradewind class encode --class 25 --data notes.txt notes.obj")]
pub(in crate::commands) struct Encode {
    /// Class of the whole object, 0 to 31 or a name
    #[arg(long, value_name = "CLASS", value_parser = parse_class)]
    class: Option<Class>,
    /// Classes of ranges, as OFFSET-LENGTH-CLASS in sectors of 512 bytes, separated by commas, in ascending order
    #[arg(long, value_name = "LIST", value_parser = parse_ranges)]
    ranges: Option<RangeList>,
    /// Text file with the class of each block, separated by white space; - is standard input
    #[arg(long, value_name = "FILE", requires = "block_size")]
    blocks: Option<PathBuf>,
    /// Size of a block, a multiple of 512 bytes
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, requires = "blocks")]
    block_size: Option<ByteSize>,
    /// Bytes of a class in an entry: 1, 2 or 4
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_width)]
    class_bytes: ClassWidth,
    /// File whose bytes follow the class section
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Output file, which is overwritten [default: standard output]
    #[arg(value_name = "FILE", default_value = STANDARD, hide_default_value = true)]
    output: PathBuf,
}

/// Show the contents of a class file, or of a class section in front of data
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind class decode disk.cls\n  \
    tradewind class decode --json notes.obj")]
pub(in crate::commands) struct Decode {
    /// Class file, or a file that begins with a class section; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_width(text: &str) -> Result<ClassWidth, String> {
    let bytes = text.parse().map_err(|_| "write 1, 2 or 4".to_owned())?;
    ClassWidth::new(bytes).map_err(|_| "write 1, 2 or 4".to_owned())
}

pub(super) fn encode(arguments: &Encode) -> anyhow::Result<CommandOutcome> {
    let classification = classification(arguments)?;
    let section = classification.encode(arguments.class_bytes)?;
    // A server decodes the section with the same limits.
    format::decode(&section)?.classes_for(u64::MAX)?;
    let mut data = match &arguments.data {
        Some(path) => Some(open(path)?),
        None => None,
    };
    let mut out: Box<dyn Write> = match &arguments.output {
        path if path.as_os_str() == STANDARD => Box::new(io::stdout().lock()),
        path => Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
    };
    out.write_all(&section)?;
    if let Some(data) = &mut data {
        io::copy(data, &mut out)?;
    }
    out.flush()?;
    Ok(CommandOutcome::Done)
}

fn classification(arguments: &Encode) -> anyhow::Result<Classification> {
    if let Some(class) = arguments.class {
        return Ok(Classification::Object(class));
    }
    if let Some(RangeList(ranges)) = &arguments.ranges {
        return Ok(Classification::Ranges(ranges.clone()));
    }
    let (Some(path), Some(size)) = (&arguments.blocks, arguments.block_size) else {
        return Err(UsageError("class encode needs --class, --ranges or --blocks".to_owned()).into());
    };
    let is_aligned = size.0 > 0 && size.0.is_multiple_of(Classes::SECTOR_BYTES);
    let block_sectors = u32::try_from(size.0 / Classes::SECTOR_BYTES).ok().filter(|_| is_aligned);
    let Some(block_sectors) = block_sectors else {
        return Err(
            UsageError(format!("--block-size {size} is not a multiple of 512 bytes, or too large")).into()
        );
    };
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).with_context(|| path.display().to_string())?;
    let classes: Result<Vec<Class>, String> = text.split_whitespace().map(parse_class).collect();
    let classes = classes.map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
    Ok(Classification::Blocks { block_sectors, classes })
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path.as_os_str() == STANDARD {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?))
}

pub(super) fn decode(arguments: &Decode) -> anyhow::Result<CommandOutcome> {
    let mut input = open(&arguments.file)?;
    let (section, data_bytes) =
        read_section(&mut *input).with_context(|| arguments.file.display().to_string())?;
    let head = section.head;
    // Without data the object is another one, whose size is unknown.
    let size = if data_bytes > 0 { data_bytes } else { u64::MAX };
    let classes = section.classes_for(size).with_context(|| arguments.file.display().to_string())?;
    let mut out = io::stdout().lock();
    let (granularity, width) = (head.granularity.name(), head.width.bytes());
    if arguments.json {
        let line = json!({
            "granularity": granularity, "version_id": head.granularity.version_id(), "class_bytes": width,
            "entries": head.entries, "block_sectors": (head.granularity == Granularity::Block).then_some(head.block_sectors),
            "section_bytes": head.section_bytes(), "data_bytes": data_bytes,
            "class": classes.object.map(Class::value), "ranges": classes.format_ranges(),
        });
        writeln!(out, "{line}")?;
        return Ok(CommandOutcome::Done);
    }
    let block = match head.granularity {
        Granularity::Block => format!(" of {} sectors", head.block_sectors),
        Granularity::Object | Granularity::Range => String::new(),
    };
    let (entries, section_bytes) = (head.entries, head.section_bytes());
    writeln!(
        out,
        "section   {granularity}{block}, {entries} entries, class bytes {width}, {section_bytes} bytes"
    )?;
    writeln!(out, "data      {data_bytes} bytes")?;
    if let Some(class) = classes.object {
        writeln!(out, "object    {}", describe(class, &ClassPolicyTable::default()))?;
    }
    for range in &classes.ranges {
        let (first, sectors) = (range.first_sector, range.sectors);
        writeln!(
            out,
            "sectors   {first}-{sectors}: {}",
            describe(range.class, &ClassPolicyTable::default())
        )?;
    }
    Ok(CommandOutcome::Done)
}

/// Reads a section and counts the bytes after it.
fn read_section(input: &mut dyn Read) -> anyhow::Result<(ClassSection, u64)> {
    let (mut decoder, mut piece) = (Decoder::default(), vec![0; PIECE_BYTES]);
    let mut found: Option<(ClassSection, u64)> = None;
    loop {
        let count = match input.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if count == 0 {
            return found.ok_or_else(|| format::truncated().into());
        }
        match &mut found {
            Some((_, data_bytes)) => *data_bytes += count as u64,
            None => {
                let mut rest = &piece[..count];
                let section = decoder.feed(&mut rest)?;
                let data_bytes = rest.len() as u64;
                found = section.map(|section| (section, data_bytes));
            }
        }
    }
}
