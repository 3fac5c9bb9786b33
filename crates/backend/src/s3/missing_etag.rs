//! Writes whose response has no ETag, although the service has stored them. A HEAD of the object, or the list of the
//! upload's parts, has the ETag. It is used only for the bytes of the write: another client may have written since.

use http::header::ETAG;
use http::{HeaderMap, HeaderValue};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartInfo, PartNumber, UploadId};
use tradewind_core::{Address, Checksum, ChecksumScope, Context, ETag};

use super::S3Store;
use super::ambiguous_outcome::VersionHead;
use super::checksum_headers::etag_md5;
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
    /// Compares the bytes with stored ones: by the checksum if there is one, otherwise by the MD5. `None` if neither can
    /// be compared.
    fn compare(&self, stored: &[Checksum], stored_md5: Option<[u8; 16]>) -> Option<bool> {
        let is_comparable = |stored: &&Checksum| stored.algorithm() == self.checksum.algorithm();
        match stored.iter().find(is_comparable) {
            Some(stored) => Some(*stored == self.checksum),
            None => Some(self.md5? == stored_md5?),
        }
    }

    /// Returns true if `found` is certainly the object that this write has created.
    fn is_stored_in(&self, found: &VersionHead) -> Result<bool> {
        let found_headers = &found.response.headers;
        if found.size != Some(self.size) {
            return Ok(false);
        }
        let (checksums, scope) = headers::checksums(found_headers)?;
        let checksums = if scope == ChecksumScope::FullObject { checksums } else { Vec::new() };
        let has_id = self.write_id.is_some() && found_headers.get(WRITE_ID) == self.write_id.as_ref();
        Ok(self.compare(&checksums, etag_md5(found_headers)).unwrap_or(has_id))
    }
}

impl S3Store {
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
        let named = version_id(&head.headers).map(|version| address.clone().with_version(Some(version)));
        // A request that names the version needs another permission, so it is not the first one.
        for candidate in std::iter::once(address.clone()).chain(named) {
            let Some(found) = self.head_version(context, &candidate).await? else { continue };
            if written.is_stored_in(&found)? {
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

    /// Adds the ETag of a part to the response to its PUT, which has none.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) as for [`Self::add_missing_etag`].
    pub(super) async fn add_missing_part_etag(
        &self,
        context: &Context,
        part: PartAddress<'_>,
        head: &mut ResponseHead,
        written: &WrittenBody,
    ) -> Result<()> {
        let PartAddress { address, upload, number } = part;
        let previous = PartNumber::new(i64::from(number.get()) - 1).ok();
        let page = self.parts_page(context, address, upload, previous, 1).await?;
        let is_ours = |listed: &&PartInfo| {
            listed.number == number
                && listed.size == written.size
                && written.compare(&listed.checksums, listed.etag.md5()) == Some(true)
        };
        let Some(listed) = page.parts.iter().find(is_ours) else {
            let number = number.get();
            let why = format!("the store's response to part {number} of {} has no ETag", address.key);
            let why = format!("{why}, and the bytes written cannot be recognized in the list of parts");
            return Err(Error::new(Reason::Io, why));
        };
        insert_etag(&listed.etag, &mut head.headers)
    }
}

fn insert_etag(etag: &ETag, headers: &mut HeaderMap) -> Result<()> {
    headers.insert(ETAG, header_fields::header_value(&format!("\"{etag}\""))?);
    Ok(())
}
