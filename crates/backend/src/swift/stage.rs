//! Staged writes. A small body is buffered, and becomes one object with the commit. A larger body is written into
//! segments as it arrives; the manifest is written with the commit.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{DATE, LAST_MODIFIED};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::Result;
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{StageRequest, Staged};
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, Context, ETag, Metadata, Observation, Timestamp,
};

use super::part_records::PartRecord;
use super::replace::ObjectContent;
use super::segments::{Segment, SegmentWriter};
use super::stored_metadata::StoredMetadata;
use super::{SwiftStore, names};
use crate::remote::header_fields::{generation, parse_date};
use crate::remote::limits::{MAX_BUFFERED_BYTES, MAX_REQUEST_OBJECT_BYTES, part_too_large_error};
use crate::remote::write_progress::WriteProgress;

/// The destination of a write.
pub(super) enum WriteTarget {
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
    target: WriteTarget,
    metadata: Metadata,
    /// The id of its data in the companion.
    id: String,
    hashers: Vec<Hasher>,
    md5: Md5,
    progress: WriteProgress,
    mode: WriteMode,
}

/// The handling of a write's bytes until the commit.
enum WriteMode {
    /// Buffered until the commit.
    Buffered(Vec<Bytes>),
    /// Written into segments as they arrive.
    Streamed(Box<SegmentWriter>),
}

impl StagedWrite {
    pub fn new(
        store: Arc<SwiftStore>,
        context: &Context,
        address: &Address,
        target: WriteTarget,
        request: StageRequest,
    ) -> Result<Self> {
        let mut algorithms = request.algorithms;
        let needed = match &target {
            WriteTarget::Object => algorithms.is_empty().then_some(Algorithm::Crc64Nvme),
            WriteTarget::Part { algorithm, .. } => {
                Some(*algorithm).filter(|needed| !algorithms.contains(needed))
            }
        };
        algorithms.extend(needed);
        if matches!(target, WriteTarget::Part { .. })
            && request.size.is_some_and(|size| size > MAX_REQUEST_OBJECT_BYTES)
        {
            return Err(part_too_large_error());
        }
        Ok(Self {
            id: names::unique_id(store.clock().wall())?,
            store,
            context: context.clone(),
            address: address.clone(),
            target,
            metadata: request.metadata,
            hashers: algorithms.into_iter().map(Hasher::new).collect(),
            md5: Md5::new(),
            progress: WriteProgress::new(request.size),
            mode: WriteMode::Buffered(Vec::new()),
        })
    }

    fn new_segment_writer(&self) -> SegmentWriter {
        let (prefix, max_segment_bytes) = match &self.target {
            WriteTarget::Object => (names::segment_prefix(&self.id), self.store.segment_bytes),
            WriteTarget::Part { upload, number, .. } => (
                format!("{}{:05}-{}-", names::segment_prefix(&upload.0), number.get(), self.id),
                MAX_REQUEST_OBJECT_BYTES,
            ),
        };
        SegmentWriter::new(
            self.store.clone(),
            &self.context,
            &self.address.bucket,
            prefix,
            max_segment_bytes,
            self.progress.declared_bytes(),
        )
    }

