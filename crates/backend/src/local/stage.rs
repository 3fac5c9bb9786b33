//! Staged writes. Bytes are hashed once, as they arrive, and buffered until an extent, or a piece of one, is submitted.
//! Objects of at most `inline_bytes` are *inline*: they are written to the log, as the payload of their log record.

mod buffered_payload;
mod digests;
mod extents;
mod ids;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tradewind_core::checksum::ChecksumScope;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected, Identity};
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::stored_form::Reported;
use tradewind_core::{Algorithm, Context, ETag, Metadata, Observation, Precondition, Staged};

use self::buffered_payload::BufferedPayload;
use self::digests::{Md5Outcome, StagedDigests};
use self::extents::StagedExtents;
use super::commit::{DeferredMd5, PutObject, PutPart};
use super::frame::BLOCK_BYTES;
use super::open_store::OpenStore;
use super::record::{Object, ObjectContent, Part, TransformedBytes, UploadSeq};

/// Shorter received buffers are joined.
const MIN_BUFFER_BYTES: usize = 2 << 10;

/// The destination of the bytes.
pub(crate) enum StageTarget {
    Object { bucket: String, key: String, metadata: Box<Metadata> },
    Part { bucket: String, key: String, upload: UploadSeq, number: u16 },
}

/// An uncommitted write.
pub(crate) struct LocalStaged {
    store: Arc<OpenStore>,
    context: Context,
    target: StageTarget,
    etag: ETagForm,
    /// The identity of the object, instead of a new one.
    identity: Option<Identity>,
    stores_crc64: bool,
    digests: StagedDigests,
    buffered: BufferedPayload,
    extents: StagedExtents,
    size: u64,
    /// The size declared when the write began.
    declared_size: Option<u64>,
    precondition: Precondition,
    /// Received buffers shorter than [`MIN_BUFFER_BYTES`], joined: a body of single bytes must not cost a buffer each.
    short_buffers: BytesMut,
    /// True if a write failed or was cancelled: some of its bytes are missing.
    is_incomplete: bool,
}

impl LocalStaged {
    pub fn new(store: Arc<OpenStore>, context: Context, target: StageTarget, request: StageRequest) -> Self {
        let identity = request.identity.filter(|_| matches!(target, StageTarget::Object { .. }));
        let needs_md5 = (request.etag == ETagForm::Md5 && identity.is_none()) || request.verify_md5;
        let extents = StagedExtents::with_declared_size(request.size);
        let digests = StagedDigests::new(&store.state.hashing, needs_md5, &request.algorithms);
        let buffered = BufferedPayload::new(store.state.unwritten_bytes.clone(), context.window.clone());
        Self {
            store,
            context,
            target,
            etag: request.etag,
            identity,
            stores_crc64: request.algorithms.is_empty() || request.algorithms.contains(&Algorithm::Crc64Nvme),
            digests,
            buffered,
            extents,
            size: 0,
            declared_size: request.size,
            precondition: request.precondition,
            short_buffers: BytesMut::new(),
            is_incomplete: false,
        }
    }

