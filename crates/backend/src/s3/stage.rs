//! Staged writes. A body that is small or of unknown size is buffered: it becomes one request that can be retried, or
//! the parts of an upload. A larger body is streamed: its request is in flight while bytes arrive, and the last buffer
//! is held back until the commit.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, DATE};
use http::{HeaderMap, HeaderValue, Method};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{StageRequest, Staged};
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, Context, Observation};

use super::chunks::{Chunks, Frame, SignedChunks};
use super::dialect::Dialect;
use super::doubt::Named;
use super::headers::{self, Answered, WRITE};
use super::parts::{Gathered, Parts, part_query};
use super::places::Sent;
use super::protocol::{DECODED_LENGTH, TRAILER};
use super::{Framing, S3Store};
use crate::remote::client::Call;
use crate::remote::client::Subject;
use crate::remote::fields;
use crate::remote::fields::generation;
use crate::remote::payload::Held;
use crate::remote::sending::Sending;

/// Longest body of a response of which only the headers matter.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Objects and parts up to this size are buffered, so that they can be retried.
const MAX_BUFFERED_BYTES: u64 = 256 << 10;
/// S3's maximum size of an object in one request.
const MAX_PUT_BYTES: u64 = 5 << 30;

/// The destination of a write.
pub(super) enum Target {
    Object,
    /// A part, with the checksum algorithm of its upload, if any.
    Part(UploadId, PartNumber, Option<Algorithm>),
}

/// A write that is not committed yet.
pub(super) struct StagedWrite {
    store: Arc<S3Store>,
    context: Context,
    address: Address,
    target: Target,
    request: StageRequest,
    /// Hashers of the whole body; the first is for the checksum that the store verifies.
    hashers: Vec<Hasher>,
    md5: Option<Md5>,
    /// Bytes written so far.
    size: u64,
    way: WriteMode,
    /// An earlier write failed or was cancelled: bytes are missing.
    is_torn: bool,
}

/// How the bytes of a write are handled until the commit.
enum WriteMode {
    /// Buffered until the commit.
    Gathered(Vec<Bytes>),
    /// Like `Gathered`, but copied, so that the caller's buffers can be reused.
    Copied(Gathered),
    /// Streamed: the request starts with the first buffer; the latest buffer is held back.
    Sent(Option<Streaming>, Bytes),
    /// Sent part by part.
    Parts(Parts),
}

/// A request in flight, with the framing of its body, if any.
struct Streaming {
    sending: Sending,
    sent: Sent,
    frame: Option<Frame>,
    /// Its headers, if they contain a write id.
    named: Option<HeaderMap>,
}

impl Streaming {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.frame {
            None if bytes.is_empty() => Ok(()),
            None => self.sending.write(bytes).await,
            Some(frame) => {
                for piece in frame.frame(bytes) {
                    self.sending.write(piece).await?;
                }
                Ok(())
            }
        }
    }

    const fn framing(&self) -> Framing {
        match self.frame {
            Some(Frame::Signed(_)) => Framing::SignedChunks,
            Some(Frame::Trailing(_)) => Framing::Trailer,
            None => Framing::Bare,
        }
    }
}

