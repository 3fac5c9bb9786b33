//! Staged writes. A body that is small, of unknown size, or that cannot be streamed in a single request is buffered: it
//! becomes one request that can be retried, or the parts of an upload. Any other body is streamed: its request is in
//! flight while bytes arrive. The last buffer is held back until the commit, because the store completes the write once
//! it has the whole body: a write that is dropped, or that fails verification, must stay incomplete.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, DATE};
use http::{HeaderMap, HeaderValue, Method};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{StageRequest, Staged};
use tradewind_core::{Address, Algorithm, BucketName, Checksum, ChecksumScope, Context, Observation};

use super::ambiguous_outcome::IdentifiedWrite;
use super::aws_chunked::{FrameEncoder, SignedChunks, UnsignedChunks};
use super::checksum_headers::{Omission, RequestKind, SentMd5, has_checksum_header};
use super::dialect::Dialect;
use super::headers::{self, BodyDigests, WRITE_ID};
use super::missing_etag::{PartAddress, WrittenBody, lacks_etag};
use super::multipart_write::{MultipartWrite, PartBuffer, part_query};
use super::protocol::{DECODED_LENGTH, TRAILER};
use super::regions::SentWith;
use super::repeats::ChangeGuard;
use super::versions::version_id;
use super::{Framing, S3Store, StreamedHeaders};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::header_fields::{self, generation};
use crate::remote::limits::{MAX_BUFFERED_BYTES, MAX_REQUEST_OBJECT_BYTES, part_too_large_error};
use crate::remote::payload::BufferedBody;
use crate::remote::response::ResponseHead;
use crate::remote::streaming_request::StreamingRequest;
use crate::remote::write_progress::WriteProgress;

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

/// A write that is not committed yet.
pub(super) struct StagedWrite {
    store: Arc<S3Store>,
    context: Context,
    address: Address,
    target: WriteTarget,
    request: StageRequest,
    /// Hashers of the whole body; the first is for the checksum that the store verifies.
    hashers: Vec<Hasher>,
    md5: Option<Md5>,
    /// The write has no checksum headers: its body is verified by its MD5.
    omits_checksum: bool,
    /// The reason why checksum headers are omitted from all writes now, if they are.
    omission: Option<Omission>,
    progress: WriteProgress,
    mode: WriteMode,
}

/// The handling of a write's bytes until the commit.
enum WriteMode {
    /// Buffered until the commit.
    Buffered(Vec<Bytes>),
    /// Like `Buffered`, but copied, so that the caller's buffers can be reused.
    BufferedCopy(PartBuffer),
    /// Streamed: the request starts with the first buffer. The latest buffer is held back until the next one or the
    /// commit.
    Streamed(Option<StreamingWrite>, Bytes),
    /// Sent part by part.
    Parts(MultipartWrite),
}

/// A request in flight, with the framing of its body, if any.
struct StreamingWrite {
    request: StreamingRequest,
    sent_with: SentWith,
    frame: Option<FrameEncoder>,
    /// A checksum is in a header or in the trailer.
    has_checksum: bool,
    /// The headers of the request, if they contain a write id.
    headers_with_id: Option<HeaderMap>,
}

impl StreamingWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.frame {
            None if bytes.is_empty() => Ok(()),
            None => self.request.write(bytes).await,
            Some(frame) => {
                for piece in frame.frame(bytes) {
                    self.request.write(piece).await?;
                }
                Ok(())
            }
        }
    }

    /// The headers of the request that the service may reject.
    const fn headers(&self, omission: Option<Omission>) -> StreamedHeaders {
        let framing = match self.frame {
            Some(FrameEncoder::Signed(_)) => Framing::SignedChunks,
            Some(FrameEncoder::Trailing(_)) => Framing::Trailer,
            None => Framing::Unframed,
        };
        StreamedHeaders { framing, has_checksum: self.has_checksum, omission }
    }
}

