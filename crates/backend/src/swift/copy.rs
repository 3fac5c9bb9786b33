//! Copies: server-side if all checksums are known, otherwise through this process, which computes them.

use futures::StreamExt as _;
use http::header::{ETAG, IF_MATCH};
use http::{HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{
    CopyPartRequest, CopyRequest, GetRequest, ObjectStore as _, Select, StageRequest,
};
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, Context, ETag, Metadata, ObjectInfo};

use super::stored_metadata::StoredMetadata;
use super::{SwiftStore, names, reject_condition};
use crate::remote::client::Call;
use crate::remote::copy_source::{check_source_range, copy_source, overwritten_error};
use crate::remote::header_fields;
use crate::remote::limits::MAX_REQUEST_OBJECT_BYTES;

impl SwiftStore {
    /// Copies an object. The copy is one Swift object up to 5 GiB, and has segments beyond.
    pub(super) async fn copy_object(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        context.check()?;
        reject_condition(&request.precondition)?;
        let conditions = request.source_conditions.clone();
        let head = GetRequest { conditions: conditions.clone(), ..GetRequest::default() };
        self.require_current(context, &request.source).await?;
        let source = self.read_head(context, &request.source, &head).await?.info;
        let kept_algorithm = || source.checksums.first().map_or(Algorithm::Crc64Nvme, Checksum::algorithm);
        let algorithm = request.algorithm.unwrap_or_else(kept_algorithm);
        let tags = request.tags.clone().unwrap_or_else(|| source.metadata.tags.clone());
        let metadata = request.metadata.clone().unwrap_or_else(|| source.metadata.clone().for_copy());
        let metadata = Metadata { tags, ..metadata };
        metadata.check()?;
        let available = source.checksums.iter().find(|checksum| checksum.algorithm() == algorithm);
        let available = available.filter(|_| source.scope == ChecksumScope::FullObject);
        if let Some(checksum) = available.copied()
            && source.size <= MAX_REQUEST_OBJECT_BYTES
        {
            let stored = StoredMetadata {
                metadata: metadata.clone(),
                checksums: vec![checksum],
                ..StoredMetadata::default()
            };
            if let Some(copied) = self.copy_server_side(context, &request, &source, stored).await? {
                return Ok(copied);
            }
        }
        // The source may have been overwritten since the HEAD; its ETag is compared below.
        let found = self.read_object(context, &request.source, &head).await?;
        let size = Some(found.info.size);
        let staged = StageRequest { metadata, size, algorithms: vec![algorithm], ..StageRequest::default() };
        if found.info.etag != source.etag {
            return Err(overwritten_error(&request.source));
        }
        let mut staged = self.stage(context, &request.destination, staged).await?;
        let mut body = found.body;
        while let Some(piece) = body.next().await {
            staged.write(piece?).await?;
        }
        Ok(staged.commit(Expected::default()).await?.0)
    }

