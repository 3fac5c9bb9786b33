//! Server-side copies of objects, and of ranges into parts.

use http::{HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest};
use tradewind_core::{Context, ETag, Timestamp};

use super::S3Store;
use super::conditions::pinned_to;
use super::headers::{self, ConditionTarget, ResponseChecksums};
use super::service_error::ServiceError;
use super::xml;
use crate::remote::client::{Call, ResourceKind};
use crate::remote::copy_source::{check_source_range, copy_source, overwritten_error};
use crate::remote::header_fields::{self, generation};
use crate::remote::query::Query;
use crate::remote::time::parse_time;

/// Longest response document of a copy.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl S3Store {
    /// CopyObject.
    pub(super) async fn copy_object(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let to = &request.destination;
        let mut call = Call::object(Method::PUT, &to.bucket, to.key.as_str());
        call.is_long_running = true;
        let source = copy_source(&request.source.bucket, request.source.key.as_str())?;
        call.headers.insert("x-amz-copy-source", source);
        self.check_write_condition(context, &request.precondition).await?;
        let is_ceph = self.is_ceph(context).await?;
        let source_info = match is_ceph {
            true => {
                Some(self.evaluate_conditions(context, &request.source, &request.source_conditions).await?)
            }
            false => None,
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
        if metadata.is_none() && request.tags.is_none() && request.source == *to {
            // S3 rejects a copy onto itself that changes nothing: this replaces the metadata with the same metadata.
            metadata = Some(self.read_head(context, to, &GetRequest::default()).await?.info.metadata);
        }
        let metadata_is_new = metadata.is_some();
        if let Some(mut metadata) = metadata {
            metadata.tags = Default::default();
            headers::write_metadata(&metadata, &mut call.headers)?;
            headers::write_absent_classes(&metadata.classes, &mut call.headers);
            call.headers.insert("x-amz-metadata-directive", HeaderValue::from_static("REPLACE"));
        }
        // radosgw loses the tags of a copy with new tags or new metadata: they are set by a separate request.
        let separate_tags = source_info.and_then(|source_info| match (metadata_is_new, &request.tags) {
            (_, Some(tags)) => Some(tags.clone()),
            (true, None) => Some(source_info.metadata.tags).filter(|tags| !tags.is_empty()),
            (false, None) => None,
        });
        if let Some(tags) = request.tags.as_ref().filter(|_| !is_ceph) {
            call.headers.insert("x-amz-tagging", header_fields::header_value(&headers::tagging(tags))?);
            call.headers.insert("x-amz-tagging-directive", HeaderValue::from_static("REPLACE"));
        }
        if let Some(algorithm) = request.algorithm {
            call.headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
        }
        call.may_repeat = request.precondition == Default::default();
        let copied = self.send_copy(context, &call).await?;
        if let Some(tags) = separate_tags {
            self.write_tags(context, to, tags).await?;
        }
        let found = self.read_head(context, to, &GetRequest::default()).await?.info;
        if found.etag != copied.etag {
            // Another client has overwritten it. The copy's response has no size, so it cannot be reported.
            return Err(overwritten_error(to));
        }
        Ok(Committed { size: found.size, ..copied })
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
        let source = copy_source(&request.source.bucket, request.source.key.as_str())?;
        call.headers.insert("x-amz-copy-source", source);
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
        let copied = self.send_copy(context, &call).await?;
        if evaluates_conditions {
            self.evaluate_conditions(context, &request.source, &pinned_to(&source_info.etag)).await?;
        }
        let copied = Committed { size: span.length, ..copied };
        self.cache_part(&request.upload, request.number, &copied);
        Ok(copied)
    }

    /// Sends a copy and parses the response; the size in the result is 0. A response of status 200 may still contain an
    /// error.
    async fn send_copy(&self, context: &Context, call: &Call<'_>) -> Result<Committed> {
        let response = self.send(context, call).await?;
        let status = response.head.status;
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
            return Err(ServiceError::parse_body(&document).into_error(status, call.resource, "copying"));
        }
        let etag =
            etag.ok_or_else(|| Error::new(Reason::Io, "the store's response to the copy has no ETag"))?;
        let modified: Timestamp = modified.unwrap_or_else(|| self.client.clock.wall());
        let generation = generation(modified, etag.as_str());
        let (checksums, scope) = checksums.finish();
        Ok(Committed {
            etag,
            size: 0,
            modified,
            generation,
            checksums,
            scope,
            version: None,
            source_version: None,
        })
    }
}
