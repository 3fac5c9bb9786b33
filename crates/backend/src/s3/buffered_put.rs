//! Writes of bodies in memory, each of which is one request that can be retried, and the results of writes.

use http::HeaderMap;
use http::header::DATE;
use tradewind_core::error::Result;
use tradewind_core::object::Committed;
use tradewind_core::{Address, BucketName, Checksum, ChecksumScope, Context};

use super::S3Store;
use super::ambiguous_outcome::IdentifiedWrite;
use super::checksum_headers::HeaderNeed;
use super::etag_checks::SentMd5;
use super::etag_kinds::BodyId;
use super::headers::{self, BodyDigests, WRITE_ID};
use super::missing_etag::{PartAddress, WrittenBody, lacks_etag};
use super::repeats::ChangeGuard;
use super::versions::version_id;
use crate::remote::client::Call;
use crate::remote::header_fields::{self, generation};
use crate::remote::response::ResponseHead;

/// The PUT of a buffered body.
pub(super) struct BufferedPut<'a> {
    pub call: Call<'a>,
    /// The digests that the store verifies.
    pub digests: BodyDigests,
    /// The checksum of the body, whether it is sent or not.
    pub checksum: Checksum,
}

impl BufferedPut<'_> {
    /// Adds Content-MD5 unless there is one, so that the service verifies it.
    fn add_md5(&mut self) {
        self.digests.md5.get_or_insert_with(|| self.call.payload.md5());
    }

    /// The MD5 that the service has verified, if any. `part` is the id of a part.
    fn verified_md5(&self, head: &ResponseHead, part: Option<BodyId>) -> Option<SentMd5> {
        let md5 = head.omitted_checksums.and_then(|omitted| omitted.md5).or(self.digests.md5)?;
        let (checksum, size) = (self.checksum, self.call.payload.length());
        Some(SentMd5 { md5, is_header: true, checksum, size, part })
    }

    /// The body, for comparison with what the store has.
    fn written_body(&self, head: &ResponseHead) -> WrittenBody {
        WrittenBody {
            size: self.call.payload.length(),
            checksum: self.checksum,
            md5: Some(self.call.payload.md5()),
            is_md5_verified: self.verified_md5(head, None).is_some(),
            write_id: self.call.headers.get(WRITE_ID).cloned(),
        }
    }
}

impl S3Store {
    /// Sends the PUT of a part. Returns the response, with the ETag of the part. The part has a checksum if its upload was
    /// created with this algorithm, also if the service has refused the headers of other requests; otherwise it has
    /// Content-MD5.
    pub(super) async fn put_part(
        &self,
        context: &Context,
        part: PartAddress<'_>,
        mut put: BufferedPut<'_>,
    ) -> Result<ResponseHead> {
        let PartAddress { address, upload, number } = part;
        if put.digests.checksum.is_some() {
            let algorithm = self.part_checksum_algorithm(context, address, upload).await?;
            put.digests.checksum = put.digests.checksum.filter(|sent| Some(sent.algorithm()) == algorithm);
        }
        if put.digests.checksum.is_none() || self.wants_content_md5(&address.bucket) {
            put.add_md5();
        }
        headers::write_body_digests(put.digests, &mut put.call.headers)?;
        let sent = self.send_with_need(context, &put.call, None, HeaderNeed::Required).await?;
        if sent.omitted_checksums.is_some() {
            self.omit_checksums_of(upload);
        }
        let mut head = sent.drain().await?;
        let id = BodyId::of_part(upload, number);
        self.check_sent_digests(context, address, &head, &put, Some(id)).await?;
        if lacks_etag(&head) {
            let written = put.written_body(&head);
            Box::pin(self.add_missing_part_etag(context, part, &mut head, &written)).await?;
        }
        Ok(head)
    }

    /// Sends the PUT of an object. Returns the response, with the ETag of the object; if it was lost, the response to the
    /// HEAD of the object.
    pub(super) async fn put_object(
        &self,
        context: &Context,
        address: &Address,
        mut put: BufferedPut<'_>,
        identified: Option<IdentifiedWrite>,
    ) -> Result<ResponseHead> {
        if self.wants_content_md5(&address.bucket) {
            put.add_md5();
        }
        headers::write_body_digests(put.digests, &mut put.call.headers)?;
        let guard = ChangeGuard::new(self, context, &address.bucket);
        let mut head = match self.send_change(&put.call, &guard).await {
            Err(e) => {
                return self.resolve_failed_call(address, &put.call, &guard, identified.as_ref(), e).await;
            }
            Ok(head) => head,
        };
        self.observe_versioning(&address.bucket, &head.headers);
        let mut checked = self.check_sent_digests(context, address, &head, &put, None).await;
        if checked.is_ok() && lacks_etag(&head) {
            let written = put.written_body(&head);
            checked = Box::pin(self.add_missing_etag(context, address, &mut head, &written)).await;
        }
        self.after_change(context, &address.bucket, checked).await?;
        Ok(head)
    }

    /// The result of a check after a successful write of an object. Its error is final if a retry would create another
    /// version.
    pub(super) async fn after_change(
        &self,
        context: &Context,
        bucket: &BucketName,
        checked: Result<()>,
    ) -> Result<()> {
        match checked {
            Err(e) => Err(ChangeGuard::new(self, context, bucket).error_after_change(e).await),
            Ok(()) => Ok(()),
        }
    }

    /// Compares the digests of a buffered body with those in the response to its PUT. The store may have computed a
    /// checksum itself. Without a checksum in the request, the ETag is compared. `part` is the id of a part.
    async fn check_sent_digests(
        &self,
        context: &Context,
        address: &Address,
        head: &ResponseHead,
        put: &BufferedPut<'_>,
        part: Option<BodyId>,
    ) -> Result<()> {
        let was_sent = put.digests.checksum.is_some() && head.omitted_checksums.is_none();
        self.check_response_checksum(&head.headers, &put.checksum, was_sent)?;
        match put.verified_md5(head, part) {
            Some(sent) if !was_sent => self.check_response_etag(context, address, &head.headers, &sent).await,
            Some(sent) => self.learn_etag_kind(address, &head.headers, &sent),
            None => Ok(()),
        }
    }

    /// The result of a successful write of an object. An incomplete response is an error that is final if a retry would
    /// create another version.
    pub(super) async fn committed_object(
        &self,
        guard: &ChangeGuard<'_>,
        headers: &HeaderMap,
        size: u64,
        checksums: Vec<Checksum>,
    ) -> Result<Committed> {
        match self.build_committed(headers, size, checksums) {
            Err(e) => Err(guard.error_after_change(e).await),
            committed => committed,
        }
    }

    /// Builds the result of a write. S3 does not return the modification time; the response's `Date` is close to it.
    pub(super) fn build_committed(
        &self,
        headers: &HeaderMap,
        size: u64,
        checksums: Vec<Checksum>,
    ) -> Result<Committed> {
        let etag = header_fields::etag(headers)?;
        let modified = header_fields::parse_date(headers, &DATE)?.unwrap_or_else(|| self.client.clock.wall());
        let generation = generation(modified, etag.as_str());
        Ok(Committed {
            etag,
            size,
            modified,
            generation,
            checksums,
            scope: ChecksumScope::FullObject,
            version: version_id(headers),
            source_version: None,
        })
    }
}
