//! Staged writes. A small body is buffered, and becomes one object with the commit. A larger body is written into
//! segments as it arrives; the manifest is written with the commit.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{DATE, LAST_MODIFIED};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{StageRequest, Staged};
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, Context, ETag, Metadata, Observation, Timestamp,
};

use super::headers::Kept;
use super::parts::Record;
use super::replace::Content;
use super::segments::{Segment, Segments};
use super::{MOST_OBJECT_BYTES, SwiftStore, names};
use crate::remote::fields::{date, generation};

/// Objects and parts up to this size are buffered, so that they can be retried.
const MAX_BUFFERED_BYTES: u64 = 256 << 10;

/// The destination of a write.
pub(super) enum Target {
    Object,
    /// A part, with the checksum algorithm of its upload.
    Part {
        upload: UploadId,
        number: PartNumber,
        algorithm: Algorithm,
    },
}

/// A write that is not committed yet.
pub(super) struct StagedWrite {
    store: Arc<SwiftStore>,
    context: Context,
    address: Address,
    target: Target,
    metadata: Metadata,
    /// The declared size, if any.
    length: Option<u64>,
    /// The id of its data in the companion.
    id: String,
    hashers: Vec<Hasher>,
    md5: Md5,
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
    /// Written into segments as they arrive.
    Sent(Box<Segments>),
}

impl StagedWrite {
    pub fn new(
        store: Arc<SwiftStore>,
        context: &Context,
        address: &Address,
        target: Target,
        request: StageRequest,
    ) -> Result<Self> {
        let mut algorithms = request.algorithms;
        let needed = match &target {
            Target::Object => algorithms.is_empty().then_some(Algorithm::Crc64Nvme),
            Target::Part { algorithm, .. } => Some(*algorithm).filter(|needed| !algorithms.contains(needed)),
        };
        algorithms.extend(needed);
        if matches!(target, Target::Part { .. }) && request.size.is_some_and(|size| size > MOST_OBJECT_BYTES)
        {
            return Err(Error::new(Reason::EntityTooLarge, "a part is limited to 5 GiB"));
        }
        Ok(Self {
            id: names::unique(store.clock().wall())?,
            store,
            context: context.clone(),
            address: address.clone(),
            target,
            metadata: request.metadata,
            length: request.size,
            hashers: algorithms.into_iter().map(Hasher::new).collect(),
            md5: Md5::new(),
            size: 0,
            way: WriteMode::Gathered(Vec::new()),
            is_torn: false,
        })
    }

    fn segments(&self) -> Segments {
        let (prefix, most) = match &self.target {
            Target::Object => (names::data(&self.id), self.store.segment_bytes),
            Target::Part { upload, number, .. } => {
                (format!("{}{:05}-{}-", names::data(&upload.0), number.get(), self.id), MOST_OBJECT_BYTES)
            }
        };
        Segments::new(self.store.clone(), &self.context, &self.address.bucket, prefix, most, self.length)
    }

