//! Writing. What is small, or of a size that nobody said, is gathered: it ends as one request that can be sent again,
//! or becomes parts of an upload. Of what is larger the request is under way while bytes come, and its last bytes wait
//! for the commit.

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
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, Context, Observation, Precondition};

use super::S3Store;
use super::chunks::{self, Chunks};
use super::headers;
use super::parts::Parts;
use super::protocol::TRAILER;
use crate::remote::client::Call;
use crate::remote::client::Subject;
use crate::remote::fields;
use crate::remote::fields::generation;
use crate::remote::payload::Held;
use crate::remote::query::Query;
use crate::remote::sending::Sending;

/// An answer that says nothing but headers.
const MOST_ANSWER_BYTES: usize = 64 << 10;
/// Objects and parts up to this size are gathered, so that they can be sent again.
const MOST_GATHERED: u64 = 256 << 10;
/// S3 takes no larger object in one request.
const MOST_PUT: u64 = 5 << 30;

/// What a write becomes.
pub(super) enum Target {
    Object,
    /// With the checksum that the upload's parts carry.
    Part(UploadId, PartNumber, Option<Algorithm>),
}

/// A write that is not committed.
pub(super) struct StagedWrite {
    store: Arc<S3Store>,
    context: Context,
    address: Address,
    target: Target,
    request: StageRequest,
    /// Of the whole, the one that the store keeps first.
    hashers: Vec<Hasher>,
    md5: Option<Md5>,
    /// Bytes so far.
    size: u64,
    way: Way,
    /// A write before failed or was given up: bytes are missing.
    is_torn: bool,
}

/// The way that bytes take.
enum Way {
    /// They wait for the commit.
    Gathered(Vec<Bytes>),
    /// They are sent as they come, from the first one on; the latest waits.
    Sent(Option<Streaming>, Bytes),
    /// They are sent part by part.
    Parts(Parts),
}

/// A request under way, with the frame around its body where a checksum follows it.
struct Streaming {
    sending: Sending,
    chunks: Option<Chunks>,
}

impl Streaming {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.chunks {
            None if bytes.is_empty() => Ok(()),
            None => self.sending.write(bytes).await,
            Some(chunks) => {
                for piece in chunks.frame(bytes) {
                    self.sending.write(piece).await?;
                }
                Ok(())
            }
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
        let way = match (request.size, &target) {
            (Some(size), _) if size <= MOST_GATHERED => Way::Gathered(Vec::new()),
            (Some(size), _) if size <= MOST_PUT => Way::Sent(None, Bytes::new()),
            (Some(_), Target::Part(..)) => {
                return Err(Error::new(Reason::EntityTooLarge, "S3 takes parts of at most 5 GiB"));
            }
            (None, Target::Part(..)) => Way::Gathered(Vec::new()),
            (_, Target::Object) => Way::Parts(Parts::new(store.clone(), context, address, &request)),
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
        if self.request.size.is_some_and(|said| self.size > said) {
            let (size, said) = (self.size, self.request.size.unwrap_or_default());
            return Err(Error::new(
                Reason::InvalidRequest,
                format!("the body has {size} bytes or more, not {said}"),
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
            Way::Gathered(pieces) => {
                if self.size > self.store.part_bytes as u64 {
                    let most = self.store.part_bytes >> 20;
                    let why =
                        format!("of a part whose size is not said beforehand at most {most} MiB are taken");
                    return Err(Error::new(Reason::EntityTooLarge, why));
                }
                pieces.push(bytes);
            }
            Way::Parts(parts) => parts.take_in(bytes).await?,
            Way::Sent(..) => self.send(bytes).await?,
        }
        Ok(())
    }

    /// Sends what waited, and lets these bytes wait.
    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        if let Way::Sent(None, _) = &self.way {
            let streaming = self.begin().await?;
            self.way = Way::Sent(Some(streaming), Bytes::new());
        }
        if let Way::Sent(Some(streaming), waiting) = &mut self.way {
            streaming.write(std::mem::replace(waiting, bytes)).await?;
        }
        Ok(())
    }

    /// The checksum that the store is told, before it is known: for its algorithm and its length.
    fn told(&self) -> Checksum {
        Checksum::of(self.hashers.first().map_or(Algorithm::Crc64Nvme, Hasher::algorithm), b"")
    }

    /// The request, but its body and its checksum.
    fn call(&self) -> Result<Call<'_>> {
        let mut call = Call::object(Method::PUT, &self.address.bucket, self.address.key.as_str());
        match &self.target {
            Target::Object => {
                headers::write_metadata(&self.request.metadata, &mut call.headers)?;
                headers::write_precondition(&self.request.precondition, &mut call.headers)?;
                // Sent twice, a condition may fail on what the first one did.
                call.may_repeat = self.request.precondition == Precondition::None;
            }
            Target::Part(id, number, _) => {
                call.subject = Subject::Upload;
                call.query = part_query(id, *number);
            }
        }
        Ok(call)
    }

