//! Conditional writes whose response was lost. A retry may fail because the first attempt succeeded. Each such write
//! therefore stores a random id in the object's metadata, by which it is recognized. The bytes alone are not enough:
//! another client may have written the same ones. See `docs/decisions/0016-the-s3-leaf-and-other-stores.md`.

use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, Method};
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::metadata::MAX_USER_METADATA_BYTES;
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Checksum, Context, Precondition};

use tradewind_wire::headers::USER_PREFIX;

use super::S3Store;
use super::headers::{self, WRITE_ID};
use crate::remote::client::Call;
use crate::remote::response::ResponseHead;

/// Length of a write id, in characters.
const WRITE_ID_CHARS: usize = 32;

/// A conditional write with an id by which it can be recognized.
#[derive(Debug, Clone)]
pub(super) struct IdentifiedWrite {
    id: HeaderValue,
    size: u64,
    checksum: Checksum,
}

impl IdentifiedWrite {
    /// Adds an id to the request if it has a condition. Returns true if the request may be retried: false if the
    /// metadata has no room for the id.
    pub fn add_id(precondition: &Precondition, headers: &mut HeaderMap) -> Result<bool> {
        if *precondition == Precondition::None {
            return Ok(true);
        }
        // Classes may be user metadata too.
        let user = headers.iter().filter_map(|(name, value)| {
            name.as_str().strip_prefix(USER_PREFIX).map(|name| name.len() + value.len())
        });
        let taken: usize = user.sum();
        if taken + WRITE_ID.as_str().len() + WRITE_ID_CHARS > MAX_USER_METADATA_BYTES {
            return Ok(false);
        }
        let random = || Some([getrandom::u64().ok()?, getrandom::u64().ok()?]);
        let [high, low] =
            random().ok_or_else(|| Error::new(Reason::Io, "the system's random number generator failed"))?;
        let id = HeaderValue::try_from(format!("{high:016x}{low:016x}"))
            .map_err(|e| Error::with_source(Reason::Defect, "a write id is not a valid header value", e))?;
        headers.insert(WRITE_ID, id);
        Ok(true)
    }

    /// The write with the id in these headers, if any, and its size and checksum.
    pub fn from_headers(headers: &HeaderMap, size: u64, checksum: Checksum) -> Option<Self> {
        Some(Self { id: headers.get(WRITE_ID)?.clone(), size, checksum })
    }
}

impl S3Store {
    /// Handles a failed write: if its outcome is unknown and it has an id, the store is queried. Otherwise returns
    /// `error`.
    pub(super) async fn resolve_failed_call(
        &self,
        context: &Context,
        address: &Address,
        call: &Call<'_>,
        identified: Option<&IdentifiedWrite>,
        error: Error,
    ) -> Result<ResponseHead> {
        match identified.filter(|_| call.outcome_unknown.load(Ordering::Relaxed)) {
            Some(identified) => self.resolve_failed_write(context, address, identified, error).await,
            None => Err(error),
        }
    }

    /// Finds out whether a write that failed with `error` was carried out: if so, returns the response of its HEAD,
    /// otherwise `error`.
    pub(super) async fn resolve_failed_write(
        &self,
        context: &Context,
        address: &Address,
        identified: &IdentifiedWrite,
        error: Error,
    ) -> Result<ResponseHead> {
        let is_in_doubt =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Precondition);
        if !is_in_doubt {
            return Err(error);
        }
        let response = match self.send_read(context, address, &GetRequest::default(), Method::HEAD).await {
            Ok(response) => response,
            Err(e) => {
                tracing::debug!(error = %e, "cannot determine whether a write took effect");
                return Err(error);
            }
        };
        let length = response.content_length();
        let head = response.drain().await?;
        let (checksums, _) = headers::checksums(&head.headers)?;
        let stored_checksum =
            checksums.iter().find(|checksum| checksum.algorithm() == identified.checksum.algorithm());
        let is_same_write = head.headers.get(WRITE_ID) == Some(&identified.id)
            && length == Some(identified.size)
            && stored_checksum.is_none_or(|checksum| *checksum == identified.checksum);
        if is_same_write { Ok(head) } else { Err(error) }
    }
}
