//! Classes in a body: the metadata and class sections of Chen et al., appendix A.1, in front of the data of a PUT with
//! `X-DSS-Object-File`, or alone with `X-DSS-Class-File`.
//!
//! The metadata section has 16 bytes, in big-endian order: MAGIC_SIG (2), VER_ID (1), CLS_BYTES (1), then for ranges
//! NUM_RGES (4), for blocks NUM_BLKS (4) and BLK_SECTORS (4), and RESERVED up to its end. The entries follow. What the
//! paper leaves open is decided here and in `docs/classes.md`.
//!
//! The decoder takes bytes as they arrive. It never holds more than one entry and [`Classes::MAX_RANGES`] ranges,
//! whatever number of entries the section announces.

use super::{Class, ClassRange, Classes, push_range};
use crate::error::{Error, Reason, Result};

/// MAGIC_SIG, the first two bytes.
pub const MAGIC: u16 = 0xD55C;
/// The length of the metadata section in bytes.
pub const METADATA_BYTES: usize = 16;
/// The length of OFFSET_SECTOR and LEN_SECTORS in the entry of a range, in bytes.
const RANGE_BYTES: usize = 8;

/// The subject of an entry of the class section: VER_ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// The whole object, in one entry.
    Object,
    /// A range of sectors.
    Range,
    /// A block of a fixed number of sectors.
    Block,
}

impl Granularity {
    const ALL: [Self; 3] = [Self::Object, Self::Range, Self::Block];

    /// VER_ID.
    #[must_use]
    pub const fn version_id(self) -> u8 {
        match self {
            Self::Object => 0,
            Self::Range => 1,
            Self::Block => 2,
        }
    }

    /// The name in output and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Range => "range",
            Self::Block => "block",
        }
    }
}

/// The size of a class in an entry: CLS_BYTES.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClassWidth {
    /// 1 byte.
    #[default]
    One,
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
}

impl ClassWidth {
    const ALL: [Self; 3] = [Self::One, Self::Two, Self::Four];

    /// CLS_BYTES.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// From CLS_BYTES.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) for another size than 1, 2 or 4.
    pub fn new(bytes: u8) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|width| width.bytes() == bytes)
            .ok_or_else(|| invalid(&format!("CLS_BYTES is {bytes}, not 1, 2 or 4")))
    }

    fn push(self, class: Class, out: &mut Vec<u8>) {
        let value = u32::from(class.value()).to_be_bytes();
        out.extend_from_slice(&value[value.len() - usize::from(self.bytes())..]);
    }
}

/// Classes as one section can describe them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Classification {
    /// One class for the object.
    Object(Class),
    /// Classes of ranges, in ascending order.
    Ranges(Vec<ClassRange>),
    /// A class for each block from the beginning of the object.
    Blocks {
        /// Sectors in a block.
        block_sectors: u32,
        /// The classes in order of the blocks.
        classes: Vec<Class>,
    },
}

impl Classification {
    /// The metadata and class sections.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if there are 2^32 entries or more.
    pub fn encode(&self, width: ClassWidth) -> Result<Vec<u8>> {
        let (granularity, entries, block_sectors) = match self {
            Self::Object(_) => (Granularity::Object, None, None),
            Self::Ranges(ranges) => (Granularity::Range, Some(ranges.len()), None),
            Self::Blocks { block_sectors, classes } => {
                (Granularity::Block, Some(classes.len()), Some(*block_sectors))
            }
        };
        let mut out = Vec::with_capacity(METADATA_BYTES);
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&[granularity.version_id(), width.bytes()]);
        if let Some(entries) = entries {
            let entries = u32::try_from(entries).map_err(|_| invalid("there are 2^32 entries or more"))?;
            out.extend_from_slice(&entries.to_be_bytes());
        }
        if let Some(sectors) = block_sectors {
            out.extend_from_slice(&sectors.to_be_bytes());
        }
        out.resize(METADATA_BYTES, 0);
        match self {
            Self::Object(class) => width.push(*class, &mut out),
            Self::Ranges(ranges) => {
                for range in ranges {
                    out.extend_from_slice(&range.first_sector.to_be_bytes());
                    out.extend_from_slice(&range.sectors.to_be_bytes());
                    width.push(range.class, &mut out);
                }
            }
            Self::Blocks { classes, .. } => {
                for class in classes {
                    width.push(*class, &mut out);
                }
            }
        }
        Ok(out)
    }
}