    async fn append(&mut self, bytes: Bytes) -> Result<()> {
        self.progress.add(bytes.len())?;
        let size = self.progress.written_bytes();
        if matches!(self.target, WriteTarget::Part { .. }) && size > MAX_REQUEST_OBJECT_BYTES {
            return Err(part_too_large_error());
        }
        self.hashers.iter_mut().for_each(|hasher| hasher.update(&bytes));
        if let WriteMode::Buffered(pieces) = &mut self.mode {
            if size <= MAX_BUFFERED_BYTES {
                self.md5.update(&bytes);
                pieces.push(bytes);
                return Ok(());
            }
            let buffered = std::mem::take(pieces);
            let mut segments = self.new_segment_writer();
            let mut before = Md5::new();
            for piece in buffered {
                segments.write(piece.clone(), &before).await?;
                before.update(&piece);
            }
            self.mode = WriteMode::Streamed(Box::new(segments));
        }
        if let WriteMode::Streamed(segments) = &mut self.mode {
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
        let Self { store, context, address, metadata, id, progress, mode, .. } = self;
        let size = progress.written_bytes();
        let etag = ETag::from_md5(&md5);
        let scope = ChecksumScope::FullObject;
        let mut stored =
            StoredMetadata { metadata, checksums: checksums.clone(), ..StoredMetadata::default() };
        let head = match mode {
            WriteMode::Buffered(pieces) => {
                store.replace_object(&context, &address, stored, ObjectContent::Bytes(pieces)).await?
            }
            WriteMode::Streamed(segments) => {
                let complete = segments.finish(&self.md5).await?;
                (stored.etag, stored.id) = (Some(etag.clone()), Some(id));
                let segments = complete.into_segments();
                let content = ObjectContent::Segments(segments.clone());
                let put = store.replace_object(&context, &address, stored, content).await;
                store.delete_if_rejected(&context, &address, &segments, &put).await;
                put?
            }
        };
        let modified = store.modification_time(&head.headers)?;
        let generation = generation(modified, etag.as_str());
        Ok((
            Committed {
                etag,
                size,
                modified,
                generation,
                checksums,
                scope,
                version: None,
                source_version: None,
            },
            head.observation,
        ))
    }

    async fn commit_part(self, md5: [u8; 16], checksums: Vec<Checksum>) -> Result<(Committed, Observation)> {
        let mut segments = self.new_segment_writer();
        let Self { store, context, address, target, progress, mode, .. } = self;
        let size = progress.written_bytes();
        let WriteTarget::Part { upload, number, .. } = target else {
            unreachable!("`commit_part` is called for parts only")
        };
        let complete = match mode {
            WriteMode::Buffered(pieces) => {
                let mut before = Md5::new();
                for piece in pieces {
                    segments.write(piece.clone(), &before).await?;
                    before.update(&piece);
                }
                segments.finish(&before).await?
            }
            WriteMode::Streamed(segments) => segments.finish(&self.md5).await?,
        };
        let etag = ETag::from_md5(&md5);
        let segments = complete.into_segments();
        let segment = segments.first().map(|segment| segment.name.clone());
        let record = PartRecord { number, size, md5, checksums: checksums.clone(), segment };
        let put = store.put_record(&context, &address, &upload, &record).await;
        store.delete_if_rejected(&context, &address, &segments, &put).await;
        let modified = put?;
        let generation = generation(modified, etag.as_str());
        let scope = ChecksumScope::FullObject;
        Ok((
            Committed {
                etag,
                size,
                modified,
                generation,
                checksums,
                scope,
                version: None,
                source_version: None,
            },
            Observation::default(),
        ))
    }
}

#[async_trait::async_trait]
impl Staged for StagedWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.context.check()?;
        self.progress.start_write()?;
        self.append(bytes).await?;
        self.progress.end_write();
        Ok(())
    }

    async fn commit(mut self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.context.check()?;
        self.progress.check_complete()?;
        let hashers = std::mem::take(&mut self.hashers);
        let computed: Vec<Checksum> = hashers.into_iter().map(Hasher::finish).collect();
        let md5: [u8; 16] = self.md5.clone().finalize().into();
        expected.with_default_size(self.progress.declared_bytes()).verify(
            self.progress.written_bytes(),
            Some(md5),
            &computed,
        )?;
        match self.target {
            WriteTarget::Object => self.commit_object(md5, computed).await,
            WriteTarget::Part { .. } => self.commit_part(md5, computed).await,
        }
    }
}

impl SwiftStore {
    /// Deletes segments if the request that should refer to them was definitely rejected. After any other failure, and
    /// if the commit was cancelled, the request may have taken effect, so the segments remain.
    async fn delete_if_rejected<T>(
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
    pub(super) fn modification_time(&self, headers: &HeaderMap) -> Result<Timestamp> {
        let modified = parse_date(headers, &LAST_MODIFIED)?.or(parse_date(headers, &DATE)?);
        Ok(modified.unwrap_or_else(|| self.clock().wall()))
    }
}
