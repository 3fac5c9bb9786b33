//! Decides how the bytes of a staged write reach the service: in memory or streamed, with which checksum and framing, and
//! whether their MD5 is needed as a proof instead.

use std::sync::atomic::Ordering;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Algorithm};

use super::S3Store;
use super::checksum_headers::{HeaderKind, Omission, WriteId};
use super::framing::Framing;
use crate::remote::limits::{MAX_BUFFERED_BYTES, MAX_REQUEST_OBJECT_BYTES, part_too_large_error};

/// The destination of a write.
pub(super) enum WriteTarget {
    Object,
    /// A part, with the checksum algorithm of its upload, if any.
    Part {
        upload: UploadId,
        number: PartNumber,
        algorithm: Option<Algorithm>,
    },
}

impl WriteTarget {
    /// The id of a write of this target, for retries of the same.
    pub fn write_id(&self, address: &Address) -> WriteId {
        match self {
            Self::Object => WriteId::of_object(address.clone()),
            Self::Part { upload, number, .. } => WriteId::of_part(address.clone(), upload.clone(), *number),
        }
    }
}

/// The handling of a write's bytes until its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// The caller's buffers are kept, and sent with the commit.
    Buffered,
    /// Like `Buffered`, but copied, so that the caller's buffers can be reused.
    BufferedCopy,
    /// Sent as they arrive, in one request.
    Streamed,
    /// Sent part by part.
    Parts,
}

/// The decisions about one write.
#[derive(Debug, Clone, Copy)]
pub(super) struct WritePlan {
    pub transport: Transport,
    /// A checksum is sent with the body, in a header or in the trailer.
    pub sends_checksum: bool,
    /// A streamed body is followed by its checksum, if the framing allows that.
    pub has_trailer: bool,
    /// The reason why a streamed body has no checksum, if that is due to a refusal or to the settings.
    pub omission: Option<Omission>,
    /// The reason why a body has no trailer, if that is due to a refusal.
    pub trailer_omission: Option<Omission>,
    /// A streamed part has no checksum, or an object lacks the one that it would have without a refusal or the settings. So
    /// its MD5 proves it.
    pub lacks_checksum: bool,
    /// The MD5 of a streamed body is needed.
    pub computes_md5: bool,
}

impl WritePlan {
    /// The plan of a body that is in memory when it is sent. Its request is sent again if its headers are refused.
    const fn in_memory(transport: Transport, sends_checksum: bool) -> Self {
        Self {
            transport,
            sends_checksum,
            has_trailer: false,
            omission: None,
            trailer_omission: None,
            lacks_checksum: false,
            computes_md5: false,
        }
    }
}

impl S3Store {
    /// Plans a write.
    ///
    /// # Errors
    /// [`EntityTooLarge`](Reason::EntityTooLarge) for a part that cannot be sent in one request.
    pub(super) fn plan_write(
        &self,
        address: &Address,
        target: &WriteTarget,
        request: &StageRequest,
    ) -> Result<WritePlan> {
        let has_algorithm = self.has_algorithm(target);
        let in_memory = |transport| Ok(WritePlan::in_memory(transport, has_algorithm));
        let size = match (request.size, target) {
            (Some(size), _) if size <= MAX_BUFFERED_BYTES => return in_memory(Transport::Buffered),
            (Some(size), _) if size <= MAX_REQUEST_OBJECT_BYTES => size,
            (_, WriteTarget::Object) => return in_memory(Transport::Parts),
            (Some(_), WriteTarget::Part { .. }) => return Err(part_too_large_error()),
            (None, WriteTarget::Part { .. }) => return in_memory(Transport::Buffered),
        };
        let streamed = self.plan_stream(address, target, request);
        let framing = self.choose_framing(streamed.has_trailer);
        if self.needs_memory(address, target, request, &streamed) {
            match target {
                WriteTarget::Object if size > self.part_bytes as u64 => return in_memory(Transport::Parts),
                WriteTarget::Part { .. } if size > self.buffer_budget.capacity() as u64 => {}
                _ => {
                    let plan = WritePlan::in_memory(Transport::BufferedCopy, has_algorithm);
                    return Ok(WritePlan { trailer_omission: streamed.trailer_omission, ..plan });
                }
            }
        }
        match (framing, target) {
            (Framing::Whole, WriteTarget::Object) => in_memory(Transport::Parts),
            (Framing::Whole, WriteTarget::Part { .. }) if size > self.part_bytes as u64 => {
                let (size, max_mib) = (size >> 20, self.part_bytes >> 20);
                let why = format!(
                    "the store does not support signed chunks, so a part of {size} MiB would be sent unsigned over \
                     plain HTTP; use https, or parts of at most {max_mib} MiB"
                );
                Err(Error::new(Reason::EntityTooLarge, why))
            }
            (Framing::Whole, WriteTarget::Part { .. }) => in_memory(Transport::BufferedCopy),
            _ => Ok(streamed),
        }
    }

