//! Writes whose response has no ETag, although the service has stored them. A HEAD of the object, or the list of the
//! upload's parts, has the ETag. It is used only for the bytes of the write: another client may have written since. The
//! first such response is remembered: from then on, each write has an id, and its MD5 is computed.

use std::sync::atomic::Ordering;

use http::header::ETAG;
use http::{HeaderMap, HeaderValue};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartInfo, PartNumber, UploadId};
use tradewind_core::{Address, Checksum, ChecksumScope, Context, ETag};

use super::S3Store;
use super::ambiguous_outcome::VersionHead;
use super::etag_checks::{SentMd5, SuspectBody, etag_md5, has_encrypted_etag};
use super::etag_kinds::{BodyId, ETagEvidence};
use super::headers::{self, WRITE_ID};
use super::versions::{add_version_id, version_id};
use crate::remote::header_fields;
use crate::remote::response::ResponseHead;

/// A write that was acknowledged, for comparison with what the service has stored.
#[derive(Debug, Clone)]
pub(super) struct WrittenBody {
    /// In bytes.
    pub size: u64,
    pub checksum: Checksum,
    /// The MD5 of the bytes, if it was computed.
    pub md5: Option<[u8; 16]>,
    /// The service has compared the bytes with Content-MD5.
    pub is_md5_verified: bool,
    /// The id of the write, if it has one.
    pub write_id: Option<HeaderValue>,
}

/// A part of an upload.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartAddress<'a> {
    pub address: &'a Address,
    pub upload: &'a UploadId,
    pub number: PartNumber,
}

/// Returns true if a response has no ETag.
pub(super) fn lacks_etag(head: &ResponseHead) -> bool {
    !head.headers.contains_key(ETAG)
}

impl WrittenBody {
    /// Compares the bytes with a stored checksum of the same algorithm. `None` if there is none.
    fn compare_checksum(&self, stored: &[Checksum]) -> Option<bool> {
        let is_comparable = |stored: &&Checksum| stored.algorithm() == self.checksum.algorithm();
        stored.iter().find(is_comparable).map(|stored| *stored == self.checksum)
    }

    /// The MD5 of the bytes, for comparison with a stored ETag; `part` is the id of a part.
    fn sent_md5(&self, part: Option<BodyId>) -> Option<SentMd5> {
        let Self { size, checksum, md5, is_md5_verified: is_header, .. } = *self;
        Some(SentMd5 { md5: md5?, is_header, checksum, size, part })
    }
}

impl S3Store {
    /// Returns true if the service has acknowledged a write without an ETag.
    pub(super) fn lacks_etags(&self) -> bool {
        self.lacks_etags.load(Ordering::Relaxed)
    }

    /// Returns true if `found` is certainly the object that this write has created.
    async fn is_stored_in(
        &self,
        context: &Context,
        address: &Address,
        written: &WrittenBody,
        found: &VersionHead,
    ) -> Result<bool> {
        let found_headers = &found.response.headers;
        if found.size != Some(written.size) {
            return Ok(false);
        }
        let (checksums, scope) = headers::checksums(found_headers)?;
        let checksums = if scope == ChecksumScope::FullObject { checksums } else { Vec::new() };
        if let Some(is_equal) = written.compare_checksum(&checksums) {
            return Ok(is_equal);
        }
        let has_id = written.write_id.is_some() && found_headers.get(WRITE_ID) == written.write_id.as_ref();
        let md5 = etag_md5(found_headers);
        let (Some(found), Some(etag), Some(sent)) = (md5, found_headers.get(ETAG), written.sent_md5(None))
        else {
            return Ok(has_id);
        };
        // Without the id, another client may have written the bytes.
        if !has_id && found != sent.md5 {
            return Ok(false);
        }
        let stored = address.clone().with_version(version_id(found_headers));
        self.recognizes_etag(context, &SuspectBody { address: &stored, etag, found, sent }).await
    }

    /// Compares the ETag of a stored body with the MD5 of the bytes sent. Returns true if it is no sign of damage.
    async fn recognizes_etag(&self, context: &Context, body: &SuspectBody<'_>) -> Result<bool> {
        match body.found == body.sent.md5 {
            true => Ok(self.etag_kinds.record(body.address.bucket.as_str(), ETagEvidence::Match)),
            false => self.accepts_etag(context, body).await,
        }
    }