/// The fields of the metadata section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionHead {
    /// VER_ID.
    pub granularity: Granularity,
    /// CLS_BYTES.
    pub width: ClassWidth,
    /// NUM_RGES or NUM_BLKS; 1 for an object.
    pub entries: u32,
    /// BLK_SECTORS, at least 1; 0 without blocks.
    pub block_sectors: u32,
}

impl SectionHead {
    fn decode(bytes: &[u8; METADATA_BYTES]) -> Result<Self> {
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..2] != MAGIC.to_be_bytes() {
            return Err(invalid(&format!("it does not begin with the bytes {MAGIC:04X}")));
        }
        let granularity = Granularity::ALL
            .into_iter()
            .find(|granularity| granularity.version_id() == bytes[2])
            .ok_or_else(|| invalid(&format!("VER_ID is {}, not 0, 1 or 2", bytes[2])))?;
        let width = ClassWidth::new(bytes[3])?;
        let (entries, block_sectors, reserved) = match granularity {
            Granularity::Object => (1, 0, &bytes[4..]),
            Granularity::Range => (number(4), 0, &bytes[8..]),
            Granularity::Block => (number(4), number(8), &bytes[12..]),
        };
        if granularity == Granularity::Block && block_sectors == 0 {
            return Err(invalid("BLK_SECTORS is 0"));
        }
        if reserved.iter().any(|byte| *byte != 0) {
            return Err(invalid("RESERVED is not zero"));
        }
        Ok(Self { granularity, width, entries, block_sectors })
    }

    /// The length of an entry in bytes.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        let range = if self.granularity == Granularity::Range { RANGE_BYTES } else { 0 };
        range + usize::from(self.width.bytes())
    }

    /// The length of both sections in bytes.
    #[must_use]
    pub fn section_bytes(&self) -> u64 {
        METADATA_BYTES as u64 + u64::from(self.entries) * self.entry_bytes() as u64
    }
}

/// Both sections, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSection {
    /// The metadata section.
    pub head: SectionHead,
    classes: Classes,
}

impl ClassSection {
    /// The classes of an object of `size` bytes. Neighbouring entries of one class are one range; blocks of class 0 have
    /// no range. The last block may be partial.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if an entry begins after the object, or a range ends after it.
    pub fn classes_for(mut self, size: u64) -> Result<Classes> {
        if self.head.granularity == Granularity::Block {
            let sectors = size.div_ceil(Classes::SECTOR_BYTES);
            let blocks = sectors.div_ceil(u64::from(self.head.block_sectors));
            if u64::from(self.head.entries) > blocks {
                return Err(invalid(&format!(
                    "it has classes of {} blocks, and the object has {blocks}",
                    self.head.entries
                )));
            }
            if let Some(last) = self.classes.ranges.last_mut() {
                let end = last.end().min(sectors);
                let length = end.saturating_sub(u64::from(last.first_sector));
                last.sectors = u32::try_from(length).unwrap_or(last.sectors);
            }
        }
        self.classes.check_within(size)?;
        Ok(self.classes)
    }
}

/// Decodes both sections from bytes as they arrive.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The beginning of the metadata section or of an entry.
    partial: [u8; METADATA_BYTES],
    partial_bytes: usize,
    head: Option<SectionHead>,
    /// Entries decoded.
    entries: u32,
    classes: Classes,
}

impl Decoder {
    /// The length of both sections in bytes, as the metadata section announces it; `None` before its end.
    #[must_use]
    pub fn announced_bytes(&self) -> Option<u64> {
        self.head.map(|head| head.section_bytes())
    }

