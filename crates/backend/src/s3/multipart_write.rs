//! A write of unknown size, or one that cannot be streamed in a single request. It is buffered part by part, so that
//! each part can be retried. With more than one part it becomes a multipart upload.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use tradewind_core::budget::Reservation;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, Context, Metadata, Observation, Precondition,
};

use super::S3Store;
use super::ambiguous_outcome::IdentifiedWrite;
use super::buffered_put::BufferedPut;
use super::headers;
use super::missing_etag::PartAddress;
use super::repeats::ChangeGuard;
use crate::remote::client::{Call, ResourceKind};
use crate::remote::header_fields;
use crate::remote::payload::BufferedBody;
use crate::remote::query::Query;

/// A write that is sent in parts.
pub(super) struct MultipartWrite {
    upload: OwnedUpload,
    metadata: Metadata,
    algorithm: Algorithm,
    buffer: PartBuffer,
    size: u64,
}

/// Buffered bytes, copied into memory that is accounted to the store's budget.
pub(super) struct PartBuffer {
    max_bytes: usize,
    bytes: Vec<u8>,
    reservations: Vec<Reservation>,
}

impl PartBuffer {
    /// Creates an empty buffer.
    pub const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: Vec::new(), reservations: Vec::new() }
    }

    /// Copies bytes into the buffer; its total must not exceed the maximum. Fails with
    /// [`Overloaded`](Reason::Overloaded) if the budget is exhausted.
    pub fn append(&mut self, store: &S3Store, bytes: &[u8]) -> Result<()> {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let grown = needed.next_power_of_two().min(self.max_bytes);
            let more = store.buffer_budget.try_reserve(grown - self.bytes.capacity()).ok_or_else(|| {
                let why = "too many writes are buffering a part; retry later";
                Error::new(Reason::Overloaded, why)
            })?;
            self.bytes.reserve_exact(grown - self.bytes.len());
            self.reservations.push(more);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes all bytes. Their memory stays reserved until `reservations` is cleared or dropped.
    pub fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.bytes))
    }
}

/// The multipart upload of this write. Dropping it aborts the upload in the background.
struct OwnedUpload {
    store: Arc<S3Store>,
    context: Context,
    address: Address,
    /// `None` before the first part, and once it is completed.
    id: Option<UploadId>,
    parts: Vec<CompletePart>,
}

impl Drop for OwnedUpload {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (store, context, address) = (self.store.clone(), self.context.clone(), self.address.clone());
        tokio::spawn(async move {
            if let Err(e) = store.abort(&context, &address, &id).await {
                tracing::warn!(error = %e, upload = %id, "cannot abort an upload: its parts remain in the store");
            }
        });
    }
}

impl MultipartWrite {
    pub fn new(store: Arc<S3Store>, context: &Context, address: &Address, request: &StageRequest) -> Self {
        let (context, address, part_bytes) = (context.clone(), address.clone(), store.part_bytes);
        Self {
            upload: OwnedUpload { store, context, address, id: None, parts: Vec::new() },
            metadata: request.metadata.clone(),
            algorithm: request.algorithms.first().copied().unwrap_or(Algorithm::Crc64Nvme),
            buffer: PartBuffer::new(part_bytes),
            size: 0,
        }
    }

    /// Buffers bytes, and sends each full part once more bytes follow it.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        let part_bytes = self.upload.store.part_bytes;
        while self.buffer.bytes.len() + bytes.len() > part_bytes {
            let fits = bytes.split_to(part_bytes - self.buffer.bytes.len());
            self.buffer.append(&self.upload.store, &fits)?;
            self.send_part().await?;
        }
        self.buffer.append(&self.upload.store, &bytes)
    }

    /// Sends the buffered bytes as the next part.
    async fn send_part(&mut self) -> Result<()> {
        let OwnedUpload { store, context, address, id, parts } = &mut self.upload;
        let id = match id {
            Some(id) => id,
            None => {
                let algorithm = self.algorithm;
                // The SHA of the whole cannot be computed from those of its parts.
                let scope =
                    if algorithm.is_crc() { ChecksumScope::FullObject } else { ChecksumScope::Composite };
                let metadata = self.metadata.clone();
                let create = CreateUpload { metadata, checksum: Some((algorithm, scope)) };
                id.insert(store.start_upload(context, address, create).await?)
            }
        };
        let number = PartNumber::new(parts.len() as i64 + 1)?;
        let bytes = self.buffer.take();
        let checksum = Checksum::compute(self.algorithm, &bytes);
        let mut call = Call::object(Method::PUT, &address.bucket, address.key.as_str());
        call.resource = ResourceKind::Upload;
        call.query = part_query(id, number);
        call.payload = BufferedBody::from_buffers([bytes]);
        let part = PartAddress { address, upload: id, number };
        let put = BufferedPut { call, digests: checksum.into(), checksum };
        let head = store.put_part(context, part, put).await?;
        self.buffer.reservations.clear();
        parts.push(CompletePart {
            number,
            etag: header_fields::etag(&head.headers)?,
            checksum: Some(checksum),
        });
        Ok(())
    }

    /// Commits the object: by one PUT if nothing was sent yet, otherwise by completing the upload.
    pub async fn commit(
        mut self,
        precondition: Precondition,
        checksum: Checksum,
        computed: Vec<Checksum>,
    ) -> Result<(Committed, Observation)> {
        if self.upload.id.is_none() {
            return self.commit_in_one_request(&precondition, checksum, computed).await;
        }
        if !self.buffer.bytes.is_empty() {
            self.send_part().await?;
        }
        let upload = &mut self.upload;
        let Some(id) = upload.id.take() else { unreachable!("the upload id was checked above") };
        let completion = CompleteUpload {
            parts: std::mem::take(&mut upload.parts),
            precondition,
            expected_size: Some(self.size),
            expected_checksum: Some(checksum).filter(|checksum| checksum.algorithm().is_crc()),
            identity: None,
        };
        let completed =
            upload.store.complete_upload_checked(&upload.context, &upload.address, &id, completion).await;
        if completed.is_err() {
            // The upload still exists, unless the completion succeeded after all; then the store rejects the abort.
            upload.id = Some(id);
        }
        Ok((completed?, Observation::default()))
    }

    async fn commit_in_one_request(
        mut self,
        precondition: &Precondition,
        checksum: Checksum,
        computed: Vec<Checksum>,
    ) -> Result<(Committed, Observation)> {
        let OwnedUpload { store, context, address, .. } = &self.upload;
        let mut call = Call::object(Method::PUT, &address.bucket, address.key.as_str());
        store.write_metadata(&self.metadata, &mut call.headers)?;
        headers::write_precondition(precondition, &mut call.headers)?;
        call.may_repeat = IdentifiedWrite::add_id(store, address, precondition, &mut call.headers)?;
        let identified = IdentifiedWrite::from_headers(&call.headers, self.size, checksum);
        call.payload = BufferedBody::from_buffers([self.buffer.take()]);
        let put = BufferedPut { call, digests: checksum.into(), checksum };
        let head = store.put_object(context, address, put, identified).await?;
        let guard = ChangeGuard::new(store, context, &address.bucket);
        let committed = store.committed_object(&guard, &head.headers, self.size, computed).await?;
        Ok((committed, head.observation))
    }
}

/// The query of a part's upload.
pub(super) fn part_query(upload: &UploadId, number: PartNumber) -> Query {
    Query::default().with("partNumber", &number.get().to_string()).with("uploadId", &upload.0)
}