    async fn begin(&mut self) -> Result<Streaming> {
        let length = self.request.size.unwrap_or_default();
        let mut call = self.call()?;
        let said =
            self.request.checksum.filter(|said| self.tells() && said.algorithm() == self.told().algorithm());
        let (on_wire, chunks) = if self.store.takes_trailers() {
            let told = self.told();
            call.headers.insert(TRAILER, HeaderValue::from_static(told.algorithm().header()));
            call.headers.insert("x-amz-decoded-content-length", length.into());
            let encodings = match call.headers.get(CONTENT_ENCODING) {
                Some(own) => [b"aws-chunked,", own.as_bytes()].concat(),
                None => b"aws-chunked".to_vec(),
            };
            let encodings = HeaderValue::from_bytes(&encodings).map_err(|e| {
                Error::with_source(Reason::InvalidArgument, "the content encoding cannot be sent", e)
            })?;
            call.headers.insert(CONTENT_ENCODING, encodings);
            let on_wire = Chunks::length(length, &told);
            (on_wire, Some(Chunks::new(length)))
        } else {
            headers::write_promises(said, None, &mut call.headers)?;
            (length, None)
        };
        let sending = self.store.client.begin(&self.context, &call, Some(on_wire)).await?;
        Ok(Streaming { sending, chunks })
    }

    /// The rest of a request that is under way.
    async fn end(streaming: Streaming, waiting: Bytes, checksum: &Checksum) -> Result<Answered> {
        let mut streaming = streaming;
        streaming.write(waiting).await?;
        if streaming.chunks.is_some() {
            streaming.sending.write(Bytes::from(chunks::trailer(checksum))).await?;
        }
        let mut answer = streaming.sending.finish().await?;
        let headers = std::mem::take(&mut answer.head.headers);
        let observation = answer.observation.clone();
        answer.collect(MOST_ANSWER_BYTES).await?;
        Ok((headers, observation))
    }

    async fn end_gathered(
        &mut self,
        pieces: Vec<Bytes>,
        checksum: &Checksum,
        expected: &Expected,
    ) -> Result<Answered> {
        let mut call = self.call()?;
        call.payload = Held::of(pieces);
        let md5 = expected.md5;
        self.store.put(&self.context, call, Some(*checksum).filter(|_| self.tells()), md5).await
    }

    /// Whether the store is told a checksum: not of a part whose upload carries none.
    fn tells(&self) -> bool {
        !matches!(self.target, Target::Part(_, _, None))
    }
}

/// The headers of an answer that says nothing more.
pub(super) type Answered = (HeaderMap, Observation);

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
        let expected = expected.or_size(self.request.size);
        let mut expected = expected;
        expected.checksums.extend(self.request.checksum);
        expected.verify(self.size, md5, &computed)?;
        let Some(checksum) = computed.first().copied() else { unreachable!("there is one at least") };
        let (answered, observation) = match std::mem::replace(&mut self.way, Way::Gathered(Vec::new())) {
            Way::Parts(parts) => return parts.commit(self.request.precondition, checksum, computed).await,
            Way::Gathered(pieces) => self.end_gathered(pieces, &checksum, &expected).await?,
            Way::Sent(Some(streaming), waiting) => {
                let answered = Self::end(streaming, waiting, &checksum).await?;
                if self.request.checksum.is_some() && self.tells() {
                    self.store.learn_trailers(answered.0.contains_key(checksum.algorithm().header()));
                }
                answered
            }
            Way::Sent(None, _) => unreachable!("there are more bytes than are gathered"),
        };
        Ok((self.store.committed(&answered, self.size, computed)?, observation))
    }
}

impl StagedWrite {
    fn check_whole(&self) -> Result<()> {
        if self.is_torn {
            let why = "a write before this failed or was given up; stage the object anew";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }
}

impl S3Store {
    /// Sends a PUT whose body is at hand, with what the store is to compare it with; answers the headers.
    pub(super) async fn put(
        &self,
        context: &Context,
        mut call: Call<'_>,
        checksum: Option<Checksum>,
        md5: Option<[u8; 16]>,
    ) -> Result<Answered> {
        headers::write_promises(checksum, md5, &mut call.headers)?;
        let mut answer = self.client.send(context, &call).await?;
        let headers = std::mem::take(&mut answer.head.headers);
        let observation = answer.observation.clone();
        answer.collect(MOST_ANSWER_BYTES).await?;
        if let Some(checksum) = checksum {
            self.learn_trailers(headers.contains_key(checksum.algorithm().header()));
        }
        Ok((headers, observation))
    }

    /// What a write became. S3 does not say when it was written: the time of the answer is close to it.
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

/// Which part of which upload.
pub(super) fn part_query(upload: &UploadId, number: PartNumber) -> Query {
    Query::default().with("partNumber", &number.get().to_string()).with("uploadId", &upload.0)
}