    /// Takes the bytes of the sections from the front of `input`. Returns the sections at their end, and leaves the
    /// bytes after it in `input`. `None` if more bytes are needed: then `input` is empty.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if the bytes are not legal. The decoder must not be used again.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<ClassSection>> {
        loop {
            if let Some(head) = self.head
                && self.entries == head.entries
            {
                return Ok(Some(ClassSection { head, classes: std::mem::take(&mut self.classes) }));
            }
            let needed = self.head.map_or(METADATA_BYTES, |head| head.entry_bytes());
            let taken = (needed - self.partial_bytes).min(input.len());
            let (taken_bytes, rest) = input.split_at(taken);
            self.partial[self.partial_bytes..][..taken].copy_from_slice(taken_bytes);
            self.partial_bytes += taken;
            *input = rest;
            if self.partial_bytes < needed {
                return Ok(None);
            }
            self.partial_bytes = 0;
            match self.head {
                None => self.head = Some(SectionHead::decode(&self.partial)?),
                Some(head) => self.take_entry(head)?,
            }
        }
    }

    fn take_entry(&mut self, head: SectionHead) -> Result<()> {
        let entry = &self.partial[..head.entry_bytes()];
        let (range, class) = entry.split_at(entry.len() - usize::from(head.width.bytes()));
        let class = class.iter().fold(0, |value: u32, byte| value << 8 | u32::from(*byte));
        let class = u8::try_from(class).ok().and_then(|value| Class::new(value).ok()).ok_or_else(|| {
            invalid(&format!("entry {} has class {class}; the highest is {}", self.entries, Class::MAX))
        })?;
        let number = |at: usize| u32::from_be_bytes([range[at], range[at + 1], range[at + 2], range[at + 3]]);
        match head.granularity {
            Granularity::Object => self.classes.object = Some(class),
            Granularity::Range => {
                let range = ClassRange { first_sector: number(0), sectors: number(4), class };
                self.append(range)?;
            }
            Granularity::Block if class.value() == 0 => {}
            Granularity::Block => {
                let first = u64::from(self.entries) * u64::from(head.block_sectors);
                let end = (first + u64::from(head.block_sectors)).min(u64::from(u32::MAX));
                let (Ok(first_sector), Ok(sectors)) =
                    (u32::try_from(first), u32::try_from(end.saturating_sub(first)))
                else {
                    return Err(invalid("a block begins at sector 2^32 or after it"));
                };
                self.append(ClassRange { first_sector, sectors, class })?;
            }
        }
        self.entries += 1;
        Ok(())
    }

    /// Appends a range, or extends the last one if it is adjacent and of the same class.
    fn append(&mut self, range: ClassRange) -> Result<()> {
        if let Some(last) = self.classes.ranges.last_mut()
            && last.class == range.class
            && last.end() == u64::from(range.first_sector)
            && let Some(sectors) = last.sectors.checked_add(range.sectors)
            && range.sectors > 0
            && range.end() <= u64::from(u32::MAX)
        {
            last.sectors = sectors;
            return Ok(());
        }
        push_range(&mut self.classes.ranges, range)
    }
}

/// Decodes sections that are complete in memory, with nothing after them.
///
/// # Errors
/// [`InvalidArgument`](Reason::InvalidArgument) if the bytes are not legal, too few or too many.
pub fn decode(mut bytes: &[u8]) -> Result<ClassSection> {
    match Decoder::default().feed(&mut bytes)? {
        Some(section) if bytes.is_empty() => Ok(section),
        Some(_) => Err(trailing_bytes()),
        None => Err(truncated()),
    }
}

/// The error of bytes after a class section that must be alone.
#[must_use]
pub fn trailing_bytes() -> Error {
    invalid("bytes follow the class section")
}

/// The error of a body that ends within the sections.
#[must_use]
pub fn truncated() -> Error {
    invalid("it ends before the last entry that it announces")
}

fn invalid(why: &str) -> Error {
    Error::for_client(Reason::InvalidArgument, format!("class section: {why}"))
}

#[cfg(test)]
mod tests;
