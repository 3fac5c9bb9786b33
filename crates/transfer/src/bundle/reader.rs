//! Reader of a bundle: its index, and the contents of its members.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::Checksum;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::retry::Attempts;
use tradewind_parallel::{RangeReader, TransferContext};

use super::index::{self, FOOTER_BYTES, Footer, Member};
use crate::objects::Objects;

/// Size of the first request, at the end of a bundle. It contains the index of up to some 1,000 members.
const TAIL_BYTES: u64 = 64 << 10;
/// Members up to this size are buffered and verified before any of their bytes are passed on.
pub(super) const MAX_BUFFERED_MEMBER_BYTES: u64 = 512 << 10;

/// The key of bundle `number` of a set: `photos.tar`, `photos-00002.tar`, and so on.
#[must_use]
pub fn bundle_key(key: &str, number: u32) -> String {
    if number == 1 {
        return key.to_owned();
    }
    let (stem, end) = key.strip_suffix(".tar").map_or((key, ""), |stem| (stem, ".tar"));
    format!("{stem}-{number:05}{end}")
}

/// A bundle in a store. All its bytes are read from one version of the object.
pub struct Bundle {
    transfers: Arc<TransferContext>,
    objects: Objects,
    /// The key of the first bundle of the set.
    first: String,
    key: String,
    ranges: RangeReader,
    footer: Footer,
    members: Vec<Member>,
}

impl Bundle {
    /// Opens the bundle at `key` and reads its index.
    pub async fn open(transfers: &Arc<TransferContext>, objects: &Objects, key: &str) -> Result<Self> {
        Self::read(transfers, objects, (key, key)).await.map_err(|e| with_location(objects, key, e))
    }

    async fn read(
        transfers: &Arc<TransferContext>,
        objects: &Objects,
        (first, key): (&str, &str),
    ) -> Result<Self> {
        let address = objects.address(key)?;
        let (ranges, tail) = RangeReader::open(transfers, &objects.store, &address, TAIL_BYTES).await?;
        let footer = Footer::decode(&tail, ranges.size())?;
        let trailer_bytes = footer.index_bytes + FOOTER_BYTES as u64;
        // No underflow: decoding the footer checked that it and the index fit into the object.
        let archive_bytes = ranges.size() - trailer_bytes;
        let index = match tail.len().checked_sub(usize::try_from(trailer_bytes).unwrap_or(usize::MAX)) {
            Some(start) => tail.slice(start..tail.len() - FOOTER_BYTES),
            None => ranges.fetch((archive_bytes, footer.index_bytes)).await?.0,
        };
        let members = index::decode(&index, &footer, archive_bytes)?;
        let (transfers, objects) = (transfers.clone(), objects.clone());
        let (first, key) = (first.to_owned(), key.to_owned());
        Ok(Self { transfers, objects, first, key, ranges, footer, members })
    }

    /// Returns true if this is bundle `number` of `set`.
    pub(super) const fn belongs_to(&self, set: u64, number: u32) -> bool {
        self.footer.set == set && self.footer.number == number
    }

    /// Returns true if it is not the last bundle of its set.
    pub(super) const fn has_next(&self) -> bool {
        self.footer.has_next
    }

    /// The checksum of the index, which contains the checksums of all members.
    pub(super) const fn index_checksum(&self) -> u64 {
        self.footer.index_checksum
    }

    /// The key of the next bundle of the set, whether or not it exists.
    fn next_key(&self) -> String {
        bundle_key(&self.first, self.footer.number.saturating_add(1))
    }

    /// The URL of the next bundle of the set, for display.
    #[must_use]
    pub fn next_url(&self) -> String {
        self.objects.describe(&self.next_key())
    }

