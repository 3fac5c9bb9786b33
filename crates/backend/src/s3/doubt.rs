//! Conditional writes whose answer was lost. Sent again, such a write fails on what the first attempt did: so it carries a
//! name of its own, by which it is known again. Bytes alone would not tell it from somebody else's who wrote the same.
//! See `docs/decisions/0016-the-s3-leaf-and-other-stores.md`.

use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, Method};
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::metadata::MAX_USER_METADATA_BYTES;
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Checksum, Context, Metadata, Precondition};

use super::S3Store;
use super::headers::{self, Answered, WRITE};
use crate::remote::client::Call;

/// The length of such a name.
const NAME_BYTES: usize = 32;

/// A conditional write that can be known again.
#[derive(Debug, Clone)]
pub(super) struct Named {
    name: HeaderValue,
    size: u64,
    checksum: Checksum,
}

impl Named {
    /// Names the write in its request, where it has a condition. Answers whether the request may be sent again: not where
    /// the metadata has no room left for the name.
    pub fn write(precondition: &Precondition, metadata: &Metadata, headers: &mut HeaderMap) -> Result<bool> {
        if *precondition == Precondition::None {
            return Ok(true);
        }
        let taken: usize = metadata.user.iter().map(|(name, value)| name.len() + value.len()).sum();
        if taken + WRITE.as_str().len() + NAME_BYTES > MAX_USER_METADATA_BYTES {
            return Ok(false);
        }
        let name = || Some([getrandom::u64().ok()?, getrandom::u64().ok()?]);
        let [high, low] = name().ok_or_else(|| Error::new(Reason::Io, "the system gives no random bytes"))?;
        let name = HeaderValue::try_from(format!("{high:016x}{low:016x}"))
            .map_err(|e| Error::with_source(Reason::Defect, "a number is no header", e))?;
        headers.insert(WRITE, name);
        Ok(true)
    }

    /// The write that these headers name, if any, with what it writes.
    pub fn read(headers: &HeaderMap, size: u64, checksum: Checksum) -> Option<Self> {
        Some(Self { name: headers.get(WRITE)?.clone(), size, checksum })
    }
}

impl S3Store {
    /// Sends a write again where that is safe, and where nobody knows whether it was carried out, finds out.
    pub(super) async fn settle_call(
        &self,
        context: &Context,
        address: &Address,
        call: &Call<'_>,
        named: Option<&Named>,
        error: Error,
    ) -> Result<Answered> {
        match named.filter(|_| call.doubt.load(Ordering::Relaxed)) {
            Some(named) => self.settle_write(context, address, named, error).await,
            None => Err(error),
        }
    }

    /// What became of a write that failed with `error` and may have been carried out.
    pub(super) async fn settle_write(
        &self,
        context: &Context,
        address: &Address,
        named: &Named,
        error: Error,
    ) -> Result<Answered> {
        let is_in_doubt =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Precondition);
        if !is_in_doubt {
            return Err(error);
        }
        let answer = match self.ask(context, address, &GetRequest::default(), Method::HEAD).await {
            Ok(answer) => answer,
            Err(e) => {
                tracing::debug!(error = %e, "what became of a write could not be found out");
                return Err(error);
            }
        };
        let (found, length, observation) =
            (answer.head.headers.clone(), answer.length(), answer.observation.clone());
        answer.collect(0).await?;
        let (checksums, _) = headers::checksums(&found)?;
        let same = checksums.iter().find(|sum| sum.algorithm() == named.checksum.algorithm());
        let is_it = found.get(WRITE) == Some(&named.name)
            && length == Some(named.size)
            && same.is_none_or(|sum| *sum == named.checksum);
        if is_it { Ok((found, observation)) } else { Err(error) }
    }
}