    /// Copies server-side. Returns `None` if Swift's `If-Match` fails although the ETag is current: for a copy of a
    /// static large object, Swift compares the ETag of the original.
    async fn copy_server_side(
        &self,
        context: &Context,
        request: &CopyRequest,
        source: &ObjectInfo,
        mut stored: StoredMetadata,
    ) -> Result<Option<Committed>> {
        let (from, to) = (&request.source, &request.destination);
        let previous_id = self.current_id(context, to).await?;
        let from_name = names::object(from.key.as_str())?;
        // Swift compares its native ETag, which is the object's ETag unless the metadata has another one.
        let native =
            self.send_and_drain(context, &Call::object(Method::HEAD, &from.bucket, &from_name)).await?;
        let current = StoredMetadata::decode(&native.headers, Some(b"{}"))?;
        let native = header_fields::etag(&native.headers)?;
        if current.etag.as_ref().unwrap_or(&native) != &source.etag {
            return Err(overwritten_error(from));
        }
        let mut encoded = stored.encode()?;
        if encoded.overflow.is_some() {
            stored.id = Some(names::unique_id(self.clock().wall())?);
            encoded = stored.encode()?;
        }
        if let (Some(overflow), Some(write)) = (encoded.overflow, &stored.id) {
            let companion = self.ensure_companion(context, &to.bucket).await?;
            self.put_companion_object(context, &companion, &names::metadata(write), overflow).await?;
        }
        let to_name = names::object(to.key.as_str())?;
        let mut call = Call::object(Method::PUT, &to.bucket, &to_name);
        call.headers = encoded.headers;
        call.headers.insert("x-copy-from", copy_source(&from.bucket, &from_name, None)?);
        call.headers.insert("x-fresh-metadata", HeaderValue::from_static("true"));
        call.headers.insert(IF_MATCH, header_fields::header_value(&format!("\"{native}\""))?);
        let headers = match self.send_change(context, &to.bucket, &call).await {
            Ok(head) => head.headers,
            Err(e) => match e.reason() {
                Reason::PreconditionFailed => return Ok(None),
                Reason::NoSuchKey => {
                    self.find_bucket(context, &to.bucket).await?;
                    return Err(e);
                }
                _ => return Err(e),
            },
        };
        let etag = match headers.contains_key(ETAG) {
            true => header_fields::etag(&headers)?,
            false => self.find_copied_etag(context, to, &native).await?,
        };
        if source.etag.md5().is_some() && etag != source.etag {
            let why = format!("checksum mismatch: the copy has MD5 {etag}, the source has {}", source.etag);
            return Err(Error::new(Reason::BadDigest, why));
        }
        if let Some(previous_id) = previous_id.filter(|previous_id| Some(previous_id) != stored.id.as_ref()) {
            self.free_segments(context, &to.bucket, &previous_id).await;
        }
        let modified = self.modification_time(&headers)?;
        Ok(Some(Committed {
            size: source.size,
            modified,
            generation: header_fields::generation(modified, etag.as_str()),
            etag,
            checksums: stored.checksums,
            scope: ChecksumScope::FullObject,
            version: None,
            source_version: None,
        }))
    }

    /// The ETag of a copy whose response has none, according to its HEAD.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if it is not the ETag of the source: another client has written the key.
    async fn find_copied_etag(&self, context: &Context, to: &Address, native: &ETag) -> Result<ETag> {
        let name = names::object(to.key.as_str())?;
        let head = self.send_and_drain(context, &Call::object(Method::HEAD, &to.bucket, &name)).await?;
        let found = header_fields::etag(&head.headers)?;
        if found != *native {
            let why = format!("the store's response to the copy to {} has no ETag", to.key);
            return Err(Error::new(Reason::Io, format!("{why}, and the store has another object")));
        }
        Ok(found)
    }

    /// Copies into a part, through this process: the part needs its own checksums.
    pub(super) async fn copy_to_part(
        &self,
        context: &Context,
        request: CopyPartRequest,
    ) -> Result<Committed> {
        let CopyPartRequest { source, range, source_conditions, destination, upload, number, .. } = request;
        self.find_upload(context, &destination, &upload).await?;
        self.require_current(context, &source).await?;
        let head = GetRequest { conditions: source_conditions, ..GetRequest::default() };
        let size = self.read_head(context, &source, &head).await?.info.size;
        if let Some(range) = range {
            check_source_range(range, size)?;
        }
        let select = range.map_or(Select::Whole, Select::Range);
        let found = self.read_object(context, &source, &GetRequest { select, ..head }).await?;
        let staged = StageRequest { size: Some(found.span.length), ..StageRequest::default() };
        let mut staged = self.stage_part(context, &destination, &upload, number, staged).await?;
        let mut body = found.body;
        while let Some(piece) = body.next().await {
            staged.write(piece?).await?;
        }
        Ok(staged.commit(Expected::default()).await?.0)
    }
}