    /// Opens the next bundle of the set; `None` after the last one. Fails if it is missing or of another set.
    pub async fn next(&self) -> Result<Option<Self>> {
        if !self.footer.has_next {
            return Ok(None);
        }
        let (number, key) = (self.footer.number.saturating_add(1), self.next_key());
        let next = match Self::read(&self.transfers, &self.objects, (&self.first, &key)).await {
            Err(e) if e.reason() == Reason::NoSuchKey => {
                let why = "this bundle of the set is missing: packing did not finish, or it was removed";
                Err(Error::new(Reason::NoSuchKey, why))
            }
            Ok(next) if !next.belongs_to(self.footer.set, number) => {
                let why = "it belongs to another set than the bundle before it; pack the files again";
                Err(Error::new(Reason::InvalidRequest, why))
            }
            next => next,
        };
        next.map(Some).map_err(|e| with_location(&self.objects, &key, e))
    }

    /// The key of this bundle.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The URL of this bundle, for display.
    #[must_use]
    pub fn url(&self) -> String {
        self.objects.describe(&self.key)
    }

    /// The members, in order of their names.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Finds a member by name in this bundle or a later one of the set. Returns it with its bundle.
    pub async fn find(self, name: &str) -> Result<(Self, Member)> {
        let mut bundle = self;
        loop {
            if let Ok(at) = bundle.members.binary_search_by(|member| member.name.as_str().cmp(name)) {
                let member = bundle.members[at].clone();
                return Ok((bundle, member));
            }
            // Names are sorted across the set, so later bundles only have greater ones.
            let is_absent = bundle.members.last().is_some_and(|last| last.name.as_str() > name);
            match if is_absent { None } else { bundle.next().await? } {
                Some(next) => bundle = next,
                None => {
                    let url = bundle.objects.describe(&bundle.first);
                    let why = format!("{url} has no member {name:?}; ls --bundle lists them");
                    return Err(Error::new(Reason::NoSuchKey, why));
                }
            }
        }
    }

    pub(super) const fn ranges(&self) -> &RangeReader {
        &self.ranges
    }

    /// Fetches a small member into memory and verifies it.
    pub(super) async fn fetch(&self, member: &Member) -> Result<Bytes> {
        self.fetch_verified(member, || self.ranges.fetch((member.offset, member.size))).await
    }

    /// Runs `fetch`, and retries it if the member's checksum differs: the transfer may have damaged the bytes. Other
    /// errors are returned, because `fetch` has retried them already.
    pub(super) async fn fetch_verified<T, F: Future<Output = Result<(T, Checksum)>>>(
        &self,
        member: &Member,
        mut fetch: impl FnMut() -> F,
    ) -> Result<T> {
        let mut attempts = Attempts::new();
        loop {
            let (fetched, checksum) = fetch().await?;
            if checksum.crc64_value() == member.checksum {
                return Ok(fetched);
            }
            self.transfers.wait_before_retry(self.damaged(member), &mut attempts).await?;
        }
    }

    /// Passes a member's bytes to `take` in order. A small member is verified first. A large one is verified at the
    /// end, when its bytes have been passed on already.
    pub async fn write_in_order(
        &self,
        member: &Member,
        mut take: impl AsyncFnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        if member.size <= MAX_BUFFERED_MEMBER_BYTES {
            return take(self.fetch(member).await?).await;
        }
        let checksum = self.ranges.write_in_order((member.offset, member.size), take).await?;
        if checksum.crc64_value() == member.checksum { Ok(()) } else { Err(self.damaged(member)) }
    }

    /// The error for a checksum mismatch in a member.
    fn damaged(&self, member: &Member) -> Error {
        let why =
            format!("{:?} is damaged in {}: its checksum does not match the index", member.name, self.url());
        Error::new(Reason::CorruptData, why)
    }
}

/// Adds the location of the bundle to an error that does not name it.
fn with_location(objects: &Objects, key: &str, error: Error) -> Error {
    let message = error.to_string();
    if message.contains(key) {
        return error;
    }
    error.with_message(format!("{}: {message}", objects.describe(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_number_is_inserted_before_the_extension() {
        for (key, second) in [
            ("photos.tar", "photos-00002.tar"),
            ("a.tar/photos", "a.tar/photos-00002"),
            ("photos.tgz", "photos.tgz-00002"),
        ] {
            assert_eq!((bundle_key(key, 1), bundle_key(key, 2)), (key.to_owned(), second.to_owned()));
        }
    }
}
