//! Writing: bytes are gathered up to the size of a part. What ends before goes out as one PutObject at the commit, with
//! its condition and its checksum; what goes on becomes a multipart upload, whose completion carries the condition.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::DATE;
use http::{HeaderMap, Method};
use std::sync::Arc;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CommitRequest, StageRequest, Staged};
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, Context, ETag, Observation, Precondition, Timestamp,
};

use super::S3Store;
use super::client::Call;
use super::endpoint::Query;
use super::failure::Subject;
use super::headers;
use super::payload::Payload;
use super::read::generation;

/// An answer that says nothing but headers.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// What a write becomes.
pub(super) enum Target {
    Object,
    /// With the checksum that the upload's parts carry.
    Part(UploadId, PartNumber, Option<Algorithm>),
}

/// A write that is not committed.
pub(super) struct StagedWrite {
    store: Arc<S3Store>,
    context: Context,
    address: Address,
    target: Target,
    request: StageRequest,
    /// Not sent yet.
    pieces: Vec<Bytes>,
    held: usize,
    /// Bytes in all.
    size: u64,
    hashers: Vec<Hasher>,
    /// Where the object did not fit into one part.
    upload: Option<Upload>,
    /// A write before failed or was given up: bytes are missing.
    is_torn: bool,
}

/// A multipart upload of this write's own. Dropping it gives it up.
struct Upload {
    store: Arc<S3Store>,
    context: Context,
    address: Address,
    id: Option<UploadId>,
    parts: Vec<CompletePart>,
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (store, context, address) = (self.store.clone(), self.context.clone(), self.address.clone());
        tokio::spawn(async move {
            if let Err(e) = store.give_up(&context, &address, &id).await {
                tracing::warn!(error = %e, upload = %id, "an upload that was given up is left in the store");
            }
        });
    }
}

impl StagedWrite {
    pub fn new(
        store: Arc<S3Store>,
        context: &Context,
        address: &Address,
        target: Target,
        request: StageRequest,
    ) -> Self {
        let mut algorithms = request.algorithms.clone();
        if let Target::Part(.., Some(algorithm)) = target
            && !algorithms.contains(&algorithm)
        {
            algorithms.push(algorithm);
        }
        if algorithms.is_empty() {
            algorithms.push(Algorithm::Crc64Nvme);
        }
        Self {
            store,
            context: context.clone(),
            address: address.clone(),
            target,
            hashers: algorithms.into_iter().map(Hasher::new).collect(),
            request,
            pieces: Vec::new(),
            held: 0,
            size: 0,
            upload: None,
            is_torn: false,
        }
    }

    async fn take_in(&mut self, mut bytes: Bytes) -> Result<()> {
        self.hashers.iter_mut().for_each(|hasher| hasher.update(&bytes));
        self.size += bytes.len() as u64;
        while self.held + bytes.len() > self.store.part_bytes {
            if matches!(self.target, Target::Part(..)) {
                return Err(Error::new(
                    Reason::EntityTooLarge,
                    format!("this store takes parts of at most {} MiB", self.store.part_bytes >> 20),
                ));
            }
            let fits = bytes.split_to(self.store.part_bytes - self.held);
            self.hold(fits);
            self.send_part().await?;
        }
        self.hold(bytes);
        Ok(())
    }

    fn hold(&mut self, bytes: Bytes) {
        self.held += bytes.len();
        if !bytes.is_empty() {
            self.pieces.push(bytes);
        }
    }

    /// Sends what is held as the next part of an upload that begins with the first.
    async fn send_part(&mut self) -> Result<()> {
        if self.upload.is_none() {
            let create =
                CreateUpload { metadata: self.request.metadata.clone(), checksum: self.checksum_of_upload() };
            let id = self.store.begin_upload(&self.context, &self.address, create).await?;
            self.upload = Some(Upload {
                store: self.store.clone(),
                context: self.context.clone(),
                address: self.address.clone(),
                id: Some(id),
                parts: Vec::new(),
            });
        }
        let pieces = std::mem::take(&mut self.pieces);
        self.held = 0;
        let Some(upload) = &mut self.upload else { unreachable!("it was begun above") };
        let Some(id) = &upload.id else { unreachable!("it ends with the commit only") };
        let number = PartNumber::new(upload.parts.len() as i64 + 1)?;
        let algorithm = self.request.algorithms.first().copied().unwrap_or(Algorithm::Crc64Nvme);
        let checksum = checksum_of(algorithm, &pieces);
        let promised = [checksum];
        let place = (id, number);
        let sending = self.store.send_part(&self.context, &self.address, place, pieces, &promised, None);
        let (answered, _) = sending.await?;
        let part = CompletePart { number, etag: headers::etag(&answered)?, checksum: Some(checksum) };
        upload.parts.push(part);
        Ok(())
    }

    /// Of what the whole is made of parts: a SHA cannot be.
    fn checksum_of_upload(&self) -> Option<(Algorithm, ChecksumScope)> {
        let algorithm = self.request.algorithms.first().copied().unwrap_or(Algorithm::Crc64Nvme);
        let scope = if algorithm.is_crc() { ChecksumScope::FullObject } else { ChecksumScope::Composite };
        Some((algorithm, scope))
    }

