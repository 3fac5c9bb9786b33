//! The operation CopyObject, and the headers that name a copy's source.

use s3s::S3Response;
use s3s::dto::{ChecksumType, CopyObjectInput, CopyObjectOutput, CopyObjectResult};
use tradewind_core::condition::ETagMatch;
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyRequest, GetRequest};
use tradewind_core::{Address, BucketName, Metadata, ObjectInfo, ObjectKey, ReadConditions, Reason, Tags};

use super::call::Call;
use super::checksums::{self, fill_checksums};
use super::classifier::classify;
use super::conditions;
use super::failure::{Failure, Result};
use super::metadata;
use super::operation::{COPY_SOURCE, invalid_bucket_name_error, key_too_long_error};
use super::query::form_decode;
use super::response::{xml_etag, xml_time};
use super::service_context::ServiceContext;
use super::version_id;
use crate::auth::Access;

/// The maximum number of attempts of a copy that depends on its source's metadata while the source changes.
const MAX_ATTEMPTS: usize = 4;

/// CopyObject.
pub(super) async fn object(
    service: &ServiceContext,
    call: &Call,
    _: CopyObjectInput,
) -> Result<S3Response<CopyObjectOutput>> {
    let parameters = CopyParameters::read(call)?;
    let destination = call.address()?;
    if parameters.source == destination && !parameters.changes_source() {
        head_source(service, call, &parameters).await?;
        return Err(Failure::invalid_request(
            "This copy request is illegal because it is trying to copy an object to itself without changing \
             the object's metadata, storage class, website redirect location or encryption attributes.",
        ));
    }
    let committed = execute(service, call, &parameters, &destination).await?;
    let mut result = CopyObjectResult {
        e_tag: Some(xml_etag(&committed.etag)),
        last_modified: Some(xml_time(committed.modified)),
        checksum_type: Some(ChecksumType::from_static(committed.scope.name())),
        ..CopyObjectResult::default()
    };
    fill_checksums!(result, &committed.checksums, committed.scope, None);
    Ok(S3Response::new(CopyObjectOutput {
        copy_object_result: Some(result),
        version_id: version_id::named_by_write(committed.version.as_ref()).map(ToString::to_string),
        copy_source_version_id: committed.source_version.map(|version| version.to_string()),
        ..CopyObjectOutput::default()
    }))
}

/// The parameters of a copy.
struct CopyParameters {
    source: Address,
    conditions: ReadConditions,
    /// All metadata comes from the headers instead of the source.
    replaces_metadata: bool,
    /// The metadata in the headers.
    given: Metadata,
    /// The headers replace the object's class.
    has_object_class: bool,
    /// The headers replace the classes of ranges.
    has_range_classes: bool,
    /// The headers replace the retention.
    has_retention: bool,
    /// The storage class in the headers; `Some(None)` for `STANDARD`.
    storage_class: Option<Option<String>>,
    website_redirect: Option<String>,
    /// New tags; `None` copies those of the source.
    tags: Option<Tags>,
}

impl CopyParameters {
    fn read(call: &Call) -> Result<Self> {
        let replaces_metadata = is_replace(call, "x-amz-metadata-directive")?;
        let tags = match is_replace(call, "x-amz-tagging-directive")? {
            true => Some(metadata::tags(call)?.unwrap_or_default()),
            false => None,
        };
        Ok(Self {
            source: parse_source(call)?,
            conditions: conditions::source_conditions(call)?,
            replaces_metadata,
            given: metadata::read(call)?,
            has_object_class: metadata::has_object_class(call),
            has_range_classes: metadata::has_range_classes(call),
            has_retention: metadata::has_retention(call),
            storage_class: metadata::storage_class(call)?,
            website_redirect: metadata::website_redirect(call)?,
            tags,
        })
    }

    /// Returns true if the headers override a part of the source's metadata.
    fn overrides(&self) -> bool {
        self.has_object_class
            || self.has_range_classes
            || self.has_retention
            || self.storage_class.is_some()
            || self.website_redirect.is_some()
    }

    /// Returns true if the copy changes the object even if it is its own source, by S3's rules.
    fn changes_source(&self) -> bool {
        self.replaces_metadata || self.overrides()
    }

    /// Returns true if the new metadata depends on that of the source. Classes are copied unless the headers replace
    /// them, even if the headers replace all other metadata.
    fn needs_source_metadata(&self) -> bool {
        if !self.given.classes.ranges.is_empty() {
            // They must be within the source.
            true
        } else if self.replaces_metadata {
            !(self.has_object_class && self.has_range_classes && self.has_retention)
        } else {
            self.overrides()
        }
    }

