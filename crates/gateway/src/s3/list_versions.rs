//! The operation ListObjectVersions.
//!
//! `s3s` writes all versions in one list and all delete markers in another, but in S3 they alternate in the order of
//! the page. Here delete markers pass through `s3s` as versions without an entity tag, and
//! [`rename_delete_markers`] then renames their elements.

use bytes::Bytes;
use s3s::S3Response;
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, ListObjectVersionsInput, ListObjectVersionsOutput,
    ObjectVersion, ObjectVersionStorageClass,
};
use tradewind_core::listing::ListEntry;
use tradewind_core::version::{ListVersions, ListedVersion, VersionId, VersionPosition, VersionsPage};

use super::call::Call;
use super::failure::{Failure, Result};
use super::list::split_prefix;
use super::operation::Operation;
use super::paging::{NameEncoding, page_size};
use super::response::{xml_etag, xml_time};
use super::service_context::ServiceContext;
use crate::error::Code;

const VERSION_START: &str = "<Version>";
const VERSION_END: &str = "</Version>";

/// ListObjectVersions.
pub(super) async fn list(
    service: &ServiceContext,
    call: &Call,
    input: ListObjectVersionsInput,
) -> Result<S3Response<ListObjectVersionsOutput>> {
    let encode = NameEncoding::parse(input.encoding_type.as_ref())?;
    let max_keys = page_size(input.max_keys, "maxKeys")?;
    let key_marker = input.key_marker.unwrap_or_default();
    let version_id_marker = input.version_id_marker.unwrap_or_default();
    let request = ListVersions {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()),
        after: position(&key_marker, &version_id_marker)?,
        limit: usize::try_from(max_keys).unwrap_or_default(),
    };
    let page = page(service, call, &request).await;
    let VersionsPage { entries, next } = page.map_err(|failure| match failure.code() {
        Code::InvalidArgument => invalid_marker(&version_id_marker),
        _ => failure,
    })?;
    let is_truncated = next.is_some();
    let (next_key, next_version) = next.map(|next| (next.key, next.version)).unzip();
    let (mut versions, mut common_prefixes) = (Vec::with_capacity(entries.len()), Vec::new());
    for entry in entries {
        match entry {
            ListEntry::CommonPrefix(prefix) => {
                common_prefixes.push(CommonPrefix { prefix: Some(encode.encode(&prefix)) });
            }
            ListEntry::Key(key, listed) => versions.push(version(service, encode.encode(&key), listed)),
        }
    }
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(call.bucket()?.to_string()),
        prefix: Some(encode.encode(&request.prefix)),
        delimiter: request.delimiter.as_deref().map(|d| encode.encode(d)),
        key_marker: Some(encode.encode(&key_marker)),
        version_id_marker: Some(version_id_marker),
        next_key_marker: next_key.map(|key| encode.encode(&key)),
        next_version_id_marker: next_version.flatten().map(|version| version.to_string()),
        max_keys: Some(max_keys),
        is_truncated: Some(is_truncated),
        encoding_type: input.encoding_type,
        versions: Some(versions),
        common_prefixes: Some(common_prefixes),
        delete_markers: None,
        request_charged: None,
    }))
}

/// The position after which the page begins. Empty markers are absent ones.
fn position(key: &str, version: &str) -> Result<Option<VersionPosition>> {
    if key.is_empty() && !version.is_empty() {
        return Err(Failure::invalid_argument(
            "A version-id marker cannot be specified without a key marker.",
            "version-id-marker",
            version,
        ));
    }
    if key.is_empty() {
        return Ok(None);
    }
    let parsed = Some(version).filter(|version| !version.is_empty()).map(VersionId::parse).transpose();
    let version = parsed.map_err(|_| invalid_marker(version))?;
    Ok(Some(VersionPosition { key: key.to_owned(), version }))
}

/// The error of a marker that is no version id of the store.
fn invalid_marker(version: &str) -> Failure {
    Failure::invalid_argument("Invalid version id specified", "version-id-marker", version)
}

