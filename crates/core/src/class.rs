//! The class of an object and of ranges within it, by which a client describes its data. The headers `X-DSS-*` carry
//! classes as in *differentiated storage services* (DSS): Chen, Mesnier and Hahn, *Client-aware cloud storage*, MSST
//! 2014, section III.
//!
//! Stores persist classes with the object. This module does not decide how a class is treated: that is the policy of
//! layers and stores.

use crate::error::{Error, Reason, Result};

/// The number of a class, 0 to 31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(u8);

impl Class {
    /// The highest class number.
    pub const MAX: u8 = 31;

    /// Checks the range 0 to 31.
    pub fn new(value: u8) -> Result<Self> {
        if value > Self::MAX {
            return Err(Error::for_client(
                Reason::InvalidArgument,
                format!("class {value} is not within 0 to {}", Self::MAX),
            ));
        }
        Ok(Self(value))
    }

    /// The class number.
    #[must_use]
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// A run of sectors of one class. A sector is 512 bytes, as in the header `X-DSS-Range-Class`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassRange {
    /// First sector.
    pub first_sector: u32,
    /// Number of sectors, at least one.
    pub sectors: u32,
    /// The class of these sectors.
    pub class: Class,
}

/// The classes of one object: at most one for the whole object, and up to [`MAX_RANGES`](Self::MAX_RANGES) for ranges.
/// The class of a range overrides that of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classes {
    /// The class of the object as a whole.
    pub object: Option<Class>,
    /// Classes of ranges, in ascending order, not overlapping.
    pub ranges: Vec<ClassRange>,
}

impl Classes {
    /// The maximum number of ranges per object.
    pub const MAX_RANGES: usize = 1024;
    /// Bytes in a sector.
    pub const SECTOR_BYTES: u64 = 512;

    /// Returns true if there are no classes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.object.is_none() && self.ranges.is_empty()
    }

    /// Parses the value of `X-DSS-Object-Class`: a decimal class number.
    pub fn parse_object(header: &str) -> Result<Class> {
        let text = header.trim();
        let value = if text.bytes().all(|b| b.is_ascii_digit()) { text.parse::<u8>().ok() } else { None };
        value.and_then(|v| Class::new(v).ok()).ok_or_else(|| {
            Error::for_client(
                Reason::InvalidArgument,
                format!("object class {text:?} is not a number from 0 to {}", Class::MAX),
            )
        })
    }

    /// Parses the value of `X-DSS-Range-Class`: `offset-length-class` in sectors, comma-separated.
    pub fn parse_ranges(header: &str) -> Result<Vec<ClassRange>> {
        let reject = |why: &str| {
            Err(Error::for_client(Reason::InvalidArgument, format!("range class {header:?}: {why}")))
        };
        let mut ranges = Vec::new();
        for item in header.split(',') {
            let mut fields = item.trim().split('-');
            let (Some(offset), Some(length), Some(class), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return reject("each range is offset-length-class in sectors of 512 bytes");
            };
            let (Ok(first_sector), Ok(sectors)) = (offset.parse::<u32>(), length.parse::<u32>()) else {
                return reject("offset and length are numbers of sectors");
            };
            if sectors == 0 || first_sector.checked_add(sectors).is_none() {
                return reject("a range must hold at least one sector and end below 2^32");
            }
            ranges.push(ClassRange { first_sector, sectors, class: Self::parse_object(class)? });
        }
        ranges.sort_by_key(|r| r.first_sector);
        if ranges.windows(2).any(|w| w[0].first_sector + w[0].sectors > w[1].first_sector) {
            return reject("ranges must not overlap");
        }
        if ranges.len() > Self::MAX_RANGES {
            return reject("too many ranges");
        }
        Ok(ranges)
    }

    /// The value of `X-DSS-Range-Class`, or `None` if there are no ranges.
    #[must_use]
    pub fn format_ranges(&self) -> Option<String> {
        if self.ranges.is_empty() {
            return None;
        }
        let items: Vec<String> = self
            .ranges
            .iter()
            .map(|r| format!("{}-{}-{}", r.first_sector, r.sectors, r.class.value()))
            .collect();
        Some(items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example_round_trips() {
        let ranges = Classes::parse_ranges("0-64-25,1024-32-26").unwrap();
        assert_eq!(ranges.len(), 2);
        let classes = Classes { object: None, ranges };
        assert_eq!(classes.format_ranges().unwrap(), "0-64-25,1024-32-26");
    }

    #[test]
    fn invalid_classes_are_rejected() {
        for bad in ["32", "-1", "", "x", "+3", "1.0", "256"] {
            assert!(Classes::parse_object(bad).is_err(), "{bad}");
        }
        for bad in ["", "0-0-1", "0-64-32", "0-64", "0-64-1-1", "0-64-1,32-64-2", "4294967295-1-0x"] {
            assert!(Classes::parse_ranges(bad).is_err(), "{bad}");
        }
    }
}