    async fn commit_whole(
        self,
        precondition: &Precondition,
        expected: &Expected,
        computed: Vec<Checksum>,
    ) -> Result<(Committed, Observation)> {
        let (answered, observation) = match &self.target {
            Target::Object => {
                let call = Call::object(Method::PUT, &self.address.bucket, self.address.key.as_str());
                let mut call = Call { payload: Payload::of(self.pieces), ..call };
                headers::write_metadata(&self.request.metadata, &mut call.headers)?;
                headers::write_precondition(precondition, &mut call.headers)?;
                // Sent twice, a condition may fail on what the first one did.
                call.may_repeat = *precondition == Precondition::None;
                write_promises(&computed, expected.md5, &mut call.headers)?;
                self.store.put(&self.context, &call).await?
            }
            Target::Part(id, number, algorithm) => {
                let (place, md5) = ((id, *number), expected.md5);
                let of_parts = |checksum: &&Checksum| Some(checksum.algorithm()) == *algorithm;
                let promised: Vec<Checksum> = computed.iter().filter(of_parts).copied().collect();
                let (context, address) = (&self.context, &self.address);
                self.store.send_part(context, address, place, self.pieces, &promised, md5).await?
            }
        };
        let etag = headers::etag(&answered)?;
        Ok((committed(&self.store, etag, self.size, &answered, computed)?, observation))
    }
}

#[async_trait::async_trait]
impl Staged for StagedWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.context.check()?;
        if std::mem::replace(&mut self.is_torn, true) {
            let why = "a write before this failed or was given up; stage the object anew";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        self.take_in(bytes).await?;
        self.is_torn = false;
        Ok(())
    }

    async fn commit(mut self: Box<Self>, request: CommitRequest) -> Result<(Committed, Observation)> {
        self.context.check()?;
        if self.is_torn {
            let why = "a write before this failed or was given up; stage the object anew";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        let computed: Vec<Checksum> =
            std::mem::take(&mut self.hashers).into_iter().map(Hasher::finish).collect();
        let CommitRequest { precondition, expected } = request;
        if self.upload.is_none() {
            // The store compares the MD5 with what arrives there.
            expected.verify(self.size, expected.md5, &computed)?;
            return self.commit_whole(&precondition, &expected, computed).await;
        }
        if expected.md5.is_some() {
            return Err(Error::unsupported("verify the MD5 of an object that it uploads in parts"));
        }
        expected.verify(self.size, None, &computed)?;
        if self.held > 0 {
            self.send_part().await?;
        }
        let Some(mut upload) = self.upload.take() else { unreachable!("it was there above") };
        let Some(id) = upload.id.take() else { unreachable!("it ends with the commit only") };
        let whole = computed.first().copied().filter(|checksum| checksum.algorithm().is_crc());
        let order = CompleteUpload {
            parts: std::mem::take(&mut upload.parts),
            precondition,
            expected_size: Some(self.size),
            expected_checksum: whole,
        };
        let completed = self.store.end_upload(&self.context, &self.address, &id, order).await;
        if completed.is_err() {
            // It is still there, unless the completion was carried out after all; then giving it up is refused.
            upload.id = Some(id);
        }
        Ok((completed?, Observation::default()))
    }
}

impl S3Store {
    /// PutObject; answers the headers.
    async fn put(&self, context: &Context, call: &Call<'_>) -> Result<(HeaderMap, Observation)> {
        let mut answer = self.client.send(context, call).await?;
        let headers = std::mem::take(&mut answer.head.headers);
        let observation = answer.observation.clone();
        answer.collect(MOST_ANSWER_BYTES).await?;
        Ok((headers, observation))
    }

    /// UploadPart; answers the headers.
    async fn send_part(
        &self,
        context: &Context,
        address: &Address,
        (upload, number): (&UploadId, PartNumber),
        pieces: Vec<Bytes>,
        checksums: &[Checksum],
        md5: Option<[u8; 16]>,
    ) -> Result<(HeaderMap, Observation)> {
        let mut call = Call::object(Method::PUT, &address.bucket, address.key.as_str());
        call.subject = Subject::Upload;
        call.query =
            Query::default().with("partNumber", &number.get().to_string()).with("uploadId", &upload.0);
        call.payload = Payload::of(pieces);
        write_promises(checksums, md5, &mut call.headers)?;
        self.put(context, &call).await
    }
}

/// Checksums for the store to compare with what arrives. S3 takes one of them.
fn write_promises(checksums: &[Checksum], md5: Option<[u8; 16]>, headers: &mut HeaderMap) -> Result<()> {
    if let Some(checksum) = checksums.first() {
        headers.insert(checksum.algorithm().header(), headers::value(&checksum.to_base64())?);
    }
    if let Some(md5) = md5 {
        headers.insert("content-md5", headers::value(&BASE64.encode(md5))?);
    }
    Ok(())
}

fn checksum_of(algorithm: Algorithm, pieces: &[Bytes]) -> Checksum {
    let mut hasher = Hasher::new(algorithm);
    pieces.iter().for_each(|piece| hasher.update(piece));
    hasher.finish()
}

/// What a write became. S3 does not say when it was written: the time of the answer is close to it.
fn committed(
    store: &S3Store,
    etag: ETag,
    size: u64,
    answered: &HeaderMap,
    checksums: Vec<Checksum>,
) -> Result<Committed> {
    let modified: Timestamp = headers::date(answered, &DATE)?.unwrap_or_else(|| store.client.clock.wall());
    let generation = generation(modified, etag.as_str());
    Ok(Committed { etag, size, modified, generation, checksums, scope: ChecksumScope::FullObject })
}
