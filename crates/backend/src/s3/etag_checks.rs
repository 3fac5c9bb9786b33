//! Comparisons of an ETag with the MD5 of the bytes, in place of checksum headers. An ETag may only look like an MD5:
//! [`ETagKinds`](super::etag_kinds) decides whether a difference is damage.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue};
use md5::{Digest as _, Md5};
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{Address, BucketName, Checksum, ChecksumScope, Context, ETag};

use super::S3Store;
use super::etag_kinds::{BodyId, ETagEvidence, ETagKind};
use super::headers;
use super::substitute_proofs::SubstituteProof;
use super::versions::version_id;
use crate::remote::header_fields;
use crate::remote::response::{ExpectedDigest, Md5Judge};

/// Maximum size of an object that is read back after its write, to compare its bytes.
const MAX_READ_BACK_BYTES: u64 = 8 << 20;

/// The MD5 of a body that was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentMd5 {
    pub md5: [u8; 16],
    /// The request had it as Content-MD5.
    pub is_header: bool,
    /// The checksum of the same body.
    pub checksum: Checksum,
    /// In bytes.
    pub size: u64,
    /// The id of a part; `None` for an object.
    pub part: Option<BodyId>,
}

/// A stored body whose ETag is not the MD5 of its bytes, although the service has compared these with Content-MD5.
pub(super) struct SuspectBody<'a> {
    pub address: &'a Address,
    /// The ETag as the service sent it.
    pub etag: &'a HeaderValue,
    /// The MD5 that the ETag looks like.
    pub found: [u8; 16],
    pub sent: SentMd5,
}

/// The MD5 of an object's or a part's bytes according to its ETag. `None` if the ETag has another form, or if the bytes
/// are encrypted with keys for which it is something else.
pub(super) fn etag_md5(headers: &HeaderMap) -> Option<[u8; 16]> {
    let etag: Option<ETag> = header_fields::etag(headers).ok().filter(|_| !has_encrypted_etag(headers));
    etag?.md5()
}

