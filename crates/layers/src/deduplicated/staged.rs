//! Writes. The bytes are cut into chunks, which are stored concurrently; the manifest is committed when all of them are
//! durable. What the store below rejects when a write begins is rejected then.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::stored_form::{PlainAttributes, Reported};
use tradewind_core::{Address, Context, ETag, Observation, Staged};
use tradewind_digest::Engine;

use super::chunk_store::{ChunkStore, without_deadline};
use super::chunker::{Chunker, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
use super::manifest::{ChunkId, Description, Entry};
use super::part_references::UploadName;
use super::pins::PinSet;
use crate::transformed::digests::PlainDigests;
use crate::transformed::staged::unique_etag;

/// Chunks of one write that are stored concurrently: the store below makes them durable together.
const MAX_CONCURRENT_CHUNKS: usize = 8;
/// Bytes of a manifest that are collected before they are written.
const MANIFEST_PIECE_BYTES: usize = 64 << 10;

/// A part of an upload.
#[derive(Debug, Clone)]
pub(super) struct PartTarget {
    pub upload: UploadId,
    pub number: PartNumber,
}

/// The origin of the chunks of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkSource {
    /// Bytes of a write, whose chunks are stored before the manifest.
    NewBytes,
    /// The manifest of another object.
    Copied,
}

/// The object or part to write, and what the layer needs for it.
pub(super) struct WriteTarget {
    pub store: Arc<ChunkStore>,
    pub engine: Engine,
    pub context: Context,
    pub address: Address,
    /// `None` for an object.
    pub part: Option<PartTarget>,
    /// The request, as the caller made it.
    pub request: StageRequest,
    /// Fewer bytes are stored as they are.
    pub min_bytes: u64,
}

impl WriteTarget {
    /// Begins a write of the bytes as they are.
    async fn stage_plain(&self) -> Result<Box<dyn Staged>> {
        self.stage(&self.context, self.request.clone()).await
    }

    /// Begins the write of the manifest, which the deadline does not end: its commit must have ended before the pins of
    /// its chunks do.
    async fn stage_manifest(&self, source: ChunkSource) -> Result<Box<dyn Staged>> {
        let request = StageRequest {
            size: None,
            algorithms: Vec::new(),
            verify_md5: false,
            etag: ETagForm::Unique,
            checksum: None,
            ..self.request.clone()
        };
        let mut context = without_deadline(&self.context);
        // A full queue rejects a write of new bytes at the first chunk that it must store. It does not reject the manifest
        // after them, also if all of them were found.
        context.is_admitted |= source == ChunkSource::NewBytes;
        self.context.guard(self.stage(&context, request)).await?
    }

    async fn stage(&self, context: &Context, request: StageRequest) -> Result<Box<dyn Staged>> {
        let inner = &self.store.inner;
        match &self.part {
            None => inner.stage(context, &self.address, request).await,
            Some(PartTarget { upload, number }) => {
                inner.stage_part(context, &self.address, upload, *number, request).await
            }
        }
    }

    /// Rejects what the store below rejects when a write begins.
    async fn check(&self) -> Result<()> {
        // That the upload of a part exists is known, because its class is.
        if self.part.is_none() {
            self.store.inner.head_bucket(&self.context, &self.address.bucket).await?;
            self.request.metadata.check()?;
        }
        Ok(())
    }
}

/// A write through the layer.
pub(super) struct DeduplicatedStaged {
    target: WriteTarget,
    chunker: Chunker,
    /// `None` while it is not known whether there are enough bytes.
    writer: Option<ChunkWriter>,
    /// True if a write failed or was cancelled: some of its bytes are missing.
    is_incomplete: bool,
}

impl DeduplicatedStaged {
    /// Begins a write.
    pub async fn begin(target: WriteTarget) -> Result<Self> {
        let writer = match target.request.size {
            Some(_) => Some(ChunkWriter::begin(&target).await?),
            None => {
                target.check().await?;
                None
            }
        };
        Ok(Self { target, chunker: Chunker::default(), writer, is_incomplete: false })
    }

    fn check_complete(&self) -> Result<()> {
        match self.is_incomplete {
            true => {
                let why = "an earlier write failed or was cancelled; stage the object again";
                Err(Error::new(Reason::InvalidRequest, why))
            }
            false => Ok(()),
        }
    }