    async fn take_in(&mut self, bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        if let Some(declared) = self.length.filter(|declared| self.size > *declared) {
            let why = format!("the body has at least {} bytes, but {declared} were declared", self.size);
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        if matches!(self.target, Target::Part { .. }) && self.size > MOST_OBJECT_BYTES {
            return Err(Error::new(Reason::EntityTooLarge, "a part is limited to 5 GiB"));
        }
        self.hashers.iter_mut().for_each(|hasher| hasher.update(&bytes));
        if let WriteMode::Gathered(pieces) = &mut self.way {
            if self.size <= MAX_BUFFERED_BYTES {
                self.md5.update(&bytes);
                pieces.push(bytes);
                return Ok(());
            }
            let buffered = std::mem::take(pieces);
            let mut segments = self.segments();
            let mut before = Md5::new();
            for piece in buffered {
                segments.write(piece.clone(), &before).await?;
                before.update(&piece);
            }
            self.way = WriteMode::Sent(Box::new(segments));
        }
        if let WriteMode::Sent(segments) = &mut self.way {
            segments.write(bytes.clone(), &self.md5).await?;
            self.md5.update(&bytes);
        }
        Ok(())
    }

    async fn commit_object(
        self,
        md5: [u8; 16],
        checksums: Vec<Checksum>,
    ) -> Result<(Committed, Observation)> {
        let Self { store, context, address, metadata, id, size, way, .. } = self;
        let etag = ETag::from_md5(&md5);
        let scope = ChecksumScope::FullObject;
        let mut kept = Kept { metadata, checksums: checksums.clone(), ..Kept::default() };
        let (headers, observation) = match way {
            WriteMode::Gathered(pieces) => {
                store.put(&context, &address, kept, Content::Bytes(pieces)).await?
            }
            WriteMode::Sent(segments) => {
                let whole = segments.finish(&self.md5).await?;
                (kept.etag, kept.write) = (Some(etag.clone()), Some(id));
                let segments = whole.keep();
                let content = Content::Segments(segments.clone());
                let put = store.put(&context, &address, kept, content).await;
                store.settle(&context, &address, &segments, &put).await;
                put?
            }
        };
        let modified = store.modified(&headers)?;
        let generation = generation(modified, etag.as_str());
        Ok((Committed { etag, size, modified, generation, checksums, scope }, observation))
    }

    async fn commit_part(self, md5: [u8; 16], checksums: Vec<Checksum>) -> Result<(Committed, Observation)> {
        let mut segments = self.segments();
        let Self { store, context, address, target, size, way, .. } = self;
        let Target::Part { upload, number, .. } = target else {
            unreachable!("`commit_part` is called for parts only")
        };
        let whole = match way {
            WriteMode::Gathered(pieces) => {
                let mut before = Md5::new();
                for piece in pieces {
                    segments.write(piece.clone(), &before).await?;
                    before.update(&piece);
                }
                segments.finish(&before).await?
            }
            WriteMode::Sent(segments) => segments.finish(&self.md5).await?,
        };
        let etag = ETag::from_md5(&md5);
        let segments = whole.keep();
        let segment = segments.first().map(|segment| segment.name.clone());
        let record = Record { number, size, md5, checksums: checksums.clone(), segment };
        let put = store.put_record(&context, &address, &upload, &record).await;
        store.settle(&context, &address, &segments, &put).await;
        let modified = put?;
        let generation = generation(modified, etag.as_str());
        let scope = ChecksumScope::FullObject;
        Ok((Committed { etag, size, modified, generation, checksums, scope }, Observation::default()))
    }

    fn check_whole(&self) -> Result<()> {
        if self.is_torn {
            let why = "an earlier write failed or was cancelled; stage the object again";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
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
        let hashers = std::mem::take(&mut self.hashers);
        let computed: Vec<Checksum> = hashers.into_iter().map(Hasher::finish).collect();
        let md5: [u8; 16] = self.md5.clone().finalize().into();
        expected.with_default_size(self.length).verify(self.size, Some(md5), &computed)?;
        match self.target {
            Target::Object => self.commit_object(md5, computed).await,
            Target::Part { .. } => self.commit_part(md5, computed).await,
        }
    }
}

impl SwiftStore {
    /// Deletes segments if the request that should refer to them was definitely rejected. After any other failure, and
    /// if the commit was cancelled, the request may have taken effect, so the segments remain.
    async fn settle<T>(
        &self,
        context: &Context,
        address: &Address,
        segments: &[Segment],
        outcome: &Result<T>,
    ) {
        match outcome {
            Err(e) if !e.kind().is_retryable() => {}
            _ => return,
        }
        let companion = names::companion(&address.bucket);
        let names: Vec<String> = segments.iter().map(|segment| segment.name.clone()).collect();
        if let Err(e) = self.delete_all(context, &companion, names).await {
            tracing::warn!(error = %e, "cannot delete the segments of a rejected write");
        }
    }

    /// The modification time in the response to a write. If a newer write exists already, Swift responds 202 without
    /// `Last-Modified`; the response's `Date` is close to it.
    pub(super) fn modified(&self, headers: &HeaderMap) -> Result<Timestamp> {
        let modified = date(headers, &LAST_MODIFIED)?.or(date(headers, &DATE)?);
        Ok(modified.unwrap_or_else(|| self.clock().wall()))
    }
}