    /// The new metadata, given the source if it is needed; `None` to copy that of the source, except the website
    /// redirect and the storage class, which S3 does not copy.
    fn metadata(&self, source: Option<&ObjectInfo>) -> Option<Metadata> {
        let Some(source) = source else { return self.replaces_metadata.then(|| self.given.clone()) };
        let mut new = if self.replaces_metadata {
            self.given.clone()
        } else {
            let mut copied = source.metadata.clone().for_copy();
            copied.headers.storage_class = self.storage_class.clone().flatten();
            copied.headers.website_redirect.clone_from(&self.website_redirect);
            copied
        };
        let (old, given) = (&source.metadata.classes, &self.given.classes);
        new.classes.object = if self.has_object_class { given.object } else { old.object };
        new.classes.ranges = if self.has_range_classes { given.ranges.clone() } else { old.ranges.clone() };
        new.classes.retention = if self.has_retention { given.retention } else { old.retention };
        Some(new)
    }
}

/// Executes a copy. If the source's metadata is needed, the copy is pinned to the version that was read, and retried if
/// that version was replaced.
async fn execute(
    service: &ServiceContext,
    call: &Call,
    parameters: &CopyParameters,
    destination: &Address,
) -> Result<Committed> {
    let mut request = CopyRequest {
        source: parameters.source.clone(),
        source_conditions: parameters.conditions.clone(),
        destination: destination.clone(),
        metadata: parameters.metadata(None),
        tags: parameters.tags.clone(),
        algorithm: checksums::named_algorithm(call, "x-amz-checksum-algorithm")?,
        precondition: conditions::write_precondition(call)?,
        etag: service.options.etag,
    };
    conditions::check_destination(service, call, destination, &request.precondition).await?;
    if !parameters.needs_source_metadata() {
        return service.store.copy(&call.context, request).await.map_err(conditions::source_failure);
    }
    let mut attempt = 1;
    loop {
        let info = head_source(service, call, parameters).await?;
        parameters.given.classes.check_within(info.size)?;
        request.metadata = parameters.metadata(Some(&info));
        if let Some(metadata) = request.metadata.as_mut().filter(|_| parameters.replaces_metadata) {
            let tags = parameters.tags.as_ref().unwrap_or(&info.metadata.tags);
            classify(service, call, metadata, Some(info.size), Some(tags));
        }
        request.source_conditions.if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
        match service.store.copy(&call.context, request.clone()).await {
            Err(error)
                if error.reason() == Reason::PreconditionFailed
                    && attempt < MAX_ATTEMPTS
                    && head_source(service, call, parameters).await?.etag != info.etag =>
            {
                attempt += 1;
            }
            result => return result.map_err(conditions::source_failure),
        }
    }
}

async fn head_source(
    service: &ServiceContext,
    call: &Call,
    parameters: &CopyParameters,
) -> Result<ObjectInfo> {
    let request = GetRequest { conditions: parameters.conditions.clone(), ..GetRequest::default() };
    let found = service.store.head(&call.context, &parameters.source, request).await;
    Ok(found.map_err(conditions::source_failure)?.info)
}

/// Returns true if a directive is `REPLACE`.
fn is_replace(call: &Call, name: &str) -> Result<bool> {
    match call.header(name)? {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => {
            let kind = if name == "x-amz-tagging-directive" { "tagging" } else { "metadata" };
            Err(Failure::invalid_argument(format!("Unknown {kind} directive."), name, other))
        }
    }
}

/// The source of a copy: `bucket/key` or `/bucket/key`, percent-encoded, with an optional `?versionId=`. Fails if the
/// client may not read it.
pub(super) fn parse_source(call: &Call) -> Result<Address> {
    let text = call.header(COPY_SOURCE)?.unwrap_or_default();
    let invalid = |message: &str| Failure::invalid_argument(message, COPY_SOURCE, text);
    let malformed = || invalid("Copy Source must mention the source bucket and key: sourcebucket/sourcekey");
    if text.starts_with("arn:") {
        return Err(Failure::not_implemented("access points"));
    }
    let (path, version) = match text.rsplit_once("?versionId=") {
        Some((path, version)) => (path, Some(version)),
        None => (text, None),
    };
    // As in S3, a `+` stands for a space.
    let decode = |text| form_decode(text).map_err(|_| invalid("Invalid copy source encoding"));
    let path = decode(path)?;
    let path = path.strip_prefix('/').unwrap_or(&path);
    let (bucket, key) = path.split_once('/').filter(|(_, key)| !key.is_empty()).ok_or_else(malformed)?;
    let bucket = BucketName::new(bucket).map_err(|_| Failure::from(invalid_bucket_name_error(bucket)))?;
    let access = if version.is_some() { Access::ReadVersion } else { Access::Read };
    call.require_access(access, Some(&bucket))?;
    let version = version.map(|text| version_id::parse(&decode(text)?)).transpose()?;
    let key = ObjectKey::new(key).map_err(|_| key_too_long_error(key))?;
    Ok(Address::new(bucket, key).with_version(version))
}
