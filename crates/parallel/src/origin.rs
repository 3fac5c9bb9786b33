//! The source object of a fetch, and checks that responses are for the requested version and range.

use std::sync::Arc;

use tradewind_core::condition::{ETagMatch, ReadConditions};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{
    Address, Body, ByteRange, Checksum, ChecksumScope, Context, ObjectInfo, ObjectStore, Span,
};

use super::transfer_context::RequestPermits;

/// The location of the object.
#[derive(Clone)]
pub struct Origin {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// Bucket and key.
    pub address: Address,
}

impl Origin {
    /// Requests the first `bytes` or, if `requests_whole`, the whole object. Also returns whether the whole object was
    /// requested: the response to a range may omit full-object checksums, even if the range covers the object.
    pub async fn open<'a>(
        &self,
        permits: RequestPermits<'a>,
        bytes: u64,
        requests_whole: bool,
    ) -> Result<(RequestPermits<'a>, ObjectInfo, (Body, u64, bool))> {
        let first = Select::Range(ByteRange::Inclusive { first: 0, last: bytes.max(1) - 1 });
        let select = if requests_whole { Select::Whole } else { first };
        let get = async |select| {
            let request = GetRequest { select, ..GetRequest::default() };
            self.store.get(&permits.context, &self.address, request).await
        };
        let (found, requested_whole) = match get(select).await {
            // An empty object has no first byte.
            Err(e) if e.reason() == Reason::InvalidRange => (get(Select::Whole).await?, true),
            found => (found?, requests_whole),
        };
        check_span(found.span, Span { offset: 0, ..found.span })?;
        let GetResponse { info, span, body, .. } = found;
        Ok((permits, info, (body, span.length, requested_whole)))
    }

    /// Requests a range of the version of `info`. [`Conflict`](Reason::Conflict) if the object has changed.
    pub async fn get(
        &self,
        context: &Context,
        info: &ObjectInfo,
        (first, length): (u64, u64),
    ) -> Result<Body> {
        let range = ByteRange::Inclusive { first, last: first + length - 1 };
        let request = GetRequest {
            select: Select::Range(range),
            conditions: if_match_version(info),
            ..GetRequest::default()
        };
        let found = self.store.get(context, &self.address, request).await;
        let found = found.map_err(|e| self.map_changed(e))?;
        if (&found.info.etag, found.info.size) != (&info.etag, info.size) {
            // The store, or a proxy in front of it, ignores conditions.
            return Err(self.changed_error());
        }
        check_span(found.span, Span { offset: first, length })?;
        Ok(found.body)
    }

    /// The metadata of the version of `info`. [`Conflict`](Reason::Conflict) if the object has changed.
    pub async fn head(&self, context: &Context, info: &ObjectInfo) -> Result<ObjectInfo> {
        let request = GetRequest { conditions: if_match_version(info), ..GetRequest::default() };
        let found = self.store.head(context, &self.address, request).await;
        Ok(found.map_err(|e| self.map_changed(e))?.info)
    }

    fn map_changed(&self, e: Error) -> Error {
        if e.reason() != Reason::PreconditionFailed {
            return e;
        }
        let key = self.address.key.as_str();
        Error::with_source(Reason::Conflict, format!("{key:?} changed while it was read"), e)
    }

    /// The error for a response of another version than the one being read.
    pub fn changed_error(&self) -> Error {
        let key = self.address.key.as_str();
        Error::new(Reason::Conflict, format!("{key:?} changed while it was read"))
    }
}

fn if_match_version(info: &ObjectInfo) -> ReadConditions {
    let if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
    ReadConditions { if_match, ..ReadConditions::default() }
}

/// The full-object checksum that can be combined from ranges: a CRC.
pub fn expected_crc(info: &ObjectInfo) -> Option<Checksum> {
    let is_usable = |checksum: &&Checksum| checksum.algorithm().is_crc();
    info.checksums.iter().find(is_usable).copied().filter(|_| info.scope == ChecksumScope::FullObject)
}

/// Fails if a response is for another range than requested: its bytes would be written at the wrong offset.
pub fn check_span(found: Span, requested: Span) -> Result<()> {
    if found == requested {
        return Ok(());
    }
    let describe = |span: Span| format!("{} bytes at {}", span.length, span.offset);
    let why = format!("the store returned {} where {} were requested", describe(found), describe(requested));
    Err(Error::new(Reason::Io, why))
}
