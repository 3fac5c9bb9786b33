//! A bundle that is read: its index, and the bytes of its members.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::Checksum;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_volume::{Carrier, Ranges};

use super::index::{self, FOOTER_BYTES, Footer, Member};
use crate::objects::Objects;

/// Bytes at the end of a bundle that are fetched first: the index of some 1,000 members is among them.
const TAIL_BYTES: u64 = 64 << 10;
/// Members up to this size are in memory before any byte of them goes on.
pub(super) const WHOLE_BYTES: u64 = 512 << 10;

/// The key of a bundle of a set: `photos.tar`, `photos-00002.tar`, and so on.
#[must_use]
pub fn name_of_bundle(key: &str, number: u32) -> String {
    if number == 1 {
        return key.to_owned();
    }
    let (stem, end) = key.strip_suffix(".tar").map_or((key, ""), |stem| (stem, ".tar"));
    format!("{stem}-{number:05}{end}")
}

/// A bundle in a store, all of one version.
pub struct Bundle {
    carrier: Arc<Carrier>,
    objects: Objects,
    /// The key of the first bundle of the set.
    first: String,
    key: String,
    ranges: Ranges,
    footer: Footer,
    members: Vec<Member>,
}

impl Bundle {
    /// Reads the index of the bundle that has a key.
    pub async fn open(carrier: &Arc<Carrier>, objects: &Objects, key: &str) -> Result<Self> {
        Self::read(carrier, objects, (key, key)).await.map_err(|e| at(objects, key, e))
    }

    async fn read(carrier: &Arc<Carrier>, objects: &Objects, (first, key): (&str, &str)) -> Result<Self> {
        let address = objects.address(key)?;
        let (ranges, tail) = Ranges::open(carrier, &objects.store, &address, TAIL_BYTES).await?;
        let footer = Footer::decode(&tail, ranges.size())?;
        let behind = footer.index_bytes + FOOTER_BYTES as u64;
        // It was read as a footer, and so is no longer than the object.
        let archive_bytes = ranges.size() - behind;
        let index = match tail.len().checked_sub(usize::try_from(behind).unwrap_or(usize::MAX)) {
            Some(start) => tail.slice(start..tail.len() - FOOTER_BYTES),
            None => ranges.bytes((archive_bytes, footer.index_bytes)).await?.0,
        };
        let members = index::decode(&index, &footer, archive_bytes)?;
        let (carrier, objects) = (carrier.clone(), objects.clone());
        let (first, key) = (first.to_owned(), key.to_owned());
        Ok(Self { carrier, objects, first, key, ranges, footer, members })
    }

    /// Whether it is this one of this set.
    pub(super) const fn is_of(&self, set: u64, number: u32) -> bool {
        self.footer.set == set && self.footer.number == number
    }

    /// Whether another one follows in its set.
    pub(super) const fn has_next(&self) -> bool {
        self.footer.has_next
    }

    /// Of its index, which has the checksums of its members.
    pub(super) const fn index_checksum(&self) -> u64 {
        self.footer.index_checksum
    }

    /// The key of the one that follows in its set, whether it is there or not.
    fn next_key(&self) -> String {
        name_of_bundle(&self.first, self.footer.number.saturating_add(1))
    }

    /// The place of the one that follows in its set.
    #[must_use]
    pub fn next_place(&self) -> String {
        self.objects.describe(&self.next_key())
    }

    /// The one that follows in its set.
    pub async fn next(&self) -> Result<Option<Self>> {
        if !self.footer.has_next {
            return Ok(None);
        }
        let (number, key) = (self.footer.number.saturating_add(1), self.next_key());
        let next = match Self::read(&self.carrier, &self.objects, (&self.first, &key)).await {
            Err(e) if e.reason() == Reason::NoSuchKey => {
                let why = "it follows the bundle before it, and is not there: not all was packed, or it was removed";
                Err(Error::new(Reason::NoSuchKey, why))
            }
            Ok(next) if !next.is_of(self.footer.set, number) => {
                let why = "it was not packed together with the bundle before it; pack all of it again";
                Err(Error::new(Reason::InvalidRequest, why))
            }
            next => next,
        };
        next.map(Some).map_err(|e| at(&self.objects, &key, e))
    }

    /// Its key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Its place, as people write it.
    #[must_use]
    pub fn place(&self) -> String {
        self.objects.describe(&self.key)
    }

    /// Its members, in the order of their names.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of a name, and the bundle that has it: this one, or one that follows.
    pub async fn find(self, name: &str) -> Result<(Self, Member)> {
        let mut bundle = self;
        loop {
            if let Ok(at) = bundle.members.binary_search_by(|member| member.name.as_str().cmp(name)) {
                let member = bundle.members[at].clone();
                return Ok((bundle, member));
            }
            // Those of the next one are behind all of these.
            let is_passed = bundle.members.last().is_some_and(|last| last.name.as_str() > name);
            match if is_passed { None } else { bundle.next().await? } {
                Some(next) => bundle = next,
                None => {
                    let place = bundle.objects.describe(&bundle.first);
                    let why = format!("{place} has no member {name:?}; ls --bundle lists them");
                    return Err(Error::new(Reason::NoSuchKey, why));
                }
            }
        }
    }

    pub(super) const fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Fetches a small member whole.
    pub(super) async fn fetch(&self, member: &Member) -> Result<Bytes> {
        self.verified(member, || self.ranges.bytes((member.offset, member.size))).await
    }

    /// Does what fetches a member, and does it again where other bytes came than were packed: the way here may have
    /// damaged them. What fails otherwise was tried again already.
    pub(super) async fn verified<T, F: Future<Output = Result<(T, Checksum)>>>(
        &self,
        member: &Member,
        mut fetch: impl FnMut() -> F,
    ) -> Result<T> {
        let mut attempt = 1;
        loop {
            let (fetched, checksum) = fetch().await?;
            if checksum.crc64_value() == member.checksum {
                return Ok(fetched);
            }
            self.carrier.wait(self.damaged(member), attempt).await?;
            attempt += 1;
        }
    }

    /// Hands a member's bytes on in order. Those of a small one are verified before; of a large one at the end, when nothing
    /// can be taken back.
    pub async fn write_in_order(
        &self,
        member: &Member,
        mut take: impl AsyncFnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        if member.size <= WHOLE_BYTES {
            return take(self.fetch(member).await?).await;
        }
        let checksum = self.ranges.write_in_order((member.offset, member.size), take).await?;
        if checksum.crc64_value() == member.checksum { Ok(()) } else { Err(self.damaged(member)) }
    }

    /// A member's bytes are not those that were packed.
    fn damaged(&self, member: &Member) -> Error {
        let why = format!(
            "{:?} is damaged in {}: its bytes have another checksum than was packed",
            member.name,
            self.place()
        );
        Error::new(Reason::CorruptData, why)
    }
}

/// The same, with where it happened.
fn at(objects: &Objects, key: &str, error: Error) -> Error {
    let message = error.to_string();
    if message.contains(key) {
        return error;
    }
    error.retold(format!("{}: {message}", objects.describe(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_bundles() {
        for (key, second) in [
            ("photos.tar", "photos-00002.tar"),
            ("a.tar/photos", "a.tar/photos-00002"),
            ("photos.tgz", "photos.tgz-00002"),
        ] {
            assert_eq!((name_of_bundle(key, 1), name_of_bundle(key, 2)), (key.to_owned(), second.to_owned()));
        }
    }
}
