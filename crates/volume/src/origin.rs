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
    /// Asks for its first `chunk` bytes, or for all of it; with what the store says of the whole.
    pub async fn open<'a>(
        &self,
        slot: Slot<'a>,
        chunk: u64,
        size: Option<u64>,
    ) -> Result<(Slot<'a>, ObjectInfo, (Body, u64))> {
        let first = Select::Range(ByteRange::Inclusive { first: 0, last: chunk - 1 });
        let select = if size.is_some_and(|size| size <= chunk) { Select::Whole } else { first };
        let get = async |select| {
            let request = GetRequest { select, conditions: ReadConditions::default() };
            self.store.get(&slot.context, &self.address, request).await
        };
        let found = match get(select).await {
            // There is no first byte of nothing.
            Err(e) if e.reason() == Reason::InvalidRange => get(Select::Whole).await?,
            found => found?,
        };
        check_place(found.span, Span { offset: 0, ..found.span })?;
        let Found { info, span, body, .. } = found;
        let length = span.length;
        if length == info.size || expected(&info).is_some() {
            return Ok((slot, info, (body, length)));
        }
        // Of a range some stores say no checksum of the whole. Who waits for another answer must not hold one: there
        // may be no more connections.
        drop(body);
        let whole = self.store.head(&slot.context, &self.address, GetRequest::default()).await?.info;
        let body = self.get(&slot.context, &whole, (0, length)).await?;
        Ok((slot, whole, (body, length)))
    }

    /// A range of the version that `info` is of.
    pub async fn get(
        &self,
        context: &Context,
        info: &ObjectInfo,
        (first, length): (u64, u64),
    ) -> Result<Body> {
        let range = ByteRange::Inclusive { first, last: first + length - 1 };
        let if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
        let conditions = ReadConditions { if_match, ..ReadConditions::default() };
        let request = GetRequest { select: Select::Range(range), conditions };
        let found = self.store.get(context, &self.address, request).await.map_err(|e| {
            if e.reason() == Reason::PreconditionFailed {
                let key = self.address.key.as_str();
                return Error::with_source(Reason::Conflict, format!("{key:?} changed while it was read"), e);
            }
            e
        })?;
        check_place(found.span, Span { offset: first, length })?;
        Ok(found.body)
    }
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