    async fn absorb(&mut self, bytes: &[u8]) -> Result<()> {
        self.chunker.push(bytes);
        if self.writer.is_none() && self.chunker.len() as u64 >= self.target.min_bytes {
            self.writer = Some(ChunkWriter::begin(&self.target).await?);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if self.target.request.size.is_some_and(|size| size < writer.size() + self.chunker.len() as u64) {
            return Err(Error::for_client(
                Reason::InvalidRequest,
                "the body has more bytes than were declared",
            ));
        }
        while let Some(chunk) = self.chunker.next_chunk() {
            writer.write(chunk).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Staged for DeduplicatedStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.target.context.check()?;
        self.check_complete()?;
        self.is_incomplete = true;
        // Not all at once, so that the chunker holds two chunks at most.
        for piece in bytes.chunks(MAX_CHUNK_BYTES) {
            self.absorb(piece).await?;
        }
        self.is_incomplete = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.target.context.check()?;
        self.check_complete()?;
        let Some(mut writer) = self.writer else {
            let mut staged = self.target.stage_plain().await?;
            let rest = self.chunker.take_rest();
            if !rest.is_empty() {
                staged.write(rest).await?;
            }
            return staged.commit(expected).await;
        };
        while let Some(chunk) = self.chunker.last_chunk() {
            writer.write(chunk).await?;
        }
        writer.commit(expected.with_default_size(self.target.request.size)).await
    }
}

/// Stores chunks and writes their manifest.
struct ChunkWriter {
    manifest: ManifestWriter,
    digests: PlainDigests,
    etag: ETagForm,
    /// The chunks in progress. Each returns true if it was stored, and false if it was found.
    chunks: JoinSet<Result<bool>>,
}

impl ChunkWriter {
    async fn begin(target: &WriteTarget) -> Result<Self> {
        Ok(Self {
            manifest: ManifestWriter::begin(target, ChunkSource::NewBytes).await?,
            digests: PlainDigests::new(&target.engine, &target.request),
            etag: target.request.etag,
            chunks: JoinSet::new(),
        })
    }

    /// Bytes so far.
    const fn size(&self) -> u64 {
        self.manifest.end
    }

    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let context = self.manifest.context.clone();
        context.guard(self.digests.update(&bytes)).await?;
        let chunk = ChunkId::of_bytes(&bytes);
        self.manifest.add(chunk, bytes.len() as u64).await?;
        while self.chunks.len() >= MAX_CONCURRENT_CHUNKS {
            self.join_next().await?;
        }
        let store = self.manifest.store.clone();
        let memory = context.guard(store.reserve(bytes.len())).await??;
        self.chunks.spawn(async move {
            let _memory = memory;
            store.ensure(&context, chunk, bytes).await
        });
        Ok(())
    }

    async fn join_next(&mut self) -> Result<bool> {
        match self.manifest.context.guard(self.chunks.join_next()).await? {
            None => Ok(false),
            Some(Ok(ensured)) => {
                // Once the store has taken a chunk, a full queue does not reject the rest. A chunk that was found was in no
                // queue.
                self.manifest.context.is_admitted |= ensured?;
                Ok(true)
            }
            Some(Err(failed)) => Err(Error::with_source(Reason::Defect, "a chunk was not stored", failed)),
        }
    }

    /// Verifies the plain bytes, and commits the manifest when all chunks are durable.
    async fn commit(mut self, expected: Expected) -> Result<(Committed, Observation)> {
        while self.join_next().await? {}
        let plain = self.manifest.context.guard(self.digests.finish()).await?;
        if expected.reported.is_some() {
            return Err(Error::new(Reason::Defect, "bytes are transformed twice"));
        }
        expected.verify(plain.size, plain.md5, &plain.computed)?;
        let (etag, etag_is_md5) = match (self.etag, plain.md5) {
            (ETagForm::Md5, Some(md5)) => (ETag::from_md5(&md5), true),
            _ => (unique_etag()?, false),
        };
        let attributes = PlainAttributes { size: plain.size, etag, checksums: plain.stored };
        self.manifest.commit(attributes, etag_is_md5).await
    }
}

/// Writes a manifest, and pins its chunks until that is durable.
pub(super) struct ManifestWriter {
    store: Arc<ChunkStore>,
    context: Context,
    staged: Box<dyn Staged>,
    pins: PinSet,
    /// The end of the last chunk.
    end: u64,
    /// The length of the last chunk, and the shortest one before it, as far as that is below the usual minimum.
    last_bytes: u64,
    min_bytes: u64,
    stored_bytes: u64,
    /// Entries that are not written yet; of a part, all of them.
    entries: BytesMut,
    /// The upload, if this is a part of one.
    upload: Option<UploadName>,
    /// True if the caller chose the entity tag, which is no MD5 then.
    has_identity: bool,
}

impl ManifestWriter {
    /// Begins the write of a manifest.
    pub async fn begin(target: &WriteTarget, source: ChunkSource) -> Result<Self> {
        let upload = target
            .part
            .as_ref()
            .map(|part| UploadName { address: target.address.clone(), upload: part.upload.clone() });
        Ok(Self {
            store: target.store.clone(),
            context: target.context.clone(),
            staged: target.stage_manifest(source).await?,
            pins: target.store.pins.pin_set(),
            end: 0,
            last_bytes: MIN_CHUNK_BYTES as u64,
            min_bytes: MIN_CHUNK_BYTES as u64,
            stored_bytes: 0,
            entries: BytesMut::new(),
            upload,
            has_identity: target.request.identity.is_some(),
        })
    }