    /// Adds the ETag of the object that a PUT has created to the response, which has none, and its version.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if the service does not have exactly the bytes of the write, or they cannot be compared.
    pub(super) async fn add_missing_etag(
        &self,
        context: &Context,
        address: &Address,
        head: &mut ResponseHead,
        written: &WrittenBody,
    ) -> Result<()> {
        self.lacks_etags.store(true, Ordering::Relaxed);
        let named = version_id(&head.headers).map(|version| address.clone().with_version(Some(version)));
        // A request that names the version needs another permission, so it is not the first one.
        for candidate in std::iter::once(address.clone()).chain(named) {
            let Some(found) = self.head_version(context, &candidate).await? else { continue };
            if self.is_stored_in(context, address, written, &found).await? {
                let found_headers = &found.response.headers;
                insert_etag(&header_fields::etag(found_headers)?, &mut head.headers)?;
                if let Some(version) = version_id(found_headers) {
                    add_version_id(&version, &mut head.headers);
                }
                return Ok(());
            }
        }
        let why = format!("the store's response to the write of {} has no ETag", address.key);
        Err(Error::new(Reason::Io, format!("{why}, and the bytes written cannot be recognized in the store")))
    }

    /// Adds the ETag of a part to the response to its PUT, which has none. Only the client of an upload knows its id, so the
    /// size is sufficient if nothing else can be compared.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) as for [`Self::add_missing_etag`]; also if the MD5 that is listed was not computed, as for the first
    /// streamed body.
    pub(super) async fn add_missing_part_etag(
        &self,
        context: &Context,
        part: PartAddress<'_>,
        head: &mut ResponseHead,
        written: &WrittenBody,
    ) -> Result<()> {
        self.lacks_etags.store(true, Ordering::Relaxed);
        let listed = self.find_part(context, part).await?.filter(|listed| listed.size == written.size);
        let listed = listed.ok_or_else(|| part.unrecognized_error())?;
        let sent = written.sent_md5(Some(BodyId::of_part(part.upload, part.number)));
        let listed_etag = header_fields::header_value(&format!("\"{}\"", listed.etag))?;
        let is_ours = match (written.compare_checksum(&listed.checksums), listed.etag.md5()) {
            (Some(is_equal), _) => is_equal,
            (None, None) => true,
            // The list does not say how the part is encrypted.
            (None, Some(_)) if has_encrypted_etag(&head.headers) => true,
            (None, Some(found)) => match sent {
                Some(sent) => {
                    let (address, etag) = (part.address, &listed_etag);
                    self.recognizes_etag(context, &SuspectBody { address, etag, found, sent }).await?
                }
                None => false,
            },
        };
        if !is_ours {
            return Err(part.unrecognized_error());
        }
        head.headers.insert(ETAG, listed_etag);
        Ok(())
    }

    /// The ETag of a part that was copied, and whose response has none.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if no part of `size` bytes is listed.
    pub(super) async fn find_copied_part_etag(
        &self,
        context: &Context,
        part: PartAddress<'_>,
        size: u64,
    ) -> Result<ETag> {
        let listed = self.find_part(context, part).await?.filter(|listed| listed.size == size);
        listed.map(|listed| listed.etag).ok_or_else(|| part.unrecognized_error())
    }

    /// A part according to the list of its upload.
    async fn find_part(&self, context: &Context, part: PartAddress<'_>) -> Result<Option<PartInfo>> {
        let PartAddress { address, upload, number } = part;
        let previous = PartNumber::new(i64::from(number.get()) - 1).ok();
        let page = self.parts_page(context, address, upload, previous, 1).await?;
        Ok(page.parts.into_iter().find(|listed| listed.number == number))
    }
}

impl PartAddress<'_> {
    /// The error of a part that was acknowledged without an ETag, and cannot be found.
    fn unrecognized_error(&self) -> Error {
        let (number, key) = (self.number.get(), &self.address.key);
        let why = format!("the store's response to part {number} of {key} has no ETag");
        Error::new(
            Reason::Io,
            format!("{why}, and the bytes written cannot be recognized in the list of parts"),
        )
    }
}

fn insert_etag(etag: &ETag, headers: &mut HeaderMap) -> Result<()> {
    headers.insert(ETAG, header_fields::header_value(&format!("\"{etag}\""))?);
    Ok(())
}
