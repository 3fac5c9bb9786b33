//! Staged writes: bytes are hashed once as they pass and written piece by piece to extents. Small objects go into the
//! log with their commit record.

mod buffered_payload;
mod digests;
mod extents;
mod ids;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tradewind_core::checksum::ChecksumScope;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::{Algorithm, Context, ETag, Metadata, Observation, Precondition, Staged};

use self::buffered_payload::BufferedPayload;
use self::digests::{Md5Outcome, StagedDigests};
use self::extents::StagedExtents;
use super::commit::{Md5Use, PutObject, PutPart};
use super::frame::BLOCK_BYTES;
use super::open_store::OpenStore;
use super::record::{Object, ObjectContent, Part, UploadSeq};

/// Shorter buffers are joined.
const MIN_FRAME_BYTES: usize = 2 << 10;

/// The destination of the bytes.
pub(crate) enum StageTarget {
    Object { bucket: String, key: String, metadata: Box<Metadata> },
    Part { bucket: String, key: String, upload: UploadSeq, number: u16 },
}

/// An uncommitted write.
pub(crate) struct LocalStaged {
    local: Arc<OpenStore>,
    context: Context,
    target: StageTarget,
    etag: ETagForm,
    stores_crc64: bool,
    digests: StagedDigests,
    gathered: BufferedPayload,
    extents: StagedExtents,
    size: u64,
    /// The size declared at the start.
    declared_size: Option<u64>,
    precondition: Precondition,
    /// Short buffers, joined: a body of single bytes must not cost a buffer for each.
    short: BytesMut,
    /// True if a write failed or was cancelled: some of its bytes are missing.
    is_incomplete: bool,
}

impl LocalStaged {
    pub fn new(local: Arc<OpenStore>, context: Context, target: StageTarget, request: StageRequest) -> Self {
        let plan_md5 = request.etag == ETagForm::Md5 || request.verify_md5;
        let extents = StagedExtents::with_expected_size(request.size);
        let digests = StagedDigests::new(&local.shared.hashing, plan_md5, &request.algorithms);
        let gathered = BufferedPayload::new(local.shared.buffered_bytes.clone(), context.window.clone());
        Self {
            local,
            context,
            target,
            etag: request.etag,
            stores_crc64: request.algorithms.is_empty() || request.algorithms.contains(&Algorithm::Crc64Nvme),
            digests,
            gathered,
            extents,
            size: 0,
            declared_size: request.size,
            precondition: request.precondition,
            short: BytesMut::new(),
            is_incomplete: false,
        }
    }

    /// Hashes and buffers bytes; submits pieces of extents, and ends each full extent.
    async fn absorb(&mut self, bytes: Bytes) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let gathered = self.gathered.bytes();
            let piece_bytes = self.local.shared.options.piece_bytes.max(1);
            let room = (self.extents.extent_capacity() - gathered).min(piece_bytes - gathered % piece_bytes);
            let frame = rest.split_to(rest.len().min(room));
            self.size += frame.len() as u64;
            self.digests.update(&frame).await;
            self.gathered.push(frame);
            let gathered = self.gathered.bytes();
            let is_full = gathered == self.extents.extent_capacity();
            if !is_full && self.may_gather() {
                continue;
            }
            if is_full || self.extents.is_expected_end(gathered) {
                self.end_extent().await?;
            } else {
                let handing = self.extents.append(&self.local, self.gathered.take_frames());
                self.context.guard(handing).await??;
            }
        }
        Ok(())
    }

    /// Returns true if the buffered bytes may wait for more: they may become a small object, or memory is ample.
    fn may_gather(&self) -> bool {
        self.gathered.bytes() < self.local.shared.options.piece_bytes
            || self.may_be_small()
            || self.memory_is_ample()
    }

    fn memory_is_ample(&self) -> bool {
        self.gathered.everywhere() <= self.local.shared.options.max_buffered_bytes
    }

    /// Returns true if the buffered bytes may go into the log, provided that the write stays small.
    fn may_be_small(&self) -> bool {
        let max_bytes = self.local.shared.options.inline_bytes;
        self.is_small() && self.extents.expected().is_none_or(|bytes| bytes <= max_bytes as u64)
    }

    /// Returns true if the buffered bytes go into the log should the write end here.
    fn is_small(&self) -> bool {
        let is_object = matches!(self.target, StageTarget::Object { .. });
        let bytes = self.gathered.bytes();
        is_object && self.extents.is_empty() && bytes <= self.local.shared.options.inline_bytes
    }

    /// Rejects further calls if bytes are missing.
    fn check_complete(&self) -> Result<()> {
        if self.is_incomplete {
            let why = "an earlier write failed or was cancelled; stage the object again";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }

    async fn absorb_short(&mut self) -> Result<()> {
        let joined = self.short.split().freeze();
        self.absorb(joined).await
    }

    async fn end_extent(&mut self) -> Result<()> {
        let (payload, table) = self.gathered.take();
        self.context.guard(self.extents.finish_extent(&self.local, payload, &table)).await?
    }

    /// Makes the extents durable before any record refers to them.
    async fn sync_extents(&self) -> Result<()> {
        for pin in &self.extents.pins {
            self.local.committer.check_writable()?;
            let synced = self.context.guard(pin.0.sync(&self.local.shared.io)).await?;
            if let Err(e) = synced {
                self.local.committer.set_read_only();
                return Err(e);
            }
        }
        Ok(())
    }

    /// The ETag; empty if the committer derives it from the MD5.
    fn etag(&self, md5: Md5Outcome) -> ETag {
        match (self.etag, md5) {
            (ETagForm::Md5, Md5Outcome::Known(md5)) => ETag::from_md5(&md5),
            (ETagForm::Md5, Md5Outcome::Deferred) => ETag::from_text(""),
            _ => {
                let id = self.local.shared.next_id.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                ETag::from_text(&format!("{id:016x}-tw"))
            }
        }
    }
}