    /// The plan of a write if its body is streamed.
    fn plan_stream(&self, address: &Address, target: &WriteTarget, request: &StageRequest) -> WritePlan {
        let write = target.write_id(address);
        let has_algorithm = self.has_algorithm(target);
        let omission = match target {
            WriteTarget::Part { .. } if !has_algorithm => Some(Omission::Settled),
            // The way in which the upload was created decides, unless the service has refused this part.
            WriteTarget::Part { .. } => {
                self.stream_omission(HeaderKind::Write, &write).filter(|reason| *reason == Omission::Trial)
            }
            WriteTarget::Object => self.stream_omission(HeaderKind::Write, &write),
        };
        let sends_checksum = omission.is_none();
        // A service without checksums would store the framing as part of the object. Trailers are used only after the
        // service has returned a checksum.
        let verifies_checksums = self.shared.verifies_checksums.load(Ordering::Relaxed)
            || matches!(target, WriteTarget::Part { upload, .. } if self.verifies_checksums_of(upload));
        let may_have_trailer = sends_checksum && verifies_checksums;
        let trailer_omission =
            may_have_trailer.then(|| self.stream_omission(HeaderKind::Trailer, &write)).flatten();
        let has_trailer = may_have_trailer && trailer_omission.is_none();
        let has_checksum = match self.choose_framing(has_trailer) {
            Framing::Trailer => true,
            _ => sends_checksum && declares_checksum(target, request),
        };
        let lacks_checksum = match target {
            WriteTarget::Part { .. } => !has_checksum,
            WriteTarget::Object => !has_checksum && (omission.is_some() || trailer_omission.is_some()),
        };
        WritePlan {
            transport: Transport::Streamed,
            sends_checksum,
            has_trailer,
            omission,
            trailer_omission,
            lacks_checksum,
            computes_md5: lacks_checksum || self.lacks_etags(),
        }
    }

    /// Returns true if the body of a target may have a checksum.
    fn has_algorithm(&self, target: &WriteTarget) -> bool {
        match target {
            WriteTarget::Object => true,
            WriteTarget::Part { algorithm, upload, .. } => {
                algorithm.is_some() && !self.omits_checksums_of(upload)
            }
        }
    }

    /// Returns true if a body must be in memory before it is sent, although it could be streamed.
    fn needs_memory(
        &self,
        address: &Address,
        target: &WriteTarget,
        request: &StageRequest,
        streamed: &WritePlan,
    ) -> bool {
        // Its upload was created with an algorithm, so the service may reject the part without a checksum.
        let needs_checksum = streamed.sends_checksum
            && streamed.trailer_omission.is_some()
            && matches!(target, WriteTarget::Part { .. })
            && !declares_checksum(target, request);
        // An ETag that may be no MD5 proves nothing.
        let needs_md5 =
            streamed.computes_md5 && self.etag_kinds.kind(address.bucket.as_str()).needs_content_md5();
        needs_checksum || needs_md5
    }
}

/// The algorithms of the checksums to compute; the service verifies the first one.
pub(super) fn checksum_algorithms(target: &WriteTarget, request: &StageRequest) -> Vec<Algorithm> {
    let mut algorithms = request.algorithms.clone();
    if let WriteTarget::Part { algorithm: Some(algorithm), .. } = target {
        algorithms.retain(|other| other != algorithm);
        algorithms.insert(0, *algorithm);
    }
    if algorithms.is_empty() {
        algorithms.push(Algorithm::Crc64Nvme);
    }
    algorithms
}

/// Returns true if the checksum that the service verifies is known before the body.
fn declares_checksum(target: &WriteTarget, request: &StageRequest) -> bool {
    let sent = checksum_algorithms(target, request).first().copied();
    request.checksum.is_some_and(|declared| Some(declared.algorithm()) == sent)
}