    /// Hashes and buffers bytes, and ends each full extent. Submits an extent piece by piece while the unwritten bytes
    /// of all writes exceed `max_buffered_bytes`.
    async fn absorb(&mut self, bytes: Bytes) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let buffered_bytes = self.buffered.bytes();
            let write_bytes = self.store.state.options.write_bytes.max(1);
            let remaining_bytes = (self.extents.extent_capacity() - buffered_bytes)
                .min(write_bytes - buffered_bytes % write_bytes);
            let buffer = rest.split_to(rest.len().min(remaining_bytes));
            self.size += buffer.len() as u64;
            self.digests.update(&buffer).await;
            self.buffered.push(buffer);
            let buffered_bytes = self.buffered.bytes();
            let is_full = buffered_bytes == self.extents.extent_capacity();
            if !is_full && self.may_buffer_more() {
                continue;
            }
            if is_full || self.extents.is_declared_end(buffered_bytes) {
                self.end_extent().await?;
            } else {
                let append = self.extents.append(&self.store, self.buffered.take_buffers());
                self.context.guard(append).await??;
            }
        }
        Ok(())
    }

    /// Returns true if the buffered bytes need not be submitted yet: they are less than `write_bytes`, the object may
    /// become inline, or memory is ample. With ample memory, a write buffers a full extent.
    fn may_buffer_more(&self) -> bool {
        self.buffered.bytes() < self.store.state.options.write_bytes
            || self.may_become_inline()
            || self.is_memory_ample()
    }

    /// Returns true if the unwritten bytes of all writes are at most `max_buffered_bytes`.
    fn is_memory_ample(&self) -> bool {
        self.buffered.total_unwritten_bytes() <= self.store.state.options.max_buffered_bytes
    }

    /// Returns true if the object may become inline, given its declared size and the bytes so far.
    fn may_become_inline(&self) -> bool {
        let max_bytes = self.store.state.options.inline_bytes;
        self.is_inline_so_far() && self.extents.declared_bytes().is_none_or(|bytes| bytes <= max_bytes as u64)
    }

    /// Returns true if the object would be inline if the write ended here.
    fn is_inline_so_far(&self) -> bool {
        let is_object = matches!(self.target, StageTarget::Object { .. });
        let bytes = self.buffered.bytes();
        is_object && self.extents.is_empty() && bytes <= self.store.state.options.inline_bytes
    }

    /// An error if bytes are missing.
    fn check_complete(&self) -> Result<()> {
        if self.is_incomplete {
            let why = "an earlier write failed or was cancelled; stage the object again";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }

    async fn absorb_short_buffers(&mut self) -> Result<()> {
        let joined = self.short_buffers.split().freeze();
        self.absorb(joined).await
    }

    async fn end_extent(&mut self) -> Result<()> {
        let (payload, block_crcs) = self.buffered.take();
        self.context.guard(self.extents.finish_extent(&self.store, payload, &block_crcs)).await?
    }

    /// Makes the extents durable before any log record refers to them.
    async fn sync_extents(&self) -> Result<()> {
        for pin in &self.extents.pins {
            self.store.committer.check_writable()?;
            let synced = self.context.guard(pin.0.sync(&self.store.state.io)).await?;
            if let Err(e) = synced {
                self.store.committer.set_read_only();
                return Err(e);
            }
        }
        Ok(())
    }

    /// The ETag; empty if the committer will derive it from the MD5.
    fn etag(&self, md5: Md5Outcome) -> ETag {
        match (self.etag, md5) {
            (ETagForm::Md5, Md5Outcome::Known(md5)) => ETag::from_md5(&md5),
            (ETagForm::Md5, Md5Outcome::Deferred) => ETag::from_text(""),
            _ => {
                let id = self.store.state.next_id.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
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
        if bytes.len() < MIN_BUFFER_BYTES {
            self.short_buffers.extend_from_slice(&bytes);
            if self.short_buffers.len() >= BLOCK_BYTES {
                self.absorb_short_buffers().await?;
            }
        } else {
            self.absorb_short_buffers().await?;
            self.absorb(bytes).await?;
        }
        self.is_incomplete = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, mut expected: Expected) -> Result<(Committed, Observation)> {
        self.context.check()?;
        self.check_complete()?;
        self.absorb_short_buffers().await?;
        let started = self.store.state.clock.now();
        let is_inline = self.is_inline_so_far();
        let digests = std::mem::take(&mut self.digests);
        let (md5, mut checksums) = self.context.guard(digests.finish(is_inline)).await?;
        let (payload, block_crcs) = if is_inline {
            self.buffered.take()
        } else {
            if self.buffered.bytes() > 0 || self.extents.is_open() {
                self.end_extent().await?;
            }
            (Vec::new(), Vec::new())
        };
        let crc64 = self.buffered.crc64();
        let mut computed = checksums.clone();
        computed.push(crc64);
        let reported = expected.reported.take();
        reported.as_ref().map_or(Ok(()), Reported::check)?;
        let deferred_md5 = match md5 {
            Md5Outcome::Deferred => Some(DeferredMd5 {
                is_etag: self.etag == ETagForm::Md5 && self.identity.is_none() && reported.is_none(),
                expected: Expected { md5: expected.md5.take(), ..Expected::default() },
            }),
            Md5Outcome::Known(_) | Md5Outcome::NotRequested => None,
        };
        expected.with_default_size(self.declared_size).verify(self.size, md5.known(), &computed)?;
        if self.stores_crc64 {
            checksums.push(crc64);
        }
        self.sync_extents().await?;
        let identity = self.identity.take();
        let modified =
            identity.as_ref().map_or_else(|| self.store.state.clock.wall(), |identity| identity.modified);
        let (mut size, mut transformed) = (self.size, None);
        let mut etag = self.etag(md5);
        if let Some(reported) = reported {
            transformed = Some(TransformedBytes::new(self.size, &reported));
            (size, etag, checksums) = (reported.plain.size, reported.plain.etag, reported.plain.checksums);
        }
        if let Some(identity) = identity {
            etag = identity.etag;
        }
        let mut committed = Committed {
            etag: etag.clone(),
            size,
            modified,
            generation: tradewind_core::object::Generation(0),
            checksums: checksums.clone(),
            scope: ChecksumScope::FullObject,
            version: None,
            source_version: None,
        };
        let staged = *self;
        let (store, extents) = (staged.store, staged.extents);
        match staged.target {
            StageTarget::Object { bucket, key, metadata } => {
                let content = if is_inline {
                    ObjectContent::Inline
                } else {
                    ObjectContent::Extents { runs: extents.runs, new_extents: extents.new_extents }
                };
                let object = Object {
                    key,
                    size,
                    modified,
                    etag,
                    metadata: *metadata,
                    checksums,
                    scope: ChecksumScope::FullObject,
                    content,
                    transformed,
                    ..Object::default()
                };
                let put = PutObject {
                    bucket,
                    object: Box::new(object),
                    payload,
                    block_crcs,
                    deferred_md5,
                    precondition: staged.precondition,
                    pins: extents.pins,
                };
                let written = staged.context.guard(store.committer.submit(put)).await??;
                (committed.generation, committed.etag) = (written.generation, written.etag);
                committed.version = written.version;
            }
            StageTarget::Part { bucket, key, upload, number } => {
                let part = Part {
                    upload,
                    number,
                    size,
                    modified,
                    etag,
                    checksums,
                    runs: extents.runs,
                    transformed,
                    rewritten_seq: None,
                    new_extents: extents.new_extents,
                };
                let put = PutPart { bucket, key, part: Box::new(part), pins: extents.pins };
                committed.generation = staged.context.guard(store.committer.submit(put)).await??;
            }
        }
        let observation = Observation {
            first_byte: store.state.clock.now().saturating_sub(started),
            body_bytes: staged.size,
            ..Observation::default()
        };
        Ok((committed, observation))
    }
}
