//! The class of an object and of ranges within it, by which a client describes its data. The headers `X-DSS-*` carry
//! classes as in *differentiated storage services* (DSS): Chen, Mesnier and Hahn, *Client-aware cloud storage*, MSST
//! 2014, section III.
//!
//! Stores persist classes with the object. This module does not decide how a class is treated: that is the policy of
//! layers and stores. `docs/classes.md` has the rules for users; [`format`] is the form of classes in a body.

pub mod format;
mod retention;

pub use retention::Retention;

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

impl ClassRange {
    /// The sector after the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.first_sector) + u64::from(self.sectors)
    }
}

/// The classes of one object: at most one for the whole object, and up to [`MAX_RANGES`](Self::MAX_RANGES) for ranges.
/// The class of a range overrides that of the object. For some time, a retention raises the priority of all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classes {
    /// The class of the object as a whole.
    pub object: Option<Class>,
    /// Classes of ranges, in ascending order, not overlapping.
    pub ranges: Vec<ClassRange>,
    /// The retention, which may have ended.
    pub retention: Option<Retention>,
}

impl Classes {
    /// The maximum number of ranges per object.
    pub const MAX_RANGES: usize = 1024;
    /// Bytes in a sector.
    pub const SECTOR_BYTES: u64 = 512;

    /// Returns true if there are no classes and no retention.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_labelled() && self.retention.is_none()
    }

    /// Returns true if the object or a range has a class.
    #[must_use]
    pub fn is_labelled(&self) -> bool {
        self.object.is_some() || !self.ranges.is_empty()
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

    /// Parses the value of `X-DSS-Range-Class`: `offset-length-class` in sectors, comma-separated, in ascending order.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) for another form, and for ranges that are empty, out of order,
    /// overlapping, too high or too many.
    pub fn parse_ranges(header: &str) -> Result<Vec<ClassRange>> {
        let mut ranges = Vec::new();
        for item in header.split(',') {
            let mut fields = item.trim().split('-');
            let (Some(offset), Some(length), Some(class), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(invalid_ranges("each is OFFSET-LENGTH-CLASS in sectors of 512 bytes"));
            };
            let (Some(first_sector), Some(sectors)) = (decimal(offset), decimal(length)) else {
                return Err(invalid_ranges("offset and length are numbers of sectors below 2^32"));
            };
            push_range(&mut ranges, ClassRange { first_sector, sectors, class: Self::parse_object(class)? })?;
        }
        Ok(ranges)
    }

    /// Checks that every range is within an object of `size` bytes. The last sector of the object may be partial.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) for a range that ends after the object.
    pub fn check_within(&self, size: u64) -> Result<()> {
        let sectors = size.div_ceil(Self::SECTOR_BYTES);
        // In ascending order, the last range ends last.
        match self.ranges.last() {
            Some(last) if last.end() > sectors => Err(invalid_ranges(&format!(
                "sectors {}-{} are not within the object, which has {sectors}",
                last.first_sector, last.sectors
            ))),
            _ => Ok(()),
        }
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

/// A change of the classes of an existing object. `None` leaves what there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassUpdate {
    /// The new class of the object as a whole; `Some(None)` removes it.
    pub object: Option<Option<Class>>,
    /// The new classes of ranges, in ascending order; an empty list removes them.
    pub ranges: Option<Vec<ClassRange>>,
    /// The new retention; `Some(None)` removes it.
    pub retention: Option<Option<Retention>>,
}

impl ClassUpdate {
    /// Replaces all classes. The retention stays, unless `classes` have one.
    #[must_use]
    pub fn replace(classes: Classes) -> Self {
        Self {
            object: Some(classes.object),
            ranges: Some(classes.ranges),
            retention: classes.retention.map(Some),
        }
    }

    /// Returns true if nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.object.is_none() && self.ranges.is_none() && self.retention.is_none()
    }

    /// The classes of an object of `size` bytes after the change.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if a new range is not within the object.
    pub fn apply(&self, old: &Classes, size: u64) -> Result<Classes> {
        let classes = Classes {
            object: self.object.unwrap_or(old.object),
            ranges: self.ranges.as_ref().unwrap_or(&old.ranges).clone(),
            retention: self.retention.unwrap_or(old.retention),
        };
        if self.ranges.is_some() {
            classes.check_within(size)?;
        }
        Ok(classes)
    }
}