impl StagedWrite {
    pub fn new(
        store: Arc<S3Store>,
        context: &Context,
        address: &Address,
        target: Target,
        request: StageRequest,
    ) -> Result<Self> {
        let mut algorithms = request.algorithms.clone();
        if let Target::Part(.., Some(algorithm)) = target {
            algorithms.retain(|other| *other != algorithm);
            algorithms.insert(0, algorithm);
        }
        if algorithms.is_empty() {
            algorithms.push(Algorithm::Crc64Nvme);
        }
        let may_tell = !matches!(target, Target::Part(_, _, None));
        let is_whole = store.framing(may_tell) == Framing::Whole;
        let way = match (request.size, &target) {
            (Some(size), _) if size <= MAX_BUFFERED_BYTES => WriteMode::Gathered(Vec::new()),
            (_, Target::Object) if is_whole => {
                WriteMode::Parts(Parts::new(store.clone(), context, address, &request))
            }
            (Some(size), Target::Part(..)) if is_whole && size > store.part_bytes as u64 => {
                let (size, max_mib) = (size >> 20, store.part_bytes >> 20);
                let why = format!(
                    "the store does not support signed chunks, so a part of {size} MiB would be sent unsigned over \
                     plain HTTP; use https, or parts of at most {max_mib} MiB"
                );
                return Err(Error::new(Reason::EntityTooLarge, why));
            }
            (Some(_), Target::Part(..)) if is_whole => WriteMode::Copied(Gathered::default()),
            (Some(size), _) if size <= MAX_PUT_BYTES => WriteMode::Sent(None, Bytes::new()),
            (Some(_), Target::Part(..)) => {
                return Err(Error::new(Reason::EntityTooLarge, "a part is limited to 5 GiB"));
            }
            (None, Target::Part(..)) => WriteMode::Gathered(Vec::new()),
            (_, Target::Object) => WriteMode::Parts(Parts::new(store.clone(), context, address, &request)),
        };
        Ok(Self {
            store,
            context: context.clone(),
            address: address.clone(),
            target,
            hashers: algorithms.into_iter().map(Hasher::new).collect(),
            md5: request.verify_md5.then(Md5::new),
            request,
            size: 0,
            way,
            is_torn: false,
        })
    }

    async fn take_in(&mut self, bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        if self.request.size.is_some_and(|declared| self.size > declared) {
            let (size, declared) = (self.size, self.request.size.unwrap_or_default());
            return Err(Error::new(
                Reason::InvalidRequest,
                format!("the body has at least {size} bytes, but {declared} were declared"),
            ));
        }
        self.hashers.iter_mut().for_each(|hasher| hasher.update(&bytes));
        if let Some(md5) = &mut self.md5 {
            md5.update(&bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        match &mut self.way {
            WriteMode::Gathered(pieces) => {
                if self.size > self.store.part_bytes as u64 {
                    let max_mib = self.store.part_bytes >> 20;
                    let why = format!("a part of unknown length is limited to {max_mib} MiB");
                    return Err(Error::new(Reason::EntityTooLarge, why));
                }
                pieces.push(bytes);
            }
            WriteMode::Copied(gathered) => gathered.add(&self.store, &bytes)?,
            WriteMode::Parts(parts) => parts.take_in(bytes).await?,
            WriteMode::Sent(..) => self.send(bytes).await?,
        }
        Ok(())
    }

    /// Sends the held-back buffer, and holds back this one.
    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        if let WriteMode::Sent(None, _) = &self.way {
            let streaming = self.begin().await?;
            self.way = WriteMode::Sent(Some(streaming), Bytes::new());
        }
        if let WriteMode::Sent(Some(streaming), waiting) = &mut self.way {
            let (sent, framing) = (streaming.sent, streaming.framing());
            if let Err(e) = streaming.write(std::mem::replace(waiting, bytes)).await {
                return Err(self.explain(sent, framing, e).await);
            }
        }
        Ok(())
    }

    /// A placeholder for the checksum sent to the store, with its algorithm and length.
    fn told(&self) -> Checksum {
        Checksum::compute(self.hashers.first().map_or(Algorithm::Crc64Nvme, Hasher::algorithm), b"")
    }

    /// The request without its body and checksum.
    fn call(&self) -> Result<Call<'_>> {
        let mut call = Call::object(Method::PUT, &self.address.bucket, self.address.key.as_str());
        match &self.target {
            Target::Object => {
                headers::write_metadata(&self.request.metadata, &mut call.headers)?;
                headers::write_precondition(&self.request.precondition, &mut call.headers)?;
                let StageRequest { precondition, metadata, .. } = &self.request;
                call.may_repeat = Named::write(precondition, metadata, &mut call.headers)?;
            }
            Target::Part(id, number, _) => {
                call.subject = Subject::Upload;
                call.query = part_query(id, *number);
            }
        }
        Ok(call)
    }