/// The position after an entry.
fn position_after(entry: &ListEntry<ListedVersion>) -> VersionPosition {
    let version = match entry {
        ListEntry::Key(_, listed) => Some(listed.version.clone()),
        ListEntry::CommonPrefix(_) => None,
    };
    VersionPosition { key: entry.name().to_owned(), version }
}

/// One page. As in ListObjects, a common prefix that contains the marker is returned if it has versions after it.
async fn page(service: &ServiceContext, call: &Call, request: &ListVersions) -> Result<VersionsPage> {
    let (store, context, bucket) = (&service.store, &call.context, call.bucket()?);
    let Some(common) = split_prefix(&request.as_list_request()) else {
        let mut page = store.list_versions(context, bucket, request).await?;
        if request.limit == 0 {
            page.next = None;
        }
        return Ok(page);
    };
    let within =
        ListVersions { prefix: common.clone(), delimiter: None, after: request.after.clone(), limit: 1 };
    let has_versions_after = !store.list_versions(context, bucket, &within).await?.entries.is_empty();
    let mut page = store.list_versions(context, bucket, request).await?;
    if has_versions_after {
        page.entries.insert(0, ListEntry::CommonPrefix(common));
        if page.entries.len() > request.limit {
            page.entries.pop();
            page.next = page.entries.last().map(position_after);
        }
    }
    Ok(page)
}

/// A version, or a delete marker as a version without what only objects have.
fn version(service: &ServiceContext, key: String, listed: ListedVersion) -> ObjectVersion {
    let common = ObjectVersion {
        is_latest: Some(listed.is_latest),
        key: Some(key),
        last_modified: Some(xml_time(listed.modified)),
        owner: Some(service.owner()),
        version_id: Some(listed.version.to_string()),
        ..ObjectVersion::default()
    };
    let Some(object) = listed.object else { return common };
    ObjectVersion {
        checksum_algorithm: object
            .checksum
            .map(|(algorithm, _)| vec![ChecksumAlgorithm::from_static(algorithm.name())]),
        checksum_type: object.checksum.map(|(_, scope)| ChecksumType::from_static(scope.name())),
        e_tag: Some(xml_etag(&object.etag)),
        size: Some(i64::try_from(object.size).unwrap_or(i64::MAX)),
        storage_class: Some(match object.storage_class {
            Some(class) => ObjectVersionStorageClass::from(class),
            None => ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD),
        }),
        ..common
    }
}

/// Renames the elements of delete markers in a response of ListObjectVersions. Text cannot be mistaken for tags,
/// because it is escaped.
pub(super) fn rename_delete_markers(operation: Operation, body: Bytes) -> Bytes {
    if operation != Operation::ListObjectVersions {
        return body;
    }
    match std::str::from_utf8(&body) {
        Ok(text) => renamed(text).into(),
        Err(_) => body,
    }
}

fn renamed(text: &str) -> String {
    let mut parts = text.split(VERSION_START);
    let mut renamed = String::with_capacity(text.len() + text.len() / 16);
    renamed.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (element, rest) = part.split_once(VERSION_END).unwrap_or((part, ""));
        let name = if element.contains("<ETag>") { "Version" } else { "DeleteMarker" };
        for piece in ["<", name, ">", element, "</", name, ">", rest] {
            renamed.push_str(piece);
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_entity_tag_become_delete_markers() {
        let text = "<a><Version><ETag>&quot;x&quot;</ETag><Key>k</Key></Version><Version><Key>&lt;ETag&gt;</Key>\
                    </Version><Version><ETag>y</ETag></Version><b/></a>";
        let expected = "<a><Version><ETag>&quot;x&quot;</ETag><Key>k</Key></Version><DeleteMarker>\
                        <Key>&lt;ETag&gt;</Key></DeleteMarker><Version><ETag>y</ETag></Version><b/></a>";
        assert_eq!(renamed(text), expected);
        assert_eq!(renamed("<a></a>"), "<a></a>");
    }

    #[test]
    fn other_responses_are_unchanged() {
        let body = Bytes::from_static(b"<Version></Version>");
        assert_eq!(rename_delete_markers(Operation::ListObjects, body.clone()), body);
    }
}
