//! ListMultipartUploads.

use http::Method;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{ListUploads, UploadId, UploadInfo, UploadsPage};
use tradewind_core::{BucketName, ChecksumScope, Context, Metadata};

use super::S3Store;
use super::headers::storage_class;
use super::list::{MAX_PAGE_BYTES, decode_key};
use super::xml::DocumentKind;
use crate::remote::client::Call;
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::query::Query;
use crate::remote::time::parse_time;

const UPLOADS: DocumentKind =
    DocumentKind { name: "a list of uploads", roots: &["ListMultipartUploadsResult"] };

impl S3Store {
    /// Lists one page. It may have fewer entries than requested even if another page follows.
    pub(super) async fn uploads_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        if request.limit == 0 {
            self.find_bucket(context, bucket).await?;
            return Ok(UploadsPage { entries: Vec::new(), next: None });
        }
        if self.is_ceph(context).await? {
            return self.list_uploads_rolled_up(context, bucket, request).await;
        }
        self.fetch_uploads_page(context, bucket, request).await
    }

    /// Lists one page, with common prefixes computed here. radosgw omits uploads below a delimiter, and repeats the
    /// uploads of a key if only a key marker is given.
    async fn list_uploads_rolled_up(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        let mut flat = ListUploads { delimiter: None, limit: MAX_PAGE_ENTRIES, ..request.clone() };
        let skip_to = request.after_key.as_deref().filter(|_| request.after_upload.is_none());
        let mut entries: Vec<ListEntry<UploadInfo>> = Vec::new();
        let mut next = None;
        loop {
            let page = self.fetch_uploads_page(context, bucket, &flat).await?;
            for entry in page.entries {
                let ListEntry::Key(key, upload) = entry else { continue };
                let entry = match common_prefix(&key, request) {
                    Some(prefix) => ListEntry::CommonPrefix(prefix.to_owned()),
                    None => ListEntry::Key(key, upload),
                };
                let is_prefix = matches!(entry, ListEntry::CommonPrefix(_));
                let is_listed = is_prefix && entries.last().is_some_and(|last| last.name() == entry.name());
                if is_listed || skip_to.is_some_and(|skip_to| entry.name() <= skip_to) {
                    continue;
                }
                if entries.len() == request.limit {
                    return Ok(UploadsPage { entries, next });
                }
                next = Some(match &entry {
                    ListEntry::Key(key, upload) => (key.clone(), Some(upload.id.clone())),
                    ListEntry::CommonPrefix(prefix) => (prefix.clone(), None),
                });
                entries.push(entry);
            }
            match page.next {
                Some((key, upload)) => (flat.after_key, flat.after_upload) = (Some(key), upload),
                None => return Ok(UploadsPage { entries, next: None }),
            }
        }
    }

    async fn fetch_uploads_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        let mut call = Call::bucket(Method::GET, bucket);
        call.query = Query::default()
            .flag("uploads")
            .with("encoding-type", "url")
            .with("max-uploads", &request.limit.min(MAX_PAGE_ENTRIES).to_string())
            .with_optional("prefix", Some(request.prefix.as_str()).filter(|prefix| !prefix.is_empty()))
            .with_optional("delimiter", request.delimiter.as_deref())
            .with_optional("key-marker", request.after_key.as_deref())
            .with_optional("upload-id-marker", request.after_upload.as_ref().map(|upload| upload.0.as_str()));
        let document = self.send(context, &call).await?.collect(MAX_PAGE_BYTES).await?;
        let mut entries: Vec<ListEntry<UploadInfo>> = Vec::new();
        let (mut key, mut id, mut initiated) = (String::new(), String::new(), None);
        let (mut algorithm, mut scope, mut metadata) = (None, None, Metadata::default());
        let (mut next_key, mut next_upload, mut is_truncated) = (String::new(), String::new(), false);
        let mut is_encoded = false;
        UPLOADS.for_each_element(&document, |path, text| match path {
            [_, "EncodingType"] => is_encoded = text == "url",
            [_, "IsTruncated"] => is_truncated = text == "true",
            [_, "NextKeyMarker"] => next_key = text.to_owned(),
            [_, "NextUploadIdMarker"] => next_upload = text.to_owned(),
            [_, "Upload", "Key"] => key = text.to_owned(),
            [_, "Upload", "UploadId"] => id = text.to_owned(),
            [_, "Upload", "Initiated"] => initiated = parse_time(text),
            [_, "Upload", "StorageClass"] => metadata.headers.storage_class = storage_class(text),
            [_, "Upload", "ChecksumAlgorithm"] => algorithm = text.parse().ok(),
            [_, "Upload", "ChecksumType"] => scope = text.parse().ok(),
            [_, "Upload"] => {
                let key = std::mem::take(&mut key);
                let scope = scope.take().unwrap_or(ChecksumScope::Composite);
                let info = UploadInfo {
                    id: UploadId(std::mem::take(&mut id)),
                    key: key.clone(),
                    initiated: initiated.take(),
                    metadata: std::mem::take(&mut metadata),
                    checksum: algorithm.take().map(|algorithm| (algorithm, scope)),
                };
                entries.push(ListEntry::Key(key, info));
            }
            [_, "CommonPrefixes", "Prefix"] => entries.push(ListEntry::CommonPrefix(text.to_owned())),
            _ => {}
        })?;
        if is_encoded {
            next_key = decode_key(&next_key)?;
        }
        // radosgw encodes the listed keys without declaring it; it does not encode the next key marker.
        if is_encoded || self.is_ceph(context).await? {
            for entry in &mut entries {
                match entry {
                    ListEntry::Key(name, info) => {
                        *name = decode_key(name)?;
                        info.key.clone_from(name);
                    }
                    ListEntry::CommonPrefix(name) => *name = decode_key(name)?,
                }
            }
        }
        // A stable sort: uploads of one key keep their order.
        entries.sort_by(|a, b| a.name().cmp(b.name()));
        if is_truncated && next_key.is_empty() {
            let why = "a page of the store's list of uploads is truncated, and does not say where the next one begins";
            return Err(Error::new(Reason::Io, why));
        }
        let upload = Some(UploadId(next_upload)).filter(|upload| !upload.0.is_empty());
        Ok(UploadsPage { entries, next: is_truncated.then_some((next_key, upload)) })
    }
}

/// The common prefix that a key is rolled up into; `None` if it is listed itself.
fn common_prefix<'a>(key: &'a str, request: &ListUploads) -> Option<&'a str> {
    let delimiter = request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
    let at = key.strip_prefix(&request.prefix)?.find(delimiter)?;
    Some(&key[..request.prefix.len() + at + delimiter.len()])
}