impl StagedWrite {
    pub fn new(
        store: Arc<S3Store>,
        context: &Context,
        address: &Address,
        target: WriteTarget,
        request: StageRequest,
    ) -> Result<Self> {
        let mut algorithms = request.algorithms.clone();
        if let WriteTarget::Part { algorithm: Some(algorithm), .. } = target {
            algorithms.retain(|other| *other != algorithm);
            algorithms.insert(0, algorithm);
        }
        if algorithms.is_empty() {
            algorithms.push(Algorithm::Crc64Nvme);
        }
        let omission = store.write_omission();
        let is_of_bare_upload = match &target {
            WriteTarget::Object => false,
            WriteTarget::Part { upload, .. } => store.omits_checksums_of(upload),
        };
        let omits_checksum = omission.is_some() || is_of_bare_upload;
        let sends_checksum = !omits_checksum && !matches!(target, WriteTarget::Part { algorithm: None, .. });
        let is_whole = store.choose_framing(sends_checksum) == Framing::Whole;
        let mode = match (request.size, &target) {
            (Some(size), _) if size <= MAX_BUFFERED_BYTES => WriteMode::Buffered(Vec::new()),
            (_, WriteTarget::Object) if is_whole => {
                WriteMode::Parts(MultipartWrite::new(store.clone(), context, address, &request))
            }
            (Some(size), WriteTarget::Part { .. }) if is_whole && size > store.part_bytes as u64 => {
                let (size, max_mib) = (size >> 20, store.part_bytes >> 20);
                let why = format!(
                    "the store does not support signed chunks, so a part of {size} MiB would be sent unsigned over \
                     plain HTTP; use https, or parts of at most {max_mib} MiB"
                );
                return Err(Error::new(Reason::EntityTooLarge, why));
            }
            (Some(_), WriteTarget::Part { .. }) if is_whole => WriteMode::BufferedCopy(PartBuffer::default()),
            (Some(size), _) if size <= MAX_REQUEST_OBJECT_BYTES => WriteMode::Streamed(None, Bytes::new()),
            (Some(_), WriteTarget::Part { .. }) => {
                return Err(part_too_large_error());
            }
            (None, WriteTarget::Part { .. }) => WriteMode::Buffered(Vec::new()),
            (_, WriteTarget::Object) => {
                WriteMode::Parts(MultipartWrite::new(store.clone(), context, address, &request))
            }
        };
        Ok(Self {
            store,
            context: context.clone(),
            address: address.clone(),
            target,
            hashers: algorithms.into_iter().map(Hasher::new).collect(),
            md5: (request.verify_md5 || omits_checksum).then(Md5::new),
            omits_checksum,
            omission,
            progress: WriteProgress::new(request.size),
            request,
            mode,
        })
    }

