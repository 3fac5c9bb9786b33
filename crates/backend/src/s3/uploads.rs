//! Multipart uploads: beginning, listing, completing and giving them up.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::DATE;
use http::{HeaderValue, Method};
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadInfo,
    UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::GetRequest;
use tradewind_core::{
    Address, Algorithm, BucketName, Checksum, ChecksumScope, Context, ETag, Metadata, Precondition, Timestamp,
};
use tradewind_wire::headers::CHECKSUM_TYPE;

use super::S3Store;
use super::failure::Refusal;
use super::headers;
use super::list::decode_key;
use super::xml;
use crate::remote::client::Call;
use crate::remote::client::Subject;
use crate::remote::fields;
use crate::remote::fields::generation;
use crate::remote::payload::Held;
use crate::remote::query::Query;
use crate::remote::time::parse_time;

/// A page of parts or uploads, or the answer to a completion.
const MOST_PAGE_BYTES: usize = 8 << 20;
const MOST_ENTRIES: usize = 1000;
/// Uploads whose checksum is remembered.
const MOST_REMEMBERED: usize = 4096;

impl S3Store {
    /// CreateMultipartUpload.
    pub(super) async fn begin_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        request.check()?;
        let mut call = Call::object(Method::POST, &address.bucket, address.key.as_str());
        call.query = Query::default().flag("uploads");
        // A second one would be an upload that nobody knows of: worth less than an error.
        call.may_repeat = false;
        headers::write_metadata(&request.metadata, &mut call.headers)?;
        if let Some((algorithm, scope)) = request.checksum {
            call.headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
            call.headers.insert(CHECKSUM_TYPE, HeaderValue::from_static(scope.name()));
        }
        let answer = self.client.send(context, &call).await?;
        if request.checksum.is_some() {
            self.learn_trailers(answer.header("x-amz-checksum-algorithm").is_some());
        }
        let document = answer.collect(MOST_PAGE_BYTES).await?;
        let mut id = String::new();
        xml::leaves(&document, |path, text| {
            if let [_, "UploadId"] = path {
                id = text.to_owned();
            }
        })?;
        if id.is_empty() {
            return Err(Error::new(Reason::Io, "the store began an upload and did not name it"));
        }
        let id = UploadId(id);
        self.remember(&id, request.checksum.map(|(algorithm, _)| algorithm));
        Ok(id)
    }

    /// The checksum that an upload's parts must carry: a part with another one is refused.
    pub(super) async fn checksum_of_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<Option<Algorithm>> {
        let known = self.uploads.lock().get(upload).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let page = self.parts_page(context, address, upload, None, 1).await?;
        let algorithm = page.upload.checksum.map(|(algorithm, _)| algorithm);
        self.remember(upload, algorithm);
        Ok(algorithm)
    }

    fn remember(&self, upload: &UploadId, algorithm: Option<Algorithm>) {
        let mut uploads = self.uploads.lock();
        // Uploads that are never ended here: what is forgotten is asked again.
        if uploads.len() >= MOST_REMEMBERED {
            uploads.clear();
        }
        uploads.insert(upload.clone(), algorithm);
    }

    /// AbortMultipartUpload.
    pub(super) async fn give_up(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<()> {
        self.uploads.lock().remove(upload);
        let call = upload_call(Method::DELETE, address, upload, Query::default());
        self.client.send(context, &call).await?.collect(MOST_PAGE_BYTES).await.map(drop)
    }

    /// Completes an upload. Where nobody knows what became of it, since the answer was lost, the store is asked: the
    /// upload is gone and the object is what its parts make, or it failed.
    pub(super) async fn end_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        order: CompleteUpload,
    ) -> Result<Committed> {
        match self.complete(context, address, upload, &order).await {
            Err(e) if e.kind() == ErrorKind::Unavailable && order.precondition == Precondition::None => {
                self.find_completed(context, address, upload, &order).await.ok_or(e)
            }
            ended => ended,
        }
    }

    /// The object, where it is certain that this upload became it.
    async fn find_completed(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        order: &CompleteUpload,
    ) -> Option<Committed> {
        let expected = order.expected_checksum?;
        match self.parts_page(context, address, upload, None, 1).await {
            Err(e) if e.reason() == Reason::NoSuchUpload => {}
            _ => return None,
        }
        let info = self.read_head(context, address, &GetRequest::default()).await.ok()?.info;
        let is_it = Some(info.size) == order.expected_size
            && info.scope == ChecksumScope::FullObject
            && info.checksums.contains(&expected);
        is_it.then_some(Committed {
            etag: info.etag,
            size: info.size,
            modified: info.modified,
            generation: info.generation,
            checksums: info.checksums,
            scope: info.scope,
        })
    }

    /// CompleteMultipartUpload. Its answer may begin with success and still hold a refusal.
    async fn complete(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        order: &CompleteUpload,
    ) -> Result<Committed> {
        if order.parts.is_empty() {
            // What is not there is told first.
            self.parts_page(context, address, upload, None, 1).await?;
            return Err(Error::new(Reason::InvalidRequest, "a completion must name at least one part"));
        }
        let mut document = "<CompleteMultipartUpload>".to_owned();
        for part in &order.parts {
            let _ = write!(document, "<Part><PartNumber>{}</PartNumber><ETag>", part.number.get());
            xml::escape(&format!("\"{}\"", part.etag), &mut document);
            document.push_str("</ETag>");
            if let Some(checksum) = part.checksum {
                let name = checksum.algorithm().name();
                let _ = write!(document, "<Checksum{name}>{}</Checksum{name}>", checksum.to_base64());
            }
            document.push_str("</Part>");
        }
        document.push_str("</CompleteMultipartUpload>");
        let mut call = upload_call(Method::POST, address, upload, Query::default());
        call.may_repeat = false;
        call.is_work = true;
        call.payload = Held::of([Bytes::from(document)]);
        headers::write_precondition(&order.precondition, &mut call.headers)?;
        if let Some(checksum) = order.expected_checksum {
            call.headers.insert(checksum.algorithm().header(), fields::value(&checksum.to_base64())?);
        }
        if let Some(size) = order.expected_size {
            call.headers.insert("x-amz-mp-object-size", size.into());
        }
        let answer = self.client.send(context, &call).await?;
        let (status, date) = (answer.head.status, fields::date(&answer.head.headers, &DATE)?);
        let document = answer.collect(MOST_PAGE_BYTES).await?;
        let (mut etag, mut checksums, mut scope) = (None, Vec::new(), ChecksumScope::FullObject);
        let mut is_refused = false;
        xml::leaves(&document, |path, text| match path {
            ["Error"] => is_refused = true,
            [_, "ETag"] => etag = Some(ETag::from_text(text)),
            [_, "ChecksumType"] => scope = text.parse().unwrap_or(scope),
            [_, name] => checksums.extend(headers::checksum_element(name, text)),
            _ => {}
        })?;
        if is_refused {
            let what = format!("completing the upload of {}", address.key);
            return Err(Refusal::read(&document).into_error(status, Subject::Upload, &what));
        }
        let etag = etag.ok_or_else(|| {
            Error::new(Reason::Io, "the store completed an upload and did not say what became of it")
        })?;
        let modified = date.unwrap_or_else(|| self.client.clock.wall());
        let size = match order.expected_size {
            Some(size) => size,
            None => self.read_head(context, address, &Default::default()).await?.info.size,
        };
        let generation = generation(modified, etag.as_str());
        Ok(Committed { etag, size, modified, generation, checksums, scope })
    }

    /// ListParts.
    pub(super) async fn parts_page(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        let after = after.map(|number| number.get().to_string());
        let query = Query::default()
            .with("max-parts", &limit.clamp(1, MOST_ENTRIES).to_string())
            .with_some("part-number-marker", after.as_deref());
        let call = upload_call(Method::GET, address, upload, query);
        let document = self.client.send(context, &call).await?.collect(MOST_PAGE_BYTES).await?;
        let mut page = PartsPage {
            upload: UploadInfo {
                id: upload.clone(),
                key: address.key.to_string(),
                initiated: Timestamp::default(),
                metadata: Metadata::default(),
                checksum: None,
            },
            parts: Vec::new(),
            next: None,
        };
        let (mut part, mut is_truncated) = (Part::default(), false);
        let (mut algorithm, mut scope) = (None, None);
        xml::leaves(&document, |path, text| match path {
            [_, "IsTruncated"] => is_truncated = text == "true",
            [_, "ChecksumAlgorithm"] => algorithm = text.parse().ok(),
            [_, "ChecksumType"] => scope = text.parse().ok(),
            [_, "Part", "PartNumber"] => part.number = text.parse().unwrap_or_default(),
            [_, "Part", "Size"] => part.size = text.parse().unwrap_or_default(),
            [_, "Part", "ETag"] => part.etag = Some(ETag::from_text(text)),
            [_, "Part", "LastModified"] => part.modified = parse_time(text),
            [_, "Part", name] => part.checksums.extend(headers::checksum_element(name, text)),
            [_, "Part"] => page.parts.extend(std::mem::take(&mut part).into_info()),
            _ => {}
        })?;
        if algorithm.is_some() {
            self.learn_trailers(true);
        }
        page.upload.checksum =
            algorithm.map(|algorithm| (algorithm, scope.unwrap_or(ChecksumScope::Composite)));
        page.next = page.parts.last().map(|part| part.number).filter(|_| is_truncated);
        if limit == 0 {
            page.parts.clear();
        }
        Ok(page)
    }

    /// ListMultipartUploads.
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
        let mut call = Call::bucket(Method::GET, bucket);
        call.query = Query::default()
            .flag("uploads")
            .with("encoding-type", "url")
            .with("max-uploads", &request.limit.min(MOST_ENTRIES).to_string())
            .with_some("prefix", Some(request.prefix.as_str()).filter(|prefix| !prefix.is_empty()))
            .with_some("delimiter", request.delimiter.as_deref())
            .with_some("key-marker", request.after_key.as_deref())
            .with_some("upload-id-marker", request.after_upload.as_ref().map(|upload| upload.0.as_str()));
        let document = self.client.send(context, &call).await?.collect(MOST_PAGE_BYTES).await?;
        let mut entries: Vec<ListEntry<UploadInfo>> = Vec::new();
        let (mut key, mut id, mut initiated) = (String::new(), String::new(), None);
        let (mut algorithm, mut scope) = (None, None);
        let (mut next_key, mut next_upload, mut is_truncated) = (String::new(), String::new(), false);
        let mut is_encoded = false;
        xml::leaves(&document, |path, text| match path {
            [_, "EncodingType"] => is_encoded = text == "url",
            [_, "IsTruncated"] => is_truncated = text == "true",
            [_, "NextKeyMarker"] => next_key = text.to_owned(),
            [_, "NextUploadIdMarker"] => next_upload = text.to_owned(),
            [_, "Upload", "Key"] => key = text.to_owned(),
            [_, "Upload", "UploadId"] => id = text.to_owned(),
            [_, "Upload", "Initiated"] => initiated = parse_time(text),
            [_, "Upload", "ChecksumAlgorithm"] => algorithm = text.parse().ok(),
            [_, "Upload", "ChecksumType"] => scope = text.parse().ok(),
            [_, "Upload"] => {
                let key = std::mem::take(&mut key);
                let scope = scope.take().unwrap_or(ChecksumScope::Composite);
                let info = UploadInfo {
                    id: UploadId(std::mem::take(&mut id)),
                    key: key.clone(),
                    initiated: initiated.take().unwrap_or_default(),
                    metadata: Metadata::default(),
                    checksum: algorithm.take().map(|algorithm| (algorithm, scope)),
                };
                entries.push(ListEntry::Key(key, info));
            }
            [_, "CommonPrefixes", "Prefix"] => entries.push(ListEntry::CommonPrefix(text.to_owned())),
            _ => {}
        })?;
        if is_encoded {
            next_key = decode_key(&next_key)?;
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
        // Of one key in order of initiation, as they came.
        entries.sort_by(|a, b| a.name().cmp(b.name()));
        let upload = Some(UploadId(next_upload)).filter(|upload| !upload.0.is_empty());
        Ok(UploadsPage { entries, next: is_truncated.then_some((next_key, upload)) })
    }
}

/// A part of a page in the making.
#[derive(Default)]
struct Part {
    number: i64,
    size: u64,
    etag: Option<ETag>,
    modified: Option<Timestamp>,
    checksums: Vec<Checksum>,
}

impl Part {
    fn into_info(self) -> Option<PartInfo> {
        Some(PartInfo {
            number: PartNumber::new(self.number).ok()?,
            size: self.size,
            etag: self.etag?,
            modified: self.modified.unwrap_or_default(),
            checksums: self.checksums,
        })
    }
}

fn upload_call<'a>(method: Method, address: &'a Address, upload: &UploadId, query: Query) -> Call<'a> {
    let mut call = Call::object(method, &address.bucket, address.key.as_str());
    call.subject = Subject::Upload;
    call.query = query.with("uploadId", &upload.0);
    call
}