    /// Pins a chunk and adds it. The caller looks for the chunk, or knows that it exists, after that.
    pub async fn add(&mut self, chunk: ChunkId, bytes: u64) -> Result<()> {
        self.pins.add(&chunk);
        // In a copy of several parts, the last chunk of each part may be short.
        self.min_bytes = self.min_bytes.min(self.last_bytes);
        self.last_bytes = bytes;
        self.end += bytes;
        self.entries.extend_from_slice(&Entry { chunk, end: self.end }.encode());
        match self.upload.is_none() && self.entries.len() >= MANIFEST_PIECE_BYTES {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<()> {
        let piece = self.entries.split().freeze();
        self.stored_bytes += piece.len() as u64;
        self.context.guard(self.staged.write(piece)).await?
    }

    /// Commits the manifest. All its chunks are durable.
    ///
    /// Fails with [`Overloaded`](Reason::Overloaded) if a read has found one of them damaged since it was pinned: the caller
    /// sends the bytes again, and the chunk is stored again. Fails with [`Io`](Reason::Io) if that happens during the commit.
    pub async fn commit(
        mut self,
        plain: PlainAttributes,
        etag_is_md5: bool,
    ) -> Result<(Committed, Observation)> {
        if plain.size != self.end {
            return Err(Error::new(Reason::Defect, "a manifest has another size than its object"));
        }
        if let Some(upload) = &self.upload {
            upload.record(&self.store, &self.context, &self.entries).await?;
        }
        self.flush().await?;
        let min_chunk_bytes = u32::try_from(self.min_bytes)
            .map_err(|error| Error::with_source(Reason::Defect, "a minimum chunk is too long", error))?;
        let etag_is_md5 = etag_is_md5 && !self.has_identity;
        let description = Description { min_chunk_bytes, etag_is_md5 }.encode();
        let reported = Some(Reported { plain, description });
        let expected = Expected { size: Some(self.stored_bytes), reported, ..Expected::default() };
        self.context.check()?;
        let Self { store, context, staged, pins, .. } = self;
        // To its end, although the caller may stop waiting: a manifest that is stored later would have no pins.
        let commit = async move {
            if pins.has_doubtful() {
                let why = "a chunk was found damaged while the object was written; retry";
                return Err(Error::new(Reason::Overloaded, why));
            }
            let committed = staged.commit(expected).await;
            if committed.is_ok() && pins.has_doubtful() {
                // It is stored, and cannot be read before the caller has sent it again.
                let why = "a chunk was found damaged while the object was committed; send it again";
                return Err(Error::new(Reason::Io, why));
            }
            drop(pins);
            committed
        };
        store.run_to_end(&context, commit).await
    }
}