    async fn append(&mut self, bytes: Bytes) -> Result<()> {
        self.progress.add(bytes.len())?;
        self.hashers.iter_mut().for_each(|hasher| hasher.update(&bytes));
        if let Some(md5) = &mut self.md5 {
            md5.update(&bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        match &mut self.mode {
            WriteMode::Buffered(pieces) => {
                if self.progress.written_bytes() > self.store.part_bytes as u64 {
                    let max_mib = self.store.part_bytes >> 20;
                    let why = format!("a part of unknown length is limited to {max_mib} MiB");
                    return Err(Error::new(Reason::EntityTooLarge, why));
                }
                pieces.push(bytes);
            }
            WriteMode::BufferedCopy(buffer) => buffer.append(&self.store, &bytes)?,
            WriteMode::Parts(parts) => parts.write(bytes).await?,
            WriteMode::Streamed(..) => self.send_previous(bytes).await?,
        }
        Ok(())
    }

    /// Sends the held-back buffer, and holds back this one.
    async fn send_previous(&mut self, bytes: Bytes) -> Result<()> {
        if let WriteMode::Streamed(None, _) = &self.mode {
            let streaming = self.start_streaming().await?;
            self.mode = WriteMode::Streamed(Some(streaming), Bytes::new());
        }
        if let WriteMode::Streamed(Some(streaming), waiting) = &mut self.mode {
            let (sent, headers) = (streaming.sent_with.clone(), streaming.headers(self.omission));
            if let Err(e) = streaming.write(std::mem::replace(waiting, bytes)).await {
                return Err(self.evaluate_failure(sent, headers, e).await);
            }
        }
        Ok(())
    }

    /// A placeholder for the checksum sent to the store, with its algorithm and length.
    fn checksum_placeholder(&self) -> Checksum {
        Checksum::compute(self.hashers.first().map_or(Algorithm::Crc64Nvme, Hasher::algorithm), b"")
    }

    /// The request without its body and checksum.
    fn call(&self) -> Result<Call<'_>> {
        let mut call = Call::object(Method::PUT, &self.address.bucket, self.address.key.as_str());
        match &self.target {
            WriteTarget::Object => {
                self.store.write_metadata(&self.request.metadata, &mut call.headers)?;
                headers::write_precondition(&self.request.precondition, &mut call.headers)?;
                let precondition = &self.request.precondition;
                call.may_repeat =
                    IdentifiedWrite::add_id(&self.store, &self.address, precondition, &mut call.headers)?;
            }
            WriteTarget::Part { upload, number, .. } => {
                call.resource = ResourceKind::Upload;
                call.query = part_query(upload, *number);
            }
        }
        Ok(call)
    }

    /// Starts a streamed request.
    async fn start_streaming(&mut self) -> Result<StreamingWrite> {
        let length = self.request.size.unwrap_or_default();
        let mut call = self.call()?;
        let declared = self.request.checksum.filter(|declared| {
            self.sends_checksum() && declared.algorithm() == self.checksum_placeholder().algorithm()
        });
        let declared = BodyDigests { checksum: declared, md5: None };
        let framing = self.store.choose_framing(self.sends_checksum());
        let on_wire = match framing {
            Framing::Trailer => {
                let placeholder = self.checksum_placeholder();
                call.headers.insert(TRAILER, HeaderValue::from_static(placeholder.algorithm().header()));
                UnsignedChunks::framed_length(length, &placeholder)
            }
            Framing::SignedChunks => {
                headers::write_body_digests(declared, &mut call.headers)?;
                SignedChunks::framed_length(length)
            }
            Framing::Unframed => {
                headers::write_body_digests(declared, &mut call.headers)?;
                length
            }
            // Signed chunks were rejected since this write was staged, so it would be sent unsigned. A retry is sent
            // whole.
            Framing::Whole => {
                let why = "the store does not support signed chunks; retry";
                return Err(Error::new(Reason::Io, why));
            }
        };
        if on_wire != length {
            call.headers.insert(DECODED_LENGTH, length.into());
            let encodings = match call.headers.get(CONTENT_ENCODING) {
                Some(encoding) => [b"aws-chunked,", encoding.as_bytes()].concat(),
                None => b"aws-chunked".to_vec(),
            };
            let encodings = HeaderValue::from_bytes(&encodings).map_err(|e| {
                Error::with_source(Reason::InvalidArgument, "the content encoding cannot be sent", e)
            })?;
            call.headers.insert(CONTENT_ENCODING, encodings);
        }
        let headers_with_id = call.headers.contains_key(WRITE_ID).then(|| call.headers.clone());
        let has_checksum = has_checksum_header(&call.headers);
        let started = self.store.start_streaming(&self.context, &call, on_wire).await;
        let (mut request, sent_with) = started.map_err(Error::before_sending)?;
        let frame = match (framing, request.take_signer()) {
            (Framing::Trailer, _) => Some(FrameEncoder::Trailing(UnsignedChunks::new(length))),
            (_, Some(signer)) => Some(FrameEncoder::Signed(SignedChunks::new(length, signer))),
            (_, None) => None,
        };
        Ok(StreamingWrite { request, sent_with, frame, has_checksum, headers_with_id })
    }

    /// Finishes a streamed request: sends the held-back buffer and the end of the framing, and reads the response.
    async fn finish_streaming(
        streaming: StreamingWrite,
        waiting: Bytes,
        checksum: &Checksum,
    ) -> Result<ResponseHead> {
        let mut streaming = streaming;
        streaming.write(waiting).await?;
        if let Some(frame) = &mut streaming.frame {
            let end = frame.end(checksum);
            streaming.request.write(end).await?;
        }
        streaming.request.finish().await?.drain().await
    }

    /// Sends a buffered body as one request.
    async fn put_buffered(
        &mut self,
        pieces: Vec<Bytes>,
        checksum: &Checksum,
        content_md5: Option<[u8; 16]>,
    ) -> Result<ResponseHead> {
        let mut call = self.call()?;
        call.payload = BufferedBody::from_buffers(pieces);
        let identified =
            IdentifiedWrite::from_headers(&call.headers, self.progress.written_bytes(), *checksum);
        let sent_checksum = Some(*checksum).filter(|_| self.sends_checksum());
        let digests = BodyDigests { checksum: sent_checksum, md5: content_md5 };
        let put = BufferedPut { call, digests, checksum: *checksum };
        match self.target {
            WriteTarget::Object => self.store.put_object(&self.context, &self.address, put, identified).await,
            WriteTarget::Part { ref upload, number, .. } => {
                let part = PartAddress { address: &self.address, upload, number };
                self.store.put_part(&self.context, part, put).await
            }
        }
    }

    /// Evaluates the error of a streamed request, which cannot be retried here: it becomes retryable if the cause was
    /// corrected.
    async fn evaluate_failure(&mut self, sent: SentWith, headers: StreamedHeaders, error: Error) -> Error {
        let error = self.store.learn_from_failure(headers, error);
        self.store.correct_after_failure(&self.context, self.address.bucket.as_str(), sent, error).await
    }

    /// Adds the ETag of this write to its response, which has none.
    async fn add_missing_etag(&mut self, head: &mut ResponseHead, written: &WrittenBody) -> Result<()> {
        let (store, context, address) = (&self.store, &self.context, &self.address);
        match &self.target {
            WriteTarget::Object => store.add_missing_etag(context, address, head, written).await,
            WriteTarget::Part { upload, number, .. } => {
                let part = PartAddress { address, upload, number: *number };
                store.add_missing_part_etag(context, part, head, written).await
            }
        }
    }

    const fn is_object(&self) -> bool {
        matches!(self.target, WriteTarget::Object)
    }

    /// Returns true if a checksum is sent to the store: false for a part of an upload without checksums, and while
    /// checksum headers are omitted.
    fn sends_checksum(&self) -> bool {
        !self.omits_checksum && !matches!(self.target, WriteTarget::Part { algorithm: None, .. })
    }
}

#[async_trait::async_trait]
impl Staged for StagedWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.context.check()?;
        self.progress.start_write()?;
        self.append(bytes).await?;
        self.progress.end_write();
        Ok(())
    }

    async fn commit(mut self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.context.check()?;
        self.progress.check_complete()?;
        let computed: Vec<Checksum> =
            std::mem::take(&mut self.hashers).into_iter().map(Hasher::finish).collect();
        let md5: Option<[u8; 16]> = self.md5.take().map(|md5| md5.finalize().into());
        let mut expected = expected.with_default_size(self.request.size);
        expected.checksums.extend(self.request.checksum);
        expected.verify(self.progress.written_bytes(), md5, &computed)?;
        let Some(checksum) = computed.first().copied() else {
            unreachable!("`new` adds at least one algorithm")
        };
        let content_md5 = expected.md5.or(md5.filter(|_| self.omits_checksum));
        let head = match std::mem::replace(&mut self.mode, WriteMode::Buffered(Vec::new())) {
            WriteMode::Parts(parts) => {
                return parts.commit(self.request.precondition, checksum, computed).await;
            }
            WriteMode::Buffered(pieces) => self.put_buffered(pieces, &checksum, content_md5).await?,
            WriteMode::BufferedCopy(mut buffer) => {
                self.put_buffered(vec![buffer.take()], &checksum, content_md5).await?
            }
            WriteMode::Streamed(Some(mut streaming), waiting) => {
                let (sent, headers) = (streaming.sent_with.clone(), streaming.headers(self.omission));
                let headers_with_id = streaming.headers_with_id.take();
                let write_id = headers_with_id.as_ref().and_then(|headers| headers.get(WRITE_ID)).cloned();
                let identified = headers_with_id.and_then(|headers| {
                    IdentifiedWrite::from_headers(&headers, self.progress.written_bytes(), checksum)
                });
                let outcome = streaming.request.outcome();
                let resolved = match Self::finish_streaming(streaming, waiting, &checksum).await {
                    Err(e) if self.is_object() && outcome.is_unknown() => {
                        let guard = ChangeGuard::new(&self.store, &self.context, &self.address.bucket);
                        let identified = identified.as_ref();
                        // Boxed, because it is rarely needed.
                        Box::pin(self.store.resolve_unknown_outcome(&self.address, &guard, identified, e))
                            .await
                    }
                    finished => finished,
                };
                let mut head = match resolved {
                    Ok(head) => head,
                    Err(e) => return Err(self.evaluate_failure(sent, headers, e).await),
                };
                if self.is_object() {
                    self.store.observe_versioning(&self.address.bucket, &head.headers);
                }
                self.store.set_dialect(Dialect::detect(&head.headers));
                if let Some(omission) = self.omission {
                    self.store.record_omission_outcome(RequestKind::Write, omission, None);
                }
                let was_sent = self.request.checksum.is_some() && self.sends_checksum();
                let mut checked = self.store.check_response_checksum(&head.headers, &checksum, was_sent);
                if checked.is_ok() && lacks_etag(&head) {
                    let size = self.progress.written_bytes();
                    let written = WrittenBody { size, checksum, md5, write_id };
                    // Boxed, because it is rarely needed.
                    checked = Box::pin(self.add_missing_etag(&mut head, &written)).await;
                }
                if let Some(md5) = md5.filter(|_| self.omits_checksum) {
                    let sent = SentMd5 { md5, is_header: false, checksum };
                    checked = checked.and_then(|()| self.store.check_response_etag(&head.headers, &sent));
                }
                match self.is_object() {
                    true => {
                        self.store.after_change(&self.context, &self.address.bucket, checked).await?;
                    }
                    false => checked?,
                }
                head
            }
            WriteMode::Streamed(None, _) => {
                unreachable!("a streamed body has more than `MAX_BUFFERED_BYTES` bytes")
            }
        };
        let size = self.progress.written_bytes();
        let committed = match self.target {
            WriteTarget::Object => {
                let guard = ChangeGuard::new(&self.store, &self.context, &self.address.bucket);
                self.store.committed_object(&guard, &head.headers, size, computed).await?
            }
            WriteTarget::Part { .. } => self.store.build_committed(&head.headers, size, computed)?,
        };
        if let WriteTarget::Part { upload, number, .. } = &self.target {
            self.store.cache_part(upload, *number, &committed);
        }
        Ok((committed, head.observation))
    }
}

