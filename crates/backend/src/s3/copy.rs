//! Server-side copies of objects, and of ranges into parts.

use std::sync::atomic::Ordering;

use http::{HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest};
use tradewind_core::version::VersionId;
use tradewind_core::{
    Address, Checksum, ChecksumScope, Context, ETag, ObjectInfo, Precondition, ReadConditions, Tags,
    Timestamp,
};

use super::S3Store;
use super::ambiguous_outcome::IdentifiedWrite;
use super::conditions::pinned_to;
use super::headers::{self, ConditionTarget, ResponseChecksums};
use super::missing_etag::PartAddress;
use super::repeats::ChangeGuard;
use super::service_error::ServiceError;
use super::versions::{source_version_id, version_error, version_id};
use super::xml;
use crate::remote::client::{Call, RepeatGuard, ResourceKind};
use crate::remote::copy_source::{check_source_range, copy_source, overwritten_error};
use crate::remote::header_fields::{self, generation};
use crate::remote::query::Query;
use crate::remote::response::StoreResponse;
use crate::remote::time::parse_time;

/// Repeated attempts to copy an object that is overwritten meanwhile.
const MAX_OVERWRITES: usize = 4;
/// Longest response document of a copy.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl S3Store {
    /// CopyObject.
    pub(super) async fn copy_object(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let is_unconditional = request.precondition == Precondition::None
            && request.source_conditions == ReadConditions::default();
        for _ in 0..MAX_OVERWRITES {
            match self.try_copy(context, request.clone()).await {
                // The only condition was that the source is still the one whose metadata was read.
                Err(e) if is_unconditional && e.reason() == Reason::PreconditionFailed => {}
                result => return result,
            }
        }
        self.try_copy(context, request).await
    }

    async fn try_copy(&self, context: &Context, mut request: CopyRequest) -> Result<Committed> {
        let is_explicit = request.metadata.is_none()
            && request.tags.is_none()
            && is_current_version(&request.source, &request.destination);
        // S3 rejects a copy onto itself that changes nothing: this replaces the metadata with the same metadata. A
        // service derives neither a storage class nor a tag from a class: both are explicit in each copy.
        let mut found = None;
        if is_explicit || !self.mapped_classes.is_empty() {
            let info = self.evaluate_conditions(context, &request.source, &request.source_conditions).await?;
            request.source_conditions = pinned_to(&info.etag);
            let metadata = request.metadata.get_or_insert_with(|| info.metadata.clone().for_copy());
            if !self.mapped_classes.is_empty() {
                let tags = request.tags.take().unwrap_or_else(|| info.metadata.tags.clone());
                request.tags = Some(self.mapped_classes.with_tag(tags, metadata.classes.object)?);
            }
            found = Some(info);
        }
        let to = &request.destination;
        let mut call = Call::object(Method::PUT, &to.bucket, to.key.as_str());
        call.is_long_running = true;
        call.headers.insert("x-amz-copy-source", versioned_source(&request.source)?);
        self.check_write_condition(context, &request.precondition).await?;
        self.confirm_version(context, &request.source).await?;
        let is_ceph = self.is_ceph(context).await?;
        let source_info = match (is_ceph, found) {
            (true, None) => {
                Some(self.evaluate_conditions(context, &request.source, &request.source_conditions).await?)
            }
            (true, found) => found,
            (false, _) => None,
        };
        match &source_info {
            Some(source_info) => {
                headers::write_conditions(
                    &pinned_to(&source_info.etag),
                    ConditionTarget::CephCopySource,
                    &mut call.headers,
                )?;
            }
            None => headers::write_conditions(
                &request.source_conditions,
                ConditionTarget::CopySource,
                &mut call.headers,
            )?,
        }
        headers::write_precondition(&request.precondition, &mut call.headers)?;
        let mut metadata = request.metadata;
        // radosgw copies what S3 does not.
        if let (None, Some(source_info)) = (&metadata, &source_info) {
            let copied = source_info.metadata.clone().for_copy();
            metadata = Some(copied).filter(|copied| copied.headers != source_info.metadata.headers);
        }
        let metadata_is_new = metadata.is_some();
        if let Some(mut metadata) = metadata {
            metadata.tags = Default::default();
            self.prepare_classes(context, &metadata).await?;
            self.write_metadata(&metadata, &mut call.headers)?;
            self.write_absent_classes(&metadata.classes, &mut call.headers);
            call.headers.insert("x-amz-metadata-directive", HeaderValue::from_static("REPLACE"));
        }
        // radosgw loses the tags of a copy with new tags or new metadata: they are set by a separate request.
        let separate_tags =
            source_info.as_ref().and_then(|source_info| match (metadata_is_new, &request.tags) {
                (_, Some(tags)) => Some(tags.clone()),
                (true, None) => Some(source_info.metadata.tags.clone()).filter(|tags| !tags.is_empty()),
                (false, None) => None,
            });
        if let Some(tags) = request.tags.as_ref().filter(|_| !is_ceph) {
            call.headers.insert("x-amz-tagging", header_fields::header_value(&headers::tagging(tags))?);
            call.headers.insert("x-amz-tagging-directive", HeaderValue::from_static("REPLACE"));
        }
        if let Some(algorithm) = request.algorithm {
            call.headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
        }
        // A copy of the metadata cannot have an id of its own.
        if metadata_is_new && request.precondition == Precondition::None {
            IdentifiedWrite::add_id(self, to, &request.precondition, &mut call.headers)?;
        }
        call.may_repeat = request.precondition == Precondition::None;
        let guard = ChangeGuard::new(self, context, &to.bucket);
        let mut copied = match self.send_copy(context, &request.source, &call, Some(&guard)).await {
            Err(e) => {
                let size = source_info.as_ref().map(|source_info| source_info.size);
                let identified = IdentifiedWrite::from_headers(&call.headers, size, None);
                let head = self.resolve_failed_call(to, &call, &guard, identified.as_ref(), e).await?;
                let (checksums, scope) = headers::checksums(&head.headers)?;
                let source_version = request.source.version.clone();
                let committed = self.build_committed(&head.headers, 0, checksums)?;
                Committed { scope, source_version, ..committed }
            }
            Ok(result) => match self.name_copy(context, &request.source, to, result).await {
                Ok(copied) => copied,
                Err(e) => return Err(guard.error_after_change(e).await),
            },
        };
        if let Some(source_info) = source_info {
            // The conditions have pinned the source to what was found.
            copied.source_version = copied.source_version.or(source_info.version);
        }
        match self.finish_copy(context, to, &copied, separate_tags).await {
            // radosgw does not name the version of a copy.
            Ok(found) => {
                Ok(Committed { size: found.size, version: copied.version.or(found.version), ..copied })
            }
            Err(e) => Err(guard.error_after_change(e).await),
        }
    }

    /// Sets the tags of a copy that need a separate request. Returns the object that it has created.
    async fn finish_copy(
        &self,
        context: &Context,
        to: &Address,
        copied: &Committed,
        separate_tags: Option<Tags>,
    ) -> Result<ObjectInfo> {
        if let Some(tags) = separate_tags {
            let created = to.clone().with_version(copied.version.clone());
            self.write_tags(context, &created, tags).await?;
        }
        self.find_copied(context, to, copied).await
    }

    /// The object that a copy has created. The response to the copy does not have its size.
    ///
    /// # Errors
    /// [`Conflict`](Reason::Conflict) if another client has overwritten it, and the bucket has not kept it as a version.
    async fn find_copied(&self, context: &Context, to: &Address, copied: &Committed) -> Result<ObjectInfo> {
        let head = GetRequest::default();
        let found = match (self.read_head(context, to, &head).await, &copied.version) {
            (Ok(found), _) if found.info.etag == copied.etag => return Ok(found.info),
            (Err(e), _) if e.reason() != Reason::NoSuchKey => return Err(e),
            (_, Some(version)) => {
                // A request that names the version needs another permission, so it is not the first one.
                let created = to.clone().with_version(Some(version.clone()));
                self.read_head(context, &created, &head).await?.info
            }
            (found, None) => found?.info,
        };
        if found.etag == copied.etag { Ok(found) } else { Err(overwritten_error(to)) }
    }

    /// UploadPartCopy.
    pub(super) async fn copy_to_part(
        &self,
        context: &Context,
        request: CopyPartRequest,
    ) -> Result<Committed> {
        let to = &request.destination;
        let mut call = Call::object(Method::PUT, &to.bucket, to.key.as_str());
        call.resource = ResourceKind::Upload;
        call.query = Query::default()
            .with("partNumber", &request.number.get().to_string())
            .with("uploadId", &request.upload.0);
        call.is_long_running = true;
        call.headers.insert("x-amz-copy-source", versioned_source(&request.source)?);
        headers::write_conditions(
            &request.source_conditions,
            ConditionTarget::CopySource,
            &mut call.headers,
        )?;
        let source_info = self.read_head(context, &request.source, &GetRequest::default()).await?.info;
        let size = source_info.size;
        // radosgw ignores conditions on the source of a part: they are evaluated here, before and after the copy.
        let evaluates_conditions = !request.source_conditions.is_empty() && self.is_ceph(context).await?;
        if evaluates_conditions {
            request.source_conditions.check(&source_info.etag, source_info.modified)?;
        }
        let span = match request.range {
            None => tradewind_core::Span::whole(size),
            Some(range) => range.resolve(size)?,
        };
        if let Some(range) = request.range {
            check_source_range(range, size)?;
            let text = format!("bytes={}-{}", span.offset, span.end() - 1);
            call.headers.insert("x-amz-copy-source-range", header_fields::header_value(&text)?);
        }
        let result = self.send_copy(context, &request.source, &call, None).await?;
        let etag = match &result.etag {
            Some(etag) => etag.clone(),
            // Boxed, because it is rarely needed.
            None => {
                let part = PartAddress { address: to, upload: &request.upload, number: request.number };
                Box::pin(self.find_copied_part_etag(context, part, span.length)).await?
            }
        };
        let copied = result.into_committed(etag);
        if evaluates_conditions {
            self.evaluate_conditions(context, &request.source, &pinned_to(&source_info.etag)).await?;
        }
        // A part has no version.
        let copied = Committed { size: span.length, version: None, ..copied };
        self.cache_part(&request.upload, request.number, &copied);
        Ok(copied)
    }

    /// Adds the ETag of a copied object to its result, if that has none: the ETag of the object that has the same bytes as the
    /// source.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if there is no such object, or if the bytes cannot be compared.
    async fn name_copy(
        &self,
        context: &Context,
        source: &Address,
        to: &Address,
        result: CopyResult,
    ) -> Result<Committed> {
        if let Some(etag) = result.etag.clone() {
            return Ok(result.into_committed(etag));
        }
        // Boxed, because it is rarely needed.
        let read = async |address: &Address| {
            Box::pin(self.read_head(context, address, &GetRequest::default())).await.map(|head| head.info)
        };
        let source = read(source).await?;
        let created = result.version.clone().map(|version| to.clone().with_version(Some(version)));
        // A request that names the version needs another permission, so it is not the first one.
        for candidate in std::iter::once(to.clone()).chain(created) {
            let found = read(&candidate).await?;
            if candidate.version.is_some() || has_same_bytes(&source, &found) {
                return Ok(result.into_committed(found.etag));
            }
        }
        let why = format!("the store's response to the copy to {} has no ETag", to.key);
        Err(Error::new(Reason::Io, format!("{why}, and the copy cannot be recognized in the store")))
    }

    /// Sends a copy and parses the response. A response of status 200 may still contain an
    /// error; then the outcome is unknown if the error may pass.
    async fn send_copy(
        &self,
        context: &Context,
        source: &Address,
        call: &Call<'_>,
        guard: Option<&ChangeGuard<'_>>,
    ) -> Result<CopyResult> {
        let guard = guard.map(|guard| guard as &dyn RepeatGuard);
        let sent = self.send_guarded(context, call, guard).await;
        let response = sent.map_err(|e| version_error(source, &call.method, e))?;
        self.read_copy(source, call, response).await.inspect_err(|e| {
            if e.kind().is_retryable() {
                call.outcome_unknown.store(true, Ordering::Relaxed);
            }
        })
    }

    async fn read_copy(
        &self,
        source: &Address,
        call: &Call<'_>,
        response: StoreResponse,
    ) -> Result<CopyResult> {
        let status = response.head.status;
        let version = version_id(&response.head.headers);
        let source_version = source_version_id(&response.head.headers).or_else(|| source.version.clone());
        let document = response.collect(MAX_RESPONSE_BYTES).await?;
        let (mut etag, mut modified) = (None, None);
        let (mut checksums, mut is_error) = (ResponseChecksums::default(), false);
        xml::for_each_element(&document, |path, text| match path {
            ["Error"] => is_error = true,
            [_, "ETag"] => etag = Some(ETag::from_text(text)),
            [_, "LastModified"] => modified = parse_time(text),
            [_, name] => checksums.read(name, text),
            _ => {}
        })?;
        if is_error {
            let error = ServiceError::parse_body(&document).into_error(status, call.resource, "copying");
            return Err(version_error(source, &call.method, error));
        }
        let modified: Timestamp = modified.unwrap_or_else(|| self.client.clock.wall());
        let (checksums, scope) = checksums.finish();
        let etag = etag.filter(|etag| !etag.as_str().is_empty());
        Ok(CopyResult { etag, modified, checksums, scope, version, source_version })
    }
}