/// Appends a range, which must be non-empty, end below 2^32 and follow the last one without overlap.
fn push_range(ranges: &mut Vec<ClassRange>, range: ClassRange) -> Result<()> {
    if range.sectors == 0 || range.end() > u64::from(u32::MAX) {
        return Err(invalid_ranges("a range has at least one sector and ends below sector 2^32"));
    }
    if ranges.last().is_some_and(|last| last.end() > u64::from(range.first_sector)) {
        return Err(invalid_ranges("ranges are in ascending order and do not overlap"));
    }
    if ranges.len() == Classes::MAX_RANGES {
        return Err(invalid_ranges(&format!("an object has at most {} ranges", Classes::MAX_RANGES)));
    }
    ranges.push(range);
    Ok(())
}

/// Parses digits without sign.
fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn invalid_ranges(why: &str) -> Error {
    Error::for_client(Reason::InvalidArgument, format!("ranges of classes: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example_round_trips() {
        let ranges = Classes::parse_ranges("0-64-25,1024-32-26").unwrap();
        assert_eq!(ranges.len(), 2);
        let classes = Classes { ranges, ..Classes::default() };
        assert_eq!(classes.format_ranges().unwrap(), "0-64-25,1024-32-26");
    }

    #[test]
    fn invalid_classes_are_rejected() {
        for bad in ["32", "-1", "", "x", "+3", "1.0", "256"] {
            assert!(Classes::parse_object(bad).is_err(), "{bad}");
        }
        for bad in
            ["", "0-0-1", "0-64-32", "0-64", "0-64-1-1", "4294967295-1-0", "+0-64-1", "0-+64-1", "0-64-1,"]
        {
            assert!(Classes::parse_ranges(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_out_of_order_or_overlapping_are_rejected() {
        for bad in ["0-64-1,32-64-2", "64-64-2,0-64-1", "0-64-1,0-64-1", "8-8-1,9-1-1"] {
            assert_eq!(Classes::parse_ranges(bad).unwrap_err().reason(), Reason::InvalidArgument, "{bad}");
        }
        assert_eq!(Classes::parse_ranges("0-64-1,64-64-1").unwrap().len(), 2, "adjacent ranges");
    }

    #[test]
    fn ranges_over_the_limit_are_rejected_with_the_limit() {
        let header = |n: usize| (0..n).map(|n| format!("{n}-1-1")).collect::<Vec<_>>().join(",");
        assert_eq!(Classes::parse_ranges(&header(Classes::MAX_RANGES)).unwrap().len(), Classes::MAX_RANGES);
        let error = Classes::parse_ranges(&header(Classes::MAX_RANGES + 1)).unwrap_err();
        assert!(error.to_string().contains("at most 1024 ranges"), "{error}");
    }

    #[test]
    fn ranges_must_end_within_the_object() {
        let classes = Classes { ranges: Classes::parse_ranges("0-1-1,2-2-1").unwrap(), ..Classes::default() };
        assert!(classes.check_within(4 * 512).is_ok());
        assert!(classes.check_within(3 * 512 + 1).is_ok(), "the last sector is partial");
        assert!(classes.check_within(3 * 512).is_err());
        assert!(Classes::default().check_within(0).is_ok());
    }

    #[test]
    fn an_update_changes_only_the_classes_that_it_names() {
        let class = |value| Some(Class::new(value).unwrap());
        let retention = Retention::new(1000, 60).ok();
        let old = Classes { object: class(3), ranges: Classes::parse_ranges("0-1-1").unwrap(), retention };
        let apply = |update: ClassUpdate| update.apply(&old, 512).unwrap();
        assert_eq!(apply(ClassUpdate::default()), old);
        let object = ClassUpdate { object: Some(None), ..ClassUpdate::default() };
        assert_eq!(apply(object), Classes { object: None, ..old.clone() });
        let ranges = ClassUpdate { ranges: Some(Vec::new()), ..ClassUpdate::default() };
        assert_eq!(apply(ranges), Classes { ranges: Vec::new(), ..old.clone() });
        let ended = ClassUpdate { retention: Some(None), ..ClassUpdate::default() };
        assert_eq!(apply(ended), Classes { retention: None, ..old.clone() });
        let replaced = apply(ClassUpdate::replace(Classes::default()));
        assert_eq!(replaced, Classes { retention, ..Classes::default() }, "classes do not name a retention");
        let beyond =
            ClassUpdate { ranges: Some(Classes::parse_ranges("0-2-1").unwrap()), ..ClassUpdate::default() };
        assert!(beyond.apply(&old, 512).is_err());
    }
}