/// Returns true if a response is about bytes that are encrypted with keys for which the ETag is no MD5.
pub(super) fn has_encrypted_etag(headers: &HeaderMap) -> bool {
    let encryption = headers.get("x-amz-server-side-encryption");
    encryption.is_some_and(|encryption| encryption.as_bytes().starts_with(b"aws:kms"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
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
    pub(super) async fn check_response_etag(
        &self,
        context: &Context,
        address: &Address,
        headers: &HeaderMap,
        sent: &SentMd5,
    ) -> Result<()> {
        if returns_checksum(headers, &sent.checksum)? {
            return self.learn_etag_kind(address, headers, sent);
        }
        let compared = match (etag_md5(headers), headers.get(ETAG)) {
            (Some(found), Some(etag)) => {
                let stored = address.clone().with_version(version_id(headers));
                let body = SuspectBody { address: &stored, etag, found, sent: *sent };
                Some(self.compare_etag(context, &body).await?)
            }
            _ => None,
        };
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

    /// Learns the kind of a bucket's ETags from a response to bytes that the service has verified.
    pub(super) fn learn_etag_kind(
        &self,
        address: &Address,
        headers: &HeaderMap,
        sent: &SentMd5,
    ) -> Result<()> {
        if let Some(found) = etag_md5(headers)
            && (sent.is_header || returns_checksum(headers, &sent.checksum)?)
        {
            let is_equal = found == sent.md5;
            let evidence = if is_equal { ETagEvidence::Match } else { sent.verified_mismatch(address) };
            self.etag_kinds.record(address.bucket.as_str(), evidence);
        }
        Ok(())
    }

    /// Compares the ETag with the MD5 of the bytes sent, and records the result.
    async fn compare_etag(&self, context: &Context, body: &SuspectBody<'_>) -> Result<ETagComparison> {
        let SuspectBody { address, found, sent, .. } = body;
        let (found, is_equal) = (*found, *found == sent.md5);
        let is_acceptable = match is_equal {
            true => self.etag_kinds.record(address.bucket.as_str(), ETagEvidence::Match),
            false => self.accepts_etag(context, body).await?,
        };
        Ok(ETagComparison { found, is_equal, is_acceptable })
    }

    /// Returns true if an ETag that differs from the MD5 of the bytes sent is no sign of damage. Content-MD5 does not
    /// suffice, because a service may ignore it: a small object is read back.
    pub(super) async fn accepts_etag(&self, context: &Context, body: &SuspectBody<'_>) -> Result<bool> {
        let SuspectBody { address, etag, found, sent } = body;
        let bucket = address.bucket.as_str();
        let evidence = match self.etag_kinds.kind(bucket) {
            _ if !sent.is_header => ETagEvidence::Mismatch,
            ETagKind::Md5 => return Ok(false),
            ETagKind::Other => return Ok(true),
            _ if sent.part.is_some() || sent.size > MAX_READ_BACK_BYTES => sent.verified_mismatch(address),
            _ => match Box::pin(self.read_md5(context, address, etag, sent.size)).await {
                Ok(Some(read)) if read == sent.md5 => ETagEvidence::ReadBackMismatch,
                Ok(Some(read)) => {
                    if read == *found {
                        self.etag_kinds.record(bucket, ETagEvidence::Match);
                    }
                    return Ok(false);
                }
                Ok(None) => sent.verified_mismatch(address),
                // These credentials may only write.
                Err(e) if e.kind() == ErrorKind::Denied => sent.verified_mismatch(address),
                Err(e) => return Err(e),
            },
        };
        Ok(self.etag_kinds.record(bucket, evidence))
    }

    /// The MD5 of a whole object of `size` bytes, read without a checksum. `None` if the object with this ETag is gone.
    async fn read_md5(
        &self,
        context: &Context,
        address: &Address,
        etag: &HeaderValue,
        size: u64,
    ) -> Result<Option<[u8; 16]>> {
        let mut call = self.whole_read_call(address);
        // The connection of the first response may still be in use.
        call.caller_holds_connection = true;
        let mut response = match self.send_versioned(context, address, &call).await {
            Err(e) if matches!(e.reason(), Reason::PreconditionFailed | Reason::NoSuchKey) => {
                return Ok(None);
            }
            sent => sent?,
        };
        if response.head.headers.get(ETAG) != Some(etag) {
            return Ok(None);
        }
        if size == 0 {
            response.read_end().await?;
        }
        let (mut body, mut md5) = (response.into_body(context.clone(), size, None)?, Md5::new());
        while let Some(piece) = body.next().await {
            md5.update(&piece?);
        }
        Ok(Some(md5.finalize().into()))
    }

    /// Returns true if Content-MD5 is sent with each body in memory, so that the service verifies it: its ETags are in
    /// doubt, or its responses to writes have none.
    pub(super) fn wants_content_md5(&self, bucket: &BucketName) -> bool {
        self.lacks_etags() || self.etag_kinds.kind(bucket.as_str()).needs_content_md5()
    }
}

impl SentMd5 {
    /// A difference from the ETag, although the service has verified the bytes.
    fn verified_mismatch(&self, address: &Address) -> ETagEvidence {
        ETagEvidence::VerifiedMismatch(self.part.unwrap_or_else(|| BodyId::of_object(address)))
    }
}

/// Returns true if a response has this checksum of the whole body.
fn returns_checksum(headers: &HeaderMap, checksum: &Checksum) -> Result<bool> {
    let (returned, scope) = headers::checksums(headers)?;
    Ok(scope == ChecksumScope::FullObject && returned.contains(checksum))
}

/// Decides about the MD5 of a whole object that was read without its checksum. If it differs from the ETag, the object is
/// read once more: damage on the path differs each time. Damage in the service does not, so equal bytes are accepted only
/// in a bucket in which several objects differ, and none has matched.
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

    /// The error of an object that two reads returned alike, but not as its ETag says.
    fn repeated_mismatch_error(&self, found: [u8; 16]) -> Error {
        let (found, expected) = (ExpectedDigest::Md5(found), ExpectedDigest::Md5(self.expected));
        let why = format!(
            "checksum mismatch: received {found:?}, the store has {expected:?}; two reads agree, so the object is \
             damaged in the store, or its ETag is no MD5"
        );
        Error::new(Reason::CorruptData, why)
    }
}

#[async_trait]
impl Md5Judge for ETagJudge {
    fn record_match(&self) {
        self.record(ETagEvidence::Match);
        self.store.record_proof(SubstituteProof::ETag);
    }

    async fn accepts(&self, found: [u8; 16]) -> Result<bool> {
        let Self { store, context, address, etag, size, .. } = self;
        match store.etag_kinds.kind(address.bucket.as_str()) {
            ETagKind::Md5 => return Ok(false),
            ETagKind::Other => {}
            ETagKind::Unknown | ETagKind::Doubtful | ETagKind::LikelyOther => {
                match store.read_md5(context, address, etag, *size).await? {
                    Some(again) if again == found => {
                        if !self.record(ETagEvidence::RepeatedMismatch(BodyId::of_object(address))) {
                            return Err(self.repeated_mismatch_error(found));
                        }
                    }
                    Some(again) if again == self.expected => {
                        self.record(ETagEvidence::Match);
                        return Ok(false);
                    }
                    _ => return Ok(false),
                }
            }
        }
        tracing::debug!(?etag, "an ETag is not the MD5 that it seems to be");
        store.record_proof(SubstituteProof::Length);
        Ok(true)
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
