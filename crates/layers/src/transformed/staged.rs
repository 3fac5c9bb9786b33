//! Writes. The first chunk decides whether compression pays: then a write of the store below begins, for frames or for the
//! bytes as they are. What the store below rejects when a write begins is checked before.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::stored_form::{PlainAttributes, Reported};
use tradewind_core::{Address, Context, ETag, ObjectStore, Observation, Staged};
use tradewind_digest::Engine;

use super::digests::PlainDigests;
use super::frame::{ChunkPlace, FrameCodec, with_compressed};
use super::keys::{Keyring, random};
use super::policy::{MIN_COMPRESSED_BYTES, Treatment};
use super::segment::{CHUNK_BITS, CHUNK_BYTES, Description, encrypted_bytes};

/// The part of a sample, in percent, that compression must save.
const MIN_SAVED_PERCENT: usize = 10;

/// A part of an upload.
#[derive(Debug, Clone)]
pub(super) struct PartTarget {
    pub upload: UploadId,
    pub number: PartNumber,
}

/// The object or part to write, and what the layer needs for it.
pub(super) struct WriteTarget {
    pub inner: Arc<dyn ObjectStore>,
    pub keys: Arc<Keyring>,
    pub engine: Engine,
    pub context: Context,
    pub address: Address,
    /// `None` for an object.
    pub part: Option<PartTarget>,
    /// The request, as the caller made it.
    pub request: StageRequest,
    pub treatment: Treatment,
}

impl WriteTarget {
    /// Rejects what the store below rejects when a write begins.
    async fn check(&self) -> Result<()> {
        // That the upload of a part exists is known, because its class is.
        if self.part.is_none() {
            self.inner.head_bucket(&self.context, &self.address.bucket).await?;
            self.request.metadata.check()?;
        }
        Ok(())
    }

    /// Begins a write of the bytes as they are.
    async fn stage_plain(&self) -> Result<Box<dyn Staged>> {
        self.stage(self.request.clone()).await
    }

    /// Begins a write of frames, whose digests are of no interest. Their size is known only without compression.
    async fn stage_frames(&self) -> Result<Box<dyn Staged>> {
        let request = StageRequest {
            size: self.request.size.filter(|_| !self.treatment.compress).map(encrypted_bytes),
            algorithms: Vec::new(),
            verify_md5: false,
            etag: ETagForm::Unique,
            checksum: None,
            ..self.request.clone()
        };
        self.stage(request).await
    }

    async fn stage(&self, request: StageRequest) -> Result<Box<dyn Staged>> {
        match &self.part {
            None => self.inner.stage(&self.context, &self.address, request).await,
            Some(PartTarget { upload, number }) => {
                self.inner.stage_part(&self.context, &self.address, upload, *number, request).await
            }
        }
    }
}

/// A write through the layer.
pub(super) struct TransformedStaged {
    target: WriteTarget,
    state: WriteState,
    /// Bytes that are in no chunk yet: at most one chunk. The last chunk of a write is known only at the commit.
    buffer: BytesMut,
    /// True if a write failed or was cancelled: some of its bytes are missing.
    is_incomplete: bool,
}

enum WriteState {
    /// Less than a chunk has arrived. `frames` is the write of bytes that will be encrypted.
    Undecided {
        frames: Option<Box<dyn Staged>>,
    },
    Plain {
        staged: Box<dyn Staged>,
    },
    Frames(Box<FrameWriter>),
    /// A write failed while the state changed.
    Failed,
}

impl TransformedStaged {
    /// Begins a write. `target.treatment` is not plain.
    pub async fn begin(target: WriteTarget) -> Result<Self> {
        let frames = match target.treatment.encrypt {
            true => Some(target.stage_frames().await?),
            false => {
                target.check().await?;
                None
            }
        };
        let state = WriteState::Undecided { frames };
        Ok(Self { target, state, buffer: BytesMut::new(), is_incomplete: false })
    }