/// The response to a copy.
struct CopyResult {
    /// `None` if the service leaves it out.
    etag: Option<ETag>,
    modified: Timestamp,
    checksums: Vec<Checksum>,
    scope: ChecksumScope,
    version: Option<VersionId>,
    source_version: Option<VersionId>,
}

impl CopyResult {
    /// The object or part with this ETag; its size is 0.
    fn into_committed(self, etag: ETag) -> Committed {
        let Self { modified, checksums, scope, version, source_version, .. } = self;
        let generation = generation(modified, etag.as_str());
        Committed { etag, size: 0, modified, generation, checksums, scope, version, source_version }
    }
}

/// Returns true if two objects certainly have the same bytes.
fn has_same_bytes(one: &ObjectInfo, other: &ObjectInfo) -> bool {
    let is_comparable = |checksum: &&Checksum| {
        one.scope == other.scope && other.checksums.iter().any(|c| c.algorithm() == checksum.algorithm())
    };
    one.size == other.size
        && match one.checksums.iter().find(is_comparable) {
            Some(checksum) => other.checksums.contains(checksum),
            None => one.etag == other.etag,
        }
}

/// The header value that names the source.
fn versioned_source(source: &Address) -> Result<HeaderValue> {
    copy_source(&source.bucket, source.key.as_str(), source.version.as_ref())
}

/// Returns true if `source` may be the current version at `destination`.
fn is_current_version(source: &Address, destination: &Address) -> bool {
    (&source.bucket, &source.key) == (&destination.bucket, &destination.key)
        && !matches!(source.version, Some(VersionId::Id(_)))
}
