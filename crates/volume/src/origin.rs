//! An object that is fetched, and what its store answers.

use std::sync::Arc;

use tradewind_core::condition::{ETagMatch, ReadConditions};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{Found, GetRequest, Select};
use tradewind_core::{
    Address, Body, ByteRange, Checksum, ChecksumScope, Context, ObjectInfo, ObjectStore, Span,
};

use super::carrier::Slot;

/// Where the object is.
#[derive(Clone)]
pub(crate) struct Origin {
    pub store: Arc<dyn ObjectStore>,
    pub address: Address,
}

impl Origin {
    /// Asks for its first `bytes`, or for all of it where that is known to be no more. Also answers whether all was asked for: a store
    /// that is asked for a range may say less of the whole, even if the range is all of it.
    pub async fn open<'a>(
        &self,
        slot: Slot<'a>,
        bytes: u64,
        is_whole: bool,
    ) -> Result<(Slot<'a>, ObjectInfo, (Body, u64, bool))> {
        let first = Select::Range(ByteRange::Inclusive { first: 0, last: bytes.max(1) - 1 });
        let select = if is_whole { Select::Whole } else { first };
        let get = async |select| {
            let request = GetRequest { select, conditions: ReadConditions::default() };
            self.store.get(&slot.context, &self.address, request).await
        };
        let (found, is_whole) = match get(select).await {
            // There is no first byte of nothing.
            Err(e) if e.reason() == Reason::InvalidRange => (get(Select::Whole).await?, true),
            found => (found?, is_whole),
        };
        check_place(found.span, Span { offset: 0, ..found.span })?;
        let Found { info, span, body, .. } = found;
        Ok((slot, info, (body, span.length, is_whole)))
    }

    /// A range of the version that `info` is of.
    pub async fn get(
        &self,
        context: &Context,
        info: &ObjectInfo,
        (first, length): (u64, u64),
    ) -> Result<Body> {
        let range = ByteRange::Inclusive { first, last: first + length - 1 };
        let request = GetRequest { select: Select::Range(range), conditions: of_version(info) };
        let found = self.store.get(context, &self.address, request).await;
        let found = found.map_err(|e| self.changed(e))?;
        if (&found.info.etag, found.info.size) != (&info.etag, info.size) {
            // A store, or something before it, that does not heed conditions.
            return Err(self.has_changed());
        }
        check_place(found.span, Span { offset: first, length })?;
        Ok(found.body)
    }

    /// What the store says of the version that `info` is of.
    pub async fn head(&self, context: &Context, info: &ObjectInfo) -> Result<ObjectInfo> {
        let request = GetRequest { select: Select::Whole, conditions: of_version(info) };
        let found = self.store.head(context, &self.address, request).await;
        Ok(found.map_err(|e| self.changed(e))?.info)
    }

    fn changed(&self, e: Error) -> Error {
        if e.reason() != Reason::PreconditionFailed {
            return e;
        }
        let key = self.address.key.as_str();
        Error::with_source(Reason::Conflict, format!("{key:?} changed while it was read"), e)
    }

    /// What was answered is of another version than the one that is read.
    pub(crate) fn has_changed(&self) -> Error {
        let key = self.address.key.as_str();
        Error::new(Reason::Conflict, format!("{key:?} changed while it was read"))
    }
}

fn of_version(info: &ObjectInfo) -> ReadConditions {
    let if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
    ReadConditions { if_match, ..ReadConditions::default() }
}

/// The checksum to compare with: one of the whole that can be put together from chunks.
pub(crate) fn expected(info: &ObjectInfo) -> Option<Checksum> {
    let is_usable = |checksum: &&Checksum| checksum.algorithm().is_crc();
    info.checksums.iter().find(is_usable).copied().filter(|_| info.scope == ChecksumScope::FullObject)
}

/// Bytes of another place than was asked for would be taken for those of this one.
pub(crate) fn check_place(found: Span, asked: Span) -> Result<()> {
    if found == asked {
        return Ok(());
    }
    let place = |span: Span| format!("{} bytes at {}", span.length, span.offset);
    let why = format!("the store answered {} where {} were asked for", place(found), place(asked));
    Err(Error::new(Reason::Io, why))
}
