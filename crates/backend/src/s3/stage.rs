//! Staged writes. A body that is small, of unknown size, or that cannot be streamed in a single request is buffered: it
//! becomes one request that can be retried, or the parts of an upload. Any other body is streamed: its request is in
//! flight while bytes arrive. The last buffer is held back until the commit, because the store completes the write once
//! it has the whole body: a write that is dropped, or that fails verification, must stay incomplete.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue, Method};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{StageRequest, Staged};
use tradewind_core::{Address, Algorithm, Checksum, Context, Observation};

use super::S3Store;
use super::ambiguous_outcome::IdentifiedWrite;
use super::aws_chunked::{FrameEncoder, SignedChunks, UnsignedChunks};
use super::buffered_put::BufferedPut;
use super::checksum_headers::{HeaderKind, Omission, WriteId, has_checksum_header};
use super::dialect::Dialect;
use super::etag_checks::SentMd5;
use super::etag_kinds::BodyId;
use super::framing::{Framing, StreamedHeaders};
use super::headers::{self, BodyDigests, WRITE_ID};
use super::missing_etag::{PartAddress, WrittenBody, lacks_etag};
use super::multipart_write::{MultipartWrite, PartBuffer, part_query};
use super::protocol::{DECODED_LENGTH, TRAILER};
use super::regions::SentWith;
use super::repeats::ChangeGuard;
use super::write_plan::{Transport, WritePlan, WriteTarget, checksum_algorithms};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::payload::BufferedBody;
use crate::remote::response::ResponseHead;
use crate::remote::streaming_request::StreamingRequest;
use crate::remote::write_progress::WriteProgress;

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
    plan: WritePlan,
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
    /// A checksum is in a header.
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
    const fn headers(&self, plan: &WritePlan) -> StreamedHeaders {
        let framing = match self.frame {
            Some(FrameEncoder::Signed(_)) => Framing::SignedChunks,
            Some(FrameEncoder::Trailing(_)) => Framing::Trailer,
            None => Framing::Unframed,
        };
        let WritePlan { omission, trailer_omission, .. } = *plan;
        StreamedHeaders { framing, has_checksum: self.has_checksum, omission, trailer_omission }
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
        let plan = store.plan_write(address, &target, &request)?;
        let mode = match plan.transport {
            Transport::Buffered => WriteMode::Buffered(Vec::new()),
            Transport::BufferedCopy => {
                let max_bytes = request.size.map_or(store.part_bytes, |size| size as usize);
                WriteMode::BufferedCopy(PartBuffer::new(max_bytes))
            }
            Transport::Streamed => WriteMode::Streamed(None, Bytes::new()),
            Transport::Parts => {
                WriteMode::Parts(MultipartWrite::new(store.clone(), context, address, &request))
            }
        };
        let algorithms = checksum_algorithms(&target, &request);
        Ok(Self {
            store,
            context: context.clone(),
            address: address.clone(),
            target,
            hashers: algorithms.into_iter().map(Hasher::new).collect(),
            md5: (request.verify_md5 || plan.computes_md5).then(Md5::new),
            plan,
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
            let (sent, headers) = (streaming.sent_with.clone(), streaming.headers(&self.plan));
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
            self.plan.sends_checksum && declared.algorithm() == self.checksum_placeholder().algorithm()
        });
        let declared = BodyDigests { checksum: declared, md5: None };
        let framing = self.store.choose_framing(self.plan.has_trailer);
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
        let has_checksum = framing != Framing::Trailer && has_checksum_header(&call.headers);
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
        let sent_checksum = Some(*checksum).filter(|_| self.plan.sends_checksum);
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
        let error = self.store.learn_from_failure(&self.write_id(), headers, error);
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

    /// The id of this write and of its retries.
    fn write_id(&self) -> WriteId {
        self.target.write_id(&self.address)
    }

    /// Records that the body was accepted in memory, although a retry of its streamed request would have had a trailer.
    fn record_buffered(&self) {
        let WritePlan { trailer_omission, .. } = self.plan;
        self.store.record_trial(HeaderKind::Trailer, &self.write_id(), trailer_omission, None);
    }

    /// The id of a part; `None` for an object.
    fn part_id(&self) -> Option<BodyId> {
        match &self.target {
            WriteTarget::Object => None,
            WriteTarget::Part { upload, number, .. } => Some(BodyId::of_part(upload, *number)),
        }
    }

    const fn is_object(&self) -> bool {
        matches!(self.target, WriteTarget::Object)
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
        let content_md5 = expected.md5;
        let head = match std::mem::replace(&mut self.mode, WriteMode::Buffered(Vec::new())) {
            WriteMode::Parts(parts) => {
                return parts.commit(self.request.precondition, checksum, computed).await;
            }
            WriteMode::Buffered(pieces) => self.put_buffered(pieces, &checksum, content_md5).await?,
            WriteMode::BufferedCopy(mut buffer) => {
                let head = self.put_buffered(vec![buffer.take()], &checksum, content_md5).await?;
                self.record_buffered();
                head
            }
            WriteMode::Streamed(Some(mut streaming), waiting) => {
                let (sent, headers) = (streaming.sent_with.clone(), streaming.headers(&self.plan));
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
                self.store.learn_from_success(&self.write_id(), headers);
                if let (WriteTarget::Part { upload, .. }, Some(Omission::Trial)) =
                    (&self.target, self.plan.omission)
                {
                    self.store.omit_checksums_of(upload);
                }
                let was_sent = self.request.checksum.is_some() && self.plan.sends_checksum;
                let mut checked = self.store.check_response_checksum(&head.headers, &checksum, was_sent);
                if checked.is_ok() && lacks_etag(&head) {
                    let size = self.progress.written_bytes();
                    let written = WrittenBody { size, checksum, md5, is_md5_verified: false, write_id };
                    // Boxed, because it is rarely needed.
                    checked = Box::pin(self.add_missing_etag(&mut head, &written)).await;
                }
                if let Some(md5) = md5.filter(|_| self.plan.lacks_checksum && checked.is_ok()) {
                    let (size, part) = (self.progress.written_bytes(), self.part_id());
                    let sent = SentMd5 { md5, is_header: false, checksum, size, part };
                    let (store, context, address) = (&self.store, &self.context, &self.address);
                    checked = store.check_response_etag(context, address, &head.headers, &sent).await;
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