    /// Starts a streamed request.
    async fn begin(&mut self) -> Result<Streaming> {
        let length = self.request.size.unwrap_or_default();
        let mut call = self.call()?;
        let declared = self
            .request
            .checksum
            .filter(|declared| self.tells() && declared.algorithm() == self.told().algorithm());
        let framing = self.store.framing(self.tells());
        let on_wire = match framing {
            Framing::Trailer => {
                let told = self.told();
                call.headers.insert(TRAILER, HeaderValue::from_static(told.algorithm().header()));
                Chunks::length(length, &told)
            }
            Framing::SignedChunks => {
                headers::write_promises(declared, None, &mut call.headers)?;
                SignedChunks::length(length)
            }
            Framing::Bare => {
                headers::write_promises(declared, None, &mut call.headers)?;
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
                Some(own) => [b"aws-chunked,", own.as_bytes()].concat(),
                None => b"aws-chunked".to_vec(),
            };
            let encodings = HeaderValue::from_bytes(&encodings).map_err(|e| {
                Error::with_source(Reason::InvalidArgument, "the content encoding cannot be sent", e)
            })?;
            call.headers.insert(CONTENT_ENCODING, encodings);
        }
        let named = call.headers.contains_key(WRITE).then(|| call.headers.clone());
        let (mut sending, sent) = self.store.begin(&self.context, &call, on_wire).await?;
        let frame = match (framing, sending.take_signer()) {
            (Framing::Trailer, _) => Some(Frame::Trailing(Chunks::new(length))),
            (_, Some(signer)) => Some(Frame::Signed(SignedChunks::new(length, signer))),
            (_, None) => None,
        };
        Ok(Streaming { sending, sent, frame, named })
    }

    /// Finishes a streamed request: sends the held-back buffer and the end of the framing, and reads the response.
    async fn end(streaming: Streaming, waiting: Bytes, checksum: &Checksum) -> Result<Answered> {
        let mut streaming = streaming;
        streaming.write(waiting).await?;
        if let Some(frame) = &mut streaming.frame {
            let end = frame.end(checksum);
            streaming.sending.write(end).await?;
        }
        let mut answer = streaming.sending.finish().await?;
        let headers = std::mem::take(&mut answer.head.headers);
        let observation = answer.observation.clone();
        answer.collect(MAX_RESPONSE_BYTES).await?;
        Ok((headers, observation))
    }

    /// Sends a buffered body as one request.
    async fn end_gathered(
        &mut self,
        pieces: Vec<Bytes>,
        checksum: &Checksum,
        expected: &Expected,
    ) -> Result<Answered> {
        let mut call = self.call()?;
        call.payload = Held::of(pieces);
        let named = Named::read(&call.headers, self.size, *checksum);
        let told = Some(*checksum).filter(|_| self.tells());
        let answered =
            self.store.put(&self.context, &self.address, call, (told, expected.md5), named).await?;
        if told.is_none() {
            // The store may have computed one itself.
            self.store.learn_by_answer(&answered.0, checksum, false)?;
        }
        Ok(answered)
    }

    /// Converts the error of a streamed request, which cannot be retried here.
    async fn explain(&mut self, sent: Sent, framing: Framing, error: Error) -> Error {
        let error = self.store.learn_framing(framing, error);
        self.store.explain(&self.context, self.address.bucket.as_str(), sent, error).await
    }

    /// Returns true if a checksum is sent to the store: false for a part of an upload without checksums.
    fn tells(&self) -> bool {
        !matches!(self.target, Target::Part(_, _, None))
    }
}

