//! Writing. What is small is gathered and becomes one object with the commit. Of what is larger the bytes go into
//! segments while they come; what names them waits for the commit.

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

/// Objects and parts up to this size are gathered, so that they can be sent again.
const MOST_GATHERED: u64 = 256 << 10;

/// What a write becomes.
pub(super) enum Target {
    Object,
    /// With the checksum that the whole will be made of.
    Part {
        upload: UploadId,
        number: PartNumber,
        algorithm: Algorithm,
    },
}

/// A write that is not committed.
pub(super) struct StagedWrite {
    store: Arc<SwiftStore>,
    context: Context,
    address: Address,
    target: Target,
    metadata: Metadata,
    /// As was said.
    length: Option<u64>,
    /// The name of what it has in the companion.
    id: String,
    hashers: Vec<Hasher>,
    md5: Md5,
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
    /// They are sent as they come.
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
            return Err(Error::new(Reason::EntityTooLarge, "Swift takes parts of at most 5 GiB"));
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
            way: Way::Gathered(Vec::new()),
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
        if let Some(said) = self.length.filter(|said| self.size > *said) {
            let why = format!("the body has {} bytes or more, not {said}", self.size);
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        if matches!(self.target, Target::Part { .. }) && self.size > MOST_OBJECT_BYTES {
            return Err(Error::new(Reason::EntityTooLarge, "Swift takes parts of at most 5 GiB"));
        }
        self.hashers.iter_mut().for_each(|hasher| hasher.update(&bytes));
        if let Way::Gathered(pieces) = &mut self.way {
            if self.size <= MOST_GATHERED {
                self.md5.update(&bytes);
                pieces.push(bytes);
                return Ok(());
            }
            let gathered = std::mem::take(pieces);
            let mut segments = self.segments();
            let mut before = Md5::new();
            for piece in gathered {
                segments.write(piece.clone(), &before).await?;
                before.update(&piece);
            }
            self.way = Way::Sent(Box::new(segments));
        }
        if let Way::Sent(segments) = &mut self.way {
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
            Way::Gathered(pieces) => store.put(&context, &address, kept, Content::Bytes(pieces)).await?,
            Way::Sent(segments) => {
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
        let Target::Part { upload, number, .. } = target else { unreachable!("it is a part") };
        let whole = match way {
            Way::Gathered(pieces) => {
                let mut before = Md5::new();
                for piece in pieces {
                    segments.write(piece.clone(), &before).await?;
                    before.update(&piece);
                }
                segments.finish(&before).await?
            }
            Way::Sent(segments) => segments.finish(&self.md5).await?,
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
            let why = "a write before this failed or was given up; stage the object anew";
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
        expected.or_size(self.length).verify(self.size, Some(md5), &computed)?;
        match self.target {
            Target::Object => self.commit_object(md5, computed).await,
            Target::Part { .. } => self.commit_part(md5, computed).await,
        }
    }
}

impl SwiftStore {
    /// Deletes segments that a request was to refer to, where it was plainly refused. Any other failure, and a commit
    /// that is dropped, may come behind the change: then they stay.
    async fn settle<T>(
        &self,
        context: &Context,
        address: &Address,
        segments: &[Segment],
        referred: &Result<T>,
    ) {
        match referred {
            Err(e) if !e.kind().is_retryable() => {}
            _ => return,
        }
        let companion = names::companion(&address.bucket);
        let names: Vec<String> = segments.iter().map(|segment| segment.name.clone()).collect();
        if let Err(e) = self.delete_all(context, &companion, names).await {
            tracing::warn!(error = %e, "segments of a write that was refused are left in the store");
        }
    }

    /// When a write was done, as its answer says it. Where another one overtook it Swift answers 202 and no time; that
    /// of the answer is close to it.
    pub(super) fn modified(&self, headers: &HeaderMap) -> Result<Timestamp> {
        let said = date(headers, &LAST_MODIFIED)?.or(date(headers, &DATE)?);
        Ok(said.unwrap_or_else(|| self.clock().wall()))
    }
}