/// The PUT of a buffered body.
pub(super) struct BufferedPut<'a> {
    pub call: Call<'a>,
    /// The digests that the store verifies.
    pub digests: BodyDigests,
    /// The checksum of the body, whether it is sent or not.
    pub checksum: Checksum,
}

impl BufferedPut<'_> {
    /// The body, for comparison with what the store has.
    fn written_body(&self) -> WrittenBody {
        WrittenBody {
            size: self.call.payload.length(),
            checksum: self.checksum,
            md5: Some(self.call.payload.md5()),
            write_id: self.call.headers.get(WRITE_ID).cloned(),
        }
    }
}

impl S3Store {
    /// Sends the PUT of a part. Returns the response, with the ETag of the part.
    pub(super) async fn put_part(
        &self,
        context: &Context,
        part: PartAddress<'_>,
        mut put: BufferedPut<'_>,
    ) -> Result<ResponseHead> {
        headers::write_body_digests(put.digests, &mut put.call.headers)?;
        let mut head = self.send(context, &put.call).await?.drain().await?;
        self.check_sent_digests(&head, &put)?;
        if lacks_etag(&head) {
            Box::pin(self.add_missing_part_etag(context, part, &mut head, &put.written_body())).await?;
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
        headers::write_body_digests(put.digests, &mut put.call.headers)?;
        let guard = ChangeGuard::new(self, context, &address.bucket);
        let mut head = match self.send_change(&put.call, &guard).await {
            Err(e) => {
                return self.resolve_failed_call(address, &put.call, &guard, identified.as_ref(), e).await;
            }
            Ok(head) => head,
        };
        self.observe_versioning(&address.bucket, &head.headers);
        let mut checked = self.check_sent_digests(&head, &put);
        if checked.is_ok() && lacks_etag(&head) {
            checked = Box::pin(self.add_missing_etag(context, address, &mut head, &put.written_body())).await;
        }
        self.after_change(context, &address.bucket, checked).await?;
        Ok(head)
    }

    /// The result of a check after a successful write of an object. Its error is final if a retry would create another
    /// version.
    async fn after_change(&self, context: &Context, bucket: &BucketName, checked: Result<()>) -> Result<()> {
        match checked {
            Err(e) => Err(ChangeGuard::new(self, context, bucket).error_after_change(e).await),
            Ok(()) => Ok(()),
        }
    }

    /// Compares the digests of a buffered body with those in the response to its PUT. The store may have computed a
    /// checksum itself.
    fn check_sent_digests(&self, head: &ResponseHead, put: &BufferedPut<'_>) -> Result<()> {
        let was_sent = put.digests.checksum.is_some() && head.omitted_checksums.is_none();
        self.check_response_checksum(&head.headers, &put.checksum, was_sent)?;
        let md5 = head.omitted_checksums.and_then(|omitted| omitted.md5.or(put.digests.md5));
        let sent = md5.map(|md5| SentMd5 { md5, is_header: true, checksum: put.checksum });
        sent.map_or(Ok(()), |sent| self.check_response_etag(&head.headers, &sent))
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