#[async_trait]
impl Staged for LocalStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.context.check()?;
        self.check_complete()?;
        self.is_incomplete = true;
        if bytes.len() < MIN_FRAME_BYTES {
            self.short.extend_from_slice(&bytes);
            if self.short.len() >= BLOCK_BYTES {
                self.absorb_short().await?;
            }
        } else {
            self.absorb_short().await?;
            self.absorb(bytes).await?;
        }
        self.is_incomplete = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, mut expected: Expected) -> Result<(Committed, Observation)> {
        self.context.check()?;
        self.check_complete()?;
        self.absorb_short().await?;
        let started = self.local.shared.clock.now();
        let small = self.is_small();
        let digests = std::mem::take(&mut self.digests);
        let (md5, mut checksums) = self.context.guard(digests.finish(small)).await?;
        let (payload, table) = if small {
            self.gathered.take()
        } else {
            if self.gathered.bytes() > 0 || self.extents.is_open() {
                self.end_extent().await?;
            }
            (Vec::new(), Vec::new())
        };
        let whole = self.gathered.whole();
        let mut computed = checksums.clone();
        computed.push(whole);
        let md5_use = match md5 {
            Md5Outcome::Deferred => Some(Md5Use {
                is_etag: self.etag == ETagForm::Md5,
                expected: Expected { md5: expected.md5.take(), ..Expected::default() },
            }),
            Md5Outcome::Known(_) | Md5Outcome::NotRequested => None,
        };
        expected.with_default_size(self.declared_size).verify(self.size, md5.known(), &computed)?;
        if self.stores_crc64 {
            checksums.push(whole);
        }
        self.sync_extents().await?;
        let (etag, modified) = (self.etag(md5), self.local.shared.clock.wall());
        let mut committed = Committed {
            etag: etag.clone(),
            size: self.size,
            modified,
            generation: tradewind_core::object::Generation(0),
            checksums: checksums.clone(),
            scope: ChecksumScope::FullObject,
        };
        let staged = *self;
        let (local, extents) = (staged.local, staged.extents);
        match staged.target {
            StageTarget::Object { bucket, key, metadata } => {
                let content = if small {
                    ObjectContent::Inline
                } else {
                    ObjectContent::Extents { runs: extents.runs, fresh: extents.fresh }
                };
                let object = Object {
                    bucket: 0,
                    key,
                    size: staged.size,
                    modified,
                    etag,
                    metadata: *metadata,
                    checksums,
                    scope: ChecksumScope::FullObject,
                    content,
                    parts: Vec::new(),
                    upload: None,
                    rewritten_seq: None,
                };
                let put = PutObject {
                    bucket,
                    object: Box::new(object),
                    payload,
                    table,
                    md5_use,
                    precondition: staged.precondition,
                    pins: extents.pins,
                };
                (committed.generation, committed.etag) =
                    staged.context.guard(local.committer.submit(put)).await??;
            }
            StageTarget::Part { bucket, key, upload, number } => {
                let part = Part {
                    upload,
                    number,
                    size: staged.size,
                    modified,
                    etag,
                    checksums,
                    runs: extents.runs,
                    new_extents: extents.fresh,
                };
                let put = PutPart { bucket, key, part: Box::new(part), pins: extents.pins };
                committed.generation = staged.context.guard(local.committer.submit(put)).await??;
            }
        }
        let observation = Observation {
            first_byte: local.shared.clock.now().saturating_sub(started),
            wire_bytes: staged.size,
            ..Observation::default()
        };
        Ok((committed, observation))
    }
}
