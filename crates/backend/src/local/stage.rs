//! Bytes on their way in: hashed once as they pass, gathered into blocks and extents, and written as
//! extents as soon as one is full. What stays small goes into the log with its commit record.

mod digests;
mod ids;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tradewind_core::checksum::{ChecksumScope, Crc64Blocks, Hasher};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CommitRequest, ETagForm, StageRequest};
use tradewind_core::{Algorithm, Checksum, Context, ETag, Metadata, Observation, Staged};

use self::digests::{Digests, FoundMd5};
use self::ids::ExtentIds;
use super::bulk::ExtentBytes;
use super::commit::{Md5Use, PutObject, PutPart};
use super::frame::{BLOCK_BYTES, MAX_PAYLOAD_BYTES};
use super::leaf::Local;
use super::record::{Content, ExtentAt, Object, Part, Run, UploadSeq};
use super::segment::Pin;

/// Buffers shorter than this are joined to larger ones.
const SHORT_BYTES: usize = 2 << 10;

const BLOCKS: Crc64Blocks = Crc64Blocks::new(BLOCK_BYTES as u64);

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
    ids: ExtentIds,
    runs: Vec<Run>,
    extents: Vec<ExtentAt>,
    pins: Vec<Pin>,
    size: u64,
    /// Short buffers, joined: a body in single bytes must not cost a buffer's bookkeeping for each.
    short: BytesMut,
    /// A write failed or was given up half way: its bytes are not all here.
    is_torn: bool,
}

/// Bytes not written yet, with the checksums of their full blocks.
#[derive(Default)]
struct Gathered {
    frames: Vec<Bytes>,
    bytes: usize,
    table: Vec<u64>,
    block: Option<(Hasher, usize)>,
    /// Checksum of everything before the open block.
    whole: u64,
}

impl Gathered {
    fn push(&mut self, frame: Bytes) {
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let (hasher, filled) = self.block.get_or_insert_with(|| (Hasher::new(Algorithm::Crc64Nvme), 0));
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - *filled));
            hasher.update(now);
            *filled += now.len();
            rest = later;
            if *filled == BLOCK_BYTES {
                self.close_block();
            }
        }
        self.bytes += frame.len();
        self.frames.push(frame);
    }

    fn close_block(&mut self) {
        if let Some((hasher, length)) = self.block.take() {
            let crc = hasher.finish().crc64_value();
            self.table.push(crc);
            self.whole = BLOCKS.combine(self.whole, crc, length as u64);
        }
    }

    /// Everything gathered, as one record's payload.
    fn take(&mut self) -> (Vec<Bytes>, usize, Vec<u64>) {
        self.close_block();
        (std::mem::take(&mut self.frames), std::mem::take(&mut self.bytes), std::mem::take(&mut self.table))
    }
}

impl LocalStaged {
    pub fn new(local: Arc<Local>, context: Context, target: Target, request: StageRequest) -> Self {
        let plan_md5 = request.etag == ETagForm::Md5 || request.verify_md5;
        let ids = ExtentIds::for_size(request.size_hint);
        let digests = Digests::new(&local.shared.hashing, plan_md5, &request.algorithms);
        Self {
            local,
            context,
            target,
            etag: request.etag,
            keeps_crc64: request.algorithms.is_empty() || request.algorithms.contains(&Algorithm::Crc64Nvme),
            digests,
            gathered: Gathered::default(),
            ids,
            runs: Vec::new(),
            extents: Vec::new(),
            pins: Vec::new(),
            size: 0,
            short: BytesMut::new(),
            is_torn: false,
        }
    }

    /// Hashes and gathers bytes; writes each extent that is full.
    async fn take_in(&mut self, bytes: Bytes) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = MAX_PAYLOAD_BYTES - self.gathered.bytes;
            let frame = rest.split_to(rest.len().min(room));
            self.size += frame.len() as u64;
            self.digests.update(&frame).await;
            self.gathered.push(frame);
            if self.gathered.bytes == MAX_PAYLOAD_BYTES {
                self.flush_extent().await?;
            }
        }
        Ok(())
    }

    async fn take_in_short(&mut self) -> Result<()> {
        let joined = self.short.split().freeze();
        self.take_in(joined).await
    }

    async fn flush_extent(&mut self) -> Result<()> {
        let (payload, payload_bytes, table) = self.gathered.take();
        let id = self.ids.next(&self.local.shared.next_id);
        let extent = ExtentBytes { id, payload, payload_bytes, table, relocated: false };
        let write = self.local.write_extent(extent);
        let (at, pin) = self.context.guard(write).await??;
        self.extents.push(at);
        if !self.pins.iter().any(|held| held.0.number == pin.0.number) {
            self.pins.push(pin);
        }
        match self.runs.last_mut() {
            Some(run) if run.ids().end == id && run.bytes % MAX_PAYLOAD_BYTES as u64 == 0 => {
                run.bytes += payload_bytes as u64;
            }
            _ => self.runs.push(Run { first: id, bytes: payload_bytes as u64 }),
        }
        Ok(())
    }

    /// Makes the extents durable, before any record refers to them.
    async fn sync_extents(&self) -> Result<()> {
        for pin in &self.pins {
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

    async fn commit(mut self: Box<Self>, mut request: CommitRequest) -> Result<(Committed, Observation)> {
        self.context.check()?;
        if self.is_torn {
            return Err(Error::new(
                Reason::InvalidRequest,
                "a write before this commit failed; stage the object anew",
            ));
        }
        self.take_in_short().await?;
        let begun = self.local.shared.clock.now();
        let is_object = matches!(self.target, Target::Object { .. });
        let small = is_object
            && self.extents.is_empty()
            && self.gathered.bytes <= self.local.shared.options.inline_bytes;
        let digests = std::mem::take(&mut self.digests);
        let (md5, mut checksums) = self.context.guard(digests.finish(small)).await?;
        let (payload, table) = if small {
            let (payload, _, table) = self.gathered.take();
            (payload, table)
        } else {
            if self.gathered.bytes > 0 {
                self.flush_extent().await?;
            }
            (Vec::new(), Vec::new())
        };
        let whole = Checksum::crc64nvme(self.gathered.whole);
        let mut computed = checksums.clone();
        computed.push(whole);
        let md5_use = match md5 {
            FoundMd5::Late => Some(Md5Use {
                is_etag: self.etag == ETagForm::Md5,
                expected: Expected { md5: request.expected.md5.take(), ..Expected::default() },
            }),
            FoundMd5::Known(_) | FoundMd5::NotWanted => None,
        };
        request.expected.verify(self.size, md5.known(), &computed)?;
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
        let local = staged.local;
        match staged.target {
            Target::Object { bucket, key, metadata } => {
                let content = if small {
                    Content::Inline
                } else {
                    Content::Extents { runs: staged.runs, fresh: staged.extents }
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
                    precondition: request.precondition,
                    pins: staged.pins,
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
                    runs: staged.runs,
                    fresh: staged.extents,
                };
                let put = PutPart { bucket, key, part: Box::new(part), pins: staged.pins };
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