#[async_trait::async_trait]
impl Staged for StagedWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.context.check()?;
        self.check_whole()?;
        self.is_torn = true;
        self.take_in(bytes).await?;
        self.is_torn = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.context.check()?;
        self.check_whole()?;
        let computed: Vec<Checksum> =
            std::mem::take(&mut self.hashers).into_iter().map(Hasher::finish).collect();
        let md5: Option<[u8; 16]> = self.md5.take().map(|md5| md5.finalize().into());
        let expected = expected.with_default_size(self.request.size);
        let mut expected = expected;
        expected.checksums.extend(self.request.checksum);
        expected.verify(self.size, md5, &computed)?;
        let Some(checksum) = computed.first().copied() else {
            unreachable!("`new` adds at least one algorithm")
        };
        let (answered, observation) = match std::mem::replace(&mut self.way, WriteMode::Gathered(Vec::new()))
        {
            WriteMode::Parts(parts) => {
                return parts.commit(self.request.precondition, checksum, computed).await;
            }
            WriteMode::Gathered(pieces) => self.end_gathered(pieces, &checksum, &expected).await?,
            WriteMode::Copied(mut gathered) => {
                self.end_gathered(vec![gathered.take()], &checksum, &expected).await?
            }
            WriteMode::Sent(Some(mut streaming), waiting) => {
                let (sent, framing) = (streaming.sent, streaming.framing());
                let named = streaming.named.take();
                let named = named.and_then(|headers| Named::read(&headers, self.size, checksum));
                let answered = match (Self::end(streaming, waiting, &checksum).await, named) {
                    (Ok(answered), _) => answered,
                    (Err(e), Some(named)) if e.kind() != ErrorKind::Precondition => {
                        let (context, address) = (self.context.clone(), self.address.clone());
                        let settled = self.store.settle_write(&context, &address, &named, e).await;
                        match settled {
                            Ok(answered) => answered,
                            Err(e) => return Err(self.explain(sent, framing, e).await),
                        }
                    }
                    (Err(e), _) => return Err(self.explain(sent, framing, e).await),
                };
                self.store.heed(Dialect::of(&answered.0));
                let was_told = self.request.checksum.is_some() && self.tells();
                self.store.learn_by_answer(&answered.0, &checksum, was_told)?;
                answered
            }
            WriteMode::Sent(None, _) => {
                unreachable!("a streamed body has more than `MAX_BUFFERED_BYTES` bytes")
            }
        };
        let committed = self.store.committed(&answered, self.size, computed)?;
        if let Target::Part(upload, number, _) = &self.target {
            self.store.remember_part(upload, *number, &committed);
        }
        Ok((committed, observation))
    }
}

impl StagedWrite {
    fn check_whole(&self) -> Result<()> {
        if self.is_torn {
            let why = "an earlier write failed or was cancelled; stage the object again";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }
}

impl S3Store {
    /// Sends a PUT with a buffered body and the checksum and MD5 that the store verifies. Returns the response headers.
    pub(super) async fn put(
        &self,
        context: &Context,
        address: &Address,
        mut call: Call<'_>,
        (checksum, md5): (Option<Checksum>, Option<[u8; 16]>),
        named: Option<Named>,
    ) -> Result<Answered> {
        headers::write_promises(checksum, md5, &mut call.headers)?;
        let mut answer = match self.send(context, &call).await {
            Err(e) => return self.settle_call(context, address, &call, named.as_ref(), e).await,
            Ok(answer) => answer,
        };
        let headers = std::mem::take(&mut answer.head.headers);
        let observation = answer.observation.clone();
        answer.collect(MAX_RESPONSE_BYTES).await?;
        if let Some(checksum) = checksum {
            self.learn_by_answer(&headers, &checksum, true)?;
        }
        Ok((headers, observation))
    }

    /// Builds the result of a write. S3 does not return the modification time; the response's `Date` is close to it.
    pub(super) fn committed(
        &self,
        answered: &HeaderMap,
        size: u64,
        checksums: Vec<Checksum>,
    ) -> Result<Committed> {
        let etag = fields::etag(answered)?;
        let modified = fields::date(answered, &DATE)?.unwrap_or_else(|| self.client.clock.wall());
        let generation = generation(modified, etag.as_str());
        Ok(Committed { etag, size, modified, generation, checksums, scope: ChecksumScope::FullObject })
    }
}