    fn check_complete(&self) -> Result<()> {
        if self.is_incomplete {
            let why = "an earlier write failed or was cancelled; stage the object again";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }

    /// Cuts the bytes into chunks, of which all but the last are written.
    async fn absorb(&mut self, mut bytes: Bytes) -> Result<()> {
        while self.buffer.len() + bytes.len() > CHUNK_BYTES {
            if let WriteState::Plain { .. } = self.state {
                break;
            }
            let chunk = match self.buffer.is_empty() {
                true => bytes.split_to(CHUNK_BYTES),
                false => {
                    let missing = bytes.split_to(CHUNK_BYTES - self.buffer.len());
                    self.buffer.extend_from_slice(&missing);
                    self.buffer.split().freeze()
                }
            };
            self.write_chunk(chunk).await?;
            // Compression takes the time of many small requests.
            tokio::task::yield_now().await;
        }
        if let WriteState::Plain { staged } = &mut self.state {
            return staged.write(bytes).await;
        }
        self.buffer.extend_from_slice(&bytes);
        Ok(())
    }

    /// Writes a chunk that is not the last.
    async fn write_chunk(&mut self, chunk: Bytes) -> Result<()> {
        self.decide(&chunk).await?;
        match &mut self.state {
            WriteState::Plain { staged } => staged.write(chunk).await,
            WriteState::Frames(writer) => writer.write(chunk, false).await,
            WriteState::Undecided { .. } | WriteState::Failed => Err(undecided()),
        }
    }

    /// Decides by the first chunk.
    async fn decide(&mut self, first: &Bytes) -> Result<()> {
        if !matches!(self.state, WriteState::Undecided { .. }) {
            return Ok(());
        }
        let WriteState::Undecided { frames } = std::mem::replace(&mut self.state, WriteState::Failed) else {
            return Err(undecided());
        };
        let compress = self.target.treatment.compress && is_compressible(first);
        let frames = match frames {
            None if !compress => {
                self.state = WriteState::Plain { staged: self.target.stage_plain().await? };
                return Ok(());
            }
            None => self.target.stage_frames().await?,
            Some(frames) => frames,
        };
        self.state = WriteState::Frames(Box::new(FrameWriter::new(&self.target, frames, compress)?));
        Ok(())
    }
}

fn undecided() -> Error {
    Error::new(Reason::Defect, "a write was neither plain nor transformed")
}

/// Returns true if compression pays for a sample.
fn is_compressible(sample: &[u8]) -> bool {
    let max_bytes = sample.len() - sample.len() * MIN_SAVED_PERCENT / 100;
    sample.len() as u64 >= MIN_COMPRESSED_BYTES
        && with_compressed(sample, max_bytes, |compressed| compressed.is_some())
}

#[async_trait]
impl Staged for TransformedStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.target.context.check()?;
        self.check_complete()?;
        self.is_incomplete = true;
        self.absorb(bytes).await?;
        self.is_incomplete = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.target.context.check()?;
        self.check_complete()?;
        let last = self.buffer.split().freeze();
        self.decide(&last).await?;
        match self.state {
            WriteState::Plain { mut staged } => {
                if !last.is_empty() {
                    staged.write(last).await?;
                }
                staged.commit(expected).await
            }
            WriteState::Frames(mut writer) => {
                writer.write(last, true).await?;
                writer.commit(expected.with_default_size(self.target.request.size)).await
            }
            WriteState::Undecided { .. } | WriteState::Failed => Err(undecided()),
        }
    }
}

/// Writes the frames of a segment.
struct FrameWriter {
    staged: Box<dyn Staged>,
    context: Context,
    description: Description,
    codec: FrameCodec,
    digests: PlainDigests,
    etag: ETagForm,
    compress: bool,
    /// The offsets of all chunks so far.
    offsets: Vec<u64>,
    stored_bytes: u64,
}

impl FrameWriter {
    fn new(target: &WriteTarget, staged: Box<dyn Staged>, compress: bool) -> Result<Self> {
        let id = random()?;
        let new_key = target.treatment.encrypt.then(|| target.keys.create(&id)).transpose()?;
        let (key, wrapped) = new_key.map(|new_key| (new_key.key, new_key.wrapped)).unzip();
        let part = target.part.as_ref().map(|part| part.number);
        Ok(Self {
            staged,
            context: target.context.clone(),
            description: Description { chunk_bits: CHUNK_BITS, id, key: wrapped },
            codec: FrameCodec::new(id, key, &target.address, part),
            digests: PlainDigests::new(&target.engine, &target.request),
            etag: target.request.etag,
            compress,
            offsets: Vec::new(),
            stored_bytes: 0,
        })
    }

    async fn write(&mut self, chunk: Bytes, is_last: bool) -> Result<()> {
        self.context.guard(self.digests.update(&chunk)).await?;
        let place = ChunkPlace { number: self.offsets.len() as u64, is_last };
        let mut frame = Vec::new();
        let mut seal = |compressed: Option<&[u8]>| self.codec.seal(place, &chunk, compressed, &mut frame);
        match self.compress {
            true => with_compressed(&chunk, chunk.len(), seal)?,
            false => seal(None)?,
        }
        self.offsets.push(self.stored_bytes);
        self.write_stored(frame).await
    }

    async fn write_stored(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.stored_bytes += bytes.len() as u64;
        self.staged.write(Bytes::from(bytes)).await
    }

    /// Verifies the plain bytes, and commits the frames with their table.
    async fn commit(mut self, expected: Expected) -> Result<(Committed, Observation)> {
        let table: Vec<u8> = self.offsets.iter().skip(1).flat_map(|offset| offset.to_le_bytes()).collect();
        if !table.is_empty() {
            self.write_stored(table).await?;
        }
        let plain = self.context.guard(self.digests.finish()).await?;
        if expected.reported.is_some() {
            return Err(Error::new(Reason::Defect, "bytes are transformed twice"));
        }
        expected.verify(plain.size, plain.md5, &plain.computed)?;
        let etag = match (self.etag, plain.md5) {
            (ETagForm::Md5, Some(md5)) => ETag::from_md5(&md5),
            _ => unique_etag()?,
        };
        let attributes = PlainAttributes { size: plain.size, etag, checksums: plain.stored };
        let reported = Reported { plain: attributes, description: self.description.encode() };
        let expected =
            Expected { size: Some(self.stored_bytes), reported: Some(reported), ..Expected::default() };
        self.staged.commit(expected).await
    }
}

/// A tag of 128 random bits.
pub(crate) fn unique_etag() -> Result<ETag> {
    let id: [u8; 16] = random()?;
    Ok(ETag::from_tag(&format!("{:032x}-tw", u128::from_le_bytes(id))))
}
