//! Bytes on their way in: hashed once as they pass, and written piece by piece into extents. What stays small
//! goes into the log with its commit record.

mod digests;
mod extents;
mod gathered;
mod ids;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tradewind_core::checksum::ChecksumScope;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::{Algorithm, Context, ETag, Metadata, Observation, Precondition, Staged};

use self::digests::{Digests, FoundMd5};
use self::extents::Extents;
use self::gathered::Gathered;
use super::commit::{Md5Use, PutObject, PutPart};
use super::frame::BLOCK_BYTES;
use super::leaf::Local;
use super::record::{Content, Object, Part, UploadSeq};

/// Buffers shorter than this are joined to larger ones.
const SHORT_BYTES: usize = 2 << 10;

/// What the bytes will become.
pub(crate) enum Target {
    Object { bucket: String, key: String, metadata: Box<Metadata> },
    Part { bucket: String, key: String, upload: UploadSeq, number: u16 },
}

/// A write that is not committed yet.
pub(crate) struct LocalStaged {
    local: Arc<Local>,
    context: Context,
    target: Target,
    etag: ETagForm,
    keeps_crc64: bool,
    digests: Digests,
    gathered: Gathered,
    extents: Extents,
    size: u64,
    /// The size that was said at the beginning.
    said: Option<u64>,
    precondition: Precondition,
    /// Short buffers, joined: a body in single bytes must not cost a buffer's bookkeeping for each.
    short: BytesMut,
    /// A write failed or was given up half way: its bytes are not all here.
    is_torn: bool,
}

impl LocalStaged {
    pub fn new(local: Arc<Local>, context: Context, target: Target, request: StageRequest) -> Self {
        let plan_md5 = request.etag == ETagForm::Md5 || request.verify_md5;
        let extents = Extents::expecting(request.size);
        let digests = Digests::new(&local.shared.hashing, plan_md5, &request.algorithms);
        let gathered = Gathered::new(local.shared.gathered.clone(), context.window.clone());
        Self {
            local,
            context,
            target,
            etag: request.etag,
            keeps_crc64: request.algorithms.is_empty() || request.algorithms.contains(&Algorithm::Crc64Nvme),
            digests,
            gathered,
            extents,
            size: 0,
            said: request.size,
            precondition: request.precondition,
            short: BytesMut::new(),
            is_torn: false,
        }
    }

    /// Hashes and gathers bytes; hands on pieces of extents, and ends each extent that is full.
    async fn take_in(&mut self, bytes: Bytes) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let gathered = self.gathered.bytes();
            let piece_bytes = self.local.shared.options.piece_bytes.max(1);
            let room = (self.extents.room() - gathered).min(piece_bytes - gathered % piece_bytes);
            let frame = rest.split_to(rest.len().min(room));
            self.size += frame.len() as u64;
            self.digests.update(&frame).await;
            self.gathered.push(frame);
            let gathered = self.gathered.bytes();
            let is_full = gathered == self.extents.room();
            if !is_full && self.may_gather() {
                continue;
            }
            if is_full || self.extents.expects(gathered) {
                self.end_extent().await?;
            } else {
                let handing = self.extents.append(&self.local, self.gathered.take_frames());
                self.context.guard(handing).await??;
            }
        }
        Ok(())
    }

    /// What is gathered may wait for more: it may become a small object, or memory is ample.
    fn may_gather(&self) -> bool {
        self.gathered.bytes() < self.local.shared.options.piece_bytes
            || self.may_be_small()
            || self.is_ample()
    }

    fn is_ample(&self) -> bool {
        self.gathered.everywhere() <= self.local.shared.options.gather_bytes
    }

    /// What is gathered may go into the log, if nothing follows that makes it large.
    fn may_be_small(&self) -> bool {
        let most = self.local.shared.options.inline_bytes;
        self.is_small() && self.extents.expected().is_none_or(|bytes| bytes <= most as u64)
    }

    /// What is gathered goes into the log if the write ends here.
    fn is_small(&self) -> bool {
        let is_object = matches!(self.target, Target::Object { .. });
        let bytes = self.gathered.bytes();
        is_object && self.extents.is_empty() && bytes <= self.local.shared.options.inline_bytes
    }

    /// Refuses to go on where bytes are missing.
    fn check_whole(&self) -> Result<()> {
        if self.is_torn {
            let why = "a write before this failed or was given up; stage the object anew";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }

    async fn take_in_short(&mut self) -> Result<()> {
        let joined = self.short.split().freeze();
        self.take_in(joined).await
    }

    async fn end_extent(&mut self) -> Result<()> {
        let (payload, table) = self.gathered.take();
        self.context.guard(self.extents.end(&self.local, payload, &table)).await?
    }

    /// Makes the extents durable, before any record refers to them.
    async fn sync_extents(&self) -> Result<()> {
        for pin in &self.extents.pins {
            self.local.committer.check()?;
            let synced = self.context.guard(pin.0.sync(&self.local.shared.io)).await?;
            if let Err(e) = synced {
                self.local.committer.fail();
                return Err(e);
            }
        }
        Ok(())
    }

    /// The entity tag; empty where the committer makes it of the MD5.
    fn etag(&self, md5: FoundMd5) -> ETag {
        match (self.etag, md5) {
            (ETagForm::Md5, FoundMd5::Known(md5)) => ETag::from_md5(&md5),
            (ETagForm::Md5, FoundMd5::Late) => ETag::from_text(""),
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
        self.check_whole()?;
        self.is_torn = true;
        if bytes.len() < SHORT_BYTES {
            self.short.extend_from_slice(&bytes);
            if self.short.len() >= BLOCK_BYTES {
                self.take_in_short().await?;
            }
        } else {
            self.take_in_short().await?;
            self.take_in(bytes).await?;
        }
        self.is_torn = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, mut expected: Expected) -> Result<(Committed, Observation)> {
        self.context.check()?;
        self.check_whole()?;
        self.take_in_short().await?;
        let begun = self.local.shared.clock.now();
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
            FoundMd5::Late => Some(Md5Use {
                is_etag: self.etag == ETagForm::Md5,
                expected: Expected { md5: expected.md5.take(), ..Expected::default() },
            }),
            FoundMd5::Known(_) | FoundMd5::NotWanted => None,
        };
        expected.or_size(self.said).verify(self.size, md5.known(), &computed)?;
        if self.keeps_crc64 {
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
            Target::Object { bucket, key, metadata } => {
                let content = if small {
                    Content::Inline
                } else {
                    Content::Extents { runs: extents.runs, fresh: extents.fresh }
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
                    rewrites: None,
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
            Target::Part { bucket, key, upload, number } => {
                let part = Part {
                    upload,
                    number,
                    size: staged.size,
                    modified,
                    etag,
                    checksums,
                    runs: extents.runs,
                    fresh: extents.fresh,
                };
                let put = PutPart { bucket, key, part: Box::new(part), pins: extents.pins };
                committed.generation = staged.context.guard(local.committer.submit(put)).await??;
            }
        }
        let observation = Observation {
            first_byte: local.shared.clock.now().saturating_sub(begun),
            wire_bytes: staged.size,
            ..Observation::default()
        };
        Ok((committed, observation))
    }
}
