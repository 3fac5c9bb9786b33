//! Comparisons of an ETag with the MD5 of the bytes, in place of checksum headers. An ETag may only look like an MD5:
//! [`ETagKinds`](super::etag_kinds) decides whether a difference is damage.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue};
use md5::{Digest as _, Md5};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, BucketName, Checksum, ChecksumScope, Context, ETag};

use super::S3Store;
use super::etag_kinds::{ETagEvidence, ETagKind};
use super::headers;
use super::substitute_proofs::SubstituteProof;
use crate::remote::header_fields;
use crate::remote::response::{ExpectedDigest, Md5Judge};

/// The MD5 of a body that was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentMd5 {
    pub md5: [u8; 16],
    /// The request had it as Content-MD5.
    pub is_header: bool,
    /// The checksum of the same body.
    pub checksum: Checksum,
}

/// The MD5 of an object's or a part's bytes according to its ETag. `None` if the ETag has another form, or if the bytes
/// are encrypted with keys for which it is something else.
pub(super) fn etag_md5(headers: &HeaderMap) -> Option<[u8; 16]> {
    let has_other_etag = headers
        .get("x-amz-server-side-encryption")
        .is_some_and(|encryption| encryption.as_bytes().starts_with(b"aws:kms"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm");
    let etag: Option<ETag> = header_fields::etag(headers).ok().filter(|_| !has_other_etag);
    etag?.md5()
}

/// The result of comparing the ETag in a response with the MD5 of the bytes that were sent.
#[derive(Debug, Clone, Copy)]
struct ETagComparison {
    /// The MD5 according to the ETag.
    found: [u8; 16],
    is_equal: bool,
    /// A difference is no sign of damage.
    is_acceptable: bool,
}

impl S3Store {
    /// Compares the MD5 of the bytes sent with the ETag in the response, if that is an MD5, and counts the proof. Not needed
    /// if the service has returned their checksum.
    ///
    /// # Errors
    /// [`BadDigest`](Reason::BadDigest) if it differs, unless the ETag is known to be no MD5: the service has stored other
    /// bytes. A retry is then sent with Content-MD5, if it can be.
    pub(super) fn check_response_etag(
        &self,
        bucket: &BucketName,
        headers: &HeaderMap,
        sent: &SentMd5,
    ) -> Result<()> {
        let compared = self.compare_etag(bucket, headers, sent)?;
        if returns_checksum(headers, &sent.checksum)? {
            return Ok(());
        }
        if let Some(ETagComparison { found, is_acceptable: false, .. }) = compared {
            let (found, sent) = (ExpectedDigest::Md5(found), ExpectedDigest::Md5(sent.md5));
            let why = format!("the store returned the ETag {found:?}; the bytes sent have {sent:?}");
            return Err(Error::new(Reason::BadDigest, why));
        }
        self.record_proof(match compared {
            _ if sent.is_header => SubstituteProof::ContentMd5,
            Some(compared) if compared.is_equal => SubstituteProof::ETag,
            _ => SubstituteProof::Length,
        });
        Ok(())
    }

    /// Learns the kind of a bucket's ETags from a response.
    pub(super) fn learn_etag_kind(
        &self,
        bucket: &BucketName,
        headers: &HeaderMap,
        sent: &SentMd5,
    ) -> Result<()> {
        self.compare_etag(bucket, headers, sent).map(drop)
    }

    /// Compares the ETag with the MD5 of the bytes sent, and records the result. `None` if the ETag has another form.
    fn compare_etag(
        &self,
        bucket: &BucketName,
        headers: &HeaderMap,
        sent: &SentMd5,
    ) -> Result<Option<ETagComparison>> {
        let Some(found) = etag_md5(headers) else { return Ok(None) };
        let is_equal = found == sent.md5;
        let evidence = match is_equal {
            true => ETagEvidence::Match,
            false if sent.is_header || returns_checksum(headers, &sent.checksum)? => {
                ETagEvidence::VerifiedMismatch
            }
            false => ETagEvidence::Mismatch,
        };
        let is_acceptable = self.etag_kinds.record(bucket.as_str(), evidence);
        Ok(Some(ETagComparison { found, is_equal, is_acceptable }))
    }

    /// Returns true if Content-MD5 is sent with each body in memory, so that the service verifies it: its ETags are in
    /// doubt, or its responses to writes have none.
    pub(super) fn wants_content_md5(&self, bucket: &BucketName) -> bool {
        self.lacks_etags() || self.etag_kinds.kind(bucket.as_str()) == ETagKind::Doubtful
    }
}

/// Returns true if a response has this checksum of the whole body.
fn returns_checksum(headers: &HeaderMap, checksum: &Checksum) -> Result<bool> {
    let (returned, scope) = headers::checksums(headers)?;
    Ok(scope == ChecksumScope::FullObject && returned.contains(checksum))
}

/// Decides about the MD5 of a whole object that was read without its checksum. If it differs from the ETag, the object is
/// read once more: damage on the path differs each time. Damage in the service does not, so equal bytes prove nothing in a
/// bucket whose ETags are known to be MD5s.
pub(super) struct ETagJudge {
    pub store: Arc<S3Store>,
    pub context: Context,
    pub address: Address,
    /// The ETag of the object, as the service sent it.
    pub etag: HeaderValue,
    /// The MD5 that it looks like.
    pub expected: [u8; 16],
    /// The size of the object, in bytes.
    pub size: u64,
}

impl ETagJudge {
    fn record(&self, evidence: ETagEvidence) -> bool {
        self.store.etag_kinds.record(self.address.bucket.as_str(), evidence)
    }

    /// The MD5 of the object in a second read; `None` if it has been replaced.
    async fn read_again(&self) -> Result<Option<[u8; 16]>> {
        let Self { store, context, address, etag, size, .. } = self;
        let mut call = store.whole_read_call(address);
        // The connection of the first response may still be in use.
        call.caller_holds_connection = true;
        let response = match store.send_versioned(context, address, &call).await {
            Err(e) if matches!(e.reason(), Reason::PreconditionFailed | Reason::NoSuchKey) => {
                return Ok(None);
            }
            sent => sent?,
        };
        if response.head.headers.get(ETAG) != Some(etag) {
            return Ok(None);
        }
        let (mut body, mut md5) = (response.into_body(context.clone(), *size, None)?, Md5::new());
        while let Some(piece) = body.next().await {
            md5.update(&piece?);
        }
        Ok(Some(md5.finalize().into()))
    }
}

#[async_trait]
impl Md5Judge for ETagJudge {
    fn record_match(&self) {
        self.record(ETagEvidence::Match);
        self.store.record_proof(SubstituteProof::ETag);
    }

    async fn accepts(&self, found: [u8; 16]) -> Result<bool> {
        let is_accepted = match self.store.etag_kinds.kind(self.address.bucket.as_str()) {
            ETagKind::Md5 => false,
            ETagKind::LikelyOther | ETagKind::Other => true,
            ETagKind::Unknown | ETagKind::Doubtful => match self.read_again().await? {
                Some(again) if again == found => self.record(ETagEvidence::RepeatedMismatch),
                Some(again) if again == self.expected => {
                    self.record(ETagEvidence::Match);
                    false
                }
                _ => false,
            },
        };
        if is_accepted {
            tracing::debug!(etag = ?self.etag, "an ETag is not the MD5 that it seems to be");
            self.store.record_proof(SubstituteProof::Length);
        }
        Ok(is_accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_of_bytes_encrypted_with_managed_keys_is_no_md5() {
        let mut headers = HeaderMap::new();
        headers.insert("etag", HeaderValue::from_static("\"d41d8cd98f00b204e9800998ecf8427e\""));
        assert!(etag_md5(&headers).is_some());
        headers.insert("x-amz-server-side-encryption", HeaderValue::from_static("AES256"));
        assert!(etag_md5(&headers).is_some());
        headers.insert("x-amz-server-side-encryption", HeaderValue::from_static("aws:kms:dsse"));
        assert_eq!(etag_md5(&headers), None);
    }
}
